"""Which bound is measured, on which arrangement of the unseen samples, and why that one."""

from dataclasses import dataclass
from typing import Literal

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from nearfar import bounds
from nearfar.bounds import (
    NWJ,
    TUBA,
    UBA,
    AlphaCPC,
    BarberAgakov,
    InfoNCE,
    MultiLabelCPC,
    smallest_proven_alpha,
)
from nearfar.errors import UserError
from nearfar.estimate.measure import (
    Measured,
    Trial,
    average,
    in_batch_trial,
    independent_trials,
    measured,
    value,
)
from nearfar.scores import paired_scores
from nearfar.types import Bound

Contrast = Literal["batch", "independent"]
POOLED_NEGATIVES = 7  # per anchor where one sum runs over all: the ceiling needs many in all, not each
ESTIMATES = ("infonce", "ml-cpc", "alpha-cpc", "nwj", "tuba", "dv", "smile", "uba")


@dataclass(frozen=True)
class Part:
    """One fold: scores of every pair of its unseen samples, by block, of its validation samples, and of those its
    critic learned from."""

    held_out: list[Tensor]
    validation: Tensor
    learned: list[Tensor]


def learning_objective(bound: str | Bound) -> Bound:
    """What the critic climbs while it learns. Every bound here is best at the same critic, the log of the density
    ratio; InfoNCE finds it with the least noise, unless the user asks for one that can rise higher."""
    return bound if isinstance(bound, AlphaCPC | MultiLabelCPC) else InfoNCE()


def candidate_bounds(bound: str | Bound, negatives: Contrast, samples: int) -> dict[str, Bound]:
    """The bounds to choose from, by name, for held-out blocks of so many samples."""
    if not isinstance(bound, str):
        if isinstance(bound, type) or not hasattr(bound, "certificate"):
            raise UserError(
                f"bound was {bound!r}; allowed are auto, {', '.join(ESTIMATES)}, or a bound such as nf.InfoNCE()"
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
        if certificate.status == "objective only" or isinstance(one, BarberAgakov):
            raise UserError(
                f"bound was {name}, which is no estimate of information; allowed are auto, {', '.join(ESTIMATES)}"
            )
    return chosen


def named_bound(name: str, alpha: float | None) -> str | Bound:
    """A bound by name and, for those that have one, its alpha: as words on a command line give them."""
    if alpha is None:
        return name
    if name not in ("ml-cpc", "alpha-cpc"):
        raise UserError(f"alpha was {alpha:g} with bound {name}; only ml-cpc and alpha-cpc have an alpha")
    return MultiLabelCPC(alpha) if name == "ml-cpc" else AlphaCPC(alpha)


def _by_name(name: str, negatives: Contrast, samples: int) -> Bound:
    if name not in bounds.PARTS:
        raise UserError(f"bound was {name!r}; allowed are auto, {', '.join(ESTIMATES)}, or a bound")
    if name != "ml-cpc":
        return bounds.PARTS[name]()
    per_anchor = samples - 1 if negatives == "batch" else _per_anchor(MultiLabelCPC(), samples)
    anchors = samples if negatives == "batch" else samples // (1 + per_anchor)
    return MultiLabelCPC(smallest_proven_alpha(anchors, per_anchor))


def _per_anchor(bound: Bound, samples: int) -> int:
    """Negatives for each anchor when they may not be shared: many where each anchor has a sum of its own."""
    alone = isinstance(bound, InfoNCE | AlphaCPC | UBA)
    return max(1, samples // 8 - 1 if alone else min(POOLED_NEGATIVES, samples // 2 - 1))


def trials(bound: Bound, negatives: Contrast, samples: int, seed: int, place: torch.device) -> list[Trial]:
    """How a block of so many unseen samples is arranged into anchors and negatives."""
    if negatives == "batch":
        return [in_batch_trial(samples, place)]
    per_anchor = _per_anchor(bound, samples)
    # as many anchors in all as twice the samples: beyond that arrangements repeat what they have said
    return independent_trials(samples, per_anchor, 2 * (1 + per_anchor), seed, place)


def chosen_bound(
    candidates: dict[str, Bound], parts: list[Part], negatives: Contrast, seed: int
) -> tuple[Bound, str]:
    """The first candidate, unless a later one is clearly above it on validation data; and why.

    All are lower bounds, so the higher is the tighter; but one without a ceiling must show it beyond its own error.
    """
    if len(candidates) == 1:
        return next(iter(candidates.values())), "as asked"
    found = {name: _on_validation(bound, parts, negatives, seed) for name, bound in candidates.items()}
    best = next(iter(found))
    for name, one in found.items():
        if one.nats - one.error > found[best].nats:
            best = name
    values = ", ".join(f"{name} {one.nats:.4f} ± {one.error:.4f}" for name, one in found.items())
    return candidates[best], f"on validation data {values}"


def _on_validation(bound: Bound, parts: list[Part], negatives: Contrast, seed: int) -> Measured:
    return average([measured_blocks(bound, [p.validation], p.validation, negatives, seed) for p in parts])


def measured_blocks(
    bound: Bound, blocks: list[Tensor], validation: Tensor, negatives: Contrast, seed: int
) -> Measured:
    shift = _shift(bound, validation)
    return average(
        [measured(bound, f, trials(bound, negatives, len(f), seed, f.device), shift) for f in blocks]
    )


def optimism(bound: Bound, parts: list[Part], negatives: Contrast, seed: int) -> float:
    """How much higher the bound is on samples a critic learned from than on unseen ones.

    Each sample counts in both means, so what is left is what fitting did: half of it lifted the one, and about as
    much is missing from the other (Akaike's argument), which the truth may be above.
    """
    gaps = []
    for part in parts:
        shift = _shift(bound, part.validation)
        known, unseen = (
            [value(bound, f, trials(bound, negatives, len(f), seed, f.device), shift) for f in blocks]
            for blocks in (part.learned, part.held_out)
        )
        gaps.append(sum(known) / len(known) - sum(unseen) / len(unseen))
    return max(0.0, sum(gaps) / len(gaps))


def _shift(bound: Bound, f: Tensor) -> float:
    """The constant that brings scores to log density ratios (mean e^f of negatives one), as read off validation
    data; bounds without a ceiling have one best constant near it, found there too."""
    off_diagonal = paired_scores(f).negative
    mean = off_diagonal.logsumexp().logsumexp(dim=0) - off_diagonal.count().sum().log()
    if not isinstance(bound, NWJ | TUBA):
        return -float(mean)
    found = minimize_scalar(
        lambda c: -float(bound(paired_scores(f - mean + c))), bounds=(-4.0, 4.0), method="bounded"
    )
    return float(found.x) - float(mean)
