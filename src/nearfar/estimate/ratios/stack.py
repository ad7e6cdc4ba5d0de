"""The stack of ratios: log sum_k w_k r_k, with weights by likelihood on rows that the r_k were not fitted to.

If every r_k has mean one under independence, so has their mixture, and its mean logarithm on unseen rows is a
likelihood (Smyth & Wolpert 1999). Expectation maximisation finds the weights without negatives. One of the
r_k is 1 (independence) with some weight always, so that an unseen row costs at most the logarithm of that
weight.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from nearfar.estimate.ratios.candidates import ATOMS, EXPENSIVE, FAMILIES, NETWORK
from nearfar.estimate.ratios.network import NetworkRatio
from nearfar.estimate.ratios.sides import Fit, Ratio, SideRows
from nearfar.estimate.ratios.transforms import AtomRatio

MIN_WEIGHT = 0.02  # a ratio with less is left out
MIN_GAIN = 0.003  # nats that an expensive ratio must add to the others, on unseen rows
TEMPER, UNIFORM_START = 0.25, 0.2  # initial weights: likelihood to this power, mixed with uniform ones
WEIGHT_STEPS, WEIGHT_TOLERANCE = 300, 1e-4
MAX_LOG_RATIO = 50.0  # nats of one pair
MAX_SHUFFLED_PAIRS, MAX_SHIFTS = 3000, 6  # pairs of y shifted against x that show a ratio's mean
MAX_COMPARED = 4000  # rows on which ratios compete
FEW_ROWS = 400  # up to here weights are found on all rows, by halves, instead of on a quarter


@dataclass(frozen=True)
class Stack:
    """A mixture of ratios; the first is 1 (independence)."""

    names: tuple[str, ...]
    ratios: tuple[Ratio, ...]  # all but the first
    weights: Float[np.ndarray, "name"]
    excess: Float[np.ndarray, "ratio"]  # log of each ratio's mean under independence, subtracted
    candidates: int = 0  # how many could be fitted

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
    return np.clip(np.nan_to_num(log_r, nan=0.0), -MAX_LOG_RATIO, MAX_LOG_RATIO)


INDEPENDENCE = Stack(("independence",), (), np.ones(1), np.zeros(0))


def fit_stack(
    x: SideRows,
    y: SideRows,
    seed: int,
    unit: np.ndarray | None = None,
    candidates: dict[str, Fit] | None = None,
) -> Stack:
    """Candidates compete on rows left out of their fit. Those that win weight are fitted again to all rows.

    `unit`: group of every row; a group stays on one side of a split. `candidates`: default all, and a
    network.
    """
    fits = CANDIDATES if candidates is None else candidates
    values: dict[str, list[np.ndarray]] = {}
    excesses: dict[str, list[float]] = {}
    splits = _split_rows(np.arange(len(x)) if unit is None else unit, seed)

    def compete(name: str, train: tuple[SideRows, SideRows], unseen: tuple[SideRows, SideRows]) -> None:
        ratio = _candidate(name, fits)(*train, seed)
        if ratio is not None:
            values.setdefault(name, []).append(_clip(ratio.pairs(*unseen)))
            excesses.setdefault(name, []).append(_excess(ratio, *unseen))

    for rows in splits:
        train, unseen = ((x[part], y[part]) for part in rows)
        for name in fits:
            compete(name, train, unseen)
        if candidates is None and len(splits) == 1 and values:
            best = max(values, key=lambda name: float(values[name][0].mean()) - excesses[name][0])
            compete(NETWORK + best, train, unseen)
    names = [name for name, parts in values.items() if len(parts) == len(splits)]
    excess = {name: float(np.mean(excesses[name])) for name in names}
    log_r = _drop_idle({name: np.concatenate(values[name]) - excess[name] for name in names})
    refitted: dict[str, Ratio] = {}
    while log_r:
        weights, _ = _weigh(log_r)
        selected = {name: w for name, w in zip(log_r, weights[1:], strict=True) if w >= MIN_WEIGHT}
        attempts = {name: refitted.get(name) or _candidate(name, fits)(x, y, seed) for name in selected}
        refitted = {name: ratio for name, ratio in attempts.items() if ratio is not None}
        if len(refitted) == len(selected):
            stack = _mixture(refitted, selected, excess, float(weights[0]), len(x))
            return replace(stack, candidates=len(names))
        # a ratio that can be fitted to part of the rows only (an outlier in the rest) does not compete
        log_r = {name: value for name, value in log_r.items() if name in refitted or name not in selected}
    return replace(INDEPENDENCE, candidates=len(names))


def refit_on_half(
    stack: Stack, x: SideRows, y: SideRows, seed: int, candidates: dict[str, Fit] | None = None
) -> Stack:
    """The same mixture with its ratios fitted to half of the rows: a point of the learning curve.

    A ratio that needs more rows than that stays unchanged: with fewer rows another would have its weight.
    """
    fits = CANDIDATES if candidates is None else candidates
    rows = np.random.default_rng(seed).permutation(len(x))[: len(x) // 2]
    half_x, half_y = x[rows], y[rows]
    ratios = [
        _candidate(name, fits)(half_x, half_y, seed) or full_fit
        for name, full_fit in zip(stack.names[1:], stack.ratios, strict=True)
    ]
    return replace(stack, ratios=tuple(ratios))


def _fit_atom_factor(x: SideRows, y: SideRows, seed: int) -> Stack:
    return fit_stack(x, y, seed, candidates=ATOMS)


CANDIDATES: dict[str, Fit] = {**FAMILIES, "atoms": partial(AtomRatio.fit, inner=_fit_atom_factor)}


def _candidate(name: str, fits: dict[str, Fit]) -> Fit:
    """The candidate of that name; a network corrects the candidate that follows its prefix."""
    if name.startswith(NETWORK):
        return partial(NetworkRatio.fit, start=fits[name.removeprefix(NETWORK)])
    return fits[name]


def _weigh(log_r: dict[str, np.ndarray]) -> tuple[Float[np.ndarray, "ratio"], float]:
    """Weights of independence and of the ratios, and the mean logarithm of their mixture."""
    table = np.column_stack([np.zeros(len(next(iter(log_r.values())))), *log_r.values()])
    weights = mixture_weights(table)
    with np.errstate(divide="ignore"):  # a weight may be zero, or so small that division by it overflows
        return weights, float(logsumexp(table + np.log(weights), axis=1).mean())


def _drop_idle(log_r: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Drops expensive ratios that add less than `MIN_GAIN` to the others."""
    for name in [name for name in log_r if name.startswith(EXPENSIVE)]:
        cheaper = {key: values for key, values in log_r.items() if key != name}
        if cheaper and _weigh(log_r)[1] < _weigh(cheaper)[1] + MIN_GAIN:
            log_r = cheaper
    return log_r


