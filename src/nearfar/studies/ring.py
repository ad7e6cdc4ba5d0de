"""Ring as published, and without its parts (Wu et al. 2021, Table 1 and 2): selection, then a sample of k, the edge rising in a third of the run.

Every base draws its k negatives from all candidates (of a memory bank once for the batch, else for each anchor), its ring from a ring of them, for each anchor;
a batch, which has few, is not drawn from. `depth` is the outer edge that is reached (the paper's 0.9), `upper` the inner one (not told there), `sample` the
number of negatives drawn for each anchor.

Command: nearfar study ring data=cifar10:ROOT     Cost: about 25 minutes of one core; nearfar study family --long are hours.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nearfar.config.recipes import RECIPES
from nearfar.parts.selections.ranks import places
from nearfar.studies.compared import Claim, Comparison, compare, draw
from nearfar.studies.frame import Bench, Result, Study
from nearfar.studies.images import Setup

BASES = {"instdisc": "IR", "moco": "MoCo", "cmc": "CMC", "simclr": "SimCLR"}
RINGS = {"instdisc": "IRing", "moco": "MoCoRing", "cmc": "CMCRing", "simclr": "SimCLR ring"}
PAPER = {
    "IR": 81.2, "IRing": 83.9, "IRing (No Anneal)": 81.4, "IRing(w_u=100)": 82.1,
    "MoCo": 83.1, "MoCoRing": 86.1, "CMC": 85.6, "CMCRing": 87.6,
}  # fmt: skip
SOURCE = (
    "Wu et al. 2021, Table 1a and 2a: CIFAR-10, 300 epochs of ResNet-18 at 224 pixels, linear on pre-pool features; its MoCo has a linear "
    "head, ours that of MoCo v2"
)

Entry = tuple[str, Mapping[str, Any]]


def plain(recipe: str, sample: int) -> Entry:
    """A recipe whose negatives are drawn from all candidates: of a bank once for the batch, which costs least and is as uniform."""
    source = RECIPES[recipe].choices["negatives"]["name"]
    if source == "bank":
        return recipe, {"negatives__sample": sample}
    return between(recipe, 0.0, 1.0, sample) if source != "in-batch" else (recipe, {})


def between(recipe: str, lower: float | str, upper: float, sample: int, pool: int | None = None) -> Entry:
    """A recipe whose negatives are drawn from a ring. `pool`: of a memory bank so many rows are drawn for the batch first, and the edges are
    those of these rows, which spares ranking the whole bank at every step."""
    edges = {"selection__lower": lower, "selection__upper": upper}
    source = RECIPES[recipe].choices["negatives"]["name"]
    drawn = {} if source == "in-batch" else {"selection__sample": sample}
    pooled = {"negatives__sample": pool} if source == "bank" and pool is not None else {}
    return recipe, {"selection": "ring", **edges, **drawn, **pooled}


def short_of(sample: int, candidates: int, edges: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
    """What to say of the rings of recipes with a memory bank, by their edges at the end, that hold fewer of its candidates than are to be drawn."""
    said = []
    for recipe, (lower, upper) in edges.items():
        first, last = places(candidates, lower, upper)
        if last - first < sample and RECIPES[recipe].choices["negatives"]["name"] == "bank":
            said.append(
                f"{RINGS[recipe]}: between {lower:g} and {upper:g} of {candidates:,} candidates lie {last - first}, which are all taken where its base draws {sample}."
            )
    return tuple(said)


def rising(depth: float, epochs: int) -> str:
    """The outer edge, from everyone to `depth` in the first third of a run (App. E: in 100 of 300 epochs)."""
    return f"linear(0,{depth:g},{epochs / 3:g})"


def comparison(setup: Setup, depth: float, upper: float, sample: int) -> Comparison:
    edge = rising(depth, setup.epochs)
    arms = {}
    for recipe, name in BASES.items():
        arms[name] = plain(recipe, sample)
        arms[RINGS[recipe]] = between(recipe, edge, upper, sample)
    arms["IRing (No Anneal)"] = between("instdisc", depth, upper, sample)
    arms["IRing(w_u=100)"] = between("instdisc", edge, 1.0, sample)
    lesions = (Claim("IRing", "IRing (No Anneal)"), Claim("IRing", "IRing(w_u=100)"))
    return Comparison(
        "Table 1a and 2a",
        arms,
        PAPER,
        SOURCE,
        (*(Claim(RINGS[recipe], name) for recipe, name in BASES.items()), *lesions),
        told=("linear",),
    )


def run(bench: Bench, setup: Setup, depth: float = 0.9, upper: float = 0.99, sample: int = 256) -> Result:
    found = compare(bench, setup, comparison(setup, depth, upper, sample))
    few = short_of(sample, setup.images - 1, dict.fromkeys(BASES, (depth, upper)))
    return replace(found, remarks=(*found.remarks, *few))


STUDY = Study(
    "ring",
    "Wu et al. 2021, Table 1 and 2: four methods against their rings; Ring without its annealing and its inner edge",
    run,
    draw,
)
