"""How a ring's outer edge should rise (Wu et al. 2021, App. E, Fig. 2b and 2c, in small).

Instance discrimination with Ring(lower, 0.99), the lower edge going from everyone (0) to the most similar tenth (0.9)
by each policy of App. E: linear, in steps, adaptive on a validation score at every epoch, adaptive on the loss at every
step; and at 0.9 from the first step on, which Table 2 calls no annealing. Wu et al. 2021 trains for 200 epochs and gives the
length of the linear rise (half of them), not that of the steps or the size of an adaptive move: those are ours.

Command: nearfar study annealing data=cifar10:ROOT     Cost: about 6 minutes on two cores.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Figures, Setup, moments, percent, repeated, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EDGE = "selection.lower"
LAST = 0.9
PAPER = {
    "linear": {"no ring": "81.2", "no annealing": "81.4", "linear": "83.9"},  # Table 2a, CIFAR-10
    "knn": dict.fromkeys(("linear", "step", "on score", "on loss"), "alike in the end"),
}
SOURCES = {
    "linear": "Wu et al. 2021, Table 2a (CIFAR-10, ResNet-18, 300 epochs, linear on the pre-pool map)",
    "knn": "Wu et al. 2021, App. E, Fig. 2b, in words: only drawn there",
    "edge": "Wu et al. 2021, App. E, in words",
}
MEASURES = {"knn": "kNN top-1 in percent", "linear": "linear top-1 in percent"}


def policies(epochs: int, last: float = LAST) -> dict[str, Any]:
    """The lower edge by policy, up to `last`; None is instance discrimination without a ring."""
    half = f"{epochs / 2:g}"
    return {
        "no ring": None,
        "no annealing": last,
        "linear": f"linear(0,{last:g},{half})",
        "step": f"stairs(0,{last:g},3,{half})",
        # a probe comes once an epoch: half of them, if good, must be enough to arrive
        "on score": f"on_score(0,{last:g},{max(1, epochs // 2)})",
        "on loss": f"on_loss(0,{last:g},100)",
    }


def run(bench: Bench, setup: Setup) -> Result:
    edges = policies(setup.epochs)
    arms = {name: [_arm(setup, edge, s) for s in setup.numbers] for name, edge in edges.items()}
    found = repeated(bench, setup, arms)
    findings = tuple(_finding(found, measure) for measure in MEASURES)
    return Result((*findings, _courses(found, edges)), _remarks(found))


def _arm(setup: Setup, edge: Any, seed: int) -> dict[str, Any]:
    if edge is None:
        return setup.recipe("instdisc", seed, watch=("loss",))
    return setup.recipe("instdisc-ring", seed, watch=(EDGE, "loss"), selection__lower=edge)


def _finding(found: Mapping[str, Sequence[Figures]], measure: str) -> Finding:
    rows = [Row(name, PAPER[measure].get(name), *percent(group, measure)) for name, group in found.items()]
    return Finding(MEASURES[measure], tuple(rows), source=SOURCES[measure])


def _courses(found: Mapping[str, Sequence[Figures]], edges: Mapping[str, Any]) -> Finding:
    """The edge at the end, and for the drawing the edge and the probes of every seed all along."""
    rows, curves = [], {}
    for name, edge in edges.items():
        if edge is None:
            edge = 0.0
        courses = [_course(one, edge) for one in found[name]]
        claim = "reaches the last value" if name.startswith("on ") else None
        rows.append(Row(name, claim, *moments([course["edge"][-1] for course in courses])))
        curves[name] = [
            {**course, "probes": one["probes"]} for course, one in zip(courses, found[name], strict=True)
        ]
    return Finding("lower edge at the end", tuple(rows), curves, SOURCES["edge"])


def _course(one: Figures, edge: Any) -> dict[str, list[float]]:
    epoch = one["course"]["epoch"]
    constant = isinstance(edge, float)
    return {"epoch": epoch, "edge": [edge] * len(epoch) if constant else one["course"][EDGE]}


def _remarks(found: Mapping[str, Sequence[Figures]]) -> tuple[str, ...]:
    remarks = []
    for measure in MEASURES:
        base = found["no ring"]
        points = {
            name: moments([100 * (a[measure] - b[measure]) for a, b in zip(group, base, strict=True)])
            for name, group in found.items()
            if group is not base
        }
        told = ", ".join(f"{name} {written(value, '+')}" for name, value in points.items())
        remarks.append(f"{measure}, points above no ring, paired by seed: {told}.")
    remarks.append(
        "the score that the adaptive policy follows, and that is drawn, is kNN within a sample of the training images, "
        "a fifth of it held out; test images are asked once, at the end."
    )
    return tuple(remarks)


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels

    figure, axes = panels(["kNN within the training images (Fig. 2b)", "Lower edge (Fig. 2c)"])
    courses = result.finding("lower edge at the end").curves
    for colour, (name, seeds) in zip(COLOURS, courses.items(), strict=False):
        for number, one in enumerate(seeds):
            look: dict[str, Any] = {"color": colour, "linewidth": 1.2, "label": name if number == 0 else None}
            epochs, accuracy = zip(*one["probes"], strict=True)
            axes[0].plot(epochs, accuracy, **look)
            axes[1].plot(one["epoch"], one["edge"], **look)
    for axis in axes:
        axis.set(xlabel="epoch")
    axes[1].legend(frameon=False, fontsize=7.5)
    return figure


STUDY = Study(
    "annealing",
    "Wu et al. 2021, App. E in small: policies for a ring's lower edge, accuracy and course",
    run,
    draw,
)
