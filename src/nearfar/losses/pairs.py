"""Losses of two sets of embeddings, row i of one belonging to row i of the other."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.kernels import EMPTY, SoftplusSum, SymmetricLogSumExp, TwoWayLogSumExp, inside_transform
from nearfar.core.schedules import START
from nearfar.core.scores import MAX_SCORES_CPU, UNKNOWN, Candidates, inner_product_negatives, tile_size
from nearfar.core.strategy import Rows as Layout
from nearfar.distributed.gather import gather_layout
from nearfar.errors import UserError
from nearfar.losses.scoring import (
    EmbeddingRows,
    check_gather,
    check_paired,
    negatives,
    positive_number,
    summed_logsumexp,
    unit,
)
from nearfar.parts.bounds.infonce import log_share
from nearfar.parts.negatives.queue import Queue

Scale = float | Tensor
NO_STORED_KEY = -3  # an instance id that is neither UNKNOWN nor EMPTY: no stored key is an anchor's own
SPREAD = 40.0  # scores are within this of 0: e^-80 is the smallest power, which float32 has


class NTXentLoss(nn.Module):
    """-log( e^f(u, v+) / (e^f(u, v+) + sum_k e^f(u, v_k)) ), f = cosine / temperature, averaged over both
    views of every instance; v_k are both views of all other instances (Chen et al. 2020, Eq. 1). It is log m
    less `nf.InfoNCE`, m = 2n - 1.

    With `memory_bank_size=4096`, or `(4096, 128)` where 128 is the width, anchors are the rows of out0 alone and
    v_k are the last 4096 rows of out1 from earlier calls (He et al. 2020, Eq. 1). `memory_bank` is a `nf.Queue`
    and part of the state_dict. A call stores out1 if out0 requires a gradient. The memory starts empty.

    As `lightly.loss.NTXentLoss`.
    """

    def __init__(
        self,
        temperature: float = 0.5,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
    ) -> None:
        super().__init__()
        self.temperature = positive_number("temperature", temperature)
        self.memory_bank = _memory(memory_bank_size)
        self.gather_distributed = check_gather(gather_distributed)

    def forward(self, out0: EmbeddingRows, out1: EmbeddingRows) -> Float[Tensor, ""]:
        with torch.autocast(out0.device.type, enabled=False):
            is_training = out0.requires_grad and torch.is_grad_enabled()
            z0, z1 = map(unit, check_paired(out0=out0, out1=out1))
            rows = gather_layout(len(z0), z0.device, self.gather_distributed)
            if self.memory_bank is not None:
                return self._with_memory(self.memory_bank, z0, z1, rows, is_training)
            if len(rows.sizes) == 1 and self._symmetric(z0):
                scaled = torch.cat([z0, z1]) * self.temperature**-0.5
                positive = (z0 * z1).sum(dim=1).repeat(2) / self.temperature
                return (SymmetricLogSumExp(1 / self.temperature)(scaled)[0] - positive).mean()
            positive, negative = _both_views(z0, z1, rows, self.temperature)
            return -rows.mean(log_share(positive, negative)) / 2

    def _symmetric(self, rows: Tensor) -> bool:
        """Whether many rows are contrasted on one CPU, at a temperature for which e^(2 / t) is finite."""
        many = (2 * len(rows)) ** 2 > MAX_SCORES_CPU
        return many and rows.device.type == "cpu" and 1 / self.temperature <= SPREAD

    def _with_memory(
        self, memory: Queue, z0: EmbeddingRows, z1: EmbeddingRows, rows: Layout, store: bool
    ) -> Tensor:
        ids = torch.full((len(z0),), NO_STORED_KEY, device=z0.device)
        stored = memory.candidates({0: z1}, ids, 0)
        # copies, since the places are overwritten before the backward pass reads them
        filled = stored.index != EMPTY
        stored = Candidates(stored.embedding[filled], stored.index[filled])
        anchors = z0 / self.temperature
        positive = (anchors * z1).sum(dim=1)
        if len(stored.index):
            negative = inner_product_negatives(anchors, ids, stored, all_tiled=True)
            loss = -rows.mean(log_share(positive, negative.logsumexp()))
        else:
            loss = 0.0 * positive.sum()  # log 1, with finite derivatives of any order
        if store and not inside_transform():
            keys = rows.all_gather(z1.detach())[-memory.size :]
            memory.advance({0: keys}, torch.full((len(keys),), UNKNOWN, device=z0.device), START)
        return loss


def _memory(size: int | Sequence[int]) -> Queue | None:
    numbers = (size,) if isinstance(size, int) else tuple(size)
    if len(numbers) not in (1, 2) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise UserError(
            f"memory_bank_size was {size!r}; expected a number of keys, (keys, width), or 0 for no memory"
        )
    return Queue(numbers[0], dim=numbers[1] if len(numbers) == 2 else None) if numbers[0] else None


def _both_views(
    z0: EmbeddingRows, z1: EmbeddingRows, rows: Layout, temperature: float
) -> tuple[Float[Tensor, "anchor"], Float[Tensor, "anchor"]]:
    """For each row of z0, then z1: its positive's score, and the log-sum-exp over other instances."""
    keys = torch.cat([rows.all_gather(z0), rows.all_gather(z1)])
    anchors = torch.cat([z0, z1]) / temperature
    key_ids = torch.arange(rows.total, device=z0.device).repeat(2)
    negative = negatives(anchors, keys, rows.numbers(z0.device).repeat(2), key_ids)
    return (anchors * torch.cat([z1, z0])).sum(dim=1), negative.logsumexp()


