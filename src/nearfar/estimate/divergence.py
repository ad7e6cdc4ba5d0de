"""KL(p || q) from a sample of each, by the same stack of ratios with the sample's name as a category.

The rows of both are put together with a label. A ratio r(z, label) gives log p(z) / q(z) = log r(z, p) - log
r(z, q).
On unseen rows the bound of NWJ holds for any function f: KL >= E_p[f] - E_q[e^f] + 1 (Nguyen et al. 2010).
So do the others (Song & Ermon 2020, Thm 1 and 2): rows of p are the positives, rows of q the negatives of all.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import norm

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import START, at
from nearfar.core.scores import Scores
from nearfar.core.types import Certificate, NegativeSampling
from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.estimate.bound_choice import candidate_bounds
from nearfar.estimate.certificates import bound_name, with_row_check
from nearfar.estimate.columns import stack_samples
from nearfar.estimate.ratios import Ratio, SideMap, fit_stack
from nearfar.estimate.result import AtLeast, NatsResult
from nearfar.estimate.rows import RowCheck, is_dependent, split_folds
from nearfar.estimate.samples import discrete_columns, gap_notes
from nearfar.parts.bounds import NWJ, TUBA, MultiLabelCPC, smallest_proven_alpha
from nearfar.system.hardware import one_thread

OUTSIDE = (
    "{:.0%} of the rows of p lie outside the range of q: if q cannot be there the divergence is infinite, "
    "and no "
    "sample shows how large it is otherwise; only at_least holds"
)
DEPENDENT = "rows of {} are copies of one another, or follow their neighbours as in a time series"
CLAIM = (
    "a lower bound of KL(p || q) in expectation if rows are independent draws; the ratio was fitted to other rows, "
    "and rows of p are contrasted with independent rows of q; the mean over folds is taken as normal"
)
FITTED_CLAIM = (
    "a lower limit if rows are independent draws; the ratio was fitted to other rows, and NWJ's bound "
    "holds for every function; the means are taken as normal"
)


@dataclass(frozen=True)
class Divergence(NatsResult):
    """KL(p || q): the best estimate with its interval, and a lower confidence limit."""

    nats: float
    interval: tuple[float, float]
    confidence: float
    at_least: AtLeast
    samples: tuple[int, int]
    warnings: tuple[str, ...] = ()

    @property
    def certificate(self) -> Certificate:  # type: ignore[override]
        return self.at_least.certificate

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"samples": list(self.samples), "at_least": self.at_least.as_json()}

    def __str__(self) -> str:
        return self._lines(str(self.at_least), interval_name=f"{self.confidence:.0%} interval")


@dataclass(frozen=True)
class FoldRatios:
    """log p / q of a fold's unseen rows."""

    on_p: Float[np.ndarray, "p_row"]
    on_q: Float[np.ndarray, "q_row"]
    half_fit: Float[np.ndarray, "p_row"]  # rows of p, with half the rows to learn from
    tail: Float[np.ndarray, "p_row"]  # what Gaussian tails would add, outside the range of q


def estimate_kl(
    p: Any,
    q: Any,
    *,
    bound: str | AbstractBound = "auto",
    folds: int = 5,
    confidence: float = 0.9,
    seed: int = 0,
) -> Divergence:
    """KL(p || q) in nats, between the distributions of two samples with the same columns and independent
    rows.

    `bound`: "auto" for the best estimate, with the limit of NWJ; or a bound or its name, whose value on unseen
    rows is then the estimate. Its interval is that of the bound's expectation.
    """
    table, p_rows = stack_samples(p, q, ("p", "q"))
    complete = table.complete
    sides = table.values[:p_rows][complete[:p_rows]], table.values[p_rows:][complete[p_rows:]]
    for name, side in zip(("p", "q"), sides, strict=True):
        if len(side) < settings.MIN_SAMPLES:
            raise UserError(f"{name} has {len(side)} samples; at least {settings.MIN_SAMPLES} are needed")
        if not np.isfinite(side).all():
            raise UserError(f"{name} holds a value that is not finite; every value must be")
    z = np.vstack(sides)
    label = np.repeat([1.0, 0.0], [len(side) for side in sides])[:, None]
    kinds = discrete_columns(z, "auto") | table.words
    notes = gap_notes(complete)
    if share := _share_outside(*sides, kinds):
        notes = (*notes, OUTSIDE.format(share))
    dependent = [DEPENDENT.format(name) for name, side in zip("pq", sides, strict=True) if is_dependent(side)]
    with one_thread():
        fitted = [
            _fit_fold(z, label, kinds, split.rest, split.unseen, seed + k)
            for k, split in enumerate(split_folds(np.arange(len(z)), folds, seed))
        ]
    ratios = FoldRatios(
        np.concatenate([fold.on_p for fold in fitted]),
        np.concatenate([fold.on_q for fold in fitted]),
        np.concatenate([fold.half_fit for fold in fitted]),
        np.concatenate([fold.tail for fold in fitted]),
    )
    samples, rows = (len(sides[0]), len(sides[1])), RowCheck("".join(dependent[:1]))
    best = _divergence(ratios, confidence, samples, rows, notes)
    return best if bound == "auto" else _by_bound(bound, fitted, best, rows)


