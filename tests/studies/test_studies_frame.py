"""Studies: options by signature, finished cells reused, results and figures written, `--json` prints JSON."""

import json
import math
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import nearfar as nf
from nearfar.cli import main
from nearfar.errors import UserError
from nearfar.studies.family import PAPER
from nearfar.studies.frame import Study, StudyResult, StudyRow, StudyTable, Workspace
from nearfar.studies.run import catalogue, read_options, run_study, studies
from nearfar.sweeps.engine import Cell, CellStore


def product(seed: int, rate: float) -> dict[str, float]:
    return {"value": seed * rate}


def run(workspace: Workspace, seed: int = 0, rate: float = 0.5, label: str = "x") -> StudyResult:
    value = workspace.call(product, {"product": {"seed": seed, "rate": rate}})["product"]["value"]
    rows = (
        StudyRow("a", 0.25, value),
        StudyRow("b", None, 2.0, spread=0.125),
        StudyRow("claim", "rises", "rises"),
    )
    table = StudyTable("Table 1", rows, "A & B 2020, Table 1", {label: ([1, 2], [3, 4])})
    return StudyResult((table,), ("it differs",))


SMALL = Study("small", "a small one", run)


def test_result_file_has_paper_and_ours(tmp_path: Path) -> None:
    record = run_study(SMALL, tmp_path, ["seed=3"])
    content = json.loads((tmp_path / "result.json").read_text())
    assert content["paper"] == {"Table 1": {"a": 0.25, "claim": "rises"}}
    assert content["ours"]["Table 1"] == {
        "a": 1.5,
        "b": {"mean": 2.0, "sd": 0.125},
        "claim": "rises",
        "curves": {"x": {"x": [1, 2], "y": [3, 4]}},
    }
    assert content["sources"] == {"Table 1": "A & B 2020, Table 1"}
    assert content["command"] == "nearfar study small seed=3 rate=0.5 label=x"
    assert content["remarks"] == ["it differs"]
    text = record.text()
    assert [line.split() for line in text.splitlines()[:3]] == [
        ["Table", "1", "paper", "ours"],
        ["a", "0.25", "1.5"],
        ["b", "-", "2", "±", "0.125"],
    ]
    assert "paper: A & B 2020, Table 1" in text.splitlines()
    assert "note: it differs" in text
    assert "nearfar study small seed=3" in text
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "figure.svg").read_text()


def test_paper_values_need_a_source() -> None:
    with pytest.raises(ValueError, match="without their source"):
        StudyTable("Table 1", (StudyRow("a", 0.25, 1.0),))
    assert StudyTable("ours alone", (StudyRow("a", None, 1.0),)).paper() == {}


