"""Ratios that compete, fold by fold, and what unseen rows say of their mixture: the numbers behind `estimate_mi` by default.

Of each fold three things are kept. The logarithm of the ratio at every unseen row, from whose mean the best estimate comes; the
value of InfoNCE with the ratio as critic, which is the proven one; and how both would be with half the rows to learn from.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import logsumexp
from scipy.stats import norm

from nearfar.estimate.choose import effective
from nearfar.estimate.folds import Split, blocks
from nearfar.estimate.measure import expected_variance
from nearfar.estimate.ratios import Half, HalfMap, Ratio, Stack, fitted_stack, halved
from nearfar.estimate.samples import Array

BLOCK = 512  # rows contrasted with one another: log 512 = 6.2 nats are seldom asked for,
LARGE_BLOCK = 2048  # and where the training rows say they are, more
MOST_BLOCKS = 8  # of a fold,
BLOCKS_HALVED = 2  # and so many of the ratio that had half the rows to learn from
LEANING = 0.6  # share of its ceiling from which a block is too small
CHUNK = 10_000  # rows scored at a time

BOTH_WAYS = 2.0  # variance of a mean over folds, in that of independent folds, if x and y are independent
CLEARLY = 5.0  # errors above zero from which they are not
LEAST_EFFECTIVE = 10.0  # anchors and keys that must carry the mean of r for it to be believed

FUNCTIONS = 3.0  # of a number that a weak dependence may be between
# free numbers for each row: of more, the others are drawn towards independence; rare levels each have their own
MOST_OF_NUMBERS, MOST_OF_LEVELS = 1 / 32, 1 / 8

EDGES = np.linspace(-5.0, 8.0, 27)  # of log ratios, where calibration is looked at
FEWEST_COUNTED = 20

Kinds = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Contrasted:
    """A block's scores of all pairs, reduced: nothing n x n is kept.

    `bound`: InfoNCE's terms, each less what its row did as a negative of others (Hájek's projection), so that their spread is
    that of the mean. `terms`: the same of the mean of f less the log of the mean of e^f over pairs that do not belong together.
    """

    log_mean: float
    own: Float[np.ndarray, "row"]
    bound: Float[np.ndarray, "row"]
    terms: Float[np.ndarray, "row"]
    expected: float  # variance of InfoNCE's term as the ratio itself expects it
    effective: float
    above: float  # sum of f less its mean over permutations of y,
    variance: float  # and its variance over them (Hoeffding 1951)
    counted: Float[np.ndarray, "2 bin"]  # how many rows, and how many pairs apart, have f between EDGES


@dataclass(frozen=True)
class Fold:
    """What one fold found."""

    stack: Stack
    rows: Int[np.ndarray, "row"]
    value: Float[np.ndarray, "row"]  # log r of the unseen rows
    contrasted: list[Contrasted]
    first: int  # blocks of the first draw: others hold rows of the same groups
    own: Float[
        np.ndarray, "unit"
    ]  # log r, InfoNCE's terms and the others, of units in blocks, mean over draws
    bound: Float[np.ndarray, "unit"]
    terms: Float[np.ndarray, "unit"]
    learned: float  # mean log r of the rows it was fitted to
    step: float  # nats by which the unseen rows would be lower with half the rows to learn from
    block: int
    unknown: float  # share of the unseen rows with a level that was not among those learned from
    hidden: float  # nats that could be there and not stand out from chance, in so many columns or levels
    rows_learned: int

    @property
    def log_mean(self) -> float:
        return float(np.mean([one.log_mean for one in self.contrasted]))


def compete(x: Array, y: Array, kinds: Kinds, split: Split, unit: np.ndarray, seed: int) -> Fold:
    """The fold's mixture of ratios, fitted on its own rows, and what its unseen rows say."""
    learned = split.rest
    map_x, map_y = HalfMap.fit(x[learned], kinds[0]), HalfMap.fit(y[learned], kinds[1])

    def sides(rows: np.ndarray) -> tuple[Half, Half]:
        return map_x(x[rows]), map_y(y[rows])

    given = sides(learned)
    stack = fitted_stack(*given, seed, unit[learned])
    known = float(scored(stack, *sides(learned[:CHUNK])).mean())
    size = LARGE_BLOCK if known > LEANING * math.log(BLOCK) else BLOCK
    drawn = [[sides(rows) for rows in blocks(draw, size)[:MOST_BLOCKS]] for draw in split.draws]
    contrasted = [[contrast(stack.cross(*pair)) for pair in draw] for draw in drawn]
    smaller = halved(stack, *given, seed)
    unseen = sides(split.unseen)
    value = scored(stack, *unseen)
    return Fold(
        stack=stack,
        rows=split.unseen,
        value=value,
        contrasted=[one for draw in contrasted for one in draw],
        first=len(contrasted[0]),
        own=_over_draws(contrasted, "own"),
        bound=_over_draws(contrasted, "bound"),
        terms=_over_draws(contrasted, "terms"),
        learned=known,
        step=float((value - scored(smaller, *unseen)).mean()) - _rise(smaller, drawn[0], contrasted[0]),
        block=min(len(one.bound) for one in contrasted[0]),
        unknown=_unknown(*unseen),
        hidden=_hidden(*given),
        rows_learned=len(learned),
    )


