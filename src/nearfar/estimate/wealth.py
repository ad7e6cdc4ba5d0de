"""At least so many nats about a label, at every sample size: what betting against "no more than m nats" would have won.

For any conditional probability q(y | x) fitted to other rows, I(x; y) >= E[ log q(y | x) - log p(y) ] (Barber & Agakov 2003). If I were at
most m, whoever stakes a share lambda on every row,

    K(m) = prod_i ( 1 + lambda ( log q(y_i | x_i) - log p(y_i) - m ) ),        1 + lambda (…) >= 0,

would not gain in expectation, so P(K(m) >= 1 / (1 - confidence)) <= 1 - confidence (Markov), with n = 50 as with n = 10^6 and
however skewed the rows are (Waudby-Smith & Ramdas 2024). The bound is the largest m at which K reaches that.

Three things are not known beforehand, and each is paid for:

    p(y)      the least favourable one counts: K is replaced by its minimum over all p, a convex problem
    lambda    K is the mean over stakes, each half the one before
    q         is mixed with the uniform distribution, so that no row can lose everything; K is the mean over several shares of it

Every factor falls as m rises, so K does, and the largest m is found by halving. That it is so, and why the problem is convex:
docs/certificates.md.
"""

import math

import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

MIXED = (0.1, 0.01, 0.001)  # shares of the uniform distribution in q
TURNS = 100  # of the iteration for p, at most; a handful is enough
CLOSE = (
    1e-6  # of log K: what is left is subtracted, so that the bound is one however early the iteration ends
)


def least_information(
    scores: Float[Tensor, "row class"], labels: Int[Tensor, "row"], confidence: float
) -> float:
    """Nats that the information of these rows about their labels is at least; `scores` are logits or log-probabilities fitted to others."""
    low, high = 0.0, math.log(scores.shape[1])
    if not refuted(low, scores, labels, confidence):
        return 0.0
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle, scores, labels, confidence) else (low, middle)
    return low


def refuted(
    nats: float, scores: Float[Tensor, "row class"], labels: Int[Tensor, "row"], confidence: float
) -> bool:
    """Whether these rows speak against an information of at most so many nats: if it were, they would with probability 1 - confidence at most."""
    rows, classes = scores.shape
    given = scores.double().softmax(1).gather(1, labels[:, None])[:, 0]
    seen = torch.unique(labels, return_inverse=True)[1]  # type: ignore[no-untyped-call,unused-ignore]
    # a stake is of use down to about 1 / sqrt(rows) of the largest
    stakes = 2.0 ** -torch.arange(math.ceil(math.log2(rows) / 2) + 2).double()
    won = [
        log_wealth(
            (mixed / classes + (1 - mixed) * given).log(), seen, math.log(mixed / classes), nats, stakes
        )
        for mixed in MIXED
    ]
    mean = float(torch.cat(won).logsumexp(0)) - math.log(len(MIXED) * len(stakes))
    return mean >= -math.log(1 - confidence)


def log_wealth(
    log_q: Float64[Tensor, "row"],
    labels: Int64[Tensor, "row"],
    floor: float,
    nats: float,
    stakes: Float64[Tensor, "stake"],
) -> Float64[Tensor, "stake"]:
    """log of the least K over all p(y), for each stake (a share, at most 1, of the largest); `log_q` never falls below `floor`, and `labels` are 0, 1, … without
    gaps.

    With lambda = stake / (1 + nats - floor) every factor u_i is at least lambda, which makes log K convex in p. Its minimum has
    p_c proportional to the sum of 1 / u_i over the rows of class c: iterated, and what the tangent there leaves open is subtracted.
    """
    share = stakes[:, None] / (1 + nats - floor)
    p = torch.bincount(labels).double().expand(len(stakes), -1) / len(labels)
    value = gap = torch.zeros(len(stakes), dtype=torch.float64)
    for _ in range(TURNS):
        u = 1 + share * (log_q - nats - p.log()[:, labels])
        weight = torch.zeros_like(p).index_add_(1, labels, 1 / u)
        slope = -share * weight / p
        value, gap = u.log().sum(1), (slope * p).sum(1) - slope.min(1).values
        if gap.max() < CLOSE:
            break
        p = weight / weight.sum(1, keepdim=True)
    return value - gap
