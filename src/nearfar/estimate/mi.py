"""Mutual information from samples: `estimate_mi`.

    read       arrays, frames, words; rows with gaps are dropped, categories recognised  (columns.py, samples.py)
    cross-fit  a stack of ratios for p(x, y) / p(x) p(y), weighted on held-out rows  (ratios/, crossfit.py)
    report     on the last fifth of the rows, never seen; every fifth takes its turn        (interval.py)

Two numbers result. `nats` is the best estimate, with an interval of measured coverage. `at_least` is InfoNCE
with the stack as critic, a lower bound for any critic, less its sampling error. A bound or critic chosen by
name is fitted and measured as it is (bound_estimate.py). All of it assumes independent rows: rows.py checks
for signs of dependence, and `groups` keeps rows that belong together on one side of every split.
"""

import math
import numbers
import time
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, get_args

import numpy as np
import torch
from scipy.stats import t as student
from torch import nn

from nearfar.core.abstract import AbstractBound, AbstractCritic
from nearfar.core.types import Certificate
from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.estimate.baselines import gaussian_information, ksg_information
from nearfar.estimate.bound_choice import Contrast
from nearfar.estimate.bound_estimate import EstimateRequest, PartialEstimate, estimate_by_bound
from nearfar.estimate.certificates import (
    BEST,
    bound_certificate,
    describe_scaling,
    with_confidence,
    with_row_check,
)
from nearfar.estimate.crossfit import (
    CrossFit,
    FittedFold,
    calibration,
    cross_fit,
    independence_p_value,
    infonce_value,
    mean_weights,
)
from nearfar.estimate.fit import CRITICS, CriticTraining, MakeCritic, redrawn_critic
from nearfar.estimate.interval import UNFITTED, BestEstimate, best_estimate
from nearfar.estimate.prediction_bound import NAME as PREDICTION
from nearfar.estimate.prediction_bound import estimate_by_prediction
from nearfar.estimate.result import AtLeast, Estimate
from nearfar.estimate.rows import RowCheck, check_rows, group_numbers, split_folds
from nearfar.estimate.samples import (
    ColumnEncoding,
    Discrete,
    SamplePair,
    Scaling,
    check_pair,
    drop_shared_columns,
)
from nearfar.parts import critics
from nearfar.parts.bounds import InfoNCE
from nearfar.system.hardware import one_thread


