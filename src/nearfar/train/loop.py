"""The training loop.

    for each epoch:   what the selection knows of all instances is renewed, where it knows something
    for each batch:   forward → backward → clip → optimiser → advance → log, probe, save when due

Everything a run is at step s follows from the checkpoint of step s and the settings: order and augmentation are
functions of (seed, epoch, index, view), and torch's generator is set anew at each step from (seed, step), which
covers dropout and sampled negatives. So resuming is loading, and a resumed run is bit-equal to one never stopped.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from nearfar import optimisers
from nearfar.errors import NotFinite, Stopped, UserError
from nearfar.hardware import peak_memory
from nearfar.held_out import HeldOut
from nearfar.method import Method
from nearfar.run import checkpoints
from nearfar.run.facts import fits
from nearfar.run.folder import RunFolder
from nearfar.schedules import Progress, Value, at, cosine
from nearfar.settings import Settings
from nearfar.train.adaptive import AdaptiveState
from nearfar.train.logs import Display, Log
from nearfar.train.monitors import Collapse, Diverged, Finite, Motion, Readings, readings
from nearfar.train.stops import StopRequests
from nearfar.types import Batch, Cautious, Outcome, Refreshing

Result = TypeVar("Result")


def seed_step(seed: int, step: int) -> None:
    """Sets torch's generators for one step: what dropout and sampled negatives draw is a function of it."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1))


@dataclass(frozen=True)
class Step:
    """What a step found, and where in the run it was computed: what schedules said of it, they said then."""

    outcome: Outcome
    norm: float  # of the gradient
    progress: Progress


