"""Conditional negatives by a ring (Wu et al. 2021): four comparisons.

    nearfar study ring data=cifar10:ROOT          four methods against their rings, and Ring without its parts; 25 minutes of one core
    nearfar study thresholds data=cifar10:ROOT    rings of several widths, begun early, midway and late; 9 minutes on two cores
    nearfar study negatives data=cifar10:ROOT     the number of negatives, drawn from all and from a ring; 12 minutes on two cores
    nearfar study annealing data=cifar10:ROOT     policies for the ring's lower edge; 6 minutes on two cores

A ring keeps the candidates between two quantiles of similarity to the anchor, [lower, upper], and draws
`sample` negatives from them.
"""

from collections.abc import Mapping
from typing import Any

from nearfar.config.recipes import RECIPES
from nearfar.parts.selections.ranks import places
from nearfar.studies.comparison import Claim, Comparison, Figures, PaperColumn, comparison_study
from nearfar.studies.frame import StudyResult, StudyTable, TableValue, mean_row, read_numbers
from nearfar.studies.images import ImageSetup, StudyArm

BASES = {"instdisc": "IR", "moco": "MoCo", "cmc": "CMC", "simclr": "SimCLR"}
RINGS = {"instdisc": "IRing", "moco": "MoCoRing", "cmc": "CMCRing", "simclr": "SimCLR ring"}
RING_PAPER = PaperColumn(
    {
        "IR": 81.2, "IRing": 83.9, "IRing (No Anneal)": 81.4, "IRing(w_u=100)": 82.1,
        "MoCo": 83.1, "MoCoRing": 86.1, "CMC": 85.6, "CMCRing": 87.6,
    },
    "Wu et al. 2021, Table 1a and 2a: CIFAR-10, 300 epochs of ResNet-18 at 224 pixels, linear on pre-pool "
    "features; its MoCo has a linear head, ours that of MoCo v2",
)  # fmt: skip


def base_arm(recipe: str, sample: int) -> StudyArm:
    """A recipe that draws `sample` negatives from all candidates: of a bank once for the batch (cheapest, and
    as uniform), of a queue for each anchor; a batch has few and is not drawn from."""
    source = RECIPES[recipe].choices["negatives"]["name"]
    if source == "bank":
        return StudyArm(recipe, {"negatives.sample": sample})
    return StudyArm(recipe) if source == "in-batch" else ring_arm(recipe, 0.0, 1.0, sample)


def ring_arm(recipe: str, lower: float | str, upper: float, sample: int, pool: int | None = None) -> StudyArm:
    """A recipe that draws its negatives from a ring, for each anchor. `pool`: draw that many rows of a memory
    bank for the batch first and take the quantiles of these, which avoids ranking the whole bank at every
    step."""
    changes: dict[str, Any] = {"selection": "ring", "selection.lower": lower, "selection.upper": upper}
    source = RECIPES[recipe].choices["negatives"]["name"]
    if source != "in-batch":
        changes["selection.sample"] = sample
    if source == "bank" and pool is not None:
        changes["negatives.sample"] = pool
    return StudyArm(recipe, changes)


def rising_edge(depth: float, epochs: int) -> str:
    """The lower edge, from 0 to `depth` in the first third of a run (App. E: in 100 of 300 epochs)."""
    return f"linear(0,{depth:g},{epochs / 3:g})"


def rings_and_bases(
    setup: ImageSetup, edges: Mapping[str, tuple[float, float]], sample: int, pool: int | None = None
) -> tuple[dict[str, StudyArm], list[Claim]]:
    """Each recipe of `edges` and its ring with a rising lower edge; `edges`: (depth, upper) by recipe."""
    arms = {}
    for recipe, (depth, upper) in edges.items():
        arms[BASES[recipe]] = base_arm(recipe, sample)
        arms[RINGS[recipe]] = ring_arm(recipe, rising_edge(depth, setup.epochs), upper, sample, pool)
    return arms, [Claim(RINGS[recipe], BASES[recipe]) for recipe in edges]


