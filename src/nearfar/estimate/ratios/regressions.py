"""m(x), the mean of a number given one side, by the smoothest function that unseen rows allow; and the density of one number.

Curve      one number: penalised splines
Additive   several numbers and a category: a penalised spline for each, an indicator for each level
Trees      what an additive function leaves, by boosted trees
Means      a category of many levels: its means, drawn towards the common one
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.interpolate import BSpline
from scipy.linalg import eigh

from nearfar.estimate.ratios.halves import Half

Regression = Callable[[Half], Float[np.ndarray, "row"]]
GRID = 2048
KNOTS = 32
ADDITIVE_KNOTS, MOST_ADDED = 14, 12  # of each column, and columns
MOST_LEARNED = 50_000  # rows: a curve needs no more
MOST_GROWN = 50_000  # rows trees are grown on
PENALTIES = 10.0 ** np.arange(-5, 5.1, 0.5)
WIDTHS = (0.02, 0.04, 0.08, 0.15, 0.25, 0.4)  # of a kernel, in the residual's own spread
BINS = (1, 2, 4, 8, 16, 32)  # of a histogram over the residual's range: hard edges
# edges blurred by so much of the range, and how many rows at either end say nothing of where they are
BLURRED_BINS, BLURS, OUTERMOST = (1, 2, 4, 8), (0.01, 0.03, 0.06), 0.03
FLOOR = 1e-12
FEW_CLASSES = 4
MOST_TRIED = 2000  # rows
TRIAL_ROUNDS, LEAST_LESS = (
    15,
    0.01,
)  # trees that are tried first, and the share of the squared error that they must take away


def trees(
    kind: str, rows: int, seed: int, rounds: int | None = None, classes: int = 2, **options: Any
) -> Any:
    """Boosted trees of moderate size, for few thousand rows. A round grows a tree for every class: of many classes half as many rounds go twice
    as far each."""
    from sklearn import ensemble

    made = getattr(ensemble, f"HistGradientBoosting{kind}")
    faster = 1 if classes <= FEW_CLASSES else 2
    return made(
        max_iter=rounds or (60 if rows < 5000 else 100) // faster,
        learning_rate=0.1 * faster,
        max_leaf_nodes=15,
        min_samples_leaf=max(8, min(20, rows // 25)),
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
        **options,
    )


def features(half: Half) -> np.ndarray:
    """Numbers and the category as a number, for trees; missing where it was not seen."""
    if half.code is None:
        return half.normal
    return np.column_stack([half.normal, np.where(half.code < 0, np.nan, half.code)])


def categories(half: Half) -> list[int] | None:
    return [half.numbers] if half.code is not None and half.levels <= 255 else None


class Spline:
    """Cubic B-splines of one column, with second differences of their coefficients as the penalty (Eilers and Marx 1996). Knots lie closer where there
    are more rows, so differences are divided by how far apart coefficients lie: a line costs nothing."""

    def __init__(self, z: np.ndarray, knots: int) -> None:
        self.low, self.high = float(z.min()), float(z.max())
        inner = np.unique(np.quantile(z, np.linspace(0, 1, knots)[1:-1]))
        inner = inner[(inner > self.low) & (inner < self.high)]
        self.knots = np.r_[[self.low] * 4, inner, [self.high] * 4]
        self.penalty = _bending(self.knots) if self.low < self.high else np.zeros((4, 4))

    def __call__(self, z: np.ndarray) -> np.ndarray:
        if self.low == self.high:
            return np.zeros((len(z), len(self.penalty)))
        inside = np.clip(z, self.low, self.high)
        return BSpline.design_matrix(inside, self.knots, 3).toarray()


def _bending(knots: np.ndarray) -> Float[np.ndarray, "coefficient coefficient"]:
    """The squared change of slope from one coefficient to the next, per unit of the column, up to a factor. A coefficient lies at the mean of three
    knots (Greville): a line is the one whose coefficients are those places."""
    place = (knots[1:-3] + knots[2:-2] + knots[3:-1]) / 3
    gap = np.diff(place)
    slope = np.diff(np.eye(len(place)), axis=0) / gap[:, None]
    apart = (place[2:] - place[:-2]) / 2
    bend = np.diff(slope, axis=0) * (np.median(gap) ** 1.5 / np.sqrt(apart))[:, None]
    return bend.T @ bend


def _penalised(basis: np.ndarray, target: np.ndarray, penalty: np.ndarray) -> np.ndarray:
    """Coefficients by generalised cross-validation over the weight of the penalty."""
    gram, image = basis.T @ basis, basis.T @ target
    scale = np.trace(gram) / len(gram) + FLOOR
    # with one decomposition every weight is a division: gram + l penalty = V^-T (1 + l d) V^-1
    d, v = eigh(penalty, gram / scale + 1e-6 * np.eye(len(gram)))
    turned, total = v.T @ image / scale, float(target @ target)
    best, best_score = np.zeros(len(d)), np.inf
    for weight in PENALTIES:
        coefficient = v @ (turned / (1 + weight * d))
        error = total - 2 * coefficient @ image + coefficient @ gram @ coefficient
        free = (1 / (1 + weight * d)).sum()
        score = max(error, 0.0) / max(1e-9, 1 - free / len(target)) ** 2
        if score < best_score:
            best, best_score = coefficient, score
    return best


class Curve:
    def __init__(self, half: Half, target: np.ndarray, plain: bool) -> None:
        self.plain = plain
        z = half.chosen(plain)[:MOST_LEARNED, 0]
        self.spline = Spline(z, KNOTS)
        target = target[:MOST_LEARNED]
        self.offset = float(target.mean())
        self.coefficient = _penalised(self.spline(z), target - self.offset, self.spline.penalty)

    def __call__(self, half: Half) -> np.ndarray:
        return self.offset + self.spline(half.chosen(self.plain)[:, 0]) @ self.coefficient


class Additive:
    def __init__(self, half: Half, target: np.ndarray, plain: bool) -> None:
        self.plain = plain
        half, target = half[np.arange(min(len(half), MOST_LEARNED))], target[:MOST_LEARNED]
        self.columns = _most_telling(half.chosen(plain), target)
        self.splines = [Spline(z, ADDITIVE_KNOTS) for z in half.chosen(plain)[:, self.columns].T]
        basis = self._basis(half)
        penalty = np.zeros((basis.shape[1],) * 2)
        at = 0
        for spline in self.splines:
            k = len(spline.penalty)
            # a trace of ridge: columns that say nothing shall cost nothing
            penalty[at : at + k, at : at + k] = spline.penalty + 1e-3 * np.eye(k)
            at += k
        penalty[at:, at:] = 1e-2 * np.eye(basis.shape[1] - at)
        self.offset = float(target.mean())
        self.coefficient = _penalised(basis, target - self.offset, penalty)

    def _basis(self, half: Half) -> np.ndarray:
        chosen = half.chosen(self.plain)[:, self.columns]
        parts = [s(z) for s, z in zip(self.splines, chosen.T, strict=True)]
        if half.code is not None:
            parts.append((half.code[:, None] == np.arange(half.levels)).astype(float))
        return np.hstack(parts)

    def __call__(self, half: Half) -> np.ndarray:
        return self.offset + self._basis(half) @ self.coefficient


def _most_telling(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Of many columns those between whose tenths the target's mean varies most: the others cost more than they tell."""
    if columns.shape[1] <= MOST_ADDED:
        return np.arange(columns.shape[1])
    explained = []
    for column in columns.T:
        cell = np.searchsorted(np.quantile(column, np.arange(1, 10) / 10), column)
        count = np.bincount(cell, minlength=10)
        explained.append((np.bincount(cell, target - target.mean(), 10) ** 2 / np.maximum(count, 1)).sum())
    return np.sort(np.argsort(explained)[-MOST_ADDED:])