def _hidden(x: Half, y: Half) -> float:
    """Nats that could be there and not stand out from chance. A dependence of so many free numbers costs one half of each for every row it is
    learned from (Wilks 1938; a ratio drawn towards independence pays no more than some), and chance moves that by as much as the square root.

    A number is more than its correlations: where it lies, how far out and how lopsided may each go with each of the other side's.
    """
    rows = len(x)
    free = x.width(FUNCTIONS) * y.width(FUNCTIONS)
    most = rows * (MOST_OF_NUMBERS if x.code is None and y.code is None else MOST_OF_LEVELS)
    return (min(free, most) + math.sqrt(2 * min(free, rows))) / (2 * rows)


def _rise(smaller: Ratio, pairs: list[tuple[Half, Half]], whole: list[Contrasted]) -> float:
    """How much lower the level of InfoNCE's denominators is with the smaller ratio than with the whole one: the mean of r under independence, a row at a
    time, so that one row far out, of which half the rows know nothing, counts as one. Near its ceiling InfoNCE shows no difference: then both ratios'
    levels are taken to be the same."""
    pairs, whole = pairs[:BLOCKS_HALVED], whole[:BLOCKS_HALVED]
    if any(one.bound.mean() > LEANING * math.log(len(one.own)) for one in whole):
        return 0.0
    level = np.mean([one.own.mean() - one.bound.mean() for one in whole])
    return float(level - np.mean([_row_level(smaller.cross(*pair)) for pair in pairs]))


def _row_level(f: Float[np.ndarray, "row key"]) -> float:
    return float((logsumexp(f, axis=1) - math.log(f.shape[1])).mean())


def _unknown(x: Half, y: Half) -> float:
    new = [np.zeros(len(half), bool) if half.code is None else half.code < 0 for half in (x, y)]
    return float((new[0] | new[1]).mean())


def _over_draws(contrasted: list[list[Contrasted]], name: str) -> Float[np.ndarray, "unit"]:
    return np.mean([np.concatenate([getattr(one, name) for one in draw]) for draw in contrasted], axis=0)


def scored(ratio: Ratio, x: Half, y: Half) -> Float[np.ndarray, "row"]:
    """log r of rows that belong together, a chunk at a time."""
    parts = [np.arange(a, min(a + CHUNK, len(x))) for a in range(0, len(x), CHUNK)]
    return np.concatenate([ratio.pairs(x[part], y[part]) for part in parts])


def log_mean(f: Float[np.ndarray, "row key"]) -> float:
    """log of the mean of e^f over pairs that do not belong together."""
    apart = f[~np.eye(len(f), dtype=bool)]
    return float(logsumexp(apart) - math.log(len(apart)))


