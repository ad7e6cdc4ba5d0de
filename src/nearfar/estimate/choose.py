"""Which bound is measured, on which arrangement of the unseen samples, and why that one."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.schedules import START, at
from nearfar.core.scores import paired_scores
from nearfar.errors import UserError
from nearfar.estimate.measure import (
    Measured,
    Trial,
    average,
    average_of_draws,
    in_batch_trial,
    independent_trials,
    measured,
    value,
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
POOLED_NEGATIVES = 7  # per anchor where one sum runs over all: the ceiling needs many in all, not each
MINE_MOMENTUM = 0.99
ESTIMATES = ("infonce", "ml-cpc", "alpha-cpc", "nwj", "tuba", "dv", "mine", "smile", "uba", "barber-agakov")


LEAST_EFFECTIVE = 20  # anchors, and keys, that the mean of e^f must be spread over to say what it is


@dataclass(frozen=True)
class Part:
    """One fold: scores of every pair of its unseen samples, by block, of its validation samples, and of those its
    critic learned from. Where rows come in groups there are several draws of blocks, with one row of each group."""

    held_out: list[list[Tensor]]
    validation: Tensor
    learned: list[Tensor]


def learning_objective(bound: str | AbstractBound) -> AbstractBound:
    """What the critic maximises while it learns. Every bound here is best at the same critic, the log of the density
    ratio; InfoNCE finds it with the least noise, unless the user asks for one that can rise higher, or for MINE as published:
    Donsker-Varadhan maximised with a running mean (Belghazi et al. 2018)."""
    if bound == "mine" or (isinstance(bound, DonskerVaradhan) and at(bound.momentum, START) > 0):
        return DonskerVaradhan(momentum=MINE_MOMENTUM) if isinstance(bound, str) else bound
    return bound if isinstance(bound, AlphaCPC | MultiLabelCPC) else InfoNCE()


def candidate_bounds(
    bound: str | AbstractBound, negatives: Contrast, samples: int
) -> dict[str, AbstractBound]:
    """The bounds to choose from, by name, for held-out blocks of so many samples."""
    if not isinstance(bound, str):
        if isinstance(bound, type) or not hasattr(bound, "certificate"):
            raise UserError(
                f"bound was {bound!r}; expected auto, {', '.join(ESTIMATES)}, or a bound such as nf.InfoNCE()"
            )
        chosen = {type(bound).__name__: bound}
    elif bound == "auto":
        names = ("infonce", "nwj") if negatives == "batch" else ("infonce", "ml-cpc", "nwj")
        chosen = {name: _by_name(name, negatives, samples) for name in names}
    else:
        chosen = {bound: _by_name(bound, negatives, samples)}
    for name, one in chosen.items():
        certificate = one.certificate(trials(one, negatives, samples, 0, torch.device("cpu"))[0].sampling)
        # Barber-Agakov proves something of a normalised log q(y | x) alone, and a critic here is a log ratio
        if isinstance(one, BarberAgakov):
            raise UserError(
                "bound was a BarberAgakov of one's own, which critics cannot be read by: they are no conditional densities; the name "
                "barber-agakov fits one and counts the entropy"
            )
        if certificate.status == "objective only":
            raise UserError(
                f"bound was {name}, which does not estimate information; expected auto, {', '.join(ESTIMATES)}"
            )
    return chosen


def named_bound(name: str, alpha: float | None) -> str | AbstractBound:
    """A bound by name and, for those that have one, its alpha: as words on a command line give them."""
    if alpha is None:
        return name
    if name not in ("ml-cpc", "alpha-cpc"):
        raise UserError(f"alpha was {alpha:g} with bound {name}; only ml-cpc and alpha-cpc have an alpha")
    return MultiLabelCPC(alpha) if name == "ml-cpc" else AlphaCPC(alpha)


def _by_name(name: str, negatives: Contrast, samples: int) -> AbstractBound:
    if name == "mine":
        return DonskerVaradhan(momentum=MINE_MOMENTUM)
    if name not in bounds.PARTS:
        raise UserError(f"bound was {name!r}; expected auto, {', '.join(ESTIMATES)}, or a bound")
    if name != "ml-cpc":
        return bounds.PARTS[name]()
    per_anchor = samples - 1 if negatives == "batch" else _per_anchor(MultiLabelCPC(), samples)
    anchors = samples if negatives == "batch" else samples // (1 + per_anchor)
    return MultiLabelCPC(smallest_proven_alpha(anchors, per_anchor))


def _per_anchor(bound: AbstractBound, samples: int) -> int:
    """Negatives for each anchor when they may not be shared: many where each anchor has a sum of its own."""
    alone = isinstance(bound, InfoNCE | AlphaCPC | UBA)
    return max(1, samples // 8 - 1 if alone else min(POOLED_NEGATIVES, samples // 2 - 1))


def trials(
    bound: AbstractBound, negatives: Contrast, samples: int, seed: int, place: torch.device
) -> list[Trial]:
    """How a block of so many unseen samples is arranged into anchors and negatives."""
    if negatives == "batch":
        return [in_batch_trial(samples, place)]
    per_anchor = _per_anchor(bound, samples)
    # as many anchors in all as twice the samples: beyond that arrangements repeat what they have said
    return independent_trials(samples, per_anchor, 2 * (1 + per_anchor), seed, place)


def chosen_bound(
    candidates: dict[str, AbstractBound], part: Part, negatives: Contrast, seed: int
) -> tuple[str, dict[str, Measured]]:
    """The first candidate, unless a later one is clearly above it on the fold's validation rows; and their values there.

    All are lower bounds, so the higher is the tighter; but one without a ceiling must show it beyond its own error, and
    have enough pairs that count. A fold chooses on rows it does not report on, so its own number stays a bound.
    """
    best = next(iter(candidates))
    if len(candidates) == 1:
        return best, {}
    eligible = {
        name: bound
        for name, bound in candidates.items()
        if not isinstance(bound, NWJ | TUBA) or effective(part.validation) >= LEAST_EFFECTIVE
    }
    found = {
        name: measured_blocks(bound, [part.validation], part.validation, negatives, seed)
        for name, bound in eligible.items()
    }
    for name, one in found.items():
        if one.nats - one.error > found[best].nats:
            best = name
    return best, found


def measured_part(bound: AbstractBound, part: Part, negatives: Contrast, seed: int) -> Measured:
    """The bound on a fold's unseen rows."""
    return average_of_draws(
        [measured_blocks(bound, blocks, part.validation, negatives, seed) for blocks in part.held_out]
    )


