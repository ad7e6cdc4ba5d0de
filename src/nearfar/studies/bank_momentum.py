"""How slowly a bank's rows should move (Wu et al. 2020, Fig. 2c).

Instance discrimination keeps a row per image, M[i] <- normalise(m M[i] + (1 - m) z_i). At m = 0 the row is the view
seen in the last epoch; near 1 it hardly leaves what the untrained network said. Wu et al. 2020 finds m = 0 as good as its
default of 0.5 and m near 1 worse; its figure is of ImageNet, so the shape is compared and not the numbers.

Command: nearfar study bank-momentum data=cifar10:ROOT     Cost: about 6 minutes on two cores.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Figures, Moments, Setup, moments, percent, repeated, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOMENTA = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
DEFAULT = 0.5
PAPER = {0.0: "as good as 0.5", 0.99: "worse"}
SOURCE = "Wu et al. 2020, Fig. 2c, in words: of ImageNet, and only drawn there"
MEASURES = {"knn": "Figure 2c, kNN top-1 in percent", "linear": "Figure 2c, linear top-1 in percent"}


def run(bench: Bench, setup: Setup) -> Result:
    arms = {"untrained": [setup.baseline("untrained", s) for s in setup.numbers]}
    arms |= {
        name_of(m): [setup.recipe("instdisc", s, negatives__momentum=m) for s in setup.numbers]
        for m in MOMENTA
    }
    found = repeated(bench, setup, arms)
    return Result(tuple(_finding(found, measure) for measure in MEASURES), _remarks(found))


def name_of(momentum: float) -> str:
    return f"m={momentum:g}"


def _finding(found: Mapping[str, Sequence[Figures]], measure: str) -> Finding:
    rows = [Row("untrained", None, *percent(found["untrained"], measure))]
    rows += [Row(name_of(m), PAPER.get(m), *percent(found[name_of(m)], measure)) for m in MOMENTA]
    values = [percent(found[name_of(m)], measure) for m in MOMENTA]
    curves = {"m": list(MOMENTA), "mean": [v[0] for v in values], "sd": [v[1] for v in values]}
    return Finding(MEASURES[measure], tuple(rows), {**curves, "untrained": rows[0].ours}, SOURCE)


def _remarks(found: Mapping[str, Sequence[Figures]]) -> tuple[str, ...]:
    remarks = []
    for measure in MEASURES:
        sides = ", ".join(
            f"{name_of(m)} by {written(_against_default(found, m, measure), '+')}"
            for m in (MOMENTA[0], MOMENTA[-1])
        )
        remarks.append(f"{measure}, points from m={DEFAULT:g}, paired by seed: {sides}.")
    return tuple(remarks)


def _against_default(found: Mapping[str, Sequence[Figures]], momentum: float, measure: str) -> Moments:
    pairs = zip(found[name_of(momentum)], found[name_of(DEFAULT)], strict=True)
    return moments([100 * (ours[measure] - theirs[measure]) for ours, theirs in pairs])


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels, truth

    figure, axes = panels(["kNN top-1, percent", "Linear top-1, percent"])
    for axis, finding in zip(axes, result.findings, strict=True):
        curves = finding.curves
        truth(axis, curves["untrained"], "untrained")
        axis.errorbar(
            curves["m"], curves["mean"], yerr=[sd or 0.0 for sd in curves["sd"]], color=COLOURS[0], marker="o", markersize=4, label="instdisc"
        )  # fmt: skip
        axis.set(xlabel="m: the bank's update momentum")
    axes[0].legend(frameon=False, fontsize=7.5)
    return figure


STUDY = Study(
    "bank-momentum",
    "Wu et al. 2020, Fig. 2c: instance discrimination against its bank's update momentum",
    run,
    draw,
)
