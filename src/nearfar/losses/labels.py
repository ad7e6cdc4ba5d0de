"""Losses of embeddings and labels: rows with one label are each other's positives, all others negatives.

    loss(embeddings, labels)                                            a batch with itself, no row with itself
    loss(embeddings, labels, ref_emb=others, ref_labels=their_labels)   anchors of one set, keys of another

An anchor may have many positives, none, or no negative; each loss documents what it does then.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nearfar.distributed.gather import gather_layout
from nearfar.errors import UserError
from nearfar.losses.scoring import (
    by_tiles,
    check_embeddings,
    described,
    negatives,
    positive_number,
    summed_logsumexp,
    unit,
)

NO_KEY = -1  # the number of an anchor that is not among the keys


@dataclass(frozen=True)
class LabelledBatch:
    """Anchors and keys with their labels, counted from 0, and which key each anchor is itself."""

    anchors: Float[Tensor, "anchor dim"]
    labels: Int[Tensor, "anchor"]
    itself: Int[Tensor, "anchor"]
    keys: Float[Tensor, "key dim"]
    key_labels: Int[Tensor, "key"]
    classes: int

    def partners(self) -> Float[Tensor, "anchor"]:
        """How many positives each anchor has."""
        same = torch.bincount(self.key_labels, minlength=self.classes)[self.labels]
        return (same - (self.itself != NO_KEY).long()).to(self.anchors.dtype)

    def mean_partner(self) -> Float[Tensor, "anchor dim"]:
        """The mean of each anchor's positives, zero without any. Its inner product with the anchor is the
        mean of theirs, so that no pair need be scored to have it."""
        total = self.keys.new_zeros(self.classes, self.keys.shape[1]).index_add(0, self.key_labels, self.keys)
        anchor_keys = torch.where((self.itself != NO_KEY)[:, None], self.keys[self.itself], 0.0)
        return (total[self.labels] - anchor_keys) / self.partners().clamp_min(1.0)[:, None]

    def with_partners(self) -> "LabelledBatch":
        """The same without the anchors that have no positive."""
        some = self.partners() > 0
        return replace(self, anchors=self.anchors[some], labels=self.labels[some], itself=self.itself[some])

    def positives(self, labels: Tensor, itself: Tensor) -> Bool[Tensor, "anchor key"]:
        """Which keys are positives of these anchors."""
        place = torch.arange(len(self.key_labels), device=labels.device)
        return (self.key_labels == labels[:, None]) & (place != itself[:, None])


class LabelLoss(nn.Module):
    """What they have in common: `forward` makes a `Labelled`, `loss` a number of it.

    Over ranks every one computes the loss of the whole batch; its gradient then needs no correction.
    """

    normalize = True

    def __init__(self, gather_distributed: bool = False) -> None:
        super().__init__()
        self.gather_distributed = gather_distributed

    def forward(
        self,
        embeddings: Float[Tensor, "n dim"],
        labels: Int[Tensor, "n"],
        *,
        ref_emb: Float[Tensor, "m dim"] | None = None,
        ref_labels: Int[Tensor, "m"] | None = None,
    ) -> Float[Tensor, ""]:
        with torch.autocast(embeddings.device.type, enabled=False):
            value = self.loss(self._labelled_batch(embeddings, labels, ref_emb, ref_labels))
            # a batch without a single term has the loss 0, with a gradient
            return value if value.requires_grad else value + 0.0 * embeddings.sum()

    @abstractmethod
    def loss(self, batch: LabelledBatch) -> Float[Tensor, ""]: ...

    def _labelled_batch(
        self, rows: Tensor, labels: Tensor, ref_emb: Tensor | None, ref_labels: Tensor | None
    ) -> LabelledBatch:
        if (ref_emb is None) != (ref_labels is None):
            raise UserError("ref_emb and ref_labels belong together; give both or neither")
        tensors = {"embeddings": rows} | ({} if ref_emb is None else {"ref_emb": ref_emb})
        ready = [unit(tensor) if self.normalize else tensor for tensor in check_embeddings(**tensors)]
        counts = [_check_labels("labels", labels, rows)]
        if ref_emb is not None and ref_labels is not None:
            counts.append(_check_labels("ref_labels", ref_labels, ref_emb))
        layouts = [gather_layout(len(tensor), tensor.device, self.gather_distributed) for tensor in ready]
        ready = [layout.all_gather(tensor) for layout, tensor in zip(layouts, ready, strict=True)]
        counts = [layout.all_gather(tensor) for layout, tensor in zip(layouts, counts, strict=True)]
        classes, numbered = torch.cat(counts).unique(return_inverse=True)
        codes = numbered.split([len(tensor) for tensor in counts])
        place = torch.arange(len(ready[0]), device=rows.device)
        itself = place if len(ready) == 1 else torch.full_like(place, NO_KEY)
        return LabelledBatch(ready[0], codes[0], itself, ready[-1], codes[-1], len(classes))


def _check_labels(name: str, labels: Tensor, rows: Tensor) -> Int[Tensor, "n"]:
    is_integer = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.is_complex())
    if not is_integer or labels.shape != rows.shape[:1]:
        raise UserError(
            f"{name} was {described(labels)}; expected {len(rows)} whole numbers, one for each embedding"
        )
    return labels.to(device=rows.device, dtype=torch.int64)


class SupConLoss(LabelLoss):
    """Supervised contrast: every positive p of an anchor against all others a, f = cosine / temperature.

        form="out"   log sum_a e^f(u, a) - (1/|P|) sum_p f(u, p)              (Khosla et al. 2020, Eq. 2)
        form="in"    log sum_a e^f(u, a) - log( (1/|P|) sum_p e^f(u, p) )     (Khosla et al. 2020, Eq. 3)

    averaged over anchors that have a positive. As `pytorch_metric_learning.losses.SupConLoss`, and as its
    authors' `loss(features, labels)` with features of shape (n, views, dim), where without labels every
    instance is a class of its own. Of a batch in which all labels are alike the two make different things,
    pytorch-metric-learning 0: this is the authors'.
    """

    def __init__(
        self, temperature: float = 0.1, *, form: str = "out", gather_distributed: bool = False
    ) -> None:
        super().__init__(gather_distributed)
        self.temperature, self.form = positive_number("temperature", temperature), form
        if form not in ("out", "in"):
            raise UserError(f"form was {form!r}; expected out or in")

    def forward(
        self,
        embeddings: Float[Tensor, "n dim"] | Float[Tensor, "n view dim"],
        labels: Int[Tensor, "n"] | None = None,
        *,
        ref_emb: Float[Tensor, "m dim"] | None = None,
        ref_labels: Int[Tensor, "m"] | None = None,
    ) -> Float[Tensor, ""]:
        if labels is None:
            if embeddings.ndim != 3:
                raise UserError("labels were left out; that needs embeddings of shape (n, views, dim)")
            labels = gather_layout(len(embeddings), embeddings.device, self.gather_distributed).numbers(
                embeddings.device
            )
        if embeddings.ndim == 3:
            labels = _check_labels("labels", labels, embeddings).repeat_interleave(embeddings.shape[1])
            embeddings = embeddings.flatten(0, 1)
        return super().forward(embeddings, labels, ref_emb=ref_emb, ref_labels=ref_labels)

    def loss(self, batch: LabelledBatch) -> Float[Tensor, ""]:
        batch = batch.with_partners()
        if len(batch.anchors) == 0:
            return batch.keys.new_zeros(())
        anchors = batch.anchors / self.temperature
        place = torch.arange(len(batch.keys), device=anchors.device)
        log_total = negatives(anchors, batch.keys, batch.itself, place).logsumexp()
        if self.form == "out":
            return (log_total - (anchors * batch.mean_partner()).sum(dim=1)).mean()

        def log_sum(keys: Tensor, block: Tensor, labels: Tensor, itself: Tensor) -> Tensor:
            return (block @ keys.T).masked_fill(~batch.positives(labels, itself), -torch.inf).logsumexp(dim=1)

        partners = by_tiles(log_sum, batch.keys, anchors, batch.labels, batch.itself)
        return (log_total + batch.partners().log() - partners).mean()


class LabelledNTXentLoss(LabelLoss):
    """-log( e^f(u, p) / (e^f(u, p) + sum_k e^f(u, v_k)) ), f = cosine / temperature, averaged over all
    positive pairs (u, p); v_k are the keys with another label than u. Other positives are not in the sum,
    unlike in `SupConLoss`.

    As `pytorch_metric_learning.losses.NTXentLoss`.
    """

    def __init__(self, temperature: float = 0.07, *, gather_distributed: bool = False) -> None:
        super().__init__(gather_distributed)
        self.temperature = positive_number("temperature", temperature)

    def loss(self, batch: LabelledBatch) -> Float[Tensor, ""]:
        batch = batch.with_partners()
        if len(batch.anchors) == 0:
            return batch.keys.new_zeros(())
        anchors = batch.anchors / self.temperature
        negative_sums = negatives(anchors, batch.keys, batch.labels, batch.key_labels).logsumexp()

        def summed(
            keys: Tensor, block: Tensor, negative_sum: Tensor, labels: Tensor, itself: Tensor
        ) -> Tensor:
            score = block @ keys.T
            losses = torch.logaddexp(score, negative_sum[:, None]) - score
            return losses.masked_fill(~batch.positives(labels, itself), 0.0).sum(dim=1)

        sums = by_tiles(summed, batch.keys, anchors, negative_sums, batch.labels, batch.itself)
        return sums.sum() / batch.partners().sum()


class NPairsLoss(LabelLoss):
    """One pair from each label, the first two rows that have it: -log( e^(u . p) / sum_q e^(u . q) ), q the
    positives of all labels, averaged over labels (Sohn 2016, Eq. 7; `nf.NPair`). `normalize=False`: inner
    products of embeddings as they are, as Sohn has it.

    As `pytorch_metric_learning.losses.NPairsLoss`, which knows no ref_emb either.
    """

    def __init__(self, *, normalize: bool = True, gather_distributed: bool = False) -> None:
        super().__init__(gather_distributed)
        self.normalize = normalize

    def loss(self, batch: LabelledBatch) -> Float[Tensor, ""]:
        if len(batch.itself) and bool((batch.itself == NO_KEY).any()):
            raise UserError("NPairsLoss takes its pairs from one set; leave out ref_emb and ref_labels")
        order = batch.labels.argsort(stable=True)
        sizes = torch.bincount(batch.labels)
        first = order[(sizes.cumsum(0) - sizes)[sizes > 1]]
        second = order[(sizes.cumsum(0) - sizes + 1)[sizes > 1]]
        if len(first) == 0:
            return batch.keys.new_zeros(())
        anchors, keys = batch.anchors[first], batch.anchors[second]
        return (summed_logsumexp(anchors, keys) - (anchors * keys).sum()) / len(first)


class TripletMarginLoss(LabelLoss):
    """max(0, |u - p| - |u - v| + margin) of unit vectors, averaged over those triplets (anchor u, positive p,
    negative v) of the batch for which it is above 0.

    As `pytorch_metric_learning.losses.TripletMarginLoss`. Its n^3 triplets are never listed: with an anchor's
    negatives in rising order of distance, those inside the margin of a positive are the first k, and their
    sum is a difference of two numbers.
    """

    def __init__(self, margin: float = 0.05, *, gather_distributed: bool = False) -> None:
        super().__init__(gather_distributed)
        self.margin = positive_number("margin", margin)

    def loss(self, batch: LabelledBatch) -> Float[Tensor, ""]:
        batch = batch.with_partners()
        if len(batch.anchors) == 0:
            return batch.keys.new_zeros(())

        def sums(keys: Tensor, block: Tensor, labels: Tensor, itself: Tensor) -> Tensor:
            distance = torch.cdist(block, keys)
            ordered = distance.masked_fill(batch.key_labels == labels[:, None], torch.inf).sort(dim=1).values
            first = F.pad(ordered.masked_fill(ordered.isinf(), 0.0).cumsum(dim=1), (1, 0))
            reach = distance + self.margin
            inside = torch.searchsorted(ordered.detach(), reach.detach())
            hinge = inside * reach - first.gather(1, inside)
            positive = batch.positives(labels, itself)
            return torch.stack([(values * positive).sum(dim=1) for values in (hinge, inside)], dim=1)

        total, violated = by_tiles(sums, batch.keys, batch.anchors, batch.labels, batch.itself).sum(dim=0)
        return total / violated.detach().clamp_min(1.0)
