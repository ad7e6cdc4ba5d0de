"""The best estimate and its interval, from what folds found.

    held out    mean log r of unseen rows - log of the mean of r under independence          low by what the ratio misses
    missing     what half the rows to learn from would lose, and what rows gain by being learned from
    nats        held out + missing, where something was found

A mean over unseen rows is low by the divergence of the truth from the ratio. Two things measure it: halving the rows
raises it (learning curve), and rows that were learned from look better by as much again (Akaike). A third is known beforehand: rows of a level that
training did not see say nothing. The upper end allows besides for what is in no ratio's reach: a share of the estimate that falls with the rows, what would not
stand out from chance in so many columns or levels, and what rows of new levels might tell. How much of each counts, and how
wide the interval must be, is not derived but measured: benchmarks/mutual_information.py, on problems of known information.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, norm

from nearfar.estimate.competition import BOTH_WAYS, Fold, expected, normaliser

# missing = min(1.2 curve + 0.2 fit, 0.6 curve + 0.4 fit): halving a small sample loses more than doubling it will win back, and rows
# look better for having been learned from also where the ratio is as good as it can be
OF_CURVE, OF_FIT = (1.2, 0.6), (0.2, 0.4)
DOUBT_BELOW, DOUBT_ABOVE = 0.5, 0.8  # standard deviation of what is missing, as a share of it
UNFOUND = 0.9  # times rows^(-1/2), the share of the estimate that no candidate may have found: 0.03 at 1,000
NEW_LEVELS = 1.5  # of what rows of levels never seen might gain, were they learned from like the others
MOST_UNKNOWN = 0.9  # share of rows with new levels from which no more is made of the others
FOUND = 3.0  # errors above zero from which the interval takes folds as independent; what is proven asks for more (`CLEARLY`)
LEAST_DOUBT = 0.002  # nats


UNFITTED = (
    "no model could be fitted to these columns, so nothing is known of their information: the estimate is no evidence of "
    "independence, and there is no interval; give fewer columns or levels, or more rows"
)


@dataclass(frozen=True)
class Measured:
    """What the folds say together, in nats but for `unknown` and `units`."""

    held_out: float
    error: float  # of the held-out mean
    curve: float  # what half the rows to learn from would lose
    fit: float  # what rows gain by being learned from
    unknown: float  # share of rows with a level that was not learned from
    hidden: float  # what would not stand out from chance
    rows: int  # learned from
    units: int  # independent rows
    model_based: bool  # too few pairs carry the normaliser: the ratio's own is taken on trust
    fitted: bool = True  # whether any ratio could be fitted


@dataclass(frozen=True)
class Best:
    nats: float
    interval: tuple[float, float]
    doubt: tuple[
        float, float
    ]  # beside sampling error: standard deviations of what may be less, and of what may be more
    model_based: bool
    fitted: bool
    cut_from: float | None  # nats before the cut at 2 log n, where it was cut
    learning: Mapping[
        str, float
    ]  # the mean log ratio of rows learned from, of unseen rows, and of those with half to learn from


def best_estimate(folds: list[Fold], unit: np.ndarray, confidence: float) -> Best:
    return reckoned(measured(folds, int(unit.max()) + 1), confidence)


def measured(folds: list[Fold], units: int) -> Measured:
    rows = sum(len(fold.value) for fold in folds)
    levels = [normaliser(fold) for fold in folds]
    held_out = (
        sum(fold.value.sum() - level * len(fold.value) for fold, level in zip(folds, levels, strict=True))
        / rows
    )
    error = _error(folds, levels, units)
    # a few pairs can carry the normaliser far off; InfoNCE has one for every row, and what is above is nearer
    of_bound = float(np.mean([fold.bound.mean() for fold in folds]))
    if of_bound > held_out:
        terms = np.concatenate([fold.bound - fold.bound.mean() for fold in folds])
        held_out, error = of_bound, float(terms.std()) / math.sqrt(units)
    error = max(error, math.sqrt(expected(folds) / units))
    return Measured(
        held_out=float(held_out),
        error=error * (1.0 if held_out > FOUND * error else math.sqrt(BOTH_WAYS)),
        curve=max(0.0, sum(fold.step for fold in folds) / len(folds)),
        fit=max(0.0, sum(fold.learned - float(fold.value.mean()) for fold in folds) / len(folds)),
        unknown=float(np.mean([fold.unknown for fold in folds])),
        hidden=float(np.mean([fold.hidden for fold in folds])),
        rows=min(fold.rows_learned for fold in folds),
        units=units,
        model_based=any(
            level == 0.0 and fold.log_mean != 0.0 for fold, level in zip(folds, levels, strict=True)
        ),
        fitted=all(fold.stack.candidates for fold in folds),
    )


def reckoned(found: Measured, confidence: float) -> Best:
    held_out, error = found.held_out, found.error
    # where nothing is found nothing is missing: as sure as the estimate is of itself
    sure = max(0.0, held_out) ** 2 / (max(0.0, held_out) ** 2 + (2 * error) ** 2 + 1e-12)
    learning = min(a * found.curve + b * found.fit for a, b in zip(OF_CURVE, OF_FIT, strict=True))
    # rows of levels that were never seen say nothing; they are taken to be like the others
    unknown = min(found.unknown, MOST_UNKNOWN)
    measured_to_miss = max(learning, max(0.0, held_out) * unknown / (1 - unknown))
    missing = sure * measured_to_miss
    nats = held_out + missing
    z = float(norm.ppf((1 + confidence) / 2))
    less = DOUBT_BELOW * missing
    down = z * math.hypot(error, less, LEAST_DOUBT)
    # what was not found may still be there: the upper end counts all that is measured to be missing, also where the estimate does not, or
    # what chance would hide, which is the same seen twice. What no ratio has the shape of, hard edges above all, falls like the squared
    # error of kernels at a jump (Donoho and Johnstone 1998): nats are lost in proportion to the square
    unfound = UNFOUND * found.rows**-0.5 * max(0.0, held_out)
    not_learned = max(DOUBT_ABOVE * measured_to_miss, found.hidden)
    more = math.hypot(not_learned, unfound, NEW_LEVELS * unknown * found.fit)
    up = _upper(nats, down, confidence) * math.hypot(error, more, LEAST_DOUBT)
    # no ratio above the number of pairs can show in so many of them
    highest = 2 * math.log(found.units)
    unseen = float(chi2.ppf(confidence, 1)) / (2 * found.units)
    upper = float(max(unseen, max(0.0, nats) + up))
    # nothing limits an information that no ratio was fitted to, or that is beyond what so many rows can show
    limited = found.fitted and nats <= highest
    return Best(
        float(min(highest, max(0.0, nats))),
        (float(min(highest, max(0.0, nats - down))), upper if limited else math.inf),
        (float(less), float(more) if limited else math.inf),
        found.model_based,
        found.fitted,
        float(nats) if nats > highest else None,
        {"learned": held_out + found.fit, "unseen": held_out, "half": held_out - found.curve},
    )


def _upper(nats: float, down: float, confidence: float) -> float:
    """Standard deviations to the upper end. As far as the lower end would lie below zero nothing can be missed there, and its share of all misses goes to
    the upper end: an interval from 0 on misses on one side only."""
    above = max(0.0, nats)
    reached = 1.0 if above >= down else above / down
    below = (1 - confidence) / 2 * reached
    return float(norm.isf(1 - confidence - below))


def _error(folds: list[Fold], levels: list[float], units: int) -> float:
    """Of the mean over all rows, and of the normaliser, which moves with the rows that stand in its pairs."""
    own = np.concatenate([fold.own - fold.own.mean() for fold in folds])
    terms = np.concatenate(
        [
            fold.own - fold.own.mean() if level == 0.0 else fold.terms - fold.terms.mean()
            for fold, level in zip(folds, levels, strict=True)
        ]
    )
    return math.sqrt(own.var() / units + max(0.0, terms.var() - own.var()) / len(terms))
