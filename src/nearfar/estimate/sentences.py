"""What an estimate says of itself: certificates with what they presume of the rows, warnings, names of what was used."""

import math
from dataclasses import replace

import numpy as np
import torch

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import START, at
from nearfar.core.types import Certificate
from nearfar.estimate.choose import LEAST_EFFECTIVE, Contrast, Part, effective, trials
from nearfar.estimate.dependence import RowsSeen
from nearfar.estimate.measure import Measured, average_of_draws
from nearfar.estimate.samples import Scaling
from nearfar.parts import bounds
from nearfar.parts.bounds import NWJ, TUBA

LEANING = 0.8  # share of its ceiling from which an estimate says more about the ceiling than about the data
DEPENDENT = "the claim needs independent rows; name those that belong together with groups, or thin a series"
NORMAL = (
    "the mean over folds is taken as normal (central limit theorem of cross-validation, Bayle et al. 2020)"
)
BEST = (
    "the best estimate, no bound: the mean log ratio of unseen rows and what fitting to so few rows is measured to miss; "
    "its interval's coverage was measured on problems of known information, not proven; at_least is the proven number"
)


def claim(taken: list[AbstractBound], negatives: Contrast, samples: int, among: int) -> Certificate:
    """What the folds' bounds claim for held-out blocks of so many samples, chosen among so many bounds: that of the one
    taken most often, and the highest ceiling. All that can be chosen are proven alike."""
    said = [
        each.certificate(trials(each, negatives, samples, 0, torch.device("cpu"))[0].sampling)
        for each in taken
    ]
    most = max(said, key=lambda one: sum(one.condition == other.condition for other in said))
    if among == 1:
        return most
    ceilings = [one.ceiling for one in said]
    highest = None if any(c is None for c in ceilings) else max(c for c in ceilings if c is not None)
    chosen = "each fold's bound was chosen on rows that it does not report on"
    return replace(most, condition=f"{most.condition}; {chosen}", ceiling=highest)


def for_rows(certificate: Certificate, rows: RowsSeen, grouped: bool) -> Certificate:
    """The same claim with what it presumes of the rows; none where the rows refute it."""
    if rows.refuted:
        return replace(certificate, status="not covered", condition=f"{rows.refuted}: {DEPENDENT}")
    if certificate.status != "proven":
        return certificate
    presumed = "groups" if grouped else "rows"
    return replace(
        certificate, condition=f"{certificate.condition}; {presumed} are independent of one another"
    )


def with_confidence(certificate: Certificate) -> Certificate:
    """A claim about an expectation, as one about the number itself."""
    if certificate.status != "proven":
        return certificate
    return replace(certificate, condition=f"{certificate.condition}; {NORMAL}")


def scaling_said(scaling: Scaling, kinds: tuple[np.ndarray, np.ndarray]) -> str:
    continuous = {"rank": "ranks to normals", "standard": "standardised", "none": "not scaled"}[scaling]
    levels = int(kinds[0].sum() + kinds[1].sum())
    return f"{continuous}, {levels} discrete columns to indicators" if levels else continuous


def written(bound: AbstractBound) -> str:
    name = next((name for name, part in bounds.PARTS.items() if part is type(bound)), type(bound).__name__)
    alpha = getattr(bound, "alpha", None)
    return name if alpha is None else f"{name}(alpha={at(alpha, START):.4g})"


def several(names: list[str]) -> str:
    """What the folds took: one name, or each with how often."""
    counts = {name: names.count(name) for name in names}
    return names[0] if len(counts) == 1 else ", ".join(f"{name} in {k} folds" for name, k in counts.items())


def reason(values: list[dict[str, Measured]]) -> str:
    """What each bound was worth on validation rows, mean over the folds that could measure it.

    Folds share rows, so their errors are not independent: the mean of them stands for all.
    """
    if not values[0]:
        return "as asked"
    means = {
        name: average_of_draws([each[name] for each in values if name in each])
        for name in dict.fromkeys(name for each in values for name in each)
    }
    return "on validation data " + ", ".join(
        f"{name} {one.nats:.4f} ± {one.error:.4f}" for name, one in means.items()
    )


def about_rows(rows: RowsSeen) -> list[str]:
    return [f"{rows.refuted}: {DEPENDENT}"] if rows.refuted else [rows.doubt] if rows.doubt else []


def about_ceiling(high: float, ceiling: float | None) -> list[str]:
    if ceiling is None or high <= LEANING * ceiling:
        return []
    return [
        f"the estimate leans on its ceiling of {ceiling:.2f} nats, so the truth may be higher; "
        "more samples raise the ceiling, and so does bound=ml-cpc"
    ]


def about_bounds(total: Measured, taken: list[AbstractBound], parts: list[Part]) -> list[str]:
    found = []
    sizes = [
        effective(part.validation)
        for each, part in zip(taken, parts, strict=True)
        if isinstance(each, NWJ | TUBA)
    ]
    if min(sizes, default=math.inf) < LEAST_EFFECTIVE:
        found.append(
            f"the mean of e^f rests on {min(sizes):.1f} effective anchors of a fold, too few to know its expectation: the "
            "value can be anything; use bound=infonce or more samples"
        )
    if total.nats + 3 * total.error < 0:
        found.append("the estimate is clearly below zero: the critic misleads, and nothing can be said")
    return found
