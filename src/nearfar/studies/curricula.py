"""MoCo-v2 with CPC and with ML-CPC under its four curricula of alpha, for three lengths of training (Song & Ermon 2020, Table 3).

Alpha falls geometrically and crosses 1 half-way: 1 to 1, 2 to 0.5, 5 to 0.2, 10 to 0.1 (sec. 5.3's text has 5 to 2, its tables 5 to 0.2). The paper
trains 200, 500 and 1,000 epochs; `epochs` stands for its 200, and the others are in proportion.

Command: nearfar study curricula data=cifar10:ROOT     Cost: about 80 minutes of one core.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nearfar.studies.compared import verdict
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Figures, Setup, percent, repeated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "CPC"
LENGTHS = (200, 500, 1000)  # epochs of the paper
CURRICULA: dict[str, dict[str, Any]] = {
    BASE: {},
    "ML-CPC 1 to 1": {"bound": "ml-cpc", "bound.alpha": 1.0},
    "ML-CPC 2 to 0.5": {"bound": "ml-cpc", "bound.alpha": "geometric(2,0.5)"},
    "ML-CPC 5 to 0.2": {"bound": "ml-cpc", "bound.alpha": "geometric(5,0.2)"},
    "ML-CPC 10 to 0.1": {"bound": "ml-cpc", "bound.alpha": "geometric(10,0.1)"},
}
PAPER = dict(
    zip(
        CURRICULA,
        ((83.28, 89.31, 91.20), (83.61, 89.43, 91.48), (84.31, 89.47, 91.43), (85.52, 89.85, 91.50), (86.16, 89.49, 91.86)),
        strict=True,
    )
)  # fmt: skip
SOURCE = "Song & Ermon 2020, Table 3a: CIFAR-10, MoCo-v2 with ResNet-50, linear top-1"
MEASURES = {
    "linear": "Table 3a, linear top-1 in percent",
    "linear_top5": "linear top-5 in percent",
    "knn": "kNN top-1 in percent",
}


def lengths(epochs: int) -> dict[int, int]:
    """Epochs here for each of the paper's, where its 200 are `epochs`."""
    return {told: max(1, round(epochs * told / LENGTHS[0])) for told in LENGTHS}


def run(bench: Bench, setup: Setup) -> Result:
    ours = lengths(setup.epochs)
    arms = {
        (name, told): [replace(setup, epochs=epochs).recipe("moco", s, **changes) for s in setup.numbers]
        for told, epochs in ours.items()
        for name, changes in CURRICULA.items()
    }
    found = repeated(bench, setup, arms)
    return Result(tuple(_finding(found, measure, ours) for measure in MEASURES), _remarks(found, ours))


def _finding(
    found: Mapping[tuple[str, int], Sequence[Figures]], measure: str, ours: Mapping[int, int]
) -> Finding:
    values = {key: percent(group, measure) for key, group in found.items()}
    rows = [
        Row(
            f"{name}, {told} epochs (here {ours[told]})",
            PAPER[name][LENGTHS.index(told)] if measure == "linear" else None,
            *value,
        )
        for (name, told), value in values.items()
    ]
    curves = {name: [values[name, told] for told in LENGTHS] for name in CURRICULA}
    return Finding(
        MEASURES[measure],
        tuple(rows),
        {"epochs": list(ours.values()), **curves},
        SOURCE if measure == "linear" else "",
    )


def _remarks(found: Mapping[tuple[str, int], Sequence[Figures]], ours: Mapping[int, int]) -> tuple[str, ...]:
    said = []
    for told, epochs in ours.items():
        for name in list(CURRICULA)[1:]:
            pairs = zip(found[name, told], found[BASE, told], strict=True)
            theirs = PAPER[name][LENGTHS.index(told)] - PAPER[BASE][LENGTHS.index(told)]
            differences = [100 * (one["linear"] - other["linear"]) for one, other in pairs]
            said.append(
                f"{name} above {BASE} at {epochs} epochs {verdict(differences)} (the paper's {told}: {theirs:+.2f})."
            )
    said.append("Table 3b is of CIFAR-100, which data=FOLDER with test=FOLDER would be.")
    return tuple(said)


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels

    figure, axes = panels(["Linear top-1, percent", "kNN top-1, percent"])
    for axis, measure in zip(axes, ("linear", "knn"), strict=True):
        curves = result.finding(MEASURES[measure]).curves
        for colour, name in zip(COLOURS, CURRICULA, strict=False):
            mean, spread = zip(*curves[name], strict=True)
            axis.errorbar(
                curves["epochs"],
                mean,
                yerr=[sd or 0.0 for sd in spread],
                color=colour,
                marker="o",
                markersize=4,
                label=name,
            )
        axis.set(xlabel="epochs")
    axes[0].legend(frameon=False, fontsize=7.5)
    return figure


STUDY = Study(
    "curricula",
    "Song & Ermon 2020, Table 3: MoCo-v2 with CPC and four ML-CPC curricula, over epochs",
    run,
    draw,
)
