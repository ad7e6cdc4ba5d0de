"""The experiments of Sáez Maldonado 2021, ch. 8 and 10, in small.

    nearfar study thesis-simclr data=cifar10:ROOT    SimCLR over batch, temperature, jitter, blur and network (sec. 10.1, Tables 3 to 11,
                                                     Fig. 23 to 25); 25 minutes of one core; tables=3,23a
                                                     trains only those
    nearfar study thesis-byol data=cifar10:ROOT      BYOL over batch, network, jitter and blur, and whether it is less sensitive to the batch
                                                     size than SimCLR (sec. 8.2 and 10.2); 12 minutes of one
                                                     core
    nearfar study byol-target data=cifar10:ROOT      what keeps BYOL from collapsing: the target's momentum, weight decay, the predictor
                                                     (sec. 8.1 and 8.2); 20 minutes of one core
    nearfar study byol-norms data=cifar10:ROOT       whether batch norm replaces BYOL's negatives (Richemond et al. 2020); 12 minutes of one core

A model has the thesis' own numbers. The batch is scaled: `batch` stands for the thesis' 1,024, and the
learning rate grows with its square root (Chen et al. 2020, appendix B.1). `backbone` stands for its
ResNet-18, `deep` for its ResNet-50. As there, all models have the same epochs, so a small batch has more
steps. The thesis trains 100 epochs of 50,000 images: orders and signs can be compared, levels cannot.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from nearfar.core.statistics import mean_and_spread
from nearfar.errors import UserError
from nearfar.studies.comparison import (
    Claim,
    Comparison,
    Figures,
    PaperColumn,
    comparison_study,
    compute_figures,
    make_result,
    measure_table,
    paired,
    verdict,
)
from nearfar.studies.family import label_free_measures
from nearfar.studies.frame import (
    StudyResult,
    StudyRow,
    StudyTable,
    TableValue,
    Workspace,
    choose,
    mean_row,
    study,
)
from nearfar.studies.images import ImageSetup, StudyArm

LARGEST_BATCH = 1024  # of the thesis
RATE, RATE_BATCH = 2e-3, 64  # the recipes' learning rate, and the batch it is for
MEASURES = {"linear": "linear top-1 in percent", "linear_top5": "linear top-5 in percent"}
EQUAL_EPOCHS = "all models have the same epochs, as in the thesis: a small batch takes more steps, so the batch's effect is that of both."


@dataclass(frozen=True)
class ThesisSetup(ImageSetup):
    """Small enough to train every model of a grid twice within an hour."""

    images: int = 2_500
    epochs: int = 10
    size: int = 12
    batch: int = 256
    backbone: str = "resnet8-w8"
    deep: str = "resnet8-w16"  # of the same depth, twice as wide; a deeper one, such as resnet18, costs hours


@dataclass(frozen=True)
class ThesisModel:
    """One model of the thesis' tables; None: as in the recipe."""

    batch: int
    temperature: float | None = None
    jitter: float | None = None
    blur: bool = False
    deep: bool = False
    method: str = "simclr"

    def __str__(self) -> str:
        words = [self.method, *(["deep"] if self.deep else []), f"batch {self.batch}"]
        numbers = {"T": self.temperature, "jitter": self.jitter}
        words += [f"{name} {value:g}" for name, value in numbers.items() if value is not None]
        return ", ".join([*words, "blur"] if self.blur else words)

    def arm(self, setup: ThesisSetup) -> StudyArm:
        batch = setup.batch * self.batch // LARGEST_BATCH
        changes: dict[str, Any] = {
            "lr": float(f"{RATE * (batch / RATE_BATCH) ** 0.5:.4g}"),
            "views.blur": 0.5 * self.blur,
        }
        changes |= {} if self.temperature is None else {"temperature": self.temperature}
        changes |= {} if self.jitter is None else {"views.strength": self.jitter}
        backbone = setup.deep if self.deep else setup.backbone
        return StudyArm(self.method, changes, {"batch": batch, "backbone": backbone})


PaperFigures = Mapping[ThesisModel, tuple[float, float]]  # top-1 and top-5, in percent