def _mixture(
    ratios: dict[str, Ratio],
    weights: dict[str, float],
    excess: dict[str, float],
    independence: float,
    rows: int,
) -> Stack:
    """The ratios share the weight of those that were left out; independence gets at least 3 / (3 + rows)."""
    if not ratios:
        return INDEPENDENCE
    independence = min(1.0, max(independence, 3 / (3 + rows)))
    share = np.array([weights[name] for name in ratios])
    share *= (1 - independence) / share.sum()
    return Stack(
        ("independence", *ratios),
        tuple(ratios.values()),
        np.r_[independence, share],
        np.array([excess[name] for name in ratios]),
    )


def _excess(ratio: Ratio, x: SideRows, y: SideRows) -> float:
    """log of the mean of r under independence, if it is clearly above zero: a density ratio has mean one.

    With strong dependence few pairs carry the mean. So that one drawn pair does not decide between ratios,
    one standard error is subtracted.
    """
    if x.numbers == y.numbers == 0:
        return _excess_of_levels(ratio, x, y)
    shifts = int(np.clip(MAX_SHUFFLED_PAIRS // len(y), 1, MAX_SHIFTS))
    log_r = np.concatenate(
        [
            _clip(ratio.pairs(x, y[np.roll(np.arange(len(y)), k)]))
            for k in np.linspace(1, len(y) - 1, shifts).astype(int)
        ]
    )
    top = max(0.0, float(log_r.max()))
    r = np.exp(log_r - top)
    lower = float(r.mean() - r.std() / np.sqrt(len(r)))
    return max(0.0, top + np.log(lower)) if lower > 0 else 0.0


def _excess_of_levels(ratio: Ratio, x: SideRows, y: SideRows) -> float:
    """The same for two categories, exactly: over all pairs of levels, weighted by their frequency."""
    (first, p), (second, q) = (_level_rows(side) for side in (x, y))
    log_r = _clip(ratio.cross(x[first], y[second]))
    return max(0.0, float(logsumexp(log_r + np.log(p)[:, None] + np.log(q))))


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
    log_likelihood = TEMPER * log_r.sum(axis=0)
    weights = np.exp(log_likelihood - logsumexp(log_likelihood))
    weights = (1 - UNIFORM_START) * weights + UNIFORM_START / len(weights)
    for _ in range(WEIGHT_STEPS):
        new = weights * (r / (r @ weights)[:, None]).mean(axis=0)
        if np.abs(new - weights).max() < WEIGHT_TOLERANCE:
            break
        weights = new
    return weights


def _split_rows(unit: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(rows to fit, rows to compete on); rows of a unit stay together."""
    units = np.unique(unit)
    order = np.random.default_rng(seed).permutation(len(units))
    place = np.empty(len(units), dtype=int)
    place[order] = np.arange(len(units))
    rank = place[np.searchsorted(units, unit)]
    if len(unit) > FEW_ROWS:
        train = rank >= min(len(units) // 4, MAX_COMPARED)
        return [(np.flatnonzero(train), np.flatnonzero(~train))]
    train = rank >= len(units) // 2
    return [(np.flatnonzero(train), np.flatnonzero(~train)), (np.flatnonzero(~train), np.flatnonzero(train))]