def contrast(f: Float[np.ndarray, "row row"]) -> Contrasted:
    """InfoNCE, its error's terms, the mean of e^f, and how the sum of f fares against permutations."""
    m = len(f)
    total = logsumexp(f, axis=1)
    share = np.exp(f - total[:, None])
    own = np.diagonal(f)
    bound = own - total + math.log(m)
    level = log_mean(f)
    apart = np.exp(np.clip(f - level, -50, 50))
    np.fill_diagonal(apart, 0.0)
    centred = f - f.mean(axis=1, keepdims=True) - f.mean(axis=0, keepdims=True) + f.mean()
    return Contrasted(
        level,
        own.copy(),
        bound - (share.sum(axis=0) - 1),
        own - level - (apart.sum(axis=0) + apart.sum(axis=1)) / (m - 1) + 2,
        expected_variance(torch.from_numpy(f)),
        effective(torch.from_numpy(f)),
        float(own.sum() - m * f.mean()),
        float((centred**2).sum() / (m - 1)),
        np.stack([np.histogram(own, EDGES)[0], np.histogram(f[~np.eye(m, dtype=bool)], EDGES)[0] / (m - 1)]),
    )


def expected(folds: list[Fold]) -> float:
    """The mean of `expected_variance` over all blocks."""
    return float(np.mean([one.expected for fold in folds for one in fold.contrasted]))


def p_value(folds: list[Fold]) -> float:
    """Of independence: how far the sum of f over unseen rows is above those of permutations of y, whose distribution is normal
    in the limit with a mean and variance that are known (Hoeffding 1951). No critic is fitted again, since they were fitted elsewhere.

    Each pair of folds meets twice, once the one's rows under the other's critic and once the other way round, and if x and y are
    independent the two are nearly the same number: so the variance of the sum over folds is twice that of its parts.
    """
    z = []
    for fold in folds:
        blocks_once = fold.contrasted[: fold.first]
        variance = sum(one.variance for one in blocks_once)
        z.append(sum(one.above for one in blocks_once) / math.sqrt(variance + 1e-12))
    return float(norm.sf(sum(z) / math.sqrt(BOTH_WAYS * len(z))))


def proven_value(folds: list[Fold]) -> tuple[float, float]:
    """InfoNCE over all unseen rows, and its standard error; see `p_value` for when folds do not count as independent."""
    terms = np.concatenate([fold.bound - fold.bound.mean() for fold in folds])
    value = float(np.mean([fold.bound.mean() for fold in folds]))
    seen = float((terms**2).sum()) / (len(terms) - len(folds))
    error = math.sqrt(max(seen, expected(folds)) / len(terms))
    return value, error if value > CLEARLY * error else error * math.sqrt(BOTH_WAYS)


def weights(folds: list[Fold]) -> dict[str, float]:
    """Mean weight of each ratio over the folds, the heaviest first."""
    total: dict[str, float] = {}
    for fold in folds:
        for name, weight in zip(fold.stack.names, fold.stack.weights, strict=True):
            total[name] = total.get(name, 0.0) + float(weight) / len(folds)
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def pointwise(folds: list[Fold], rows: int) -> Float[np.ndarray, "row"]:
    """log p(x, y) / (p(x) p(y)) at every row, by the critic that did not see it."""
    found = np.empty(rows)
    for fold in folds:
        found[fold.rows] = fold.value - normaliser(fold)
    return found


def calibration(folds: list[Fold]) -> list[tuple[float, float]]:
    """(log r as said, log of how much more often rows have it than pairs apart): equal for a ratio that is right."""
    counted = np.sum([one.counted for fold in folds for one in fold.contrasted], axis=0)
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    level = float(np.mean([normaliser(fold) for fold in folds]))
    enough = (counted >= FEWEST_COUNTED).all(axis=0)
    return [
        (float(at - level), float(math.log(rows / apart)))
        for at, rows, apart in zip(middle[enough], *counted[:, enough], strict=True)
    ]


def normaliser(fold: Fold) -> float:
    """log of the mean of r under independence, where pairs enough carry it; else the ratio's own, zero."""
    enough = min(LEAST_EFFECTIVE, fold.block / 3)
    return fold.log_mean if min(one.effective for one in fold.contrasted) >= enough else 0.0
