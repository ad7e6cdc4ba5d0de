"""Estimates by a bound or critic that the user chose: the value of the bound is the estimate.

fit      a network on 4/5 of the rows, stopped early on a sixth of those (fit.py); or a stack of ratios
measure  the bound on the last fifth, which is unseen; every fifth takes its turn (measure.py)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.stats import chi2
from scipy.stats import t as student
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.scores import POSITIONS, knows_positions
from nearfar.core.types import Certificate
from nearfar.estimate import settings
from nearfar.estimate.bound_choice import (
    Contrast,
    FoldScores,
    candidate_bounds,
    choose_bound,
    measure_fold,
    optimism,
    training_objective,
)
from nearfar.estimate.certificates import (
    bound_certificate,
    bound_name,
    bound_warnings,
    ceiling_warnings,
    choice_reason,
    join_names,
    with_confidence,
    with_row_check,
)
from nearfar.estimate.fit import (
    CriticTraining,
    InitialisedCritic,
    MakeCritic,
    SymmetricObjective,
    fit_critic,
)
from nearfar.estimate.measure import BoundValue, average
from nearfar.estimate.ratios import SideMap, fit_stack
from nearfar.estimate.result import AtLeast
from nearfar.estimate.rows import RowCheck, Split, blocks
from nearfar.estimate.samples import Array, CanonicalMap, ColumnEncoding, Kinds, Scaling
from nearfar.parts.bounds import InfoNCE

POSITION_ADVICE = "it knows which rows belong together without reading them; give a critic of the rows alone"

Scorer = Callable[[np.ndarray], Tensor]  # from rows to the scores of all their pairs


@dataclass(frozen=True)
class EstimateRequest:
    """The checked arguments of `estimate_mi`."""

    bound: str | AbstractBound
    make_critic: MakeCritic | None  # None: the stack of ratios
    critic_name: str
    negatives: Contrast
    scaling: Scaling
    kinds: Kinds
    confidence: float
    training: CriticTraining
    device: torch.device
    seed: int

    @property
    def one_sided(self) -> float:
        """Confidence of the lower end of the two-sided interval."""
        return (1 + self.confidence) / 2


@dataclass(frozen=True)
class PartialEstimate:
    """The fields of `Estimate` that depend on the method."""

    nats: float
    interval: tuple[float, float]
    at_least: AtLeast
    certificate: Certificate
    bound: str
    critic: str
    reason: str
    folds: tuple[float, ...]
    warnings: tuple[str, ...]
    p_value: float | None = None
    calibration: tuple[tuple[float, float], ...] = ()
    learning: Mapping[str, float] = field(default_factory=dict)


def estimate_by_bound(
    x: Array, y: Array, request: EstimateRequest, splits: list[Split], unit: np.ndarray, rows: RowCheck
) -> PartialEstimate:
    grouped = int(unit.max()) + 1 < len(unit)
    smallest = min(len(block) for split in splits for block in blocks(split.draws[0]))
    # "auto" compares bounds on validation rows: the smallest alpha must be proven there too
    compared = smallest
    if request.bound == "auto":
        compared = min(smallest, *(len(split.validation) for split in splits))
    candidates = candidate_bounds(request.bound, request.negatives, compared)
    scores = [_fold_scores(x, y, request, split, unit, request.seed + k) for k, split in enumerate(splits)]
    choices = [choose_bound(candidates, fold, request.negatives, request.seed) for fold in scores]
    fold_bounds = [candidates[name] for name, _ in choices]
    values = [
        measure_fold(bound, fold, request.negatives, request.seed + k)
        for k, (bound, fold) in enumerate(zip(fold_bounds, scores, strict=True))
    ]
    gaps = [
        optimism(bound, fold, request.negatives, request.seed)
        for bound, fold in zip(fold_bounds, scores, strict=True)
    ]
    total = average(values)
    claim = bound_certificate(fold_bounds, request.negatives, smallest, len(candidates))
    positional = any(fold.positional for fold in scores)
    if positional:
        rows = RowCheck(refuted=POSITIONS, advice=POSITION_ADVICE)
    certificate = with_row_check(claim, rows, grouped)
    mean_gap = max(0.0, sum(gaps) / len(gaps))
    interval = bound_interval(
        total.nats, total.error, mean_gap, request.confidence, total.freedom, int(unit.max()) + 1
    )
    name = join_names([bound_name(bound) for bound in fold_bounds])
    if certificate.status == "not covered" and not rows.refuted:
        at_least = _infonce_limit(scores, request, smallest, rows, grouped)
    else:
        at_least = _lower_limit(total, certificate, name, request)
    return PartialEstimate(
        nats=total.nats,
        interval=interval,
        at_least=at_least,
        certificate=certificate,
        bound=name,
        critic=request.critic_name,
        reason=choice_reason([fold_values for _, fold_values in choices]),
        folds=tuple(value.nats for value in values),
        warnings=(
            *(rows.warnings if positional else ()),
            *ceiling_warnings(interval[1], certificate.ceiling),
            *bound_warnings(total, fold_bounds, scores),
        ),
    )


def _lower_limit(
    total: BoundValue, certificate: Certificate, bound: str, request: EstimateRequest
) -> AtLeast:
    """The lower end of the two-sided interval, as a one-sided limit."""
    low = total.nats - float(student.ppf(request.one_sided, total.freedom)) * total.error
    return AtLeast(max(0.0, low), request.one_sided, with_confidence(certificate), bound)


def _infonce_limit(
    scores: list[FoldScores], request: EstimateRequest, samples: int, rows: RowCheck, grouped: bool
) -> AtLeast:
    """The limit by InfoNCE, where the chosen bound proves nothing."""
    bound = InfoNCE()
    total = average([measure_fold(bound, fold, request.negatives, k) for k, fold in enumerate(scores)])
    claim = bound_certificate([bound], request.negatives, samples, candidates=1)
    return _lower_limit(total, with_row_check(claim, rows, grouped), bound_name(bound), request)


def _fold_scores(
    x: Array, y: Array, request: EstimateRequest, split: Split, unit: np.ndarray, seed: int
) -> FoldScores:
    if request.make_critic is None:
        score, positional = _fit_ratios(x, y, request, split, unit, seed), False
    else:
        score, positional = _fit_network(x, y, request, request.make_critic, split, seed)
    draws = [blocks(draw) for draw in split.draws]
    return FoldScores(
        [[score(block) for block in draw] for draw in draws],
        score(split.validation),
        [score(block) for block in _training_blocks(split.train, len(draws[0][0]))],
        positional,
    )


def _fit_ratios(
    x: Array, y: Array, request: EstimateRequest, split: Split, unit: np.ndarray, seed: int
) -> Scorer:
    map_x = SideMap.fit(x[split.train], request.kinds[0])
    map_y = SideMap.fit(y[split.train], request.kinds[1])
    stack = fit_stack(map_x(x[split.train]), map_y(y[split.train]), seed, unit[split.train])
    return lambda rows: torch.from_numpy(stack.cross(map_x(x[rows]), map_y(y[rows])))


def _fit_network(
    x: Array, y: Array, request: EstimateRequest, make_critic: MakeCritic, split: Split, seed: int
) -> tuple[Scorer, bool]:
    """Scores by a fitted network, and whether they depend on where rows stand."""
    train = split.train
    encode_x = ColumnEncoding.fit(x[train], request.scaling, request.kinds[0])
    encode_y = ColumnEncoding.fit(y[train], request.scaling, request.kinds[1])
    canonical = CanonicalMap.fit(encode_x(x[train]), encode_y(y[train]))

    def inputs(rows: np.ndarray) -> tuple[Tensor, Tensor]:
        first, second = canonical(encode_x(x[rows]), encode_y(y[rows]))
        return first.to(request.device), second.to(request.device)

    network = fit_critic(
        make_critic,
        torch.from_numpy(canonical.correlation).float().to(request.device),
        inputs(train),
        inputs(split.validation),
        SymmetricObjective(training_objective(request.bound)),
        request.training,
        seed,
    )
    positional = knows_positions(network.cross, *inputs(split.validation[: settings.NETWORK_CHUNK]))
    return lambda rows: _score_pairs(network, *inputs(rows)), positional


def _training_blocks(train: np.ndarray, size: int) -> list[np.ndarray]:
    """Training rows in blocks of the size of a held-out one: the value of InfoNCE depends on the block size."""
    rows = train[: max(size, settings.MAX_TRAINING_ROWS_SCORED)]
    return [rows[i : i + size] for i in range(0, max(1, len(rows) - size + 1), size)]


@torch.no_grad()
def _score_pairs(network: InitialisedCritic, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([network.cross(part, y) for part in x.split(settings.NETWORK_CHUNK)])


def bound_interval(
    nats: float, error: float, gap: float, confidence: float, freedom: int, samples: int
) -> tuple[float, float]:
    """The interval of a bound's expectation, its upper end raised by half the optimism `gap`.

    The upper end is not negative: the bound may be, the information is not.
    """
    reach = float(student.ppf((1 + confidence) / 2, freedom)) * error
    # a one-parameter dependence of this size goes unnoticed: a constant critic has no error of its own
    reach = max(reach, float(chi2.ppf(confidence, 1)) / (2 * samples))
    return nats - reach, max(0.0, nats + gap / 2 + reach)
