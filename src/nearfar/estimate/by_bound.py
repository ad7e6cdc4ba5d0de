"""A bound that the user names, or a critic: fitted and measured as asked, the value of the bound being the estimate.

fit     a network on four fifths, stopped early on a sixth of those (fit.py); or the mixture of ratios (ratios/)
measure the bound on the fifth that is left, never seen; every fifth takes its turn  (measure.py)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.stats import chi2
from scipy.stats import t as student
from torch import Tensor

from nearfar.core.abstract import AbstractBound, AbstractCritic
from nearfar.core.types import Certificate
from nearfar.estimate.choose import (
    Contrast,
    Part,
    candidate_bounds,
    chosen_bound,
    learning_objective,
    measured_part,
    optimism,
)
from nearfar.estimate.dependence import RowsSeen
from nearfar.estimate.fit import InitialisedCritic, Training, fitted_critic, symmetrised
from nearfar.estimate.folds import Split, blocks
from nearfar.estimate.measure import Measured, average
from nearfar.estimate.ratios import HalfMap, fitted_stack
from nearfar.estimate.result import AtLeast
from nearfar.estimate.samples import Array, Canonical, Encoding, Scaling
from nearfar.estimate.sentences import (
    about_bounds,
    about_ceiling,
    claim,
    for_rows,
    reason,
    several,
    with_confidence,
    written,
)
from nearfar.parts.bounds import InfoNCE

MOST_LEARNED = 4096  # training rows that are scored to see how much fitting helped

Make = Callable[[tuple[int, int]], AbstractCritic]


@dataclass(frozen=True)
class Request:
    """What a user asked of an estimate, checked."""

    bound: str | AbstractBound
    make: Make | None  # of a network; None: ratios compete
    negatives: Contrast
    scaling: Scaling
    kinds: tuple[np.ndarray, np.ndarray]
    confidence: float
    how: Training
    place: torch.device
    seed: int


@dataclass(frozen=True)
class Answer:
    """The part of an estimate that differs with how it was made."""

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


def answer_by_bound(
    x: Array, y: Array, asked: Request, splits: list[Split], unit: np.ndarray, rows: RowsSeen, critic: str
) -> Answer:
    grouped = int(unit.max()) + 1 < len(unit)
    smallest = min(len(block) for split in splits for block in blocks(split.draws[0]))
    # to choose, bounds are compared on validation rows: the least alpha must be covered there too
    choosing = asked.bound == "auto"
    compared = min(smallest, *(len(split.validation) for split in splits)) if choosing else smallest
    candidates = candidate_bounds(asked.bound, asked.negatives, compared)
    parts = [_part(x, y, asked, split, unit, asked.seed + k) for k, split in enumerate(splits)]
    choices = [chosen_bound(candidates, part, asked.negatives, asked.seed) for part in parts]
    taken = [candidates[name] for name, _ in choices]
    found = [
        measured_part(each, part, asked.negatives, asked.seed + k)
        for k, (each, part) in enumerate(zip(taken, parts, strict=True))
    ]
    gaps = [
        optimism(each, part, asked.negatives, asked.seed) for each, part in zip(taken, parts, strict=True)
    ]
    total = average(found)
    certificate = for_rows(claim(taken, asked.negatives, smallest, len(candidates)), rows, grouped)
    above = max(0.0, sum(gaps) / len(gaps))
    interval = reached(total.nats, total.error, above, asked.confidence, total.freedom, int(unit.max()) + 1)
    return Answer(
        nats=total.nats,
        interval=interval,
        at_least=_at_least(total, certificate, parts, asked, smallest, rows, grouped),
        certificate=certificate,
        bound=several([written(each) for each in taken]),
        critic=critic,
        reason=reason([values for _, values in choices]),
        folds=tuple(part.nats for part in found),
        warnings=(
            *about_ceiling(interval[1], certificate.ceiling),
            *about_bounds(total, taken, parts),
        ),
    )


def _at_least(
    total: Measured,
    certificate: Certificate,
    parts: list[Part],
    asked: Request,
    samples: int,
    rows: RowsSeen,
    grouped: bool,
) -> AtLeast:
    """The one-sided bound: the lower end of the two-sided interval, of a proven bound (InfoNCE if another was asked for)."""
    if certificate.status == "not covered" and not rows.refuted:
        bound = InfoNCE()
        total = average([measured_part(bound, part, asked.negatives, k) for k, part in enumerate(parts)])
        certificate = for_rows(claim([bound], asked.negatives, samples, among=1), rows, grouped)
    one_sided = (1 + asked.confidence) / 2
    low = total.nats - float(student.ppf(one_sided, total.freedom)) * total.error
    return AtLeast(max(0.0, low), one_sided, with_confidence(certificate))


def _part(x: Array, y: Array, asked: Request, split: Split, unit: np.ndarray, seed: int) -> Part:
    """Scores of all pairs within blocks of unseen rows, of validation rows, and of some rows that were learned from."""
    every_pair = (_by_ratios if asked.make is None else _by_network)(x, y, asked, split, unit, seed)
    draws = [blocks(draw) for draw in split.draws]
    return Part(
        [[every_pair(block) for block in draw] for draw in draws],
        every_pair(split.validation),
        [every_pair(block) for block in _alike(split.train, len(draws[0][0]))],
    )


Scorer = Callable[[np.ndarray], Tensor]


def _by_ratios(x: Array, y: Array, asked: Request, split: Split, unit: np.ndarray, seed: int) -> Scorer:
    map_x = HalfMap.fit(x[split.train], asked.kinds[0])
    map_y = HalfMap.fit(y[split.train], asked.kinds[1])
    stack = fitted_stack(map_x(x[split.train]), map_y(y[split.train]), seed, unit[split.train])
    return lambda rows: torch.from_numpy(stack.cross(map_x(x[rows]), map_y(y[rows])))


def _by_network(x: Array, y: Array, asked: Request, split: Split, unit: np.ndarray, seed: int) -> Scorer:
    train = split.train
    encode_x = Encoding.fit(x[train], asked.scaling, asked.kinds[0])
    encode_y = Encoding.fit(y[train], asked.scaling, asked.kinds[1])
    canonical = Canonical.fit(encode_x(x[train]), encode_y(y[train]))

    def prepared(rows: np.ndarray) -> tuple[Tensor, Tensor]:
        first, second = canonical(encode_x(x[rows]), encode_y(y[rows]))
        return first.to(asked.place), second.to(asked.place)

    assert asked.make is not None
    network = fitted_critic(
        asked.make,
        torch.from_numpy(canonical.correlation).float().to(asked.place),
        prepared(train),
        prepared(split.validation),
        symmetrised(learning_objective(asked.bound)),
        asked.how,
        seed,
    )
    return lambda rows: _every_pair(network, *prepared(rows))


def _alike(train: np.ndarray, size: int) -> list[np.ndarray]:
    """Training rows in blocks of the size of a held-out one: InfoNCE's value depends on how many are contrasted."""
    some = train[: max(size, MOST_LEARNED)]
    return [some[i : i + size] for i in range(0, max(1, len(some) - size + 1), size)]


@torch.no_grad()
def _every_pair(network: InitialisedCritic, x: Tensor, y: Tensor, rows: int = 256) -> Tensor:
    return torch.cat([network.cross(part, y) for part in x.split(rows)])


def reached(
    nats: float, error: float, above: float, confidence: float, freedom: int, samples: int
) -> tuple[float, float]:
    reach = float(student.ppf((1 + confidence) / 2, freedom)) * error
    # a dependence with one parameter that so many samples do not show: a critic that found nothing has no error of its own
    reach = max(reach, float(chi2.ppf(confidence, 1)) / (2 * samples))
    # what fitting cost is missing from the estimate, so the truth may be higher by about half the optimism; and a
    # lower bound may fall below zero, the information it bounds cannot
    return nats - reach, max(0.0, nats + above / 2 + reach)
