"""The stack of ratios: log sum_k w_k r_k, with weights by likelihood on rows that the r_k were not fitted to.

If every r_k has mean one under independence, so has their mixture, and its mean logarithm on unseen rows is a
likelihood (Smyth & Wolpert 1999). Expectation maximisation finds the weights without negatives. One of the
r_k is 1 (independence) with some weight always, so that an unseen row costs at most the logarithm of that
weight.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from nearfar.estimate import settings
from nearfar.estimate.ratios.blocks import BlockRatio, find_blocks
from nearfar.estimate.ratios.candidates import BESIDE_BLOCKS, CANDIDATES, LEADERS
from nearfar.estimate.ratios.sides import Fit, Ratio, SideRows

BLOCKS = "blocks of columns"


@dataclass(frozen=True)
class Stack:
    """A mixture of ratios; the first is 1 (independence)."""

    names: tuple[str, ...]
    ratios: tuple[Ratio, ...]  # all but the first
    weights: Float[np.ndarray, "name"]
    excess: Float[np.ndarray, "ratio"]  # log of each ratio's mean under independence, subtracted
    candidates: int = 0  # how many could be fitted
    halves: tuple[
        "Stack", ...
    ] = ()  # the same with ratios fitted to either half of the rows: a learning curve

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._mix(np.zeros(len(x)), [ratio.pairs(x, y) for ratio in self.ratios])

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._mix(np.zeros((len(x), len(y))), [ratio.cross(x, y) for ratio in self.ratios])

    def _mix(self, zeros: np.ndarray, log_ratios: list[np.ndarray]) -> np.ndarray:
        total = zeros + self.weights[0]
        for weight, excess, log_r in zip(self.weights[1:], self.excess, log_ratios, strict=True):
            total += np.exp(_clip(log_r) + (np.log(weight) - excess))
        return np.log(total)


def _clip(log_r: np.ndarray) -> np.ndarray:
    """Finite log ratios: 0/0, far from all training rows, counts as ratio 1."""
    return np.clip(np.nan_to_num(log_r, nan=0.0), -settings.MAX_LOG_RATIO, settings.MAX_LOG_RATIO)


INDEPENDENCE = Stack(("independence",), (), np.ones(1), np.zeros(0))


@dataclass(frozen=True)
class Competitor:
    """A candidate fitted to either half of the rows, and what it says about the other half."""

    halves: tuple[Ratio, ...]
    values: Float[np.ndarray, "row"]  # log r of rows left out of the fit, less the excess
    excess: float
    refit: Callable[[], Ratio | None]  # to all rows


@dataclass(frozen=True)
class UnseenRows:
    """Rows on which candidates compete, and the same rows with y shifted against x."""

    x: SideRows  # as often as there are shifts, and once more
    y: SideRows
    rows: int

    @staticmethod
    def of(x: SideRows, y: SideRows, rows: np.ndarray) -> "UnseenRows":
        n = len(rows)
        shifts = (
            int(np.clip(settings.MAX_SHUFFLED_PAIRS // n, 1, settings.MAX_SHIFTS))
            if x.numbers or y.numbers
            else 0
        )
        shifted = [np.roll(rows, k) for k in np.linspace(1, n - 1, shifts).astype(int)]
        return UnseenRows(x[np.tile(rows, shifts + 1)], y[np.concatenate([rows, *shifted])], n)

    def __len__(self) -> int:
        return self.rows

    def evaluate(self, ratio: Ratio) -> tuple[Float[np.ndarray, "row"], float]:
        """log r of the rows, and the excess: log of the mean of r under independence, if clearly above zero.

        A density ratio has mean one. With strong dependence few pairs carry the mean. So that one drawn pair
        does not decide between ratios, one standard error is subtracted. Of two categories the mean is
        exact: over all pairs of levels, weighted by their frequency.
        """
        log_r = _clip(ratio.pairs(self.x, self.y))
        if len(log_r) == self.rows:
            (first, p), (second, q) = (_level_rows(side) for side in (self.x, self.y))
            of_levels = _clip(ratio.cross(self.x[first], self.y[second]))
            return log_r, max(0.0, float(logsumexp(of_levels + np.log(p)[:, None] + np.log(q))))
        shifted = log_r[self.rows :]
        top = max(0.0, float(shifted.max()))
        r = np.exp(shifted - top)
        lower = float(r.mean() - r.std() / np.sqrt(len(r)))
        return log_r[: self.rows], max(0.0, top + np.log(lower)) if lower > 0 else 0.0


def fit_stack(
    x: SideRows,
    y: SideRows,
    seed: int,
    unit: np.ndarray | None = None,
    candidates: dict[str, Fit] | None = None,
) -> Stack:
    """Candidates compete on rows left out of their fit. Those that win weight are fitted again to all rows.

    `unit`: group of every row; a group stays in one half. `candidates`: default all, also between blocks of columns.
    """
    halves = _split_halves(np.arange(len(x)) if unit is None else unit, seed)
    if candidates is not None:
        return _weigh_candidates(x, y, halves, seed, candidates, {})[0]
    blocks = find_blocks(x, y)
    extra = {}
    if blocks:
        fitted = [_weigh_candidates(*block.select(x, y), halves, seed, CANDIDATES, {}) for block in blocks]
        stacks = [stack for stack, _ in fitted]
        sides = [BlockRatio(blocks, tuple(parts)) for parts in zip(*(s.halves for s in stacks), strict=True)]
        extra[BLOCKS] = Competitor(
            tuple(sides),
            np.sum([values for _, values in fitted], axis=0),
            0.0,
            lambda: BlockRatio(blocks, tuple(stacks)),
        )
    fits = BESIDE_BLOCKS if blocks else CANDIDATES
    return _weigh_candidates(x, y, halves, seed, fits, extra)[0]


def _weigh_candidates(
    x: SideRows,
    y: SideRows,
    halves: tuple[np.ndarray, np.ndarray],
    seed: int,
    fits: dict[str, Fit],
    extra: dict[str, Competitor],
) -> tuple[Stack, Float[np.ndarray, "row"]]:
    """The mixture, and its log ratios of the rows left out of either half."""
    sides = [(x[rows], y[rows]) for rows in halves]
    unseen = [UnseenRows.of(x, y, rows[: settings.MAX_COMPARED]) for rows in halves[::-1]]
    entries = dict(extra)
    leader, fitted = np.zeros(len(unseen[0])), len(extra)
    for name, fit in fits.items():
        if name in LEADERS and _leading(entries) not in LEADERS[name]:
            continue
        entry = _compete(fit, (x, y), sides, unseen, seed, leader)
        fitted += entry is not None
        if entry is not None and entry.halves:
            entries[name] = entry
            leader = max(leader, entry.values[: len(leader)], key=np.mean)
    rows = sum(map(len, unseen))
    log_r = {name: entry.values for name, entry in entries.items()}
    refitted: dict[str, Ratio] = {}
    while log_r:
        weights, values = _weigh(log_r)
        selected = {name: w for name, w in zip(log_r, weights[1:], strict=True) if w >= settings.MIN_WEIGHT}
        attempts = {name: refitted.get(name) or entries[name].refit() for name in selected}
        refitted = {name: ratio for name, ratio in attempts.items() if ratio is not None}
        if len(refitted) == len(selected):
            stack = _mixture(refitted, selected, entries, float(weights[0]), len(x))
            return replace(stack, candidates=fitted), values
        # a ratio that can be fitted to part of the rows only (an outlier in the rest) does not compete
        log_r = {name: value for name, value in log_r.items() if name in refitted or name not in selected}
    return replace(INDEPENDENCE, halves=(INDEPENDENCE,) * 2, candidates=fitted), np.zeros(rows)


def _leading(entries: dict[str, Competitor]) -> str | None:
    """The name of the candidate that explains rows left out best so far."""
    return max(entries, key=lambda name: entries[name].values.mean(), default=None)


def _compete(
    fit: Fit,
    rows: tuple[SideRows, SideRows],
    halves: list[tuple[SideRows, SideRows]],
    unseen: list[UnseenRows],
    seed: int,
    leader: Float[np.ndarray, "row"],
) -> Competitor | None:
    """Fits a candidate to both halves.

    None if it does not apply to them. Without halves if the first shows it to be far behind the best one so far.
    """
    ratios, values, excesses = [], [], []
    for half, other in zip(halves, unseen, strict=True):
        ratio = fit(*half, seed)
        if ratio is None:
            return None
        ratios.append(ratio)
        value, excess = other.evaluate(ratio)
        values.append(value)
        excesses.append(excess)
        behind = leader - values[0] + excesses[0]
        if behind.mean() > settings.HOPELESS_ERRORS * behind.std() / np.sqrt(len(behind)):
            return Competitor((), behind, 0.0, lambda: None)
    excess = float(np.mean(excesses))
    return Competitor(tuple(ratios), np.concatenate(values) - excess, excess, lambda: fit(*rows, seed))


def _weigh(
    log_r: dict[str, np.ndarray],
) -> tuple[Float[np.ndarray, "ratio"], Float[np.ndarray, "row"]]:
    """Weights of independence and of the ratios, and the logarithm of their mixture."""
    table = np.column_stack([np.zeros(len(next(iter(log_r.values())))), *log_r.values()])
    weights = mixture_weights(table)
    with np.errstate(divide="ignore"):  # a weight may be zero, or so small that division by it overflows
        return weights, logsumexp(table + np.log(weights), axis=1)


def _mixture(
    ratios: dict[str, Ratio],
    weights: dict[str, float],
    entries: dict[str, Competitor],
    independence: float,
    rows: int,
) -> Stack:
    """The ratios share the weight of those that were left out; independence gets at least 3 / (3 + rows)."""
    if not ratios:
        return replace(INDEPENDENCE, halves=(INDEPENDENCE,) * 2)
    independence = min(1.0, max(independence, 3 / (3 + rows)))
    share = np.array([weights[name] for name in ratios])
    share *= (1 - independence) / share.sum()
    excess = np.array([entries[name].excess for name in ratios])
    stack = Stack(("independence", *ratios), tuple(ratios.values()), np.r_[independence, share], excess)
    halves = tuple(
        replace(stack, ratios=parts) for parts in zip(*(entries[name].halves for name in ratios), strict=True)
    )
    return replace(stack, halves=halves)


def _level_rows(side: SideRows) -> tuple[np.ndarray, np.ndarray]:
    """A row of each level, and the share of the level."""
    _, row, count = np.unique(side.level_codes, return_index=True, return_counts=True)
    return row, count / len(side)


def mixture_weights(log_r: Float[np.ndarray, "row ratio"]) -> Float[np.ndarray, "ratio"]:
    """argmax over the simplex of mean log sum_k w_k r_k, by expectation maximisation.

    Ratios that are alike exchange weight slowly, so weights start at each ratio's tempered likelihood.
    Stopping early keeps the weights of few rows away from the corners.
    """
    log_r = log_r - log_r.max(axis=1, keepdims=True)
    r = np.exp(log_r)
    log_likelihood = settings.TEMPER * log_r.sum(axis=0)
    weights = np.exp(log_likelihood - logsumexp(log_likelihood))
    weights = (1 - settings.UNIFORM_START) * weights + settings.UNIFORM_START / len(weights)
    for _ in range(settings.WEIGHT_STEPS):
        new = weights * ((1 / (r @ weights)) @ r) / len(r)
        if np.abs(new - weights).max() < settings.WEIGHT_TOLERANCE:
            break
        weights = new
    return weights


def _split_halves(unit: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of either half, in random order; rows of a unit stay together."""
    units = np.unique(unit)
    order = np.random.default_rng(seed).permutation(len(units))
    place = np.empty(len(units), dtype=int)
    place[order] = np.arange(len(units))
    rank = place[np.searchsorted(units, unit)]
    rows = np.argsort(rank, kind="stable")
    first = int((rank < len(units) // 2).sum())
    return rows[first:], rows[:first]
