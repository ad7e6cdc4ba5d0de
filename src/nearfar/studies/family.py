"""Image recipes as they stand, and measures of their frozen features.

    nearfar study family data=cifar10:ROOT             every image recipe on one small budget; 75 minutes on two cores
    nearfar study pooling data=cifar10:ROOT seeds=3    linear evaluation on the last feature map (the protocol of Wu et al. 2021, sec. 5)
                                                       and on its mean over places; 10 minutes on two cores
    nearfar study quality data=cifar10:ROOT            RankMe, LiDAR, alpha-ReQ and uniformity against probes over recipes, by
                                                       Spearman's rank correlation (Garrido et al. 2023, Thilak et al. 2024,
                                                       Agrawal et al. 2022); 25 minutes

`family` trains each recipe, every selection on each that has negatives, and MoCo under ML-CPC with the
curricula of alpha of Song & Ermon 2020 (sec. 5.3), compared with raw pixels, an untrained network and labels.
Selections and curricula are compared with their base, seed by seed.

The paper column holds what papers report of the same method on CIFAR-10 (linear top-1). They train a
ResNet-18 or ResNet-50 on all 50,000 images for hundreds of epochs, so orders and signs can be compared,
levels cannot.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from nearfar.config.recipes import RECIPES
from nearfar.core.statistics import mean_and_spread, mean_difference
from nearfar.evaluate import features, linear
from nearfar.evaluate.quality import measures_of, view_features
from nearfar.modalities import Images
from nearfar.modalities.image.views import PIPELINES
from nearfar.run.trained import Run
from nearfar.studies.comparison import (
    Comparison,
    Figures,
    PaperColumn,
    comparison_study,
    measure_table,
    paired,
    verdict,
)
from nearfar.studies.frame import StudyResult, StudyTable, choose, mean_row
from nearfar.studies.images import BASELINES, ImageSetup, StudyArm, labels_of

LABEL_FREE = {"rankme": "RankMe", "lidar": "LiDAR", "alpha_req": "alpha-ReQ", "uniformity": "uniformity"}
MAX_SAMPLE = 2048  # images for the label-free measures


def map_probe(run: Run, test: Images) -> dict[str, Any]:
    """The linear probe on the flattened feature map, and its number of dimensions."""
    encoder, plain_view = run.encoder("map"), run.plain_view()
    sets = run.open_data(), test
    fit, held_out = (features(encoder, s, plain_view, device=run.device, workers=1) for s in sets)
    top1 = linear(fit, labels_of(sets[0]), held_out, labels_of(test))["top1"]
    return {"map": top1, "map_width": fit.shape[1]}


def add_map_gains(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    remarks = []
    for name in comparison.arms:
        finished = [values for values in figures[name] if values is not None]
        gain = verdict([values["map"] - values["linear"] for values in finished])
        remarks.append(f"{name}: the map of {finished[0]['map_width']} numbers above pooled {gain}.")
    return replace(result, remarks=tuple(remarks))


def label_free_measures(run: Run, test: Images) -> dict[str, Any]:
    """The label-free measures on images that the run did not train on; None where one does not apply.

    LiDAR needs several views of the encoder's input. CMC's training views are single channels, so it has
    none.
    """
    encoder, sample = run.encoder(), test.subset(np.arange(min(MAX_SAMPLE, len(test))))
    rows = features(encoder, sample, run.plain_view(), device=run.device, workers=1)
    by_view = view_features(encoder, sample, run.views(), 0, run.device, rows.shape[1])
    measures = measures_of(rows, by_view)
    return {key: measures[key] if np.isfinite(measures.get(key, np.nan)) else None for key in LABEL_FREE}


def add_label_free(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    """A table for each label-free measure, and its rank correlations with the probes."""
    runs = [values for name in comparison.arms for values in figures[name] if values is not None]
    tables, remarks = [], []
    for key, title in LABEL_FREE.items():
        tables.append(measure_table(title, figures, comparison.arms, key))
        measured = [one for one in runs if one[key] is not None]
        if len(measured) < 3:
            continue
        for probe in ("knn", "linear"):
            rank, p = spearmanr([one[key] for one in measured], [one[probe] for one in measured])
            remarks.append(
                f"{title} against {probe}: Spearman {rank:+.2f} over {len(measured)} runs (p = {p:.2g})."
            )
    return StudyResult((*result.tables, *tables), tuple(remarks))


@comparison_study(
    "pooling", "Wu et al. 2021, sec. 5: linear evaluation before and after pooling", map_probe, add_map_gains
)
def pooling(setup: ImageSetup, recipes: str = "instdisc,instdisc-ring,cmc") -> Comparison:
    measures = {"linear": "linear top-1 in percent, pooled", "map": "linear top-1 in percent, before pooling"}
    arms = {name: StudyArm(name) for name in recipes.split(",")}
    return Comparison("Pooling", arms, measures=measures, baselines=())


@comparison_study(
    "quality",
    "RankMe, LiDAR, alpha-ReQ and uniformity against probes, over recipes",
    label_free_measures,
    add_label_free,
)
def quality(setup: ImageSetup, recipes: str = "bases") -> Comparison:
    """`recipes`: `bases` (no variants), `all`, or names from `study family`, with commas."""
    entries = choose_entries("all" if recipes == "bases" else recipes)
    arms = {name: arm for name, arm in entries.items() if recipes != "bases" or base_of(name) is None}
    return Comparison("Probes", arms, baselines=())


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
