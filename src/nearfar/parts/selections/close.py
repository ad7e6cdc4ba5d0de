"""Close neighbours as positives."""

import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.scores import Negatives


def merge_positives(
    positive: Float[Tensor, "anchor positive"], close: Negatives, as_mean: bool = False
) -> Float[Tensor, "anchor positive"]:
    """The positive as the event "one of C_i": log( e^f(u, v+) + sum of e^f over the close candidates ).

    Why a sum, and why here. Local Aggregation's p(C_i) is the chance that a softmax picks any member of C_i, and
    chances of disjoint outcomes add (Wu et al. 2020, sec. 5.3); a mean of log-softmaxes, which bounds take over several
    positives, would ask for each member in turn. Which things count as one is a question of membership, so a
    selection answers it, and what leaves it is one score per positive:
    log( sum over C_i / sum over B_i ) is what any bound with a softmax computes from it.

    `as_mean`, for bounds that read scores as distances: the mean of f over v+ and C_i. A sum of e^f grows with the
    number of neighbours, and a margin would be had for nothing.
    """
    if as_mean:
        total = positive + close.sum_of(lambda score: score)[:, None]
        return total / (1 + close.count()[:, None])
    return torch.logaddexp(positive, close.logsumexp()[:, None])
