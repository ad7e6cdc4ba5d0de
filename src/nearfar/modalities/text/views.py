"""Symbols with some hidden, and the hidden ones: views of masked language models (Wu et al. 2020, sec. 5.1).

View 0 is the block as it is read, view 1 what was hidden: the true symbol at each chosen position and -1
everywhere else. So the positions travel with the second view, those left unchanged in the first among them.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from nearfar.core.abstract import AbstractViews, AbstractViewSettings
from nearfar.core.randomness import uniforms
from nearfar.errors import check_number, check_whole
from nearfar.modalities.base import PlainView
from nearfar.modalities.dataset import Sequences
from nearfar.modalities.text.data import TextDescription

Symbols = Int64[Tensor, "item time"]

NOTHING = -1  # padding in view 0, a position that was not hidden in view 1
# draws below the first leave a chosen symbol as it is, below the second replace it
UNCHANGED, REPLACED = 0.1, 0.2


@dataclass(frozen=True)
class Mask(AbstractViewSettings):
    """Hides `share` of a block's positions; of ten, eight become the mask symbol, one any symbol, one stays.

    `unit`, `length` and `most` say what a symbol of text is, how many make a block and how large the
    vocabulary may be. The mask symbol has the number after the last of the vocabulary.
    """

    share: float = 0.15
    unit: Literal["characters", "words"] = "characters"
    length: int = 128
    most: int = 8192
    count: int = field(default=2, init=False)
    symmetric: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_number("views.share", self.share, 0, 1, exclude_low=True, exclude_high=True)
        check_whole("views.length", self.length, 2, 2**16)
        check_whole("views.most", self.most, 2, 2**20)

    def training(self, description: TextDescription, device: torch.device) -> "Masked":
        return Masked(self.share, len(description.symbols))

    def plain_view(self, description: TextDescription, device: torch.device) -> "WholeText":
        return WholeText()


@dataclass(frozen=True)
class Masked(AbstractViews):
    """`Mask` for a vocabulary of this size: a pure function of (seed, epoch, index) and the block."""

    share: float
    vocabulary: int

    def __call__(
        self, sequences: Sequences, seed: int, epoch: int, index: Int[np.ndarray, "item"]
    ) -> tuple[Symbols, Symbols]:
        symbols, length = sequences.data, sequences.length
        time = symbols.shape[1]
        draws = uniforms(seed, epoch, index, 0, 3 * time)
        position_draws, change_draws, symbol_draws = np.split(draws, 3, axis=1)
        hidden_places = self._choose(position_draws, length)
        random_symbols = (symbol_draws * self.vocabulary).astype(np.int64)
        masked = np.where(
            change_draws < UNCHANGED,
            symbols,
            np.where(change_draws < REPLACED, random_symbols, self.vocabulary),
        )
        visible = np.where(hidden_places, masked, symbols)
        hidden = np.where(hidden_places, symbols, NOTHING)
        return torch.from_numpy(visible.astype(np.int64)), torch.from_numpy(hidden.astype(np.int64))

    def _choose(self, draws: np.ndarray, length: np.ndarray) -> np.ndarray:
        """The positions with the lowest draws, `share` of the length of each block: a fixed
        number, so that every block counts in proportion to its length."""
        present = np.arange(draws.shape[1]) < length[:, None]
        count = np.maximum(np.rint(self.share * length), 1).astype(np.int64)
        rank = np.argsort(np.argsort(np.where(present, draws, 2.0), axis=1, kind="stable"), axis=1)
        return rank < count[:, None]


@dataclass(frozen=True)
class WholeText(PlainView):
    """The view of evaluation: each block without masks."""

    def __call__(
        self,
        sequences: Sequences,
        seed: int = 0,
        epoch: int = 0,
        index: Int[np.ndarray, "item"] | None = None,
    ) -> tuple[Symbols]:
        return (torch.from_numpy(np.asarray(sequences.data, dtype=np.int64)),)