@dataclass(frozen=True)
class Trend:
    """The claim that the first model of each pair is better than the second."""

    claim: str
    pairs: Sequence[tuple[ThesisModel, ThesisModel]]
    words: str | None = None  # where the thesis has no number

    def paper(self, paper: PaperFigures) -> str | None:
        """The thesis' mean difference over the pairs that it prints."""
        printed = [paper[a][0] - paper[b][0] for a, b in self.pairs if a in paper and b in paper]
        return f"{np.mean(printed):+.1f} points, {len(printed)} pairs" if printed else self.words

    def ours(self, figures: Figures) -> str | None:
        """Ours over pairs and seeds; None where no pair was trained."""
        names = [(str(a), str(b)) for a, b in self.pairs]
        trained = [(a, b) for a, b in names if a in figures and b in figures]
        differences = [value for a, b in trained for value in paired(figures, a, b, "linear")]
        return verdict(differences, "pairs") if differences else None


def compare_models(
    setup: ThesisSetup,
    models_by_table: Mapping[str, Sequence[ThesisModel]],
    paper: Mapping[ThesisModel, Sequence[TableValue]],
    source: str,
    x: Callable[[Sequence[ThesisModel], ThesisModel], tuple[str, float] | None],
) -> list[Comparison]:
    """The tables of the thesis as comparisons without claims."""
    minimum = 2 * LARGEST_BATCH // min(model.batch for models in models_by_table.values() for model in models)
    if setup.batch < minimum:
        raise UserError(
            f"batch was {setup.batch}; it stands for the thesis' {LARGEST_BATCH}, whose smallest batch must "
            f"scale to at least 2: expected {minimum} or more"
        )
    comparisons = []
    for name, models in models_by_table.items():
        printed = [(str(model), paper[model]) for model in models if model in paper]
        columns = {
            measure: PaperColumn({model: values[place] for model, values in printed}, source)
            for place, measure in enumerate(MEASURES if printed else ())
        }
        arms = {str(model): model.arm(setup) for model in models}
        places = {str(model): place for model in models if (place := x(models, model))}
        comparisons.append(Comparison(name, arms, (), columns, MEASURES, (), places))
    return comparisons


def trend_table(trends: Sequence[Trend], figures: Figures, paper: PaperFigures, source: str) -> StudyTable:
    values = [(trend, trend.ours(figures)) for trend in trends]
    rows = [StudyRow(trend.claim, trend.paper(paper), ours) for trend, ours in values if ours is not None]
    has_paper = any(row.paper is not None for row in rows)
    return StudyTable("Trends, linear top-1", tuple(rows), source if has_paper else "")


def over_batch(model: ThesisModel) -> tuple[str, float]:
    return f"{model.method}{', deep' if model.deep else ''}", float(model.batch)


# ------------------------------------------------------------------------------------------------ SimCLR

TEMPERATURES = JITTERS = (0.25, 0.5, 0.75, 1.0)
GRID = [ThesisModel(b, t, j) for b, t, j in product((512, 1024), TEMPERATURES, JITTERS)]
DEEP_GRID = [
    ThesisModel(b, t, j, deep=True) for b, t, j in product((32, 64, 128, 256), (0.5, 0.75), (0.65, 0.75))
]
BLUR_GRID = [
    ThesisModel(b, t, j, blur=True) for b, t, j in product((256, 512, 1024), (0.25, 0.5), (0.65, 0.75))
]
BLUR_GRID += [ThesisModel(256, t, j, blur=True, deep=True) for t, j in product((0.25, 0.5), (0.65, 0.75))]
BATCH_MODELS = [ThesisModel(b, 0.25, 0.75) for b in (16, 32, 64, 128, 256, 512, 1024)]
SIMCLR_TABLES = {"Table 3": GRID, "Figure 23a": BATCH_MODELS, "Table 8": BLUR_GRID, "Table 6": DEEP_GRID}