class Trees:
    def __init__(
        self, half: Half, target: np.ndarray, plain: bool, seed: int, rounds: int | None = None
    ) -> None:
        some = np.arange(min(len(half), MOST_GROWN))
        half, target = half[some], target[some]
        self.additive = Additive(half, target, plain)
        self.trees = trees("Regressor", len(target), seed, rounds, categorical_features=categories(half))
        self.trees.fit(features(half), target - self.additive(half))

    def __call__(self, half: Half) -> np.ndarray:
        return self.additive(half) + self.trees.predict(features(half))


def trees_may_help(half: Half, target: np.ndarray, plain: bool, seed: int) -> bool:
    """Whether a few trees, grown on half the rows, leave a smaller error on the others than an additive function does."""
    some = np.random.default_rng(seed).permutation(len(half))[: 2 * MOST_TRIED]
    learned, unseen = np.array_split(some, 2)
    tried = Trees(half[learned], target[learned], plain, seed, TRIAL_ROUNDS)
    there = half[unseen]
    additive = ((target[unseen] - tried.additive(there)) ** 2).mean()
    return bool(((target[unseen] - tried(there)) ** 2).mean() < (1 - LEAST_LESS) * additive)


class Means:
    """Empirical Bayes: means vary between levels by what is left of their variance after sampling error."""

    def __init__(self, half: Half, target: np.ndarray) -> None:
        assert half.code is not None
        count = np.maximum(np.bincount(half.code, minlength=half.levels), 1e-3)
        mean = np.bincount(half.code, target, half.levels) / count
        self.offset = float(target.mean())
        error = (target - mean[half.code]).var() * len(target) / max(1, len(target) - half.levels) / count
        between = max(float((count * ((mean - self.offset) ** 2 - error)).sum() / count.sum()), 1e-12)
        self.mean = np.r_[self.offset + (mean - self.offset) * between / (between + error), self.offset]

    def __call__(self, half: Half) -> np.ndarray:
        assert half.code is not None
        return self.mean[half.code]


