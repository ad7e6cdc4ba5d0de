"""What is seen or heard: batched image augmentation, stretches of sound, hidden symbols; each a pure function of
(seed, epoch, index, view)."""

from nearfar.views.augment import PIPELINES, Augment, pipelines
from nearfar.views.colour import LAB_CHANNELS, Colours
from nearfar.views.masks import Mask, WholeText
from nearfar.views.operations import OPERATIONS, Operation
from nearfar.views.parameters import Parameters, draw
from nearfar.views.pipeline import Plain, Views, statistics
from nearfar.views.windows import WholeSound, Window

__all__ = [
    "LAB_CHANNELS",
    "OPERATIONS",
    "PIPELINES",
    "Augment",
    "Colours",
    "Mask",
    "Operation",
    "Parameters",
    "Plain",
    "Views",
    "WholeSound",
    "WholeText",
    "Window",
    "draw",
    "pipelines",
    "statistics",
]