WeightFunction = Callable[[EmbeddingRows, EmbeddingRows], Float[Tensor, "n"]]


class DCLLoss(nn.Module):
    """log sum_k e^f(u, v_k) - w f(u, v+), f = cosine / temperature, averaged over both views of every
    instance: the positive is not in the sum (Yeh et al. 2022, Eq. 6). v_k are both views of all other
    instances. w is 1, or `weight_fn(anchors, positives)` of the unit vectors of the whole batch.

    As `lightly.loss.DCLLoss`. With `gather_distributed`, weights are those of the rows of all ranks.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        weight_fn: WeightFunction | None = None,
        gather_distributed: bool = False,
    ) -> None:
        super().__init__()
        self.temperature, self.weight_fn = positive_number("temperature", temperature), weight_fn
        self.gather_distributed = check_gather(gather_distributed)

    def forward(self, out0: EmbeddingRows, out1: EmbeddingRows) -> Float[Tensor, ""]:
        with torch.autocast(out0.device.type, enabled=False):
            z0, z1 = map(unit, check_paired(out0=out0, out1=out1))
            rows = gather_layout(len(z0), z0.device, self.gather_distributed)
            if rows.total < 2:
                raise UserError("out0 has 1 row; DCLLoss needs a second instance as the negative")
            positive, negative = _both_views(z0, z1, rows, self.temperature)
            if self.weight_fn is not None:
                views = rows.all_gather(z0), rows.all_gather(z1)
                weights = [self.weight_fn(*pair)[rows.part] for pair in (views, views[::-1])]
                positive = torch.cat(weights) * positive
            return rows.mean(negative - positive) / 2


def negative_mises_fisher_weights(
    out0: EmbeddingRows, out1: EmbeddingRows, sigma: float = 0.5
) -> Float[Tensor, "n"]:
    """2 - n softmax(u . v+ / sigma) over n rows: agreeing pairs count less (Yeh et al. 2022, sec. 3.2)."""
    similarity = (out0.detach() * out1.detach()).sum(dim=1) / sigma
    return 2 - len(out0) * similarity.softmax(dim=0)


class DCLWLoss(DCLLoss):
    """`DCLLoss` with `negative_mises_fisher_weights`. As `lightly.loss.DCLWLoss`."""

    def __init__(
        self, temperature: float = 0.1, sigma: float = 0.5, gather_distributed: bool = False
    ) -> None:
        weights = partial(negative_mises_fisher_weights, sigma=positive_number("sigma", sigma))
        super().__init__(temperature, weights, gather_distributed)


class FeaturesLoss(nn.Module):
    """What losses with open_clip's signature have in common: `loss` makes a number of checked features.

    `world_size` above 1 is `gather_distributed`, checked against the process group.
    """

    def __init__(self, gather_distributed: bool, rank: int, world_size: int) -> None:
        super().__init__()
        self.rank, self.world_size = rank, world_size
        self.gather_distributed = check_gather(gather_distributed or world_size > 1)

    def forward(
        self,
        image_features: EmbeddingRows,
        text_features: EmbeddingRows,
        logit_scale: Scale,
        logit_bias: Scale | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        with torch.autocast(image_features.device.type, enabled=False):
            images, texts = check_paired(image_features=image_features, text_features=text_features)
            rows = gather_layout(len(images), images.device, self.gather_distributed)
            if self.world_size > 1 and (self.rank, self.world_size) != (rows.rank, len(rows.sizes)):
                raise UserError(
                    f"rank and world_size were {self.rank} and {self.world_size}; in the process group they "
                    f"are {rows.rank} and {len(rows.sizes)}"
                )
            loss = self.loss(images, texts, logit_scale, logit_bias, rows)
        return {"contrastive_loss": loss} if output_dict else loss

    @abstractmethod
    def loss(
        self, images: EmbeddingRows, texts: EmbeddingRows, scale: Scale, bias: Scale | None, layout: Layout
    ) -> Tensor: ...


class ClipLoss(FeaturesLoss):
    """Cross-entropy of the right text among all texts and of the right image among all images, averaged
    (Radford et al. 2021). Features are scored as they are: normalise them before, as CLIP does.

    As `open_clip.loss.ClipLoss`. `local_loss`, `gather_with_grad` and `cache_labels` change nothing: every
    rank computes the loss of its own rows, always with the whole gradient, and stores no labels.
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        gather_distributed: bool = False,
    ) -> None:
        super().__init__(gather_distributed, rank, world_size)
        if use_horovod:
            raise UserError("use_horovod was True; ranks communicate by torch.distributed, expected False")

    def loss(
        self, images: EmbeddingRows, texts: EmbeddingRows, scale: Scale, bias: Scale | None, layout: Layout
    ) -> Tensor:
        scaled = scale * images
        positive = (scaled * texts).sum(dim=1)
        if len(layout.sizes) == 1:  # the scores of one direction are those of the other
            image_to_text, text_to_image = TwoWayLogSumExp(tile_size(scaled, texts))(scaled, texts)
            loss = layout.mean((image_to_text + text_to_image) / 2 - positive)
        else:
            image_to_text = summed_logsumexp(scaled, layout.all_gather(texts))
            text_to_image = summed_logsumexp(scale * texts, layout.all_gather(images))
            loss = layout.mean_weight * (image_to_text + text_to_image) / 2 - layout.mean(positive)
        # the same number added to every score leaves a softmax as it is; a learnt one still gets its
        # gradient, zero, without which DDP would wait for it
        return loss if bias is None else loss + 0.0 * bias


