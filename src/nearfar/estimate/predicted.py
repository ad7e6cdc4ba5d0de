"""Barber and Agakov's bound (2003) with a fitted conditional probability: how well one side predicts the other.

    I(x; y) >= I(x; c) >= E[ log q(c | x) ] + H(c)        c a function of y alone, q any normalised probability fitted to other rows

c is y if y is a category, else the interval between quantiles of training rows that y falls in. q is the mixture of ratios made a probability: of
so many training rows, those with c, each as likely as r(x, y_j) says, in proportion to all. H(c) is counted on the unseen rows themselves; counted
entropy is at most the true one in expectation (the logarithm is concave), so the value stays a lower bound.

How many intervals: wide ones tell less, and of m intervals counting loses about (m - 1) / 2n nats on n rows (Miller 1955). Training rows say
which number loses least.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import t as student

from nearfar.core.types import Certificate
from nearfar.errors import UserError
from nearfar.estimate.by_bound import Answer, Request, reached
from nearfar.estimate.competition import BOTH_WAYS, CLEARLY
from nearfar.estimate.dependence import RowsSeen
from nearfar.estimate.folds import Split
from nearfar.estimate.ratios import Half, HalfMap, Stack, fitted_stack
from nearfar.estimate.result import AtLeast
from nearfar.estimate.samples import Array
from nearfar.estimate.sentences import for_rows, with_confidence

NAME = "barber-agakov"
MOST_KEYS = 2048  # training rows that a probability is spread over
CELLS = tuple(2**k for k in range(1, 9))  # into which a number may be divided
MOST_TRIED = 512  # training rows on which that is decided
CHUNK = 512  # rows at a time
CONDITION = (
    "log q({side} | the other) of a normalised q that was fitted to other rows, and H counted on unseen ones{cells}: the "
    "estimate never exceeds I in expectation"
)


@dataclass(frozen=True)
class Predicted:
    """The cells of one side, and the probability of each given a row of the other."""

    stack: Stack
    keys: Half
    cell: Int[np.ndarray, "key"]
    edges: Float[np.ndarray, "edge"] | None  # None: a category, whose cells are its levels
    cells: int  # one more than are known: what training did not see

    @staticmethod
    def fit(given: Half, other: Half, seed: int, unit: np.ndarray, unseen: int) -> "Predicted":
        """`unseen`: rows on which entropy will be counted."""
        stack = fitted_stack(given, other, seed, unit)
        some = np.random.default_rng(seed).permutation(len(other))
        keys = other[some[:MOST_KEYS]]
        if other.code is not None:
            assert keys.code is not None
            return Predicted(stack, keys, keys.code, None, other.levels + 1)
        tried, own = given[some[:MOST_TRIED]], other[some[:MOST_TRIED]]
        share = _shares(stack, tried, keys)
        # a row that was learned from must not find itself among the keys
        share[np.arange(len(tried)), np.arange(len(tried))] = 0.0
        divided = [Predicted._divided(stack, keys, other, count) for count in CELLS]
        return max(divided, key=lambda each: each._promise(share, own, unseen))

    @staticmethod
    def _divided(stack: Stack, keys: Half, other: Half, count: int) -> "Predicted":
        edges = np.unique(np.quantile(other.normal[:, 0], np.arange(1, count) / count))
        return Predicted(stack, keys, _between(edges, keys), edges, len(edges) + 2)

    def _promise(self, share: Float[np.ndarray, "row key"], own: Half, unseen: int) -> float:
        """The value to expect, from training rows: what is predicted of them, less what counting will lose."""
        cell = self.cell_of(own)
        log_q = self._of_cells(share)[np.arange(len(own)), cell]
        return float((log_q - np.log(self.shares()[cell])).mean()) - (self.cells - 2) / (2 * unseen)

    def cell_of(self, other: Half) -> Int[np.ndarray, "row"]:
        if self.edges is not None:
            return _between(self.edges, other)
        assert other.code is not None
        return np.where(other.code < 0, self.cells - 1, other.code)

    def log_probability(self, given: Half) -> Float[np.ndarray, "row cell"]:
        """Every key counts as r says; one more row's worth is spread evenly, so that nothing is impossible."""
        parts = [np.arange(a, min(a + CHUNK, len(given))) for a in range(0, len(given), CHUNK)]
        return np.concatenate([self._of_cells(_shares(self.stack, given[part], self.keys)) for part in parts])

    def _of_cells(self, share: Float[np.ndarray, "row key"]) -> Float[np.ndarray, "row cell"]:
        member = np.zeros((len(self.keys), self.cells))
        member[np.arange(len(self.keys)), self.cell] = 1.0
        evenly = 1 / (1 + len(self.keys))
        return np.log(
            (1 - evenly) * (share @ member) / share.sum(axis=1, keepdims=True) + evenly / self.cells
        )

    def shares(self) -> Float[np.ndarray, "cell"]:
        """How often training rows are in each cell, none never."""
        counted = np.bincount(self.cell, minlength=self.cells) + 1 / self.cells
        return counted / counted.sum()


