"""The study of hours: four methods against their rings after a hundred epochs, and in the same frame curricula, annealing, temperature and the number
of negatives (Wu et al. 2021; Song & Ermon 2020; Sáez Maldonado 2021).

First the edges of every ring are chosen, on a fifth of the training images set aside and a short budget (`sweep_images`, `sweep_epochs`, the first seed):
the depth at an inner edge of 0.99, then the inner edge at that depth, each by the linear probe. Nothing is chosen after that. Then come the cells, a cell being
one arm under one seed: the first seed of all questions before the second of any, so that a study that is stopped is worth most. Each is kept when it
is done, and one that was interrupted goes on from its last checkpoint. `hours` begins no cell later than that; the table says which are missing, and hours=0
prints it from what is there.

Features are judged by the linear probe on the pooled features and on the map before pooling, by nearest neighbours, and on other data, `transfer`:
data sets, each alone (a fifth of it is asked about) or as TRAIN+TEST.

Command: nearfar study family --long data=cifar10:ROOT questions=ring hours=8     Cost: days for all of it; about 10 minutes of a quiet core for a cell.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nearfar.config.schema import unknown
from nearfar.errors import UserError
from nearfar.evaluate import evaluate_run
from nearfar.modalities import Images
from nearfar.run.trained import Run
from nearfar.studies import annealing, curricula, negatives
from nearfar.studies import ring as rings
from nearfar.studies.compared import Claim, Comparison, draw, verdict
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import CIFAR, Arm, Figures, Setup, percent
from nearfar.studies.pooling import before_pooling
from nearfar.studies.ring import BASES, RINGS, between, plain, rising

DEPTHS, UPPERS = (0.5, 0.75, 0.9), (0.95, 0.99, 1.0)
FIRST_UPPER = 0.99
TEMPERATURES = (0.05, 0.1, 0.2, 0.5)
MEASURES = {
    "linear": "linear top-1, pooled",
    "map": "linear top-1, before pooling",
    "knn": "kNN top-1",
}
MAP, POOLED = ("map",), ("linear",)  # what the papers' own probes read: Wu et al. 2021 the map

Edges = Mapping[str, tuple[float, float]]  # (depth, upper) by recipe
Cells = Mapping[str, Sequence[Figures | None]]  # by arm, one for each seed


@dataclass(frozen=True)
class LongSetup(Setup):
    data: str = CIFAR
    images: int = 20_000
    epochs: int = 100
    size: int = 12
    batch: int = 256
    seeds: int = 3
    backbone: str = "resnet8-w8"


class Drawn(NamedTuple):
    """How many negatives an anchor gets, and how many rows of a memory bank make the edges of a step."""

    sample: int
    pool: int


def of_rings(setup: Setup, edges: Edges, drawn: Drawn) -> Comparison:
    arms = {}
    for recipe, (depth, upper) in edges.items():
        arms[BASES[recipe]] = plain(recipe, drawn.sample)
        arms[RINGS[recipe]] = between(recipe, rising(depth, setup.epochs), upper, *drawn)
    claims = tuple(Claim(RINGS[recipe], BASES[recipe]) for recipe in edges)
    return Comparison("Rings", arms, rings.PAPER, rings.SOURCE, claims, MAP)


def of_curricula(setup: Setup, edges: Edges, drawn: Drawn) -> Comparison:
    arms = {
        name: ("moco", {key.replace(".", "__"): value for key, value in changes.items()})
        for name, changes in curricula.CURRICULA.items()
    }
    paper = {name: figures[0] for name, figures in curricula.PAPER.items()}
    claims = tuple(Claim(name, curricula.BASE) for name in arms if name != curricula.BASE)
    return Comparison("Curricula", arms, paper, f"{curricula.SOURCE}, 200 epochs", claims, POOLED)


def of_annealing(setup: Setup, edges: Edges, drawn: Drawn) -> Comparison:
    depth, upper = edges["instdisc"]
    arms = {
        name: plain("instdisc", drawn.sample) if edge is None else between("instdisc", edge, upper, *drawn)
        for name, edge in annealing.policies(setup.epochs, depth).items()
    }
    claims = tuple(
        Claim("linear", name) for name in ("no ring", "no annealing", "step", "on score", "on loss")
    )
    return Comparison("Annealing", arms, annealing.PAPER["linear"], annealing.SOURCES["linear"], claims, MAP)


def of_temperature(setup: Setup, edges: Edges, drawn: Drawn) -> Comparison:
    arms = {f"SimCLR, T={t:g}": ("simclr", {"temperature": t}) for t in TEMPERATURES}
    colder = zip(list(arms), list(arms)[1:], strict=False)
    return Comparison("Temperature", arms, {}, "", tuple(Claim(*pair) for pair in colder))


def of_negatives(setup: Setup, edges: Edges, drawn: Drawn) -> Comparison:
    return negatives.comparison(setup, *edges["instdisc"], drawn.pool)


QUESTIONS: dict[str, Callable[[Setup, Edges, Drawn], Comparison]] = {
    "ring": of_rings,
    "curricula": of_curricula,
    "annealing": of_annealing,
    "temperature": of_temperature,
    "negatives": of_negatives,
}


def run(
    bench: Bench,
    setup: LongSetup,
    questions: str = "all",
    recipes: str = ",".join(BASES),
    sample: int = 256,
    pool: int = 4_096,
    sweep_images: int = 5_000,
    sweep_epochs: int = 12,
    transfer: str = "digits,glyphs:train+glyphs:test",
    hours: float = 24.0,
) -> Result:
    asked = named(questions, QUESTIONS, "questions")
    bases = named(recipes, BASES, "methods with rings")
    drawn, moment = Drawn(sample, pool), time.monotonic() + 3600 * hours
    swept, edges = chosen_edges(bench, setup, bases, drawn, sweep_images, sweep_epochs, moment)
    if edges is None:
        return Result((swept,), ("the edges are not chosen yet; the same command goes on from here.",))
    if "instdisc" not in edges and {"annealing", "negatives"} & {*asked}:
        raise UserError(f"recipes was {recipes}; annealing and negatives ask about the ring of instdisc")
    compared = [QUESTIONS[name](setup, edges, drawn) for name in asked]
    targets = [word for word in transfer.split(",") if word]
    found = cells(bench, setup, compared, targets, moment)
    measures = {**MEASURES, **{target: f"linear top-1, {_short(target)}" for target in targets}}
    findings = [table(found, one, key, title) for one in compared for key, title in measures.items()]
    remarks = [said for one in compared for claim in one.claims for said in verdicts(found, claim, measures)]
    few = rings.short_of(sample, pool, edges) if "ring" in asked else ()
    return Result((swept, *findings), (*remarks, *few, *missing(found)))


def named(words: str, known: Mapping[str, Any], what: str) -> list[str]:
    """What a list such as `ring,curricula` names; all of it for `all`."""
    if words == "all":
        return list(known)
    for word in words.split(","):
        if word not in known:
            raise unknown(word, known, what)
    return words.split(",")


def chosen_edges(
    bench: Bench, setup: Setup, bases: Sequence[str], drawn: Drawn, images: int, epochs: int, moment: float
) -> tuple[Finding, Edges | None]:
    """The edges of every ring that validation images like best, with the table of the sweep; no edges if it is not finished."""
    short = replace(setup, on="validation", images=images, epochs=epochs, seeds=1)
    depths = {recipe: [(depth, FIRST_UPPER) for depth in DEPTHS] for recipe in bases}
    found = _swept(bench, short, depths, drawn, moment)
    deepest = {recipe: _best(found, recipe, pairs)[0] for recipe, pairs in depths.items()}
    uppers = {recipe: [(deepest[recipe], upper) for upper in UPPERS] for recipe in bases}
    found |= _swept(bench, short, uppers, drawn, moment)
    rows = [
        Row(f"{RINGS[recipe]}, {depth:g} to {upper:g}", None, None if value is None else 100 * value)
        for (recipe, depth, upper), value in found.items()
    ]
    title = f"edges on validation, linear top-1 in percent, {images} images, {epochs} epochs"
    finished = all(value is not None for value in found.values())
    edges = {recipe: _best(found, recipe, pairs) for recipe, pairs in uppers.items()}
    return Finding(title, tuple(rows)), edges if finished else None


Swept = dict[tuple[str, float, float], float | None]  # the linear probe by (recipe, depth, upper)


def _swept(
    bench: Bench,
    setup: Setup,
    tried: Mapping[str, Sequence[tuple[float, float]]],
    drawn: Drawn,
    moment: float,
) -> Swept:
    keys = [(recipe, *pair) for recipe, pairs in tried.items() for pair in pairs]
    arms = []
    for recipe, depth, upper in keys:
        name, changes = between(recipe, rising(depth, setup.epochs), upper, *drawn)
        arms.append(setup.recipe(name, setup.seed, **changes))
    found = bench.arms_until(moment, arms, setup.figures(bench), setup.jobs)
    return {key: None if one is None else one["linear"] for key, one in zip(keys, found, strict=True)}


def _best(found: Swept, recipe: str, pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of equals the first, which is the wider ring."""
    return max(pairs, key=lambda pair: found[recipe, *pair] or 0.0)


