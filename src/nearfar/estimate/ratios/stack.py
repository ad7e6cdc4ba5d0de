"""Many ratios as one: log sum_k w_k r_k, the weights found on rows that the r_k were not fitted to.

If every r_k is a density ratio with mean one under independence, so is their mixture, and its mean logarithm on unseen rows
is a likelihood: the weights that maximise it are found by expectation maximisation, without negatives. One of the r_k is 1,
with some weight always, so that no unseen row can cost more than its logarithm.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from nearfar.estimate.ratios.around import Around
from nearfar.estimate.ratios.association import Association
from nearfar.estimate.ratios.atoms import Atoms
from nearfar.estimate.ratios.compressed import Compressed
from nearfar.estimate.ratios.conditional import Classifier, Densities, Residual
from nearfar.estimate.ratios.discriminator import Discriminator
from nearfar.estimate.ratios.elliptic import Gaussian, Student
from nearfar.estimate.ratios.halves import Half, Ratio
from nearfar.estimate.ratios.line import Line
from nearfar.estimate.ratios.network import Network
from nearfar.estimate.ratios.ordered import Ordered
from nearfar.estimate.ratios.smooth import Kernels, Mixture
from nearfar.estimate.ratios.tables import Levels, Table
from nearfar.estimate.ratios.unmixed import Unmixed

Fit = Callable[[Half, Half, int], Ratio | None]
LEAST_WEIGHT = 0.02  # a ratio with less is left out
NETWORK = "network on "  # and the name of the ratio that it begins at
DEAR, LEAST_WORTH = (NETWORK, "trees of pairs"), 0.003  # nats they must add to the others, on unseen rows
TEMPER, START_SHARE = 0.25, 0.2  # how weights begin: likelihood to this power, and evenly
MOST_NATS = 50.0  # of one pair
# of y shifted against x, on which a ratio's mean under independence is read
MOST_PAIRS, MOST_SHIFTS = 3000, 6
MOST_COMPARED = 4000  # rows on which ratios compete
FEW = 400  # rows up to which weights are found on all of them, by halves, instead of on a quarter

BETWEEN: dict[str, Fit] = {  # directions of many columns
    "mixture of 8": partial(Mixture.fit, parts=8),
    "levels": partial(Levels.fit, plain=True, own_spread=True),
    "y of x": partial(Residual.fit, swapped=False, plain=True, scaled=False),
    "x of y": partial(Residual.fit, swapped=True, plain=True, scaled=False),
}

BETWEEN_SHRUNK: dict[str, Fit] = {  # directions of any number of columns
    "gaussian": partial(Gaussian.fit, crossed=False),
    "levels": partial(Levels.fit, plain=False, own_spread=False),
}
RIDGES = (0.1, 1.0, 10.0)  # in mean variances of a column

OF_LEVELS: dict[str, Fit] = {  # levels in their order
    "gaussian": partial(Gaussian.fit, crossed=False),
    "mixture of 3": partial(Mixture.fit, parts=3),
    "levels": partial(Levels.fit, plain=False, own_spread=True),
}

BESIDE_ATOMS: dict[str, Fit] = {  # which atom, and the numbers between them
    "counts": partial(Table.fit, bins=0, strength=1.0),
    "levels": partial(Levels.fit, plain=False, own_spread=False),
    "levels, own spread": partial(Levels.fit, plain=False, own_spread=True),
    "gaussian": partial(Gaussian.fit, crossed=False),
    "mixture of 2": partial(Mixture.fit, parts=2),
    "y of x": partial(Residual.fit, swapped=False, plain=True, scaled=False),
}

CANDIDATES: dict[str, Fit] = {
    "gaussian": partial(Gaussian.fit, crossed=False),
    "gaussian, plain": partial(Gaussian.fit, plain=True),
    "gaussian, crossed": partial(Gaussian.fit, crossed=True),
    "gaussian, screened": partial(Gaussian.fit, screened=True),
    "student": Student.fit,
    "gaussian, unmixed": partial(Unmixed.fit, plain=False),
    "gaussian, unmixed, plain": partial(Unmixed.fit, plain=True),
    **{f"mixture of {k}": partial(Mixture.fit, parts=k) for k in (2, 4, 8, 16, 32, 64)},
    **{f"mixture of {k}, plain": partial(Mixture.fit, parts=k, plain=True) for k in (3, 8, 24)},
    **{f"local {k}": partial(Mixture.local, neighbours=k) for k in (8, 20)},
    **{f"local {k}, plain": partial(Mixture.local, neighbours=k, plain=True) for k in (8, 20)},
    "kernels of 4": partial(Kernels.fit, neighbours=4, factor=0.7),
    "kernels of 12": partial(Kernels.fit, neighbours=12, factor=0.7),
    "kernels of 8, plain": partial(Kernels.fit, neighbours=8, factor=0.35, plain=True),
    **{f"table of {b}": partial(Table.fit, bins=b, strength=2.0) for b in (4, 8, 16, 32)},
    **{f"counts, {s:g}": partial(Table.fit, bins=0, strength=s) for s in (0.3, 1.0, 5.0, 25.0)},
    "counts, discounted": partial(Table.fit, bins=0, strength=None),
    "counts, rare ones pooled": partial(Table.fit, bins=0, strength=1.0, rare=5),
    "table of 8, rare ones pooled": partial(Table.fit, bins=8, strength=2.0, rare=5),
    **{
        f"levels{', plain' * plain}{', own spread' * own}": partial(Levels.fit, plain=plain, own_spread=own)
        for plain in (False, True)
        for own in (False, True)
    },
    "densities": partial(Densities.fit, plain=False),
    "densities, plain": partial(Densities.fit, plain=True),
    **{
        f"{'x of y' if swapped else 'y of x'}{', plain' * plain}{', scaled' * scaled}": partial(
            Residual.fit, swapped=swapped, plain=plain, scaled=scaled
        )
        for swapped in (False, True)
        for plain in (False, True)
        for scaled in (False, True)
    },
    "line, y of x": partial(Line.fit, swapped=False),
    "line, x of y": partial(Line.fit, swapped=True),
    "columns of y round x": partial(Around.fit, swapped=False),
    "columns of x round y": partial(Around.fit, swapped=True),
    "trees, y of x": partial(Residual.fit, swapped=False, plain=True, scaled=False, boosted=True),
    "trees, x of y": partial(Residual.fit, swapped=True, plain=True, scaled=False, boosted=True),
    "classes of y": partial(Classifier.fit, swapped=False),
    "classes of x": partial(Classifier.fit, swapped=True),
    "trees of pairs": Discriminator.fit,
    **{f"compressed, {name}": partial(Compressed.fit, inner=inner) for name, inner in BETWEEN.items()},
    **{
        f"shrunk by {ridge:g}, {name}": partial(Compressed.shrunk, ridge=ridge, inner=inner)
        for ridge in RIDGES
        for name, inner in BETWEEN_SHRUNK.items()
    },
    **{f"ordered, {name}": partial(Ordered.fit, inner=inner) for name, inner in OF_LEVELS.items()},
    **{f"products of {k} scores": partial(Association.fit, powers=k) for k in (1, 2, 3)},
    "atoms": partial(Atoms.fit, inner=lambda x, y, seed: fitted_stack(x, y, seed, candidates=BESIDE_ATOMS)),
}


@dataclass(frozen=True)
class Stack:
    """The mixture: `names` and weights of its ratios, the first of them 1 (independence)."""

    names: tuple[str, ...]
    ratios: tuple[Ratio, ...]
    weights: Float[np.ndarray, "ratio"]
    excess: Float[np.ndarray, "ratio"]  # of all but the first, subtracted
    candidates: int = 0  # how many could be fitted

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        return self._mixed(np.zeros(len(x)), [ratio.pairs(x, y) for ratio in self.ratios])

    def cross(self, x: Half, y: Half) -> np.ndarray:
        return self._mixed(np.zeros((len(x), len(y))), [ratio.cross(x, y) for ratio in self.ratios])

    def _mixed(self, nothing: np.ndarray, found: list[np.ndarray]) -> np.ndarray:
        total = nothing + self.weights[0]
        for weight, above, each in zip(self.weights[1:], self.excess, found, strict=True):
            total += np.exp(_finite(each) + (np.log(weight) - above))
        return np.log(total)


def _finite(log_r: np.ndarray) -> np.ndarray:
    """A ratio far from all it was fitted to may be 0/0: then it says nothing."""
    return np.clip(np.nan_to_num(log_r, nan=0.0), -MOST_NATS, MOST_NATS)


NOTHING = Stack(("independence",), (), np.ones(1), np.zeros(0))


def fitted_stack(
    x: Half, y: Half, seed: int, unit: np.ndarray | None = None, candidates: dict[str, Fit] | None = None
) -> Stack:
    """Candidates compete on rows left out of their fit; those that win weight are fitted again to all rows."""
    fits = CANDIDATES if candidates is None else candidates
    values: dict[str, list[np.ndarray]] = {}
    excess: dict[str, list[float]] = {}
    splits = _splits(np.arange(len(x)) if unit is None else unit, seed)

    def compete(name: str, learn: tuple[Half, Half], unseen: tuple[Half, Half]) -> None:
        ratio = _fit(name, fits)(*learn, seed)
        if ratio is not None:
            values.setdefault(name, []).append(_finite(ratio.pairs(*unseen)))
            excess.setdefault(name, []).append(_excess(ratio, *unseen))

    for rows in splits:
        learn, unseen = ((x[some], y[some]) for some in rows)
        for name in fits:
            compete(name, learn, unseen)
        if candidates is None and len(splits) == 1 and values:
            best = max(values, key=lambda name: float(values[name][0].mean()) - excess[name][0])
            compete(NETWORK + best, learn, unseen)
    names = [name for name, found in values.items() if len(found) == len(splits)]
    above = {name: float(np.mean(excess[name])) for name in names}
    log_r = _worth_their_cost({name: np.concatenate(values[name]) - above[name] for name in names})
    again: dict[str, Ratio] = {}
    count = len(names)
    while log_r:
        weights, _ = _weighed(log_r)
        kept = {name: w for name, w in zip(log_r, weights[1:], strict=True) if w >= LEAST_WEIGHT}
        found_again = {name: again.get(name) or _fit(name, fits)(x, y, seed) for name in kept}
        again = {name: ratio for name, ratio in found_again.items() if ratio is not None}
        if len(again) == len(kept):
            return replace(_mixture(again, kept, above, float(weights[0]), len(x)), candidates=count)
        # what can be fitted to some of the rows and not to all (an outlier among them) does not compete
        log_r = {name: value for name, value in log_r.items() if name in again or name not in kept}
    return replace(NOTHING, candidates=count)


def _fit(name: str, fits: dict[str, Fit]) -> Fit:
    """The candidate of that name; a network begins at another candidate, the best one before it."""
    if name.startswith(NETWORK):
        return partial(Network.fit, start=fits[name.removeprefix(NETWORK)])
    return fits[name]


def _weighed(log_r: dict[str, np.ndarray]) -> tuple[Float[np.ndarray, "ratio"], float]:
    """Weights of independence and of the others, and the mean logarithm of their mixture."""
    table = np.column_stack([np.zeros(len(next(iter(log_r.values())))), *log_r.values()])
    weights = mixture_weights(table)
    with np.errstate(divide="ignore"):  # a weight may be zero, or so small that nothing can be divided by it
        return weights, float(logsumexp(table + np.log(weights), axis=1).mean())


def _worth_their_cost(log_r: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Without those that take long to fit and to read and add next to nothing to the others."""
    for name in [name for name in log_r if name.startswith(DEAR)]:
        others = {other: values for other, values in log_r.items() if other != name}
        if others and _weighed(log_r)[1] < _weighed(others)[1] + LEAST_WORTH:
            log_r = others
    return log_r


