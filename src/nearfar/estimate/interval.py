"""The best estimate and its interval, from cross-fitted folds.

    held out    mean log r of unseen rows - log of the mean of r under independence
    missing     what the ratio misses
    nats        held out + missing, where held out is clearly above zero

A mean over unseen rows is low by the divergence of the truth from the ratio. Two things measure it: halving
the rows increases it (learning curve), and training rows look better by as much again (Akaike). Rows of a
level that training did not see contribute nothing.

The upper end also allows for what no ratio can express: a share of the estimate that falls with the rows, the
minimum detectable information, and rows of new levels. The constants are measured, not derived:
benchmarks/report_information.py, on problems of known information.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, norm

from nearfar.estimate.crossfit import FOLD_VARIANCE, FittedFold, mean_expected_variance, normaliser

# missing = min(1.2 curve + 0.2 fit, 0.6 curve + 0.4 fit): halving a small sample loses more than doubling it
# gains,
# and training rows look better also where the ratio is as good as it can be
CURVE_FACTORS, FIT_FACTORS = (1.2, 0.6), (0.2, 0.4)
SPREAD_BELOW, SPREAD_ABOVE = 0.5, 0.8  # standard deviation of what is missing, relative to it
MISFIT = 0.9  # times rows^(-1/2): share of the estimate that no candidate may express; 0.03 at 1,000 rows
NEW_LEVEL_FACTOR = 1.5  # of what rows of unseen levels would gain if they had been learned from
MAX_UNSEEN_LEVELS = 0.9  # share of rows with unseen levels from which extrapolation stops
CLEAR_ERRORS = 3.0  # standard errors above zero from which the interval treats folds as independent
MIN_SPREAD = 0.002  # nats
UNFITTED = (
    "no model could be fitted to these columns, so their information is unknown: the estimate is no evidence "
    "of "
    "independence, and there is no interval; give fewer columns or levels, or more rows"
)


@dataclass(frozen=True)
class FoldSummary:
    """The folds together, in nats except `unseen_levels`, `rows` and `units`."""

    held_out: float
    error: float  # standard error of `held_out`
    curve: float  # loss with half the rows to learn from
    fit: float  # gain of rows by being learned from
    unseen_levels: float  # share of rows with a level that training did not see
    detectable: float  # minimum detectable information
    rows: int  # learned from
    units: int  # independent rows
    model_based: bool  # too few pairs carry the normaliser: the ratio's own is used
    fitted: bool = True  # whether any ratio could be fitted in every fold


@dataclass(frozen=True)
class BestEstimate:
    nats: float
    interval: tuple[float, float]
    spread: tuple[float, float]  # standard deviations beside the sampling error, below and above
    model_based: bool
    fitted: bool
    cut_from: float | None  # nats before the cut at 2 log n, if it was cut
    learning: Mapping[str, float]  # mean log ratio: of training rows, of unseen rows, with half the rows


def best_estimate(folds: list[FittedFold], unit: np.ndarray, confidence: float) -> BestEstimate:
    return estimate_from(summarise_folds(folds, int(unit.max()) + 1), confidence)


def summarise_folds(folds: list[FittedFold], units: int) -> FoldSummary:
    rows = sum(len(fold.value) for fold in folds)
    levels = [normaliser(fold) for fold in folds]
    total = sum(fold.value.sum() - level * len(fold.value) for fold, level in zip(folds, levels, strict=True))
    held_out = total / rows
    error = _standard_error(folds, levels, units)
    # a few pairs can move the normaliser far; InfoNCE has one per row, and a higher value is nearer
    infonce = float(np.mean([fold.bound.mean() for fold in folds]))
    if infonce > held_out:
        terms = np.concatenate([fold.bound - fold.bound.mean() for fold in folds])
        held_out, error = infonce, float(terms.std()) / math.sqrt(units)
    error = max(error, math.sqrt(mean_expected_variance(folds) / units))
    return FoldSummary(
        held_out=float(held_out),
        error=error * (1.0 if held_out > CLEAR_ERRORS * error else math.sqrt(FOLD_VARIANCE)),
        curve=max(0.0, sum(fold.step for fold in folds) / len(folds)),
        fit=max(0.0, sum(fold.learned - float(fold.value.mean()) for fold in folds) / len(folds)),
        unseen_levels=float(np.mean([fold.unseen_levels for fold in folds])),
        detectable=float(np.mean([fold.detectable for fold in folds])),
        rows=min(fold.rows_learned for fold in folds),
        units=units,
        model_based=any(
            level == 0.0 and fold.log_mean != 0.0 for fold, level in zip(folds, levels, strict=True)
        ),
        fitted=all(fold.stack.candidates for fold in folds),
    )


def estimate_from(summary: FoldSummary, confidence: float) -> BestEstimate:
    held_out, error = summary.held_out, summary.error
    positive = max(0.0, held_out)
    # nothing is missing where nothing was found
    certainty = positive**2 / (positive**2 + (2 * error) ** 2 + 1e-12)
    learning = min(
        a * summary.curve + b * summary.fit for a, b in zip(CURVE_FACTORS, FIT_FACTORS, strict=True)
    )
    # rows of unseen levels are taken to be like the others
    unseen_levels = min(summary.unseen_levels, MAX_UNSEEN_LEVELS)
    measured_loss = max(learning, positive * unseen_levels / (1 - unseen_levels))
    missing = certainty * measured_loss
    nats = held_out + missing
    z = float(norm.ppf((1 + confidence) / 2))
    spread_below = SPREAD_BELOW * missing
    down = z * math.hypot(error, spread_below, MIN_SPREAD)
    # the upper end counts the whole measured loss, or the minimum detectable information if that is more.
    # What no
    # ratio can express, hard edges above all, falls like the squared error of kernels at a jump
    # (Donoho & Johnstone 1998): nats are lost in proportion to the square
    misfit = MISFIT * summary.rows**-0.5 * positive
    not_learned = max(SPREAD_ABOVE * measured_loss, summary.detectable)
    spread_above = math.hypot(not_learned, misfit, NEW_LEVEL_FACTOR * unseen_levels * summary.fit)
    up = _upper_quantile(nats, down, confidence) * math.hypot(error, spread_above, MIN_SPREAD)
    # no ratio above the number of pairs can be seen in that many pairs
    highest = 2 * math.log(summary.units)
    # a one-parameter dependence of this size goes unnoticed
    unnoticed = float(chi2.ppf(confidence, 1)) / (2 * summary.units)
    upper = float(max(unnoticed, max(0.0, nats) + up))
    # there is no upper end if no ratio was fitted, or beyond what this many rows can show
    limited = summary.fitted and nats <= highest
    return BestEstimate(
        float(min(highest, max(0.0, nats))),
        (float(min(highest, max(0.0, nats - down))), upper if limited else math.inf),
        (float(spread_below), float(spread_above) if limited else math.inf),
        summary.model_based,
        summary.fitted,
        float(nats) if nats > highest else None,
        {"learned": held_out + summary.fit, "unseen": held_out, "half": held_out - summary.curve},
    )


def _upper_quantile(nats: float, down: float, confidence: float) -> float:
    """Standard deviations to the upper end.

    The part of the lower error that lies below zero cannot occur, and its probability goes to the upper end: an
    interval that starts at 0 misses on one side only.
    """
    positive = max(0.0, nats)
    share = 1.0 if positive >= down else positive / down
    lower_probability = (1 - confidence) / 2 * share
    return float(norm.isf(1 - confidence - lower_probability))


def _standard_error(folds: list[FittedFold], levels: list[float], units: int) -> float:
    """Of the mean over all rows, and of the normaliser, which moves with the rows in its pairs."""
    log_ratio = np.concatenate([fold.log_ratio - fold.log_ratio.mean() for fold in folds])
    terms = np.concatenate(
        [
            fold.log_ratio - fold.log_ratio.mean() if level == 0.0 else fold.terms - fold.terms.mean()
            for fold, level in zip(folds, levels, strict=True)
        ]
    )
    normaliser_variance = max(0.0, terms.var() - log_ratio.var()) / len(terms)
    return math.sqrt(log_ratio.var() / units + normaliser_variance)
