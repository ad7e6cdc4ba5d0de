"""Image augmentation: a pure function of (seed, epoch, index, view). One compiled kernel on CPUs, batched
torch elsewhere."""

from nearfar.modalities.image.views.augment import PIPELINES, Augment, pipelines
from nearfar.modalities.image.views.operations import OPERATIONS
from nearfar.modalities.image.views.parameters import Parameters, draw
from nearfar.modalities.image.views.pipeline import PlainImages, Views
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
    "OPERATIONS",
    "PIPELINES",
    "Augment",
    "BYOLViews",
    "CMCViews",
    "CropFlipViews",
    "InstDiscViews",
    "Parameters",
    "PipelineViews",
    "PlainImages",
    "SimCLRViews",
    "Views",
    "draw",
    "pipelines",
]
