"""Vectors in reports and as a baseline."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearfar.modalities.base import AbstractPresenter, Features, MakeViews, StandardisedDescription
from nearfar.modalities.showing import heat, plain_views


class VectorsPresenter(AbstractPresenter):
    baseline_titles: ClassVar[Mapping[str, str]] = {"numbers": "the numbers themselves"}

    def baselines(self, plain_view: MakeViews) -> dict[str, Features]:
        return {
            "numbers": lambda data: torch.cat([view.cpu() for view in plain_views(data, plain_view, 4096, 0)])
        }

    def pictures(self, loaded: np.ndarray, description: StandardisedDescription) -> list[Image.Image]:
        return [heat(row[None]) for row in (loaded - np.array(description.mean)) / np.array(description.std)]

    def view_pictures(self, views: Any, view: Tensor, description: Any) -> list[Image.Image]:
        return [heat(row[None]) for row in view.detach().cpu().numpy()]