def cells(
    bench: Bench, setup: Setup, compared: Sequence[Comparison], targets: Sequence[str], moment: float
) -> dict[str, list[Figures | None]]:
    """The figures of every arm and seed that is done; an arm that two questions share is one cell."""
    arms = {name: entry for one in compared for name, entry in one.arms.items()}
    untrained = [setup.baseline("untrained", seed) for seed in setup.numbers]
    by_seed = [
        _cell(setup, recipe, seed, changes, targets)
        for seed in setup.numbers
        for recipe, changes in arms.values()
    ]
    measure = partial(before_pooling_and_elsewhere, targets=tuple(targets))
    found = bench.arms_until(moment, [*untrained, *by_seed], setup.figures(bench, measure), setup.jobs)
    trained = found[len(untrained) :]
    return {
        "untrained": found[: len(untrained)],
        **{name: trained[place :: len(arms)] for place, name in enumerate(arms)},
    }


def _cell(setup: Setup, recipe: str, seed: int, changes: Mapping[str, Any], targets: Sequence[str]) -> Arm:
    # an edge that follows a score needs one at every epoch
    adaptive = str(changes.get("selection__lower", "")).startswith("on_score")
    arm = setup.recipe(recipe, seed, ("selection.lower",) if adaptive else (), **changes)
    return {**arm, "measured": ["map", *targets]}