EXCHANGES = ("bidir", "shift", "reduce", "gather")


class SigLipLoss(FeaturesLoss):
    """-(1/n) sum_ij log s(y_ij (logit_scale u_i . v_j + logit_bias)), y_ij = 1 for i = j and -1 otherwise, s
    the logistic function (Zhai et al. 2023, Eq. 1). Features are scored as they are: normalise them before.

    As `open_clip.loss.SigLipLoss`. `cache_labels` and `dist_impl` change nothing: texts are gathered once.
    """

    def __init__(
        self,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        dist_impl: str | None = None,
        *,
        gather_distributed: bool = False,
    ) -> None:
        super().__init__(gather_distributed, rank, world_size)
        if dist_impl is not None and dist_impl not in EXCHANGES:
            raise UserError(f"dist_impl was {dist_impl!r}; expected {', '.join(EXCHANGES)} or None")

    def loss(
        self, images: EmbeddingRows, texts: EmbeddingRows, scale: Scale, bias: Scale | None, layout: Layout
    ) -> Tensor:
        anchors = scale * images
        offset = torch.as_tensor(0.0 if bias is None else bias, device=images.device).to(images.dtype)
        gathered = layout.all_gather(texts)
        # -log s(-x) = log(1 + e^x), and less x it is -log s(x): a positive is a negative less its score
        negative_losses = SoftplusSum(tile_size(anchors, gathered))(anchors, gathered, offset)[0]
        positive = (anchors * texts).sum(dim=1) + offset
        return layout.mean(negative_losses - positive)
