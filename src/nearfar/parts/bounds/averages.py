"""Averages over negatives that several bounds share."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.scores import Negatives

# optimisers and gradient norms square gradients: (e^30 × 10^6)^2 is still a float32; no useful log-ratio comes near
SOFT_LIMIT = 30.0


def soft_clip(scores: Tensor) -> Tensor:
    """The scores, growing only logarithmically beyond 30, so that neither their exponentials nor the squares of those overflow.

    A critic may be any function, so bounding the information with the tamed critic instead is as good a bound, as
    long as positives and negatives are tamed alike. Below 30 nothing changes; at 30 the slope is continuous.
    """
    excess = (scores - SOFT_LIMIT).clamp_min(0.0)
    return scores - excess + torch.log1p(excess)


def over_anchors(per_anchor: Float[Tensor, "anchor"], count: Float[Tensor, "anchor"]) -> Float[Tensor, ""]:
    """Mean over the anchors that have negatives: one without says nothing about them; 0 if there are none."""
    with_any = count > 0
    return torch.where(with_any, per_anchor, 0.0).sum() / with_any.sum().clamp_min(1)


def log_mean_exp(negative: Negatives) -> Float[Tensor, ""]:
    """log of the mean of e^f over all negatives of all anchors; 0 if there are none."""
    total = negative.count().sum()
    pooled = negative.logsumexp().logsumexp(dim=0)
    return torch.where(total > 0, pooled - total.log(), 0.0)


def pooled_mean(negative: Negatives, function: Callable[[Tensor], Tensor]) -> Float[Tensor, ""]:
    """Mean of an elementwise function over all negatives of all anchors; 0 if there are none."""
    count = negative.count()
    return (negative.mean_of(function) * count).sum() / count.sum().clamp_min(1)
