"""What travels between the rooms.

    Pixels --views--> Batch --encoders--> embeddings --critic--> Scores --selection--> Scores --bound--> nats

A bound sees `Scores` and nothing else: the positive score(s) of each anchor, and its negatives through
reductions (`logsumexp`, `count`, `mean_of`, `hardest`). InfoNCE, for instance, is

    positive - logsumexp([positive, negative.logsumexp()]) + log(1 + negative.count())

and cannot tell whether the n x m matrix was ever built. `Dense` holds it, `Streamed` computes it tile by tile.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Int32, Int64, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Pixels:
    """Decoded images, padded with zeros at the bottom and right to the largest of them."""

    data: UInt8[np.ndarray, "image height width channel"]
    size: Int32[np.ndarray, "image 2"]  # true (height, width)


@dataclass(frozen=True)
class Batch:
    """Views of the same instances: row i of every view is instance `index[i]`."""

    views: tuple[Tensor, ...]  # each (image, channel, height, width)
    index: Int64[Tensor, "image"]

    def to(self, device: object) -> "Batch":
        return Batch(tuple(v.to(device, non_blocking=True) for v in self.views), self.index.to(device))  # type: ignore[call-overload]


@dataclass(frozen=True)
class Candidates:
    """Things an anchor may be contrasted with. `index` is the instance id; UNKNOWN never equals an anchor's."""

    embedding: Tensor  # (candidate, dim)
    index: Int[Tensor, "candidate"]


UNKNOWN = -1  # a candidate whose instance is not known: always somebody else
EMPTY = -2  # a slot that holds nothing yet: never kept