def _shares(stack: Stack, given: Half, keys: Half) -> Float[np.ndarray, "row key"]:
    """How likely each key is, as r says, up to a factor of the row."""
    f = stack.cross(given, keys)
    return np.exp(f - f.max(axis=1, keepdims=True))


def _between(edges: np.ndarray, half: Half) -> Int[np.ndarray, "row"]:
    return np.searchsorted(edges, half.normal[:, 0], "right")


def answer_by_prediction(
    x: Array, y: Array, asked: Request, splits: list[Split], unit: np.ndarray, rows: RowsSeen
) -> Answer:
    swapped = _predicts_x(x, y, asked)
    sides, kinds = ((y, x), asked.kinds[::-1]) if swapped else ((x, y), asked.kinds)
    terms, expected = [], []
    for k, split in enumerate(splits):
        maps = [HalfMap.fit(side[split.rest], kind) for side, kind in zip(sides, kinds, strict=True)]
        given, other = (m(side[split.rest]) for m, side in zip(maps, sides, strict=True))
        fitted = Predicted.fit(given, other, asked.seed + k, unit[split.rest], len(split.draws[0]))
        draws = [
            _terms(fitted, *(m(side[draw]) for m, side in zip(maps, sides, strict=True)))
            for draw in split.draws
        ]
        terms.append(np.mean([own for own, _ in draws], axis=0))
        expected.append(float(np.mean([variance for _, variance in draws])))
    units = int(unit.max()) + 1
    value = float(np.mean([one.mean() for one in terms]))
    spread = sum(float(((one - one.mean()) ** 2).sum()) for one in terms) / (units - len(terms))
    error = math.sqrt(max(spread, float(np.mean(expected))) / units)
    error *= 1.0 if value > CLEARLY * error else math.sqrt(BOTH_WAYS)
    cells = (
        "" if kinds[1].all() else ", of the interval that the number falls in, which tells no more than it"
    )
    claim = Certificate("proven", CONDITION.format(side="x" if swapped else "y", cells=cells), None)
    certificate = for_rows(claim, rows, units < len(unit))
    one_sided = (1 + asked.confidence) / 2
    low = value - float(student.ppf(one_sided, units - len(terms))) * error
    return Answer(
        nats=value,
        interval=reached(value, error, 0.0, asked.confidence, units - len(terms), units),
        at_least=AtLeast(max(0.0, low), one_sided, with_confidence(certificate)),
        certificate=certificate,
        bound=NAME,
        critic="mixture of ratios, as a conditional probability",
        reason="as asked",
        folds=tuple(float(one.mean()) for one in terms),
        warnings=(),
    )


def _terms(fitted: Predicted, given: Half, other: Half) -> tuple[Float[np.ndarray, "row"], float]:
    """log q(c | x) - log of how often c is among these rows: their mean is the value, their spread its error (the second part is counted entropy's
    influence). And the variance that q itself expects, in which nothing is left out that merely did not happen."""
    log_q, cell = fitted.log_probability(given), fitted.cell_of(other)
    counted = np.bincount(cell, minlength=fitted.cells) / len(cell)
    term, chance = log_q - np.log(fitted.shares()), np.exp(log_q) / len(cell)
    expected = float((chance * (term - (chance * term).sum()) ** 2).sum())
    return log_q[np.arange(len(cell)), cell] - np.log(counted[cell]), expected


def _predicts_x(x: Array, y: Array, asked: Request) -> bool:
    """Which side is predicted: y if it is one column, else x if it is."""
    if asked.make is not None or asked.negatives != "batch":
        raise UserError(
            f"bound {NAME} reads a conditional probability made of the ratios that compete, and no negatives; leave critic at auto and "
            "negatives at batch"
        )
    if x.shape[1] > 1 and y.shape[1] > 1:
        raise UserError(
            f"bound {NAME} predicts one column; x has {x.shape[1]} columns and y {y.shape[1]}: give one of either side alone, or take "
            "another bound"
        )
    return y.shape[1] > 1
