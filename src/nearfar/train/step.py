"""One training step: forward → backward → average over ranks → unscale → clip → optimiser → advance.

torch's generators are seeded for each step from (seed, step), which covers dropout and sampled negatives.
Order and augmentation are functions of (seed, epoch, index, view). So a resumed run is bit-equal to one that
was never stopped.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from nearfar.core import optimisers
from nearfar.core.schedules import Progress, at
from nearfar.core.types import Batch, Outcome
from nearfar.run import checkpoints
from nearfar.train.loss_scale import unscale

if TYPE_CHECKING:
    from nearfar.train.session import Session


@dataclass(frozen=True)
class StepOutcome:
    """The result of one step, as hooks get it. `loss` and `grad_norm` are equal on all ranks."""

    computed: Outcome  # what the method computed: loss with graph, embeddings, keys of all ranks
    loss: float
    grad_norm: float  # before clipping
    taken: bool  # False: loss or gradient was not finite, and weights and memories stayed as they were
    progress: Progress  # of the run when the step was computed, which is what schedules read
    batch: Batch

    @property
    def nats(self) -> float | None:
        """The bound's value; None if it does not estimate information."""
        return None if self.computed.nats is None else float(self.computed.nats)

    @property
    def ceiling(self) -> float | None:
        """The largest value the bound can reach, in nats."""
        return self.computed.ceiling

    @cached_property
    def anchors(self) -> Tensor:
        """Embeddings of this rank's anchors, (anchor, dim)."""
        return next(iter(self.computed.encoded.anchors.values()))


def seed_step(seed: int, step: int) -> None:
    """Seeds torch's generators for one step."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1))


def take_step(session: "Session", batch: Batch) -> StepOutcome:
    """Trains on one batch. A step that is not finite leaves weights, slow networks, queues and banks as they
    were; the counters and the scale of the loss move."""
    progress = session.progress
    # clusters are a function of the state at this step, so a resumed run computes the same ones
    session.clock.exclude(lambda: session.method.refresh(session.embed_all, progress))
    optimisers.set_lr(session.optimizer, at(session.lr, progress))
    scale = 1.0 if session.loss_scale is None else session.loss_scale.value
    computed, loss, grad_norm = differentiate(session, batch, progress, scale)
    session.step += 1
    taken = session.finite.accept(loss, grad_norm, session.step, scale)
    if taken:
        session.optimizer.step()
        session.method.advance(computed, progress)
    if session.loss_scale is not None:
        session.loss_scale.update(taken)
    return StepOutcome(computed, loss, grad_norm, taken, progress, batch)


def differentiate(
    session: "Session", batch: Batch, progress: Progress, scale: float
) -> tuple[Outcome, float, float]:
    """The outcome of a batch, its loss, and the norm of the gradients before clipping. The gradients
    themselves are in place, without `scale` and clipped. Loss and norm are equal on all ranks, even if their
    arithmetic differs. `scale`: of the loss during the backward pass."""
    method, strategy = session.method, session.strategy
    seed_step(session.settings.seed, progress.step)
    method.train()
    with nullcontext() if session.compiled is None else session.compiled.active():
        with strategy.explained_errors(), session.autocast():
            outcome = method(batch, progress)
        session.optimizer.zero_grad(set_to_none=True)
        (outcome.loss if scale == 1.0 else outcome.loss * scale).backward()
    loss = outcome.loss.detach().clone()
    strategy.average_gradients(method.parameters(), loss)
    if scale != 1.0:
        unscale(method.parameters(), scale, strategy)
    norm = optimisers.clip(method.parameters(), session.settings.clip, strategy)
    # the only numbers of a step that are read from the device, at once
    loss_value, grad_norm = torch.stack([loss, norm.to(loss)]).tolist()
    return outcome, loss_value, grad_norm


def is_resumable(session: "Session", outcome: StepOutcome) -> bool:
    """Whether a run can continue from the current state: the last step was taken, every number is finite, and
    so are loss and gradient of the same batch with the new weights. A step can explode and leave finite
    weights that give no finite loss. A scale of the loss above 1 is not used: if the gradient overflows with it,
    the next step lowers it.

    Changes nothing: forward is pure, and generators are seeded at every step.
    """
    local = {name: session.strategy.local_tensor(tensor) for name, tensor in session.tensors().items()}
    must_not_save = not session.finite.steady or checkpoints.not_finite(local, session.unbounded) is not None
    if session.strategy.agree_on_failure(must_not_save):
        return False
    scale = 1.0 if session.loss_scale is None else min(1.0, session.loss_scale.value)
    _, loss, grad_norm = differentiate(session, outcome.batch, outcome.progress, scale)
    session.optimizer.zero_grad(set_to_none=True)
    return math.isfinite(loss) and math.isfinite(grad_norm)
