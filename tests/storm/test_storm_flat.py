"""A process that trains for long, or often, ends with the memory, files and threads it had after warming
up."""

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

# detects a step that leaks 8 KiB, an epoch that leaks 160 KiB, or a call that leaks 0.8 MiB
SLACK = 8 * 2**20


def test_memory_files_and_threads_stay_flat(tmp_path: Path) -> None:
    # one heap for all threads: of several, which thread gets which depends on when they run
    settings = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    words = [sys.executable, "-c", LONG, str(tmp_path)]
    process = subprocess.run(words, capture_output=True, text=True, timeout=600, env=settings)
    assert process.returncode == 0, process.stderr
    measurements = json.loads(process.stdout.splitlines()[-1])
    warm, calls, long = measurements[9], measurements[19], measurements[20:]
    for period, initial, final in (("20 calls", warm, calls), ("1,000 steps", long[0], long[-1])):
        assert final["bytes"] - initial["bytes"] < SLACK, (period, measurements)
        assert final["files"] == initial["files"], (period, measurements)
        assert final["threads"] == initial["threads"], (period, measurements)
