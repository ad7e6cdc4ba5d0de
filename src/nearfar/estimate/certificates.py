"""Certificates of estimates, warnings about bounds, and the names of what was used."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import START, at
from nearfar.core.types import Certificate
from nearfar.estimate import settings
from nearfar.estimate.bound_choice import Contrast, FoldScores, arrange, effective_samples
from nearfar.estimate.measure import BoundValue, average_of_draws
from nearfar.estimate.rows import RowCheck
from nearfar.estimate.samples import Scaling
from nearfar.parts import bounds
from nearfar.parts.bounds import NWJ, TUBA, AlphaCPC, MultiLabelCPC

NORMAL = (
    "the mean over folds is taken as normal (central limit theorem of cross-validation, Bayle et al. 2020)"
)
BEST = (
    "the best estimate, no bound: the mean log ratio of unseen rows plus the measured loss from fitting to "
    "few rows; the coverage of its interval was measured on problems of known information, not proven; "
    "at_least is the proven number"
)


def bound_certificate(
    fold_bounds: Sequence[AbstractBound], negatives: Contrast, samples: int, candidates: int
) -> Certificate:
    """The certificate of the folds' bounds for held-out blocks of `samples` rows, chosen among `candidates`
    bounds.

    It is that of the bound chosen most often, with the highest ceiling. All bounds to choose from are proven
    alike.
    """
    claims = [
        bound.certificate(arrange(bound, negatives, samples, 0, torch.device("cpu"))[0].sampling)
        for bound in fold_bounds
    ]
    conditions = [claim.condition for claim in claims]
    commonest = max(claims, key=lambda claim: conditions.count(claim.condition))
    if candidates == 1:
        return commonest
    ceilings = [claim.ceiling for claim in claims]
    highest = None if any(c is None for c in ceilings) else max(c for c in ceilings if c is not None)
    selection = "each fold's bound was chosen on rows that it does not report on"
    return replace(commonest, condition=f"{commonest.condition}; {selection}", ceiling=highest)


def with_row_check(certificate: Certificate, rows: RowCheck, grouped: bool) -> Certificate:
    """Adds the assumption of independent rows; "not covered" if the rows refute it."""
    if rows.refuted:
        return replace(certificate, status="not covered", condition=f"{rows.refuted}: {rows.advice}")
    if certificate.status != "proven":
        return certificate
    unit = "groups" if grouped else "rows"
    return replace(certificate, condition=f"{certificate.condition}; {unit} are independent of one another")


def with_confidence(certificate: Certificate) -> Certificate:
    """Turns a claim about an expectation into one about a confidence limit."""
    if certificate.status != "proven":
        return certificate
    return replace(certificate, condition=f"{certificate.condition}; {NORMAL}")


def describe_scaling(scaling: Scaling, kinds: tuple[np.ndarray, np.ndarray]) -> str:
    continuous = {"rank": "ranks to normals", "standard": "standardised", "none": "not scaled"}[scaling]
    levels = int(kinds[0].sum() + kinds[1].sum())
    return f"{continuous}, {levels} discrete columns to indicators" if levels else continuous


def bound_name(bound: AbstractBound) -> str:
    name = next((name for name, part in bounds.PARTS.items() if part is type(bound)), type(bound).__name__)
    if not isinstance(bound, AlphaCPC | MultiLabelCPC):
        return name
    return f"{name}(alpha={at(bound.alpha, START):.4g})"


def join_names(names: Sequence[str]) -> str:
    """The name of all folds' bounds, or each with its number of folds."""
    counts = {name: names.count(name) for name in names}
    return names[0] if len(counts) == 1 else ", ".join(f"{name} in {k} folds" for name, k in counts.items())


def choice_reason(fold_values: Sequence[dict[str, BoundValue]]) -> str:
    """Why the bounds were chosen: their mean values on validation rows.

    Folds share rows, so their errors are not independent, and the error is their mean.
    """
    if not fold_values[0]:
        return "as requested"
    means = {
        name: average_of_draws([values[name] for values in fold_values if name in values])
        for name in dict.fromkeys(name for values in fold_values for name in values)
    }
    return "on validation data " + ", ".join(
        f"{name} {value.nats:.4f} ± {value.error:.4f}" for name, value in means.items()
    )


def ceiling_warnings(high: float, ceiling: float | None) -> list[str]:
    """`high`: the upper end of the interval."""
    if ceiling is None or high <= settings.NEAR_CEILING * ceiling:
        return []
    return [
        f"the estimate is near its ceiling of {ceiling:.2f} nats, so the information may be higher; more "
        "samples raise the ceiling, and so does bound=ml-cpc"
    ]


def bound_warnings(
    total: BoundValue, fold_bounds: Sequence[AbstractBound], scores: Sequence[FoldScores]
) -> list[str]:
    warnings = []
    sizes = [
        effective_samples(fold.validation)
        for bound, fold in zip(fold_bounds, scores, strict=True)
        if isinstance(bound, NWJ | TUBA)
    ]
    if min(sizes, default=math.inf) < settings.MIN_EFFECTIVE_SAMPLES:
        warnings.append(
            f"the mean of e^f rests on {min(sizes):.1f} effective anchors of a fold, too few to know its "
            "expectation: the value is unreliable; use bound=infonce or more samples"
        )
    if total.nats + 3 * total.error < 0:
        warnings.append("the estimate is clearly below zero: the critic is misleading and the value useless")
    return warnings
