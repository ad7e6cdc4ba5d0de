"""Hooks that watch for silent failures: collapse, losses that are not finite, gradients of zero.

`embedding_spread` measures, `collapse_warning` judges one measurement, `CollapseMonitor` waits until the
problem lasts. `FiniteMonitor` skips a few steps that are not finite and then stops the run. The state of the
monitors is saved, so a resumed run warns and stops where an uninterrupted one would.
"""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.errors import UserError
from nearfar.train.hooks import Hook, logs_step

if TYPE_CHECKING:
    from nearfar.train.session import Session
    from nearfar.train.step import StepOutcome

POINT_SPREAD = 1e-6  # below this spread embeddings are one point up to float32 rounding


@dataclass(frozen=True)
class Spread:
    """How a batch of embeddings, each scaled to length one, is spread over the sphere."""

    deviation: float  # mean standard deviation of a dimension × √dim: 1 spread evenly, 0 one point
    rank: float  # effective number of directions in which they differ
    mean_cosine: float  # over all pairs of different images: 0 spread evenly, 1 one point
    full_rank: int = 0  # the largest possible `rank` of this many embeddings of this dimension


def embedding_spread(embedding: Float[Tensor, "image dim"]) -> Spread:
    """Computed in float64 on the CPU. NaN if the embeddings are not finite.

    deviation     √dim · mean over dimensions of std, as Chen & He 2021 (arXiv:2011.10566) monitor SimSiam
    rank          exp of the entropy of the normalised singular values (Roy & Vetterli 2007)
    mean_cosine   (|Σz|² - n) / (n (n - 1)), which for unit vectors is one minus the total variance
    """
    n, dim = embedding.shape
    if n < 2:
        raise ValueError(f"embedding_spread needs at least two embeddings; got {n}.")
    z = normalize(embedding.detach().cpu().double(), dim=1)
    full_rank = min(n - 1, dim)
    if not z.isfinite().all():
        return Spread(math.nan, math.nan, math.nan, full_rank)
    variance = z.var(0)  # (dim,)
    return Spread(
        deviation=float(variance.sqrt().mean() * math.sqrt(dim)),
        rank=_effective_rank(z - z.mean(0)),
        mean_cosine=float(1 - variance.sum()),
        full_rank=full_rank,
    )


def _effective_rank(centred: Float[Tensor, "image dim"]) -> float:
    n, dim = centred.shape
    gram = (
        centred.T @ centred if dim < n else centred @ centred.T
    )  # the smaller one; eigenvalues are the same
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    largest = float(singular.max())
    if largest < POINT_SPREAD * math.sqrt(n):
        return 1.0
    # Embeddings are float32: smaller singular values are rounding errors, and there may be many.
    share = singular[singular > largest * max(n, dim) * torch.finfo(torch.float32).eps]
    share = share / share.sum()
    return float(torch.exp(-(share * share.log()).sum()))


def collapse_warning(spread: Spread) -> str | None:
    """What is wrong with these embeddings and what to try; None if nothing is."""
    numbers = f"mean cosine {spread.mean_cosine:.3f}, deviation {spread.deviation:.3f}, effective rank {spread.rank:.1f}"
    if spread.full_rank:
        numbers += f" of {spread.full_rank}"
    if spread.mean_cosine > 0.9:  # BYOL without its predictor stays above this, BYOL does not
        return (
            f"The representation has collapsed: all images are mapped to nearly the same place ({numbers}). "
            "Try a higher encoders.momentum, a lower lr, batch norm in the head, and for a method without "
            "negatives keep both predictor and stop-gradient."
        )
    if spread.rank < _min_rank(spread.full_rank):
        return (
            f"The representation has collapsed to a few directions ({numbers}). "
            "Try batch norm in the head, stronger views.*, a larger batch_size or more negatives, a lower lr."
        )
    if spread.deviation < 0.1:
        return (
            f"The representation hardly varies: few of its dimensions differ between images ({numbers}). "
            "Try a lower weight_decay, a lower lr, batch norm in the head."
        )
    return None


def _min_rank(full_rank: int) -> float:
    """The lowest healthy rank: two directions, or 1 % of many; for very few dimensions a share of them."""
    return max(0.01 * full_rank, min(2.0, 0.6 * full_rank) if full_rank else 2.0)


@dataclass
class _Episode:
    bad_readings: int = 0  # in a row
    warned: bool = False


