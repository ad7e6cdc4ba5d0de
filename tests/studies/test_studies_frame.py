"""The studies' frame: options by signature, finished arms kept, results and figures written, JSON and nothing else."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import nearfar as nf
from nearfar.cli import main
from nearfar.errors import UserError
from nearfar.studies.family import PAPER
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.run import catalogue, read_options, run_study, studies


def run(bench: Bench, seed: int = 0, rate: float = 0.5, label: str = "x") -> Result:
    value = bench.arm({"seed": seed}, lambda: {"value": seed * rate})["value"]
    rows = (Row("a", 0.25, value), Row("b", None, 2.0, spread=0.125), Row("claim", "rises", "rises"))
    return Result((Finding("Table 1", rows, {label: [1, 2]}, "A & B 2020, Table 1"),), ("it differs",))


SMALL = Study("small", "a small one", run, lambda result: Figure())


def test_a_record_has_paper_and_ours(tmp_path: Path) -> None:
    record = run_study(SMALL, tmp_path, ["seed=3"])
    held = json.loads((tmp_path / "result.json").read_text())
    assert held["paper"] == {"Table 1": {"a": 0.25, "claim": "rises"}}
    assert held["ours"]["Table 1"] == {
        "a": 1.5,
        "b": {"mean": 2.0, "sd": 0.125},
        "claim": "rises",
        "curves": {"x": [1, 2]},
    }
    assert held["sources"] == {"Table 1": "A & B 2020, Table 1"}
    assert held["command"] == "nearfar study small seed=3 rate=0.5 label=x"
    assert held["remarks"] == ["it differs"]
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


def test_a_papers_figure_has_a_source() -> None:
    with pytest.raises(ValueError, match="does not say where they are from"):
        Finding("Table 1", (Row("a", 0.25, 1.0),))
    assert Finding("ours alone", (Row("a", None, 1.0),)).paper() == {}


def test_the_familys_paper_figures_stand_in_the_papers(papers: dict[str, str]) -> None:
    """Each in the passage of the table it names; the tables of Wu et al. 2021 have one row of models and one of figures."""
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
            r"sed is not one of the options of small \(did you mean seed\?\); expected one of label, rate, seed",
        ),
        ("seed=x", "seed was 'x'; expected a whole number"),
        ("rate=[1]", r"rate was \[1\]"),
        ("seed", "'seed' is not an option of small; write key=value, for instance seed=0"),
        ("=3", "'=3' is not an option"),
        ("seed=-1", "seed was -1; it must be a whole number from 0"),
    ],
)
def test_a_wrong_option_gets_one_sentence(word: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(nf.UserError, match=sentence):
        run_study(SMALL, tmp_path / "out", [word])
    assert not (tmp_path / "out").exists()


def test_options_are_the_signatures() -> None:
    assert read_options(SMALL, ["rate=1e-3"]) == ({"seed": 0, "rate": 1e-3, "label": "x"}, ())
    assert read_options(SMALL, ["label=3"])[0]["label"] == "3"


@dataclass(frozen=True)
class Shared:
    """Options that several studies have."""

    seed: int = 0
    size: int = 4

    def __post_init__(self) -> None:
        if self.size < 1:
            raise nf.UserError(f"size was {self.size}; expected whole numbers from 1")


def gathering(bench: Bench, shared: Shared, label: str = "x") -> Result:
    return Result((Finding("given", (Row(label, None, float(shared.size), float(shared.seed)),)),))


def test_a_dataclass_stands_for_its_fields(tmp_path: Path) -> None:
    study = Study("gathering", "options in a dataclass", gathering, SMALL.draw)
    assert read_options(study, ["size=7"]) == ({"seed": 0, "size": 7, "label": "x"}, ())
    record = run_study(study, tmp_path, ["size=7", "label=y", "seed=2"])
    assert record.result.findings[0].rows == (Row("y", None, 7.0, 2.0),)
    assert record.command == "nearfar study gathering seed=2 size=7 label=y"
    with pytest.raises(nf.UserError, match=r"sise is not one of the options of gathering .did you mean size"):
        run_study(study, tmp_path, ["sise=7"])
    with pytest.raises(nf.UserError, match="size was 0"):
        run_study(study, tmp_path / "none", ["size=0"])
    assert not (tmp_path / "none").exists()


@dataclass(frozen=True)
class Open(Shared):
    """Options, and whatever else is set."""

    changes: tuple[tuple[str, Any], ...] = field(default=(), kw_only=True)


def open_one(bench: Bench, shared: Open) -> Result:
    return Result((Finding("given", tuple(Row(key, None, value) for key, value in shared.changes)),))


def test_what_is_no_option_goes_to_what_is_trained_if_the_study_takes_it(tmp_path: Path) -> None:
    study = Study("open", "takes more", open_one, SMALL.draw)
    record = run_study(study, tmp_path, ["views.rotate=0.5", "size=7", "bound=ml-cpc"])
    assert record.result.findings[0].rows == (
        Row("views.rotate", None, 0.5),
        Row("bound", None, "ml-cpc"),
    )
    assert record.command == "nearfar study open seed=0 size=7 views.rotate=0.5 bound=ml-cpc"


def test_a_finished_arm_is_not_computed_again(tmp_path: Path) -> None:
    calls: list[Any] = []

    def compute() -> dict[str, Any]:
        calls.append(1)
        return {"pair": (1, 2.5)}

    first = Bench(tmp_path, "s").arm({"a": 1, "b": [2]}, compute)
    again = Bench(tmp_path, "s").arm({"b": (2,), "a": 1}, compute)
    assert first == again == {"pair": [1, 2.5]}
    assert len(calls) == 1
    Bench(tmp_path, "s").arm({"a": 2, "b": [2]}, compute)
    assert len(calls) == 2


def test_an_interrupted_arm_leaves_the_finished_ones(tmp_path: Path) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    bench = Bench(tmp_path, "s")
    bench.arm({"arm": 1}, lambda: 10)
    with pytest.raises(KeyboardInterrupt):
        bench.arm({"arm": 2}, interrupted)
    later = Bench(tmp_path, "s")
    assert later.arm({"arm": 1}, lambda: 11) == 10
    assert later.arm({"arm": 2}, lambda: 12) == 12


def test_a_damaged_arm_is_computed_again(tmp_path: Path) -> None:
    Bench(tmp_path, "s").arm({"a": 1}, lambda: 10)
    (path,) = (tmp_path / "arms").iterdir()
    for damage in ("", '{"settings": {"a": 1}, "sec', "[1]", '{"settings": {"a": 2}, "value": 5}'):
        path.write_text(damage)
        assert Bench(tmp_path, "s").arm({"a": 1}, lambda: 20) == 20


def test_seconds_count_what_finished_arms_took(tmp_path: Path) -> None:
    Bench(tmp_path, "small").arm({"seed": 0}, lambda: {"value": 7.0})
    (path,) = (tmp_path / "arms").iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 5000.0}))
    record = run_study(SMALL, tmp_path)
    assert record.result.findings[0].ours()["a"] == 7.0
    assert 5000 < record.seconds < 5100


def test_numbers_json_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        Bench(tmp_path, "s").arm({"a": 1}, lambda: float("nan"))
    assert not list(tmp_path.rglob("*.json"))


def test_every_study_says_what_it_is() -> None:
    found = studies()
    assert {"binary", "bias-variance", "cnce-toy", "nce-density"} <= set(found)
    assert all(study.name == name and study.about for name, study in found.items())
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


def test_json_is_one_object_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "binary", "--json", "--out", str(tmp_path / "b")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"paper", "ours", "sources"}
    assert printed["paper"]["Figure 1"]["CPC alpha=0.5, n=m=3"] == 0.72
    assert printed["ours"]["Figure 1"]["CPC alpha=0.5, n=m=3"] == pytest.approx(0.717438, abs=1e-6)
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"result.json", "figure.svg", "figure.png"}
    assert main(["study", "binary", "--out", str(tmp_path / "b")]) == 0
    assert "0.717438" in capsys.readouterr().out


def test_a_folder_that_cannot_be_used_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["study", "binary", "--out", str(tmp_path / "taken")]) == 2
    assert "taken cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    "held", ["result.json", "figure.svg", "figure.png", "config.yaml", "sweep.json", "claims/x"]
)
def test_a_study_takes_no_folder_that_is_not_its_own(held: str, tmp_path: Path) -> None:
    (tmp_path / held).parent.mkdir(exist_ok=True)
    (tmp_path / held).write_text('{"study": "another"}')
    name = held.partition("/")[0]
    with pytest.raises(
        UserError, match=f"contains {name}, which does not belong to study small; choose a new folder"
    ):
        run_study(SMALL, tmp_path)
    assert (tmp_path / held).read_text() == '{"study": "another"}'
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_study_goes_on_in_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("kept")
    run_study(SMALL, tmp_path)
    run_study(SMALL, tmp_path, ["seed=3"])
    assert "seed=3" in json.loads((tmp_path / "result.json").read_text())["command"]
