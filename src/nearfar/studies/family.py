"""Every image recipe on one small budget, beside raw pixels, an untrained network and labels.

Each recipe as it stands, every selection on each that has negatives, and MoCo under ML-CPC with the curricula
of alpha of Song & Ermon 2020 (sec. 5.3). Selections and curricula are compared with their base, seed by seed.

The paper column holds what papers report of the same method on CIFAR-10 (linear top-1). They train a
ResNet-18 or ResNet-50 on all 50,000 images for hundreds of epochs, so orders and signs can be compared,
levels cannot.

Command: nearfar study family data=cifar10:ROOT     Cost: about 75 minutes on two cores.
"""

from collections.abc import Mapping
from typing import Any

from nearfar.config.recipes import RECIPES
from nearfar.core.statistics import mean_and_spread, mean_difference
from nearfar.modalities.image.views import PIPELINES
from nearfar.studies.comparison import Comparison, Figures, PaperColumn, comparison_study, paired
from nearfar.studies.frame import StudyResult, StudyTable, choose, mean_row
from nearfar.studies.images import BASELINES, ImageSetup, StudyArm

SELECTIONS = ("ring", "ball", "cave", "neighbours")
CURRICULA = {
    "1": 1.0,
    "2-0.5": "geometric(2,0.5)",
    "5-0.2": "geometric(5,0.2)",
    "10-0.1": "geometric(10,0.1)",
}
# ResNet-18, 300 epochs, pre-pool map
RING, LESION, VARIANTS = (f"Wu et al. 2021 Table {n}" for n in ("1a", "2a", "6"))
CURRICULUM = "Song & Ermon 2020 Table 3a"  # MoCo-v2, 200 epochs
PAPER = {  # linear top-1 on CIFAR-10, percent
    "simclr": (86.2, "Sáez Maldonado 2021 Table 11"),  # ResNet-50
    "instdisc": (81.2, RING),
    "instdisc-ring": (83.9, RING),
    "instdisc-ball": (82.1, LESION),  # IRing without its inner edge
    "instdisc-cave": (84.0, VARIANTS),
    "instdisc-neighbours": (84.3, VARIANTS),  # IRing (+C_i)
    "cmc": (85.6, RING),
    "cmc-ring": (87.6, RING),
    "cmc-cave": (87.2, VARIANTS),
    "cmc-neighbours": (87.8, VARIANTS),
    "moco-v1": (83.1, RING),  # no MLP head in Wu et al. 2021
    "moco-v1-ring": (86.1, RING),
    "la": (83.9, RING),
    "moco": (83.28, CURRICULUM),
    "moco-ml-cpc-1": (83.61, CURRICULUM),
    "moco-ml-cpc-2-0.5": (84.31, CURRICULUM),
    "moco-ml-cpc-5-0.2": (85.52, CURRICULUM),
    "moco-ml-cpc-10-0.1": (86.16, CURRICULUM),
}
SOURCE = (
    "the table named in the cell, linear top-1 on CIFAR-10; Wu et al. 2021: ResNet-18, 300 epochs; Song & "
    "Ermon 2020: MoCo-v2, 200 "
    "epochs; Sáez Maldonado 2021: ResNet-50; its figures for BYOL are of single batches and left out"
)
MARGIN = 5.0  # points above the untrained encoder that a recipe should reach
DIFFERENCES = {"linear": "linear, points above the base", "knn": "kNN, points above the base"}


def entries() -> dict[str, StudyArm]:
    """Every arm by name."""
    by_name: dict[str, dict[str, Any]] = {}
    for name, recipe in RECIPES.items():
        # la-neighbours equals la-ring; supervised is a baseline; a student needs a teacher
        choices = recipe.choices
        unique = choices not in by_name.values() and name not in BASELINES
        if choices["views"]["name"] in PIPELINES and unique and choices["encoders"]["name"] != "distilled":
            by_name[name] = choices
    arms = {name: StudyArm(name) for name in by_name}
    for label, alpha in CURRICULA.items():
        arms[f"moco-ml-cpc-{label}"] = StudyArm("moco", {"bound": "ml-cpc", "bound.alpha": alpha})
    return arms


