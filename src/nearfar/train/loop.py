"""The training loop.

for each epoch:   what the selection knows of all instances is renewed, where it knows something
for each batch:   forward → backward → clip → optimiser → advance → log, probe, save when due
"""

import copy
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from nearfar.core.method import Method
from nearfar.core.schedules import Progress
from nearfar.core.types import Batch
from nearfar.errors import NotFinite, Stopped, UserError
from nearfar.evaluate.held_out import HeldOut
from nearfar.run import checkpoints
from nearfar.run.folder import RunFolder
from nearfar.train.limits import Pace
from nearfar.train.logs import Display, Log, Silence
from nearfar.train.monitors import Diverged, readings
from nearfar.train.rows import finite, held_out_line, held_out_row, train_row
from nearfar.train.saving import Saving, copied
from nearfar.train.stops import StopRequests
from nearfar.train.trainer import Step, Trainer

Result = TypeVar("Result")
HEARD = "knn_top1"  # the score that schedules follow


@dataclass(frozen=True)
class Looks:
    """Whom a run asks: `embed_all` is what `Method.refresh` wants; `probe` and `estimate` look at what was not trained on."""

    embed_all: Callable[[], Tensor]
    probe: Callable[[Method], dict[str, float]] | None = None
    estimate: Callable[[Method, Progress], HeldOut | None] | None = None
    told: Callable[[dict[str, Any]], None] | None = (
        None  # who hears what the probe found, and may end the run
    )
    judge: Callable[[], None] = lambda: None  # by all ranks after each step: whether the data are good enough


def train(
    trainer: Trainer,
    batches: Callable[[int, int], Any],
    folder: Path,
    facts: dict[str, Any],
    display: Display,
    looks: Looks,
    resumed: bool = False,
) -> None:
    """Trains to the end, or raises `Stopped` after saving. `facts` goes into every checkpoint beside the state."""
    log = Log(folder, trainer.step if resumed else -1) if trainer.strategy.is_first else Silence()
    loop = Loop(trainer, folder, facts, display, log, looks)
    stream = batches(trainer.step, trainer.steps)
    try:
        with StopRequests(trainer.settings.max_time) as requests, display, loop.saving:
            if not resumed:
                loop.begin()
            loop.clock = Clock(trainer)
            for batch in stream:
                loop.step(trainer.here(batch), requests)
    except Diverged as diverged:
        with suppress(UserError):  # a full disk is not the reason why this run ends
            dump(trainer, RunFolder(folder).diverged, facts)
        raise Diverged(f"{diverged}; {what_is_kept(folder)}") from None
    finally:
        stream.close()
        log.close()


