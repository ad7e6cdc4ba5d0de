"""How a claim is put together: from what the bound proves, where the negatives came from and what was cut."""

import math

from nearfar.errors import UserError
from nearfar.schedules import Progress, Value, at, ends, parse_value, written
from nearfar.types import Certificate, NegativeSampling

UNFITTED = "on data the critic was not fitted to"


def checked(value: Value, key: str, low: float, high: float, allowed: str) -> Value:
    """`value` as a number or schedule whose ends lie strictly between `low` and `high`."""
    parsed = parse_value(value, f"bound.{key}")
    if not all(low < end < high for end in ends(parsed)):
        raise UserError(f"bound.{key} was {written(parsed)}; it must be {allowed}")
    return parsed


def values(value: Value, progress: Progress | None) -> tuple[float, ...]:
    """The numbers a certificate must cover: the one of now, or, without progress, both ends of the schedule."""
    return ends(value) if progress is None else (at(value, progress),)


def objective(why: str, ceiling: float | None = None) -> Certificate:
    return Certificate("objective only", why, ceiling)


def not_covered(why: str, ceiling: float | None = None) -> Certificate:
    limit = "" if ceiling is None else f"; the value still cannot exceed {ceiling:.4g} nats"
    return Certificate("not covered", why + limit, ceiling)


def proven(condition: str, sampling: NegativeSampling, ceiling: float | None = None) -> Certificate:
    """A claim that holds for all negatives, carried over to those that a selection kept.

    Only for bounds that fall when a negative's score rises: dropping the least similar then only lowers them. A
    cut from above needs every kept e^f to reach the mean over the anchor's candidates (Wu et al. 2021, Thm 3.1).
    """
    if sampling.cut == "above":
        share = sampling.covered
        if share is None:
            return not_covered(f"{_CUT}, which was not measured", ceiling)
        if share < 1.0:
            return not_covered(f"{_CUT}, which holds for {_percent(share)} of anchors", ceiling)
        condition = f"{condition}; {_CUT}, which held for every anchor measured: measure many"
    if sampling.cut == "below":
        condition = f"{condition}; dropping the least similar can only lower the estimate"
    return Certificate("proven", condition, ceiling)


_CUT = (
    "the most similar negatives were dropped, so every kept e^f must be at least its mean over the anchor's "
    "candidates"
)


def _percent(share: float) -> str:
    # rounding down: a share short of all must never read as all
    return f"{math.floor(100 * share)} %"
