"""What goes wrong silently: an encoder that maps everything to one place, a loss that is no longer a number.

`readings` measures, `complaint` judges one measurement, `Collapse` waits until a complaint lasts before it speaks.
`Finite` lets a few non-finite steps pass unused and then stops the run. What both remember is a few numbers that
go into the checkpoint, so a resumed run speaks and stops where the uninterrupted one would.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.errors import UserError

_POINT = 1e-6  # spread below which embeddings are one point: what is left is float32 rounding


@dataclass(frozen=True)
class Readings:
    """How a batch of embeddings, each scaled to length one, is spread over the sphere."""

    deviation: float  # mean standard deviation of a dimension × √dim: 1 spread evenly, 0 one point
    rank: float  # effective number of directions in which they differ
    mean_cosine: float  # over all pairs of different images: 0 spread evenly, 1 one point
    full_rank: int = 0  # the largest `rank` so many embeddings of such a dimension could have


def readings(embedding: Float[Tensor, "image dim"]) -> Readings:
    """Measured in float64 on the CPU, which every device can hand over to. NaN where the embeddings are not finite.

    deviation     √dim · mean over dimensions of std, as Chen & He 2021 (arXiv:2011.10566) watch SimSiam
    rank          exp of the entropy of the normalised singular values (Roy & Vetterli 2007)
    mean_cosine   (|Σz|² - n) / (n (n - 1)), which for unit vectors is one minus the total variance
    """
    n, dim = embedding.shape
    if n < 2:
        raise ValueError(f"Readings need at least two embeddings; there were {n}.")
    z = normalize(embedding.detach().cpu().double(), dim=1)
    full_rank = min(n - 1, dim)
    if not z.isfinite().all():
        return Readings(math.nan, math.nan, math.nan, full_rank)
    variance = z.var(0)  # (dim,)
    return Readings(
        deviation=float(variance.sqrt().mean() * math.sqrt(dim)),
        rank=_effective_rank(z - z.mean(0)),
        mean_cosine=float(1 - variance.sum()),
        full_rank=full_rank,
    )


def _effective_rank(centred: Float[Tensor, "image dim"]) -> float:
    n, dim = centred.shape
    gram = centred.T @ centred if dim < n else centred @ centred.T  # the smaller one has the same eigenvalues
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    largest = float(singular.max())
    if largest < _POINT * math.sqrt(n):
        return 1.0
    # Embeddings come in float32: smaller singular values are rounding, and there may be many of them.
    share = singular[singular > largest * max(n, dim) * torch.finfo(torch.float32).eps]
    share = share / share.sum()
    return float(torch.exp(-(share * share.log()).sum()))


def complaint(seen: Readings) -> str | None:
    """What is wrong with these readings and what to try; None if nothing is."""
    numbers = (
        f"mean cosine {seen.mean_cosine:.3f}, deviation {seen.deviation:.3f}, effective rank {seen.rank:.1f}"
    )
    if seen.full_rank:
        numbers += f" of {seen.full_rank}"
    if seen.mean_cosine > 0.9:  # BYOL without its predictor stays above this, the real one comes back below
        return (
            f"The representation has collapsed: all images are mapped to nearly the same place ({numbers}). "
            "Try a higher encoders.momentum, a lower lr, batch norm in the head, and for a method without "
            "negatives keep both predictor and stop-gradient."
        )
    if seen.rank < _least_rank(seen.full_rank):
        return (
            f"The representation has collapsed to a few directions ({numbers}). "
            "Try batch norm in the head, stronger views.*, a larger batch_size or more negatives, a lower lr."
        )
    if seen.deviation < 0.1:
        return (
            f"The representation hardly varies: few of its dimensions tell images apart ({numbers}). "
            "Try a lower weight_decay, a lower lr, batch norm in the head."
        )
    return None


def _least_rank(full_rank: int) -> float:
    """Below two directions, or one in a hundred of many; of very few dimensions, below most of one."""
    return max(0.01 * full_rank, min(2.0, 0.6 * full_rank) if full_rank else 2.0)


@dataclass
class _Episode:
    bad: int = 0  # complaints in a row
    spoken: bool = False


class Collapse:
    """Speaks once when `patience` readings in a row were bad, and again only after a good one.

    An untrained encoder with ReLUs maps everything to nearly the same direction, so nothing counts before the
    share `warm_up` of the run is over; BYOL passes a mean cosine of 0.97 in its first fifty steps and comes back, so
    a complaint must last.
    """

    def __init__(self, patience: int = 10, warm_up: float = 0.05, few: int = 5) -> None:
        self.patience, self.warm_up, self.few = patience, warm_up, few
        self._episode = _Episode()

    def observe(self, seen: Readings, fraction: float = 1.0) -> str | None:
        """The warning due at `fraction` of the run, if one is."""
        if fraction < self.warm_up or not math.isfinite(seen.mean_cosine):
            return None
        said = complaint(seen)
        if said is None:
            self._episode = _Episode()
            return None
        self._episode.bad += 1
        if self._episode.bad < self.patience or self._episode.spoken:
            return None
        self._episode.spoken = True
        return said

    def last_word(self, seen: Readings) -> str | None:
        """What is due at the end of a run too short for patience, if its last few readings were all bad."""
        said = complaint(seen) if self._episode.bad >= self.few and not self._episode.spoken else None
        self._episode.spoken = self._episode.spoken or said is not None
        return said

    def state(self) -> dict[str, Any]:
        return asdict(self._episode)

    def restore(self, state: dict[str, Any]) -> None:
        self._episode = _Episode(**state)


class Motion:
    """Speaks once if the gradient was exactly zero in the first `patience` steps: then no weight was moved by the objective."""

    def __init__(self, patience: int = 5) -> None:
        self.patience = patience
        self._still: int | None = 0  # steps without a gradient since the first; None once there was one

    def observe(self, grad_norm: float) -> str | None:
        if self._still is None or grad_norm != 0.0:
            self._still = None
            return None
        self._still += 1
        if self._still != self.patience:
            return None
        return (
            f"The gradient was exactly zero in each of the first {self.patience} steps, so nothing is learned: the objective does not "
            "depend on the weights. Look at encoders.dim, the bound's margin or clip, the temperature and the selection."
        )

    def state(self) -> dict[str, Any]:
        return {"still": self._still}

    def restore(self, state: dict[str, Any]) -> None:
        self._still = state["still"]


class Diverged(UserError):
    """Training stopped because too many steps in a row were not finite, or ended with some."""


class Finite:
    """Tells the loop to leave out steps whose loss or gradient is not finite, at most `allowed` in a row."""

    def __init__(self, allowed: int = 10) -> None:
        self.allowed = allowed
        self._bad = 0  # in a row
        self._taken = 0
        self._seen = (0.0, 0.0)  # loss and gradient norm of the last one

    def observe(self, loss: float, grad_norm: float, step: int) -> Literal["step", "skip"]:
        self._seen = (loss, grad_norm)
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self._bad = 0
            self._taken += 1
            return "step"
        self._bad += 1
        if self._bad > self.allowed:
            raise Diverged(
                f"Training diverged at step {step}: {self._numbers()}, not finite for {self._bad} steps in a row; {self._advice()}"
            )
        return "skip"

    def unfinished(self, steps: int) -> Diverged:
        """What to say of a run whose last state cannot be saved."""
        if self.steady:
            return Diverged(
                f"Training diverged at its last step, {steps}: with the weights it made, nothing is finite; {self._advice()}"
            )
        return Diverged(
            f"Training ended without finite steps: the last {self._bad} of {steps} changed nothing, because {self._numbers()}; "
            f"{self._advice()}"
        )

    def _numbers(self) -> str:
        loss, grad_norm = self._seen
        return f"the loss was {loss:.4g} and the gradient norm {grad_norm:.4g}"

    def _advice(self) -> str:
        if self._taken:
            return "try a lower lr, precision=fp32, or clip=1"
        return "it was so from the first step on, so lr is not the cause: try a higher temperature, precision=fp32, another critic or bound"

    @property
    def steady(self) -> bool:
        """Whether the last step was finite; a state after one that was not is no checkpoint."""
        return self._bad == 0

    def state(self) -> dict[str, Any]:
        return {"bad": self._bad, "taken": self._taken}

    def restore(self, state: dict[str, Any]) -> None:
        # runs from before they were counted have taken all they did not skip
        self._bad, self._taken = state["bad"], state.get("taken", 1)