PRINTED = {  # top-1/top-5 in percent, in the order of the models; a line is a batch, in Table 3 a batch and a temperature
    "Table 3": """
        83.3/99.4  83.2/99.3  83.1/99.4  83.0/99.2
        81.9/99.3  82.2/99.3  82.1/99.3  81.7/99.2
        80.9/99.3  81.2/99.3  80.5/99.0  79.3/99.0
        79.8/99.0  79.7/99.0  79.3/99.0  78.2/98.9
        83.6/99.3  83.9/99.5  84.1/99.5  83.5/99.3
        82.2/99.3  82.7/99.4  82.6/99.4  82.0/99.3
        81.4/99.1  81.6/99.2  81.3/99.3  80.2/98.9
        80.6/99.1  80.2/99.2  79.4/99.0  79.0/98.9
    """,
    "Table 6": """
        82.2/99.2  81.4/99.2  -          -
        83.5/99.5  83.3/99.4  82.8/99.3  82.2/99.3
        84.4/99.4  84.2/99.4  83.1/99.4  82.9/99.4
        84.6/99.5  84.8/99.4  83.2/99.4  83.3/99.4
    """,
    "Table 8": """
        82.7/99.2  82.5/99.4  81.9/99.3  -
        84.1/99.3  83.7/99.4  82.4/99.4  82.3/99.4
        84.6/99.4  84.1/99.5  -          -
        86.2/99.7  86.1/99.6  84.9/99.6  85.1/99.5
    """,
}
SIMCLR_PAPER = {
    model: (float(word.split("/")[0]), float(word.split("/")[1]))
    for name, printed in PRINTED.items()
    for model, word in zip(SIMCLR_TABLES[name], printed.split(), strict=True)
    if word != "-"
}
SIMCLR_SOURCE = (
    "Sáez Maldonado 2021, Tables 3, 6 and 8: CIFAR-10, 100 epochs, ResNet-18 (deep: ResNet-50). Where the "
    "rows of Tables 6 and 8 have slipped, a figure is placed by its steps and its regularisation loss; what "
    "could not be placed is left out. Figure 23a is only drawn: more than 8 points from 16 to 1024"
)

SIMCLR_TRENDS = (
    Trend("T 0.25 above T 1", [(ThesisModel(b, 0.25, j), ThesisModel(b, 1.0, j)) for b, j in product((512, 1024), JITTERS)]),
    Trend("T 0.25 above T 0.5", [(ThesisModel(b, 0.25, j), ThesisModel(b, 0.5, j)) for b, j in product((512, 1024), JITTERS)]),
    Trend("batch 1024 above 512", [(ThesisModel(1024, t, j), ThesisModel(512, t, j)) for t, j in product(TEMPERATURES, JITTERS)]),
    Trend("batch 1024 above 16", [(BATCH_MODELS[-1], BATCH_MODELS[0])], "more than 8 points"),
    Trend(
        "jitter 0.5 and 0.75 above 0.25 and 1",
        [(ThesisModel(b, t, inner), ThesisModel(b, t, outer)) for b, t, (inner, outer) in product((512, 1024), TEMPERATURES, ((0.5, 0.25), (0.75, 1.0)))],
    ),
    Trend(
        "blur above none",
        [(ThesisModel(b, t, 0.75, blur=True), ThesisModel(b, t, 0.75)) for b, t in product((512, 1024), (0.25, 0.5))]
        + [(ThesisModel(256, 0.5, j, blur=True, deep=True), ThesisModel(256, 0.5, j, deep=True)) for j in (0.65, 0.75)],
    ),
    Trend(
        "deep above shallow",
        [(ThesisModel(256, t, j, blur=True, deep=True), ThesisModel(256, t, j, blur=True)) for t, j in product((0.25, 0.5), (0.65, 0.75))],
    ),
)  # fmt: skip


@study(
    "thesis-simclr",
    "Sáez Maldonado 2021, sec. 10.1 in small: SimCLR over batch, temperature, jitter, blur and network",
)
def simclr(workspace: Workspace, setup: ThesisSetup, tables: str = "all") -> StudyResult:
    """`tables` names some by number, with commas: 3, 23a, 8, 6."""
    by_table = choose_tables(tables)
    x = lambda models, model: over_batch(model) if models is BATCH_MODELS else _over_jitter(model)
    comparisons = compare_models(setup, by_table, SIMCLR_PAPER, SIMCLR_SOURCE, x)
    figures = compute_figures(workspace, setup, *comparisons)
    means = {name: mean_and_spread([v["linear"] for v in seeds if v])[0] for name, seeds in figures.items()}
    best = max(means, key=means.__getitem__)
    remarks = (
        f"best of all models: {best} with {100 * means[best]:.1f} percent, the highest of {len(means)} and "
        "so an optimistic figure; the thesis' "
        "best is simclr, deep, batch 256, T 0.25, jitter 0.65, blur with 86.2 (Table 11).",
        f"batches are scaled: {setup.batch} stands for 1024, {setup.batch // 64} for 16; a verdict's pairs "
        "are models and seeds, which share their images.",
        EQUAL_EPOCHS,
    )
    trends = trend_table(SIMCLR_TRENDS, figures, SIMCLR_PAPER, SIMCLR_SOURCE)
    return StudyResult((*make_result(figures, *comparisons).tables, trends), remarks)


