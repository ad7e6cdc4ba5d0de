"""What travels between the parts; what each kind of part promises is in `nearfar.core.abstract`.

    Pixels --views--> Batch --encoders--> Encoded --critic--> Scores --selection--> Scores --bound--> nats

A bound sees `Scores` and nothing else: the positive score(s)
of each anchor, and its negatives through reductions (`logsumexp`, `count`, `mean_of`, `hardest`). InfoNCE is

    positive - logsumexp(positive, negative.logsumexp()) + log(1 + negative.count())

and cannot tell whether the n x m matrix was ever built. `Dense` holds it, `Streamed` computes it tile by tile
(both in `nearfar.core.scores`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32, Int64, Shaped
from torch import Tensor
from torch.utils._pytree import tree_map

from nearfar.core.buffers import BufferUpdates
from nearfar.core.notebook import badge_html
from nearfar.core.schedules import Progress
from nearfar.core.scores import Candidates
from nearfar.errors import UserError


@dataclass(frozen=True)
class Pixels:
    """Decoded images, padded with zeros at the bottom and right to the largest of them."""

    data: Shaped[np.ndarray, "image height width channel"]  # uint8; of wide images uint16 or float32
    size: Int32[np.ndarray, "image 2"]  # true (height, width)


@dataclass(frozen=True)
class Batch:
    """Views of the same instances: row i of every view, label and group is instance `index[i]`. Groups are by
    the name of their column. `total`: the number of instances on all ranks, where each rank has its
    `Strategy.share` of them; None: not known, so ranks exchange their numbers."""

    views: tuple[Any, ...]  # each a tensor (instance, …), or a tree of such: tuples, lists and mappings
    index: Int64[Tensor, "instance"]
    labels: Int64[Tensor, "instance"] | None = None
    groups: Mapping[str, Int64[Tensor, "instance"]] = field(default_factory=dict)
    total: int | None = None

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Batch":
        """The batch on a device; `dtype` is that of its floating-point tensors."""

        def move(tensor: Tensor) -> Tensor:
            # a copy from memory that is not pinned waits anyway, or reads memory that has changed since
            kind = dtype if tensor.is_floating_point() else None
            return tensor.to(device, kind, non_blocking=tensor.is_pinned())

        return self.map(move)

    def rows(self, part: slice | Int[Tensor, "row"]) -> "Batch":
        """Some of the instances."""
        return replace(self.map(lambda tensor: tensor[part]), total=None)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with every tensor changed, of the same instances."""
        labels = None if self.labels is None else change(self.labels)
        groups = {name: change(numbers) for name, numbers in self.groups.items()}
        return Batch(tree_map(change, self.views), change(self.index), labels, groups, self.total)


@dataclass(frozen=True)
class Sizes:
    """What a part may need to know when its method meets the data: of the data, and of the encoders."""

    instances: int  # of the data
    # width of anchors and keys, and for a prior of embeddings; None: encoders made in Python do not say
    dim: int | None = None
    views: int = 1  # numbers of keys: views, or whatever else the encoders make keys of
    classes: int | None = None  # of the data; None: they have no labels
    symbols: int = 0  # of the encoders' vocabulary
    teacher_width: int = 0  # of a teacher's features

    def width(self, part: object) -> int:
        """The width, for a part that cannot be made without it."""
        if self.dim is None:
            name = type(part).__name__
            raise UserError(
                f"{name} needs the width of what is scored, which these encoders do not give; make it with "
                f"{name}(…, dim=…)"
            )
        return self.dim


@dataclass(frozen=True)
class Pair:
    """Anchors of one view contrasted with keys of another (or the same), and the weight in the loss.

    `keys_per_instance`: keys per instance: 1 for a picture seen whole, more for the places of a feature map
    or the times of a sequence. `same_instance_negatives`: how many of them an anchor may be contrasted with
    although they are of its own instance.
    """

    anchor: int
    key: int
    weight: float = 1.0
    keys_per_instance: int = 1
    same_instance_negatives: int = 0
    # rows with equal keys are one identity, so that none is the other's negative
    identity_is_key: bool = False


