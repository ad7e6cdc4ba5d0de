"""How much x tells about y, from samples: `estimate_mi`.

    scale   ranks to normals, levels to indicators, rotation to canonical pairs        (samples.py)
    fit     a critic on four fifths, stopped early on a sixth of those                   (fit.py)
    measure the bound on the fifth that is left, never seen; every fifth takes its turn  (measure.py)

So all data count, no number is read off data its critic was fitted to, and where the bound is a proven one the mean
is a lower bound in expectation. All of it presumes independent rows: dependence.py looks for signs to the contrary, and
`groups` keeps rows that belong together on one side of every split, one of them at a time where the bound is read.
"""

import math
import numbers
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from scipy.stats import chi2
from scipy.stats import t as student
from torch import Tensor, nn

from nearfar import bounds, critics
from nearfar.bounds import NWJ, TUBA, InfoNCE
from nearfar.errors import UserError
from nearfar.estimate.baselines import gaussian_information, ksg_information
from nearfar.estimate.choose import (
    LEAST_EFFECTIVE,
    Contrast,
    Part,
    candidate_bounds,
    chosen_bound,
    effective,
    learning_objective,
    measured_part,
    optimism,
    trials,
)
from nearfar.estimate.dependence import Rows, checked_groups, look_at_rows
from nearfar.estimate.fit import CRITICS, InitialisedCritic, Training, fitted_critic, symmetrised
from nearfar.estimate.measure import Measured, average, average_of_draws
from nearfar.estimate.result import AtLeast, Estimate
from nearfar.estimate.samples import (
    Array,
    Canonical,
    Discrete,
    Encoding,
    Scaling,
    checked_pair,
    discrete_columns,
    shared_columns,
)
from nearfar.hardware import one_thread
from nearfar.schedules import START, at
from nearfar.types import Bound, Certificate, Critic

