"""The thesis' grids: models as printed, arms, trends and sensitivity, and tables from finished cells."""

import re
from pathlib import Path
from typing import Any

import pytest

import nearfar as nf
from nearfar.config.settings import Settings
from nearfar.studies import Workspace, run_study, thesis
from nearfar.studies.images import compute_arm
from nearfar.studies.run import find_study
from nearfar.studies.thesis import BYOL_TABLES, SIMCLR_TABLES, ThesisModel, ThesisSetup, Trend

DIGITS = ["data=digits", "on=validation", "images=256", "epochs=1", "size=8", "seeds=2", "jobs=1"]
TOY = ThesisSetup("digits", on="validation", images=256, epochs=1, size=8, seeds=1, jobs=1)


def from_finished_cells(name: str, models: list[ThesisModel], folder: Path, value: Any, *words: str) -> Any:
    """The study's result where every cell was computed before, with linear top-1 `value(model, seed)`."""
    setup = ThesisSetup("digits", on="validation", images=256, epochs=1, size=8, jobs=1)
    workspace = Workspace(folder, name)
    for model in models:
        for seed in setup.numbers:
            linear = value(model, seed)
            values = {"linear": linear, "linear_top5": 0.9, "knn": linear}
            cell = setup.cell(str(model), model.arm(setup), seed)
            workspace.run([cell], lambda *_, values=values: values)
    return run_study(find_study(name), folder, [*DIGITS, *words]).result


def test_model_has_the_thesis_numbers_with_its_batch_in_proportion() -> None:
    arm = ThesisModel(512, 0.25, 0.75, blur=True, deep=True).arm(TOY)
    assert arm.budget == {"batch": 128, "backbone": TOY.deep}
    assert arm.changes == {
        "lr": pytest.approx(2e-3 * 2**0.5, rel=1e-3),
        "views.blur": 0.5,
        "temperature": 0.25,
        "views.strength": 0.75,
    }
    settings: Settings = TOY.settings("simclr", 0, arm.changes)
    assert (settings.views["strength"], settings.critic["temperature"]) == (0.75, 0.25)
    default = ThesisModel(64, method="byol").arm(TOY)
    assert (default.budget, default.recipe) == ({"batch": 16, "backbone": TOY.backbone}, "byol")
    assert default.changes == {"lr": 1e-3, "views.blur": 0.0}
    assert str(ThesisModel(64, 0.5, blur=True)) == "simclr, batch 64, T 0.5, blur"


def test_model_can_be_trained(tmp_path: Path) -> None:
    arm = ThesisModel(128, 0.25, 0.75, blur=True).arm(TOY)
    values = compute_arm(TOY.cell("x", arm, 0), tmp_path, TOY)
    assert 0 < values["linear"] <= values["linear_top5"] <= 1


def test_every_model_of_the_tables_is_there() -> None:
    """Table 3: 2 batches, 4 temperatures, 4 strengths; Table 6: 4 x 2 x 2; Table 8: 12 + 4; Fig. 23a: 7
    batches."""
    sizes = {name: len(set(models)) for name, models in SIMCLR_TABLES.items()}
    assert sizes == {"Table 3": 32, "Figure 23a": 7, "Table 8": 16, "Table 6": 16}
    assert len({model for models in SIMCLR_TABLES.values() for model in models}) == 69
    assert [len(models) for models in BYOL_TABLES.values()] == [6, 4, 5, 6]
    all_models = {m for tables in (SIMCLR_TABLES, BYOL_TABLES) for models in tables.values() for m in models}
    for trends in (thesis.SIMCLR_TRENDS, thesis.BYOL_TRENDS):
        assert {model for trend in trends for pair in trend.pairs for model in pair} <= all_models


def test_paper_values_are_in_the_thesis(papers: dict[str, str]) -> None:
    """Every printed figure of a model is in a line of its table; Table 3 in its order."""
    text = papers["004"]
    first = text[: text.index("Table 3: All results")]
    printed = re.findall(
        r"\t(?:<b>)?(0\.\d+)(?:</b>)?\t(?:<b>)?(0\.9\d+)(?:</b>)?\t(?:<b>)?[49][89]00", first
    )[-32:]
    values = [thesis.SIMCLR_PAPER[model] for model in thesis.GRID]
    assert [(100 * float(a), 100 * float(b)) for a, b in printed] == [pytest.approx(pair) for pair in values]
    for name, end in (("Table 6", "Table 6: All results"), ("Table 8", "**Table 8:**")):
        table = text[: text.index(end)][-1400:]
        for model in SIMCLR_TABLES[name]:
            if model in thesis.SIMCLR_PAPER:
                one, five = thesis.SIMCLR_PAPER[model]
                assert f"\t{one / 100:.3f}\t{five / 100:.3f}" in table, model
    for model, pair in thesis.SINGLE_BATCH.items():
        table = text[: text.index("**Table 14:**" if model.deep else "Table 12: All results")][-700:]
        row = next(line for line in table.splitlines() if re.match(rf"(<b>)?{model.batch}\b", line))
        figures = [float(x) for x in re.findall(r"\d[\d.]*", row)][2:4]
        assert [100 * f for f in figures] == pytest.approx(pair, abs=0.05)


