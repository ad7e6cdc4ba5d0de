"""docs/architecture.md lists the path of one batch. A traced run calls every function, in this order."""

import re
from pathlib import Path

import nearfar as nf
from tests.helpers import run_python

SOURCE = Path(nf.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"
MAX_HOPS = 20

TRACE = """
import sys, threading
from pathlib import Path
import numpy as np
import nearfar, nearfar.train.pretrain  # imported here, not while calls are recorded
from nearfar.cli import main

source, folder, calls = str(Path(nearfar.__file__).parent) + "/", sys.argv[1], []

def record(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(source):
        calls.append(f"{frame.f_code.co_filename.removeprefix(source)}:{frame.f_code.co_qualname}")

images = np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)
np.savez(f"{folder}/images.npz", images=images)
settings = ["epochs=1", "batch_size=16", "backbone=resnet8-w16", "workers=0", "held_out=0", "probe_every=0"]
settings += ["logger=none"]
threading.setprofile(record)
sys.setprofile(record)
code = main(["pretrain", "simclr", f"{folder}/images.npz", "--out", f"{folder}/run", "--quiet", *settings])
sys.setprofile(None)
Path(f"{folder}/calls").write_text("\\n".join(calls))
assert "torch._dynamo" not in sys.modules, "torch's compiler was imported: 1.4 CPU seconds"
sys.exit(code)
"""


def hops() -> list[str]:
    section = DOCUMENT.read_text().split("## The path of one batch\n")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `([^`]+)`", section, flags=re.MULTILINE)


def test_the_path_is_short_and_goes_from_the_command_to_the_checkpoint() -> None:
    path = hops()
    assert 10 <= len(path) <= MAX_HOPS
    assert (path[0], path[-1]) == ("cli/pretrain.py:run", "run/checkpoints.py:save")
    for hop in path:
        file, _, name = hop.partition(":")
        assert f"def {name.rpartition('.')[2]}(" in (SOURCE / file).read_text(), hop


def test_a_run_calls_the_path_in_order(tmp_path: Path) -> None:
    process = run_python("-c", TRACE, tmp_path)
    assert process.returncode == 0, process.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    place = 0
    for hop in hops():
        assert hop in calls[place:], f"{hop} is not called after what comes before it"
        place = calls.index(hop, place) + 1