def _share_outside(p: np.ndarray, q: np.ndarray, kinds: np.ndarray) -> float:
    """The largest share, over columns, of p's rows outside the range (or the levels) of q.

    0 if it is small.
    """
    shares = [
        (~np.isin(a, b)).mean() if is_category else ((a < b.min()) | (a > b.max())).mean()
        for a, b, is_category in zip(p.T, q.T, kinds, strict=True)
    ]
    return float(max(shares)) if max(shares) > settings.MAX_OUTSIDE else 0.0


def tail_gain(z: np.ndarray, of_p: np.ndarray, of_q: np.ndarray, f: np.ndarray) -> Float[np.ndarray, "row"]:
    """How much larger log p / q would be outside the range of q if both had Gaussian tails.

    No row shows the tail of q there, and a ratio learned by classification stays at its last value.
    """
    gain = np.zeros(len(z))
    for column, a, b in zip(z.T, of_p.T, of_q.T, strict=True):
        log_p = norm.logpdf(column, a.mean(), a.std() + settings.TINY)
        log_ratio = log_p - norm.logpdf(column, b.mean(), b.std() + settings.TINY)
        outside = (column < b.min()) | (column > b.max())
        gain = np.maximum(
            gain, np.where(outside, np.minimum(log_ratio, settings.MAX_DIVERGENCE_RATIO) - f, 0.0)
        )
    return gain


def _fit_fold(
    z: np.ndarray,
    label: np.ndarray,
    kinds: np.ndarray,
    train_rows: np.ndarray,
    unseen: np.ndarray,
    seed: int,
) -> FoldRatios:
    map_z, map_label = SideMap.fit(z[train_rows], kinds), SideMap.fit(label[train_rows], np.array([True]))
    train = map_z(z[train_rows]), map_label(label[train_rows])
    stack = fit_stack(*train, seed)
    rows, is_p = map_z(z[unseen]), label[unseen, 0] == 1

    def log_ratio(ratio: Ratio) -> np.ndarray:
        of_p, of_q = (ratio.pairs(rows, map_label(np.full((len(unseen), 1), value))) for value in (1.0, 0.0))
        return np.clip(of_p - of_q, -settings.MAX_DIVERGENCE_RATIO, settings.MAX_DIVERGENCE_RATIO)

    f = log_ratio(stack)
    numeric, from_p = z[:, ~kinds], label[train_rows, 0] == 1
    train_numeric = numeric[train_rows]
    tail = tail_gain(numeric[unseen][is_p], train_numeric[from_p], train_numeric[~from_p], f[is_p])
    return FoldRatios(
        f[is_p], f[~is_p], np.mean([log_ratio(half)[is_p] for half in stack.halves], axis=0), tail
    )


def _divergence(
    ratios: FoldRatios, confidence: float, samples: tuple[int, int], rows: RowCheck, notes: tuple[str, ...]
) -> Divergence:
    on_p, on_q = ratios.on_p, ratios.on_q
    weight = np.exp(on_q)
    held_out = float(on_p.mean() - math.log(weight.mean()))
    error = math.sqrt(on_p.var() / len(on_p) + _weight_variance(on_p, weight) / len(on_q))
    missing = max(0.0, float(on_p.mean() - ratios.half_fit.mean()))
    # the truth lies between tails that stay constant and Gaussian tails
    tail = float(ratios.tail.mean()) / 2
    nats = held_out + (missing if held_out > 2 * error else 0.0) + tail
    z = float(norm.ppf((1 + confidence) / 2))
    down, up = (
        z * settings.LONG_TAIL * math.hypot(error, missing, part, settings.MIN_SPREAD)
        for part in (tail, 2 * tail)
    )
    effective = float(weight.sum() ** 2 / (weight**2).sum())
    enough = effective >= settings.MIN_EFFECTIVE_SAMPLES
    condition = (
        FITTED_CLAIM
        if enough
        else f"the mean of p / q over q rests on {effective:.1f} effective rows: nothing is claimed"
    )
    claim = Certificate("proven" if enough else "not covered", condition, None)
    low = max(0.0, _lower_limit(on_p, on_q, z * math.sqrt(2.0))) if enough else 0.0
    at_least = AtLeast(low, (1 + confidence) / 2, with_row_check(claim, rows, grouped=False), "nwj")
    return Divergence(
        max(0.0, nats),
        (max(0.0, nats - down), max(up, nats + up)),
        confidence,
        at_least,
        samples,
        (*notes, *rows.warnings),
    )


def _weight_variance(on_p: np.ndarray, weight: np.ndarray) -> float:
    """Variance of e^f over q: that of q's rows, or E_p[e^f] - 1 as p's rows expect it, whichever is larger.

    If f is right, both are E_q[e^2f] - 1. Rows of q may have missed where p is.
    """
    return max(float(weight.var()), float(np.exp(on_p).mean()) - 1)


