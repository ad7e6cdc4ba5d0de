"""How much x tells about y, from samples: `estimate_mi`.

    read      numbers, words, frames; rows with gaps left out; categories recognised          (columns.py, samples.py)
    compete   ratios for p(x, y) / p(x) p(y), mixed by their likelihood on rows they did not see  (ratios/, competition.py)
    report    on the fifth of the rows that is left, never seen; every fifth takes its turn   (best.py)

Two numbers come out. `nats` is the best estimate, with an interval whose coverage is measured. `at_least` is InfoNCE with the mixture as critic,
a lower bound whoever made the critic, less its sampling error. A bound or a critic that is asked for by name is fitted and
measured as asked (by_bound.py). All of it presumes independent rows: dependence.py looks for signs to the contrary, and `groups` keeps
rows that belong together on one side of every split, one of them at a time where the bound is read.
"""

import math
import numbers
import time
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import torch
from scipy.stats import t as student
from torch import nn

from nearfar.core.abstract import AbstractBound, AbstractCritic
from nearfar.core.types import Certificate
from nearfar.errors import UserError
from nearfar.estimate.baselines import gaussian_information, ksg_information
from nearfar.estimate.best import UNFITTED, Best, best_estimate
from nearfar.estimate.by_bound import Answer, Make, Request, answer_by_bound
from nearfar.estimate.choose import Contrast
from nearfar.estimate.competition import Fold, calibration, compete, p_value, proven_value, weights
from nearfar.estimate.dependence import RowsSeen, checked_groups, look_at_rows
from nearfar.estimate.fit import CRITICS, Training
from nearfar.estimate.folds import splits
from nearfar.estimate.predicted import NAME as PREDICTION
from nearfar.estimate.predicted import answer_by_prediction
from nearfar.estimate.result import AtLeast, Estimate
from nearfar.estimate.samples import Discrete, Encoding, Pair, Scaling, checked_pair, without_shared
from nearfar.estimate.sentences import (
    BEST,
    LEANING,
    about_rows,
    claim,
    for_rows,
    scaling_said,
    with_confidence,
)
from nearfar.parts import critics
from nearfar.parts.bounds import InfoNCE
from nearfar.system.hardware import one_thread

ROUNDING = 1e-9  # nats


