"""Cross-fitting: a stack of ratios per fold, and what the fold's unseen rows say about it.

Every fold yields the log ratio at each unseen row, whose mean gives the best estimate; the value of InfoNCE
with the ratio as critic, which is the proven number; and how much lower both are with half the rows to learn
from.
"""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import logsumexp
from scipy.stats import norm

from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.estimate.baselines import References
from nearfar.estimate.bound_choice import effective_samples
from nearfar.estimate.measure import expected_variance
from nearfar.estimate.ratios import Ratio, SideMap, SideRows, Stack, fit_stack
from nearfar.estimate.rows import Split, blocks, group_numbers, split_folds
from nearfar.estimate.samples import Array, Kinds, SamplePair
from nearfar.system.hardware import one_thread

EDGES = np.linspace(*settings.CALIBRATION_RANGE)  # of bins of log ratios


@dataclass(frozen=True)
class BlockStatistics:
    """The scores of all pairs of a block, reduced: no n x n matrix is stored.

    `bound`: InfoNCE's terms, each less the effect of its row as a negative (Hájek's projection), so that
    their spread is that of the mean. `terms`: the same for the mean of f less log mean e^f of mismatched
    pairs.
    """

    log_mean: float  # log of the mean of e^f over mismatched pairs
    log_ratio: Float[np.ndarray, "row"]
    bound: Float[np.ndarray, "row"]
    terms: Float[np.ndarray, "row"]
    expected: float  # variance of InfoNCE's term that the ratio expects
    effective: float  # effective sample size of `log_mean`
    excess: float  # sum of f less its mean over permutations of y,
    variance: float  # and its variance over them (Hoeffding 1951)
    histogram: Float[np.ndarray, "2 bin"]  # counts of f in `EDGES`: rows, and mismatched pairs per row


@dataclass(frozen=True)
class FittedFold:
    """The stack of a fold, and its statistics on unseen rows."""

    stack: Stack
    rows: Int[np.ndarray, "row"]
    value: Float[np.ndarray, "row"]  # log r of the unseen rows
    blocks: list[BlockStatistics]
    first_draw: int  # number of blocks of the first draw; later draws hold other rows of the same groups
    # log r, InfoNCE's terms and the terms with one normaliser, of units in blocks, means over draws
    log_ratio: Float[np.ndarray, "unit"]
    bound: Float[np.ndarray, "unit"]
    terms: Float[np.ndarray, "unit"]
    learned: float  # mean log r of the training rows
    step: float  # nats that are lost with half the rows to learn from
    block_size: int
    unseen_levels: float  # share of the unseen rows with a level that is not in the training rows

    @property
    def log_mean(self) -> float:
        return float(np.mean([block.log_mean for block in self.blocks]))


@dataclass(frozen=True)
class CrossFit:
    """The folds of one or more random splits of the rows. Every row is unseen once in every split."""

    splits: list[list[FittedFold]]
    unit: Int[np.ndarray, "row"]  # group of every row
    references: References

    @property
    def folds(self) -> list[FittedFold]:
        """Of the first split, which claims and tests are about."""
        return self.splits[0]

    @property
    def units(self) -> int:
        return int(self.unit.max()) + 1


def cross_fit(pair: SamplePair, folds: int, seed: int, splits: int = 1) -> CrossFit:
    """Fits the folds of `splits` random splits."""
    if not isinstance(splits, numbers.Integral) or splits < 1:
        raise UserError(f"splits was {splits!r}; it must be a whole number from 1")
    unit = group_numbers(pair.groups, len(pair.x))
    with one_thread():
        fitted = [
            [
                fit_fold(pair.x, pair.y, pair.kinds, split, unit, split_seed + k)
                for k, split in enumerate(split_folds(unit, folds, split_seed))
            ]
            for split_seed in range(seed, seed + splits * settings.SPLIT_SEED_STEP, settings.SPLIT_SEED_STEP)
        ]
    return CrossFit(fitted, unit, References.of(pair, seed))


