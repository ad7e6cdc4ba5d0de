"""KL(p || q) from a sample of each: the ratio p / q by the same competition, with the sample's name as a category.

Rows of both are put together with a label. A ratio r(z, label) of their joint distribution gives log p(z) / q(z) = log r(z, p) - log r(z, q), and on
unseen rows NWJ's bound holds for it as for any function f: KL >= E_p[f] - E_q[e^f] + 1.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from nearfar.core.types import Certificate
from nearfar.errors import UserError
from nearfar.estimate.columns import stacked_columns
from nearfar.estimate.dependence import RowsSeen, look_at_rows
from nearfar.estimate.folds import splits
from nearfar.estimate.ratios import Half, HalfMap, fitted_stack, halved
from nearfar.estimate.result import AtLeast, certificate_json
from nearfar.estimate.samples import FEWEST, discrete_columns
from nearfar.estimate.sentences import DEPENDENT, for_rows
from nearfar.system.hardware import one_thread

MOST_BEYOND = 0.1  # share of p's rows beyond all of q's
BEYOND = "{:.0%} of the rows of p lie where no row of q does: if q cannot be there the divergence is infinite, and no sample tells how large it is else; only at_least holds"
LONG_TAIL = 1.5
DEPENDENT_ROWS = "rows of {} are copies of one another, or follow their neighbours as in a time series"
TINY = 1e-12
HIGHEST = 12.0  # of log p / q: beyond, a mean of its exponential is never seen


@dataclass(frozen=True)
class Divergence:
    """KL(p || q): the best estimate with its interval, and what it is at least."""

    nats: float
    interval: tuple[float, float]
    confidence: float
    at_least: AtLeast
    samples: tuple[int, int]
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "nats": self.nats,
            "bits": self.nats / math.log(2),
            "interval": list(self.interval),
            "confidence": self.confidence,
            "at_least": self.at_least.as_json(),
            "certificate": certificate_json(self.at_least.certificate),
            "samples": list(self.samples),
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.nats:.4f} nats, {self.confidence:.0%} interval {low:.4f} to {high:.4f}; at least "
            f"{float(self.at_least):.4f} with {self.at_least.confidence:.0%} confidence"
        )


def estimate_kl(p: Any, q: Any, *, folds: int = 5, confidence: float = 0.9, seed: int = 0) -> Divergence:
    """KL(p || q) between the distributions of two samples with the same columns, rows independent within and between."""
    both, of_p = stacked_columns(p, q, ("p", "q"))
    whole = ~np.isnan(both.values).any(axis=1)
    sides = both.values[:of_p][whole[:of_p]], both.values[of_p:][whole[of_p:]]
    for name, side in zip(("p", "q"), sides, strict=True):
        if len(side) < FEWEST:
            raise UserError(f"{name} has {len(side)} samples; at least {FEWEST} are needed")
        if not np.isfinite(side).all():
            raise UserError(f"{name} holds a value that is not finite; every value must be")
    z = np.vstack(sides)
    label = np.repeat([1.0, 0.0], [len(side) for side in sides])[:, None]
    kinds = discrete_columns(z, "auto") | both.words
    gaps = int((~whole).sum())
    notes = (f"{gaps} of {len(whole)} rows have gaps and were left out",) if gaps else ()
    if share := _beyond(*sides, kinds):
        notes = (*notes, BEYOND.format(share))
    seen = [look_at_rows(side, side) for side in sides]
    refuted = next(
        (DEPENDENT_ROWS.format(name) for name, one in zip("pq", seen, strict=True) if one.refuted), ""
    )
    found = []
    with one_thread():
        for k, split in enumerate(splits(np.arange(len(z)), folds, seed)):
            found.append(_fold(z, label, kinds, split.rest, split.unseen, seed + k))
    on_p, on_q, half, further = (np.concatenate(part) for part in zip(*found, strict=True))
    # tails that stay as sure as they were and tails that go on as Gaussians are the ends: the estimate is between them
    return _divergence(
        on_p,
        on_q,
        half,
        float(further.mean()) / 2,
        confidence,
        (len(sides[0]), len(sides[1])),
        RowsSeen(refuted),
        notes,
    )


def _beyond(p: np.ndarray, q: np.ndarray, kinds: np.ndarray) -> float:
    """The largest share of p's rows that lie, in one column, beyond all of q's numbers or in a level that q has not, if it is more than a divergence
    that is finite would leave."""
    shares = [
        (~np.isin(a, b)).mean() if is_level else ((a < b.min()) | (a > b.max())).mean()
        for a, b, is_level in zip(p.T, q.T, kinds, strict=True)
    ]
    return float(max(shares)) if max(shares) > MOST_BEYOND else 0.0


def _further(z: np.ndarray, of_p: np.ndarray, of_q: np.ndarray, f: np.ndarray) -> Float[np.ndarray, "row"]:
    """How much more log p / q would be where a column is beyond all of q's rows, if both went on as Gaussians: no row tells how q goes on there, and a
    ratio learned by telling rows apart stays at what made it sure."""
    found = np.zeros(len(z))
    for column, a, b in zip(z.T, of_p.T, of_q.T, strict=True):
        log_ratio = norm.logpdf(column, a.mean(), a.std() + TINY) - norm.logpdf(
            column, b.mean(), b.std() + TINY
        )
        outside = (column < b.min()) | (column > b.max())
        found = np.maximum(found, np.where(outside, np.minimum(log_ratio, HIGHEST) - f, 0.0))
    return found


def _fold(
    z: np.ndarray, label: np.ndarray, kinds: np.ndarray, learned: np.ndarray, unseen: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """log p / q at unseen rows of p and of q, at those of p with half the rows to learn from, and what it would be more beyond q's rows."""
    map_z, map_label = HalfMap.fit(z[learned], kinds), HalfMap.fit(label[learned], np.array([True]))
    given = map_z(z[learned]), map_label(label[learned])
    stack = fitted_stack(*given, seed)
    smaller = halved(stack, *given, seed)
    rows, is_p = map_z(z[unseen]), label[unseen, 0] == 1

    def log_ratio(ratio: Any) -> np.ndarray:
        of = [ratio.pairs(rows, _only(map_label, value, len(unseen))) for value in (1.0, 0.0)]
        return np.clip(of[0] - of[1], -HIGHEST, HIGHEST)

    f = log_ratio(stack)
    numbers, from_p = z[:, ~kinds], label[learned, 0] == 1
    further = _further(numbers[unseen][is_p], numbers[learned][from_p], numbers[learned][~from_p], f[is_p])
    return f[is_p], f[~is_p], log_ratio(smaller)[is_p], further


