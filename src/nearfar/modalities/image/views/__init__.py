"""Image augmentation: a pure function of (seed, epoch, index, view). One compiled kernel on CPUs, batched
torch elsewhere."""

from nearfar.modalities.image.views.augment import PIPELINES, Augment, pipelines
from nearfar.modalities.image.views.colour import LAB_CHANNELS, Colours
from nearfar.modalities.image.views.operations import OPERATIONS, Operation
from nearfar.modalities.image.views.parameters import Parameters, draw
from nearfar.modalities.image.views.pipeline import PlainImages, Views, statistics
from nearfar.modalities.image.views.settings import (
    IMAGE_VIEWS,
    BYOLViews,
    CMCViews,
    CropFlipViews,
    InstDiscViews,
    PipelineViews,
    SimCLRViews,
)

__all__ = [
    "IMAGE_VIEWS",
    "LAB_CHANNELS",
    "OPERATIONS",
    "PIPELINES",
    "Augment",
    "BYOLViews",
    "CMCViews",
    "Colours",
    "CropFlipViews",
    "InstDiscViews",
    "Operation",
    "Parameters",
    "PipelineViews",
    "PlainImages",
    "SimCLRViews",
    "Views",
    "draw",
    "pipelines",
    "statistics",
]
