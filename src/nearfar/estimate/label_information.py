"""Information of features about a label, from a classifier fitted to other rows.

The estimate is InfoNCE with the classifier as critic:

    I(x; y) >= E[ f(x_i, y_i) - log( (1/n) sum_j e^f(x_i, y_j) ) ]    f(x, c) any function fitted to other rows

Every row is contrasted with the labels of all others, so the sum over j is a sum over classes weighted by
their
counts: n x C numbers instead of n x n. The best f is log p(c | x), and then the value is I up to O(1/n).

`lower_limit` is a confidence limit of I that holds at every sample size. For any conditional probability q
fitted to other rows, I(x; y) >= E[ log q(y | x) - log p(y) ] (Barber & Agakov 2003). If I is at most m, a
gambler who stakes the share lambda on every row has the wealth

    K(m) = prod_i ( 1 + lambda ( log q(y_i | x_i) - log p(y_i) - m ) ),        1 + lambda (...) >= 0,

which does not grow in expectation. So P(K(m) >= 1 / (1 - confidence)) <= 1 - confidence (Markov), for n = 50
as for n = 10^6 and however skewed the rows are (Waudby-Smith & Ramdas 2024). The limit is the largest m at
which K reaches that value. Three quantities are unknown beforehand:

    p(y)      K is replaced by its minimum over all p, a convex problem
    lambda    K is the mean over stakes, each half the previous one
    q         is mixed with the uniform distribution, so that no row loses everything; K is a mean over mixtures

Every factor falls as m rises, and so does K; bisection finds the largest m. Proofs: docs/certificates.md.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from nearfar.core.types import NegativeSampling
from nearfar.estimate import settings
from nearfar.estimate.result import AtLeast, certificate_json
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.bounds.claims import certify, not_covered

CONDITION = (
    "the classifier is a probability q(y | x) of labels, so that E[log q(y | x) / p(y)] is at most I (Barber "
    "& Agakov 2003); the lower limit is that of a test martingale for the least favourable p(y); it holds for "
    "any number of rows and any distribution of them (Waudby-Smith & Ramdas 2024)"
)


def infonce_of_labels(
    scores: Float[Tensor, "row class"],
    labels: Int[Tensor, "row"],
    subset: Bool[Tensor, "row"] | None = None,
) -> float:
    """The estimate in nats on these rows, or on a subset of them."""
    f, y = (scores.double(), labels) if subset is None else (scores[subset].double(), labels[subset])
    counts = torch.bincount(y, minlength=f.shape[1]).double()
    denominator = torch.logsumexp(f + counts.log(), dim=1) - math.log(len(y))
    return float((f.gather(1, y[:, None])[:, 0] - denominator).mean())


def label_information(
    scores: Float[Tensor, "row class"],
    labels: Int[Tensor, "row"],
    *,
    held_out: bool | None = True,
    confidence: float = settings.LABEL_CONFIDENCE,
    left_out: int = 0,
    dependent: str = "",
) -> dict[str, Any]:
    """InfoNCE with its jackknife error, a lower confidence limit, and the entropy of the labels, which bounds
    both.

    scores: logits or log-probabilities of classes. held_out: whether the classifier was fitted to other rows.
    left_out: rows dropped because they resemble rows that something was fitted to; the information is then
    that of the others. dependent: why rows are not independent, if they are not.
    """
    rows = len(labels)
    if rows < 2:
        raise ValueError(f"information about a label of {rows} rows; it takes at least two")
    groups = min(settings.LABEL_JACKKNIFE_GROUPS, rows)
    group = torch.randperm(rows, generator=torch.Generator().manual_seed(0)) % groups
    jackknife = torch.tensor(
        [infonce_of_labels(scores, labels, group != g) for g in range(groups)], dtype=torch.float64
    )
    error = math.sqrt((groups - 1) / groups * float((jackknife - jackknife.mean()).square().sum()))
    share = torch.bincount(labels).double() / rows
    share = share[share > 0]
    sampling = NegativeSampling(rows, rows - 1, held_out=held_out, batch_statistics=False)
    certificate, limit_certificate = (
        not_covered(dependent, claim.ceiling) if dependent and claim.status == "proven" else claim
        for claim in (
            InfoNCE().certificate(sampling),
            certify(f"{CONDITION}{_population(rows, left_out)}", sampling),
        )
    )
    limit = AtLeast(lower_limit(scores, labels, confidence), confidence, limit_certificate, "barber-agakov")
    return {
        "nats": infonce_of_labels(scores, labels),
        "error": error,
        "at_least": limit.as_json(),
        "ceiling": certificate.ceiling,
        "entropy": float(-(share * share.log()).sum()),
        "certificate": certificate_json(certificate),
        "samples": rows,
    }


def _population(rows: int, left_out: int) -> str:
    if not left_out:
        return ""
    total = rows + left_out
    return (
        f"; it is the information of instances unlike any fitted on, which {rows} of these {total} rows are"
    )


def lower_limit(scores: Float[Tensor, "row class"], labels: Int[Tensor, "row"], confidence: float) -> float:
    """A lower confidence limit of the information about the labels, in nats.

    `scores` as in `label_information`.
    """
    low, high = 0.0, math.log(scores.shape[1])
    if not is_rejected(low, scores, labels, confidence):
        return 0.0
    while high - low > settings.LABEL_TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_rejected(middle, scores, labels, confidence) else (low, middle)
    return low


def is_rejected(
    nats: float, scores: Float[Tensor, "row class"], labels: Int[Tensor, "row"], confidence: float
) -> bool:
    """Whether H0: I <= nats is rejected at this confidence."""
    rows, classes = scores.shape
    probability = scores.double().softmax(1).gather(1, labels[:, None])[:, 0]
    classes_present = torch.unique(labels, return_inverse=True)[1]  # type: ignore[no-untyped-call,unused-ignore]
    # a stake is useful down to about 1 / sqrt(rows) of the largest
    stakes = 2.0 ** -torch.arange(math.ceil(math.log2(rows) / 2) + 2).double()
    log_wealths = [
        log_wealth(
            (share / classes + (1 - share) * probability).log(),
            classes_present,
            math.log(share / classes),
            nats,
            stakes,
        )
        for share in settings.UNIFORM_SHARES
    ]
    mean = float(torch.cat(log_wealths).logsumexp(0)) - math.log(len(settings.UNIFORM_SHARES) * len(stakes))
    return mean >= -math.log(1 - confidence)


def log_wealth(
    log_q: Float64[Tensor, "row"],
    labels: Int64[Tensor, "row"],
    floor: float,
    nats: float,
    stakes: Float64[Tensor, "stake"],
) -> Float64[Tensor, "stake"]:
    """log of the minimum of K over all p(y), for each stake (a share, at most 1, of the largest).

    `log_q` is at least `floor`, and `labels` are 0, 1, ... without gaps. With lambda = stake / (1 + nats -
    floor) every factor u_i is at least lambda, which makes log K convex in p. At its minimum p_c is
    proportional to the sum of 1 / u_i over the rows of class c. This is iterated, and the gap to the tangent
    is subtracted.
    """
    share = stakes[:, None] / (1 + nats - floor)
    p = torch.bincount(labels).double().expand(len(stakes), -1) / len(labels)
    value = gap = torch.zeros(len(stakes), dtype=torch.float64)
    for _ in range(settings.MAX_ITERATIONS):
        u = 1 + share * (log_q - nats - p.log()[:, labels])
        weight = torch.zeros_like(p).index_add_(1, labels, 1 / u)
        slope = -share * weight / p
        value, gap = u.log().sum(1), (slope * p).sum(1) - slope.min(1).values
        if gap.max() < settings.LABEL_TOLERANCE:
            break
        p = weight / weight.sum(1, keepdim=True)
    return value - gap