LARGEST_BLOCK = 2048  # samples contrasted with one another at a time: 16 MB of scores
MOST_LEARNED = 4096  # training rows that are scored to see how much fitting helped
DRAWS = 8  # of one row from each group of dependent rows, over which a fold is averaged
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
    groups: Any = None,
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
    "ml-cpc" by name takes the smallest alpha its theorem covers. `groups`: a label per row; rows of one label depend on one
    another (a subject, a session), rows of different labels do not, which is then taken for granted.
    """
    began = time.perf_counter()
    x, y = checked_pair(x, y)
    unit = checked_groups(groups, len(x))
    _check_options(folds, confidence, negatives, seed, int(unit.max()) + 1)
    rows = look_at_rows(x, y) if groups is None else Rows()
    kinds = discrete_columns(x, discrete), discrete_columns(y, discrete)
    place = _place(device)
    make, critic_name = _critic(critic)
    splits = [_split(unit, *parts, seed=seed + k) for k, parts in enumerate(_parts(unit, folds, seed))]
    smallest = min(len(block) for split in splits for block in split.draws[0])
    # to choose, bounds are compared on validation rows: the least alpha must be covered there too
    compared = min(smallest, *(len(split.validation) for split in splits)) if bound == "auto" else smallest
    candidates = candidate_bounds(bound, negatives, compared)
    how, objective = training or Training(), learning_objective(bound)
    with one_thread():
        parts = [
            _fold(x, y, kinds, scaling, split, make, objective, how, place, seed + k)
            for k, split in enumerate(splits)
        ]
        choices = [chosen_bound(candidates, part, negatives, seed) for part in parts]
        taken = [candidates[name] for name, _ in choices]
        found = [
            measured_part(each, part, negatives, seed + k)
            for k, (each, part) in enumerate(zip(taken, parts, strict=True))
        ]
        gaps = [optimism(each, part, negatives, seed) for each, part in zip(taken, parts, strict=True)]
        total = average(found)
        certificate = _for_rows(
            _certificate(taken, negatives, smallest, among=len(candidates)), rows, groups is not None
        )
        low = _at_least(total, certificate, parts, negatives, smallest, rows, groups is not None, confidence)
    interval = _interval(total, max(0.0, sum(gaps) / folds), confidence, int(unit.max()) + 1)
    others = _baselines(x, y, kinds, scaling, seed) if baselines else {}
    return Estimate(
        nats=total.nats,
        interval=interval,
        confidence=confidence,
        at_least=low,
        ceiling=certificate.ceiling,
        certificate=certificate,
        bound=_several([_written(each) for each in taken]),
        critic=critic_name,
        samples=len(x),
        scaling=_said(scaling, kinds),
        reason=_reason([values for _, values in choices]),
        folds=tuple(part.nats for part in found),
        baselines=others,
        warnings=(*_warnings(total, interval[1], certificate, taken, parts), *_about_rows(x, y, rows)),
        seconds=time.perf_counter() - began,
    )


def _certificate(taken: list[Bound], negatives: Contrast, samples: int, among: int) -> Certificate:
    """What the folds' bounds claim for held-out blocks of so many samples, chosen among so many bounds: that of the one
    taken most often, and the highest ceiling. All that can be chosen are proven alike."""
    said = [
        each.certificate(trials(each, negatives, samples, 0, torch.device("cpu"))[0].sampling)
        for each in taken
    ]
    most = max(said, key=lambda one: sum(one.condition == other.condition for other in said))
    if among == 1:
        return most
    ceilings = [one.ceiling for one in said]
    highest = None if any(c is None for c in ceilings) else max(c for c in ceilings if c is not None)
    chosen = "each fold's bound was chosen on rows that it does not report on"
    return replace(most, condition=f"{most.condition}; {chosen}", ceiling=highest)


def _for_rows(certificate: Certificate, rows: Rows, grouped: bool) -> Certificate:
    """The same claim with what it presumes of the rows; none where the rows refute it."""
    if rows.refuted:
        return replace(certificate, status="not covered", condition=f"{rows.refuted}: {_DEPENDENT}")
    if certificate.status != "proven":
        return certificate
    presumed = "groups" if grouped else "rows"
    return replace(
        certificate, condition=f"{certificate.condition}; {presumed} are independent of one another"
    )


def _at_least(
    total: Measured,
    certificate: Certificate,
    parts: list[Part],
    negatives: Contrast,
    samples: int,
    rows: Rows,
    grouped: bool,
    confidence: float,
) -> AtLeast:
    """The one-sided bound: the lower end of the two-sided interval, of a proven bound (InfoNCE if another was asked for)."""
    if certificate.status == "not covered" and not rows.refuted:
        bound = InfoNCE()
        total = average([measured_part(bound, part, negatives, k) for k, part in enumerate(parts)])
        certificate = _for_rows(_certificate([bound], negatives, samples, among=1), rows, grouped)
    one_sided = (1 + confidence) / 2
    low = total.nats - float(student.ppf(one_sided, total.freedom)) * total.error
    if certificate.status == "proven":
        certificate = replace(certificate, condition=f"{certificate.condition}; {_NORMAL}")
    return AtLeast(max(0.0, low), one_sided, certificate)


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
                f"critic was {critic!r}; expected {', '.join(CRITICS)}, or a function from the widths of x and y "
                "to a critic, for instance lambda dim: nf.Separable(dim=dim)"
            )
        return critic, getattr(critic, "__name__", type(critic).__name__)
    if critic not in CRITICS:
        raise UserError(f"critic was {critic!r}; expected {', '.join(CRITICS)}, or a function that makes one")
    return CRITICS[critic], critic


@dataclass(frozen=True)
class Split:
    """Rows of one fold: those learned from, those that say when to stop, and draws of blocks of unseen ones."""

    train: np.ndarray
    validation: np.ndarray
    draws: list[list[np.ndarray]]


def _parts(unit: np.ndarray, folds: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and held-out units (rows, or groups of them), every unit held out once."""
    parts = np.array_split(np.random.default_rng(seed).permutation(int(unit.max()) + 1), folds)
    for k, held_out in enumerate(parts):
        yield np.concatenate([part for j, part in enumerate(parts) if j != k]), held_out


