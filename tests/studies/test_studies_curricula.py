"""`curricula` and `byol-target`: the arms are the papers', and what is told of them is what was found."""

import re
from pathlib import Path
from typing import Any

import pytest

from nearfar.config.resolving import resolve
from nearfar.core.schedules import Progress
from nearfar.studies import Bench, byol_target, curricula, run_study
from nearfar.studies.images import Setup

TOY = [
    "data=digits",
    "on=validation",
    "images=80",
    "epochs=1",
    "size=8",
    "batch=40",
    "seeds=1",
    "jobs=1",
    "backbone=resnet8-w8",
]


@pytest.mark.parametrize("name", list(curricula.CURRICULA)[1:])
def test_alpha_falls_geometrically_and_is_1_half_way(name: str) -> None:
    """Song & Ermon 2020, sec. 5.3, with 5 to 0.2 as its tables have it."""
    high, low = re.findall(r"[\d.]+", name)
    alpha = resolve("moco", "x", curricula.CURRICULA[name], {"epochs": 10}).bound["alpha"]
    values = [float(alpha(Progress(step, 100, 10))) if callable(alpha) else alpha for step in (0, 50, 100)]
    assert values == pytest.approx([float(high), 1.0, float(low)])


def test_the_papers_figures_stand_in_table_3(papers: dict[str, str]) -> None:
    text = papers["002"]
    for name, figures in curricula.PAPER.items():
        ends = re.findall(r"[\d.]+", name)
        label = (
            "$L_{1.0}$"
            if not ends
            else rf"$J_{{{float(ends[0]):.1f}}} \rightarrow J_{{{float(ends[1]):.1f}}}$"
        )
        row = next(line for line in text.splitlines() if line.startswith(label) and line.count(label) == 2)
        assert [float(cell.split()[0]) for cell in row.split("\t")[1:4]] == list(figures)


def test_the_lengths_are_in_proportion_and_told_beside_the_papers(tmp_path: Path) -> None:
    assert curricula.lengths(10) == {200: 10, 500: 25, 1000: 50}
    setup = Setup("digits", on="validation", images=80, epochs=2, size=8, batch=40, seeds=2, jobs=1)
    arms: list[Any] = []

    class Keeping(Bench):
        def arms(self, settings: Any, compute: Any, jobs: int = 1) -> list[Any]:
            arms.extend(settings)
            value = {"ml-cpc": (0.5, 0.0012)}  # 10.00 and 10.02 points above the others
            found = [(value.get(s["changes"].get("bound"), (0.4, 0.001)), s["seed"]) for s in settings]
            return [
                {"linear": at + more * seed, "linear_top5": 0.9, "knn": 0.3} for (at, more), seed in found
            ]

    result = curricula.run(Keeping(tmp_path, "curricula"), setup)
    assert len(arms) == 5 * 3 * 2
    assert sorted({arm["epochs"] for arm in arms}) == [2, 5, 10]
    rows = {row.label: row for row in result.finding("Table 3a, linear top-1 in percent").rows}
    assert rows["CPC, 200 epochs (here 2)"].paper == 83.28
    assert rows["ML-CPC 10 to 0.1, 1000 epochs (here 10)"].paper == 91.86
    assert any(
        remark.startswith("ML-CPC 10 to 0.1 above CPC at 2 epochs holds: +10.0 points") and "(the paper's 200: +2.88)" in remark
        for remark in result.remarks
    )  # fmt: skip
    assert curricula.draw(result).axes


def test_the_curricula_run(tmp_path: Path) -> None:
    record = run_study(curricula.STUDY, tmp_path, [*TOY, "negatives.size=80"])
    assert len(list((tmp_path / "arms").iterdir())) == 15
    assert "negatives.size=80" in record.command


def test_byols_target_runs(tmp_path: Path) -> None:
    record = run_study(byol_target.STUDY, tmp_path, TOY)
    labels = [row.label for row in record.result.findings[0].rows]
    assert labels == [
        "untrained",
        "tau 0",
        "tau 0.9",
        "tau 0.99",
        "tau 0.999",
        "tau 1",
        "no weight decay",
        "no predictor",
    ]
    rank = {row.label: row.ours for row in record.result.finding("RankMe of the features").rows}
    assert all(isinstance(value, float) and value >= 1 for value in rank.values())
    assert len(record.result.remarks) == 2 * len(byol_target.COMPARISON.claims)


def test_byols_arms_are_what_they_are_called() -> None:
    def settings(name: str) -> Any:
        recipe, changes = byol_target.COMPARISON.arms[name]
        return resolve(recipe, "x", changes)

    for tau in byol_target.TAUS:
        assert settings(f"tau {tau:g}").encoders["momentum"] == tau
    assert settings("no weight decay").weight_decay == 0.0
    assert settings("tau 0.99").weight_decay > 0
    assert settings("no predictor").encoders["predictor"] == "none"
    assert settings("tau 0.99").encoders["predictor"] == "mlp"