def fit_fold(x: Array, y: Array, kinds: Kinds, split: Split, unit: np.ndarray, seed: int) -> FittedFold:
    """Fits the stack of a fold and evaluates it on the fold's unseen rows."""
    train_rows = split.rest
    map_x, map_y = SideMap.fit(x[train_rows], kinds[0]), SideMap.fit(y[train_rows], kinds[1])

    def sides(rows: np.ndarray) -> tuple[SideRows, SideRows]:
        return map_x(x[rows]), map_y(y[rows])

    train = sides(train_rows)
    stack = fit_stack(*train, seed, unit[train_rows])
    learned = float(score_rows(stack, *sides(train_rows[: settings.SCORED_CHUNK])).mean())
    size = (
        settings.LARGE_FOLD_BLOCK
        if learned > settings.SMALL_BLOCK * math.log(settings.FOLD_BLOCK)
        else settings.FOLD_BLOCK
    )
    draws = [[sides(rows) for rows in blocks(draw, size)[: settings.MAX_FOLD_BLOCKS]] for draw in split.draws]
    statistics = [[block_statistics(stack.cross(*pair)) for pair in draw] for draw in draws]
    unseen = sides(split.unseen)
    value = score_rows(stack, *unseen)
    losses = [
        float((value - score_rows(half, *unseen)).mean()) - _level_change(half, draws[0], statistics[0])
        for half in stack.halves
    ]
    return FittedFold(
        stack=stack,
        rows=split.unseen,
        value=value,
        blocks=[block for draw in statistics for block in draw],
        first_draw=len(statistics[0]),
        log_ratio=_mean_over_draws([[block.log_ratio for block in draw] for draw in statistics]),
        bound=_mean_over_draws([[block.bound for block in draw] for draw in statistics]),
        terms=_mean_over_draws([[block.terms for block in draw] for draw in statistics]),
        learned=learned,
        step=float(np.mean(losses)),
        block_size=min(len(block.bound) for block in statistics[0]),
        unseen_levels=_unseen_level_share(*unseen),
    )


def _level_change(
    half_fit: Ratio, pairs: list[tuple[SideRows, SideRows]], full_fit: list[BlockStatistics]
) -> float:
    """How much lower the level of InfoNCE's denominators is with the half fit than with the full fit, in
    nats.

    The level is the mean of r under independence, row by row, so that an outlier counts as one row. Near its
    ceiling InfoNCE shows no difference, and the levels are taken as equal.
    """
    pairs, full_fit = pairs[: settings.HALF_FIT_BLOCKS], full_fit[: settings.HALF_FIT_BLOCKS]
    if any(block.bound.mean() > settings.SMALL_BLOCK * math.log(len(block.log_ratio)) for block in full_fit):
        return 0.0
    level = np.mean([block.log_ratio.mean() - block.bound.mean() for block in full_fit])
    return float(level - np.mean([_row_level(half_fit.cross(*pair)) for pair in pairs]))


def _row_level(f: Float[np.ndarray, "row key"]) -> float:
    return float((logsumexp(f, axis=1) - math.log(f.shape[1])).mean())


def _unseen_level_share(x: SideRows, y: SideRows) -> float:
    new = [np.zeros(len(side), bool) if side.code is None else side.code < 0 for side in (x, y)]
    return float((new[0] | new[1]).mean())


def _mean_over_draws(draws: list[list[np.ndarray]]) -> Float[np.ndarray, "unit"]:
    return np.mean([np.concatenate(draw) for draw in draws], axis=0)


def score_rows(ratio: Ratio, x: SideRows, y: SideRows) -> Float[np.ndarray, "row"]:
    """log r of every row, in chunks."""
    parts = blocks(np.arange(len(x)), settings.SCORED_CHUNK)
    return np.concatenate([ratio.pairs(x[part], y[part]) for part in parts])


def log_mean_mismatched(f: Float[np.ndarray, "row key"]) -> float:
    """log of the mean of e^f over pairs that do not belong together."""
    mismatched = f[~np.eye(len(f), dtype=bool)]
    return float(logsumexp(mismatched) - math.log(len(mismatched)))


def block_statistics(f: Float[np.ndarray, "row row"]) -> BlockStatistics:
    """Reduces the scores of all pairs of a block."""
    m = len(f)
    total = logsumexp(f, axis=1)
    share = np.exp(f - total[:, None])
    log_ratio = np.diagonal(f)
    bound = log_ratio - total + math.log(m)
    level = log_mean_mismatched(f)
    weight = np.exp(np.clip(f - level, -50, 50))
    np.fill_diagonal(weight, 0.0)
    mismatched = f[~np.eye(m, dtype=bool)]
    return BlockStatistics(
        level,
        log_ratio.copy(),
        bound - (share.sum(axis=0) - 1),
        log_ratio - level - (weight.sum(axis=0) + weight.sum(axis=1)) / (m - 1) + 2,
        expected_variance(torch.from_numpy(f)),
        effective_samples(torch.from_numpy(f)),
        *permutation_moments(f),
        np.stack([np.histogram(log_ratio, EDGES)[0], np.histogram(mismatched, EDGES)[0] / (m - 1)]),
    )