def test_paper_values_of_family_are_in_the_papers(papers: dict[str, str]) -> None:
    """Each value is in the passage of its table; those of Wu et al. 2021 have one row of models and one of
    values."""
    ring, curricula, thesis = papers["001"], papers["002"], papers["004"]
    names = {
        "instdisc": "IR", "instdisc-ring": "IRing", "cmc": "CMC*", "cmc-ring": "CMCRing*", "moco-v1": "MoCo",
        "moco-v1-ring": "MoCoRing", "la": "LA", "instdisc-cave": "IRCave", "cmc-cave": "CMCCave",
        "instdisc-neighbours": "IRing $(+C_i)$", "cmc-neighbours": "CMCRing $(+C_i)$",
        "instdisc-ball": "$\\mathrm{IRing}(w_u=100)$",
    }  # fmt: skip
    models, figures = ring[: ring.index("(a) CIFAR10")].splitlines()[-1].split("\t")[:2]
    first = dict(zip(models.split(), re.sub(r"\(.*?\)", "", figures).split(), strict=True))
    for name, (value, source) in PAPER.items():
        if source.endswith("Table 1a"):
            assert float(first[names[name]]) == value
        elif source.startswith("Wu"):
            assert f"{names[name]}\t{value:.1f}" in ring
        elif source.startswith("Sáez"):
            assert f"\t{value / 100:.3f}\t" in thesis[: thesis.index("**Table 11:**")][-200:]
        else:
            row = {"moco": "L_{1.0}$", "1": "J_{1.0} \\rightarrow J_{1.0}$"}
            ends = name.removeprefix("moco-ml-cpc-")
            high, _, low = ends.partition("-")
            start = row.get(ends) or rf"J_{{{float(high):.1f}}} \rightarrow J_{{{low}}}$"
            assert re.search(re.escape(start) + rf"\t{value:.2f}\b", curricula)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (
            "sed=3",
            r"sed is not one of the options of small \(did you mean seed\?\); expected one of label, "
            "rate, seed",
        ),
        ("seed=x", "seed was 'x'; expected a whole number"),
        ("rate=[1]", r"rate was \[1\]"),
        ("seed", "'seed' is not an option of small; write key=value, for instance seed=0"),
        ("=3", "'=3' is not an option"),
        ("seed=-1", "seed was -1; it must be a whole number from 0"),
    ],
)
def test_bad_option_is_one_sentence(word: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(nf.UserError, match=sentence):
        run_study(SMALL, tmp_path / "out", [word])
    assert not (tmp_path / "out").exists()


def test_options_come_from_the_signature() -> None:
    assert read_options(SMALL, ["rate=1e-3"]) == ({"seed": 0, "rate": 1e-3, "label": "x"}, ())
    assert read_options(SMALL, ["label=3"])[0]["label"] == "3"


@dataclass(frozen=True)
class SharedOptions:
    """Options that several studies have."""

    seed: int = 0
    size: int = 4

    def __post_init__(self) -> None:
        if self.size < 1:
            raise nf.UserError(f"size was {self.size}; expected whole numbers from 1")


def gathering(workspace: Workspace, shared: SharedOptions, label: str = "x") -> StudyResult:
    return StudyResult(
        (StudyTable("given", (StudyRow(label, None, float(shared.size), float(shared.seed)),)),)
    )


def test_dataclass_parameters_stand_for_their_fields(tmp_path: Path) -> None:
    study = Study("gathering", "options in a dataclass", gathering)
    assert read_options(study, ["size=7"]) == ({"seed": 0, "size": 7, "label": "x"}, ())
    record = run_study(study, tmp_path, ["size=7", "label=y", "seed=2"])
    assert record.result.tables[0].rows == (StudyRow("y", None, 7.0, 2.0),)
    assert record.command == "nearfar study gathering seed=2 size=7 label=y"
    with pytest.raises(nf.UserError, match=r"sise is not one of the options of gathering .did you mean size"):
        run_study(study, tmp_path, ["sise=7"])
    with pytest.raises(nf.UserError, match="size was 0"):
        run_study(study, tmp_path / "none", ["size=0"])
    assert not (tmp_path / "none").exists()


@dataclass(frozen=True)
class OpenOptions(SharedOptions):
    """Options, and whatever else is set."""

    changes: tuple[tuple[str, Any], ...] = field(default=(), kw_only=True)


def open_one(workspace: Workspace, shared: OpenOptions) -> StudyResult:
    rows = tuple(StudyRow(key, None, value) for key, value in shared.changes)
    return StudyResult((StudyTable("given", rows),))


def test_other_words_are_settings_of_the_recipes(tmp_path: Path) -> None:
    study = Study("open", "takes more", open_one)
    record = run_study(study, tmp_path, ["views.rotate=0.5", "size=7", "bound=ml-cpc"])
    assert record.result.tables[0].rows == (
        StudyRow("views.rotate", None, 0.5),
        StudyRow("bound", None, "ml-cpc"),
    )
    assert record.command == "nearfar study open seed=0 size=7 views.rotate=0.5 bound=ml-cpc"


def cell(**identity: Any) -> Cell:
    return Cell("cell", identity)


def test_finished_cells_are_reused(tmp_path: Path) -> None:
    calls: list[Any] = []

    def compute(cell: Cell, folder: Path) -> dict[str, Any]:
        calls.append(1)
        return {"pair": (1, 2.5)}

    first = Workspace(tmp_path, "s").run([cell(a=1, b=[2])], compute)
    second = Workspace(tmp_path, "s").run([cell(b=(2,), a=1)], compute)
    assert first == second == [{"pair": [1, 2.5]}]
    assert len(calls) == 1
    Workspace(tmp_path, "s").run([cell(a=2, b=[2])], compute)
    assert len(calls) == 2


def test_an_interrupted_cell_leaves_the_finished_ones(tmp_path: Path) -> None:
    def interrupted(cell: Cell, folder: Path) -> dict[str, Any]:
        raise KeyboardInterrupt

    workspace = Workspace(tmp_path, "s")
    workspace.run([cell(arm=1)], lambda *_: {"v": 10})
    with pytest.raises(KeyboardInterrupt):
        workspace.run([cell(arm=2)], interrupted)
    later = Workspace(tmp_path, "s")
    assert later.run([cell(arm=1)], lambda *_: {"v": 11}) == [{"v": 10}]
    assert later.run([cell(arm=2)], lambda *_: {"v": 12}) == [{"v": 12}]


def test_a_damaged_result_is_computed_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, "s")
    workspace.run([cell(a=1)], lambda *_: {"v": 10})
    file = workspace.store.folder(cell(a=1)) / "result.json"
    other_cell = file.read_text().replace(cell(a=1).digest, cell(a=2).digest)
    for damage in ("", '{"state": "done", "val', "[1]", '{"state": "done", "values": {"v": 5}}', other_cell):
        file.write_text(damage)
        assert workspace.run([cell(a=1)], lambda *_: {"v": 20}) == [{"v": 20}]


