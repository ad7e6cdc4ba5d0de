"""Which bound is measured, on which arrangement of the unseen samples."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.adapters import adapt
from nearfar.core.schedules import START, at
from nearfar.core.scores import paired_scores
from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.estimate.measure import (
    Arrangement,
    BoundValue,
    average,
    average_of_draws,
    bound_nats,
    in_batch_arrangement,
    independent_arrangements,
    measure_bound,
)
from nearfar.parts import bounds
from nearfar.parts.bounds import (
    NWJ,
    TUBA,
    UBA,
    AlphaCPC,
    BarberAgakov,
    DonskerVaradhan,
    InfoNCE,
    MultiLabelCPC,
    smallest_proven_alpha,
)

Contrast = Literal["batch", "independent"]
ESTIMATES = ("infonce", "ml-cpc", "alpha-cpc", "nwj", "tuba", "dv", "mine", "smile", "uba", "barber-agakov")


@dataclass(frozen=True)
class FoldScores:
    """Scores of all pairs of a fold's rows."""

    held_out: list[list[Tensor]]  # unseen rows: draws (one row per group) of blocks
    validation: Tensor
    learned: list[Tensor]  # blocks of training rows
    positional: bool = False  # scores depend on where rows stand


def training_objective(bound: str | AbstractBound) -> AbstractBound:
    """The bound that the critic maximises while it learns.

    The optimal critic of every bound here is the log density ratio, which InfoNCE finds with the least noise.
    Exceptions: bounds with a higher ceiling, and MINE as published, Donsker-Varadhan with a running mean
    (Belghazi et al. 2018).
    """
    if bound == "mine" or (isinstance(bound, DonskerVaradhan) and at(bound.momentum, START) > 0):
        return DonskerVaradhan(momentum=settings.MINE_MOMENTUM) if isinstance(bound, str) else bound
    return bound if isinstance(bound, AlphaCPC | MultiLabelCPC) else InfoNCE()


def candidate_bounds(
    bound: str | AbstractBound, negatives: Contrast, samples: int
) -> dict[str, AbstractBound]:
    """The bounds to choose from, by name, for held-out blocks of `samples` rows."""
    if not isinstance(bound, str):
        if isinstance(bound, type) or not callable(bound):
            raise UserError(
                f"bound was {bound!r}; expected auto, {', '.join(ESTIMATES)}, or a bound such as nf.InfoNCE()"
            )
        candidates = {type(bound).__name__: adapt("bound", bound)}
    elif bound == "auto":
        names = ("infonce", "nwj") if negatives == "batch" else ("infonce", "ml-cpc", "nwj")
        candidates = {name: _by_name(name, negatives, samples) for name in names}
    else:
        candidates = {bound: _by_name(bound, negatives, samples)}
    for name, candidate in candidates.items():
        if isinstance(candidate, BarberAgakov):
            raise UserError(
                "bound was a BarberAgakov object, which needs a conditional density log q(y | x), and "
                "critics are log ratios; the name barber-agakov fits a density and counts the entropy"
            )
        sampling = arrange(candidate, negatives, samples, 0, torch.device("cpu"))[0].sampling
        if candidate.certificate(sampling).status == "objective only":
            raise UserError(
                f"bound was {name}, which does not estimate information; expected auto, "
                f"{', '.join(ESTIMATES)}"
            )
    return candidates


def named_bound(name: str, alpha: float | None) -> str | AbstractBound:
    """A bound by name and alpha, as given on a command line."""
    if alpha is None:
        return name
    if name not in ("ml-cpc", "alpha-cpc"):
        raise UserError(f"alpha was {alpha:g} with bound {name}; only ml-cpc and alpha-cpc have an alpha")
    return MultiLabelCPC(alpha) if name == "ml-cpc" else AlphaCPC(alpha)


def _by_name(name: str, negatives: Contrast, samples: int) -> AbstractBound:
    if name == "mine":
        return DonskerVaradhan(momentum=settings.MINE_MOMENTUM)
    if name not in bounds.PARTS:
        raise UserError(f"bound was {name!r}; expected auto, {', '.join(ESTIMATES)}, or a bound")
    if name != "ml-cpc":
        return bounds.PARTS[name]()
    per_anchor = samples - 1 if negatives == "batch" else _negatives_per_anchor(MultiLabelCPC(), samples)
    anchors = samples if negatives == "batch" else samples // (1 + per_anchor)
    return MultiLabelCPC(smallest_proven_alpha(anchors, per_anchor))


