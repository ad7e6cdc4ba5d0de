"""Mutual information of all pairs of columns of a table: a fast screening, then cross-fitted ratios where it matters.

Screening compares four kinds of models of a pair by their evidence, all pairs at once by matrix products:

    independence
    Gaussian copula   -log(1 - r²) / 2 of the normal scores z, with the penalty log(n) / 2 of a parameter (BIC)
    polynomials       Σ c² / 2 of the correlations c of Hermite polynomials He_1 … He_4 of the normal scores whose
                      n c² exceeds 2 log n: the leading term of the information of a weak dependence
    grid              2, 4, … 32 bins of equal frequency on either side; a Dirichlet prior around independence

The evidence of a grid with counts N, margins p and q, and concentration A is the Pólya likelihood P(N, A p q), with

    log P(N, a) = Σ_k [log Γ(N_k + a_k) - log Γ(a_k)] - log Γ(Σ N + Σ a) + log Γ(Σ a),

relative to independence, under which rows and columns have such likelihoods of their own: P(N p, A p) P(N q, A q). A
pair for which independence has the largest evidence has 0 nats.

p-values come from two tests: G-tests on the grids of 2, 4 and 8 bins (Bonferroni over the three), and for refined
pairs the test of `estimate_mi`, which sees what bins do not. The smaller one is doubled, and corrected for all pairs
(Holm 1979).
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64
from scipy.special import gammaln, ndtri, xlogy
from scipy.stats import chi2, rankdata

from nearfar.core.statistics import holm
from nearfar.errors import UserError, check_whole
from nearfar.estimate import settings
from nearfar.estimate.columns import ColumnTable, as_columns
from nearfar.estimate.crossfit import permutation_moments, permutation_p_value, score_rows
from nearfar.estimate.ratios import SideMap, fit_stack
from nearfar.estimate.rows import blocks, split_folds
from nearfar.estimate.samples import check_pair, discrete_columns
from nearfar.estimate.table import columns_by_name
from nearfar.system.extras import need
from nearfar.system.hardware import one_thread


@dataclass(frozen=True, eq=False)
class MiMatrix:
    """Mutual information of pairs of columns, a row for each pair, most nats first.

    `pairs["nats"]` is a column; `pairs.matrix("nats")` has all columns on both sides; `pairs.to_pandas()` is a
    frame.
    """

    columns: tuple[str, ...]
    left_out: dict[str, str]  # columns that are not estimated, with the reason
    x: tuple[str, ...]
    y: tuple[str, ...]
    nats: Float[np.ndarray, "pair"]
    p_value: Float[np.ndarray, "pair"]  # for independence, corrected for all pairs
    refined: Bool[np.ndarray, "pair"]  # by cross-fitted ratios, otherwise screened

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, name: str) -> Any:
        return self.as_columns()[name]

    def as_columns(self) -> dict[str, Any]:
        return {
            "x": self.x,
            "y": self.y,
            "nats": self.nats,
            "p_value": self.p_value,
            "refined": self.refined,
        }

    def as_json(self) -> dict[str, Any]:
        columns = {name: np.asarray(column).tolist() for name, column in self.as_columns().items()}
        pairs = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return {"columns": list(self.columns), "left_out": self.left_out, "pairs": pairs}

    def matrix(self, name: str = "nats") -> Float[np.ndarray, "column column"]:
        """A symmetric matrix of "nats" or "p_value"; NaN on the diagonal."""
        place = {column: number for number, column in enumerate(self.columns)}
        square = np.full((len(place), len(place)), np.nan)
        rows, columns = [place[column] for column in self.x], [place[column] for column in self.y]
        square[rows, columns] = square[columns, rows] = self[name]
        return square

    def to_pandas(self) -> Any:
        return need("pandas").DataFrame(self.as_columns())

    def plot(self) -> Any:
        """A matplotlib figure: a heat map of the nats, similar columns beside one another."""
        from nearfar.estimate.plot import matrix_figure

        return matrix_figure(self)


def mi_matrix(
    table: Any,
    *,
    refine: int = settings.REFINED,
    workers: int | None = None,
    discrete: str = "auto",
    folds: int = settings.MATRIX_FOLDS,
    seed: int = 0,
) -> MiMatrix:
    """Mutual information of all pairs of columns in nats.

    All pairs are screened in one pass. `refine` pairs are then estimated with the ratios of `estimate_mi`
    (`refined_nats`), in `workers` processes (default: one per core): half of them those with the most nats, half
    those whose dependence is least certain. Rows with a gap in either column of a pair are left out of that
    pair. `discrete`: which columns are categories, as in `estimate_mi`.
    """
    check_whole("refine", refine, 0)
    check_whole("seed", seed, 0)
    if discrete not in ("auto", "all", "none"):
        raise UserError(f"discrete was {discrete!r}; expected auto, all, none")
    data = as_columns(columns_by_name(table), "table")
    check_whole("folds", folds, 2, max(2, len(data.values) // 10))
    usable, left_out = _usable(data)
    if len(usable) < 2:
        raise UserError("the table has fewer than two columns that vary")
    names = tuple(data.names[column] for column in usable)
    values = data.values[:, usable]
    is_category = data.words[usable] | _categories(values, discrete)
    row, column = np.triu_indices(len(names), 1)
    nats, p_value, evidence = screen(values, is_category)
    refined = np.zeros(len(nats), dtype=bool)
    present = (~np.isnan(values)).astype(np.float32)
    enough_rows = (present.T @ present)[row, column] >= max(settings.MIN_SAMPLES, 10 * folds)
    refined_pairs = worth_refining(np.where(enough_rows, nats, 0.0), evidence, refine)
    samples = [
        (values[:, row[pair]], values[:, column[pair]], is_category[[row[pair], column[pair]]])
        for pair in refined_pairs
    ]
    for pair, (refined_value, second_p) in zip(
        refined_pairs, _refine(samples, workers, folds, seed), strict=True
    ):
        nats[pair], refined[pair] = refined_value, True
        p_value[pair] = min(p_value[pair], second_p)
    p_value = np.minimum(2 * p_value, 1.0)
    order = np.argsort(-nats, kind="stable")
    return MiMatrix(
        names,
        left_out,
        tuple(names[place] for place in row[order]),
        tuple(names[place] for place in column[order]),
        nats[order],
        np.array(holm(p_value.tolist()))[order],
        refined[order],
    )


def worth_refining(
    nats: Float[np.ndarray, "pair"], evidence: Float[np.ndarray, "pair"], count: int
) -> list[int]:
    """At most `count` pairs with more than 0 nats: half of them the strongest, half those with the least
    evidence, where the screening errs most often."""
    dependent = np.flatnonzero(nats > 0)
    strongest = dependent[np.argsort(-nats[dependent], kind="stable")][: -(-count // 2)]
    weaker = np.setdiff1d(dependent, strongest)
    uncertain = weaker[np.argsort(evidence[weaker], kind="stable")][: count - len(strongest)]
    return [*strongest.tolist(), *uncertain.tolist()]


def _usable(data: ColumnTable) -> tuple[list[int], dict[str, str]]:
    """The columns that vary and have rows enough, and the reasons of the others."""
    usable, left_out = [], {}
    for column, name in enumerate(data.names):
        present = data.values[~np.isnan(data.values[:, column]), column]
        if len(present) < settings.MIN_COLUMN_ROWS:
            left_out[name] = (
                f"{len(present)} of {len(data.values)} rows have a value; at least {settings.MIN_COLUMN_ROWS} needed"
            )
        elif not np.isfinite(present).all():
            left_out[name] = "it has infinite values"
        elif (present == present[0]).all():
            left_out[name] = "the same in every row"
        else:
            usable.append(column)
    return usable, left_out


def _categories(values: Float[np.ndarray, "sample column"], discrete: str) -> Bool[np.ndarray, "column"]:
    kinds = [discrete_columns(column[~np.isnan(column), None], discrete)[0] for column in values.T]
    return np.array(kinds)


def _refine(
    samples: Sequence[tuple[Any, Any, Any]], workers: int | None, folds: int, seed: int
) -> list[tuple[float, float]]:
    """`refined_nats` of the samples, several processes at a time."""
    joblib = need("joblib")  # a dependency of scikit-learn
    workers = workers or os.cpu_count() or 1
    tasks = (joblib.delayed(refined_nats)(*sample, folds, seed) for sample in samples)
    return list(joblib.Parallel(n_jobs=min(workers, max(1, len(samples))))(tasks))


def refined_nats(
    x: np.ndarray,
    y: np.ndarray,
    is_category: Bool[np.ndarray, "2"],
    folds: int = settings.MATRIX_FOLDS,
    seed: int = 0,
) -> tuple[float, float]:
    """Nats of the ratios that `estimate_mi` fits, and its p-value of independence; no interval and no bound, which
    cost more than the ratios.

    The mean log ratio is too low on unseen rows, and as much too high on training rows (Akaike 1974): the estimate is
    half way between them.
    """
    pair = check_pair(x, y, (is_category[:1], is_category[1:]))
    sides, unseen, learned, moments = (pair.x, pair.y), [], [], []
    with one_thread():
        for fold in split_folds(np.arange(len(pair.x)), folds, seed):
            maps = [SideMap.fit(side[fold.rest], kind) for side, kind in zip(sides, pair.kinds, strict=True)]
            train, test = (
                (maps[0](pair.x[rows]), maps[1](pair.y[rows])) for rows in (fold.rest, fold.unseen)
            )
            stack = fit_stack(*train, seed)
            unseen.append(score_rows(stack, *test))
            learned.append(score_rows(stack, *train).mean())
            parts = blocks(np.arange(len(fold.unseen)), settings.MATRIX_BLOCK)
            moments.append([permutation_moments(stack.cross(test[0][part], test[1][part])) for part in parts])
    held_out = float(np.concatenate(unseen).mean())
    nats = (held_out + max(held_out, float(np.mean(learned)))) / 2
    return min(max(0.0, nats), 2 * math.log(len(pair.x))), permutation_p_value(moments)


# --------------------------------------------------------------------------------------------- screening


def screen(
    values: Float[np.ndarray, "sample column"], is_category: Bool[np.ndarray, "column"]
) -> tuple[Float[np.ndarray, "pair"], Float[np.ndarray, "pair"], Float[np.ndarray, "pair"]]:
    """Nats, uncorrected p-values, and log evidence for dependence of all pairs of columns, in the order of
    `np.triu_indices`. Gaps are NaN."""
    codes = np.stack([bin_codes(values[:, k], is_category[k]) for k in range(values.shape[1])], axis=1)
    scores = np.stack([normal_scores(values[:, k]) for k in range(values.shape[1])], axis=1)
    count = values.shape[1]
    nats, p_value, evidence = np.zeros((count, count)), np.ones((count, count)), np.zeros((count, count))
    columns = [slice(start, start + settings.PAIR_BLOCK) for start in range(0, count, settings.PAIR_BLOCK)]
    for first, second in combinations_with_replacement(columns, 2):
        counts = _pair_counts(codes[:, first], codes[:, second])
        block, p_value[first, second] = _grid_models(counts)
        is_numeric = ~(is_category[first, None] | is_category[None, second])
        smooth = _smooth_models(scores[:, first], scores[:, second])
        models = [block, *((np.where(is_numeric, e, -np.inf), v) for e, v in smooth)]
        evidence[first, second], nats[first, second] = _best(models)
    pairs = np.triu_indices(count, 1)
    return nats[pairs], p_value[pairs], evidence[pairs]


ModelScores = tuple[Float[np.ndarray, "first second"], Float[np.ndarray, "first second"]]  # evidence, nats


def _best(models: Sequence[ModelScores]) -> ModelScores:
    """The largest evidence and the nats of its model; 0 nats where independence has a larger one."""
    evidence, nats = models[0]
    for model_evidence, model_nats in models[1:]:
        nats = np.where(model_evidence > evidence, model_nats, nats)
        evidence = np.maximum(evidence, model_evidence)
    return evidence, np.where(evidence > 0, np.maximum(nats, 0.0), 0.0)


def bin_codes(column: Float[np.ndarray, "sample"], is_category: bool) -> Int64[np.ndarray, "sample"]:
    """Bins of equal frequency from 0 to `SCREENING_BINS` - 1, or categories by falling frequency; -1 for a gap. Equal
    values share a bin."""
    codes = np.full(len(column), -1, dtype=np.int64)
    present = ~np.isnan(column)
    if is_category:
        _, inverse, frequency = np.unique(column[present], return_inverse=True, return_counts=True)
        place = np.argsort(np.argsort(-frequency, kind="stable"))
        codes[present] = (
            np.minimum(place, settings.SCREENING_BINS - 1)[inverse]
            * settings.SCREENING_BINS
            // min(len(place), settings.SCREENING_BINS)
        )
    else:
        rank = (rankdata(column[present], "average") - 0.5) / present.sum()
        codes[present] = np.floor(settings.SCREENING_BINS * rank).astype(np.int64)
    return codes


def normal_scores(column: Float[np.ndarray, "sample"]) -> Float[np.ndarray, "sample"]:
    """Normal quantiles of the ranks; NaN for gaps."""
    scores = np.full(len(column), np.nan)
    present = ~np.isnan(column)
    scores[present] = ndtri((rankdata(column[present], "average") - 0.5) / present.sum())
    return scores


def _pair_counts(
    first: Int64[np.ndarray, "sample first"], second: Int64[np.ndarray, "sample second"]
) -> Float[np.ndarray, "first second bin bin"]:
    """How often each pair of bins occurs. float32 is exact up to 2^24 rows."""
    counts = _indicators(first).T @ _indicators(second)
    shape = first.shape[1], settings.SCREENING_BINS, second.shape[1], settings.SCREENING_BINS
    return counts.reshape(shape).transpose(0, 2, 1, 3).astype(np.float64)


def _indicators(codes: Int64[np.ndarray, "sample column"]) -> Float[np.ndarray, "sample column*bin"]:
    return (
        (codes[:, :, None] == np.arange(settings.SCREENING_BINS)).astype(np.float32).reshape(len(codes), -1)
    )


def _grid_models(
    counts: Float[np.ndarray, "first second bin bin"],
) -> tuple[ModelScores, Float[np.ndarray, "first second"]]:
    """The grid with the largest evidence for each pair, and the p-value of the G-tests."""
    shape = counts.shape[:2]
    evidence, nats, smallest_p = np.full(shape, -np.inf), np.zeros(shape), np.ones(shape)
    for grid in _grids(counts):
        grid_evidence, grid_nats = polya_evidence(grid)
        better = grid_evidence > evidence
        evidence, nats = np.where(better, grid_evidence, evidence), np.where(better, grid_nats, nats)
        if grid.shape[2] == grid.shape[3] and grid.shape[2] in settings.TESTED_BINS:
            smallest_p = np.minimum(smallest_p, len(settings.TESTED_BINS) * g_test(grid))
    return (evidence, nats), np.minimum(smallest_p, 1.0)


def _grids(
    counts: Float[np.ndarray, "first second bin bin"],
) -> Iterator[Float[np.ndarray, "first second a b"]]:
    """All grids of 2, 4, … `SCREENING_BINS` bins on either side, by merging neighbouring bins."""
    first = counts
    while first.shape[2] > 1:
        grid = first
        while grid.shape[3] > 1:
            yield grid
            grid = grid[..., 0::2] + grid[..., 1::2]
        first = first[:, :, 0::2] + first[:, :, 1::2]


def _expected(grid: Float[np.ndarray, "*pair a b"]) -> Float[np.ndarray, "*pair a b"]:
    """Counts under independence with the margins of the grid."""
    total = np.maximum(grid.sum(axis=(-2, -1), keepdims=True), 1.0)
    return grid.sum(axis=-1, keepdims=True) * grid.sum(axis=-2, keepdims=True) / total


def _log_polya(
    counts: Float[np.ndarray, "*pair"], prior: Float[np.ndarray, "*pair"], axes: tuple[int, ...]
) -> Any:
    """Log of the Pólya likelihood of a sequence with these counts; cells without prior weight are left out."""
    weight = np.where(prior > 0, prior, 1.0)
    terms = np.where(prior > 0, gammaln(counts + weight) - gammaln(weight), 0.0).sum(axis=axes)
    total, concentration = counts.sum(axis=axes), np.maximum(prior.sum(axis=axes), 1e-300)
    return terms - gammaln(total + concentration) + gammaln(concentration)


def polya_evidence(grid: Float[np.ndarray, "*pair a b"]) -> tuple[Any, Any]:
    """Log evidence of the grid relative to independence (see above), and the nats of the posterior mean."""
    total = grid.sum(axis=(-2, -1))
    product = _expected(grid) / np.maximum(total, 1.0)[..., None, None]  # p_i q_j
    possible = product > 0
    concentration = settings.CELL_CONCENTRATION * possible.sum(axis=(-2, -1))
    prior = np.where(possible, concentration[..., None, None] * product, 1.0)
    evidence = _log_polya(grid, np.where(possible, prior, 0.0), (-2, -1))
    for axis in (-2, -1):
        margin = grid.sum(axis=axis)
        share = margin / np.maximum(total, 1.0)[..., None]
        evidence = evidence - _log_polya(margin, concentration[..., None] * share, (-1,))
    posterior = (
        np.where(possible, grid + prior, 0.0) / np.maximum(total + concentration, 1.0)[..., None, None]
    )
    ratio = np.where(possible, posterior, 1.0) / np.where(possible, product, 1.0)
    return evidence, xlogy(posterior, ratio).sum(axis=(-2, -1))


def g_test(grid: Float[np.ndarray, "*pair a b"]) -> Float[np.ndarray, "*pair"]:
    """p-values of the likelihood-ratio test of independence; 1 where a cell expects too few rows."""
    expected = _expected(grid)
    statistic = 2 * xlogy(grid, np.where(grid > 0, grid / np.maximum(expected, 1e-300), 1.0)).sum(
        axis=(-2, -1)
    )
    rows, columns = ((grid.sum(axis=axis) > 0).sum(axis=-1) for axis in (-1, -2))
    freedom = (rows - 1) * (columns - 1)
    sparse = grid.sum(axis=(-2, -1)) < settings.MIN_EXPECTED * rows * columns
    return np.where(sparse | (freedom < 1), 1.0, chi2.sf(statistic, np.maximum(freedom, 1)))


def _smooth_models(
    first: Float[np.ndarray, "sample first"], second: Float[np.ndarray, "sample second"]
) -> tuple[ModelScores, ModelScores]:
    """The Gaussian copula and the polynomials, of normal scores, over the rows where both columns have one."""
    rows = np.maximum((~np.isnan(first)).T.astype(float) @ (~np.isnan(second)).astype(float), 3.0)
    squares = np.stack(
        [np.stack([_correlation(p, q, rows) ** 2 for q in _hermite(second)]) for p in _hermite(first)]
    )
    square = np.minimum(squares[0, 0], 1 - 1e-12)
    nats = -0.5 * np.log1p(-square)
    gaussian = rows * nats - 0.5 * np.log(rows), nats - 0.5 / rows
    penalty = 2 * np.log(rows)  # of a coefficient and of its choice among MAX_DEGREE²
    clear = rows * squares > penalty
    evidence = 0.5 * np.where(clear, rows * squares - penalty, 0.0).sum(axis=(0, 1))
    total = np.where(clear, squares, 0.0).sum(axis=(0, 1))
    weak = 0.5 * np.where(clear, squares - 1 / rows, 0.0).sum(axis=(0, 1))
    return gaussian, (np.where(total <= settings.MAX_WEAK, evidence, -np.inf), weak)


def _hermite(scores: Float[np.ndarray, "sample column"]) -> list[Float[np.ndarray, "sample column"]]:
    """He_1 to He_4 of normal scores."""
    square = scores**2
    return [scores, square - 1, scores * (square - 3), square * (square - 6) + 3][: settings.MAX_DEGREE]


def _correlation(
    first: Float[np.ndarray, "sample first"],
    second: Float[np.ndarray, "sample second"],
    rows: Float[np.ndarray, "first second"],
) -> Float[np.ndarray, "first second"]:
    """Pearson's correlation of every pair over the rows where both have a value (NaN is a gap)."""
    has_first, has_second = ((~np.isnan(side)).astype(float) for side in (first, second))
    first, second = np.nan_to_num(first), np.nan_to_num(second)
    mean_first, mean_second = first.T @ has_second / rows, has_first.T @ second / rows
    covariance = first.T @ second / rows - mean_first * mean_second
    variance_first = (first**2).T @ has_second / rows - mean_first**2
    variance_second = has_first.T @ second**2 / rows - mean_second**2
    return covariance / np.sqrt(np.maximum(variance_first * variance_second, 1e-300))