class CollapseMonitor(Hook):
    """Warns once after `patience` bad readings in a row, and again only after a good one.

    An untrained encoder with ReLUs maps everything to nearly the same direction, so readings in the first
    `warm_up` share of the run do not count. BYOL passes a mean cosine of 0.97 in its first fifty steps and
    recovers, so a problem must last. A run too short for `patience` gets the warning at its end after `few`
    bad readings.
    """

    def __init__(self, patience: int = 10, warm_up: float = 0.05, few: int = 5) -> None:
        self.patience, self.warm_up, self.few = patience, warm_up, few
        self._episode = _Episode()

    def on_step(self, session: "Session", outcome: "StepOutcome") -> None:
        if not logs_step(session):
            return
        spread = session.spread(outcome)
        warning = self.observe(spread, session.progress.fraction)
        if session.is_last_step:
            warning = warning or self.final_warning(spread)
        if warning:
            session.say(warning)

    def observe(self, spread: Spread, fraction: float = 1.0) -> str | None:
        """The warning, if one is due at `fraction` of the run."""
        if fraction < self.warm_up or not math.isfinite(spread.mean_cosine):
            return None
        warning = collapse_warning(spread)
        if warning is None:
            self._episode = _Episode()
            return None
        self._episode.bad_readings += 1
        if self._episode.bad_readings < self.patience or self._episode.warned:
            return None
        self._episode.warned = True
        return warning

    def final_warning(self, spread: Spread) -> str | None:
        """The warning at the end of a short run, if its last few readings were all bad."""
        due = self._episode.bad_readings >= self.few and not self._episode.warned
        warning = collapse_warning(spread) if due else None
        self._episode.warned = self._episode.warned or warning is not None
        return warning

    def state(self) -> dict[str, Any]:
        return asdict(self._episode)

    def restore(self, state: dict[str, Any]) -> None:
        self._episode = _Episode(**state)


class GradientMonitor(Hook):
    """Warns once if the gradient was exactly zero in the first `patience` steps."""

    def __init__(self, patience: int = 5) -> None:
        self.patience = patience
        # steps without a gradient since the first; None after one with a gradient
        self._zero_steps: int | None = 0

    def on_step(self, session: "Session", outcome: "StepOutcome") -> None:
        if warning := self.observe(outcome.grad_norm):
            session.say(warning)

    def observe(self, grad_norm: float) -> str | None:
        if self._zero_steps is None or grad_norm != 0.0:
            self._zero_steps = None
            return None
        self._zero_steps += 1
        if self._zero_steps != self.patience:
            return None
        return (
            f"The gradient was exactly zero in each of the first {self.patience} steps, so nothing is "
            "learned: the objective does not depend on the weights. Check encoders.dim, the bound's margin "
            "or clip, the temperature and the selection."
        )

    def state(self) -> dict[str, Any]:
        return {"zero_steps": self._zero_steps}

    def restore(self, state: dict[str, Any]) -> None:
        self._zero_steps = state["zero_steps"]


class Diverged(UserError):
    """Training stopped because too many steps in a row were not finite, or it ended with some."""


class FiniteMonitor(Hook):
    """Skips steps whose loss or gradient is not finite, at most `allowed` in a row. A gradient that overflows
    because the loss was scaled up is skipped too, but does not count: the scale falls."""

    def __init__(self, allowed: int = 10) -> None:
        self.allowed = allowed
        self._skipped = 0  # in a row, the scale of the loss not being the cause
        self.skipped_steps = 0  # of the run, for any cause
        self._taken_steps = 0
        self._last = (0.0, 0.0)  # loss and gradient norm of the last step

    def accept(self, loss: float, grad_norm: float, step: int, scale: float = 1.0) -> bool:
        """Whether to take a step with this loss and gradient, computed with this scale of the loss. Raises
        `Diverged` after too many skipped steps."""
        self._last = (loss, grad_norm)
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self._skipped = 0
            self._taken_steps += 1
            return True
        self.skipped_steps += 1
        if scale > 1.0 and math.isfinite(loss):
            return False
        self._skipped += 1
        if self._skipped > self.allowed:
            raise Diverged(
                f"Training diverged at step {step}: {self._numbers()}, not finite for {self._skipped} steps "
                f"in a row; {self._advice()}"
            )
        return False

    def unfinished(self, steps: int) -> Diverged:
        """The error of a run whose last state cannot be saved."""
        if self.steady:
            return Diverged(
                f"Training diverged at its last step, {steps}: no loss is finite with the resulting weights; "
                f"{self._advice()}"
            )
        return Diverged(
            f"Training ended without finite steps: the last {self._skipped} of {steps} changed nothing, "
            f"because {self._numbers()}; {self._advice()}"
        )

    def _numbers(self) -> str:
        loss, grad_norm = self._last
        return f"the loss was {loss:.4g} and the gradient norm {grad_norm:.4g}"

    def _advice(self) -> str:
        if self._taken_steps:
            return "try a lower lr, precision=fp32, or clip=1"
        return "no step was finite, so lr is not the cause: try a higher temperature, precision=fp32, another critic or bound"

    @property
    def steady(self) -> bool:
        """Whether the last step was taken, or skipped because of the loss scale alone. The state after any
        other skipped step is not saved."""
        return self._skipped == 0

    def state(self) -> dict[str, Any]:
        return {
            "skipped": self._skipped,
            "taken_steps": self._taken_steps,
            "skipped_steps": self.skipped_steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._skipped, self._taken_steps = state["skipped"], state["taken_steps"]
        self.skipped_steps = state["skipped_steps"]
