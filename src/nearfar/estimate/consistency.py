"""Does an estimate behave like information? Checks that need no truth (the tests of Song and Ermon 2020, and one of the rows).

independence      y shuffled tells nothing: the estimate is zero
circular shift    y moved by half its length tells nothing either, if rows do not depend on their neighbours
data processing   a coarser x tells no more about y than x does
additivity        two independent copies side by side tell twice as much
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearfar.estimate.dependence import checked_groups
from nearfar.estimate.mi import estimate_mi
from nearfar.estimate.result import Estimate
from nearfar.estimate.samples import Array, checked_pair


@dataclass(frozen=True)
class Check:
    """One law: what it allows, what came out, and whether that is within three standard errors of it.

    `telling`: whether these samples could have refuted it. Where three errors are more than half of what is expected, they could not.
    """

    law: str
    found: float
    allowed: str
    holds: bool
    telling: bool = True


def check_mi(x: Any, y: Any, *, seed: int = 0, **options: Any) -> tuple[Check, ...]:
    """The laws, each with the estimator that `options` (those of `estimate_mi`) describe; where there are `groups`, on one row
    of each."""
    pair = checked_pair(x, y, options.pop("discrete", "auto"), options.pop("groups", None))
    unit = checked_groups(pair.groups, len(pair.x))
    one_of_each = np.sort(np.unique(unit, return_index=True)[1])
    x, y = pair.x[one_of_each], pair.y[one_of_each]
    options = {"baselines": False, **options, "seed": seed, "discrete": pair.kinds}
    whole = estimate_mi(x, y, **options)
    shuffled = estimate_mi(x, np.random.default_rng(seed).permutation(y), **options)
    shifted = estimate_mi(x, np.roll(y, len(y) // 2, axis=0), **options)
    halves = np.full(max(1, x.shape[1] // 2), True)
    coarse = estimate_mi(_coarser(x), y, **{**options, "discrete": (halves, pair.kinds[1])})
    # at random: halves of a sorted table would be two different populations
    a, b = np.random.default_rng(seed).permutation(len(x))[: 2 * (len(x) // 2)].reshape(2, -1)
    first, second = estimate_mi(x[a], y[a], **options), estimate_mi(x[b], y[b], **options)
    twice = tuple(np.concatenate([kind, kind]) for kind in pair.kinds)
    copies = estimate_mi(np.hstack([x[a], x[b]]), np.hstack([y[a], y[b]]), **{**options, "discrete": twice})
    return (
        _near("independence", shuffled.nats, 0.0, _error(shuffled)),
        _near("circular shift", shifted.nats, 0.0, _error(shifted)),
        _at_most("data processing", coarse.nats, whole.nats, math.hypot(_error(coarse), _error(whole))),
        _near(
            "additivity",
            copies.nats,
            first.nats + second.nats,
            math.sqrt(_error(copies) ** 2 + _error(first) ** 2 + _error(second) ** 2),
        ),
    )


def _coarser(x: Array) -> Array:
    """Each column as its sign about the median, the first half of the columns only: less than x says."""
    kept = x[:, : max(1, x.shape[1] // 2)]
    above = kept > np.median(kept, axis=0)
    # a column whose median is its maximum has nothing above it: say what is at it instead
    return np.where(above.any(axis=0), above, kept == kept.max(axis=0)).astype(float)


def _error(estimate: Estimate) -> float:
    """Of a roughly normal estimate, from its interval; at least a thousandth, below which nothing is resolved."""
    from scipy.stats import norm

    low, high = estimate.interval
    return max(1e-3, (high - low) / (2 * float(norm.ppf((1 + estimate.confidence) / 2))))


def _near(law: str, found: float, wanted: float, error: float) -> Check:
    telling = wanted == 0 or 3 * error <= wanted / 2
    return Check(law, found, f"{wanted:.4f} ± {3 * error:.4f}", abs(found - wanted) <= 3 * error, telling)


def _at_most(law: str, found: float, most: float, error: float) -> Check:
    return Check(law, found, f"at most {most:.4f} + {3 * error:.4f}", found <= most + 3 * error)
