"""The thesis' grids: cells as the thesis prints them, arms as they say, trends and sensitivity by hand, the whole from finished arms."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import nearfar as nf
from nearfar.config.settings import Settings
from nearfar.studies import Bench, Study, run_study, thesis_byol, thesis_simclr
from nearfar.studies.images import figures_of
from nearfar.studies.thesis import Budget, Cell, Trend, train

DIGITS = ["data=digits", "on=validation", "images=256", "epochs=1", "size=8", "seeds=2", "jobs=1"]
TOY = Budget("digits", on="validation", images=256, epochs=1, size=8, seeds=1, jobs=1)


def finished(study: Study, cells: list[Cell], folder: Path, of: Any, *words: str) -> Any:
    """The study's result where every arm was computed before, with figures that `of(cell, seed)` gives."""
    budget = Budget("digits", on="validation", images=256, epochs=1, size=8, jobs=1)
    arms = [(cell, seed, cell.arm(budget, seed)) for cell in cells for seed in budget.numbers]
    for cell, seed, arm in arms:
        Bench(folder, study.name).arm(arm, partial(of, cell, seed))
    return run_study(study, folder, [*DIGITS, *words]).result


def test_a_cell_is_the_thesis_own_with_its_batch_in_proportion() -> None:
    arm = Cell(512, 0.25, 0.75, blur=True, deep=True).arm(TOY, 3)
    assert (arm["batch"], arm["backbone"], arm["seed"]) == (128, TOY.deep, 3)
    assert arm["changes"] == {
        "lr": pytest.approx(2e-3 * 2**0.5, rel=1e-3),
        "views.blur": 0.5,
        "critic.temperature": 0.25,
        "views.strength": 0.75,
    }
    settings: Settings = TOY.settings("simclr", 0, arm["changes"])
    assert (settings.views["strength"], settings.critic["temperature"]) == (0.75, 0.25)
    plain = Cell(64, method="byol").arm(TOY, 0)
    assert (plain["batch"], plain["backbone"], plain["recipe"]) == (16, TOY.backbone, "byol")
    assert plain["changes"] == {"lr": 1e-3, "views.blur": 0.0}
    assert str(Cell(64, 0.5, blur=True)) == "simclr, batch 64, T 0.5, blur"


def test_a_cell_can_be_trained(tmp_path: Path) -> None:
    found = figures_of(Cell(128, 0.25, 0.75, blur=True).arm(TOY, 0), TOY, tmp_path)
    assert 0 < found["linear"] <= found["linear_top5"] <= 1


def test_every_cell_of_the_tables_is_there() -> None:
    """Table 3: 2 batches, 4 temperatures, 4 strengths; Table 6: 4 batches x 2 x 2; Table 8: 12 + 4; Fig. 23a: 7 batches, 2 of them in Table 3."""
    sizes = {name: len(set(cells)) for name, cells in thesis_simclr.TABLES.items()}
    assert sizes == {"Table 3": 32, "Figure 23a": 7, "Table 8": 16, "Table 6": 16}
    assert len({cell for cells in thesis_simclr.TABLES.values() for cell in cells}) == 69
    assert [len(cells) for cells in thesis_byol.TABLES.values()] == [6, 4, 5, 6]
    for trends in (thesis_simclr.TRENDS, thesis_byol.TRENDS):
        known = {
            c for module in (thesis_simclr, thesis_byol) for cells in module.TABLES.values() for c in cells
        }
        assert {cell for trend in trends for pair in trend.pairs for cell in pair} <= known


def test_the_thesis_figures_stand_in_the_thesis(papers: dict[str, str]) -> None:
    """Every printed figure of a cell in a line of its table; Table 3 in its order."""
    text = papers["004"]
    first = text[: text.index("Table 3: All results")]
    printed = re.findall(
        r"\t(?:<b>)?(0\.\d+)(?:</b>)?\t(?:<b>)?(0\.9\d+)(?:</b>)?\t(?:<b>)?[49][89]00", first
    )[-32:]
    told = [thesis_simclr.PAPER[cell] for cell in thesis_simclr.FIRST]
    assert [(100 * float(a), 100 * float(b)) for a, b in printed] == [pytest.approx(pair) for pair in told]
    for name, end in (("Table 6", "Table 6: All results"), ("Table 8", "**Table 8:**")):
        table = text[: text.index(end)][-1400:]
        for cell in thesis_simclr.TABLES[name]:
            if cell in thesis_simclr.PAPER:
                one, five = thesis_simclr.PAPER[cell]
                assert f"\t{one / 100:.3f}\t{five / 100:.3f}" in table, cell
    for cell, pair in thesis_byol.ONE_BATCH.items():
        table = text[: text.index("**Table 14:**" if cell.deep else "Table 12: All results")][-700:]
        row = next(line for line in table.splitlines() if re.match(rf"(<b>)?{cell.batch}\b", line))
        figures = [float(x) for x in re.findall(r"\d[\d.]*", row)][2:4]
        assert [100 * f for f in figures] == pytest.approx(pair, abs=0.05)