def _split(unit: np.ndarray, rest: np.ndarray, held_out: np.ndarray, seed: int) -> Split:
    """The fold's rows from its units; of groups with several rows, one of each is drawn at a time to report on."""
    stop, learn = np.split(rest, [min(len(rest) // 6, LARGEST_BLOCK)])
    grouped = int(unit.max()) + 1 < len(unit)
    if not grouped:
        return Split(learn, stop, [_blocks(held_out)])
    rng = np.random.default_rng(seed)
    members = np.split(np.argsort(unit, kind="stable"), np.cumsum(np.bincount(unit))[:-1])
    train, validation = (
        rng.permutation(np.concatenate([members[u] for u in some])) for some in (learn, stop)
    )
    draws = [np.array([rng.choice(members[u]) for u in held_out]) for _ in range(DRAWS)]
    return Split(train, validation[:LARGEST_BLOCK], [_blocks(draw) for draw in draws])


def _fold(
    x: Array,
    y: Array,
    kinds: tuple[np.ndarray, np.ndarray],
    scaling: Scaling,
    split: Split,
    make: Callable[[tuple[int, int]], Critic],
    objective: Bound,
    how: Training,
    place: torch.device,
    seed: int,
) -> Part:
    train, validation = split.train, split.validation
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
        [[_every_pair(network, *prepared(block)) for block in draw] for draw in split.draws],
        _every_pair(network, *prepared(validation)),
        [_every_pair(network, *prepared(block)) for block in _alike(train, split.draws[0][0])],
    )


def _blocks(rows: np.ndarray) -> list[np.ndarray]:
    return np.array_split(rows, math.ceil(len(rows) / LARGEST_BLOCK))


def _alike(train: np.ndarray, block: np.ndarray) -> list[np.ndarray]:
    """Training rows in blocks of the size of a held-out one: InfoNCE's value depends on how many are contrasted."""
    size = len(block)
    some = train[: max(size, MOST_LEARNED)]
    return [some[i : i + size] for i in range(0, max(1, len(some) - size + 1), size)]


@torch.no_grad()
def _every_pair(network: InitialisedCritic, x: Tensor, y: Tensor, rows: int = 256) -> Tensor:
    return torch.cat([network.cross(part, y) for part in x.split(rows)])


def _interval(total: Measured, above: float, confidence: float, samples: int) -> tuple[float, float]:
    reach = float(student.ppf((1 + confidence) / 2, total.freedom)) * total.error
    # a dependence with one parameter that so many samples do not show: a critic that found nothing has no error of its own
    reach = max(reach, float(chi2.ppf(confidence, 1)) / (2 * samples))
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


def _several(names: list[str]) -> str:
    """What the folds took: one name, or each with how often."""
    counts = {name: names.count(name) for name in names}
    return names[0] if len(counts) == 1 else ", ".join(f"{name} in {k} folds" for name, k in counts.items())


def _reason(values: list[dict[str, Measured]]) -> str:
    """What each bound was worth on validation rows, mean over the folds that could measure it.

    Folds share rows, so their errors are not independent: the mean of them stands for all.
    """
    if not values[0]:
        return "as asked"
    means = {
        name: average_of_draws([each[name] for each in values if name in each])
        for name in dict.fromkeys(name for each in values for name in each)
    }
    return "on validation data " + ", ".join(
        f"{name} {one.nats:.4f} ± {one.error:.4f}" for name, one in means.items()
    )


_DEPENDENT = "the claim needs independent rows; name those that belong together with groups, or thin a series"
_NORMAL = (
    "the mean over folds is taken as normal (central limit theorem of cross-validation, Bayle et al. 2020)"
)


def _about_rows(x: Array, y: Array, rows: Rows) -> list[str]:
    found = [f"{rows.refuted}: {_DEPENDENT}"] if rows.refuted else [rows.doubt] if rows.doubt else []
    same = shared_columns(x, y)
    if same:
        found.append(
            f"x column {same[0][0]} and y column {same[0][1]} are the same: a continuous column tells infinitely much "
            "about itself, so the number says only how many rows there are"
        )
    return found


def _warnings(
    total: Measured, high: float, certificate: Certificate, taken: list[Bound], parts: list[Part]
) -> tuple[str, ...]:
    found = []
    fewest = min(
        (
            effective(part.validation)
            for each, part in zip(taken, parts, strict=True)
            if isinstance(each, NWJ | TUBA)
        ),
        default=math.inf,
    )
    if fewest < LEAST_EFFECTIVE:
        found.append(
            f"the mean of e^f rests on {fewest:.1f} effective anchors of a fold, too few to know its expectation: the "
            "value can be anything; use bound=infonce or more samples"
        )
    if certificate.ceiling is not None and high > LEANING * certificate.ceiling:
        found.append(
            f"the estimate leans on its ceiling of {certificate.ceiling:.2f} nats, so the truth may be higher; "
            "more samples raise the ceiling, and so does bound=ml-cpc"
        )
    if total.nats + 3 * total.error < 0:
        found.append("the estimate is clearly below zero: the critic misleads, and nothing can be said")
    return tuple(found)