def test_trend_is_the_paired_difference_of_its_models() -> None:
    a, b, c, d = (ThesisModel(batch) for batch in (64, 128, 256, 512))
    trend = Trend("small above large", [(a, b), (c, d)])
    assert trend.paper({a: (80.0, 99.0), b: (78.0, 99.0), c: (50.0, 99.0)}) == "+2.0 points, 1 pairs"
    assert trend.paper({}) is None
    linear = {a: 0.5, b: 0.4, c: 0.6, d: 0.48}
    figures = {str(model): [{"linear": value}] for model, value in linear.items()}
    # differences 10 and 12: Student's interval with one degree of freedom is ± 12.7; 10 and 10.2: ± 1.3
    assert str(trend.ours(figures)).startswith("not distinguishable: +11.0 points")
    figures[str(c)] = [{"linear": 0.582}]
    assert str(trend.ours(figures)).startswith("holds: +10.1 points")
    assert str(trend.ours(figures)).endswith("2 pairs")
    assert trend.ours({str(a): figures[str(a)]}) is None


def test_simclr_tables_from_finished_cells(tmp_path: Path) -> None:
    """Colder is better by 10 points and nothing else matters: the trends say so."""
    models = [model for models in SIMCLR_TABLES.values() for model in models]
    result = from_finished_cells(
        "thesis-simclr",
        models,
        tmp_path,
        lambda model, seed: 0.4 - 0.1 * (model.temperature or 0) + 0.01 * seed,
    )
    rows = {row.label: row for row in result.table("Trends, linear top-1").rows}
    assert rows["T 0.25 above T 1"].ours.startswith("holds: +7.5 points")
    assert rows["T 0.25 above T 1"].paper == "+3.9 points, 8 pairs"
    assert rows["batch 1024 above 512"].ours.startswith("not distinguishable: +0.0 points")
    table = result.table("Table 3, linear top-1 in percent")
    row = table.row("simclr, batch 1024, T 0.25, jitter 0.75")
    assert (row.paper, row.ours) == (84.1, pytest.approx(38.0))
    assert len(table.rows) == 32
    top5 = result.table("Table 8, linear top-5 in percent")
    assert top5.row("simclr, deep, batch 256, T 0.25, jitter 0.65, blur").paper == 99.7
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_some_of_the_simclr_tables(tmp_path: Path) -> None:
    value = lambda model, seed: 0.3 + 0.01 * model.batch.bit_length()
    result = from_finished_cells("thesis-simclr", thesis.BATCH_MODELS, tmp_path, value, "tables=23a")
    assert [table.name for table in result.tables] == [
        "Figure 23a, linear top-1 in percent",
        "Figure 23a, linear top-5 in percent",
        "Trends, linear top-1",
    ]
    claims = [row.label for row in result.tables[-1].rows]
    assert claims == ["batch 1024 above 512", "batch 1024 above 16"]  # the first has one pair in the figure
    with pytest.raises(nf.UserError, match="9 is not one of the tables; expected one of 23a, 3, 6, 8"):
        run_study(find_study("thesis-simclr"), tmp_path, [*DIGITS, "tables=3,9"])


def test_byol_sensitivity_from_finished_cells(tmp_path: Path) -> None:
    models = [model for models in BYOL_TABLES.values() for model in models]

    def value(model: ThesisModel, seed: int) -> float:
        slope = 0.001 if model.method == "byol" else 0.02
        return 0.3 + slope * model.batch.bit_length() + 0.01 * seed

    result = from_finished_cells("thesis-byol", models, tmp_path, value)
    table = result.table("How much the batch matters")
    assert table.row("simclr: highest minus lowest, points").ours == pytest.approx(10.0)
    assert table.row("simclr: points for a doubling of the batch").ours == pytest.approx(2.0)
    assert table.row("byol: points for a doubling of the batch").ours == pytest.approx(0.1)
    assert "In 2 of 2 seeds" in result.remarks[0]
    deep = result.table("Table 14, linear top-1 in percent").row("byol, deep, batch 128")
    assert deep.paper == "100, of one batch"  # never as if it were of the test set


def test_batch_too_small_to_scale_is_refused() -> None:
    setup = ThesisSetup("digits", on="validation", batch=64)
    with pytest.raises(nf.UserError, match="batch was 64; it stands for the thesis' 1024"):
        thesis.compare_models(setup, {"Figure 23a": thesis.BATCH_MODELS}, {}, "", lambda models, model: None)