def estimate_mi(
    x: Any,
    y: Any,
    bound: str | AbstractBound = "auto",
    critic: str | AbstractCritic | Callable[[tuple[int, int]], AbstractCritic] = "auto",
    *,
    negatives: Contrast = "batch",
    scaling: Scaling = "rank",
    discrete: Discrete = "auto",
    groups: Any = None,
    folds: int = 5,
    splits: int = 1,
    confidence: float = 0.9,
    training: CriticTraining | None = None,
    baselines: bool = True,
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Estimate:
    """Mutual information of two samples, in nats. Row i of x belongs to row i of y.

    x, y: arrays, tensors, lists or frames, (samples,) or (samples, columns), of numbers or words. Rows with gaps
        are dropped, with a note in `warnings`.
    bound: "auto" for the best estimate with a proven bound; or a bound or its name, whose value is then the
        estimate. "ml-cpc" takes the smallest alpha that its theorem covers; "barber-agakov" fits a
        conditional probability.
    critic: "auto" for a stack of ratios; a network "separable", "joint", "hybrid" or "bilinear"; a critic object,
        whose weights are drawn again for every fold; or a function from (width of x, width of y) to a critic.
    negatives: "batch" contrasts a sample with all others of its fold. "independent" gives each its own
        negatives, which proves more bounds and is less precise.
    scaling: of numbers for networks: "rank", "standard" or "none".
    discrete: which columns are categories: "auto" (words, and few distinct values), "all", "none", or all
        of "x" or "y".
    groups: a label per row. Rows of one label depend on one another (a subject, a session); rows of different
        labels are assumed to be independent.
    folds, confidence, seed: cross-validation folds, confidence of the interval, seed of splits and fits.
    splits: random splits into folds over which `nats` is averaged. Their spread enters the interval, and time grows
        in proportion. `at_least` and `p_value` are those of the first.
    training: options of a network critic. baselines: whether KSG and a Gaussian are computed too.
    """
    start = time.perf_counter()
    pair = drop_shared_columns(check_pair(x, y, discrete, groups))
    unit = group_numbers(pair.groups, len(pair.x))
    _check_options(folds, confidence, negatives, scaling, seed, int(unit.max()) + 1)
    rows = check_rows(pair.x, pair.y, pair.names) if groups is None else RowCheck()
    options, device = training or CriticTraining(), _usable_device(device)
    request = EstimateRequest(
        bound, *_critic(critic), negatives, scaling, pair.kinds, confidence, options, device, seed
    )
    partial = _estimate_as_requested(pair, unit, rows, request, folds, splits)
    return Estimate(
        **{**vars(partial), "warnings": (*pair.notes, *partial.warnings, *rows.warnings)},
        ceiling=partial.certificate.ceiling,
        confidence=confidence,
        samples=len(pair.x),
        scaling=describe_scaling(scaling, pair.kinds),
        baselines=_baselines(pair, scaling, seed) if baselines else {},
        seconds=time.perf_counter() - start,
    )


def _estimate_as_requested(
    pair: SamplePair, unit: np.ndarray, rows: RowCheck, request: EstimateRequest, folds: int, splits: int
) -> PartialEstimate:
    """By a stack of ratios, or by the bound or critic that is named."""
    if request.bound == "auto" and request.make_critic is None and request.negatives == "batch":
        return _estimate_by_ratios(cross_fit(pair, folds, request.seed, splits), rows, request)
    if splits != 1:
        raise UserError(f"splits was {splits!r}; a bound or critic that is named is measured on 1 split")
    estimate = estimate_by_prediction if request.bound == PREDICTION else estimate_by_bound
    with one_thread():
        return estimate(pair.x, pair.y, request, split_folds(unit, folds, request.seed), unit, rows)


def _estimate_by_ratios(fit: CrossFit, rows: RowCheck, request: EstimateRequest) -> PartialEstimate:
    """The best estimate, and InfoNCE with the stack as critic for the lower limit."""
    best = best_estimate(fit, request.confidence)
    folds, units = fit.folds, fit.units
    grouped = units < len(fit.unit)
    claim = bound_certificate([InfoNCE()], "batch", min(fold.block_size for fold in folds), candidates=1)
    proven = with_row_check(claim, rows, grouped)
    value, error = infonce_value(folds)
    low = infonce_limit(folds, request.one_sided)
    weights = [
        f"{name} {weight:.0%}" for name, weight in list(mean_weights(folds).items())[: settings.SHOWN_WEIGHTS]
    ]
    return PartialEstimate(
        nats=best.nats,
        interval=best.interval,
        at_least=AtLeast(low, request.one_sided, with_confidence(proven), "infonce"),
        certificate=with_row_check(Certificate("not covered", BEST, proven.ceiling), rows, grouped),
        bound="infonce",
        critic=f"mixture of density ratios: {'; '.join(weights)}",
        reason=f"for at_least; its value is {value:.4f} ± {error:.4f}",
        folds=tuple(float(fold.bound.mean()) for fold in folds),
        warnings=tuple(_limit_warnings(best, value, proven.ceiling, units)),
        p_value=independence_p_value(folds) if best.fitted else 1.0,
        calibration=tuple(calibration(folds)),
        learning=best.learning,
    )


def infonce_limit(folds: list[FittedFold], confidence: float) -> float:
    """One-sided lower limit of the information, in nats."""
    value, error = infonce_value(folds)
    units = sum(len(fold.bound) for fold in folds)
    low = value - float(student.ppf(confidence, units - len(folds))) * error
    # a constant critic leaves only rounding errors
    return low if low > settings.ROUNDING else 0.0


def _limit_warnings(best: BestEstimate, value: float, ceiling: float | None, units: int) -> list[str]:
    """Warnings where a proven number cannot reach the best estimate."""
    warnings = []
    if not best.fitted:
        warnings.append(UNFITTED)
    if best.cut_from is not None:
        warnings.append(
            f"the estimate was cut at 2 log n = {best.nats:.2f} nats, beyond which this many rows show "
            f"nothing; the model's value is {best.cut_from:.1f}, and the interval has no upper end"
        )
    if best.nats > math.log(units):
        warnings.append(
            f"the estimate is above log n = {math.log(units):.2f} nats, which no distribution-free lower "
            "bound from this many samples can exceed (McAllester and Stratos 2020): it rests on the model "
            "that fitted best"
        )
    elif best.model_based:
        warnings.append(
            "too few pairs show the ratio's mean under independence, so the estimate rests on the model that "
            "fitted best; at_least does not"
        )
    if ceiling is not None and value > settings.NEAR_CEILING * ceiling:
        warnings.append(
            f"at_least is near its ceiling of {ceiling:.2f} nats; more samples raise it, and so does "
            "bound=ml-cpc"
        )
    return warnings


def _check_options(
    folds: int, confidence: float, negatives: str, scaling: str, seed: int, samples: int
) -> None:
    if not isinstance(folds, numbers.Integral) or not 2 <= folds <= samples // 10:
        raise UserError(
            f"folds was {folds!r}; with {samples} samples it must be a whole number from 2 to {samples // 10}"
        )
    if not isinstance(confidence, numbers.Real) or not 0 < confidence < 1:
        raise UserError(f"confidence was {confidence!r}; it must lie between 0 and 1, for instance 0.9")
    if negatives not in get_args(Contrast):
        raise UserError(f"negatives was {negatives!r}; expected {', '.join(get_args(Contrast))}")
    if scaling not in get_args(Scaling):
        raise UserError(f"scaling was {scaling!r}; expected {', '.join(get_args(Scaling))}")
    if not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**62:
        raise UserError(f"seed was {seed!r}; it must be a whole number from 0 and below 2^62")


def _usable_device(device: str | torch.device | None) -> torch.device:
    try:
        usable = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros((), device=usable).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UserError(f"device was {device!r}, which torch cannot use here; cpu always works") from error
    return usable


def _critic(
    critic: str | AbstractCritic | Callable[[tuple[int, int]], AbstractCritic],
) -> tuple[MakeCritic | None, str]:
    """The constructor of a network critic (None: the stack of ratios), and its name."""
    names = f"auto, {', '.join(CRITICS)}"
    if isinstance(critic, nn.Module) and isinstance(critic, AbstractCritic):
        return partial(redrawn_critic, critic), type(critic).__name__
    if not isinstance(critic, str):
        if not callable(critic) or isinstance(critic, nn.Module) or critic in critics.PARTS.values():
            raise UserError(
                f"critic was {critic!r}; expected {names}, a critic such as nf.Separable(dim=(2, 3)), or a "
                "function from the widths of x and y to a critic, for instance lambda dim: nf.Separable(dim=dim)"
            )
        return critic, critic.__name__ if isinstance(critic, FunctionType | type) else type(critic).__name__
    if critic == "auto":
        return None, "mixture of ratios"
    if critic not in CRITICS:
        raise UserError(f"critic was {critic!r}; expected {names}, or a function that makes one")
    return CRITICS[critic], critic


def _baselines(pair: SamplePair, scaling: Scaling, seed: int) -> dict[str, float]:
    first, second = (
        ColumnEncoding.fit(side, scaling, kind)(side)
        for side, kind in zip((pair.x, pair.y), pair.kinds, strict=True)
    )
    return {"ksg": ksg_information(pair.x, pair.y, seed), "gaussian": gaussian_information(first, second)}