def test_seconds_count_what_finished_cells_took(tmp_path: Path) -> None:
    run_study(SMALL, tmp_path)
    (file,) = (tmp_path / "cells").glob("*/result.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "seconds": 5000.0}))
    assert 5000 < run_study(SMALL, tmp_path).seconds < 5100
    computed_now = Workspace(tmp_path / "new", "s")
    computed_now.run([cell(a=1)], lambda *_: {"v": 10})
    assert computed_now.earlier_seconds == 0


def test_numbers_that_json_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Workspace(tmp_path, "s").run([cell(a=1)], lambda *_: {"v": float("nan")})
    assert not list(tmp_path.rglob("result.json"))


def test_no_cell_is_started_after_the_deadline(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, "toy")
    cells = [cell(seed=seed) for seed in range(3)]
    double = partial(run_double)
    assert workspace.run(cells, double, deadline=-math.inf) == [None, None, None]
    assert workspace.run(cells[:2], double) == [{"v": 0}, {"v": 2}]
    assert workspace.run(cells, double, deadline=-math.inf) == [{"v": 0}, {"v": 2}, None]
    assert workspace.run(cells, double, jobs=2, deadline=-math.inf) == [{"v": 0}, {"v": 2}, None]


def run_double(cell: Cell, folder: Path) -> dict[str, int]:
    """At module level, where a worker process finds it."""
    if cell.identity["seed"] < 0:
        raise nf.UserError(f"seed was {cell.identity['seed']}")
    return {"v": 2 * cell.identity["seed"]}


def test_equal_cells_are_computed_once(tmp_path: Path) -> None:
    seeds: list[int] = []

    def double(cell: Cell, folder: Path) -> dict[str, int]:
        seeds.append(cell.identity["seed"])
        return run_double(cell, folder)

    # one is left, which needs no process of its own
    assert Workspace(tmp_path, "toy").run([cell(seed=3), cell(seed=3)], double, jobs=2) == [{"v": 6}] * 2
    assert seeds == [3]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_cell_is_reported_after_the_others_and_computed_again(jobs: int, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, "s")
    cells = [cell(seed=seed) for seed in (3, -1, 2)]
    with pytest.raises(nf.UserError, match="seed was -1"):
        workspace.run(cells, run_double, jobs)
    assert workspace.run([cells[0], cells[2]], lambda *_: pytest.fail("computed again")) == [
        {"v": 6},
        {"v": 4},
    ]
    assert workspace.run(cells, lambda *_: {"v": -2}) == [{"v": 6}, {"v": -2}, {"v": 4}]


SLEEPER = """
import os, sys, time
from pathlib import Path
from nearfar.studies.frame import Workspace
from nearfar.sweeps.engine import Cell

def sleep(cell, folder):
    Path(cell.identity["pid"]).write_text(str(os.getpid()))
    time.sleep(300)

if __name__ == "__main__":
    cells = [Cell(name, {"pid": sys.argv[1] + "/" + name}) for name in "ab"]
    Workspace(Path(sys.argv[1]), "s").run(cells, sleep, jobs=2)
"""


def test_workers_do_not_outlive_the_study(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    study = subprocess.Popen([sys.executable, tmp_path / "sleeper.py", tmp_path])
    pids = [tmp_path / name for name in "ab"]
    try:
        while not all(path.exists() and path.read_text() for path in pids):
            assert study.poll() is None
            time.sleep(0.1)
        workers = [int(path.read_text()) for path in pids]
    finally:
        study.kill()
        study.wait()
    end = time.monotonic() + 200  # they would sleep for 300 seconds
    while alive := any(map(is_alive, workers)):
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    assert not alive


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_every_study_has_a_description() -> None:
    by_name = studies()
    assert {"binary", "bias-variance", "cnce-toy", "nce-density"} <= set(by_name)
    assert all(study.name == name and study.about for name, study in by_name.items())
    assert "Song & Ermon 2020, Fig. 1, 2" in catalogue()["binary"]


def test_command_line_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == sorted(studies())
    assert main(["study", "binry"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "binry is not one of the studies (did you mean binary?)" in printed.err
    assert len(printed.err.splitlines()) == 1
    assert main(["study", "binary", "--seed", "1"]) == 2
    assert "seed is not one of the options of binary" in capsys.readouterr().err


def test_json_prints_one_object_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "binary", "--json", "--out", str(tmp_path / "b")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"paper", "ours", "sources"}
    assert printed["paper"]["Figure 1"]["CPC alpha=0.5, n=m=3"] == 0.72
    assert printed["ours"]["Figure 1"]["CPC alpha=0.5, n=m=3"] == pytest.approx(0.717438, abs=1e-6)
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"result.json", "figure.svg", "figure.png"}
    assert main(["study", "binary", "--out", str(tmp_path / "b")]) == 0
    assert "0.717438" in capsys.readouterr().out


def test_unusable_folder_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["study", "binary", "--out", str(tmp_path / "taken")]) == 2
    assert "taken cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["result.json", "figure.svg", "figure.png", "config.yaml", "sweep.json", "semi.json"]
)
def test_a_study_refuses_the_folder_of_something_else(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"study": "another"}')
    with pytest.raises(
        UserError, match=f"contains {name}, which does not belong to the study small; choose a new folder"
    ):
        run_study(SMALL, tmp_path)
    assert (tmp_path / name).read_text() == '{"study": "another"}'
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_study_refuses_the_folder_of_an_unfinished_sweep(tmp_path: Path) -> None:
    CellStore(tmp_path).create("sweep pretrain simclr digits")
    with pytest.raises(UserError, match="belongs to the sweep pretrain simclr digits; choose another folder"):
        run_study(SMALL, tmp_path)


def test_a_study_resumes_in_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("kept")
    run_study(SMALL, tmp_path)
    run_study(SMALL, tmp_path, ["seed=3"])
    assert "seed=3" in json.loads((tmp_path / "result.json").read_text())["command"]
