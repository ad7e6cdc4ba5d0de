"""Time series in reports and as a baseline."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearfar.modalities.base import AbstractPresenter, Features, MakeViews
from nearfar.modalities.series.data import TimeSeriesDescription
from nearfar.modalities.showing import heat, plain_views


class SeriesPresenter(AbstractPresenter):
    baseline_titles: ClassVar[Mapping[str, str]] = {"numbers": "the numbers of the window"}

    def baselines(self, plain_view: MakeViews) -> dict[str, Features]:
        return {
            "numbers": lambda data: torch.cat(
                [view.cpu().flatten(1) for view in plain_views(data, plain_view, 4096, 0)]
            )
        }

    def pictures(self, loaded: np.ndarray, description: TimeSeriesDescription) -> list[Image.Image]:
        rows = (loaded - np.array(description.mean)) / np.array(description.std)
        start = description.offset
        return [heat(window.T) for window in rows[:, start : start + description.window]]

    def view_pictures(self, views: Any, view: Tensor, description: Any) -> list[Image.Image]:
        return [heat(window.T) for window in view.detach().cpu().numpy()]