def _only(map_label: HalfMap, value: float, rows: int) -> Half:
    return map_label(np.full((rows, 1), value))


def _divergence(
    on_p: np.ndarray,
    on_q: np.ndarray,
    half: np.ndarray,
    further: float,
    confidence: float,
    samples: tuple[int, int],
    rows: RowsSeen,
    notes: tuple[str, ...],
) -> Divergence:
    weight = np.exp(on_q)
    log_form = float(on_p.mean() - math.log(weight.mean()))
    error = math.sqrt(on_p.var() / len(on_p) + _varies(on_p, weight) / len(on_q))
    missing = max(0.0, float(on_p.mean() - half.mean()))
    nats = log_form + (missing if log_form > 2 * error else 0.0) + further
    z = float(norm.ppf((1 + confidence) / 2))
    # e^f has a long tail, and the ratio that was fitted is tamer than the true one
    reach, high_reach = (
        z * LONG_TAIL * math.hypot(error, missing, tail, 0.002) for tail in (further, 2 * further)
    )
    carried = float(weight.sum() ** 2 / (weight**2).sum())
    enough = carried >= 20
    condition = (
        "the ratio was fitted to other rows (NWJ's bound holds for every function); the means are taken as "
        "normal"
        if enough
        else f"the mean of p / q over q rests on {carried:.1f} effective rows: nothing is claimed"
    )
    certificate = for_rows(
        Certificate("proven" if enough else "not covered", condition, None), rows, grouped=False
    )
    low = max(0.0, _lowest(on_p, on_q, z * math.sqrt(2.0))) if enough else 0.0
    return Divergence(
        max(0.0, nats),
        (max(0.0, nats - reach), max(high_reach, nats + high_reach)),
        confidence,
        AtLeast(low, (1 + confidence) / 2, certificate),
        samples,
        (*notes, *([f"{rows.refuted}: {DEPENDENT}"] if rows.refuted else [])),
    )


def _varies(on_p: np.ndarray, weight: np.ndarray) -> float:
    """Variance of e^f over q. If f is right it is E_q[e^2f] - 1 = E_p[e^f] - 1: what p's rows expect counts where q's rows show less, having missed
    where p lives."""
    return max(float(weight.var()), float(np.exp(on_p).mean()) - 1)


def _lowest(on_p: np.ndarray, on_q: np.ndarray, errors: float) -> float:
    """NWJ's bound less so many standard errors. No ratio above the number of rows of q shows among them, so f is cut there, which is another
    function and fixed beforehand."""
    highest = math.log(len(on_q))
    on_p, weight = np.minimum(on_p, highest), np.exp(np.minimum(on_q, highest))
    error = math.sqrt(on_p.var() / len(on_p) + _varies(on_p, weight) / len(on_q))
    return float(on_p.mean() - weight.mean() + 1) - errors * error
