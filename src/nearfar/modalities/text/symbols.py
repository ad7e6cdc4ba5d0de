"""How well hidden symbols are told: a masked language model needs no labels to be judged.

    {"nats": mean of -log p(hidden symbol), "top1": …, "top5": …}

beside what the symbols' frequencies in the training text alone can say. Which positions are hidden is a function of the
seed and the block, so two models are asked the same.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.core.buffers import frozen
from nearfar.core.intervals import wilson
from nearfar.core.method import Method
from nearfar.core.schedules import START
from nearfar.core.types import Batch
from nearfar.modalities.sequences import Series

TOP = 5  # how many symbols a top-5 answer may name

_BLOCKS = 64  # read at once


class Blocks(Protocol):
    """What is asked of an opened text (`nearfar.modalities.Texts` is one)."""

    @property
    def symbols(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def load(self, index: np.ndarray, /) -> Series: ...


class Hiding(Protocol):
    """What hides symbols (`nearfar.modalities.text.views.Masked` is one)."""

    def __call__(self, loaded: Any, seed: int, epoch: int, index: np.ndarray, /) -> tuple[Tensor, Tensor]: ...


class _Tally:
    """Sums over hidden symbols, block by block."""

    def __init__(self) -> None:
        self.nats = 0.0
        self.blocks: list[Float[Tensor, "block 3"]] = []  # hits at rank 1 and 5, and how many were asked

    def add(
        self, log_p: Float[Tensor, "row symbol"], hidden: Int[Tensor, "row"], block: Int[Tensor, "row"]
    ) -> None:
        own = log_p.gather(1, hidden[:, None])
        # among symbols equally likely the lower number comes first
        number = torch.arange(log_p.shape[1], device=log_p.device)
        ahead = (log_p > own) | ((log_p == own) & (number < hidden[:, None]))
        rank = ahead.sum(dim=1)
        self.nats -= float(own.double().sum())
        hits = torch.stack([rank < 1, rank < TOP, rank >= 0], dim=1).double()
        sums = hits.new_zeros(int(block.max()) + 1, 3).index_add_(0, block.to(hits.device), hits)
        self.blocks.append(sums[sums[:, 2] > 0].cpu())

    def figures(self) -> dict[str, Any]:
        first, five, asked = torch.cat(self.blocks).unbind(1)
        count = float(asked.sum())
        return {
            "top1": float(first.sum()) / count,
            "top5": float(five.sum()) / count,
            "nats": self.nats / count,
            "interval": clustered(first, asked),
            "interval_top5": clustered(five, asked),
        }


def clustered(hits: Float[Tensor, "block"], asked: Float[Tensor, "block"]) -> list[float]:
    """Wilson's interval for sum(hits) / sum(asked), where answers of one block depend on one another.

    The samples that count are p (1 - p) / v, v the variance of that ratio over blocks, but no more than were asked;
    where all answers are alike nothing tells v, and each block counts as one.
    """
    share, blocks = float(hits.sum() / asked.sum()), len(asked)
    spread = float((hits - share * asked).square().sum()) * blocks / max(1, blocks - 1)
    if not spread or blocks < 2:
        return wilson(share, blocks)
    variance = spread / float(asked.sum()) ** 2
    return wilson(share, min(float(asked.sum()), share * (1 - share) / variance))


@torch.no_grad()
def masked_scores(
    method: Method, blocks: Blocks, hiding: Hiding, *, device: torch.device, seed: int = 0
) -> dict[str, Any]:
    """What the trained encoders say of the hidden symbols, by a softmax over the whole vocabulary."""
    tally = _Tally()
    with frozen(method.to(device)):
        for read, hidden in _hidden(blocks, hiding, seed):
            batch = Batch((read, hidden), torch.arange(len(read))).to(device)
            encoded = method.encoders.encode(batch, (0,), (1,))
            assert encoded.vocabulary is not None  # only encoders with a vocabulary take masked text
            prepare = method.critic.prepare
            scores = method.critic.cross(prepare(encoded.anchors[0]), prepare(encoded.vocabulary), START)
            tally.add(scores.log_softmax(dim=1), encoded.index[1], (hidden >= 0).nonzero()[:, 0])
    return tally.figures()


def frequency_scores(train: Blocks, blocks: Blocks, hiding: Hiding, *, seed: int = 0) -> dict[str, Any]:
    """The same by the frequency of each symbol in the training text, none of them zero (one is added to each)."""
    counts = np.ones(len(train.symbols), dtype=np.int64)
    for rows in _rows(len(train)):
        data = train.load(rows).data
        counts += np.bincount(data[data >= 0], minlength=len(train.symbols))
    log_p = torch.from_numpy(np.log(counts / counts.sum()))
    tally = _Tally()
    for _, hidden in _hidden(blocks, hiding, seed):
        asked = hidden[hidden >= 0]
        tally.add(log_p.expand(len(asked), -1), asked, (hidden >= 0).nonzero()[:, 0])
    return tally.figures()


def symbol_frequencies(blocks: Blocks) -> Float[Tensor, "item symbol"]:
    """How often each symbol occurs in each block: what can be said of a text without its order."""
    parts, symbols = [], len(blocks.symbols)
    for rows in _rows(len(blocks)):
        loaded = blocks.load(rows)
        place = np.arange(len(rows))[:, None] * symbols + loaded.data
        counts = np.bincount(place[loaded.data >= 0], minlength=len(rows) * symbols)
        parts.append(counts.reshape(len(rows), symbols) / loaded.length[:, None])
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))


def _rows(count: int) -> list[np.ndarray]:
    return [np.arange(start, min(start + _BLOCKS, count)) for start in range(0, count, _BLOCKS)]


def _hidden(blocks: Blocks, hiding: Hiding, seed: int) -> Any:
    return (hiding(blocks.load(rows), seed, 0, rows) for rows in _rows(len(blocks)))
