"""A network to be judged by what it does, with the data to do it on."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from nearfar.core.method import Method
from nearfar.modalities import DataSet, Instances
from nearfar.modalities.base import MakeViews


@dataclass(frozen=True)
class LabelledSet:
    """Instances and their classes, all in one numbering."""

    images: Instances
    labels: Int[Tensor, "instance"]

    def rows(self, index: Int[Tensor, "row"]) -> "LabelledSet":
        return LabelledSet(cast(DataSet, self.images).subset(index.numpy()), self.labels[index])


@dataclass(frozen=True)
class Subject:
    """`encoder` is a copy, to be trained or changed at will. `known` describes the data as they are shown to it; `method` is the
    whole trained method, and `views` what training saw, where a run has them."""

    encoder: nn.Module
    plain: MakeViews
    train: LabelledSet
    test: LabelledSet
    device: torch.device
    modality: Any = None
    known: Any = None
    method: Method | None = None
    views: MakeViews | None = None
    own: bool = (
        True  # that `train` are the run's own data, whose classes are numbered as the run learned them
    )
    trained: bool = True  # that there is something in the encoder to keep
    unseen: bool | None = None  # that the method was never shown the test instances; None: nobody knows