class Trainer:
    """A method, its optimiser and its monitors at some step of a run."""

    def __init__(
        self,
        method: Method,
        settings: Settings,
        steps_per_epoch: int,
        device: torch.device,
        precision: torch.dtype,
    ) -> None:
        self.method = method.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.settings, self.device, self.precision = settings, device, precision
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
        )
        self.collapse = Collapse()
        self.finite = Finite(settings.skip_steps)
        self.motion = Motion()
        self.adaptive = AdaptiveState([self.lr, *settings.schedules().values()])
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
        return [part.caution() for part in self.method.selections if isinstance(part, Cautious)]

    def never_refreshed(self) -> str | None:
        """The warning for a selection that will know nobody in this run, so that everyone counts."""
        settings = self.settings
        refreshing = [part for part in self.method.selections if isinstance(part, Refreshing)]
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

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything a checkpoint must hold to go on as if never stopped."""
        tensors = {f"method/{name}": tensor for name, tensor in self.method.state_dict().items()}
        moments = optimisers.state_tensors(self.optimizer, self.method)
        tensors |= {f"optimizer/{name}": tensor for name, tensor in moments.items()}
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
        self.method.load_state_dict(stored)
        if (
            facts["optimizer"] == self.settings.optimizer
        ):  # moments of another optimiser mean nothing to this one
            optimisers.load_state_tensors(
                self.optimizer, self.method, checkpoints.under(tensors, "optimizer/")
            )
        self.step, self.seconds = facts["step"], facts["seconds"]
        self.collapse.restore(facts["collapse"])
        self.finite.restore(facts["finite"])
        self.motion.restore(facts.get("motion", {"still": None}))
        self.adaptive.restore(facts.get("walks", {"moves": {}, "before": {}}))

    def train_step(self, batch: Batch) -> Step:
        """One step. Those that are not finite change nothing."""
        progress = self.progress
        optimisers.set_lr(self.optimizer, at(self.lr, progress))
        outcome, norm = self._differentiated(batch, progress)
        self.step += 1
        loss = float(outcome.loss.detach())
        if self.finite.observe(loss, norm, self.step) == "step":
            self.optimizer.step()
            self.method.advance(outcome, progress)
        self.adaptive.observe_loss(loss)
        return Step(outcome, norm, progress)

    def _differentiated(self, batch: Batch, progress: Progress) -> tuple[Outcome, float]:
        """What the method makes of a batch, its gradients in place, clipped, and their norm before that."""
        seed_step(self.settings.seed, progress.step)
        self.method.train()
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision is torch.bfloat16):
            outcome = self.method(batch, progress)
        self.optimizer.zero_grad(set_to_none=True)
        outcome.loss.backward()
        return outcome, optimisers.clip(self.method.parameters(), self.settings.clip)

    def sound(self, batch: Batch, taken: Step) -> bool:
        """Whether a run can go on from here: the last step counted, every number is finite, and so are loss and gradient of the
        batch at hand under the new weights. A step can explode and leave finite weights with which nothing else is.

        Changes nothing: forward is pure, and generators are set anew at every step.
        """
        if not self.finite.steady or checkpoints.not_finite(self.state()[0], self.unbounded):
            return False
        outcome, norm = self._differentiated(batch, taken.progress)
        self.optimizer.zero_grad(set_to_none=True)
        return math.isfinite(float(outcome.loss.detach())) and math.isfinite(norm)


def train(
    trainer: Trainer,
    batches: Callable[[int, int], Any],
    folder: Path,
    facts: dict[str, Any],
    display: Display,
    embed_all: Callable[[], Tensor],
    probe: Callable[[nn.Module], float] | None = None,
    estimate: Callable[[Method, Progress], HeldOut | None] | None = None,
    resumed: bool = False,
) -> None:
    """Trains to the end, or raises `Stopped` after saving. `facts` goes into every checkpoint beside the state;
    `embed_all` is what `Method.refresh` asks for; `probe` and `estimate` look at what was not trained on."""
    settings = trainer.settings
    log = Log(folder, trainer.step if resumed else -1)

    def save(batch: Batch, taken: Step) -> bool:
        """What nothing can go on from is not saved: it would push out what something can."""
        if not trainer.sound(batch, taken):
            return False
        write()
        return True

    def write() -> None:
        log.durable()
        tensors, own = trainer.state()
        checkpoints.save(
            RunFolder(folder).checkpoints, trainer.step, tensors, {**facts, **own}, keep=settings.keep
        )

    def say(message: str) -> None:
        log.write({"kind": "event", "step": trainer.step, "message": message})
        display.say(message)

    def measure() -> None:
        now = {"step": trainer.step, "epoch": trainer.progress.epoch}
        found = estimate(trainer.method, trainer.progress) if estimate is not None else None
        if found is not None and math.isfinite(found.nats):
            log.write({"kind": "held-out", **now, **held_out_row(found)})
            if trainer.step == trainer.steps:
                display.say(held_out_line(found))
        if probe is not None and settings.probe_every:
            try:
                score = probe(trainer.method)
            except NotFinite as problem:  # the weights exploded: what stops the run says more
                say(f"the probe was left out: {problem}")
                return
            log.write({"kind": "probe", **now, "knn_top1": score})
            trainer.adaptive.observe_score(score)

    stream = batches(trainer.step, trainer.steps)
    try:
        with StopRequests(settings.max_time) as requests, display:
            if not resumed:
                for warning in (*trainer.cautions(), trainer.never_refreshed()):
                    if warning:
                        say(warning)
                measure()
                write()
            clock, overdue = Clock(trainer), False
            for drawn in stream:
                batch = drawn.to(trainer.device)
                # a function of the state at this step, so a run resumed here does the same again
                clock.pause(lambda: trainer.method.refresh(embed_all, trainer.progress))
                taken = trainer.train_step(batch)
                if warning := trainer.motion.observe(taken.norm):
                    say(warning)
                due = trainer.step % settings.log_every == 0 or trainer.step in (1, trainer.steps)
                if due:
                    seen = readings(next(iter(taken.outcome.encoded.anchors.values())))
                    row = train_row(trainer, taken, seen, clock.rate())
                    log.write(row)
                    display.show(row)
                    warning = trainer.collapse.observe(seen, trainer.progress.fraction)
                    if trainer.step == trainer.steps:
                        warning = warning or trainer.collapse.last_word(seen)
                    if warning:
                        say(warning)
                if is_due(trainer, settings.probe_every) or trainer.step == trainer.steps:
                    clock.pause(measure)
                stop = requests.reason()
                last = trainer.step == trainer.steps
                overdue = overdue or trainer.step % settings.checkpoint_every == 0
                if stop or overdue or last:
                    # what could not be saved is tried again after the next step
                    overdue = not clock.pause(partial(save, batch, taken))
                if last and overdue:
                    raise trainer.finite.unfinished(trainer.steps)
                if stop and not last:
                    raise Stopped(stop_sentence(trainer, stop, folder, saved=not overdue))
    except Diverged as diverged:
        with suppress(UserError):  # a full disk is not the reason why this run ends
            dump(trainer, RunFolder(folder).diverged, facts)
        raise Diverged(f"{diverged}; {what_is_kept(folder)}") from None
    finally:
        stream.close()
        log.close()


def stop_sentence(trainer: Trainer, reason: str, folder: Path, saved: bool) -> str:
    where = f"stopped by {reason} at step {trainer.step} of {trainer.steps}"
    if saved:
        return f"{where}; the same command resumes from there"
    kept = checkpoints.newest_step(RunFolder(folder).checkpoints)
    return f"{where}, where nothing was finite to be saved; the same command resumes from step {kept}"


def what_is_kept(folder: Path) -> str:
    kept = checkpoints.newest_step(RunFolder(folder).checkpoints)
    return f"the checkpoint of step {kept} is kept, and the command with other settings and --allow-change resumes from it"


def dump(trainer: Trainer, folder: Path, facts: dict[str, Any]) -> None:
    """The state at divergence, beside the checkpoints and never among them."""
    tensors, own = trainer.state()
    checkpoints.save(folder, trainer.step, tensors, {**facts, **own}, keep=1)


def is_due(trainer: Trainer, every: float) -> bool:
    """Whether a whole number of `every` epochs ends at this step, or the run does."""
    if not every:
        return False
    period = max(1, round(every * trainer.steps_per_epoch))
    return trainer.step % period == 0 or trainer.step == trainer.steps


def train_row(trainer: Trainer, taken: Step, seen: Readings, rate: float) -> dict[str, Any]:
    """What is logged of a step; what is not finite is null, which JSON can hold."""
    outcome, scheduled = taken.outcome, {"lr": trainer.lr, **trainer.settings.schedules()}
    numbers = {
        "loss": float(outcome.loss.detach()),
        "nats": math.nan if outcome.nats is None else float(outcome.nats),
        "ceiling": math.nan if outcome.ceiling is None else outcome.ceiling,
        **({} if outcome.prior is None else {"prior": float(outcome.prior.detach())}),
        "images_per_s": rate,
        **({} if (most := peak_memory(trainer.device)) is None else {"peak_memory": most}),
        "grad_norm": taken.norm,
        "deviation": seen.deviation,
        "rank": seen.rank,
        "mean_cosine": seen.mean_cosine,
        **{name: at(value, taken.progress) for name, value in scheduled.items()},
        **trainer.method.learnt(),
    }
    finite = {key: value if math.isfinite(value) else None for key, value in numbers.items()}
    return {"kind": "train", "step": trainer.step, "epoch": trainer.progress.epoch, **finite}


def held_out_row(found: HeldOut) -> dict[str, Any]:
    certificate = found.certificate
    numbers = {"nats": found.nats, "error": found.error, "ceiling": certificate.ceiling}
    finite = {k: v if v is not None and math.isfinite(v) else None for k, v in numbers.items()}
    return {
        **finite,
        "instances": found.instances,
        "status": certificate.status,
        "condition": certificate.condition,
    }


def held_out_line(found: HeldOut) -> str:
    certificate = found.certificate
    ceiling = "" if certificate.ceiling is None else f", ceiling {certificate.ceiling:.3g}"
    return (
        f"on {found.instances} held-out instances: {found.nats:.3f} ± {found.error:.3f} nats shared by two views "
        f"({certificate.status} lower bound{ceiling})"
        if certificate.status == "proven"
        else f"on {found.instances} held-out instances: {found.nats:.3f} nats, {certificate.status}: {certificate.condition}"
    )


class Clock:
    """Images per second since the last reading, probes and saves left out."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._since, self._step = time.perf_counter(), trainer.step

    def rate(self) -> float:
        now, step = time.perf_counter(), self._trainer.step
        elapsed = max(now - self._since, 1e-9)
        self._trainer.seconds += elapsed
        images = (step - self._step) * self._trainer.settings.batch_size
        self._since, self._step = now, step
        return images / elapsed

    def pause(self, work: Callable[[], Result]) -> Result:
        begun = time.perf_counter()
        result = work()
        self._since += time.perf_counter() - begun
        return result
