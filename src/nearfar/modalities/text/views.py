"""Symbols with some of them hidden, and the hidden ones: the two views of a masked language model (Wu et al. 2020, sec. 5.1).

View 0 is the block as it is read, view 1 what was hidden: the true symbol at each chosen position and -1 everywhere
else. So the positions travel with the second view, those left unchanged in the first among them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from nearfar.core.randomness import uniforms
from nearfar.errors import UserError
from nearfar.modalities.sound.views import Series

Symbols = Int64[Tensor, "item time"]

NOTHING = -1  # padding in what is read, "not asked" in what was hidden
KEPT, REPLACED = (
    0.1,
    0.2,
)  # of the chosen: below the first left as they are, below the second some other symbol


@dataclass(frozen=True)
class Mask:
    """Hides `share` of a block's positions, at least one: of ten chosen, eight become the mask symbol, one any
    symbol, one stays as it is.

    `unit`, `length` and `most` say what a symbol of text is, how many make a block and how large the vocabulary may
    be. The mask symbol has the number after the last of the vocabulary.
    """

    share: float = 0.15
    unit: Literal["characters", "words"] = "characters"
    length: int = 128
    most: int = 8192
    count: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"views.share was {self.share:g}; it must lie strictly between 0 and 1")
        for key, least, largest in (("length", 2, 2**16), ("most", 2, 2**20)):
            if not least <= getattr(self, key) <= largest:
                raise UserError(f"views.{key} was {getattr(self, key)}; it must be from {least} to {largest}")

    def views(self, vocabulary: int) -> "Masked":
        return Masked(self.share, vocabulary)


@dataclass(frozen=True)
class Masked:
    """`Mask` for a vocabulary of so many symbols: a pure function of (seed, epoch, index) and the block."""

    share: float
    vocabulary: int

    def __call__(
        self, series: Series, seed: int, epoch: int, index: Int[np.ndarray, "item"]
    ) -> tuple[Symbols, Symbols]:
        symbols, length = series.data, series.length
        time = symbols.shape[1]
        draws = uniforms(seed, epoch, index, 0, 3 * time)
        when, how, what = np.split(draws, 3, axis=1)
        chosen = self._chosen(when, length)
        other = (what * self.vocabulary).astype(np.int64)
        put = np.where(how < KEPT, symbols, np.where(how < REPLACED, other, self.vocabulary))
        read = np.where(chosen, put, symbols)
        hidden = np.where(chosen, symbols, NOTHING)
        return torch.from_numpy(read.astype(np.int64)), torch.from_numpy(hidden.astype(np.int64))

    def _chosen(self, when: np.ndarray, length: np.ndarray) -> np.ndarray:
        """The positions with the lowest draws, as many of each block as `share` of its length asks for: a fixed
        number, so that every block counts in proportion to its length."""
        real = np.arange(when.shape[1]) < length[:, None]
        count = np.maximum(np.rint(self.share * length), 1).astype(np.int64)
        rank = np.argsort(np.argsort(np.where(real, when, 2.0), axis=1, kind="stable"), axis=1)
        return rank < count[:, None]


@dataclass(frozen=True)
class WholeText:
    """The evaluation's view: each block as it stands."""

    def as_views(self, shown: Symbols, count: int) -> tuple[Symbols, ...]:
        """Thumbnails as read and as hidden: nothing is masked and everything is asked, which is what a source is primed
        with."""
        return (shown,) * count

    def __call__(
        self,
        series: Series,
        seed: int = 0,
        epoch: int = 0,
        index: Int[np.ndarray, "item"] | None = None,
    ) -> tuple[Symbols]:
        return (torch.from_numpy(np.asarray(series.data, dtype=np.int64)),)
