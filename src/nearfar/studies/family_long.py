"""Hours of training: four methods against their rings after a hundred epochs, and in the same frame
curricula, annealing, temperature and the number of negatives (Wu et al. 2021; Song & Ermon 2020; Sáez
Maldonado 2021).

First the edges of every ring are selected on a held-out fifth of the training images and a short budget
(`sweep_images`, `sweep_epochs`, the first seed), by the linear probe: the depth at an upper edge of 0.99,
then the upper edge at that depth. Then come the comparisons, the first seed of all before the second of any.
No cell is started after `hours`; the tables say which are missing, and hours=0 prints them from the finished
cells.

Features are evaluated by the linear probe, pooled and on the map before pooling, by nearest neighbours, and
on other data, `transfer`: data sets, each alone (a fifth of it is held out) or as TRAIN+TEST.

Command: nearfar study family --long data=cifar10:ROOT questions=ring hours=8     Cost: days for all; 10 minutes of a core for a cell.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from nearfar.errors import UserError
from nearfar.evaluate import evaluate_run
from nearfar.modalities import Images
from nearfar.run.trained import Run
from nearfar.studies import objectives, rings
from nearfar.studies.comparison import Claim, Comparison, Figures, PaperColumn, compute_figures, make_result
from nearfar.studies.family import map_probe
from nearfar.studies.frame import StudyResult, StudyRow, StudyTable, Workspace, choose, study
from nearfar.studies.images import CIFAR, ImageSetup, StudyArm
from nearfar.studies.rings import BASES, RINGS, base_arm, ring_arm, rising_edge

DEPTHS, UPPERS = (0.5, 0.75, 0.9), (0.95, 0.99, 1.0)
FIRST_UPPER = 0.99
TEMPERATURES = (0.05, 0.1, 0.2, 0.5)
MEASURES = {
    "linear": "linear top-1 in percent, pooled",
    "map": "linear top-1 in percent, before pooling",
    "knn": "kNN top-1 in percent",
}

Edges = Mapping[str, tuple[float, float]]  # (depth, upper) by recipe


@dataclass(frozen=True)
class LongSetup(ImageSetup):
    data: str = CIFAR
    images: int = 20_000
    epochs: int = 100
    size: int = 12
    batch: int = 256
    seeds: int = 3
    backbone: str = "resnet8-w8"


class SampleSizes(NamedTuple):
    """Negatives per anchor, and rows of a memory bank whose quantiles are the edges of a step."""

    sample: int
    pool: int


def compare_rings(setup: ImageSetup, edges: Edges, sizes: SampleSizes) -> Comparison:
    arms, claims = rings.rings_and_bases(setup, edges, *sizes)
    return Comparison("Rings", arms, claims, {"map": rings.RING_PAPER})


def compare_curricula(setup: ImageSetup, edges: Edges, sizes: SampleSizes) -> Comparison:
    arms = {name: StudyArm("moco", changes) for name, changes in objectives.CURRICULA.items()}
    values = {name: figures[0] for name, figures in objectives.CURRICULA_PAPER.items()}
    claims = tuple(
        Claim(name, objectives.CURRICULA_BASE) for name in arms if name != objectives.CURRICULA_BASE
    )
    column = PaperColumn(values, f"{objectives.CURRICULA_SOURCE}, 200 epochs")
    return Comparison("Curricula", arms, claims, {"linear": column})


def compare_annealing(setup: ImageSetup, edges: Edges, sizes: SampleSizes) -> Comparison:
    depth, upper = edges["instdisc"]
    arms = {}
    for name, edge in rings.policies(setup.epochs, depth).items():
        has_ring = edge is not None
        arm = ring_arm("instdisc", edge, upper, *sizes) if has_ring else base_arm("instdisc", sizes.sample)
        # an edge that follows a score needs a probe at every epoch
        arms[name] = replace(arm, watch=(rings.EDGE,)) if name == "on score" else arm
    claims = tuple(Claim("linear", name) for name in arms if name != "linear")
    return Comparison("Annealing", arms, claims, {"map": rings.ANNEALING_PAPER["linear"]})


def compare_temperatures(setup: ImageSetup, edges: Edges, sizes: SampleSizes) -> Comparison:
    arms = {f"SimCLR, T={t:g}": StudyArm("simclr", {"temperature": t}) for t in TEMPERATURES}
    claims = tuple(Claim(*pair) for pair in pairwise(arms))
    return Comparison("Temperature", arms, claims)


def compare_numbers(setup: ImageSetup, edges: Edges, sizes: SampleSizes) -> Comparison:
    return rings.compare_numbers(setup, *edges["instdisc"], sizes.pool)


QUESTIONS: dict[str, Callable[[ImageSetup, Edges, SampleSizes], Comparison]] = {
    "ring": compare_rings,
    "curricula": compare_curricula,
    "annealing": compare_annealing,
    "temperature": compare_temperatures,
    "negatives": compare_numbers,
}


@study(
    "family-long",
    "hours: four methods against their rings, curricula, annealing, temperature, number of negatives; "
    "transfer",
)
def run(
    workspace: Workspace,
    setup: LongSetup,
    questions: str = "all",
    recipes: str = ",".join(BASES),
    sample: int = 256,
    pool: int = 4_096,
    sweep_images: int = 5_000,
    sweep_epochs: int = 12,
    transfer: str = "digits,glyphs:train+glyphs:test",
    hours: float = 24.0,
) -> StudyResult:
    compare = choose(questions, QUESTIONS, "questions")
    bases = list(choose(recipes, BASES, "methods with rings"))
    sizes, deadline = SampleSizes(sample, pool), time.monotonic() + 3600 * hours
    short = replace(setup, on="validation", images=sweep_images, epochs=sweep_epochs, seeds=1)
    selection, edges = select_edges(workspace, short, bases, sizes, deadline)
    if edges is None:
        return StudyResult((selection,), ("the edges are not selected yet; the same command resumes.",))
    if "instdisc" not in edges and {"annealing", "negatives"} & {*compare}:
        raise UserError(f"recipes was {recipes}; the questions annealing and negatives need instdisc")
    targets = tuple(word for word in transfer.split(",") if word)
    measures = {
        **MEASURES,
        # a data set's name without folder and suffix
        **{t: f"linear top-1 in percent, {Path(t.partition('+')[0]).stem}" for t in targets},
    }
    comparisons = [replace(question(setup, edges, sizes), measures=measures) for question in compare.values()]
    measure = partial(map_and_transfer_probes, targets=targets)
    figures = compute_figures(workspace, setup, *comparisons, measure=measure, deadline=deadline)
    result = make_result(figures, *comparisons)
    small = rings.small_rings(sample, pool, edges) if "ring" in compare else ()
    return StudyResult((selection, *result.tables), (*result.remarks, *small, *progress_remarks(figures)))


EdgeScores = dict[tuple[str, float, float], float | None]  # the linear probe by (recipe, depth, upper)


def select_edges(
    workspace: Workspace, setup: ImageSetup, bases: Sequence[str], sizes: SampleSizes, deadline: float
) -> tuple[StudyTable, Edges | None]:
    """The best edges of every ring on validation images, None while scores are missing; their table.

    Depths are compared at the first upper edge, then upper edges at the best depth.
    """
    scores: EdgeScores = {}
    edges: dict[str, tuple[float, float]] = {}
    for uppers in ((FIRST_UPPER,), UPPERS):
        pairs = {r: list(product((edges[r][0],) if edges else DEPTHS, uppers)) for r in bases}
        keys = [(recipe, *pair) for recipe in bases for pair in pairs[recipe]]
        arms = {
            f"{recipe} {depth:g} to {upper:g}": ring_arm(
                recipe, rising_edge(depth, setup.epochs), upper, *sizes
            )
            for recipe, depth, upper in keys
        }
        figures = compute_figures(
            workspace, setup, Comparison("Edges", arms, baselines=()), deadline=deadline
        )
        for key, (values,) in zip(keys, figures.values(), strict=True):
            scores[key] = None if values is None else values["linear"]
        edges = {recipe: best_edges(scores, recipe, pairs[recipe]) for recipe in bases}
    rows = [
        StudyRow(f"{RINGS[recipe]}, {depth:g} to {upper:g}", None, None if value is None else 100 * value)
        for (recipe, depth, upper), value in scores.items()
    ]
    title = f"edges on validation, linear top-1 in percent, {setup.images} images, {setup.epochs} epochs"
    return StudyTable(title, tuple(rows)), None if None in scores.values() else edges


def best_edges(scores: EdgeScores, recipe: str, pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of equal scores the first, which is the wider ring."""
    return max(pairs, key=lambda pair: scores[recipe, *pair] or 0.0)


def map_and_transfer_probes(run: Run, test: Images, targets: Sequence[str]) -> dict[str, Any]:
    """The linear probe on the map, and the linear probe on other data by name."""
    values = map_probe(run, test)
    for target in targets:
        fit, _, data = target.partition("+")
        result = evaluate_run(run, data or None, ("linear",), train=fit)
        values[target] = result["linear"]["top1"]
    return values


def progress_remarks(figures: Figures) -> list[str]:
    """How many cells are finished, and which are missing."""
    finished = [values for seeds in figures.values() for values in seeds if values is not None]
    total = sum(len(seeds) for seeds in figures.values())
    hours = sum(values["seconds"] for values in finished) / 3600
    remarks = [f"{len(finished)} of {total} cells are done, trained in {hours:.1f} hours of one core."]
    missing = {
        name: [str(place) for place, values in enumerate(seeds) if values is None]
        for name, seeds in figures.items()
    }
    listed = [f"{name} ({', '.join(seeds)})" for name, seeds in missing.items() if seeds]
    if listed:
        remarks.append(f"missing, by number of the seed: {'; '.join(listed)}; the same command resumes.")
    return remarks
