"""MoCo-v2 with CPC and ML-CPC: four curricula of alpha, three lengths (Song & Ermon 2020, Table 3).

Alpha falls geometrically and crosses 1 half-way: 1 to 1, 2 to 0.5, 5 to 0.2, 10 to 0.1 (sec. 5.3's text has 5
to 2, its tables 5 to 0.2). The paper trains 200, 500 and 1,000 epochs; `epochs` stands for its 200, and the
others are in proportion.

Command: nearfar study curricula data=cifar10:ROOT             Cost: about 80 minutes of one core.
         nearfar study adaptive-curricula data=cifar10:ROOT    Cost: about 20 minutes of one core.
"""

from dataclasses import replace
from typing import Any

from nearfar.studies.comparison import MEASURES, Claim, Comparison, Figures, PaperColumn, comparison_study
from nearfar.studies.frame import StudyResult, StudyTable, mean_row
from nearfar.studies.images import ImageSetup, StudyArm

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


def epochs_for(paper_epochs: int, epochs: int) -> int:
    """Epochs here for so many of the paper, where its 200 are `epochs`."""
    return max(1, round(epochs * paper_epochs / LENGTHS[0]))


@comparison_study(
    "curricula", "Song & Ermon 2020, Table 3: MoCo-v2 with CPC and four ML-CPC curricula, over epochs"
)
def curricula(setup: ImageSetup) -> Comparison:
    arms, values, claims, x = {}, {}, [], {}
    for place, length in enumerate(LENGTHS):
        epochs = epochs_for(length, setup.epochs)
        names = {name: f"{name}, {length} epochs (here {epochs})" for name in CURRICULA}
        for name, changes in CURRICULA.items():
            arms[names[name]] = StudyArm("moco", changes, {"epochs": epochs})
            values[names[name]] = PAPER[name][place]
            x[names[name]] = (name, float(epochs))
        claims += [Claim(names[name], names[BASE]) for name in CURRICULA if name != BASE]
    measures = {**MEASURES, "linear_top5": "linear top-5 in percent"}
    remark = "Table 3b is of CIFAR-100: run it with data=FOLDER and test=FOLDER."
    column = PaperColumn(values, SOURCE)
    paper = {"linear": column}
    return Comparison("Table 3a", arms, claims, paper, measures, (), x, "epochs", remarks=(remark,))


# ------------------------------------------------------------------------------ without a clock

HELD_OUT = 0.1  # of the training images, in every arm, so that all train on the same ones
POLICIES = {  # by what a curriculum follows; {ends} and a schedule over the whole run
    "clock": "{clock}({ends})",
    "held-out bound": "on_bound({ends},{moves})",
    "variance": "on_variance({ends},{moves})",
}


def add_last_values(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    """Adds where each curriculum ended."""
    rows = [
        mean_row(name, [one["course"][arm.watch[0]][-1] for one in figures[name] if one])
        for name, arm in comparison.arms.items()
        if arm.watch
    ]
    return result.adding(StudyTable("value at the end", tuple(rows)))


@comparison_study(
    "adaptive-curricula",
    "ours: curricula of alpha and of a ring's edge that follow the held-out bound or the variance, not a "
    "clock",
    finish=add_last_values,
)
def adaptive_curricula(setup: ImageSetup) -> Comparison:
    """ML-CPC's alpha from 10 to 0.1, and a ring's lower edge from 0 to 0.9, by a clock and by what stalls.

    A move needs two probes, so a third of the epochs, if all stall, are enough to arrive."""
    moves = max(1, setup.epochs // 3)
    arms = {"CPC": StudyArm("moco", {}, {"held_out": HELD_OUT})}
    claims = []
    for policy, written in POLICIES.items():
        alpha = written.format(clock="geometric", ends="10,0.1", moves=moves)
        edge = written.format(clock="linear", ends="0,0.9", moves=moves)
        changes = {
            f"alpha by {policy}": StudyArm("moco", {"bound": "ml-cpc", "bound.alpha": alpha}),
            f"edge by {policy}": StudyArm("instdisc-ring", {"selection.lower": edge}),
        }
        for name, arm in changes.items():
            watch = tuple(key for key in arm.changes if key in ("bound.alpha", "selection.lower"))
            arms[name] = replace(arm, budget={"held_out": HELD_OUT}, watch=watch)
            if policy != "clock":
                claims.append(Claim(name, f"{name.split()[0]} by clock"))
    return Comparison("Curricula", arms, claims)
