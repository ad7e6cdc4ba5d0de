"""The best estimate and its interval, from what folds found.

    held out    mean log r of unseen rows - log of the mean of r under independence          low by what the ratio misses
    missing     what half the rows to learn from would lose, and what rows gain by being learned from
    nats        held out + missing, where something was found

A mean over unseen rows is low by the divergence of the truth from the ratio. Two things measure it: halving the rows
raises it (learning curve), and rows that were learned from look better by as much again (Akaike). How much of each counts, and how
wide the interval must be, is not derived but measured: benchmarks/mutual_information.py, on problems of known information.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, norm

from nearfar.estimate.competition import BOTH_WAYS, CLEARLY, Fold, expected, normaliser

# missing = min(1.2 curve + 0.2 fit, 0.6 curve + 0.4 fit): halving a small sample loses more than doubling it will win back, and rows
# look better for having been learned from also where the ratio is as good as it can be
OF_CURVE, OF_FIT = (1.2, 0.6), (0.2, 0.4)
DOUBT_BELOW, DOUBT_ABOVE = 0.5, 1.1  # standard deviation of what is missing, as a share of it
UNKNOWN = 0.03  # share of the estimate that no candidate may have found
LEAST_DOUBT = 0.002  # nats


@dataclass(frozen=True)
class Best:
    nats: float
    interval: tuple[float, float]
    held_out: float
    missing: float
    error: float  # of the held-out mean
    model_based: bool  # too few pairs carry the normaliser: the ratio's own is taken on trust


def best_estimate(folds: list[Fold], unit: np.ndarray, confidence: float) -> Best:
    rows = sum(len(fold.value) for fold in folds)
    levels = [normaliser(fold) for fold in folds]
    held_out = (
        sum(fold.value.sum() - level * len(fold.value) for fold, level in zip(folds, levels, strict=True))
        / rows
    )
    error = _error(folds, levels, int(unit.max()) + 1)
    # a few pairs can carry the normaliser far off; InfoNCE has one for every row, and what is above is nearer
    of_bound = float(np.mean([fold.bound.mean() for fold in folds]))
    if of_bound > held_out:
        terms = np.concatenate([fold.bound - fold.bound.mean() for fold in folds])
        held_out, error = of_bound, float(terms.std()) / math.sqrt(int(unit.max()) + 1)
    error = max(error, math.sqrt(expected(folds) / (int(unit.max()) + 1)))
    error *= 1.0 if held_out > CLEARLY * error else math.sqrt(BOTH_WAYS)
    steps = [_step(fold, level) for fold, level in zip(folds, levels, strict=True)]
    curve = max(0.0, sum(steps) / len(folds))
    fit = max(0.0, sum(fold.learned - float(fold.value.mean()) for fold in folds) / len(folds))
    # where nothing is found nothing is missing: as sure as the estimate is of itself
    sure = max(0.0, held_out) ** 2 / (max(0.0, held_out) ** 2 + (2 * error) ** 2 + 1e-12)
    missing = sure * min(a * curve + b * fit for a, b in zip(OF_CURVE, OF_FIT, strict=True))
    nats = held_out + missing
    z = float(norm.ppf((1 + confidence) / 2))
    down = z * math.sqrt(error**2 + (DOUBT_BELOW * missing) ** 2 + LEAST_DOUBT**2)
    up = z * math.hypot(error, DOUBT_ABOVE * missing, UNKNOWN * max(0.0, held_out), LEAST_DOUBT)
    # no ratio above the number of pairs can show in so many of them
    highest = 2 * math.log(int(unit.max()) + 1)
    unseen = float(chi2.ppf(confidence, 1)) / (2 * (int(unit.max()) + 1))
    model_based = any(
        level == 0.0 and fold.log_mean != 0.0 for fold, level in zip(folds, levels, strict=True)
    )
    return Best(
        float(min(highest, max(0.0, nats))),
        (float(min(highest, max(0.0, nats - down))), float(max(unseen, nats + up))),
        float(held_out),
        float(missing),
        error,
        model_based,
    )


def _step(fold: Fold, level: float) -> float:
    """How much lower the fold would be with half the rows to learn from."""
    return float(fold.value.mean()) - level - fold.half + (fold.half_log_mean if level else 0.0)


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
