"""A method in training: one step, the state that a checkpoint holds, and whether a run can go on from it.

Everything a run is at step s follows from the checkpoint of step s and the settings: order and augmentation are
functions of (seed, epoch, index, view), and torch's generator is set anew at each step from (seed, step), which
covers dropout and sampled negatives. So resuming is loading, and a resumed run is bit-equal to one never stopped.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nearfar.config.settings import Settings
from nearfar.core import optimisers
from nearfar.core.layout import to_channels_last
from nearfar.core.method import Method
from nearfar.core.schedules import Progress, Value, at, cosine
from nearfar.core.types import Batch, Outcome
from nearfar.run import checkpoints
from nearfar.run.facts import fits
from nearfar.run.trained import backbones_of
from nearfar.train.adaptive import AdaptiveState
from nearfar.train.monitors import Collapse, Finite, Motion


def seed_step(seed: int, step: int) -> None:
    """Sets torch's generators for one step: what dropout and sampled negatives draw is a function of it."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1))


@dataclass(frozen=True)
class Step:
    """What a step found, and where in the run it was computed: what schedules said of it, they said then."""

    outcome: Outcome
    loss: float  # the same on all ranks
    norm: float  # of the gradient
    progress: Progress


class Trainer:
    """A method, its optimiser and its monitors at some step of a run. `precision` is that of the encoders' arithmetic; with float64
    weights and all else are too, so that differences tell of mistakes and not of rounding (`equality`)."""

    def __init__(
        self,
        method: Method,
        settings: Settings,
        steps_per_epoch: int,
        device: torch.device,
        precision: torch.dtype,
    ) -> None:
        self.method = method
        to_channels_last(method, device)
        self.settings, self.device, self.precision = settings, device, precision
        self.strategy = method.encoding.strategy
        if precision is torch.float64:
            self.method.double()
        self.strategy.place_weights(cast(nn.Module, method.encoders), device)
        self.steps_per_epoch = steps_per_epoch
        self.steps = settings.epochs * steps_per_epoch
        self.step = 0
        self.seconds = 0.0
        self.lr: Value = settings.lr
        if not callable(settings.lr):
            self.lr = cosine(settings.lr, 0.0, warmup=min(settings.warmup, settings.epochs / 2))
        self.optimizer = optimisers.build(
            settings.optimizer,
            self.method,
            lr=at(self.lr),
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            options=settings.optimizer_options,
            scales=optimisers.layer_scales(self.method, backbones_of(self.method), settings.layer_decay),
            strategy=self.strategy,
        )
        self.collapse = Collapse()
        self.finite = Finite(settings.skip_steps)
        self.motion = Motion()
        self.adaptive = AdaptiveState([self.lr, *settings.schedules().values()], self.steps_per_epoch)
        # a mask may hold infinities, and so does a running mean that has seen nothing yet
        self.unbounded = [
            f"method/{name}"
            for name, held in self.method.named_buffers()
            if checkpoints.not_finite({"": held}) is not None
        ]

    @property
    def progress(self) -> Progress:
        return Progress(self.step, self.steps, self.steps_per_epoch, dict(self.adaptive.moves))

    def cautions(self) -> list[str | None]:
        """What the selection has to say before the first step."""
        return [part.startup_warning() for part in self.method.selections]

    def never_refreshed(self) -> str | None:
        """The warning for a selection that will know nobody in this run, so that everyone counts."""
        settings = self.settings
        refreshing = [part for part in self.method.selections if part.refreshes]
        starts = (
            Progress(epoch * self.steps_per_epoch, self.steps, self.steps_per_epoch)
            for epoch in range(settings.epochs)
        )
        if not refreshing or any(part.due(start) for start in starts for part in refreshing):
            return None
        said = ((key, settings.selection.get(key)) for key in ("after", "every"))
        own = ", ".join(f"selection.{key}={value}" for key, value in said if value is not None)
        return (
            f"The selection never knows its clusters in so short a run (epochs={settings.epochs}, {own}), so every candidate counts: "
            "train longer, or renew them sooner."
        )

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state, live, and spread over ranks where weights are."""
        tensors = {f"method/{name}": tensor for name, tensor in self.method.state_dict().items()}
        moments = optimisers.state_tensors(self.optimizer, self.method)
        return tensors | {f"optimizer/{name}": tensor for name, tensor in moments.items()}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything a checkpoint must hold to go on as if never stopped. Where weights are spread, every rank must ask, and the first
        alone gets all of it: it is the one that writes."""
        tensors = self.strategy.full_state(self.tensors())
        facts = {
            "step": self.step,
            "optimizer": self.settings.optimizer,
            "seconds": self.seconds,
            "collapse": self.collapse.state(),
            "finite": self.finite.state(),
            "motion": self.motion.state(),
            "walks": self.adaptive.state(),
            "unbounded": self.unbounded,
        }
        return tensors, facts

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        stored = checkpoints.under(tensors, "method/")
        if not fits(self.method, stored):
            raise ValueError("other tensors than the settings describe")
        self.method.load_state_dict(self.strategy.shard_state(self.method, stored))
        if (
            facts["optimizer"] == self.settings.optimizer
        ):  # moments of another optimiser mean nothing to this one
            optimisers.load_state_tensors(
                self.optimizer, self.method, checkpoints.under(tensors, "optimizer/"), self.strategy
            )
        self.step, self.seconds = facts["step"], facts["seconds"]
        self.collapse.restore(facts["collapse"])
        self.finite.restore(facts["finite"])
        self.motion.restore(facts.get("motion", {"still": None}))
        self.adaptive.restore(facts.get("walks", {"moves": {}, "before": {}}))

    def here(self, batch: Batch) -> Batch:
        """A batch as the method takes it."""
        return batch.to(self.device, torch.float64 if self.precision is torch.float64 else None)

    def train_step(self, batch: Batch) -> Step:
        """One step. Those that are not finite change nothing."""
        progress = self.progress
        optimisers.set_lr(self.optimizer, at(self.lr, progress))
        outcome, loss, norm = self._differentiated(batch, progress)
        self.step += 1
        if self.finite.observe(loss, norm, self.step) == "step":
            self.optimizer.step()
            self.method.advance(outcome, progress)
        self.adaptive.observe_loss(loss)
        return Step(outcome, loss, norm, progress)

    def _differentiated(self, batch: Batch, progress: Progress) -> tuple[Outcome, float, float]:
        """What the method makes of a batch, its loss, and the norm of its gradients, which are in place and clipped: the same on all
        ranks, also where their arithmetic is not."""
        seed_step(self.settings.seed, progress.step)
        self.method.train()
        half = torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.precision is torch.bfloat16
        )
        with self.strategy.explained_errors(), half:
            outcome = self.method(batch, progress)
        self.optimizer.zero_grad(set_to_none=True)
        outcome.loss.backward()
        loss = outcome.loss.detach().clone()
        self.strategy.average_gradients(self.method.parameters(), loss)
        return (
            outcome,
            float(loss),
            optimisers.clip(self.method.parameters(), self.settings.clip, self.strategy),
        )

    def sound(self, batch: Batch, taken: Step) -> bool:
        """Whether a run can go on from here: the last step counted, every number is finite, and so are loss and gradient of the
        batch at hand under the new weights. A step can explode and leave finite weights with which nothing else is.

        Changes nothing: forward is pure, and generators are set anew at every step.
        """
        local = {name: self.strategy.local_tensor(tensor) for name, tensor in self.tensors().items()}
        broken = not self.finite.steady or checkpoints.not_finite(local, self.unbounded) is not None
        if self.strategy.agree_on_failure(broken):
            return False
        _, loss, norm = self._differentiated(batch, taken.progress)
        self.optimizer.zero_grad(set_to_none=True)
        return math.isfinite(loss) and math.isfinite(norm)
