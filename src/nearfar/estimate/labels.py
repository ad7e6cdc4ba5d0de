"""What features tell about a label, from below: InfoNCE with a classifier as critic.

    I(x; y) >= E[ f(x_i, y_i) - log( (1/n) sum_j e^f(x_i, y_j) ) ]        f(x, c) any function fitted to other rows

Every row is contrasted with the labels of all others, so the sum over j is a sum over classes, each as often as it occurs: n rows
cost n × C numbers, not n × n. The best f is log p(c | x), and then the value is I up to O(1/n). That value is one sample's; what it proves
of I with a stated confidence is `wealth.least_information`.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nearfar.core.types import NegativeSampling
from nearfar.estimate.result import AtLeast, certificate_json
from nearfar.estimate.wealth import least_information
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.bounds.claims import not_covered, proven

GROUPS = 50  # of rows left out in turn, for the error
CONFIDENCE = 0.95  # of the one-sided bound
AT_LEAST = (
    "the classifier is a probability q(y | x) of labels, so that E[log q(y | x) / p(y)] is at most I (Barber & Agakov 2003), and its lower "
    "limit is that of a test martingale for the least favourable p(y), which holds for any number of rows and any distribution of them "
    "(Waudby-Smith & Ramdas 2024)"
)


def infonce_of_labels(
    scores: Float[Tensor, "row class"], labels: Int[Tensor, "row"], kept: Bool[Tensor, "row"] | None = None
) -> float:
    """The estimate on these rows, or on those of them that are kept."""
    f, y = (scores.double(), labels) if kept is None else (scores[kept].double(), labels[kept])
    counts = torch.bincount(y, minlength=f.shape[1]).double()
    everyone = torch.logsumexp(f + counts.log(), dim=1) - math.log(len(y))
    return float((f.gather(1, y[:, None])[:, 0] - everyone).mean())


def label_information(
    scores: Float[Tensor, "row class"],
    labels: Int[Tensor, "row"],
    *,
    held_out: bool | None = True,
    confidence: float = CONFIDENCE,
    left_out: int = 0,
    dependent: str = "",
) -> dict[str, Any]:
    """InfoNCE's value with the jackknife's error, what the information is at least with this confidence, and the labels' own entropy,
    which no features can exceed (as counted on these rows). `scores` are logits or log-probabilities. `left_out`: rows not asked about because they look like rows that
    something was fitted to; the information is then that of the others. `dependent`: why rows are no independent draws, where they are not."""
    rows = len(labels)
    if rows < 2:
        raise ValueError(f"information about a label of {rows} rows; it takes at least two")
    value = infonce_of_labels(scores, labels)
    groups = min(GROUPS, rows)
    group = torch.randperm(rows, generator=torch.Generator().manual_seed(0)) % groups
    left = torch.tensor(
        [infonce_of_labels(scores, labels, group != g) for g in range(groups)], dtype=torch.float64
    )
    error = math.sqrt((groups - 1) / groups * float((left - left.mean()).square().sum()))
    share = torch.bincount(labels).double() / rows
    share = share[share > 0]
    given = NegativeSampling(rows, rows - 1, held_out=held_out, batch_statistics=False)
    certificate, least_proven = (
        not_covered(dependent, claim.ceiling) if dependent and claim.status == "proven" else claim
        for claim in (InfoNCE().certificate(given), proven(f"{AT_LEAST}{_of_others(rows, left_out)}", given))
    )
    least = AtLeast(least_information(scores, labels, confidence), confidence, least_proven)
    return {
        "nats": value,
        "error": error,
        "at_least": least.as_json(),
        "ceiling": certificate.ceiling,
        "entropy": float(-(share * share.log()).sum()),
        "certificate": certificate_json(certificate),
        "samples": rows,
    }


def _of_others(rows: int, left_out: int) -> str:
    if not left_out:
        return ""
    return f"; it is the information of instances unlike any fitted on, which {rows} of these {rows + left_out} rows are"
