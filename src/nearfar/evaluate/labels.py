"""Features with their labels, and the few things every protocol does with labels."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nearfar.core.splits import at_least_one, held_out

TOP = 5  # how many classes a top-5 answer may name


@dataclass(frozen=True)
class Labelled:
    """Features of images and the class of each: all that a protocol sees; `fitted` holds what was fitted to them, for the next that asks.
    `repeated` marks test rows that look exactly like rows fitted on; None: nobody looked. `dependent` says why test rows are no independent draws, where
    they are not."""

    features: Float[Tensor, "image dim"]
    labels: Int[Tensor, "image"]
    repeated: Bool[Tensor, "image"] | None = None
    dependent: str = ""
    fitted: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, index: Int[Tensor, "row"]) -> "Labelled":
        return self._each(lambda held: held[index])

    def to(self, device: torch.device | str) -> "Labelled":
        return self._each(lambda held: held.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Labelled":
        repeated = None if self.repeated is None else change(self.repeated)
        return Labelled(change(self.features), change(self.labels), repeated, self.dependent)


def stratified_split(
    labels: Int[Tensor, "image"], share: float, seed: int
) -> tuple[Int[Tensor, "rest"], Int[Tensor, "held"]]:
    """Rows to fit on and rows to hold out: `share` of every class, both in rising order (see `splits.at_least_one`)."""
    held = torch.from_numpy(held_out(labels.cpu().numpy(), share, seed, at_least_one))
    rest, kept = (~held).nonzero()[:, 0], held.nonzero()[:, 0]
    return rest.to(labels.device), kept.to(labels.device)


def class_codes(labels: Int[Tensor, "image"]) -> tuple[Int[Tensor, "class"], Int[Tensor, "image"]]:
    """The labels that occur, rising, and each image's place among them."""
    return torch.unique(labels, return_inverse=True)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def hit_rates(ranked: Int[Tensor, "image rank"], labels: Int[Tensor, "image"]) -> dict[str, float]:
    """Share of images whose label is the first, and is among the first five, of their ranked classes."""
    hits = ranked[:, :TOP] == labels[:, None]
    return {"top1": hits[:, 0].double().mean().item(), "top5": hits.any(1).double().mean().item()}
