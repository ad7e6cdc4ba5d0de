"""Text in reports, and how well hidden symbols are predicted: the measure of a masked language model needs no
labels.

    {"nats": mean of -log p(hidden symbol), "top1": …, "top5": …}

The baseline predicts by the symbols' frequencies in the training text. Which positions are hidden is a
function of the seed and the block, so two models predict the same ones.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from nearfar.core.buffers import frozen
from nearfar.core.method import Method
from nearfar.core.results import Figure, Measurement
from nearfar.core.schedules import START
from nearfar.core.statistics import Interval, wilson
from nearfar.core.types import Batch
from nearfar.modalities.base import AbstractPresenter, Features, MakeViews, Measure
from nearfar.modalities.dataset import Sequences
from nearfar.modalities.showing import page_of
from nearfar.modalities.text.data import TextDescription, Texts

TOP = 5  # symbols of a top-5 prediction
BLOCKS = 64  # blocks loaded at a time
HIDDEN = "_"  # how a hidden symbol is drawn


class TextPresenter(AbstractPresenter):
    baseline_titles: ClassVar[Mapping[str, str]] = {"frequencies": "frequencies of symbols"}

    def baselines(self, plain_view: MakeViews) -> dict[str, Features]:
        return {"frequencies": symbol_frequencies}

    def measures(self) -> dict[str, Measure]:
        return {"masked": Measure(masked_scores, {"frequencies": frequency_scores})}

    def pictures(self, loaded: Sequences, description: TextDescription) -> list[Image.Image]:
        return [
            page_of(_written(row[:length], description))
            for row, length in zip(loaded.data, loaded.length, strict=True)
        ]

    def view_pictures(self, views: Any, view: Tensor, description: TextDescription) -> list[Image.Image]:
        return [page_of(_written(row, description)) for row in view.detach().cpu().numpy()]


def _written(row: np.ndarray, description: TextDescription) -> str:
    """A block as text; hidden positions and those that are not targets are `HIDDEN`."""
    symbols = description.symbols
    units = [symbols[number] if 0 <= number < len(symbols) else HIDDEN for number in row]
    return ("" if all(len(unit) == 1 for unit in symbols) else " ").join(units)


class _Tally:
    """Sums over hidden symbols, block by block."""

    def __init__(self) -> None:
        self.nats = 0.0
        self.blocks: list[
            Float[Tensor, "block 3"]
        ] = []  # hits at rank 1 and 5, and the number of hidden symbols

    def add(
        self, log_p: Float[Tensor, "row symbol"], hidden: Int[Tensor, "row"], block: Int[Tensor, "row"]
    ) -> None:
        true_log_p = log_p.gather(1, hidden[:, None])
        # among symbols equally likely the lower number comes first
        number = torch.arange(log_p.shape[1], device=log_p.device)
        higher_ranked = (log_p > true_log_p) | ((log_p == true_log_p) & (number < hidden[:, None]))
        rank = higher_ranked.sum(dim=1)
        self.nats -= float(true_log_p.cpu().double().sum())  # not every device has float64
        hits = torch.stack([rank < 1, rank < TOP, rank >= 0], dim=1).cpu().double()
        sums = hits.new_zeros(int(block.max()) + 1, 3).index_add_(0, block.to(hits.device), hits)
        self.blocks.append(sums[sums[:, 2] > 0].cpu())

    def measurement(self) -> Measurement:
        first, five, totals = torch.cat(self.blocks).unbind(1)
        count = float(totals.sum())
        return Measurement(
            {
                "top1": Figure(float(first.sum()) / count, clustered(first, totals)),
                "top5": Figure(float(five.sum()) / count, clustered(five, totals)),
                "nats": Figure(self.nats / count),
            }
        )


def clustered(hits: Float[Tensor, "block"], totals: Float[Tensor, "block"]) -> Interval:
    """Wilson's interval for sum(hits) / sum(totals), where predictions in one block depend on one another.

    The effective sample size is p (1 - p) / v, v the variance of that ratio over blocks, at most sum(totals).
    Where all predictions are right or all wrong, v is unknown and each block counts as one sample.
    """
    share, blocks = float(hits.sum() / totals.sum()), len(totals)
    spread = float((hits - share * totals).square().sum()) * blocks / max(1, blocks - 1)
    if not spread or blocks < 2:
        return wilson(share, blocks)
    variance = spread / float(totals.sum()) ** 2
    return wilson(share, min(float(totals.sum()), share * (1 - share) / variance))


@torch.no_grad()
def masked_scores(
    method: Method, blocks: Texts, hiding: MakeViews, *, device: torch.device, seed: int = 0
) -> Measurement:
    """The trained encoders' predictions of hidden symbols, by a softmax over the vocabulary."""
    tally = _Tally()
    with frozen(method.to(device)):
        for visible, hidden in hidden_symbols(blocks, hiding, seed):
            batch = Batch((visible, hidden), torch.arange(len(visible))).to(device)
            encoded = method.encoders.encode(batch, (0,), (1,))
            assert encoded.vocabulary is not None  # only encoders with a vocabulary take masked text
            prepare = method.critic.prepare
            scores = method.critic.cross(prepare(encoded.anchors[0]), prepare(encoded.vocabulary), START)
            tally.add(scores.log_softmax(dim=1), encoded.index[1], (hidden >= 0).nonzero()[:, 0])
    return tally.measurement()


def frequency_scores(train: Texts, blocks: Texts, hiding: MakeViews, *, seed: int = 0) -> Measurement:
    """The same by the frequency of each symbol in the training text, plus one each."""
    counts = np.ones(len(train.symbols), dtype=np.int64)
    for rows in _rows(len(train)):
        data = train.load(rows).data
        counts += np.bincount(data[data >= 0], minlength=len(train.symbols))
    log_p = torch.from_numpy(np.log(counts / counts.sum()))
    tally = _Tally()
    for _, hidden in hidden_symbols(blocks, hiding, seed):
        targets = hidden[hidden >= 0]
        tally.add(log_p.expand(len(targets), -1), targets, (hidden >= 0).nonzero()[:, 0])
    return tally.measurement()


def symbol_frequencies(blocks: Texts) -> Float[Tensor, "item symbol"]:
    """The frequency of each symbol in each block."""
    parts, symbols = [], len(blocks.symbols)
    for rows in _rows(len(blocks)):
        loaded = blocks.load(rows)
        place = np.arange(len(rows))[:, None] * symbols + loaded.data
        counts = np.bincount(place[loaded.data >= 0], minlength=len(rows) * symbols)
        parts.append(counts.reshape(len(rows), symbols) / loaded.length[:, None])
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))


def _rows(count: int) -> list[np.ndarray]:
    return [np.arange(start, min(start + BLOCKS, count)) for start in range(0, count, BLOCKS)]


def hidden_symbols(blocks: Texts, hiding: MakeViews, seed: int) -> Any:
    """What is read of every block and what is hidden of it, some blocks at a time."""
    return (hiding(blocks.load(rows), seed, 0, rows) for rows in _rows(len(blocks)))