def test_a_trend_is_the_paired_difference_of_its_cells() -> None:
    a, b, c, d = (Cell(batch) for batch in (64, 128, 256, 512))
    trend = Trend("small above large", [(a, b), (c, d)])
    assert trend.of_paper({a: (80.0, 99.0), b: (78.0, 99.0), c: (50.0, 99.0)}) == "+2.0 points, 1 pairs"
    assert trend.of_paper({}) is None
    found = {a: [{"linear": 0.5}], b: [{"linear": 0.4}], c: [{"linear": 0.6}], d: [{"linear": 0.48}]}
    # differences 10 and 12: Student's interval with one degree of freedom reaches 12.7 points; 10 and 10.2: 1.3
    assert str(trend.ours(found)).startswith("cannot be told apart: +11.0 points")
    found[c] = [{"linear": 0.582}]
    assert str(trend.ours(found)).startswith("holds: +10.1 points")
    assert str(trend.ours(found)).endswith("2 pairs")
    assert trend.ours({a: found[a]}) is None


def test_simclrs_tables_from_finished_arms(tmp_path: Path) -> None:
    """Colder is better by 10 points, and nothing else matters: that is what the trends say."""
    cells = [cell for cells in thesis_simclr.TABLES.values() for cell in cells]

    def of(cell: Cell, seed: int) -> dict[str, Any]:
        cold = 0.4 - 0.1 * (cell.temperature or 0) + 0.01 * seed
        return {"linear": cold, "linear_top5": 0.9, "knn": cold, "warnings": []}

    result = finished(thesis_simclr.STUDY, cells, tmp_path, of)
    rows = {row.label: row for row in result.finding("Trends, linear top-1").rows}
    assert rows["T 0.25 above T 1"].ours.startswith("holds: +7.5 points")
    assert rows["T 0.25 above T 1"].paper == "+3.9 points, 8 pairs"
    assert rows["batch 1024 above 512"].ours.startswith("cannot be told apart: +0.0 points")
    table = {row.label: row for row in result.finding("Table 3, linear top-1 in percent").rows}
    row = table["simclr, batch 1024, T 0.25, jitter 0.75"]
    assert (row.paper, row.ours) == (84.1, pytest.approx(38.0))
    assert len(table) == 32
    top5 = {row.label: row for row in result.finding("Table 8, linear top-5 in percent").rows}
    assert top5["simclr, deep, batch 256, T 0.25, jitter 0.65, blur"].paper == 99.7
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_some_of_simclrs_tables_say_what_they_can(tmp_path: Path) -> None:
    def of(cell: Cell, seed: int) -> dict[str, Any]:
        return {
            "linear": 0.3 + 0.01 * cell.batch.bit_length(),
            "linear_top5": 0.9,
            "knn": 0.3,
            "warnings": [],
        }

    result = finished(thesis_simclr.STUDY, thesis_simclr.BATCHES, tmp_path, of, "tables=23a")
    assert [finding.name for finding in result.findings] == [
        "Figure 23a, linear top-1 in percent",
        "Figure 23a, linear top-5 in percent",
        "Trends, linear top-1",
    ]
    claims = [row.label for row in result.findings[-1].rows]
    assert claims == ["batch 1024 above 512", "batch 1024 above 16"]  # the first has one pair in the figure
    with pytest.raises(nf.UserError, match="tables was '3,9'; expected all, or 3, 23a, 8, 6"):
        run_study(thesis_simclr.STUDY, tmp_path, [*DIGITS, "tables=3,9"])


def test_byols_question_from_finished_arms(tmp_path: Path) -> None:
    cells = [cell for cells in thesis_byol.TABLES.values() for cell in cells]

    def of(cell: Cell, seed: int) -> Mapping[str, Any]:
        slope = 0.001 if cell.method == "byol" else 0.02
        value = 0.3 + slope * cell.batch.bit_length() + 0.01 * seed
        return {"linear": value, "linear_top5": 0.9, "knn": value, "warnings": []}

    result = finished(thesis_byol.STUDY, cells, tmp_path, of)
    minds = {row.label: row for row in result.finding("How much the batch matters").rows}
    assert minds["simclr: highest minus lowest, points"].ours == pytest.approx(10.0)
    assert minds["simclr: points for a doubling of the batch"].ours == pytest.approx(2.0)
    assert minds["byol: points for a doubling of the batch"].ours == pytest.approx(0.1)
    assert "yes, in every seed" in result.remarks[0]
    told = {row.label: row.paper for row in result.finding("Table 14, linear top-1 in percent").rows}
    assert told["byol, deep, batch 128"] == "100, of one batch"  # never as if it were of the test set


def test_a_batch_too_small_to_stand_for_the_largest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(nf.UserError, match="batch was 64; it stands for the thesis' 1024"):
        train(Bench(tmp_path, "s"), Budget("digits", on="validation", batch=64), thesis_simclr.BATCHES)
