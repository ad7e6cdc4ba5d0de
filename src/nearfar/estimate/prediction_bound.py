"""The bound of Barber & Agakov (2003) with a fitted conditional probability.

    I(x; y) >= I(x; c) >= E[ log q(c | x) ] + H(c)        c a function of y alone, q any normalised probability

q is fitted to other rows. c is y if y is a category, else its bin between quantiles of the training rows. q
is the
stack of ratios as a probability: key j of the training rows counts as r(x, y_j). H(c) is the entropy of
counts on the unseen rows, which is at most the true one in expectation (the logarithm is concave), so the value stays a
lower bound.

Wide bins lose information, and with m bins counting loses about (m - 1) / 2n nats on n rows (Miller 1955).
Training rows choose the number of bins that loses least.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import t as student

from nearfar.core.types import Certificate
from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.estimate.bound_estimate import EstimateRequest, PartialEstimate, bound_interval
from nearfar.estimate.certificates import with_confidence, with_row_check
from nearfar.estimate.ratios import SideMap, SideRows, Stack, fit_stack
from nearfar.estimate.result import AtLeast
from nearfar.estimate.rows import RowCheck, Split, blocks
from nearfar.estimate.samples import Array
from nearfar.parts.bounds.claims import CLAIM

NAME = "barber-agakov"
CONDITION = (
    CLAIM
    + "; log q({side} | the other) of a normalised q that was fitted to other rows, and H counted on unseen "
    "ones{bins}: "
    "the estimate never exceeds I in expectation"
)
BINNED = ", of the bin that the number falls in, which has at most the information of the number"


@dataclass(frozen=True)
class CellPredictor:
    """The probability of each cell (a level, or a bin) of one side, given a row of the other."""

    stack: Stack
    keys: SideRows
    cell: Int[np.ndarray, "key"]
    edges: Float[np.ndarray, "edge"] | None  # None: cells are levels
    cells: int  # the last one is for levels that training did not see

    @staticmethod
    def fit(
        source: SideRows, response: SideRows, seed: int, unit: np.ndarray, unseen: int
    ) -> "CellPredictor":
        """`unseen`: number of rows on which the entropy will be counted."""
        stack = fit_stack(source, response, seed, unit)
        order = np.random.default_rng(seed).permutation(len(response))
        keys = response[order[: settings.MAX_KEYS]]
        if response.code is not None:
            return CellPredictor(stack, keys, keys.level_codes, None, response.levels + 1)
        trial_source, trial_response = (
            source[order[: settings.MAX_TRIAL_ROWS]],
            response[order[: settings.MAX_TRIAL_ROWS]],
        )
        share = _key_shares(stack, trial_source, keys)
        # a training row must not predict itself
        share[np.arange(len(trial_source)), np.arange(len(trial_source))] = 0.0
        candidates = [CellPredictor._with_bins(stack, keys, response, count) for count in settings.BIN_COUNTS]
        return max(candidates, key=lambda each: each._expected_value(share, trial_response, unseen))

    @staticmethod
    def _with_bins(stack: Stack, keys: SideRows, response: SideRows, count: int) -> "CellPredictor":
        edges = np.unique(np.quantile(response.normal[:, 0], np.arange(1, count) / count))
        return CellPredictor(stack, keys, _bin(edges, keys), edges, len(edges) + 2)

    def _expected_value(self, share: Float[np.ndarray, "row key"], response: SideRows, unseen: int) -> float:
        """The expected value of the bound, from training rows, less what counting will lose."""
        cell = self.cell_of(response)
        log_q = self._cell_log_probability(share)[np.arange(len(response)), cell]
        return float((log_q - np.log(self.cell_shares()[cell])).mean()) - (self.cells - 2) / (2 * unseen)

    def cell_of(self, response: SideRows) -> Int[np.ndarray, "row"]:
        if self.edges is not None:
            return _bin(self.edges, response)
        return np.where(response.level_codes < 0, self.cells - 1, response.level_codes)

    def log_probability(self, source: SideRows) -> Float[np.ndarray, "row cell"]:
        parts = blocks(np.arange(len(source)), settings.PREDICTED_CHUNK)
        return np.concatenate(
            [self._cell_log_probability(_key_shares(self.stack, source[part], self.keys)) for part in parts]
        )

    def _cell_log_probability(self, share: Float[np.ndarray, "row key"]) -> Float[np.ndarray, "row cell"]:
        """Shares of keys summed per cell; one more row is spread evenly, so that no probability is zero."""
        member = np.zeros((len(self.keys), self.cells))
        member[np.arange(len(self.keys)), self.cell] = 1.0
        uniform = 1 / (1 + len(self.keys))
        probability = (1 - uniform) * (share @ member) / share.sum(axis=1, keepdims=True)
        return np.log(probability + uniform / self.cells)

    def cell_shares(self) -> Float[np.ndarray, "cell"]:
        """Shares of training rows per cell; none is zero."""
        counts = np.bincount(self.cell, minlength=self.cells) + 1 / self.cells
        return counts / counts.sum()


def _key_shares(stack: Stack, source: SideRows, keys: SideRows) -> Float[np.ndarray, "row key"]:
    """The probability of each key, up to a factor per row."""
    f = stack.cross(source, keys)
    return np.exp(f - f.max(axis=1, keepdims=True))


def _bin(edges: np.ndarray, side: SideRows) -> Int[np.ndarray, "row"]:
    return np.searchsorted(edges, side.normal[:, 0], "right")


def estimate_by_prediction(
    x: Array, y: Array, request: EstimateRequest, splits: list[Split], unit: np.ndarray, rows: RowCheck
) -> PartialEstimate:
    swapped = _predicts_x(x, y, request)
    sides, kinds = ((y, x), request.kinds[::-1]) if swapped else ((x, y), request.kinds)
    terms, expected = [], []
    for k, split in enumerate(splits):
        maps = [SideMap.fit(side[split.rest], kind) for side, kind in zip(sides, kinds, strict=True)]
        source, response = (m(side[split.rest]) for m, side in zip(maps, sides, strict=True))
        predictor = CellPredictor.fit(
            source, response, request.seed + k, unit[split.rest], len(split.draws[0])
        )
        draws = [
            bound_terms(predictor, *(m(side[draw]) for m, side in zip(maps, sides, strict=True)))
            for draw in split.draws
        ]
        terms.append(np.mean([values for values, _ in draws], axis=0))
        expected.append(float(np.mean([variance for _, variance in draws])))
    units = int(unit.max()) + 1
    freedom = units - len(terms)
    nats = float(np.mean([values.mean() for values in terms]))
    variance = sum(float(((values - values.mean()) ** 2).sum()) for values in terms) / freedom
    error = math.sqrt(max(variance, float(np.mean(expected))) / units)
    error *= 1.0 if nats > settings.CLEARLY_DEPENDENT * error else math.sqrt(settings.FOLD_VARIANCE)
    condition = CONDITION.format(side="x" if swapped else "y", bins="" if kinds[1].all() else BINNED)
    certificate = with_row_check(Certificate("proven", condition, None), rows, units < len(unit))
    low = nats - float(student.ppf(request.one_sided, freedom)) * error
    return PartialEstimate(
        nats=nats,
        interval=bound_interval(nats, error, 0.0, request.confidence, freedom, units),
        at_least=AtLeast(max(0.0, low), request.one_sided, with_confidence(certificate), NAME),
        certificate=certificate,
        bound=NAME,
        critic="mixture of ratios, as a conditional probability",
        reason="as requested",
        folds=tuple(float(values.mean()) for values in terms),
        warnings=(),
    )


def bound_terms(
    predictor: CellPredictor, source: SideRows, response: SideRows
) -> tuple[Float[np.ndarray, "row"], float]:
    """log q(c | x) - log share of c among these rows, per row; and the variance that q expects.

    The mean of the terms is the value of the bound, their spread its error.
    """
    log_q, cell = predictor.log_probability(source), predictor.cell_of(response)
    share = np.bincount(cell, minlength=predictor.cells) / len(cell)
    term, chance = log_q - np.log(predictor.cell_shares()), np.exp(log_q) / len(cell)
    expected = float((chance * (term - (chance * term).sum()) ** 2).sum())
    return log_q[np.arange(len(cell)), cell] - np.log(share[cell]), expected


def _predicts_x(x: Array, y: Array, request: EstimateRequest) -> bool:
    """Whether x is predicted: y is if it has one column, else x."""
    if request.make_critic is not None or request.negatives != "batch":
        raise UserError(
            f"bound {NAME} uses a conditional probability made of ratios, and no negatives; leave critic at "
            "auto and negatives at batch"
        )
    if x.shape[1] > 1 and y.shape[1] > 1:
        raise UserError(
            f"bound {NAME} predicts one column; x has {x.shape[1]} columns and y {y.shape[1]}: give one "
            "column of either side, or use another bound"
        )
    return y.shape[1] > 1
