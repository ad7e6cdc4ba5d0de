"""How a claim is put together: from the bound's proof, the sampling, and what a selection cut.

A claim is a function of all its conditions (`NegativeSampling`). What fails is never proven; what
the program cannot know becomes part of the sentence.
"""

import math

from scipy.special import betaincinv

from nearfar.core.schedules import Progress, Value, as_text, at, ends, parse_value
from nearfar.core.types import Certificate, Coverage, NegativeSampling
from nearfar.errors import UserError

FITTED = "encoders and critic are fitted to this very sample, which can raise the value above I"
BATCH_STATISTICS = (
    "an embedding depends on the rest of its batch (batch norm in training mode), so anchor and negatives "
    "are not independent"
)
CLAIM = "a lower bound in expectation if rows are independent draws"
# of every proof: which information is meant. For the data set itself as the population, rows drawn without
# replacement are dependent, and the estimate can exceed that information (docs/certificates.md)
POPULATION = (
    "I is that of the distribution from which the rows, each another instance, were drawn independently"
)
CONFIDENCE = 0.95  # in the statement about anchors that were not measured


def checked(value: Value, key: str, low: float, high: float, allowed: str) -> Value:
    """`value` as a number or schedule whose ends lie strictly between `low` and `high`."""
    parsed = parse_value(value, f"bound.{key}")
    if not all(low < end < high for end in ends(parsed)):
        raise UserError(f"bound.{key} was {as_text(parsed)}; it must be {allowed}")
    return parsed


def values(value: Value, progress: Progress | None) -> tuple[float, ...]:
    """The numbers that a certificate covers: the one of now, or both ends of the schedule."""
    return ends(value) if progress is None else (at(value, progress),)


def objective(reason: str, ceiling: float | None = None) -> Certificate:
    return Certificate("objective only", reason, ceiling)


def not_covered(reason: str, ceiling: float | None = None) -> Certificate:
    return Certificate("not covered", reason + _limit(ceiling), ceiling)


def per_anchor_ceiling(nats: float, sampling: NegativeSampling) -> float | None:
    """The limit of a mean over anchors; none where anchors have weights without limit."""
    return None if sampling.importance else nats


def certify(
    condition: str,
    sampling: NegativeSampling,
    ceiling: float | None = None,
    *,
    averages_anchors: bool = False,
) -> Certificate:
    """A claim that holds for all negatives of a sample, carried over to those that a selection kept.
    `averages_anchors`: see `AbstractBound`.

    Only for bounds that fall when a negative's score rises: dropping the least similar then only lowers them.
    A cut from above needs every kept e^f to reach the mean over the anchor's candidates (Wu et al. 2021, Thm
    3.1), which can be measured on some anchors and never seen to hold for all.
    """
    if sampling.dependent:
        return not_covered(f"{sampling.dependent}, so rows are not independent draws", ceiling)
    if sampling.batch_statistics:
        return not_covered(BATCH_STATISTICS, ceiling)
    if sampling.held_out is False:
        return not_covered(FITTED, ceiling)
    if sampling.importance and not averages_anchors:
        return not_covered(
            "negatives are drawn from a proposal, and the value is no mean over anchors", ceiling
        )
    if sampling.cut == "above":
        if sampling.coverage is None:
            return not_covered(f"{_CUT}, which was not measured; {_CUT_CONDITION}", ceiling)
        coverage = _measured_coverage(sampling.coverage)
        return Certificate(
            "measured", f"{_CUT}, which {coverage}; {_CUT_CONDITION}{_limit(ceiling)}", ceiling
        )
    if sampling.importance:
        condition = f"{condition}; anchors are weighted by p / q of their draw, so the expectation is that of blind draws"
    if sampling.cut == "below":
        condition = f"{condition}; dropping the least similar can only lower the estimate"
    if sampling.weighted:
        condition = f"{condition}; weights that rise with similarity can only lower it"
    unknown = []
    if sampling.held_out is None:
        unknown.append("neither encoders nor critic were fitted to this sample")
    if sampling.batch_statistics is None:
        unknown.append("no embedding depends on the rest of its batch")
    assumptions = f", given that {' and '.join(unknown)}" if unknown else ""
    return Certificate("proven", f"{CLAIM}{assumptions}; {condition}; {POPULATION}", ceiling)


_CUT = "dropping the most similar negatives has a condition"
_CUT_CONDITION = "every kept e^f must be at least its mean over the anchor's candidates"


def _measured_coverage(coverage: Coverage) -> str:
    """What was measured, and what follows at least for anchors that were not (Clopper and Pearson 1934)."""
    covered = round(coverage.share * coverage.anchors)
    lower_limit = (
        float(betaincinv(covered, coverage.anchors - covered + 1, 1 - CONFIDENCE)) if covered else 0.0
    )
    return (
        f"held for {_percent(coverage.share)} of the {coverage.anchors} anchors measured (of all anchors for "
        f"at least {_percent(lower_limit)}, at {CONFIDENCE:.0%} confidence)"
    )


def _percent(share: float) -> str:
    # rounding down: a share short of all must never read as all
    return f"{math.floor(100 * share)} %"


def _limit(ceiling: float | None) -> str:
    return "" if ceiling is None else f"; the value cannot exceed {ceiling:.4g} nats"