def before_pooling_and_elsewhere(run: Run, asked: Images, targets: Sequence[str]) -> Figures:
    """The linear probe on the map, and both probes on other data, beside those that every arm has."""
    found = before_pooling(run, asked)
    for target in targets:
        fit, _, test = target.partition("+")
        result = evaluate_run(run, test or None, ("knn", "linear"), train=fit)
        found |= {target: result["linear"]["top1"], f"{target}, kNN": result["knn"]["top1"]}
    return found


def table(found: Cells, comparison: Comparison, measure: str, title: str) -> Finding:
    rows: list[Row] = []
    paper = comparison.paper if measure in comparison.told else {}
    for name in ("untrained", *comparison.arms):
        done = [one for one in found[name] if one is not None and measure in one]
        seeds = f" ({len(done)} of {len(found[name])} seeds)" if name in comparison.arms else ""
        rows.append(
            Row(f"{name}{seeds}", paper.get(name), *(percent(done, measure) if done else (None, None)))
        )
    source = comparison.source if paper else ""
    return Finding(f"{comparison.title}: {title} in percent", tuple(rows), source=source)


def verdicts(found: Cells, claim: Claim, measures: Mapping[str, str]) -> list[str]:
    """By the seeds that both arms have."""
    pairs = [
        (one, other)
        for one, other in zip(found[claim.better], found[claim.worse], strict=True)
        if one is not None and other is not None
    ]
    if not pairs:
        return [f"{claim.better} above {claim.worse}: not run yet."]
    return [
        f"{claim.better} above {claim.worse} ({title}) {verdict([100 * (a[key] - b[key]) for a, b in pairs])}."
        for key, title in measures.items()
    ]


def missing(found: Cells) -> list[str]:
    lacking = {
        name: [str(place) for place, one in enumerate(seeds) if one is None] for name, seeds in found.items()
    }
    told = [f"{name} ({', '.join(seeds)})" for name, seeds in lacking.items() if seeds]
    done = [one for seeds in found.values() for one in seeds if one is not None]
    spent = sum(one["seconds"] for one in done) / 3600
    total = sum(len(seeds) for seeds in found.values())
    said = [f"{len(done)} of {total} cells are done, trained in {spent:.1f} hours of one core."]
    if told:
        said.append(
            f"missing, by the number of the seed: {'; '.join(told)}; the same command goes on from here."
        )
    return said


def _short(target: str) -> str:
    """The name of a data set, without its folder and ending."""
    return Path(target.partition("+")[0]).stem


STUDY = Study(
    "family-long",
    "hours of it: four methods against their rings, curricula, annealing, temperature, number of negatives; transfer",
    run,
    draw,
)