def _negatives_per_anchor(bound: AbstractBound, samples: int) -> int:
    """Negatives of each anchor if they are not shared: many where each anchor has a sum of its own."""
    separate_sums = isinstance(bound, InfoNCE | AlphaCPC | UBA)
    return max(1, samples // 8 - 1 if separate_sums else min(settings.POOLED_NEGATIVES, samples // 2 - 1))


def arrange(
    bound: AbstractBound, negatives: Contrast, samples: int, seed: int, device: torch.device
) -> list[Arrangement]:
    """The arrangements of a block of `samples` unseen rows into anchors and negatives."""
    if negatives == "batch":
        return [in_batch_arrangement(samples, device)]
    per_anchor = _negatives_per_anchor(bound, samples)
    # twice as many anchors in all as samples: further arrangements add little
    return independent_arrangements(samples, per_anchor, 2 * (1 + per_anchor), seed, device)


def choose_bound(
    candidates: dict[str, AbstractBound], scores: FoldScores, negatives: Contrast, seed: int
) -> tuple[str, dict[str, BoundValue]]:
    """The first candidate, unless a later one is clearly above it on validation rows; and their values there.

    All are lower bounds, so a higher one is tighter. A bound without a ceiling must exceed by its own error,
    and enough pairs must carry it. A fold chooses on rows that it does not report, so its value stays a
    bound.
    """
    best = next(iter(candidates))
    if len(candidates) == 1:
        return best, {}
    values = {
        name: _measure_blocks(bound, [scores.validation], scores.validation, negatives, seed)
        for name, bound in candidates.items()
        if not isinstance(bound, NWJ | TUBA)
        or effective_samples(scores.validation) >= settings.MIN_EFFECTIVE_SAMPLES
    }
    for name, value in values.items():
        if value.nats - value.error > values[best].nats:
            best = name
    return best, values


def measure_fold(bound: AbstractBound, scores: FoldScores, negatives: Contrast, seed: int) -> BoundValue:
    """The bound on the unseen rows of a fold."""
    return average_of_draws(
        [_measure_blocks(bound, blocks, scores.validation, negatives, seed) for blocks in scores.held_out]
    )


def _measure_blocks(
    bound: AbstractBound, blocks: list[Tensor], validation: Tensor, negatives: Contrast, seed: int
) -> BoundValue:
    shifted = [_shift_scores(bound, f, validation) for f in blocks]
    return average(
        [measure_bound(bound, f, arrange(bound, negatives, len(f), seed, f.device)) for f in shifted]
    )


def effective_samples(f: Tensor) -> float:
    """Effective sample size of the mean of e^f over pairs that do not belong together.

    (sum w)^2 / sum w^2, with w the sums over the pairs of an anchor or of a key, whichever is less. A mean
    that rests on a few of them says nothing about its expectation.
    """
    sizes = []
    for scores in (f, f.T):
        log_w = paired_scores(scores).negative.logsumexp().double()
        sizes.append(float(2 * log_w.logsumexp(dim=0) - (2 * log_w).logsumexp(dim=0)))
    return math.exp(min(sizes))


def optimism(bound: AbstractBound, scores: FoldScores, negatives: Contrast, seed: int) -> float:
    """How much higher the bound is on training rows than on unseen rows, in nats.

    Over all folds each sample counts in both means, so the difference is the effect of fitting. Half of it
    raises the former, and about as much is missing from the latter (Akaike's argument): the information may
    be that much higher.
    """

    def mean_value(blocks: list[Tensor]) -> float:
        values = [
            bound_nats(
                bound,
                _shift_scores(bound, f, scores.validation),
                arrange(bound, negatives, len(f), seed, f.device),
            )
            for f in blocks
        ]
        return sum(values) / len(values)

    return mean_value(scores.learned) - mean_value([f for draw in scores.held_out for f in draw])


def _shift_scores(bound: AbstractBound, f: Tensor, validation: Tensor) -> Tensor:
    """Scores as log density ratios: the mean of e^f over negatives is one, by a constant from validation
    rows.

    Bounds without a ceiling have a best constant near it, found there too. No ratio above the number of pairs
    can be seen in that many pairs, so neither constant nor scores exceed its logarithm. The result is another
    critic, fixed before the pairs are seen, and the claim holds for every critic.
    """
    negatives = paired_scores(validation).negative
    log_pairs = negatives.count().sum().log()
    mean = (negatives.logsumexp().logsumexp(dim=0) - log_pairs).clamp(-log_pairs, log_pairs)
    if not isinstance(bound, NWJ | TUBA):
        return f - mean
    highest = math.log(len(f) * (len(f) - 1))

    def shift_by(scores: Tensor, shift: float) -> Tensor:
        return (scores - mean).clamp(max=highest) + shift

    solution = minimize_scalar(
        lambda c: -float(bound(paired_scores(shift_by(validation, c)))), bounds=(-4.0, 4.0), method="bounded"
    )
    return shift_by(f, float(solution.x))
