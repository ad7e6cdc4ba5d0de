"""Image augmentation: a pure function of (seed, epoch, index, view). One compiled kernel on CPUs, batched torch elsewhere."""

from nearfar.modalities.image.views.augment import PIPELINES, Augment, pipelines
from nearfar.modalities.image.views.colour import LAB_CHANNELS, Colours
from nearfar.modalities.image.views.operations import OPERATIONS, Operation
from nearfar.modalities.image.views.parameters import Parameters, draw
from nearfar.modalities.image.views.pipeline import Plain, Views, statistics

__all__ = [
    "LAB_CHANNELS",
    "OPERATIONS",
    "PIPELINES",
    "Augment",
    "Colours",
    "Operation",
    "Parameters",
    "Plain",
    "Views",
    "draw",
    "pipelines",
    "statistics",
]
