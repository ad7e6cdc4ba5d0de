"""What two views tell about each other, estimated on instances that nothing was fitted to.

Any function is a critic. So whatever a method trains with (a queue, a bank, both views of the others, no negatives at all),
its encoders and its critic score pairs of held-out instances in evaluation mode, and InfoNCE over one key of each of the
other instances is a lower bound on the information of the pair, proven as docs/certificates.md says. Where an instance has
several keys (the places of a map, the times of a recording), they are not independent draws: places are taken one at a
time and averaged, of rows one is drawn for each instance.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.buffers import frozen, uses_batch_statistics
from nearfar.core.method import UNLIKE_PAIRS, Method
from nearfar.core.schedules import START, Progress
from nearfar.core.scores import paired_scores
from nearfar.core.types import Batch, Certificate, Encoded, NegativeSampling, Pair
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.bounds.infonce import log_share

# difference of an anchor's scores in a batch and in half of it, relative to their range and in nats: sums in another order differ
# by far less, a batch norm that reads its batch by far more, and what is less moves no estimate that is worth printing
ALONE, ALONE_NATS = 1e-2, 1e-3


@dataclass(frozen=True)
class HeldOut:
    """An estimate in nats with its standard error over instances, and what it proves."""

    nats: float
    error: float
    instances: int
    certificate: Certificate


Aligned = tuple[
    Float[Tensor, "instance dim"], Float[Tensor, "instance place dim"]
]  # of one pair: anchors, keys


@torch.no_grad()
def held_out_estimate(
    method: Method,
    batches: Iterable[Batch],
    progress: Progress = START,
    *,
    held_out: bool | None = True,
    dependent: str = "",
    mixed: bool = False,
) -> HeldOut | None:
    """The estimate on these batches, taken together; None where the encoders do not say of which instance a row is, or nothing is contrasted.

    `held_out`: that nothing was fitted to them; None where nobody knows, which the claim then says. `dependent`: why they are no
    independent draws, where that is known. `mixed`: that views of an instance show others of its batch. Nothing of the method changes.
    """
    parts: list[list[Aligned]] = []
    instances: list[Tensor] = []
    with frozen(method):
        for batch in batches:
            pairs = method.pairs(batch)
            if not pairs:
                return None
            encoded, _ = method.encode_batch(batch)
            if any(key in encoded.index and key not in encoded.instance for key in encoded.keys):
                return None
            instances.append(batch.index.cpu())
            mixed = mixed or (not parts and _depends_on_the_rest(method, batch, encoded, progress))
            parts.append([_aligned(encoded, pair.anchor, pair.key) for pair in pairs])
        together = [
            [torch.cat(side) for side in zip(*pair, strict=True)] for pair in zip(*parts, strict=True)
        ]
        values = [_per_instance(method, anchors, keys, progress) for anchors, keys in together]
    weights = [pair.weight / sum(pair.weight for pair in pairs) for pair in pairs]
    least = min(len(value) for value in values)
    given = NegativeSampling(least, least - 1, held_out=held_out, batch_statistics=mixed)
    index = torch.cat(instances)
    if len(index.unique()) < len(index):
        dependent = dependent or "some of these instances come more than once"
    if dependent:
        given = given.not_exchangeable(f"{dependent}, so rows are not independent draws")
    certificate = InfoNCE().certificate(given)
    if certificate.status == "proven" and len({frozenset((pair.anchor, pair.key)) for pair in pairs}) > 1:
        certificate = replace(certificate, condition=f"{certificate.condition}; {UNLIKE_PAIRS}")
    nats = sum(weight * float(value.mean()) for weight, value in zip(weights, values, strict=True))
    errors = [
        weight * float(value.std()) / math.sqrt(len(value))
        for weight, value in zip(weights, values, strict=True)
    ]
    return HeldOut(nats, sum(errors), least, certificate)


@torch.no_grad()
def pointwise_nats(
    method: Method, batch: Batch, progress: Progress = START
) -> Float[Tensor, "instance"] | None:
    """InfoNCE of each instance of a batch among the others, of which `held_out_estimate` is the mean; None where the encoders do not
    give every instance one row. A number about an instance, not a bound: only the expectation is one."""
    pairs = method.pairs(batch)
    if not pairs:
        return None
    with frozen(method):
        encoded, _ = method.encode_batch(batch)
        if any(key in encoded.index for key in encoded.keys):
            return None
        whole = sum(pair.weight for pair in pairs)
        parts = [
            pair.weight / whole * _per_instance(method, *_aligned(encoded, pair.anchor, pair.key), progress)
            for pair in pairs
        ]
    return torch.stack(parts).sum(dim=0)


def _depends_on_the_rest(method: Method, batch: Batch, encoded: Encoded, progress: Progress) -> bool:
    """Whether scores change when half of the batch is not there: then anchors could see their negatives.

    The halves are drawn: a network that mixes neighbours, or blocks of rows, would not notice halves of its own making. It is the
    scores that are compared, since a critic could look around too, anchor by anchor, since one loud row would hide all others, and
    without what all scores of an anchor have in common, which a softmax does not see.
    """
    if uses_batch_statistics(method):
        return True
    drawn = torch.randperm(len(batch.index), generator=torch.Generator().manual_seed(0))
    for half in drawn.tensor_split(2):
        part = half.sort().values.to(batch.index.device)
        alone, _ = method.encode_batch(batch.rows(part))
        everyone = torch.arange(len(part), device=part.device)
        for pair in method.pairs(batch):
            ours, _ = _scores(method, alone, pair, everyone, progress)
            theirs, size = _scores(method, encoded, pair, part, progress)
            rounding = 2 * torch.finfo(theirs.dtype).eps * size
            allowed = ALONE_NATS + ALONE * theirs.abs().amax(dim=1) + rounding
            if bool(((ours - theirs).abs().amax(dim=1) > allowed).any()):
                return True
    return False


def _scores(
    method: Method, encoded: Encoded, pair: Pair, part: Tensor, progress: Progress
) -> tuple[Float[Tensor, "anchor key"], Float[Tensor, "anchor"]]:
    """Every anchor of some instances against every key of them, the mean over an anchor's keys taken off, and how large scores were
    before that."""
    anchors, keys = encoded.anchors[pair.anchor], encoded.keys[pair.key]
    if pair.key in encoded.index:
        rows = torch.isin(encoded.instance[pair.key], part)
    else:
        rows = torch.zeros(len(keys), dtype=torch.bool, device=keys.device)
        rows[part] = True
    # scored beside the others, as the estimate does, then cut out
    first = keys if keys.ndim == 2 else keys[:, 0]
    scores = method.critic.cross(anchors, first, progress)[rows][:, rows]
    return scores - scores.mean(dim=1, keepdim=True), scores.abs().amax(dim=1)


def _aligned(encoded: Encoded, anchor: int, key: int) -> Aligned:
    """Anchors and keys of one pair, a row for each instance that has any; of several rows one is drawn."""
    anchors, keys = encoded.anchors[anchor], encoded.keys[key]
    if key in encoded.index:
        generator = torch.Generator().manual_seed(0)
        instance = encoded.instance[key].cpu()
        shuffled = torch.randperm(len(instance), generator=generator)
        # a stable sort by instance keeps the shuffled order within each: its first is a fair draw
        by_instance = shuffled[instance[shuffled].argsort(stable=True)]
        first = torch.ones(len(by_instance), dtype=torch.bool)
        first[1:] = instance[by_instance][1:] != instance[by_instance][:-1]
        rows = by_instance[first].to(anchors.device)
        anchors, keys = anchors[rows], keys[rows]
    return anchors, keys if keys.ndim == 3 else keys[:, None]


def _per_instance(
    method: Method, anchors: Tensor, keys: Tensor, progress: Progress
) -> Float[Tensor, "instance"]:
    """InfoNCE of each instance, over the same place of every other."""
    total = anchors.new_zeros(len(anchors))
    for place in range(keys.shape[1]):
        scores = paired_scores(method.critic.cross(anchors, keys[:, place], progress))
        total = total + log_share(scores.positive[:, 0], scores.negative.logsumexp()) + math.log(len(anchors))
    return total / keys.shape[1]
