"""Losses of two sets of embeddings, row i of one belonging to row i of the other."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.kernels import SoftplusSum, SymmetricLogSumExp, TwoWayLogSumExp
from nearfar.core.scores import MAX_SCORES_CPU, UNKNOWN, tile_size
from nearfar.core.strategy import Rows as Layout
from nearfar.distributed.gather import gather_layout
from nearfar.errors import UserError
from nearfar.losses.scoring import check_paired, negatives, positive_number, summed_logsumexp, unit
from nearfar.parts.bounds.infonce import log_share

Rows = Float[Tensor, "n dim"]
Scale = float | Tensor
SPREAD = 40.0  # scores are within this of 0: e^-80 is the smallest power, which float32 has


class NTXentLoss(nn.Module):
    """-log( e^f(u, v+) / (e^f(u, v+) + sum_k e^f(u, v_k)) ), f = cosine / temperature, averaged over both
    views of every instance; v_k are both views of all other instances (Chen et al. 2020, Eq. 1).

    As `lightly.loss.NTXentLoss` without its memory bank, which is `nf.Queue` in a `nf.Method`. It is log m
    less `nf.InfoNCE`, m = 2n - 1.
    """

    def __init__(
        self, temperature: float = 0.5, memory_bank_size: int = 0, gather_distributed: bool = False
    ) -> None:
        super().__init__()
        if memory_bank_size:
            raise UserError(
                f"memory_bank_size was {memory_bank_size}; a loss here has no memory and expects 0: contrast "
                "with a queue by nf.Method(nf.Momentum(network), nf.Cosine(temperature), nf.Queue(size), "
                "nf.Everyone(), nf.InfoNCE())"
            )
        self.temperature = positive_number("temperature", temperature)
        self.gather_distributed = gather_distributed

    def forward(self, z0: Rows, z1: Rows) -> Float[Tensor, ""]:
        with torch.autocast(z0.device.type, enabled=False):
            z0, z1 = map(unit, check_paired(z0=z0, z1=z1))
            rows = gather_layout(len(z0), z0.device, self.gather_distributed)
            if len(rows.sizes) == 1 and self._symmetric(z0):
                scaled = torch.cat([z0, z1]) * self.temperature**-0.5
                positive = (z0 * z1).sum(dim=1).repeat(2) / self.temperature
                return (SymmetricLogSumExp(1 / self.temperature)(scaled)[0] - positive).mean()
            keys = torch.cat([rows.all_gather(z0), rows.all_gather(z1)])
            anchors = torch.cat([z0, z1]) / self.temperature
            anchor_ids = rows.numbers(z0.device).repeat(2)
            negative = negatives(
                anchors, keys, anchor_ids, torch.arange(rows.total, device=z0.device).repeat(2)
            )
            positive = (anchors * torch.cat([z1, z0])).sum(dim=1)
            return -rows.mean(log_share(positive, negative.logsumexp())) / 2

    def _symmetric(self, rows: Tensor) -> bool:
        """Whether many rows of one process are contrasted on a CPU, at a temperature for which e^(2 /
        temperature) is a number."""
        many = (2 * len(rows)) ** 2 > MAX_SCORES_CPU
        return many and rows.device.type == "cpu" and 1 / self.temperature <= SPREAD


class FeaturesLoss(nn.Module):
    """What losses with open_clip's signature have in common: `loss` makes a number of checked features."""

    def __init__(self, gather_distributed: bool = False) -> None:
        super().__init__()
        self.gather_distributed = gather_distributed

    def forward(
        self,
        image_features: Rows,
        text_features: Rows,
        logit_scale: Scale,
        logit_bias: Scale | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        with torch.autocast(image_features.device.type, enabled=False):
            images, texts = check_paired(image_features=image_features, text_features=text_features)
            rows = gather_layout(len(images), images.device, self.gather_distributed)
            loss = self.loss(images, texts, logit_scale, logit_bias, rows)
        return {"contrastive_loss": loss} if output_dict else loss

    @abstractmethod
    def loss(self, images: Rows, texts: Rows, scale: Scale, bias: Scale | None, layout: Layout) -> Tensor: ...


class ClipLoss(FeaturesLoss):
    """Cross-entropy of the right text among all texts and of the right image among all images, averaged
    (Radford et al. 2021). Features are scored as they are: normalise them before, as CLIP does.

    As `open_clip.loss.ClipLoss`; its `rank`, `world_size`, `local_loss` and `gather_with_grad` are
    `gather_distributed`.
    """

    def loss(self, images: Rows, texts: Rows, scale: Scale, bias: Scale | None, layout: Layout) -> Tensor:
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


class SigLipLoss(FeaturesLoss):
    """-(1/n) sum_ij log s(y_ij (logit_scale u_i . v_j + logit_bias)), y_ij = 1 for i = j and -1 otherwise, s
    the logistic function (Zhai et al. 2023, Eq. 1). Features are scored as they are: normalise them before.

    As `open_clip.loss.SigLipLoss`; its `rank`, `world_size` and `dist_impl` are `gather_distributed`.
    """

    def loss(self, images: Rows, texts: Rows, scale: Scale, bias: Scale | None, layout: Layout) -> Tensor:
        anchors = scale * images
        offset = torch.as_tensor(0.0 if bias is None else bias, device=images.device).to(images.dtype)
        gathered = layout.all_gather(texts)
        # -log s(-x) = log(1 + e^x), and less x it is -log s(x): a positive is a negative less its score
        negative_losses = SoftplusSum(tile_size(anchors, gathered))(anchors, gathered, offset)[0]
        positive = (anchors * texts).sum(dim=1) + offset
        return layout.mean(negative_losses - positive)


DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


class MultipleNegativesRankingLoss(nn.Module):
    """log( sum_j e^f(q_i, d_j) ) - f(q_i, d_i), f = scale * cosine, averaged over queries (Henderson et al.
    2017): every query's own document against all documents of the batch, the hard negatives of every query
    included.

        loss(queries, documents)                        pairs
        loss(queries, documents, negatives)             triplets; more hard negatives as further columns

    As `sentence_transformers.losses.MultipleNegativesRankingLoss`, on embeddings instead of a model.
    `directions` adds terms to the sum: `doc_to_query` with `partition_mode="per_direction"` is the symmetric
    loss, all four in one sum are GTE's (Li et al. 2023). `normalize=False` scores by inner product (then a
    scale of 1 is usual).
    """

    def __init__(
        self,
        scale: float = 20.0,
        *,
        normalize: bool = True,
        directions: Sequence[str] = ("query_to_doc",),
        partition_mode: str = "joint",
        gather_distributed: bool = False,
    ) -> None:
        super().__init__()
        self.scale, self.normalize = positive_number("scale", scale), normalize
        self.directions, self.partition_mode = tuple(directions), partition_mode
        self.gather_distributed = gather_distributed
        unknown = [direction for direction in self.directions if direction not in DIRECTIONS]
        if unknown or "query_to_doc" not in self.directions:
            raise UserError(
                f"directions were {', '.join(self.directions) or 'none'}; expected query_to_doc and any of "
                f"{', '.join(DIRECTIONS[1:])}"
            )
        if partition_mode not in ("joint", "per_direction"):
            raise UserError(f"partition_mode was {partition_mode!r}; expected joint or per_direction")
        without_positive = {"query_to_query", "doc_to_doc"} & set(self.directions)
        if partition_mode == "per_direction" and without_positive:
            raise UserError(
                f"partition_mode was 'per_direction' with {min(without_positive)}, a sum that holds no "
                "positive; use joint"
            )

    def forward(self, queries: Rows, documents: Rows, *hard_negatives: Tensor) -> Float[Tensor, ""]:
        with torch.autocast(queries.device.type, enabled=False):
            hard_columns = {f"hard_negatives[{i}]": column for i, column in enumerate(hard_negatives)}
            queries, *columns = check_paired(queries=queries, documents=documents, **hard_columns)
            if self.normalize:
                queries, *columns = map(unit, (queries, *columns))
            rows = gather_layout(len(queries), queries.device, self.gather_distributed)
            positive = self.scale * (queries * columns[0]).sum(dim=1)
            if self.partition_mode == "per_direction" or len(self.directions) == 1:
                sums = [summed_logsumexp(*self._sides(d, queries, columns, rows)) for d in self.directions]
                return rows.mean_weight * torch.stack(sums).mean() - rows.mean(positive)
            log_sums = torch.stack([self._log_sum(d, queries, columns, rows) for d in self.directions])
            return rows.mean(log_sums.logsumexp(dim=0) - positive)

    def _sides(
        self, direction: str, queries: Tensor, columns: Sequence[Tensor], rows: Layout
    ) -> tuple[Rows, Float[Tensor, "key dim"]]:
        """Own queries or documents, scaled, and everybody's documents or queries."""
        source, target = direction.split("_to_")
        anchors = queries if source == "query" else columns[0]
        sets = [queries] if target == "query" else columns
        return self.scale * anchors, torch.cat([rows.all_gather(column) for column in sets])

    def _log_sum(
        self, direction: str, queries: Tensor, columns: Sequence[Tensor], rows: Layout
    ) -> Float[Tensor, "n"]:
        """log of the sum of e^f between them."""
        anchors, keys = self._sides(direction, queries, columns, rows)
        source, target = direction.split("_to_")
        key_ids = torch.arange(rows.total, device=queries.device).repeat(len(keys) // rows.total)
        if source != target:  # the positive is part of the sum
            key_ids = torch.full_like(key_ids, UNKNOWN)
        return negatives(anchors, keys, rows.numbers(queries.device), key_ids).logsumexp()