def regression(half: Half, target: np.ndarray, plain: bool, seed: int, boosted: bool) -> Regression:
    if half.numbers == 0:
        return Means(half, target)
    if boosted:
        return Trees(half, target, plain, seed)
    if half.numbers == 1 and half.code is None:
        return Curve(half, target, plain)
    return Additive(half, target, plain)


def density(sample: Float[np.ndarray, "row"]) -> tuple[np.ndarray, np.ndarray]:
    """log density of one number on a grid: kernels or a histogram, their width by the likelihood of each row left out."""
    low, high = np.quantile(sample, [0.005, 0.995])
    body = max(high - low, 1e-9)
    low, high = low - body, high + body
    grid = np.linspace(low, high, GRID)
    step = grid[1] - grid[0]
    place = np.clip(np.round((np.clip(sample, low, high) - low) / step).astype(int), 0, GRID - 1)
    counts = np.bincount(place, minlength=GRID).astype(float)
    found = [*_kernels(sample, counts, step), *_histograms(sample, counts, grid)]

    def left_out(one: tuple[np.ndarray, np.ndarray]) -> float:
        smooth, own = one
        alone = (smooth[place] - own[place]) / (len(sample) - 1)
        return float(np.log(np.maximum(alone, 0) + 1e-3 / (2 * body)).mean())

    best = max(found, key=left_out)[0] / len(sample)
    rest = max(0.003, 2 / (2 + len(sample)))
    return grid, np.log((1 - rest) * best + rest / (high - low) + FLOOR)


def _kernels(sample: np.ndarray, counts: np.ndarray, step: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Smoothed counts per unit, and what a row adds at its own place."""
    spread = max(float(np.subtract(*np.quantile(sample, [0.84, 0.16]))) / 2, 1e-9)
    spectrum = np.fft.rfft(counts, 2 * GRID)
    found = []
    for factor in WIDTHS:
        width = max(factor * spread / step, 0.5)  # in steps of the grid
        smooth = np.fft.irfft(spectrum * _bell(width))[:GRID] / step
        own = np.full(GRID, 1 / (np.sqrt(2 * np.pi) * width * step))
        found.append((np.maximum(smooth, 0.0), own))
    return found


def _histograms(
    sample: np.ndarray, counts: np.ndarray, grid: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Equal cells between hard edges: the ends of the sample, widened by what they have missed on the average; or where the ends would be if all
    but its outermost rows went on evenly, with a blur: predictions are not exact, and their misses have carried rows beyond the edge."""
    low, high = float(sample.min()), float(sample.max())
    if low < grid[0] or high > grid[-1]:
        return []  # outliers: no hard edge
    margin = (high - low) / max(2, len(sample))
    found = [_cells(counts, grid, low - margin, high + margin, bins) for bins in BINS]
    low, high = np.quantile(sample, [OUTERMOST, 1 - OUTERMOST])
    beyond = OUTERMOST / (1 - 2 * OUTERMOST) * (high - low)
    for bins in BLURRED_BINS:
        hard = _cells(counts, grid, low - beyond, high + beyond, bins)
        for blur in BLURS:
            width = blur * (high - low) / (grid[1] - grid[0])
            found.append((_blurred(hard[0], width), _blurred(hard[1], width)))
    return found


def _cells(
    counts: np.ndarray, grid: np.ndarray, low: float, high: float, bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Counts per unit, and what a row adds at its own place; rows beyond the edges count as in the last cell."""
    width = max((high - low) / bins, 1e-12)
    cell = np.floor((grid - low) / width).astype(int)
    inside = (cell >= 0) & (cell < bins)
    cell = np.clip(cell, 0, bins - 1)
    total = np.bincount(cell, counts, bins)
    return np.where(inside, total[cell] / width, 0.0), np.where(inside, 1 / width, 0.0)


def _blurred(values: np.ndarray, width: float) -> np.ndarray:
    """Smoothed by a bell so many steps of the grid wide."""
    return np.maximum(np.fft.irfft(np.fft.rfft(values, 2 * GRID) * _bell(width))[:GRID], 0.0)


def _bell(width: float) -> Float[np.ndarray, "frequency"]:
    """The spectrum of a bell so many steps wide."""
    return np.exp(-2 * (np.pi * np.fft.rfftfreq(2 * GRID) * width) ** 2)