def _over_jitter(model: ThesisModel) -> tuple[str, float] | None:
    if model.deep or model.blur or model.jitter is None:
        return None
    return f"batch {model.batch}, T {model.temperature:g}", model.jitter


def choose_tables(tables: str) -> dict[str, list[ThesisModel]]:
    numbers = choose(tables, {name.split()[1]: name for name in SIMCLR_TABLES}, "tables")
    return {name: models for name, models in SIMCLR_TABLES.items() if name in numbers.values()}


# -------------------------------------------------------------------------------------------------- BYOL

BATCHES = (32, 64, 128, 256, 512, 1024)
SHALLOW = [ThesisModel(b, method="byol") for b in BATCHES]
DEEP = [ThesisModel(b, method="byol", deep=True) for b in BATCHES[:4]]
SIMCLR_MODELS = [ThesisModel(b, temperature=0.25) for b in BATCHES]
VIEWS = [ThesisModel(256, jitter=j, method="byol") for j in (0.25, 0.5, 0.75, 1.0)]
VIEWS.append(ThesisModel(256, blur=True, method="byol"))
BYOL_TABLES = {"Table 12": SHALLOW, "Table 14": DEEP, "Views": VIEWS, "SimCLR": SIMCLR_MODELS}
# the thesis' figures for BYOL are multiples of one over the batch: accuracies of single batches
SINGLE_BATCH = dict(zip(SHALLOW, ((87.5, 100), (96.8, 100), (92.9, 97.6), (92.9, 99.6), (91.6, 99.4), (85.2, 98.3)), strict=True)) | dict(
    zip(DEEP, ((93.7, 96.9), (95.3, 100), (100, 100), (96.8, 100)), strict=True)
)  # fmt: skip
BYOL_SOURCE = (
    "Sáez Maldonado 2021, Tables 12 and 14: Imagenette, ResNet-18 (deep: ResNet-50); multiples of one over "
    "the batch, hence of single batches and not of the test set"
)
BYOL_CLAIMS = "Sáez Maldonado 2021, sec. 10.2.4, in words"
BYOL_TRENDS = (
    Trend("byol: batch 64 above 1024", [(SHALLOW[1], SHALLOW[-1])], "a small batch is best"),
    Trend(
        "simclr: batch 1024 above 64", [(SIMCLR_MODELS[-1], SIMCLR_MODELS[1])], "larger batches are better"
    ),
    Trend("byol: deep above shallow", list(zip(DEEP, SHALLOW, strict=False)), "deeper is better"),
    Trend(
        "byol above simclr, same batch",
        list(zip(SHALLOW, SIMCLR_MODELS, strict=True)),
        "higher, on other data",
    ),
    Trend("byol: blur above none", [(VIEWS[-1], SHALLOW[3])]),
    Trend("byol: jitter 1 above 0.25", [(VIEWS[3], VIEWS[0])]),
)


@study(
    "thesis-byol",
    "Sáez Maldonado 2021, sec. 10.2 in small: BYOL over batch, network, jitter and blur; is it less "
    "sensitive to batch size than SimCLR?",
)
def byol(workspace: Workspace, setup: ThesisSetup) -> StudyResult:
    """BYOL, and SimCLR on the same batches and images. The thesis' figures are of single batches."""
    paper = {model: [f"{top:g}, of one batch" for top in tops] for model, tops in SINGLE_BATCH.items()}
    x = lambda models, model: None if models is VIEWS else over_batch(model)
    comparisons = compare_models(setup, BYOL_TABLES, paper, BYOL_SOURCE, x)
    figures = compute_figures(workspace, setup, *comparisons)
    models_by_method = {"byol": SHALLOW, "simclr": SIMCLR_MODELS}
    by_method = {name: batch_sensitivity(figures, models) for name, models in models_by_method.items()}
    less = [a["range"] < b["range"] for a, b in zip(by_method["byol"], by_method["simclr"], strict=True)]
    smallest = setup.batch * BATCHES[0] // LARGEST_BATCH
    remarks = (
        "is BYOL less sensitive to the batch size than SimCLR (highest minus lowest top-1 over batches of "
        f"{smallest} to {setup.batch})? In {sum(less)} of {len(less)} seeds.",
        EQUAL_EPOCHS,
        "BYOL has no temperature: a critic's scale only multiplies its loss.",
    )
    trends = trend_table(BYOL_TRENDS, figures, {}, BYOL_CLAIMS)
    tables = make_result(figures, *comparisons).tables
    return StudyResult((*tables, _sensitivity_table(by_method), trends), remarks)


