"""What protocols work on: features with labels, instances with labels, a network with both."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nearfar.core.method import Method
from nearfar.core.splits import at_least_one, held_out
from nearfar.modalities import DataSet, Instances
from nearfar.modalities.base import MakeViews


@dataclass(frozen=True)
class LabelledFeatures:
    """Features of instances and the class of each: everything that a protocol of features sees.

    `repeated` marks test rows that are identical to rows fitted on; None: not checked. `dependence` says why
    test rows are not independent draws, where they are not. `fits` caches what was fitted to these rows, for
    protocols that share a probe.
    """

    features: Float[Tensor, "row dim"]
    labels: Int[Tensor, "row"]
    repeated: Bool[Tensor, "row"] | None = None
    dependence: str = ""
    fits: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def class_count(self) -> int:
        return len(torch.unique(self.labels))

    def rows(self, index: Int[Tensor, "part"]) -> "LabelledFeatures":
        return self._map(lambda tensor: tensor[index])

    def to(self, device: torch.device | str) -> "LabelledFeatures":
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "LabelledFeatures":
        repeated = None if self.repeated is None else change(self.repeated)
        return LabelledFeatures(change(self.features), change(self.labels), repeated, self.dependence)


@dataclass(frozen=True)
class LabelledInstances:
    """Instances and the class of each; train and test sets share one numbering of classes."""

    instances: Instances
    labels: Int[Tensor, "instance"]

    @property
    def class_count(self) -> int:
        return len(torch.unique(self.labels))

    def rows(self, index: Int[Tensor, "part"]) -> "LabelledInstances":
        return LabelledInstances(cast(DataSet, self.instances).subset(index.numpy()), self.labels[index])


@dataclass(frozen=True)
class Subject:
    """A network for protocols that train or change it.

    `encoder` is a copy. `description` is that of the data as the encoder is shown them. `method` and `views`
    are the trained method and its training views, where the run has them. `own_data`: `train` is the run's
    training data, whose classes the run numbered. `trained`: the encoder is not freshly initialised.
    `unseen`: the method never saw the test instances; None: unknown.
    """

    encoder: nn.Module
    plain_view: MakeViews
    train: LabelledInstances
    test: LabelledInstances
    device: torch.device
    modality: Any = None
    description: Any = None
    method: Method | None = None
    views: MakeViews | None = None
    own_data: bool = True
    trained: bool = True
    unseen: bool | None = None


def stratified_split(
    labels: Int[Tensor, "row"], share: float, seed: int
) -> tuple[Int[Tensor, "fit"], Int[Tensor, "holdout"]]:
    """Rows to fit on and rows to hold out, `share` of every class, both rising."""
    mask = torch.from_numpy(held_out(labels.cpu().numpy(), share, seed, at_least_one))
    fit, holdout = (~mask).nonzero()[:, 0], mask.nonzero()[:, 0]
    return fit.to(labels.device), holdout.to(labels.device)


def class_codes(labels: Int[Tensor, "row"]) -> tuple[Int[Tensor, "class"], Int[Tensor, "row"]]:
    """The labels that occur, rising, and the position of each row's label among them."""
    return torch.unique(labels, return_inverse=True)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]
