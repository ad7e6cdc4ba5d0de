"""The example of one's own objects runs, and survives being killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from nearfar.run import checkpoints

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_objects.py"


def started(out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE), str(out)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def test_custom_objects_resume_bit_equal_after_a_kill(tmp_path: Path) -> None:
    killed = started(tmp_path / "killed")
    # any checkpoint will do: older ones are removed meanwhile; evaluation and report are still to come
    while killed.poll() is None and not list((tmp_path / "killed" / "ckpt").glob("step-*")):
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "killed" / "report.html").exists(), "it ended before it was killed"
    uninterrupted, interrupted = started(tmp_path / "whole"), started(tmp_path / "killed")
    output = finished(interrupted)
    assert output == finished(uninterrupted).replace("whole", "killed")
    assert "64 features of 32 numbers from Tiny" in output
    states = []
    for name in ("whole", "killed"):
        newest = checkpoints.newest(tmp_path / name / "ckpt")
        assert newest is not None
        states.append(checkpoints.load(newest)[0])
        assert (tmp_path / name / "evaluation.json").exists()
        assert "Hardest" in (tmp_path / name / "report.html").read_text(encoding="utf-8")
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
