"""Quantities by the chain rule: conditional information, total correlation, and the value at every row.

    I(x; y | z)   = I((x, z); y) - I(z; y)
    TC(x1 .. xd)  = I(x1; x2) + I(x1, x2; x3) + ... + I(x1 .. x(d-1); xd)

Differences and sums are taken row by row on the same folds, so that shared errors cancel. What the estimates add for
what is still to be learned counts as far as the sum of what was measured is clearly above zero.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from nearfar.core.types import Certificate
from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.estimate.columns import as_columns
from nearfar.estimate.crossfit import CrossFit, cross_fit, pointwise_values
from nearfar.estimate.interval import UNFITTED, best_estimate, certainty
from nearfar.estimate.result import NatsResult
from nearfar.estimate.samples import Discrete, check_pair, check_varies, gap_notes

CONDITION = (
    "a {} of best estimates, no bound; it is {}; its interval combines their errors row by row and what "
    "each may miss"
)


@dataclass(frozen=True)
class Derived(NatsResult):
    """A sum or difference of estimates of mutual information."""

    nats: float
    interval: tuple[float, float]
    confidence: float
    certificate: Certificate
    terms: tuple[float, ...]  # nats of the estimates it is made of
    samples: int
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"terms": list(self.terms)}

    def __str__(self) -> str:
        return self._lines(
            f"{self.certificate.status}: {self.certificate.summary}",
            f"terms {', '.join(f'{term:.4f}' for term in self.terms)}; {self.samples} samples",
            interval_name=f"{self.confidence:.0%} interval",
        )


def estimate_cmi(
    x: Any,
    y: Any,
    z: Any,
    *,
    discrete: Discrete = "auto",
    groups: Any = None,
    folds: int = 5,
    splits: int = 1,
    confidence: float = 0.9,
    seed: int = 0,
) -> Derived:
    """I(x; y | z) in nats: the information of x about y given z. Options as in `estimate_mi`."""
    x_table, z_table = as_columns(x, "x"), as_columns(z, "z")
    if len(x_table.values) != len(z_table.values):
        raise UserError(
            f"x has {len(x_table.values)} samples and z {len(z_table.values)}; they must have one length"
        )
    y_values = as_columns(y, "y").values
    same_length = len(y_values) == len(x_table.values)
    complete = x_table.complete & z_table.complete
    if same_length:
        complete &= ~np.isnan(y_values).any(axis=1)
    for side, name in ((x_table, "x"), (z_table, "z (what is given)")):
        check_varies(side, np.flatnonzero(complete), name)
    for k, column in enumerate(y_values.T if same_length and complete.any() else ()):
        if any(np.array_equal(column[complete], z_column) for z_column in z_table.values[complete].T):
            raise UserError(
                f"y column {k} is also in z, so that its information given z is zero; leave it out of one of "
                "them"
            )
    words = x_table.words, z_table.words
    joint = check_pair(_concatenate(x_table.values, z_table.values, "xz", words), y, discrete, groups)
    width = x_table.values.shape[1]
    condition = replace(
        joint,
        x=joint.x[:, width:],
        kinds=(joint.kinds[0][width:], joint.kinds[1]),
        names=(joint.names[0][width:], joint.names[1]),
    )
    terms = [cross_fit(pair, folds, seed, splits) for pair in (joint, condition)]
    return _combine(
        terms, (1.0, -1.0), len(joint.x), confidence, "difference", "I((x, z); y) - I(z; y)", joint.notes
    )


def total_correlation(
    x: Any, *, discrete: Discrete = "auto", folds: int = 5, confidence: float = 0.9, seed: int = 0
) -> Derived:
    """The divergence of the joint distribution of the columns of x from independent columns, in nats."""
    table = as_columns(x, "x")
    if table.values.shape[1] < 2:
        raise UserError("x has one column; a total correlation needs two or more")
    # every term must use the same rows
    values = table.values[table.complete]
    check_varies(table, np.flatnonzero(table.complete), "x")
    columns = _concatenate(values, values[:, :0], "x", (table.words, table.words[:0]))
    names = list(columns)
    terms = [
        cross_fit(
            check_pair({name: columns[name] for name in names[:k]}, {names[k]: columns[names[k]]}, discrete),
            folds,
            seed,
        )
        for k in range(1, len(names))
    ]
    notes = gap_notes(table.complete)
    total = _combine(terms, (1.0,) * len(terms), len(values), confidence, "sum", "the chain rule", notes)
    if max(total.terms) > math.log(len(values)):
        warning = (
            f"the others have more than log n = {math.log(len(values)):.2f} nats about one column: it may be "
            "a function of them, and the total correlation infinite"
        )
        return replace(total, warnings=(*total.warnings, warning))
    return total


def pointwise_mi(
    x: Any,
    y: Any,
    *,
    discrete: Discrete = "auto",
    groups: Any = None,
    folds: int = 5,
    splits: int = 1,
    seed: int = 0,
) -> Float[np.ndarray, "sample"]:
    """log p(x, y) / (p(x) p(y)) at every row, in nats, by ratios not fitted to it.

    NaN where a row has gaps.
    """
    pair = check_pair(x, y, discrete, groups)
    values = np.full(len(as_columns(x, "x").values), np.nan)
    values[pair.rows] = pointwise_values(cross_fit(pair, folds, seed, splits))
    return values


def _concatenate(
    first: np.ndarray, second: np.ndarray, name: str, words: tuple[np.ndarray, np.ndarray]
) -> dict[str, np.ndarray]:
    """Columns side by side; codes of words become words again, so that they stay categories."""
    columns = np.hstack([first, second])
    are_words = np.concatenate(words)
    return {
        f"{name}{k}": np.array([None if np.isnan(v) else f"level {v:g}" for v in column], dtype=object)
        if are_words[k]
        else column
        for k, column in enumerate(columns.T)
    }


def _combine(
    terms: list[CrossFit],
    signs: tuple[float, ...],
    rows: int,
    confidence: float,
    kind: str,
    formula: str,
    notes: tuple[str, ...],
) -> Derived:
    """The signed sum of the best estimates of all terms."""
    best = [best_estimate(term, confidence) for term in terms]
    values = [pointwise_values(term) for term in terms]
    unit = terms[0].unit
    total = sum(sign * value for sign, value in zip(signs, values, strict=True))
    per_unit = np.bincount(unit, total) / np.bincount(unit)
    error = float(per_unit.std() / math.sqrt(len(per_unit)))
    held_out = [min(estimate.nats, max(0.0, estimate.learning["unseen"])) for estimate in best]
    measured = sum(sign * part for sign, part in zip(signs, held_out, strict=True))
    missing = sum(sign * (e.nats - part) for sign, e, part in zip(signs, best, held_out, strict=True))
    nats = measured + certainty(measured, error) * missing
    # the upper spread of a subtracted term is a lower spread of the total
    z = float(norm.ppf((1 + confidence) / 2))
    down, up = (
        math.hypot(
            z * error,
            z * settings.MIN_SPREAD,
            *(
                estimate.spread[end if sign > 0 else 1 - end]
                for sign, estimate in zip(signs, best, strict=True)
            ),
        )
        for end in (0, 1)
    )
    return Derived(
        max(0.0, nats),
        (max(0.0, nats - down), max(0.0, nats) + up),
        confidence,
        Certificate("not covered", CONDITION.format(kind, formula), None),
        tuple(estimate.nats for estimate in best),
        rows,
        notes if all(estimate.fitted for estimate in best) else (*notes, UNFITTED),
    )
