"""The views of images as settings: a named pipeline, how many views there are, how they are paired, and changes to the pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nearfar.modalities.image.views.augment import PIPELINES
from nearfar.modalities.image.views.colour import Colours


@dataclass(frozen=True)
class PipelineViews:
    """`count` views by one pipeline.

    `symmetric`: every ordered pair of views is contrasted, otherwise the first with each other one. `aligned`: all views share one
    crop. `colours`: rgb, or lab, of which each view shows some channels. `changes`: settings of `Augment` that differ from the
    pipeline's, as in `{"blur": 0.1, "second": {"solarise": 0.2}}`.
    """

    pipeline: ClassVar[str]
    count: int = 2
    symmetric: bool = True
    aligned: bool = False
    colours: Colours = "rgb"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def section(self) -> dict[str, Any]:
        """The settings of the views' section."""
        shared = {key: getattr(self, key) for key in ("count", "symmetric", "aligned", "colours")}
        return {**shared, **self.changes}


class SimCLRViews(PipelineViews):
    pipeline = "simclr"


class SmallSimCLRViews(PipelineViews):
    pipeline = "simclr-small"


class BYOLViews(PipelineViews):
    pipeline = "byol"


class SmallBYOLViews(PipelineViews):
    pipeline = "byol-small"


class MoCoViews(PipelineViews):
    pipeline = "moco"


class InstDiscViews(PipelineViews):
    pipeline = "instdisc"


class CMCViews(PipelineViews):
    pipeline = "cmc"


class CropFlipViews(PipelineViews):
    pipeline = "crop-flip"


class UnchangedViews(PipelineViews):
    pipeline = "none"


_CLASSES: tuple[type[PipelineViews], ...] = (
    SimCLRViews,
    SmallSimCLRViews,
    BYOLViews,
    SmallBYOLViews,
    MoCoViews,
    InstDiscViews,
    CMCViews,
    CropFlipViews,
    UnchangedViews,
)
IMAGE_VIEWS = {kind.pipeline: kind for kind in _CLASSES}
assert set(IMAGE_VIEWS) == set(PIPELINES)