def base_of(name: str) -> str | None:
    """The recipe that `name` is a variant of; None for a base."""
    base, _, selection = name.rpartition("-")
    if selection in SELECTIONS and base in RECIPES:
        return base
    return "moco" if name.startswith("moco-ml-cpc-") else None


def choose_entries(words: str) -> dict[str, StudyArm]:
    """The arms of a list such as `simclr,moco`, or `all`."""
    return choose(words, entries(), "recipes")


def paper_difference(name: str, base: str) -> str | None:
    """The difference of two figures of one paper, which share a protocol."""
    if name not in PAPER or base not in PAPER:
        return None
    (value, source), (base_value, base_source) = PAPER[name], PAPER[base]
    tables = base_source if source == base_source else f"{base_source} and {source.split()[-1]}"
    return f"{value - base_value:+.3g}, {tables}"


def add_differences(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    """Adds the paired differences from the bases and the cost of each arm."""
    bases = {name: base_of(name) for name in comparison.arms}
    pairs = {name: base for name, base in bases.items() if base is not None and base in figures}
    tables = [_differences(figures, pairs, measure) for measure in DIFFERENCES if pairs]
    tables.append(_costs(figures))
    verdicts = [_verdicts(figures, pairs, measure) for measure in DIFFERENCES if pairs]
    note = "seconds are those of one core; ± is the sample deviation over seeds."
    return StudyResult((*result.tables, *tables), (_margin(figures, comparison), *verdicts, note))


def _differences(figures: Figures, pairs: Mapping[str, str], measure: str) -> StudyTable:
    rows = []
    for name, base in pairs.items():
        paper = paper_difference(name, base) if measure == "linear" else None
        rows.append(mean_row(f"{name} - {base}", paired(figures, name, base, measure), paper, scale=100))
    return StudyTable(DIFFERENCES[measure], tuple(rows), SOURCE if measure == "linear" else "")


def _costs(figures: Figures) -> StudyTable:
    rows = []
    for name, seeds in figures.items():
        # a cell that was stopped between its last step and its evaluation has no rate
        timed = [values["seconds"] for values in seeds if values is not None and values["rate"]]
        rows += [mean_row(f"{name}, seconds", timed)] if timed else []
    return StudyTable("Cost of a training", tuple(rows))


def _margin(figures: Figures, comparison: Comparison) -> str:
    """Which recipes are less than MARGIN points above the untrained encoder."""
    means = {name: 100 * mean_and_spread([v["linear"] for v in figures[name] if v])[0] for name in figures}
    margins = {name: means[name] - means["untrained"] for name in comparison.arms}
    short = [f"{name} {points:+.1f}" for name, points in margins.items() if points < MARGIN]
    if short:
        return f"less than {MARGIN:g} points above the untrained encoder: {', '.join(short)}."
    lowest = min(margins, key=margins.__getitem__)
    return (
        f"every recipe is at least {MARGIN:g} points above the untrained encoder in the linear probe; the "
        f"lowest is {lowest} with {margins[lowest]:+.1f}."
    )


def _verdicts(figures: Figures, pairs: Mapping[str, str], measure: str) -> str:
    """Which variants are better or worse than their base."""
    by_verdict: dict[str, list[str]] = {"better": [], "worse": [], "not distinguishable": []}
    for name, base in pairs.items():
        by_verdict[mean_difference(paired(figures, name, base, measure)).verdict].append(name)
    return (
        f"{measure}, against the base: better {', '.join(by_verdict['better']) or 'none'}; worse "
        f"{', '.join(by_verdict['worse']) or 'none'}; "
        f"not distinguishable {len(by_verdict['not distinguishable'])} of {len(pairs)}."
    )


@comparison_study(
    "family",
    "every image recipe on one budget: linear and kNN top-1, cost, and selections against their bases",
    finish=add_differences,
)
def family(setup: ImageSetup, recipes: str = "all") -> Comparison:
    arms = choose_entries(recipes)
    column = PaperColumn({name: f"{value:g}, {source}" for name, (value, source) in PAPER.items()}, SOURCE)
    return Comparison("Recipes", arms, paper={"linear": column}, baselines=BASELINES)
