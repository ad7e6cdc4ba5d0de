"""`nearfar bench`: arms take turns, ratios are of medians, what is not installed is named."""

import json
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nearfar.bench import arms, measure
from nearfar.bench.losses import as_rank
from nearfar.bench.measure import ContestResult, bar_chart, table, time_contest, to_json
from nearfar.bench.peers import Arm, Contest, PeerMissing
from nearfar.bench.turns import Turn
from nearfar.cli import main
from nearfar.system.machine import PASSIVE_WAIT


def test_arms_alternate_and_the_warm_up_block_is_dropped() -> None:
    order: list[str] = []
    contest = Contest(
        "t",
        "rows/s",
        4,
        (Arm("a", lambda: lambda: order.append("a"), ours=True), Arm("b", lambda: lambda: order.append("b"))),
    )
    result = time_contest(contest, blocks=3, seconds=0.0)
    assert order == ["a", "b"] * 4
    assert {name: len(blocks) for name, blocks in result.blocks.items()} == {"a": 3, "b": 3}


def _counting(folder: str, name: str) -> Callable[[], None]:
    """A step that leaves a mark, and the OpenMP setting of its process."""
    path = Path(folder) / name
    path.write_text("")
    wait = os.environ.get("OMP_WAIT_POLICY", "torch's")

    def step() -> None:
        with path.open("a") as file:
            file.write(f"{os.getpid()} {wait}\n")

    return step


def _absent() -> Callable[[], None]:
    raise PeerMissing("peer")


def test_training_steps_run_in_child_processes_and_consume_prefetched_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours with nearfar's OpenMP setting, a peer's without; `ahead` steps of a turn are not timed."""
    for key, value in PASSIVE_WAIT.items():
        monkeypatch.setenv(key, value)
    make = {name: partial(_counting, str(tmp_path), name) for name in "ab"}
    contest = Contest(
        "t",
        "rows/s",
        4,
        (
            Arm("a", make["a"], ours=True, process="ours"),
            Arm("b", make["b"], process="theirs", prefetched=3),
            Arm("c", _absent, process="theirs"),
        ),
    )
    result = time_contest(contest, blocks=2, seconds=0.0)
    ours, theirs = ([line.split() for line in (tmp_path / name).read_text().splitlines()] for name in "ab")
    assert len(ours) == 3
    assert len(theirs) == 3 * 4
    assert len({pid for pid, *_ in ours + theirs} - {str(os.getpid())}) == 2
    assert {wait for _, wait, *_ in ours} == {"passive"}
    assert {wait for _, wait, *_ in theirs} == {"torch's"}
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert result.absent == ["c: peer is not installed"]
    assert not multiprocessing.active_children()


def test_ratios_compare_medians() -> None:
    contest = Contest(
        "t", "rows/s", 1, (Arm("ours", lambda: lambda: None, ours=True), Arm("theirs", lambda: lambda: None))
    )
    blocks = {
        "ours": [Turn(0.1, 0.2), Turn(0.5, 0.2), Turn(0.1, 0.3)],
        "theirs": [Turn(0.3, 0.1), Turn(0.3, 0.1), Turn(9.0, 0.1)],
    }
    result = ContestResult(contest, blocks, ["third: peer is not installed"])
    ours, theirs = result.rows()
    assert (ours.ratio, ours.cpu_ratio) == (1, 1)
    assert theirs.ratio == pytest.approx(3)  # a third of our speed
    assert theirs.cpu_ratio == pytest.approx(0.5)
    assert theirs.rate == pytest.approx(1 / 0.3)
    assert theirs.lowest == pytest.approx(1 / 9)
    assert theirs.highest == pytest.approx(1 / 0.3)
    lines = list(table([result]))
    assert any("| theirs | 3 | 0 to 3 | 3.00× |" in line for line in lines)
    assert any("third: peer is not installed" in line for line in lines)
    (panel,) = bar_chart([result]).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["ours", "theirs"]
    assert panel.dataLim.xmax == pytest.approx(10)
    assert to_json([result])["t"]["arms"]["theirs"]["ratio"] == pytest.approx(3)


def test_every_arm_runs_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every arm, peers included where installed, takes a step (equality with peers is in tests/losses)."""
    for contest in arms.contests(batch=4, n=16, only=["NT", "CLIP's loss,", "Multiple", "Cached"]):
        steps = [arm.make() for arm in contest.arms]
        for step in steps:
            step()
    torch.manual_seed(0)
    monkeypatch.setattr(arms, "_loaded", lambda transform, batch, images=None: _views(transform, batch))
    for contest in arms.contests(batch=4, n=16, only=["SimCLR", "MoCo"]):
        for arm in contest.arms[1:]:
            arm.make()()


class _Line:
    """What a rank hears: one request, and then nothing."""

    def __init__(self) -> None:
        self.requests, self.answers = [True], 0

    def send(self, value: bool) -> None:
        self.answers += 1

    def recv(self) -> bool:
        if not self.requests:
            raise EOFError
        return self.requests.pop()


@pytest.mark.parametrize("ours", [True, False])
def test_rank_process_runs_one_step_per_message(ours: bool, tmp_path: Path) -> None:
    line = _Line()
    as_rank(0, str(tmp_path), ours, 16, line, world=1)  # type: ignore[arg-type]
    assert line.answers == 2


def _views(transform: Any, batch: int) -> Any:
    """Without the processes that load ahead, but by what they would get."""
    images = pickle.loads(pickle.dumps(arms._Pictures(transform, arms.pictures(batch))))
    while True:
        selection = [images[number] for number in range(batch)]
        yield [torch.stack([views[place] for views in selection]) for place in (0, 1)]


def test_missing_peer_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "open_clip":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    monkeypatch.setattr(
        measure, "contests", lambda **sizes: arms.contests(**{**sizes, "only": ["CLIP's loss,"]})
    )
    out = tmp_path / "b.svg"
    assert (
        main(["bench", "--blocks", "1", "--seconds", "0.01", "--rows", "16", "--json", "--svg", str(out)])
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    (contest,) = (value for key, value in document.items() if key != "machine")
    assert contest["absent"] == ["open_clip: open_clip is not installed"]
    assert list(contest["arms"]) == ["nearfar"]
    assert "<svg" in out.read_text()
    for words in (
        ["--blocks", "0"],
        ["--seconds", "-1"],
        ["--rows", "1"],
        ["--backbone", "nothing"],
        ["--only", "x"],
    ):
        assert main(["bench", *words]) == 2
        assert "expected" in capsys.readouterr().err or words[0] == "--backbone"
