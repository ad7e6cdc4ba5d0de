"""Features with their labels, and the few things every protocol does with labels."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.randomness import order

TOP = 5  # how many classes a top-5 answer may name


@dataclass(frozen=True)
class Labelled:
    """Features of images and the class of each: all that a protocol sees."""

    features: Float[Tensor, "image dim"]
    labels: Int[Tensor, "image"]

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, index: Int[Tensor, "row"]) -> "Labelled":
        return Labelled(self.features[index], self.labels[index])

    def to(self, device: torch.device | str) -> "Labelled":
        return Labelled(self.features.to(device), self.labels.to(device))


def stratified_split(
    labels: Int[Tensor, "image"], share: float, seed: int
) -> tuple[Int[Tensor, "rest"], Int[Tensor, "held"]]:
    """Rows to fit on and rows to hold out: `share` of every class, both in rising order.

    A class of two or more gives at least one row to each side; a class of one stays with the rest, because a
    class nobody fitted cannot be recognised. A function of (labels, share, seed) alone.
    """
    shuffled = torch.from_numpy(order(seed, 0, len(labels)))
    codes = class_codes(labels.cpu())[1][shuffled]
    by_class = torch.argsort(codes, stable=True)
    counts = torch.bincount(codes)
    held_counts = (counts * share).round().long().clamp(min=1).minimum(counts - 1)
    first = counts.cumsum(0) - counts
    rank = torch.arange(len(codes)) - first[codes[by_class]]
    held = rank < held_counts[codes[by_class]]
    rows = shuffled[by_class]
    return rows[~held].sort().values.to(labels.device), rows[held].sort().values.to(labels.device)


def class_codes(labels: Int[Tensor, "image"]) -> tuple[Int[Tensor, "class"], Int[Tensor, "image"]]:
    """The labels that occur, rising, and each image's place among them."""
    return torch.unique(labels, return_inverse=True)  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def hit_rates(ranked: Int[Tensor, "image rank"], labels: Int[Tensor, "image"]) -> dict[str, float]:
    """Share of images whose label is the first, and is among the first five, of their ranked classes."""
    hits = ranked[:, :TOP] == labels[:, None]
    return {"top1": hits[:, 0].double().mean().item(), "top5": hits.any(1).double().mean().item()}
