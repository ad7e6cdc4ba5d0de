"""Laws that an estimate of information must keep, checked without knowing the truth (Song & Ermon 2020).

independence      with y shuffled the estimate is zero
circular shift    with y moved by half its length too, if rows do not depend on their neighbours
data processing   a coarser x has at most the information of x
additivity        two independent copies side by side have twice the information
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from nearfar.estimate import settings
from nearfar.estimate.mi import estimate_mi
from nearfar.estimate.result import Estimate
from nearfar.estimate.rows import group_numbers
from nearfar.estimate.samples import Array, check_pair


@dataclass(frozen=True)
class LawCheck:
    """One law: the value, what is allowed (three standard errors), and whether it holds.

    `conclusive`: whether these samples could have refuted it. Where three errors exceed half of the expected
    value, they could not.
    """

    law: str
    value: float
    allowed: str
    holds: bool
    conclusive: bool = True


def check_mi(x: Any, y: Any, *, seed: int = 0, **options: Any) -> tuple[LawCheck, ...]:
    """Checks the laws for `estimate_mi` with these options; with `groups`, on one row of each."""
    pair = check_pair(x, y, options.pop("discrete", "auto"), options.pop("groups", None))
    unit = group_numbers(pair.groups, len(pair.x))
    rows = np.sort(np.unique(unit, return_index=True)[1])
    x, y = pair.x[rows], pair.y[rows]
    options = {"baselines": False, **options, "seed": seed, "discrete": pair.kinds}
    full = estimate_mi(x, y, **options)
    shuffled = estimate_mi(x, np.random.default_rng(seed).permutation(y), **options)
    shifted = estimate_mi(x, np.roll(y, len(y) // 2, axis=0), **options)
    coarse_kinds = np.full(max(1, x.shape[1] // 2), True), pair.kinds[1]
    coarse = estimate_mi(_coarsen(x), y, **{**options, "discrete": coarse_kinds})
    # random halves: those of a sorted table would be two different populations
    a, b = np.random.default_rng(seed).permutation(len(x))[: 2 * (len(x) // 2)].reshape(2, -1)
    first, second = estimate_mi(x[a], y[a], **options), estimate_mi(x[b], y[b], **options)
    twice = tuple(np.concatenate([kind, kind]) for kind in pair.kinds)
    copies = estimate_mi(np.hstack([x[a], x[b]]), np.hstack([y[a], y[b]]), **{**options, "discrete": twice})
    is_higher = copies.nats > first.nats + second.nats
    additivity_error = math.hypot(
        _error(copies, below=is_higher), *(_error(part, below=not is_higher) for part in (first, second))
    )
    processing_error = math.hypot(_error(coarse, below=True), _error(full, below=False))
    return (
        check_equal("independence", shuffled.nats, 0.0, _error(shuffled, below=True)),
        check_equal("circular shift", shifted.nats, 0.0, _error(shifted, below=True)),
        _check_at_most("data processing", coarse.nats, full.nats, processing_error),
        check_equal("additivity", copies.nats, first.nats + second.nats, additivity_error),
    )


def _coarsen(x: Array) -> Array:
    """The first half of the columns, each as 0 or 1: above its median or not."""
    columns = x[:, : max(1, x.shape[1] // 2)]
    high = columns > np.median(columns, axis=0)
    # a column whose median is its maximum has nothing above it: use "at the maximum" instead
    return np.where(high.any(axis=0), high, columns == columns.max(axis=0)).astype(float)


def _error(estimate: Estimate, below: bool) -> float:
    """The standard error on the side of the law's value, from that end of the interval."""
    low, high = estimate.interval
    distance = estimate.nats - low if below else high - estimate.nats
    return max(settings.MIN_LAW_ERROR, distance / float(norm.ppf((1 + estimate.confidence) / 2)))


def check_equal(law: str, value: float, expected: float, error: float) -> LawCheck:
    conclusive = expected == 0 or 3 * error <= expected / 2
    allowed = f"{expected:.4f} ± {3 * error:.4f}"
    return LawCheck(law, value, allowed, abs(value - expected) <= 3 * error, conclusive)


def _check_at_most(law: str, value: float, highest: float, error: float) -> LawCheck:
    return LawCheck(law, value, f"at most {highest:.4f} + {3 * error:.4f}", value <= highest + 3 * error)
