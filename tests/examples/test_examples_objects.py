"""The example of one's own objects runs, and survives being killed."""

from pathlib import Path

import torch

from nearfar.run import checkpoints
from tests.forked import Forked

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_objects.py"


def started(out: Path) -> Forked:
    return Forked(out, code=f"import runpy; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')")


def finished(process: Forked) -> str:
    assert process.wait() == 0, process.stderr
    return process.stdout


def test_custom_objects_resume_bit_equal_after_a_kill(tmp_path: Path) -> None:
    killed = started(tmp_path / "killed")
    # any checkpoint will do: older ones are removed meanwhile; evaluation and report are still to come
    killed.wait_until(lambda: list((tmp_path / "killed" / "ckpt").glob("step-*")))
    killed.kill()
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
