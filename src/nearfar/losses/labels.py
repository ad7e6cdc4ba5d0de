"""Losses of embeddings and labels: rows with one label are each other's positives, all others negatives.

    loss(embeddings, labels)                                            a batch with itself, no row with itself
    loss(embeddings, labels, ref_emb=others, ref_labels=their_labels)   anchors of one set, keys of another
    loss(embeddings, labels, indices_tuple)                             pairs or triplets of a miner

An anchor may have many positives, none, or no negative; each loss documents what it does then.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nearfar.core.kernels import inner
from nearfar.core.strategy import Rows as Layout
from nearfar.distributed.gather import gather_layout
from nearfar.errors import UserError
from nearfar.losses.mined import (
    MinedPairs,
    Reducer,
    Terms,
    check_distance,
    distance_scores,
    grouped_logsumexp,
    pairs_of_masks,
    read_pairs,
)
from nearfar.losses.scoring import (
    by_tiles,
    check_embeddings,
    check_gather,
    described,
    distances,
    negatives,
    positive_number,
    summed_logsumexp,
    unit,
)

Regularizer = Callable[[Float[Tensor, "n dim"]], Float[Tensor, ""]]
NO_KEY = -1  # the number of an anchor that is not among the keys


@dataclass(frozen=True)
class LabelledBatch:
    """Anchors and keys with their labels as numbers of `classes`, and which key each anchor is itself.
    `mask`: weights of positives that replace the labels."""

    anchors: Float[Tensor, "anchor dim"]
    labels: Int[Tensor, "anchor"]
    itself: Int[Tensor, "anchor"]
    keys: Float[Tensor, "key dim"]
    key_labels: Int[Tensor, "key"]
    classes: Int[Tensor, "class"]
    mask: Float[Tensor, "anchor key"] | None = None

    def partners(self) -> Float[Tensor, "anchor"]:
        """How many positives each anchor has."""
        if self.mask is not None:
            return self.mask.sum(dim=1)
        same = torch.bincount(self.key_labels, minlength=len(self.classes))[self.labels]
        return (same - (self.itself != NO_KEY).long()).to(self.anchors.dtype)

    def mean_partner(self) -> Float[Tensor, "anchor dim"]:
        """The mean of each anchor's positives, zero without any. Its inner product with the anchor is the
        mean of theirs, so that no pair need be scored to have it."""
        if self.mask is not None:
            return (
                self.mask @ self.keys / self.partners().clamp_min(torch.finfo(self.mask.dtype).tiny)[:, None]
            )
        total = self.keys.new_zeros(len(self.classes), self.keys.shape[1])
        total = total.index_add(0, self.key_labels, self.keys)
        anchor_keys = torch.where((self.itself != NO_KEY)[:, None], self.keys[self.itself], 0.0)
        return (total[self.labels] - anchor_keys) / self.partners().clamp_min(1.0)[:, None]

    def with_partners(self) -> "LabelledBatch":
        """The same without the anchors that have no positive."""
        return self.at(self.partners() > 0)

    def at(self, anchors: Tensor | slice) -> "LabelledBatch":
        """The same with these anchors."""
        mask = None if self.mask is None else self.mask[anchors]
        return replace(
            self,
            anchors=self.anchors[anchors],
            labels=self.labels[anchors],
            itself=self.itself[anchors],
            mask=mask,
        )

    def all_pairs(self) -> MinedPairs:
        return pairs_of_masks(
            self.positives(self.labels, self.itself), self.key_labels != self.labels[:, None]
        )

    def positives(self, labels: Tensor, itself: Tensor) -> Bool[Tensor, "anchor key"]:
        """Which keys are positives of these anchors."""
        place = torch.arange(len(self.key_labels), device=labels.device)
        return (self.key_labels == labels[:, None]) & (place != itself[:, None])


class LabelLossOptions(TypedDict, total=False):
    """Options of every loss of embeddings and labels: see `LabelLoss`."""

    distance: Any
    reducer: Reducer | None
    embedding_regularizer: Regularizer | None
    embedding_reg_weight: float
    gather_distributed: bool


class LabelLoss(nn.Module):
    """Base class of losses of embeddings and labels: `loss` computes the value of a `LabelledBatch`.

    With `distance`, `reducer` or `indices_tuple`, `terms` makes the values that are reduced. The value of
    `embedding_regularizer(embeddings)`, times `embedding_reg_weight`, is added.

    Over ranks every one computes the loss of the whole batch; its gradient then needs no correction.
    """

    normalize = True

    def __init__(self, **options: Unpack[LabelLossOptions]) -> None:
        super().__init__()
        unknown = options.keys() - LabelLossOptions.__annotations__
        if unknown:
            raise TypeError(f"{type(self).__name__} has no option {sorted(unknown)[0]!r}")
        self.gather_distributed = check_gather(options.get("gather_distributed", False))
        self.distance, self.reducer = options.get("distance"), options.get("reducer")
        self.embedding_regularizer = options.get("embedding_regularizer")
        self.embedding_reg_weight = options.get("embedding_reg_weight", 1.0)
        check_distance(self.distance)
        if self.reducer is not None and not callable(self.reducer):
            raise UserError(f"reducer was {described(self.reducer)}; expected a function such as torch.mean")

    def forward(
        self,
        embeddings: Float[Tensor, "n dim"],
        labels: Int[Tensor, "n"] | None = None,
        indices_tuple: Any = None,
        ref_emb: Float[Tensor, "m dim"] | None = None,
        ref_labels: Int[Tensor, "m"] | None = None,
    ) -> Float[Tensor, ""]:
        if labels is None and indices_tuple is None:
            raise UserError("labels were left out; expected labels, or the pairs of a miner as indices_tuple")
        has_pairs = indices_tuple is not None
        if (ref_emb is None) != (ref_labels is None) and not (has_pairs and ref_labels is None):
            raise UserError("ref_emb and ref_labels belong together; give both or neither")
        if ref_emb is embeddings:  # a set with itself
            ref_emb = ref_labels = None
        with torch.autocast(embeddings.device.type, enabled=False):
            batch, layouts = self._batch(embeddings, labels, ref_emb, ref_labels)
            pairs = None
            if has_pairs:
                pairs = read_pairs(
                    indices_tuple, layouts[0], layouts[-1], embeddings.device, self.gather_distributed
                )
            return self._value(batch, embeddings, pairs)

    @abstractmethod
    def loss(self, batch: LabelledBatch) -> Float[Tensor, ""]: ...

    @abstractmethod
    def terms(self, batch: LabelledBatch, pairs: MinedPairs) -> Terms: ...

    def scores(self, anchors: Tensor, keys: Tensor) -> Float[Tensor, "anchor key"]:
        if self.distance is not None:
            return distance_scores(self.distance, anchors, keys)
        return self.default_scores(anchors, keys)

    def default_scores(self, anchors: Tensor, keys: Tensor) -> Float[Tensor, "anchor key"]:
        return inner(anchors, keys)

    def needs_terms(self) -> bool:
        """Whether the options need other values than `loss` computes."""
        return self.distance is not None or self.reducer is not None

    def _batch(
        self, rows: Tensor, labels: Tensor | None, ref_emb: Tensor | None, ref_labels: Tensor | None
    ) -> tuple[LabelledBatch, list[Layout]]:
        """Embeddings and labels of all ranks, and how they are laid out. Without labels all are 0."""
        tensors = {"embeddings": rows} | ({} if ref_emb is None else {"ref_emb": ref_emb})
        embeddings = check_embeddings(**tensors)
        if self.normalize and self.distance is None:
            embeddings = [unit(tensor) for tensor in embeddings]
        label_tensors = [_check_labels("labels", labels, rows)]
        if ref_emb is not None:
            label_tensors.append(_check_labels("ref_labels", ref_labels, ref_emb))
        layouts = [
            gather_layout(len(tensor), tensor.device, self.gather_distributed) for tensor in embeddings
        ]
        embeddings = [layout.all_gather(tensor) for layout, tensor in zip(layouts, embeddings, strict=True)]
        label_tensors = [
            layout.all_gather(tensor) for layout, tensor in zip(layouts, label_tensors, strict=True)
        ]
        classes, numbered = torch.cat(label_tensors).unique(return_inverse=True)
        codes = numbered.split([len(tensor) for tensor in label_tensors])
        place = torch.arange(len(embeddings[0]), device=rows.device)
        own_key = place if len(embeddings) == 1 else torch.full_like(place, NO_KEY)
        return LabelledBatch(embeddings[0], codes[0], own_key, embeddings[-1], codes[-1], classes), layouts

    def _value(self, batch: LabelledBatch, embeddings: Tensor, pairs: MinedPairs | None) -> Tensor:
        if pairs is None and not self.needs_terms():
            value = self.loss(batch)
        else:
            terms = self.terms(batch, batch.all_pairs() if pairs is None else pairs)
            value = terms.reduced(self.reducer, batch.anchors, batch.classes[batch.labels])
        if self.embedding_regularizer is not None:
            layout = gather_layout(len(embeddings), embeddings.device, self.gather_distributed)
            gathered = layout.all_gather(*check_embeddings(embeddings=embeddings))
            value = value + self.embedding_reg_weight * self.embedding_regularizer(gathered)
        # a batch without a single term has the loss 0, with a gradient
        is_constant = isinstance(value, Tensor) and not value.requires_grad
        return value + 0.0 * embeddings.sum() if is_constant else value


def _check_labels(name: str, labels: Tensor | None, rows: Tensor) -> Int[Tensor, "n"]:
    if labels is None:
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
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

    The authors' further options: `base_temperature` multiplies the loss by temperature / base_temperature;
    with `contrast_mode="one"` only the first view of each instance is an anchor; in `loss(features,
    mask=mask)` instance j is a positive of i with weight mask[i, j].
    """

    def __init__(
        self,
        temperature: float = 0.1,
        contrast_mode: str = "all",
        base_temperature: float | None = None,
        *,
        form: str = "out",
        **options: Unpack[LabelLossOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature, self.form = positive_number("temperature", temperature), form
        base = self.temperature if base_temperature is None else base_temperature
        self.base_temperature = positive_number("base_temperature", base)
        self.contrast_mode = contrast_mode
        if form not in ("out", "in"):
            raise UserError(f"form was {form!r}; expected out or in")
        if contrast_mode not in ("all", "one"):
            raise UserError(f"contrast_mode was {contrast_mode!r}; expected all or one")

    def forward(
        self,
        embeddings: Float[Tensor, "n dim"] | Float[Tensor, "n view *dim"],
        labels: Int[Tensor, "n"] | None = None,
        indices_tuple: Any = None,
        ref_emb: Float[Tensor, "m dim"] | None = None,
        ref_labels: Int[Tensor, "m"] | None = None,
        *,
        mask: Float[Tensor, "n n"] | None = None,
    ) -> Float[Tensor, ""]:
        if embeddings.ndim >= 3:
            if not all(option is None for option in (indices_tuple, ref_emb, ref_labels)):
                raise UserError(
                    "embeddings of shape (n, views, dim) take no indices_tuple, ref_emb, ref_labels"
                )
            return self._of_views(embeddings, labels, mask)
        if mask is not None or self.contrast_mode == "one":
            option = "contrast_mode was 'one'; that" if mask is None else "mask was given; that"
            raise UserError(f"{option} needs embeddings of shape (n, views, dim)")
        if labels is None and indices_tuple is None:
            raise UserError("labels were left out; that needs embeddings of shape (n, views, dim)")
        return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)

    def _of_views(self, features: Tensor, labels: Tensor | None, mask: Tensor | None) -> Tensor:
        count, views = features.shape[:2]
        rows = features.flatten(2).flatten(0, 1)
        if labels is None:
            layout = gather_layout(count, features.device, self.gather_distributed)
            labels = layout.numbers(features.device)
        elif mask is not None:
            raise UserError("labels and mask were both given; expected one of them")
        labels = _check_labels("labels", labels, features).repeat_interleave(views)
        with torch.autocast(features.device.type, enabled=False):
            batch, _ = self._batch(rows, labels, None, None)
            if mask is not None:
                batch = replace(batch, mask=self._positive_weights(mask, features, batch))
            if self.contrast_mode == "one":
                batch = batch.at(slice(None, None, views))
            return self._value(batch, rows, None)

    def _positive_weights(
        self, mask: Tensor, features: Tensor, batch: LabelledBatch
    ) -> Float[Tensor, "row row"]:
        """The mask of instances as one of rows, no row with itself."""
        count, views = features.shape[:2]
        if mask.shape != (count, count):
            raise UserError(
                f"mask was {described(mask)}; expected ({count}, {count}), instances by instances"
            )
        if self.gather_distributed or self.needs_terms() or self.form == "in":
            raise UserError("mask cannot be combined with gather_distributed, distance, reducer or form='in'")
        weights = mask.to(batch.keys).repeat_interleave(views, dim=0).repeat_interleave(views, dim=1)
        return weights.masked_fill(torch.eye(len(weights), dtype=torch.bool, device=mask.device), 0.0)

    def terms(self, batch: LabelledBatch, pairs: MinedPairs) -> Terms:
        scores = self.scores(batch.anchors, batch.keys) / self.temperature
        positive, negative = torch.zeros(2, *scores.shape, dtype=torch.bool, device=scores.device)
        positive[pairs.anchors, pairs.positives] = True
        negative[pairs.negative_anchors, pairs.negatives] = True
        some = positive.any(dim=1)
        places = some.nonzero()[:, 0]
        scores, positive, negative = scores[places], positive[places], negative[places]
        log_total = scores.masked_fill(~(positive | negative), -torch.inf).logsumexp(dim=1)
        count = positive.sum(dim=1)
        if self.form == "out":
            partners = torch.where(positive, scores, 0.0).sum(dim=1) / count
        else:
            partners = scores.masked_fill(~positive, -torch.inf).logsumexp(dim=1) - count.log()
        factor = self.temperature / self.base_temperature
        values = scores.new_zeros(len(some)).index_put((places,), factor * (log_total - partners))
        rows = torch.arange(len(some), device=scores.device)
        return Terms(values if len(places) else values[:0], some[: len(values)], rows, "element")

    def loss(self, batch: LabelledBatch) -> Float[Tensor, ""]:
        batch = batch.with_partners()
        if len(batch.anchors) == 0:
            return batch.keys.new_zeros(())
        anchors = batch.anchors / self.temperature
        place = torch.arange(len(batch.keys), device=anchors.device)
        log_total = negatives(anchors, batch.keys, batch.itself, place).logsumexp()
        factor = self.temperature / self.base_temperature
        if self.form == "out":
            return factor * (log_total - (anchors * batch.mean_partner()).sum(dim=1)).mean()

        def log_sum(keys: Tensor, block: Tensor, labels: Tensor, itself: Tensor) -> Tensor:
            return (block @ keys.T).masked_fill(~batch.positives(labels, itself), -torch.inf).logsumexp(dim=1)

        partners = by_tiles(log_sum, batch.keys, anchors, batch.labels, batch.itself)
        return factor * (log_total + batch.partners().log() - partners).mean()


class LabelledNTXentLoss(LabelLoss):
    """-log( e^f(u, p) / (e^f(u, p) + sum_k e^f(u, v_k)) ), f = cosine / temperature, averaged over all
    positive pairs (u, p); v_k are the keys with another label than u, unlike in `SupConLoss`.

    As `pytorch_metric_learning.losses.NTXentLoss`.
    """

    def __init__(self, temperature: float = 0.07, **options: Unpack[LabelLossOptions]) -> None:
        super().__init__(**options)
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

    def terms(self, batch: LabelledBatch, pairs: MinedPairs) -> Terms:
        scores = self.scores(batch.anchors, batch.keys) / self.temperature
        negative = scores[pairs.negative_anchors, pairs.negatives]
        negative_sums = grouped_logsumexp(negative, pairs.negative_anchors, len(scores))[pairs.anchors]
        score = scores[pairs.anchors, pairs.positives]
        values = torch.logaddexp(score, negative_sums) - score
        indices = pairs.anchors, pairs.positives
        return Terms(values, torch.ones_like(values, dtype=torch.bool), indices, "pos_pair")


LabelledNTXentLoss.__name__ = "NTXentLoss"  # wrappers such as CrossBatchMemory check the name of the class


class NPairsLoss(LabelLoss):
    """One pair from each label, the first two rows that have it: -log( e^(u . p) / sum_q e^(u . q) ), q the
    positives of all labels, averaged over labels (Sohn 2016, Eq. 7; `nf.NPair`). `normalize=False`: inner
    products of embeddings as they are, as Sohn has it.

    As `pytorch_metric_learning.losses.NPairsLoss`, which knows no ref_emb either.
    """

    def __init__(self, *, normalize: bool = True, **options: Unpack[LabelLossOptions]) -> None:
        super().__init__(**options)
        self.normalize = normalize

    def loss(self, batch: LabelledBatch) -> Float[Tensor, ""]:
        self._check_one_set(batch)
        order = batch.labels.argsort(stable=True)
        sizes = torch.bincount(batch.labels)
        first = order[(sizes.cumsum(0) - sizes)[sizes > 1]]
        second = order[(sizes.cumsum(0) - sizes + 1)[sizes > 1]]
        if len(first) == 0:
            return batch.keys.new_zeros(())
        anchors, keys = batch.anchors[first], batch.anchors[second]
        return (summed_logsumexp(anchors, keys) - (anchors * keys).sum()) / len(first)

    def terms(self, batch: LabelledBatch, pairs: MinedPairs) -> Terms:
        self._check_one_set(batch)
        labels, order = batch.labels[pairs.anchors].sort(stable=True)
        first = order[torch.ones_like(labels, dtype=torch.bool).index_fill_(0, _repeats(labels), False)]
        anchors, positives = pairs.anchors[first], pairs.positives[first]
        scores = self.scores(batch.anchors[anchors], batch.anchors[positives])
        values = scores.logsumexp(dim=1) - scores.diagonal()
        return Terms(values, torch.ones_like(values, dtype=torch.bool), anchors, "element")

    def _check_one_set(self, batch: LabelledBatch) -> None:
        if len(batch.itself) and bool((batch.itself == NO_KEY).any()):
            raise UserError("NPairsLoss takes its pairs from one set; leave out ref_emb and ref_labels")


def _repeats(ordered: Int[Tensor, "row"]) -> Int[Tensor, "place"]:
    """The places of a sorted tensor whose value is that of the place before."""
    return 1 + (ordered[1:] == ordered[:-1]).nonzero()[:, 0]


class TripletMarginLoss(LabelLoss):
    """max(0, |u - p| - |u - v| + margin) of unit vectors, averaged over those triplets (anchor u, positive p,
    negative v) of the batch for which it is above 0.

    As `pytorch_metric_learning.losses.TripletMarginLoss`. Its n^3 triplets are never listed: with an anchor's
    negatives in rising order of distance, those inside the margin of a positive are the first k, and their
    sum is a difference of two numbers. With options that need each triplet they are listed, as its peer does.

    `swap` takes |p - v| where that is smaller than |u - v|; `smooth_loss` takes log(1 + e^x) for max(0, x).
    """

    def __init__(
        self,
        margin: float = 0.05,
        swap: bool = False,
        smooth_loss: bool = False,
        triplets_per_anchor: str = "all",
        **options: Unpack[LabelLossOptions],
    ) -> None:
        super().__init__(**options)
        self.margin, self.swap, self.smooth_loss = positive_number("margin", margin), swap, smooth_loss
        if triplets_per_anchor != "all":
            raise UserError(
                f"triplets_per_anchor was {triplets_per_anchor!r}; expected 'all', and a miner that draws "
                "triplets for fewer"
            )

    def needs_terms(self) -> bool:
        return super().needs_terms() or self.swap or self.smooth_loss

    def default_scores(self, anchors: Tensor, keys: Tensor) -> Float[Tensor, "anchor key"]:
        return -distances(anchors, keys)

    def terms(self, batch: LabelledBatch, pairs: MinedPairs) -> Terms:
        anchors, positives, negatives = triplets = pairs.triplets()
        scores = self.scores(batch.anchors, batch.keys)
        negative = scores[anchors, negatives]
        if self.swap:
            of_keys = self.scores(batch.keys, batch.keys)
            negative = torch.maximum(negative, of_keys[positives, negatives])
        violation = negative - scores[anchors, positives] + self.margin
        values = F.softplus(violation) if self.smooth_loss else F.relu(violation)
        return Terms(values, values > 0, triplets, "triplet")

    def loss(self, batch: LabelledBatch) -> Float[Tensor, ""]:
        batch = batch.with_partners()
        if len(batch.anchors) == 0:
            return batch.keys.new_zeros(())

        def sums(keys: Tensor, block: Tensor, labels: Tensor, itself: Tensor) -> Tensor:
            distance = distances(block, keys)
            ordered = distance.masked_fill(batch.key_labels == labels[:, None], torch.inf).sort(dim=1).values
            first = F.pad(ordered.masked_fill(ordered.isinf(), 0.0).cumsum(dim=1), (1, 0))
            reach = distance + self.margin
            inside = torch.searchsorted(ordered.detach(), reach.detach())
            hinge = inside * reach - first.gather(1, inside)
            positive = batch.positives(labels, itself)
            return torch.stack([(values * positive).sum(dim=1) for values in (hinge, inside)], dim=1)

        total, violated = by_tiles(sums, batch.keys, batch.anchors, batch.labels, batch.itself).sum(dim=0)
        return total / violated.detach().clamp_min(1.0)