def _mixture(
    ratios: dict[str, Ratio], weights: dict[str, float], above: dict[str, float], nothing: float, rows: int
) -> Stack:
    """The few that were left out say nothing either way: the others share their weight."""
    if not ratios:
        return NOTHING
    nothing = min(1.0, max(nothing, 3 / (3 + rows)))
    share = np.array([weights[name] for name in ratios])
    share *= (1 - nothing) / share.sum()
    return Stack(
        ("independence", *ratios),
        tuple(ratios.values()),
        np.r_[nothing, share],
        np.array([above[name] for name in ratios]),
    )


def halved(stack: Stack, x: Half, y: Half, seed: int, candidates: dict[str, Fit] | None = None) -> Stack:
    """The same mixture with its ratios fitted to half the rows: what the other half was worth is the slope of its learning curve. A ratio that
    asks for more rows than that stays as it is: with fewer rows another would have won its weight."""
    fits = CANDIDATES if candidates is None else candidates
    some = np.random.default_rng(seed).permutation(len(x))[: len(x) // 2]
    few_x, few_y = x[some], y[some]
    ratios = [
        _fit(name, fits)(few_x, few_y, seed) or whole
        for name, whole in zip(stack.names[1:], stack.ratios, strict=True)
    ]
    return replace(stack, ratios=tuple(ratios))


def _excess(ratio: Ratio, x: Half, y: Half) -> float:
    """log of the mean of r over rows that do not belong together, where it is surely above zero: r is no density ratio by so much. Of strong
    dependence a few pairs carry the mean, and whether one of them was drawn shall not decide between ratios: a standard error is taken off."""
    if x.numbers == y.numbers == 0:
        return _excess_of_levels(ratio, x, y)
    shifts = int(np.clip(MOST_PAIRS // len(y), 1, MOST_SHIFTS))
    found = [
        _finite(ratio.pairs(x, y[np.roll(np.arange(len(y)), k)]))
        for k in np.linspace(1, len(y) - 1, shifts).astype(int)
    ]
    together = np.concatenate(found)
    top = max(0.0, float(together.max()))
    r = np.exp(together - top)
    surely = float(r.mean() - r.std() / np.sqrt(len(r)))
    return max(0.0, top + np.log(surely)) if surely > 0 else 0.0


def _excess_of_levels(ratio: Ratio, x: Half, y: Half) -> float:
    """The same of two categories, exactly: all pairs of their levels, as often as they would meet."""
    (first, p), (second, q) = (_levels(half) for half in (x, y))
    log_r = _finite(ratio.cross(x[first], y[second]))
    return max(0.0, float(logsumexp(log_r + np.log(p)[:, None] + np.log(q))))


def _levels(half: Half) -> tuple[np.ndarray, np.ndarray]:
    """A row of each level, and its share."""
    assert half.code is not None
    _, row, count = np.unique(half.code, return_index=True, return_counts=True)
    return row, count / len(half)


def mixture_weights(log_r: Float[np.ndarray, "row ratio"], steps: int = 300) -> Float[np.ndarray, "ratio"]:
    """argmax over the simplex of mean log sum_k w_k r_k, by expectation maximisation.

    It begins where each ratio alone would be believed (its likelihood, tempered), since ratios that are alike exchange
    weight slowly, and stops when little moves: that keeps the weights of few rows from running to a corner.
    """
    log_r = log_r - log_r.max(axis=1, keepdims=True)
    r = np.exp(log_r)
    alone = TEMPER * log_r.sum(axis=0)
    weights = np.exp(alone - logsumexp(alone))
    weights = (1 - START_SHARE) * weights + START_SHARE / len(weights)
    for _ in range(steps):
        new = weights * (r / (r @ weights)[:, None]).mean(axis=0)
        if np.abs(new - weights).max() < 1e-4:
            break
        weights = new
    return weights


def _splits(unit: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit and rows to compete on; a unit's rows are on one side."""
    units = np.unique(unit)
    order = np.random.default_rng(seed).permutation(len(units))
    place = np.empty(len(units), dtype=int)
    place[order] = np.arange(len(units))
    rank = place[np.searchsorted(units, unit)]
    if len(unit) > FEW:
        late = rank >= min(len(units) // 4, MOST_COMPARED)
        return [(np.flatnonzero(late), np.flatnonzero(~late))]
    late = rank >= len(units) // 2
    return [(np.flatnonzero(late), np.flatnonzero(~late)), (np.flatnonzero(~late), np.flatnonzero(late))]