def _lower_limit(on_p: np.ndarray, on_q: np.ndarray, errors: float) -> float:
    """The bound of NWJ less `errors` standard errors.

    f is cut at the logarithm of the number of q's rows, beyond which no ratio shows among them. That is
    another function, fixed beforehand.
    """
    highest = math.log(len(on_q))
    on_p, weight = np.minimum(on_p, highest), np.exp(np.minimum(on_q, highest))
    error = math.sqrt(on_p.var() / len(on_p) + _weight_variance(on_p, weight) / len(on_q))
    return float(on_p.mean() - weight.mean() + 1) - errors * error


def _by_bound(
    bound: str | AbstractBound, fitted: list[FoldRatios], best: Divergence, rows: RowCheck
) -> Divergence:
    """The mean of a bound over folds. What proves nothing, or has no ceiling, takes the limit of `best`."""
    fewest = min(len(fold.on_p) for fold in fitted), min(len(fold.on_q) for fold in fitted)
    if bound == "ml-cpc":
        bound = MultiLabelCPC(smallest_proven_alpha(*_anchors_and_negatives(*fewest)))
    chosen = next(iter(candidate_bounds(bound, "batch", min(fewest)).values()))
    values = [value_and_error(chosen, fold.on_p, fold.on_q) for fold in fitted]
    nats = float(np.mean([value for value, _ in values]))
    error = math.hypot(*(error for _, error in values)) / len(values)
    reach = float(norm.ppf((1 + best.confidence) / 2)) * math.sqrt(2.0) * error
    claim, name = kl_certificate(chosen, *fewest), bound_name(chosen)
    at_least, notes = best.at_least, best.warnings
    if claim.status != "proven":
        notes = (*notes, f"{name} is {claim.status}: {claim.summary}; at_least is that of NWJ")
    elif claim.ceiling is not None:
        certificate = with_row_check(claim, rows, grouped=False)
        at_least = AtLeast(max(0.0, nats - reach), best.at_least.confidence, certificate, name)
    return Divergence(nats, (nats - reach, nats + reach), best.confidence, at_least, best.samples, notes)


def _anchors_and_negatives(of_p: int, of_q: int) -> tuple[int, int]:
    """How ML-CPC divides rows: as many anchors as q can give at least one negative each."""
    anchors = min(of_p, of_q)
    return anchors, of_q // anchors


def kl_certificate(bound: AbstractBound, of_p: int, of_q: int) -> Certificate:
    """What a bound's value on so many unseen rows of p and q proves of KL(p || q)."""
    anchors, negatives = (
        _anchors_and_negatives(of_p, of_q) if isinstance(bound, MultiLabelCPC) else (of_p, of_q)
    )
    sampling = NegativeSampling(anchors, negatives, independent=True, held_out=True, batch_statistics=False)
    claim = bound.certificate(sampling)
    return Certificate("proven", CLAIM, claim.ceiling) if claim.status == "proven" else claim


def kl_scores(bound: AbstractBound, on_p: np.ndarray, on_q: np.ndarray) -> Scores:
    """Log ratios as one anchor, whose positives are all rows of p and whose negatives are all of q.

    NWJ and TUBA are tight for another constant, which is added. ML-CPC separates p from a mixture with q, whose log
    ratio saturates at log(m / alpha).
    """
    if isinstance(bound, MultiLabelCPC):
        anchors, negatives = _anchors_and_negatives(len(on_p), len(on_q))
        highest = math.log((1 + negatives) / at(bound.alpha, START))
        on_p, on_q = (f - np.logaddexp(0, f - highest) for f in (on_p[:anchors], on_q[: anchors * negatives]))
    constant = 1.0 if isinstance(bound, NWJ) else 0.0
    if isinstance(bound, TUBA):
        constant = at(bound.log_baseline, START)
    positive, negative = (torch.from_numpy(f[None] + constant) for f in (on_p, on_q))
    return Scores.of(positive, negative)


def value_and_error(bound: AbstractBound, on_p: np.ndarray, on_q: np.ndarray) -> tuple[float, float]:
    """A bound on a fold's unseen rows, and its standard error: the jackknife's over groups of rows, and what q's
    rows add that may have missed where p is (`_weight_variance`).

    f is cut at the logarithm of the number of q's rows, as in `_lower_limit`.
    """

    def measure(of_p: np.ndarray, of_q: np.ndarray) -> float:
        return float(bound(kl_scores(bound, of_p, of_q)))

    on_p, on_q = (np.minimum(f, math.log(len(on_q))) for f in (on_p, on_q))
    groups, value, step = min(settings.KL_JACKKNIFE_GROUPS, len(on_p), len(on_q)), measure(on_p, on_q), 1e-4
    without = [measure(*(np.delete(f, slice(k, None, groups)) for f in (on_p, on_q))) for k in range(groups)]
    # how fast the value falls as the mean of e^f over q rises
    slope = (value - measure(on_p, on_q + step)) / (step * np.exp(on_q).mean())
    missed = max(0.0, float(np.exp(on_p).mean()) - 1) / len(on_q)
    return value, math.hypot(math.sqrt((groups - 1) * np.var(without)), slope * math.sqrt(missed))