def estimate_mi(
    x: Any,
    y: Any,
    bound: str | AbstractBound = "auto",
    critic: str | Callable[[tuple[int, int]], AbstractCritic] = "auto",
    *,
    negatives: Contrast = "batch",
    scaling: Scaling = "rank",
    discrete: Discrete = "auto",
    groups: Any = None,
    folds: int = 5,
    confidence: float = 0.9,
    training: Training | None = None,
    baselines: bool = True,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Estimate:
    """Mutual information between two samples, row i of one belonging to row i of the other: arrays, tensors, lists, frames;
    numbers or words; rows with gaps are left out and said.

    `bound`: "auto" for the best estimate with a proven bound beside it; or a bound, or its name, whose value is then the
    estimate. `critic`: "auto" lets many kinds of ratios compete; "separable", "joint", "hybrid", "bilinear" are networks, or give a function
    from (width of x, width of y) to a critic. `negatives`: "batch" contrasts a sample with all others of its
    fold; "independent" gives each its own, which proves more bounds and costs precision. "ml-cpc" by name takes the smallest
    alpha its theorem covers; "barber-agakov" predicts y by a fitted conditional probability. `discrete`: which columns are categories: "auto" (words, and few distinct values), "all", "none", or
    all those of "x" or "y". `groups`: a label per row; rows of one label depend on one another (a subject, a session), rows of
    different labels do not, which is then taken for granted.
    """
    began = time.perf_counter()
    pair = without_shared(checked_pair(x, y, discrete, groups))
    unit = checked_groups(pair.groups, len(pair.x))
    _check_options(folds, confidence, negatives, seed, int(unit.max()) + 1)
    rows = look_at_rows(pair.x, pair.y) if groups is None else RowsSeen()
    make, critic_name = _critic(critic)
    kinds = pair.kinds
    asked = Request(
        bound,
        make,
        negatives,
        _known(scaling),
        kinds,
        confidence,
        training or Training(),
        _place(device),
        seed,
    )
    parts = splits(unit, folds, seed)
    with one_thread():
        if bound == "auto" and make is None and negatives == "batch":
            found = [compete(pair.x, pair.y, kinds, part, unit, seed + k) for k, part in enumerate(parts)]
            answer = _best(found, unit, rows, confidence)
        elif bound == PREDICTION:
            answer = answer_by_prediction(pair.x, pair.y, asked, parts, unit, rows)
        else:
            answer = answer_by_bound(pair.x, pair.y, asked, parts, unit, rows, critic_name)
    return _estimate(pair, answer, confidence, rows, scaling, baselines, seed, began)


def _estimate(
    pair: Pair,
    answer: Answer,
    confidence: float,
    rows: RowsSeen,
    scaling: Scaling,
    baselines: bool,
    seed: int,
    began: float,
) -> Estimate:
    return Estimate(
        nats=answer.nats,
        interval=answer.interval,
        confidence=confidence,
        at_least=answer.at_least,
        ceiling=answer.certificate.ceiling,
        certificate=answer.certificate,
        bound=answer.bound,
        critic=answer.critic,
        samples=len(pair.x),
        scaling=scaling_said(scaling, pair.kinds),
        reason=answer.reason,
        folds=answer.folds,
        p_value=answer.p_value,
        calibration=answer.calibration,
        learning=answer.learning,
        baselines=_baselines(pair, scaling, seed) if baselines else {},
        warnings=(*pair.notes, *answer.warnings, *about_rows(rows)),
        seconds=time.perf_counter() - began,
    )


def _best(folds: list[Fold], unit: np.ndarray, rows: RowsSeen, confidence: float) -> Answer:
    """The best estimate of folds in which ratios competed, and InfoNCE with their mixture as critic below it."""
    best = best_estimate(folds, unit, confidence)
    units = int(unit.max()) + 1
    proven = for_rows(
        claim([InfoNCE()], "batch", min(fold.block for fold in folds), 1), rows, units < len(unit)
    )
    one_sided = (1 + confidence) / 2
    value, spread = proven_value(folds)
    low = value - float(student.ppf(one_sided, units - len(folds))) * spread
    said = [f"{name} {weight:.2f}" for name, weight in list(weights(folds).items())[:4]]
    status = for_rows(Certificate("not covered", BEST, proven.ceiling), rows, units < len(unit))
    return Answer(
        nats=best.nats,
        interval=best.interval,
        # a critic that found nothing is constant, and all that is left is rounding
        at_least=AtLeast(low if low > ROUNDING else 0.0, one_sided, with_confidence(proven)),
        certificate=status,
        bound="infonce",
        critic=f"mixture of {', '.join(said)}",
        reason=f"at_least; its value {value:.4f} ± {spread:.4f}",
        folds=tuple(float(fold.bound.mean()) for fold in folds),
        warnings=tuple(_above(best, value, proven.ceiling, units)),
        p_value=p_value(folds) if best.fitted else 1.0,
        calibration=tuple(calibration(folds)),
        learning=best.learning,
    )


def _above(best: Best, value: float, ceiling: float | None, units: int) -> list[str]:
    """Where a proven number cannot follow the best estimate."""
    found = []
    if not best.fitted:
        found.append(UNFITTED)
    if best.cut_from is not None:
        found.append(
            f"the estimate was cut at 2 log n = {best.nats:.2f} nats, beyond which so many rows show nothing; the model's value is "
            f"{best.cut_from:.1f}, and the interval has no upper end"
        )
    if best.nats > math.log(units):
        found.append(
            f"the estimate is above log n = {math.log(units):.2f} nats, which no lower bound from so many samples can exceed for "
            "every distribution (McAllester and Stratos 2020): it rests on the model that fitted best"
        )
    elif best.model_based:
        found.append(
            "too few pairs show the ratio's mean under independence, so the estimate rests on the model that fitted best; "
            "at_least does not"
        )
    if ceiling is not None and value > LEANING * ceiling:
        found.append(
            f"at_least leans on its ceiling of {ceiling:.2f} nats; more samples raise it, and so does bound=ml-cpc"
        )
    return found


def _check_options(folds: int, confidence: float, negatives: str, seed: int, samples: int) -> None:
    if not isinstance(folds, numbers.Integral) or not 2 <= folds <= samples // 10:
        raise UserError(
            f"folds was {folds!r}; with {samples} samples it must be a whole number from 2 to {samples // 10}"
        )
    if not isinstance(confidence, numbers.Real) or not 0 < confidence < 1:
        raise UserError(f"confidence was {confidence!r}; it must lie between 0 and 1, for instance 0.9")
    if negatives not in get_args(Contrast):
        raise UserError(f"negatives was {negatives!r}; expected {', '.join(get_args(Contrast))}")
    if not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**62:
        raise UserError(f"seed was {seed!r}; it must be a whole number from 0 and below 2^62")


def _known(scaling: Scaling) -> Scaling:
    if scaling not in get_args(Scaling):
        raise UserError(f"scaling was {scaling!r}; expected {', '.join(get_args(Scaling))}")
    return scaling


def _place(device: str | torch.device | None) -> torch.device:
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros((), device=place).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UserError(f"device was {device!r}, which torch cannot use here; cpu always works") from error
    return place


def _critic(critic: str | Callable[[tuple[int, int]], AbstractCritic]) -> tuple[Make | None, str]:
    names = f"auto, {', '.join(CRITICS)}"
    if not isinstance(critic, str):
        if not callable(critic) or isinstance(critic, nn.Module) or critic in critics.PARTS.values():
            raise UserError(
                f"critic was {critic!r}; expected {names}, or a function from the widths of x and y "
                "to a critic, for instance lambda dim: nf.Separable(dim=dim)"
            )
        return critic, getattr(critic, "__name__", type(critic).__name__)
    if critic == "auto":
        return None, "mixture of ratios"
    if critic not in CRITICS:
        raise UserError(f"critic was {critic!r}; expected {names}, or a function that makes one")
    return CRITICS[critic], critic


def _baselines(pair: Pair, scaling: Scaling, seed: int) -> dict[str, float]:
    first, second = (
        Encoding.fit(side, scaling, kind)(side)
        for side, kind in zip((pair.x, pair.y), pair.kinds, strict=True)
    )
    return {"ksg": ksg_information(pair.x, pair.y, seed), "gaussian": gaussian_information(first, second)}
