"""What is seen: batched image augmentation, a pure function of (seed, epoch, index, view)."""

from nearfar.views.augment import PIPELINES, Augment, pipelines
from nearfar.views.colour import LAB_CHANNELS, Colours
from nearfar.views.parameters import Parameters, draw
from nearfar.views.pipeline import Plain, Views, statistics

__all__ = [
    "LAB_CHANNELS",
    "PIPELINES",
    "Augment",
    "Colours",
    "Parameters",
    "Plain",
    "Views",
    "draw",
    "pipelines",
    "statistics",
]
