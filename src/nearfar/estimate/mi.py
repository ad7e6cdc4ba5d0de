"""How much x tells about y, from samples: `estimate_mi`.

    scale   ranks to normals, levels to indicators, rotation to canonical pairs        (samples.py)
    fit     a critic on four fifths, stopped early on a sixth of those                   (fit.py)
    measure the bound on the fifth that is left, never seen; every fifth takes its turn  (measure.py)

So all data count, no number is read off data its critic was fitted to, and where the bound is a proven one the mean
is a lower bound in expectation.
"""

import math
import numbers
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor, nn

from nearfar import bounds, critics
from nearfar.errors import UserError
from nearfar.estimate.baselines import gaussian_information, ksg_information
from nearfar.estimate.choose import (
    Contrast,
    Part,
    candidate_bounds,
    chosen_bound,
    learning_objective,
    measured_blocks,
    optimism,
    trials,
)
from nearfar.estimate.fit import CRITICS, InitialisedCritic, Training, fitted_critic, symmetrised
from nearfar.estimate.measure import Measured, average
from nearfar.estimate.result import Estimate
from nearfar.estimate.samples import (
    Array,
    Canonical,
    Discrete,
    Encoding,
    Scaling,
    checked_pair,
    discrete_columns,
)
from nearfar.hardware import one_thread
from nearfar.schedules import START, at
from nearfar.types import Bound, Certificate, Critic

LARGEST_BLOCK = 2048  # samples contrasted with one another at a time: 16 MB of scores
MOST_LEARNED = 4096  # training rows that are scored to see how much fitting helped
LEANING = 0.8  # share of its ceiling from which an estimate says more about the ceiling than about the data