def measured_blocks(
    bound: AbstractBound, blocks: list[Tensor], validation: Tensor, negatives: Contrast, seed: int
) -> Measured:
    shifted = [_shifted(bound, f, validation) for f in blocks]
    return average([measured(bound, f, trials(bound, negatives, len(f), seed, f.device)) for f in shifted])


def effective(f: Tensor) -> float:
    """Effective sample size of the mean of e^f over pairs that do not belong together: (sum w)^2 / sum w^2, w the sums over
    an anchor's or a key's pairs, whichever is less. A mean that rests on a few of them says nothing about its expectation."""
    sizes = []
    for one in (f, f.T):
        log_w = paired_scores(one).negative.logsumexp().double()
        sizes.append(float(2 * log_w.logsumexp(dim=0) - (2 * log_w).logsumexp(dim=0)))
    return math.exp(min(sizes))


def optimism(bound: AbstractBound, part: Part, negatives: Contrast, seed: int) -> float:
    """How much higher the bound is on samples a critic learned from than on unseen ones.

    Over all folds each sample counts in both means, so what is left is what fitting did: half of it lifted the one, and
    about as much is missing from the other (Akaike's argument), which the truth may be above.
    """
    known, unseen = (
        [
            value(
                bound, _shifted(bound, f, part.validation), trials(bound, negatives, len(f), seed, f.device)
            )
            for f in blocks
        ]
        for blocks in (part.learned, [f for draw in part.held_out for f in draw])
    )
    return sum(known) / len(known) - sum(unseen) / len(unseen)


def _shifted(bound: AbstractBound, f: Tensor, validation: Tensor) -> Tensor:
    """Scores as log density ratios: mean e^f of negatives one, by a constant read off validation rows.

    Bounds without a ceiling have one best constant near it, found there too; and since no ratio above the number of pairs can
    be seen in so many pairs, neither their constant nor their scores go beyond its logarithm. That is another critic,
    fixed before the pairs are looked at, and the claim holds for every critic.
    """
    off_diagonal = paired_scores(validation).negative
    pairs = off_diagonal.count().sum().log()
    mean = (off_diagonal.logsumexp().logsumexp(dim=0) - pairs).clamp(-pairs, pairs)
    if not isinstance(bound, NWJ | TUBA):
        return f - mean
    highest = math.log(len(f) * (len(f) - 1))

    def best_at(scores: Tensor, shift: float) -> Tensor:
        return (scores - mean).clamp(max=highest) + shift

    found = minimize_scalar(
        lambda c: -float(bound(paired_scores(best_at(validation, c)))), bounds=(-4.0, 4.0), method="bounded"
    )
    return best_at(f, float(found.x))