def batch_sensitivity(figures: Figures, models: Sequence[ThesisModel]) -> list[dict[str, float]]:
    """By seed: highest minus lowest top-1 over batches, and the slope per doubling, in points."""
    batches = np.log2([model.batch for model in models])
    by_seed = []
    for seed in zip(*(figures[str(model)] for model in models), strict=True):
        values = [100 * one["linear"] for one in seed if one is not None]
        by_seed.append(
            {"range": max(values) - min(values), "slope": float(np.polyfit(batches, values, 1)[0])}
        )
    return by_seed


def _sensitivity_table(by_method: Mapping[str, Sequence[Mapping[str, float]]]) -> StudyTable:
    rows = []
    for name, seeds in by_method.items():
        claim = "less than simclr" if name == "byol" else None
        rows.append(mean_row(f"{name}: highest minus lowest, points", [one["range"] for one in seeds], claim))
        rows.append(mean_row(f"{name}: points for a doubling of the batch", [one["slope"] for one in seeds]))
    return StudyTable("How much the batch matters", tuple(rows), BYOL_CLAIMS)


# ----------------------------------------------------------------------------------------- BYOL's target

TAUS = (0.0, 0.9, 0.99, 0.999, 1.0)
BASE_TAU = 0.99


def tau_name(tau: float) -> str:
    return f"tau {tau:g}"


def add_rankme(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    """Adds RankMe, the number of directions that features use: low for a collapsed network."""
    return result.adding(measure_table("RankMe of the features", figures, comparison.arms, "rankme"))


@comparison_study(
    "byol-target",
    "Sáez Maldonado 2021, sec. 8: BYOL with tau of 0 to 1, without weight decay, without predictor",
    label_free_measures,
    add_rankme,
)
def byol_target(setup: ImageSetup) -> Comparison:
    """xi <- tau xi + (1 - tau) theta: at tau 0 the target is the online network, at 1 it stays untrained."""
    arms = {tau_name(tau): StudyArm("byol", {"encoders.momentum": tau}) for tau in TAUS}
    base = {"encoders.momentum": BASE_TAU}
    arms["no weight decay"] = StudyArm("byol", {**base, "weight_decay": 0.0})
    arms["no predictor"] = StudyArm("byol", {**base, "encoders.predictor": "none"})
    middle = [tau_name(tau) for tau in TAUS[1:-1]]
    claims = [Claim(name, tau_name(end)) for name in middle for end in (0.0, 1.0)]
    claims += [Claim(tau_name(BASE_TAU), "no weight decay"), Claim(tau_name(BASE_TAU), "no predictor")]
    column = PaperColumn(
        {
            tau_name(0.0): "updated too often",
            **dict.fromkeys(middle, "among the most adequate"),
            tau_name(1.0): "never updated",
            "no weight decay": "diverges",
        },
        "Sáez Maldonado 2021, sec. 8.1 and 8.2, in words; it gives no figures",
    )
    return Comparison("BYOL's target", arms, claims, {"knn": column, "linear": column})


@comparison_study(
    "byol-norms",
    "Richemond et al. 2020 in small: BYOL with batch norm, group norm, standardised weights, no norm",
    label_free_measures,
    add_rankme,
)
def byol_norms(setup: ImageSetup) -> Comparison:
    """Batch norm in backbone and heads, in one of them, in neither, and what may replace it there."""
    without = {"encoders.head": "mlp-plain"}
    kinds = {"no norm": "none", "group norm": "group", "group norm, standardised weights": "group-ws"}
    backbones = {name: {"backbone": f"{setup.backbone}+{norms}"} for name, norms in kinds.items()}
    arms = {
        "batch norm": StudyArm("byol"),
        "batch norm in the heads": StudyArm("byol", {}, backbones["no norm"]),
        "batch norm in the backbone": StudyArm("byol", without),
        **{name: StudyArm("byol", without, budget) for name, budget in backbones.items()},
    }
    claims = [Claim(name, "no norm") for name in arms if name != "no norm"]
    claims += [Claim("batch norm", "group norm, standardised weights")]
    column = PaperColumn(
        {
            "batch norm": "74.3 on ImageNet",
            "no norm": "collapses",
            "group norm, standardised weights": "73.9",
        },
        "Richemond et al. 2020, sec. 3, linear evaluation of ResNet-50, 1,000 epochs",
    )
    return Comparison("Norms of BYOL", arms, claims, {"linear": column})
