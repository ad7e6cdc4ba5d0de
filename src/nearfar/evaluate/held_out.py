"""The information that two views share, estimated on instances that nothing was fitted to.

Any function can serve as a critic. Whatever a method trains with (a queue, a bank, no negatives), its
encoders and its critic score pairs of held-out instances in evaluation mode. InfoNCE with one key of each
other instance is then a lower bound on the information of the pair, proven as docs/certificates.md says. If
an instance has several keys (places of a map, times of a recording), these are not independent draws: places
are taken one at a time and averaged, and of several rows one is drawn for each instance.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.buffers import frozen, uses_batch_statistics
from nearfar.core.method import UNLIKE_PAIRS, Method
from nearfar.core.schedules import START, Progress
from nearfar.core.scores import POSITIONS, knows_positions, paired_scores
from nearfar.core.types import Batch, Certificate, Encoded, NegativeSampling, Pair
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.bounds.infonce import log_share

# tolerated difference of an anchor's scores in a batch and in half of it, relative to their range and in
# nats: rounding differs by far less, a batch norm that reads its batch by far more
BATCH_TOLERANCE, BATCH_TOLERANCE_NATS = 1e-2, 1e-3
POSITION_ROWS = 256  # scored again in another order, to find a critic that knows positions


@dataclass(frozen=True)
class HeldOutNats:
    """An estimate in nats with its standard error over instances, and its certificate."""

    nats: float
    error: float
    instances: int
    certificate: Certificate


# of one pair: anchors, keys
Aligned = tuple[Float[Tensor, "instance dim"], Float[Tensor, "instance place dim"]]


@torch.no_grad()
def held_out_estimate(
    method: Method,
    batches: Iterable[Batch],
    progress: Progress = START,
    *,
    held_out: bool | None = True,
    dependent: str = "",
    mixed: bool = False,
) -> HeldOutNats | None:
    """The estimate over all batches; None if rows have no known instance, or nothing is contrasted.

    `held_out`: nothing was fitted to these batches; None: unknown, a condition of the certificate.
    `dependent`: why they are not independent draws, where that is known. `mixed`: views of an instance show
    other instances of its batch. The method is not changed.
    """
    parts: list[list[Aligned]] = []
    instances: list[Tensor] = []
    with frozen(method):
        for batch in batches:
            pairs = method.pairs(batch)
            if not pairs or len(batch.index) < 2:
                return None
            encoded, _ = method.encode_batch(batch)
            if any(key in encoded.index and key not in encoded.instance for key in encoded.keys):
                return None
            instances.append(batch.index.cpu())
            mixed = mixed or (not parts and _depends_on_batch(method, batch, encoded, progress))
            parts.append([_aligned(encoded, pair.anchor, pair.key) for pair in pairs])
        joined = [[torch.cat(side) for side in zip(*pair, strict=True)] for pair in zip(*parts, strict=True)]
        values = [_per_instance(method, anchors, keys, progress) for anchors, keys in joined]
        cross = partial(method.critic.cross, progress=progress)
        positional = any(knows_positions(cross, *_some_rows(anchors, keys)) for anchors, keys in joined)
    weights = [pair.weight / sum(pair.weight for pair in pairs) for pair in pairs]
    rows = min(len(value) for value in values)
    sampling = NegativeSampling(rows, rows - 1, held_out=held_out, batch_statistics=mixed)
    index = torch.cat(instances)
    if len(index.unique()) < len(index):
        dependent = dependent or "some instances occur more than once"
    sampling = replace(sampling, dependent=dependent)
    if positional:
        sampling = sampling.not_exchangeable(POSITIONS)
    certificate = InfoNCE().certificate(sampling)
    if certificate.status == "proven" and len({frozenset((pair.anchor, pair.key)) for pair in pairs}) > 1:
        certificate = replace(certificate, condition=f"{certificate.condition}; {UNLIKE_PAIRS}")
    nats = sum(weight * float(value.mean()) for weight, value in zip(weights, values, strict=True))
    errors = [
        weight * float(value.std()) / math.sqrt(len(value))
        for weight, value in zip(weights, values, strict=True)
    ]
    return HeldOutNats(nats, sum(errors), rows, certificate)


def _some_rows(anchors: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    return anchors[:POSITION_ROWS], keys[:POSITION_ROWS, 0]


@torch.no_grad()
def pointwise_nats(
    method: Method, batch: Batch, progress: Progress = START
) -> Float[Tensor, "instance"] | None:
    """InfoNCE of each instance of a batch among the others; `held_out_estimate` is its mean. None if the
    encoders do not give every instance one row. Only the expectation is a bound, not the value of an
    instance."""
    pairs = method.pairs(batch)
    if not pairs:
        return None
    with frozen(method):
        encoded, _ = method.encode_batch(batch)
        if any(key in encoded.index for key in encoded.keys):
            return None
        total = sum(pair.weight for pair in pairs)
        parts = [
            pair.weight / total * _per_instance(method, *_aligned(encoded, pair.anchor, pair.key), progress)
            for pair in pairs
        ]
    return torch.stack(parts).sum(dim=0)


def _depends_on_batch(method: Method, batch: Batch, encoded: Encoded, progress: Progress) -> bool:
    """Whether scores change when half of the batch is missing: then anchors could depend on their negatives.

    The halves are random, since a network that mixes neighbouring rows could agree on contiguous halves.
    Scores are compared, since a critic could depend on the batch too; anchor by anchor, so that one large row
    does not hide the others; and without the mean over an anchor's keys, which a softmax does not see.
    """
    if uses_batch_statistics(method):
        return True
    shuffled = torch.randperm(len(batch.index), generator=torch.Generator().manual_seed(0))
    for half in shuffled.tensor_split(2):
        part = half.sort().values.to(batch.index.device)
        half_encoded, _ = method.encode_batch(batch.rows(part))
        all_rows = torch.arange(len(part), device=part.device)
        for pair in method.pairs(batch):
            half_scores, _ = _scores(method, half_encoded, pair, all_rows, progress)
            full_scores, size = _scores(method, encoded, pair, part, progress)
            rounding = 2 * torch.finfo(full_scores.dtype).eps * size
            tolerance = BATCH_TOLERANCE_NATS + BATCH_TOLERANCE * full_scores.abs().amax(dim=1) + rounding
            if bool(((half_scores - full_scores).abs().amax(dim=1) > tolerance).any()):
                return True
    return False


def _scores(
    method: Method, encoded: Encoded, pair: Pair, part: Tensor, progress: Progress
) -> tuple[Float[Tensor, "anchor key"], Float[Tensor, "anchor"]]:
    """The scores of every anchor of some instances with every key of them, minus the mean over an anchor's
    keys; and the largest score of each anchor before that."""
    anchors, keys = encoded.anchors[pair.anchor], encoded.keys[pair.key]
    if pair.key in encoded.index:
        rows = torch.isin(encoded.instance[pair.key], part)
    else:
        rows = torch.zeros(len(keys), dtype=torch.bool, device=keys.device)
        rows[part] = True
    # scored together with the other rows, as in the estimate, then selected
    first = keys if keys.ndim == 2 else keys[:, 0]
    scores = method.critic.cross(anchors, first, progress)[rows][:, rows]
    return scores - scores.mean(dim=1, keepdim=True), scores.abs().amax(dim=1)


def _aligned(encoded: Encoded, anchor: int, key: int) -> Aligned:
    """Anchors and keys of one pair, one row for each instance that has any; of several rows one is drawn."""
    anchors, keys = encoded.anchors[anchor], encoded.keys[key]
    if key in encoded.index:
        generator = torch.Generator().manual_seed(0)
        instance = encoded.instance[key].cpu()
        shuffled = torch.randperm(len(instance), generator=generator)
        # a stable sort by instance keeps the shuffled order within each, so its first row is a random one
        by_instance = shuffled[instance[shuffled].argsort(stable=True)]
        first = torch.ones(len(by_instance), dtype=torch.bool)
        first[1:] = instance[by_instance][1:] != instance[by_instance][:-1]
        rows = by_instance[first].to(anchors.device)
        anchors, keys = anchors[rows], keys[rows]
    return anchors, keys if keys.ndim == 3 else keys[:, None]


def _per_instance(
    method: Method, anchors: Tensor, keys: Tensor, progress: Progress
) -> Float[Tensor, "instance"]:
    """InfoNCE of each instance, with the same place of every other instance as negatives."""
    total = anchors.new_zeros(len(anchors))
    for place in range(keys.shape[1]):
        scores = paired_scores(method.critic.cross(anchors, keys[:, place], progress))
        total = total + log_share(scores.positive[:, 0], scores.negative.logsumexp()) + math.log(len(anchors))
    return total / keys.shape[1]
