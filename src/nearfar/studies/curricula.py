"""MoCo-v2 with CPC and with ML-CPC under four curricula of alpha, for three lengths of training (Song & Ermon
2020, Table 3).

Alpha falls geometrically and crosses 1 half-way: 1 to 1, 2 to 0.5, 5 to 0.2, 10 to 0.1 (sec. 5.3's text has 5
to 2, its tables 5 to 0.2). The paper trains 200, 500 and 1,000 epochs; `epochs` stands for its 200, and the
others are in proportion.

Command: nearfar study curricula data=cifar10:ROOT     Cost: about 80 minutes of one core.
"""

from typing import Any

from nearfar.studies.comparison import MEASURES, Claim, Comparison, PaperColumn, comparison_study
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
    return Comparison(
        "Table 3a", arms, claims, {"linear": column}, measures, (), x, "epochs", remarks=(remark,)
    )


STUDIES = (
    comparison_study(
        "curricula",
        "Song & Ermon 2020, Table 3: MoCo-v2 with CPC and four ML-CPC curricula, over epochs",
        curricula,
    ),
)
