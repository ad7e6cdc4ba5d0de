"""A number, or how a number moves over a run.

Wherever nearfar takes a number that could sensibly change while training (alpha, a ring's edges, momentum,
temperature, the learning rate), it takes a `Value`: a float, or a schedule. A schedule is a pure function of
`Progress`, so it needs no state and a resumed run reads the same numbers. What adaptive ones have heard so
far is part of the progress too: the loop keeps it (`nearfar.train.adaptive`) and checkpoints hold it.

    selection = Ring(lower=linear(0.0, 0.9), upper=0.99)
    bound     = MultiLabelCPC(alpha=geometric(10.0, 0.1))
    encoders  = Momentum(network, momentum=cosine(0.99, 1.0))

In settings the same is written `selection.lower=linear(0,0.9)` or `{linear: {start: 0, end: 0.9}}`.
"""

from nearfar.core.schedules.adaptive import Adaptive, OnLoss, OnScore, Plateau, on_loss, on_score, plateau
from nearfar.core.schedules.reading import SCHEDULES, parse_learnable, parse_value
from nearfar.core.schedules.shapes import (
    START,
    CosineSchedule,
    Geometric,
    Learnable,
    Learnt,
    Linear,
    Progress,
    Schedule,
    Stairs,
    Steps,
    Value,
    at,
    cosine,
    ends,
    geometric,
    learnt,
    linear,
    stairs,
    steps,
    written,
)

__all__ = [
    "SCHEDULES",
    "START",
    "Adaptive",
    "CosineSchedule",
    "Geometric",
    "Learnable",
    "Learnt",
    "Linear",
    "OnLoss",
    "OnScore",
    "Plateau",
    "Progress",
    "Schedule",
    "Stairs",
    "Steps",
    "Value",
    "at",
    "cosine",
    "ends",
    "geometric",
    "learnt",
    "linear",
    "on_loss",
    "on_score",
    "parse_learnable",
    "parse_value",
    "plateau",
    "stairs",
    "steps",
    "written",
]