def small_rings(sample: int, candidates: int, edges: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
    """Remarks on rings over banks with fewer candidates than `sample`; `edges`: (lower, upper) by recipe."""
    remarks = []
    for recipe, (lower, upper) in edges.items():
        first, last = places(candidates, lower, upper)
        if last - first < sample and RECIPES[recipe].choices["negatives"]["name"] == "bank":
            remarks.append(
                f"{RINGS[recipe]}: the ring {lower:g} to {upper:g} of {candidates:,} candidates holds "
                f"{last - first} and uses them all; its base draws {sample}."
            )
    return tuple(remarks)


@comparison_study(
    "ring",
    "Wu et al. 2021, Table 1 and 2: four methods against their rings; Ring without its annealing and its "
    "inner edge",
)
def ring(setup: ImageSetup, depth: float = 0.9, upper: float = 0.99, sample: int = 256) -> Comparison:
    """`depth`: the lower edge that is reached (0.9 in the paper); `upper`: the upper edge."""
    edge = rising_edge(depth, setup.epochs)
    edges = dict.fromkeys(BASES, (depth, upper))
    arms, claims = rings_and_bases(setup, edges, sample)
    arms["IRing (No Anneal)"] = ring_arm("instdisc", depth, upper, sample)
    arms["IRing(w_u=100)"] = ring_arm("instdisc", edge, 1.0, sample)
    claims += [Claim("IRing", "IRing (No Anneal)"), Claim("IRing", "IRing(w_u=100)")]
    remarks = small_rings(sample, setup.images - 1, edges)
    return Comparison("Table 1a and 2a", arms, claims, {"linear": RING_PAPER}, remarks=remarks)


# ------------------------------------------------------------------------------------- when a ring begins

KEPT_PERCENT = (10, 25, 50)  # of the bank, the most similar
ALL_CANDIDATES = "everyone (100 %)"
THRESHOLD_CLAIMS = {
    "first": "below everyone, the more so the fewer are kept",
    "middle": "as good as everyone",
    "last": "above everyone, the more so the fewer are kept",
}


def threshold_name(percent: int, begin: float) -> str:
    return f"{percent} % from {begin:.0%}"


def read_moments(begin: str) -> list[float]:
    expected = "rising shares of the run, from 0 on and below 1, such as 0,0.25,0.5"
    rising = lambda shares: sorted(set(shares)) == shares and all(0 <= share < 1 for share in shares)
    return read_numbers(begin, "begin", expected, rising)


@comparison_study(
    "thresholds", "Wu et al. 2021, Fig. 2a: rings of several widths, begun early, midway and late"
)
def thresholds(setup: ImageSetup, begin: str = "0,0.25,0.5") -> Comparison:
    """Instance discrimination with everyone up to a moment (`begin`), then only the most similar.

    The paper continues from checkpoints of one base run at epochs 0, 50 and 100 of 200. An edge that jumps at
    that moment is the same computation, since a ring of everyone drops no candidate.
    """
    moments = read_moments(begin)
    arms, paper = {ALL_CANDIDATES: StudyArm("instdisc")}, dict[str, TableValue]()
    for place, share in enumerate(moments):
        when = "first" if place == 0 else "last" if place == len(moments) - 1 else "middle"
        for percent in KEPT_PERCENT:
            lower = round(1 - percent / 100, 2)
            # one jump half-way through twice the time
            edge = f"stairs(0,{lower:g},1,{2 * share * setup.epochs:g})" if share else lower
            name = threshold_name(percent, share)
            arms[name] = StudyArm("instdisc-ring", {"selection.lower": edge, "selection.upper": 1.0})
            paper[name] = THRESHOLD_CLAIMS[when]
    earliest, latest = moments[0], moments[-1]
    claims = [Claim(ALL_CANDIDATES, threshold_name(percent, earliest)) for percent in KEPT_PERCENT]
    claims += [Claim(threshold_name(percent, latest), ALL_CANDIDATES) for percent in KEPT_PERCENT]
    claims.append(Claim(threshold_name(KEPT_PERCENT[0], latest), threshold_name(KEPT_PERCENT[0], earliest)))
    column = PaperColumn(
        paper,
        "Wu et al. 2021, App. E, Fig. 2a, in words: only drawn there (nearest neighbours, CIFAR-10, 200 "
        "epochs of ResNet-18)",
    )
    return Comparison("Figure 2a", arms, claims, {"knn": column, "linear": column})


# ----------------------------------------------------------------------------------- number of negatives

NUMBERS = (16, 32, 64, 128, 256, 512, 1024, 4096)  # App. C
QUEUE_NUMBERS = (256, 512, 1024, 4096)  # a queue is at least as large as a batch


@comparison_study(
    "negatives", "Wu et al. 2021, App. C: the number of negatives, drawn from all and from a ring"
)
def negatives(setup: ImageSetup) -> Comparison:
    return compare_numbers(setup)


def compare_numbers(
    setup: ImageSetup, depth: float = 0.9, upper: float = 0.99, pool: int | None = None
) -> Comparison:
    edge = rising_edge(depth, setup.epochs)
    arms, claims = {}, []
    x: dict[str, tuple[str, float]] = {}
    for recipe, numbers in (("instdisc", NUMBERS), ("moco", QUEUE_NUMBERS)):
        base, ringed = BASES[recipe], RINGS[recipe]
        for k in numbers:
            arms[f"{base}, k={k}"] = base_arm(recipe, k)
            arms[f"{ringed}, k={k}"] = ring_arm(recipe, edge, upper, k, pool)
            claims.append(Claim(f"{ringed}, k={k}", f"{base}, k={k}"))
            x |= {f"{name}, k={k}": (name, float(k)) for name in (base, ringed)}
        claims.append(Claim(f"{base}, k={numbers[-1]}", f"{base}, k={numbers[0]}"))
    return Comparison("Appendix C", arms, claims, x=x, x_label="k: negatives")


# ---------------------------------------------------------------------------------------------- annealing

EDGE = "selection.lower"
LAST_EDGE = 0.9
ANNEALING_PAPER = {
    "linear": PaperColumn(
        {"no ring": "81.2", "no annealing": "81.4", "linear": "83.9"},
        "Wu et al. 2021, Table 2a (CIFAR-10, ResNet-18, 300 epochs, linear on the pre-pool map)",
    ),
    "knn": PaperColumn(
        dict.fromkeys(("linear", "step", "on score", "on loss"), "alike in the end"),
        "Wu et al. 2021, App. E, Fig. 2b, in words: only drawn there",
    ),
}


def policies(epochs: int, last: float = LAST_EDGE) -> dict[str, Any]:
    """The lower edge by policy, up to `last`; None is instance discrimination without a ring.

    The paper gives the length of the linear rise (half of the run), not that of the steps or the size of an
    adaptive move: these are ours.
    """
    half = f"{epochs / 2:g}"
    return {
        "no ring": None,
        "no annealing": last,
        "linear": f"linear(0,{last:g},{half})",
        "step": f"stairs(0,{last:g},3,{half})",
        # one probe per epoch: half of them, if good, are enough to arrive
        "on score": f"on_score(0,{last:g},{max(1, epochs // 2)})",
        "on loss": f"on_loss(0,{last:g},100)",
    }


def add_courses(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    """Adds the edge at the end, and as lines the edge and the probes of the first seed over epochs."""
    rows, lines, probes = [], {}, {}
    for name, arm in comparison.arms.items():
        fixed = arm.changes.get(EDGE, 0.0)
        courses = []
        for values in figures[name]:
            epochs = values["course"]["epoch"]  # type: ignore[index]
            edges = values["course"][EDGE] if isinstance(fixed, str) else [fixed] * len(epochs)  # type: ignore[index]
            courses.append((epochs, edges))
        claim = "reaches the last value" if name.startswith("on ") else None
        rows.append(mean_row(name, [edges[-1] for _, edges in courses], claim))
        lines[name] = courses[0]
        epochs, accuracies = zip(*figures[name][0]["probes"], strict=True)  # type: ignore[index]
        probes[name] = (epochs, accuracies)
    edges = StudyTable(
        "lower edge at the end", tuple(rows), "Wu et al. 2021, App. E, in words", lines, "epoch (Fig. 2c)"
    )
    probe = StudyTable("kNN within the training images", (), lines=probes, x_label="epoch (Fig. 2b)")
    return result.adding(edges, probe)


@comparison_study(
    "annealing",
    "Wu et al. 2021, App. E in small: policies for a ring's lower edge, accuracy and course",
    finish=add_courses,
)
def annealing(setup: ImageSetup) -> Comparison:
    arms = {}
    for name, edge in policies(setup.epochs).items():
        if edge is None:
            arms[name] = StudyArm("instdisc", watch=("loss",))
        else:
            arms[name] = StudyArm("instdisc-ring", {EDGE: edge}, watch=(EDGE, "loss"))
    claims = [Claim(name, "no ring") for name in arms if name != "no ring"]
    remark = (
        "the score that the adaptive policy follows is kNN within a sample of the training images, a fifth "
        "of it held out; test images are used once, at the end."
    )
    return Comparison("Policies", arms, claims, ANNEALING_PAPER, baselines=(), remarks=(remark,))