def permutation_moments(f: Float[np.ndarray, "row row"]) -> tuple[float, float]:
    """The sum of f over matched pairs less its mean over permutations of y, and its variance over them
    (Hoeffding 1951)."""
    centred = f - f.mean(axis=1, keepdims=True) - f.mean(axis=0, keepdims=True) + f.mean()
    return float(np.trace(f) - len(f) * f.mean()), float((centred**2).sum() / (len(f) - 1))


def mean_expected_variance(folds: list[FittedFold]) -> float:
    """The mean of `expected_variance` over all blocks."""
    return float(np.mean([block.expected for fold in folds for block in fold.blocks]))


def independence_p_value(folds: list[FittedFold]) -> float:
    """p-value of independence, by permutations of y.

    The sum of f over unseen rows is compared with its distribution over permutations, which is normal in the
    limit with known mean and variance (Hoeffding 1951). Critics were fitted to other rows, so none is fitted
    again.

    Two folds meet twice, the rows of each under the critic of the other. Under independence both are nearly
    the same number, so the variance of the sum over folds is twice that of its parts.
    """
    first_draws = (fold.blocks[: fold.first_draw] for fold in folds)
    return permutation_p_value([[(block.excess, block.variance) for block in draw] for draw in first_draws])


def permutation_p_value(folds: Sequence[Sequence[tuple[float, float]]]) -> float:
    """The p-value of `independence_p_value` from the `permutation_moments` of the blocks of each fold."""
    z = [
        sum(excess for excess, _ in fold) / math.sqrt(sum(variance for _, variance in fold) + 1e-12)
        for fold in folds
    ]
    return float(norm.sf(sum(z) / math.sqrt(settings.FOLD_VARIANCE * len(z))))


def infonce_value(folds: list[FittedFold]) -> tuple[float, float]:
    """InfoNCE over all unseen rows and its standard error, in nats.

    Unless the value is clearly above zero, folds count as dependent (see `independence_p_value`).
    """
    terms = np.concatenate([fold.bound - fold.bound.mean() for fold in folds])
    value = float(np.mean([fold.bound.mean() for fold in folds]))
    variance = float((terms**2).sum()) / (len(terms) - len(folds))
    error = math.sqrt(max(variance, mean_expected_variance(folds)) / len(terms))
    return value, error if value > settings.CLEARLY_DEPENDENT * error else error * math.sqrt(
        settings.FOLD_VARIANCE
    )


def mean_weights(folds: list[FittedFold]) -> dict[str, float]:
    """Mean weight of each ratio over the folds, in falling order."""
    total: dict[str, float] = {}
    for fold in folds:
        for name, weight in zip(fold.stack.names, fold.stack.weights, strict=True):
            total[name] = total.get(name, 0.0) + float(weight) / len(folds)
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def pointwise_values(fit: CrossFit) -> Float[np.ndarray, "row"]:
    """log p(x, y) / (p(x) p(y)) at every row, by stacks that did not see it; mean over splits."""
    values = np.zeros(len(fit.unit))
    for fold in (fold for folds in fit.splits for fold in folds):
        values[fold.rows] += (fold.value - normaliser(fold)) / len(fit.splits)
    return values


def calibration(folds: list[FittedFold]) -> list[tuple[float, float]]:
    """(predicted log r, log of how much more frequent it is among rows than mismatched pairs): equal if r is
    right."""
    counts = np.sum([block.histogram for fold in folds for block in fold.blocks], axis=0)
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    level = float(np.mean([normaliser(fold) for fold in folds]))
    enough = (counts >= settings.MIN_BIN_COUNT).all(axis=0)
    return [
        (float(place - level), float(math.log(rows / mismatched)))
        for place, rows, mismatched in zip(middle[enough], *counts[:, enough], strict=True)
    ]


def normaliser(fold: FittedFold) -> float:
    """log of the mean of r under independence, if enough pairs carry it; else 0, as the ratio claims."""
    minimum = min(settings.MIN_NORMALISER_SAMPLES, fold.block_size / 3)
    return fold.log_mean if min(block.effective for block in fold.blocks) >= minimum else 0.0