def view_pairs(count: int, symmetric: bool, key_views: int | None = None) -> tuple[tuple[int, int], ...]:
    """Ordered pairs (anchor view, key view).

    One view is paired with itself. Symmetric: every view with every other one that is a key. Otherwise the
    first view is no key, and keys are no anchors. `key_views`: only the first so many views (large crops) are
    keys; None: all.
    """
    if count == 1:
        return ((0, 0),)
    large = count if key_views is None else min(key_views, count)
    if symmetric or large == 1:
        return tuple((a, k) for a in range(count) for k in range(large) if a != k)
    return tuple((a, k) for a in (0, *range(large, count)) for k in range(1, large))


@dataclass(frozen=True)
class Supervision:
    """Features and class scores of the rows of a batch by the network, their labels, and a teacher's features
    and class scores; None where there are none."""

    features: Float[Tensor, "row dim"]
    logits: Float[Tensor, "row class"] | None = None
    labels: Int[Tensor, "row"] | None = None  # below 0: not known
    teacher_features: Float[Tensor, "row width"] | None = None
    teacher_logits: Float[Tensor, "row class"] | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> "Supervision":
        """The same with every tensor changed."""
        tensors: list[Any] = [None if rows is None else change(rows) for rows in vars(self).values()]
        return Supervision(*tensors)

    @staticmethod
    def joined(parts: Sequence["Supervision"]) -> "Supervision":
        """The rows of several parts of a batch, in order."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        tensors: list[Any] = [None if rows[0] is None else torch.cat(rows) for rows in columns]
        return Supervision(*tensors)


class TeacherOutput(NamedTuple):
    """Features of a view by a frozen network, and its class scores where it has classes."""

    features: Float[Tensor, "row width"]
    logits: Float[Tensor, "row class"] | None


@dataclass(frozen=True)
class Encoded:
    """Embeddings of anchors and of keys, by the number of their view.

    Usually row i of each is instance `index[i]` of the batch. Keys may have several places each, (anchor,
    place, dim): then all of them are positives of the anchor. Rows may be no instances at all: the times of a
    sequence, the masked tokens of a text. Then anchors and keys of a pair are aligned row by row, and
    `index[key]` gives each row its identity: rows with the same identity are never each other's negatives.
    Where keys are symbols, or are described by symbols (prototypes), `vocabulary` embeds all there are.
    """

    anchors: Mapping[int, Float[Tensor, "anchor dim"]]
    keys: Mapping[int, Float[Tensor, "anchor dim"] | Float[Tensor, "anchor place dim"]]
    index: Mapping[int, Int[Tensor, "row"]] = field(default_factory=dict)
    # where in the batch a row is from
    instance: Mapping[int, Int[Tensor, "row"]] = field(default_factory=dict)
    # what a prior reads: embeddings by view as a network gives them, before a predictor; None: the anchors
    embeddings: Mapping[int, Float[Tensor, "anchor dim"]] | None = None
    vocabulary: Float[Tensor, "symbol dim"] | None = None
    supervision: Supervision | None = None
    # the vocabulary of the network that made the keys, where that is another one
    key_vocabulary: Float[Tensor, "symbol dim"] | None = None

    def embeddings_per_view(self) -> tuple[Float[Tensor, "row dim"], ...]:
        """What a prior reads, one matrix for each view."""
        return tuple((self.anchors if self.embeddings is None else self.embeddings).values())

    def index_of(self, key: int, instances: Int[Tensor, "instance"]) -> Int[Tensor, "row"]:
        return self.index.get(key, instances)


@dataclass(frozen=True)
class Coverage:
    """The measured share of anchors for which Wu et al. 2021, Thm 3.1 applies (`Ring.coverage`)."""

    share: float
    anchors: int


@dataclass(frozen=True)
class NegativeSampling:
    """How negatives are drawn and selected, as far as a certificate depends on it. None: not known, so that
    the certificate states it as a condition. A condition known to fail is never proven.

    `exchangeable`: if anchor and key were independent, the positive could change places with any negative
    without changing the joint distribution. The proof of InfoNCE needs it (docs/certificates.md); `reason` is
    a clause that explains why it fails. `independent` is more: every anchor has its own negatives, drawn from
    p(v) independently of all positives and of one another.

    `cut` is what a selection dropped: the least similar only (`below`), or also the most similar (`above`).

    `dependent` is a clause that explains why rows are not independent draws, which every proof needs.
    `positive_is_key` is declared by a source that takes the anchor's own key as its positive. Remembered or
    neighbouring keys have another distribution than the key, so H(v) is not theirs.
    """

    anchors: int
    negatives: int  # per anchor, those kept
    min_negatives: int | None = None  # kept per anchor when a schedule keeps fewest (None: always as many)
    exchangeable: bool = True
    reason: str = ""
    independent: bool = False
    held_out: bool | None = None  # neither encoders nor critic were fitted to this sample
    # an embedding depends on the rest of its batch (batch norm in training)
    batch_statistics: bool | None = None
    normalised: bool | None = None  # scores are log q(v | u) of a normalised density q
    cut: Literal["none", "below", "above"] = "none"
    coverage: Coverage | None = None  # of a cut from above, where it was measured
    weighted: bool = False  # similar negatives count more, dissimilar ones less
    importance: bool = False  # negatives are from a proposal, anchors weighted by p / q of their draw
    dependent: str = ""
    positive_is_key: bool = False
    more_positives: bool = False  # others than the key that belongs to the anchor count as its positives

    def __post_init__(self) -> None:
        if self.independent and not self.exchangeable:
            raise ValueError("negatives that are independent are exchangeable with the positive")

    def not_exchangeable(self, reason: str) -> "NegativeSampling":
        """The same, with one more reason why the positive cannot change places; the first reason stands."""
        if not self.exchangeable:
            return self
        return replace(self, exchangeable=False, independent=False, reason=reason)


Status = Literal["proven", "measured", "not covered", "objective only"]


@dataclass(frozen=True)
class Certificate:
    """What a number proves about mutual information, under which condition, and how high it can go.

    `proven`: in expectation at most I, under the condition. `measured`: a condition of the proof was measured
    on some anchors, which is evidence, not proof. `not covered`: an estimate without proof. `objective only`:
    no estimate of I.

    `condition` has clauses joined by semicolons. The first is a short claim or reason that stands alone: the
    `summary` of console and report. The others state the assumptions of the proof.
    """

    status: Status
    condition: str
    ceiling: float | None  # nats

    @property
    def summary(self) -> str:
        return self.condition.partition("; ")[0]

    def _repr_html_(self) -> str:
        return f"{badge_html(self.status)} {escape(self.summary)}"


@dataclass(frozen=True)
class BatchGroups:
    """An identity for each row of all ranks and, by name, the number of its group (below 0: unknown)."""

    identities: Int[Tensor, "row"]
    numbers: Mapping[str, Int[Tensor, "row"]]

    def find(self, by: str, index: Int[Tensor, "item"]) -> tuple[Int[Tensor, "item"], Bool[Tensor, "item"]]:
        """The group of each identity (-1: unknown), and which of them are in the batches at all."""
        if not len(self.identities):
            return torch.full_like(index, -1), torch.zeros_like(index, dtype=torch.bool)
        identities, order = self.identities.sort()
        places = torch.searchsorted(identities, index).clamp(max=len(identities) - 1)
        present = identities[places] == index
        return torch.where(present, self.numbers[by][order][places], -1).clamp(min=-1), present


@dataclass(frozen=True)
class Context:
    """What a selection may read in addition to the scores."""

    anchors: Float[Tensor, "anchor dim"]
    candidates: Candidates
    index: Int[Tensor, "anchor"]
    progress: Progress
    # several positives that count as one: their mean where scores are distances, not their sum of e^f
    as_mean: bool = False
    # the number of its first anchor among those of all ranks: what is drawn for an anchor goes by that
    first: int = 0
    # labels and groups of the batch, for selections that were assigned none
    groups: BatchGroups | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of one forward pass, which changed nothing; `Method.advance` acts on it."""

    loss: Float[Tensor, ""]  # what the optimiser descends: the ceiling (where there is one) minus the bound
    nats: Float[Tensor, ""] | None  # the bound's value where it is an estimate of information
    ceiling: float | None
    encoded: Encoded  # prepared by the critic, detached: anchors of this rank, keys of all
    index: Int[Tensor, "anchor"]  # of the instances of all ranks
    observed: Tensor | None = None  # by a bound with a memory, one row per pair of views
    prior: Float[Tensor, ""] | None = None  # the prior's part of the loss
    buffer_updates: BufferUpdates = ()  # new values of the networks' buffers


# (setting, value, text): the text added to a part's equation where the setting has that value, or, for `...`,
# any, or, for a function, one of which it is true
Remark = tuple[str, Any, str]