def estimate_mi(
    x: Any,
    y: Any,
    bound: str | Bound = "auto",
    critic: str | Callable[[tuple[int, int]], Critic] = "separable",
    *,
    negatives: Contrast = "batch",
    scaling: Scaling = "rank",
    discrete: Discrete = "auto",
    folds: int = 5,
    confidence: float = 0.9,
    training: Training | None = None,
    baselines: bool = True,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Estimate:
    """Mutual information between two samples, row i of one belonging to row i of the other.

    `bound`: a bound, its name, or "auto" for the proven one that is highest on validation data. `critic`: "separable",
    "joint", "bilinear", or a function from (width of x, width of y) to a critic. `negatives`: "batch" contrasts a
    sample with all others of its fold; "independent" gives each its own, which proves more bounds and costs precision.
    "ml-cpc" by name takes the smallest alpha its theorem covers.
    """
    began = time.perf_counter()
    x, y = checked_pair(x, y)
    _check_options(folds, confidence, negatives, seed, len(x))
    kinds = discrete_columns(x, discrete), discrete_columns(y, discrete)
    place = _place(device)
    make, critic_name = _critic(critic)
    splits = list(_splits(len(x), folds, seed))
    smallest = min(len(block) for _, held_out in splits for block in _blocks(held_out))
    # to choose, bounds are compared on validation rows: the least alpha must be covered there too
    compared = (
        min(smallest, *(len(_validation(rest)[0]) for rest, _ in splits)) if bound == "auto" else smallest
    )
    candidates = candidate_bounds(bound, negatives, compared)
    how, objective = training or Training(), learning_objective(bound)
    with one_thread():
        parts = [
            _fold(x, y, kinds, scaling, rows, make, objective, how, place, seed + k)
            for k, rows in enumerate(splits)
        ]
        chosen, reason = chosen_bound(candidates, parts, negatives, seed)
        found = [
            measured_blocks(chosen, part.held_out, part.validation, negatives, seed + k)
            for k, part in enumerate(parts)
        ]
        above = optimism(chosen, parts, negatives, seed)
    total = average(found)
    certificate = _certificate(chosen, negatives, smallest, among=len(candidates))
    others = _baselines(x, y, kinds, scaling, seed) if baselines else {}
    return Estimate(
        nats=total.nats,
        interval=_interval(total, above, confidence),
        confidence=confidence,
        ceiling=certificate.ceiling,
        certificate=certificate,
        bound=_written(chosen),
        critic=critic_name,
        samples=len(x),
        scaling=_said(scaling, kinds),
        reason=reason,
        folds=tuple(part.nats for part in found),
        baselines=others,
        warnings=_warnings(total, certificate),
        seconds=time.perf_counter() - began,
    )


def _certificate(bound: Bound, negatives: Contrast, samples: int, among: int) -> Certificate:
    """What the bound claims for held-out blocks of so many samples, when it was chosen among so many bounds."""
    certificate = bound.certificate(trials(bound, negatives, samples, 0, torch.device("cpu"))[0].sampling)
    if among == 1:
        return certificate
    chosen = "the bound was chosen on validation rows, some of which other folds report on"
    return replace(certificate, condition=f"{certificate.condition}; {chosen}")


def _check_options(folds: int, confidence: float, negatives: str, seed: int, samples: int) -> None:
    if not isinstance(folds, numbers.Integral) or not 2 <= folds <= samples // 10:
        raise UserError(
            f"folds was {folds!r}; with {samples} samples it must be a whole number from 2 to {samples // 10}"
        )
    if not isinstance(confidence, numbers.Real) or not 0 < confidence < 1:
        raise UserError(f"confidence was {confidence!r}; it must lie between 0 and 1, for instance 0.9")
    if negatives not in get_args(Contrast):
        raise UserError(f"negatives was {negatives!r}; allowed are {', '.join(get_args(Contrast))}")
    if not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**62:
        raise UserError(f"seed was {seed!r}; it must be a whole number from 0 and below 2^62")


def _place(device: str | torch.device | None) -> torch.device:
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros((), device=place).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UserError(f"device was {device!r}, which torch cannot use here; cpu always works") from error
    return place


def _critic(
    critic: str | Callable[[tuple[int, int]], Critic],
) -> tuple[Callable[[tuple[int, int]], Critic], str]:
    if not isinstance(critic, str):
        if not callable(critic) or isinstance(critic, nn.Module) or critic in critics.PARTS.values():
            raise UserError(
                f"critic was {critic!r}; allowed are {', '.join(CRITICS)}, or a function from the widths of x and y "
                "to a critic, for instance lambda dim: nf.Separable(dim=dim)"
            )
        return critic, getattr(critic, "__name__", type(critic).__name__)
    if critic not in CRITICS:
        raise UserError(
            f"critic was {critic!r}; allowed are {', '.join(CRITICS)}, or a function that makes one"
        )
    return CRITICS[critic], critic


def _splits(samples: int, folds: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and held-out rows, every row held out once."""
    parts = np.array_split(np.random.default_rng(seed).permutation(samples), folds)
    for k, held_out in enumerate(parts):
        yield np.concatenate([part for j, part in enumerate(parts) if j != k]), held_out


def _fold(
    x: Array,
    y: Array,
    kinds: tuple[np.ndarray, np.ndarray],
    scaling: Scaling,
    rows: tuple[np.ndarray, np.ndarray],
    make: Callable[[tuple[int, int]], Critic],
    objective: Bound,
    how: Training,
    place: torch.device,
    seed: int,
) -> Part:
    rest, held_out = rows
    validation, train = _validation(rest)
    encode_x = Encoding.fit(x[train], scaling, kinds[0])
    encode_y = Encoding.fit(y[train], scaling, kinds[1])
    canonical = Canonical.fit(encode_x(x[train]), encode_y(y[train]))

    def prepared(rows: np.ndarray) -> tuple[Tensor, Tensor]:
        first, second = canonical(encode_x(x[rows]), encode_y(y[rows]))
        return first.to(place), second.to(place)

    network = fitted_critic(
        make,
        torch.from_numpy(canonical.correlation).float().to(place),
        prepared(train),
        prepared(validation),
        symmetrised(objective),
        how,
        seed,
    )
    return Part(
        [_every_pair(network, *prepared(block)) for block in _blocks(held_out)],
        _every_pair(network, *prepared(validation)),
        [_every_pair(network, *prepared(block)) for block in _alike(train, held_out)],
    )


def _validation(rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows that say when to stop, and rows to learn from."""
    stop, learn = np.split(rest, [min(len(rest) // 6, LARGEST_BLOCK)])
    return stop, learn


def _blocks(rows: np.ndarray) -> list[np.ndarray]:
    return np.array_split(rows, math.ceil(len(rows) / LARGEST_BLOCK))


def _alike(train: np.ndarray, held_out: np.ndarray) -> list[np.ndarray]:
    """Training rows in blocks of the size of the held-out ones: InfoNCE's value depends on how many are contrasted."""
    size = len(_blocks(held_out)[0])
    some = train[: max(size, MOST_LEARNED)]
    return [some[i : i + size] for i in range(0, max(1, len(some) - size + 1), size)]


@torch.no_grad()
def _every_pair(network: InitialisedCritic, x: Tensor, y: Tensor, rows: int = 256) -> Tensor:
    return torch.cat([network.cross(part, y) for part in x.split(rows)])


def _interval(total: Measured, above: float, confidence: float) -> tuple[float, float]:
    reach = float(student.ppf((1 + confidence) / 2, total.freedom)) * total.error
    # what fitting cost is missing from the estimate, so the truth may be higher by about half the optimism; and a
    # lower bound may fall below zero, the information it bounds cannot
    return total.nats - reach, max(0.0, total.nats + above / 2 + reach)


def _baselines(
    x: Array, y: Array, kinds: tuple[np.ndarray, np.ndarray], scaling: Scaling, seed: int
) -> dict[str, float]:
    encoded = [Encoding.fit(side, scaling, kind)(side) for side, kind in zip((x, y), kinds, strict=True)]
    return {"ksg": ksg_information(x, y, seed), "gaussian": gaussian_information(encoded[0], encoded[1])}


def _said(scaling: Scaling, kinds: tuple[np.ndarray, np.ndarray]) -> str:
    continuous = {"rank": "ranks to normals", "standard": "standardised", "none": "not scaled"}[scaling]
    levels = int(kinds[0].sum() + kinds[1].sum())
    return f"{continuous}, {levels} discrete columns to indicators" if levels else continuous


def _written(bound: Bound) -> str:
    name = next((name for name, part in bounds.PARTS.items() if part is type(bound)), type(bound).__name__)
    alpha = getattr(bound, "alpha", None)
    return name if alpha is None else f"{name}(alpha={at(alpha, START):.4g})"


def _warnings(total: Measured, certificate: Certificate) -> tuple[str, ...]:
    found = []
    if certificate.ceiling is not None and total.nats > LEANING * certificate.ceiling:
        found.append(
            f"the estimate leans on its ceiling of {certificate.ceiling:.2f} nats, so the truth may be higher; "
            "more samples raise the ceiling, and so does bound=ml-cpc"
        )
    if total.nats + 3 * total.error < 0:
        found.append("the estimate is clearly below zero: the critic misleads, and nothing can be said")
    return tuple(found)
