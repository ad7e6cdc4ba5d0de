"""What follows from mutual information by the chain rule: conditional information, total correlation, and the value at every row.

    I(x; y | z)   = I((x, z); y) - I(z; y)
    TC(x1 .. xd)  = I(x1; x2) + I(x1, x2; x3) + ... + I(x1 .. x(d-1); xd)

Differences and sums are taken row by row, on the same folds, so that what the terms share cancels in the error.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from nearfar.core.types import Certificate
from nearfar.errors import UserError
from nearfar.estimate.best import LEAST_DOUBT, UNFITTED, Best, best_estimate
from nearfar.estimate.columns import as_columns
from nearfar.estimate.competition import Fold, compete, pointwise
from nearfar.estimate.dependence import checked_groups
from nearfar.estimate.folds import splits
from nearfar.estimate.result import InNats
from nearfar.estimate.samples import Discrete, Pair, check_varies, checked_pair
from nearfar.system.hardware import one_thread

MODEL = "a {} of best estimates, no bound: {}; its interval is that of their errors row by row and of what each may miss"


@dataclass(frozen=True)
class Derived(InNats):
    """A number that follows from estimates of mutual information."""

    nats: float
    interval: tuple[float, float]
    confidence: float
    certificate: Certificate
    terms: tuple[float, ...]  # the informations it was made of
    samples: int
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | {"terms": list(self.terms)}

    def __str__(self) -> str:
        return f"{self.nats:.4f} nats ({self.bits:.4f} bits), {self.confidence:.0%} interval {self.interval_text()}"


def estimate_cmi(
    x: Any,
    y: Any,
    z: Any,
    *,
    discrete: Discrete = "auto",
    groups: Any = None,
    folds: int = 5,
    confidence: float = 0.9,
    seed: int = 0,
) -> Derived:
    """I(x; y | z): how much x tells about y to someone who knows z."""
    first, third = as_columns(x, "x"), as_columns(z, "z")
    if len(first.values) != len(third.values):
        raise UserError(
            f"x has {len(first.values)} samples and z {len(third.values)}; they must have one length"
        )
    second = as_columns(y, "y").values
    sides = [first.values, third.values, *([second] if len(second) == len(first.values) else [])]
    whole = ~np.isnan(np.hstack(sides)).any(axis=1)
    for side, name in ((first, "x"), (third, "z (what is given)")) if whole.any() else ():
        check_varies(side, np.flatnonzero(whole), name)
    for k, column in enumerate(sides[2].T if len(sides) == 3 else ()):
        if any(np.array_equal(column[whole], other) for other in third.values[whole].T):
            raise UserError(
                f"y column {k} is also in z; given itself nothing is left to tell: leave it out of one of them"
            )
    both = checked_pair(
        _beside(first.values, third.values, "xz", (first.words, third.words)), y, discrete, groups
    )
    width = first.values.shape[1]
    known = Pair(
        both.x[:, width:],
        both.y,
        (both.kinds[0][width:], both.kinds[1]),
        both.groups,
        both.kept,
        (both.names[0][width:], both.names[1]),
        both.notes,
    )
    found = [_competed(pair, folds, seed) for pair in (both, known)]
    return _combined(
        found, (1.0, -1.0), len(both.x), confidence, "difference", "I((x, z); y) - I(z; y)", both.notes
    )


def total_correlation(
    x: Any, *, discrete: Discrete = "auto", folds: int = 5, confidence: float = 0.9, seed: int = 0
) -> Derived:
    """How much the columns of x tell about one another: the divergence of their joint distribution from independence."""
    columns = as_columns(x, "x")
    if columns.values.shape[1] < 2:
        raise UserError("x has one column; a total correlation needs two or more")
    # every term must speak of the same rows
    whole = ~np.isnan(columns.values).any(axis=1)
    values, gaps = columns.values[whole], int((~whole).sum())
    notes = (f"{gaps} of {len(whole)} rows have gaps and were left out",) if gaps else ()
    check_varies(columns, np.flatnonzero(whole), "x")
    beside = _beside(values, values[:, :0], "x", (columns.words, columns.words[:0]))
    names = list(beside)
    found = [
        _competed(
            checked_pair({name: beside[name] for name in names[:k]}, {names[k]: beside[names[k]]}, discrete),
            folds,
            seed,
        )
        for k in range(1, len(names))
    ]
    total = _combined(found, (1.0,) * len(found), len(values), confidence, "sum", "the chain rule", notes)
    most = max(total.terms)
    if most > math.log(len(values)):
        above = f"one column is told by the others to more than log n = {math.log(len(values)):.2f} nats: it may be a function of them, and the truth infinite"
        return replace(total, warnings=(*total.warnings, above))
    return total


def pointwise_mi(
    x: Any, y: Any, *, discrete: Discrete = "auto", groups: Any = None, folds: int = 5, seed: int = 0
) -> Float[np.ndarray, "sample"]:
    """log p(x, y) / (p(x) p(y)) at every row, in nats, by a ratio that was not fitted to it; NaN where a row has gaps."""
    pair = checked_pair(x, y, discrete, groups)
    found = np.full(len(as_columns(x, "x").values), np.nan)
    found[pair.kept] = pointwise(_competed(pair, folds, seed).folds, len(pair.x))
    return found


@dataclass(frozen=True)
class _Competed:
    folds: list[Fold]
    unit: np.ndarray


def _competed(pair: Pair, folds: int, seed: int) -> _Competed:
    unit = checked_groups(pair.groups, len(pair.x))
    with one_thread():
        found = [
            compete(pair.x, pair.y, pair.kinds, split, unit, seed + k)
            for k, split in enumerate(splits(unit, folds, seed))
        ]
    return _Competed(found, unit)


def _beside(
    one: np.ndarray, other: np.ndarray, name: str, words: tuple[np.ndarray, np.ndarray]
) -> dict[str, np.ndarray]:
    """Columns side by side; codes of words as words again, so that they stay categories."""
    columns = np.hstack([one, other])
    are_words = np.concatenate(words)
    return {
        f"{name}{k}": np.array([None if np.isnan(v) else f"level {v:g}" for v in column], dtype=object)
        if are_words[k]
        else column
        for k, column in enumerate(columns.T)
    }


def _combined(
    found: list[_Competed],
    signs: tuple[float, ...],
    rows: int,
    confidence: float,
    kind: str,
    how: str,
    notes: tuple[str, ...],
) -> Derived:
    best: list[Best] = [best_estimate(one.folds, one.unit, confidence) for one in found]
    values = [pointwise(one.folds, rows) for one in found]
    unit = found[0].unit
    together = sum(sign * value for sign, value in zip(signs, values, strict=True))
    per_unit = np.bincount(unit, together) / np.bincount(unit)
    error = float(per_unit.std() / math.sqrt(len(per_unit)))
    nats = sum(sign * one.nats for sign, one in zip(signs, best, strict=True))
    # what may be more of a term that is subtracted may be less of the whole
    less, more = (
        math.hypot(
            error,
            LEAST_DOUBT,
            *(one.doubt[end if sign > 0 else 1 - end] for sign, one in zip(signs, best, strict=True)),
        )
        for end in (0, 1)
    )
    z = float(norm.ppf((1 + confidence) / 2))
    return Derived(
        max(0.0, nats),
        (max(0.0, nats - z * less), max(0.0, nats) + z * more),
        confidence,
        Certificate("not covered", MODEL.format(kind, how), None),
        tuple(one.nats for one in best),
        rows,
        notes if all(one.fitted for one in best) else (*notes, UNFITTED),
    )
