"""A process that trains for long, or often, holds no more at the end than when it had warmed up: memory, files, threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

LONG = """
import gc, json, os, sys, threading
import numpy as np
import nearfar as nf

def held():
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return {"bytes": pages * os.sysconf("SC_PAGE_SIZE"), "files": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task"))}

rows = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
tiny = dict(batch_size=4, log_every=10, checkpoint_every=100, probe_every=0, quiet=True)
found = []
for call in range(20):
    nf.pretrain("moco", rows, f"{sys.argv[1]}/{call}", epochs=1, **{"negatives.size": 32}, **tiny)
    found.append(held())
for call in range(2):  # 50 epochs, 1,000 steps each
    nf.pretrain("moco", rows, f"{sys.argv[1]}/long{call}", epochs=50, **{"negatives.size": 32}, **tiny)
    found.append(held())
print(json.dumps(found))
"""

# a step that kept 8 KiB, an epoch that kept 160, or a call that kept 0.8 MiB would be seen; an allocator's own habits are not
SLACK = 8 * 2**20


def test_memory_files_and_threads_stay_flat(tmp_path: Path) -> None:
    # one heap for all threads: of several, which thread gets which depends on when they run
    settings = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    words = [sys.executable, "-c", LONG, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=settings)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    warm, calls, long = found[9], found[19], found[20:]
    for what, before, after in (("20 calls", warm, calls), ("1,000 steps", long[0], long[-1])):
        assert after["bytes"] - before["bytes"] < SLACK, (what, found)
        assert after["files"] == before["files"], (what, found)
        assert after["threads"] == before["threads"], (what, found)
