"""One rule for the best estimate and its interval: of mutual information, of sums and differences, of divergences.

    held out    mean log r of unseen rows - log of the mean of r under independence
    nats        held out + max(curve, fit / 2), where held out is clearly above zero
    interval    nats - factor * below  to  nats + factor * above

A mean over unseen rows is low by the divergence of the truth from the ratio: k / 2n for k parameters. Two things
measure it. Halving the rows adds as much again (`curve`), and training rows look better by twice as much (`fit`,
Akaike 1974). Rows of a level that training did not see are taken to be like the others.

What no ratio expresses is not measured by the rows. A higher KSG is a sign of it, and so are many columns beside
few rows. `below` and `above` are sums of such signs (`Signs`) with coefficients that are calibrated across problems of
known information by one command: `python benchmarks/calibrate_interval.py`. It writes calibration.json, whose
`statement` says what 90 % means.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from scipy.stats import chi2, norm

from nearfar.estimate import settings
from nearfar.estimate.baselines import References
from nearfar.estimate.crossfit import CrossFit, FittedFold, mean_expected_variance, normaliser

UNFITTED = (
    "no model could be fitted to these columns, so their information is unknown: the estimate is no evidence "
    "of independence, and there is no interval; give fewer columns or levels, or more rows"
)


@dataclass(frozen=True)
class FoldSummary:
    """The folds together, in nats except `unseen_levels`, `units` and `columns`."""

    held_out: float
    error: float  # standard error of `held_out`, the spread over splits included
    curve: float  # loss with half the rows to learn from
    fit: float  # gain of rows by being learned from
    unseen_levels: float  # share of rows with a level that training did not see
    units: int  # independent rows
    model_based: bool  # too few pairs carry the normaliser: the ratio's own is used
    references: References
    fitted: bool = True  # whether any ratio could be fitted in every fold

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "FoldSummary":
        """Of `asdict`, and of what else a record holds."""
        values = {field.name: record[field.name] for field in fields(FoldSummary)}
        columns, ksg = values["references"]["columns"], values["references"]["ksg"]
        return FoldSummary(**{**values, "references": References(tuple(columns), ksg)})


def certainty(nats: float, error: float) -> float:
    """From 0 to 1: how clearly a value is above zero, 1/2 at two standard errors."""
    squared = max(0.0, nats) ** 2
    return squared / (squared + (2 * error) ** 2 + 1e-12)


@dataclass(frozen=True)
class Signs:
    """Signs of what an estimate misses or may miss, each in nats and at least 0."""

    error: float
    learning: float  # what is measured to be missing, as far as the estimate is clearly above zero
    fit: float
    share: float  # of the estimate, falling like n^(-1/2): shapes that no ratio has, such as edges
    ksg: float  # by which KSG is higher
    rows: float  # n^(-1/2)
    width: float  # log of the number of pairs of columns, times n^(-1/2)

    @staticmethod
    def of(summary: FoldSummary) -> "Signs":
        positive, error = max(0.0, summary.held_out), summary.error
        unseen = min(summary.unseen_levels, settings.MAX_UNSEEN_LEVELS)
        root = summary.units**-0.5
        x_columns, y_columns = summary.references.columns
        return Signs(
            error=error,
            learning=certainty(positive, error)
            * max(summary.curve, summary.fit / 2, positive * unseen / (1 - unseen)),
            fit=summary.fit,
            share=positive * root,
            ksg=max(0.0, summary.references.ksg - positive),
            rows=root,
            width=math.log(x_columns * y_columns) * root,
        )

    def weighted(self, coefficients: Mapping[str, float]) -> float:
        values = asdict(self)
        return sum(coefficient * values[name] for name, coefficient in coefficients.items())


@dataclass(frozen=True)
class Calibration:
    """Coefficients of the signs, and factors of the interval by confidence (calibration.json)."""

    below: Mapping[str, float]
    above: Mapping[str, float]
    confidences: tuple[float, ...]
    factors: tuple[float, ...]  # of `below` and `above`

    def factor(self, confidence: float) -> float:
        """Linear in the normal quantile between the calibrated confidences, proportional to it outside them."""
        quantiles = norm.ppf((1 + np.array(self.confidences)) / 2)
        z = float(norm.ppf((1 + confidence) / 2))
        if z <= quantiles[0] or z >= quantiles[-1]:
            nearest = 0 if z <= quantiles[0] else -1
            return float(self.factors[nearest] * z / quantiles[nearest])
        return float(np.interp(z, quantiles, self.factors))


@cache
def calibration_table() -> Calibration:
    stored = json.loads(files("nearfar.estimate").joinpath("calibration.json").read_text())
    return Calibration(
        stored["below"], stored["above"], tuple(stored["confidences"]), tuple(stored["factors"])
    )


@dataclass(frozen=True)
class BestEstimate:
    nats: float
    interval: tuple[float, float]
    half_widths: tuple[float, float]  # below and above the estimate, before ends are cut at zero
    spread: tuple[float, float]  # the part of them that is not sampling error
    model_based: bool
    fitted: bool
    cut_from: float | None  # nats before the cut at 2 log n, if it was cut
    learning: Mapping[str, float]  # mean log ratio: of training rows, of unseen rows, with half the rows


def best_estimate(fit: CrossFit, confidence: float) -> BestEstimate:
    return estimate_from(summarise(fit), confidence)


def summarise(fit: CrossFit) -> FoldSummary:
    """Means over all folds of all splits."""
    values, errors = np.transpose([_held_out(folds, fit.units) for folds in fit.splits])
    held_out = float(values.mean())
    between = float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
    error = math.sqrt(float((errors**2).mean()) + between)
    folds = [fold for split in fit.splits for fold in split]
    return FoldSummary(
        held_out=held_out,
        error=error
        * (1.0 if held_out > settings.CLEARLY_ABOVE_ZERO * error else math.sqrt(settings.FOLD_VARIANCE)),
        curve=max(0.0, float(np.mean([fold.step for fold in folds]))),
        fit=max(0.0, float(np.mean([fold.learned - fold.value.mean() for fold in folds]))),
        unseen_levels=float(np.mean([fold.unseen_levels for fold in folds])),
        units=fit.units,
        model_based=any(normaliser(fold) == 0.0 and fold.log_mean != 0.0 for fold in folds),
        references=fit.references,
        fitted=all(fold.stack.candidates for fold in folds),
    )


def _held_out(folds: list[FittedFold], units: int) -> tuple[float, float]:
    """Mean log ratio of the unseen rows of one split, and its standard error."""
    levels = [normaliser(fold) for fold in folds]
    total = sum(fold.value.sum() - level * len(fold.value) for fold, level in zip(folds, levels, strict=True))
    held_out = total / sum(len(fold.value) for fold in folds)
    error = _standard_error(folds, levels, units)
    # a few pairs can move the normaliser far; InfoNCE has one per row, and a higher value is nearer
    infonce = float(np.mean([fold.bound.mean() for fold in folds]))
    if infonce > held_out:
        terms = np.concatenate([fold.bound - fold.bound.mean() for fold in folds])
        held_out, error = infonce, float(terms.std()) / math.sqrt(units)
    return held_out, max(error, math.sqrt(mean_expected_variance(folds) / units))


def estimate_from(summary: FoldSummary, confidence: float, table: Calibration | None = None) -> BestEstimate:
    table = table or calibration_table()
    signs = Signs.of(summary)
    nats = summary.held_out + signs.learning
    factor = table.factor(confidence)
    down = factor * math.hypot(signs.weighted(table.below), settings.MIN_SPREAD)
    # a row of an unseen level may tell anything from 0 to log n nats
    unseen = summary.unseen_levels * math.log(summary.units) / 2
    up = factor * math.hypot(signs.weighted(table.above), unseen, settings.MIN_SPREAD)
    # no ratio above the number of pairs can be seen in that many pairs
    highest = 2 * math.log(summary.units)
    # a one-parameter dependence of this size goes unnoticed
    unnoticed = float(chi2.ppf(confidence, 1)) / (2 * summary.units)
    # there is no upper end if no ratio was fitted, or beyond what this many rows can show
    limited = summary.fitted and nats <= highest
    upper = float(max(unnoticed, max(0.0, nats) + up)) if limited else math.inf
    sampling = float(norm.ppf((1 + confidence) / 2)) * summary.error
    beyond = [math.sqrt(max(0.0, side**2 - sampling**2)) for side in (down, up)]
    return BestEstimate(
        float(min(highest, max(0.0, nats))),
        (float(min(highest, max(0.0, nats - down))), upper),
        (down, up),
        (beyond[0], beyond[1] if limited else math.inf),
        summary.model_based,
        summary.fitted,
        float(nats) if nats > highest else None,
        {
            "learned": summary.held_out + summary.fit,
            "unseen": summary.held_out,
            "half": summary.held_out - summary.curve,
        },
    )


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