class Loop:
    """What surrounds a step: renewing, logging, measuring, saving, stopping. Of several ranks the first writes and measures, and all
    do the same at the same step."""

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        facts: dict[str, Any],
        display: Display,
        log: Log | Silence,
        looks: Looks,
    ) -> None:
        self.trainer, self.settings = trainer, trainer.settings
        self.folder, self.facts = folder, facts
        self.display, self.log, self.looks = display, log, looks
        self.clock = Clock(trainer)
        self.saving = Saving()
        self.pace, self.begun = Pace(), time.perf_counter()
        self.overdue = False  # a checkpoint that could not be written is tried again after the next step

    def begin(self) -> None:
        for warning in (*self.trainer.cautions(), self.trainer.never_refreshed()):
            if warning:
                self.say(warning)
        self.measure()
        self.write()

    def step(self, batch: Batch, requests: StopRequests) -> None:
        trainer = self.trainer
        # a function of the state at this step, so a run resumed here does the same again
        self.clock.pause(lambda: trainer.method.refresh(self.looks.embed_all, trainer.progress))
        taken = trainer.train_step(batch)
        self.watch(taken)
        if is_due(trainer, self.settings.probe_every) or self.last:
            begun = time.perf_counter()
            self.clock.pause(self.measure)
            now = time.perf_counter()
            if warning := self.pace.observe(now - begun, now - self.begun):
                self.display.say(warning)  # of this machine, not of the run: it is not logged
        self.looks.judge()
        self.save_when_due(batch, taken, trainer.strategy.first_reason(requests.reason()))

    @property
    def last(self) -> bool:
        return self.trainer.step == self.trainer.steps

    def watch(self, taken: Step) -> None:
        """Logs the step when that is due, and speaks where something goes wrong silently."""
        trainer = self.trainer
        if warning := trainer.motion.observe(taken.norm):
            self.say(warning)
        if trainer.step % self.settings.log_every and trainer.step != 1 and not self.last:
            return
        anchors = next(iter(taken.outcome.encoded.anchors.values()))
        seen = readings(trainer.strategy.all_gather(anchors))
        row = train_row(trainer, taken, seen, self.clock.rate())
        self.log.write(row)
        self.display.show(row)
        warning = trainer.collapse.observe(seen, trainer.progress.fraction)
        if self.last:
            warning = warning or trainer.collapse.last_word(seen)
        if warning:
            self.say(warning)

    def measure(self) -> None:
        """Asks what was not trained on: the held-out estimate, which rank 0 makes while the others wait, and the probe, for which all
        embed a share."""
        with self.trainer.strategy.full_weights(self.trainer.method):
            self._measure()

    def _measure(self) -> None:
        trainer, looks = self.trainer, self.looks
        now = {"step": trainer.step, "epoch": trainer.progress.epoch}
        asked = looks.estimate if trainer.strategy.is_first else None
        found = asked(trainer.method, trainer.progress) if asked is not None else None
        if found is not None and math.isfinite(found.nats):
            self.log.write({"kind": "held-out", **now, **held_out_row(found)})
            if self.last:
                tells = self.trainer.method.encoders.estimate_subject
                self.display.say(held_out_line(found, tells))
        if looks.probe is not None and self.settings.probe_every:
            try:
                scores = looks.probe(trainer.method)
            except NotFinite as problem:  # the weights exploded: what stops the run says more
                self.say(f"the probe was left out: {problem}")
                return
            scores = trainer.strategy.broadcast_json(scores)
            self.log.write({"kind": "probe", **now, **finite(scores)})
            if HEARD in scores:
                trainer.adaptive.observe_score(scores[HEARD])
            if looks.told is not None:
                looks.told({**now, **scores})

    def save_when_due(self, batch: Batch, taken: Step, stop: str | None) -> None:
        trainer = self.trainer
        self.saving.check()
        self.overdue = self.overdue or trainer.step % self.settings.checkpoint_every == 0
        # by the clock of the one that writes: looking whether a state is sound takes all ranks
        late = trainer.strategy.is_first and self.saving.minutes() >= self.settings.checkpoint_minutes
        self.overdue = trainer.strategy.first_reason("late" if late else None) is not None or self.overdue
        if stop or self.overdue or self.last:
            self.overdue = not self.clock.pause(partial(self.save, batch, taken))
        if stop or self.last:
            self.saving.wait()
        if self.last and self.overdue:
            raise trainer.finite.unfinished(trainer.steps)
        if stop and not self.last:
            raise Stopped(stop_sentence(trainer, stop, self.folder, saved=not self.overdue))

    def save(self, batch: Batch, taken: Step) -> bool:
        """What nothing can go on from is not saved: it would push out what something can."""
        if not self.trainer.sound(batch, taken):
            return False
        self.write()
        return True

    def write(self) -> None:
        tensors, own = self.trainer.state()
        if not self.trainer.strategy.is_first:
            return
        self.log.durable()
        self.saving.submit(
            partial(
                checkpoints.save,
                RunFolder(self.folder).checkpoints,
                self.trainer.step,
                copied(tensors),
                copy.deepcopy({**self.facts, **own}),
                keep=self.settings.keep,
            )
        )

    def say(self, message: str) -> None:
        self.log.write({"kind": "event", "step": self.trainer.step, "message": message})
        self.display.say(message)


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
    if trainer.strategy.is_first:
        checkpoints.save(folder, trainer.step, tensors, {**facts, **own}, keep=1)


def is_due(trainer: Trainer, every: float) -> bool:
    """Whether a whole number of `every` epochs ends at this step, or the run does."""
    if not every:
        return False
    period = max(1, round(every * trainer.steps_per_epoch))
    return trainer.step % period == 0 or trainer.step == trainer.steps


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
