"""A run in training: its data, method, optimiser, progress and hooks.

    for each batch:   take_step → hooks: metrics, monitors, evaluation, yours, checkpoint

Everything a run is at step s follows from the checkpoint of step s and the settings (see
`nearfar.train.step`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nearfar.config.building import NO_OBJECTS
from nearfar.config.objects import VIEWS, Objects
from nearfar.config.settings import Settings
from nearfar.core import optimisers
from nearfar.core.buffers import frozen
from nearfar.core.encoding import Encoding
from nearfar.core.method import Method
from nearfar.core.networks import blocks_of, to_channels_last
from nearfar.core.schedules import Adaptive, Progress, Value, as_text, at, cosine
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.core.types import Batch
from nearfar.data import Stream
from nearfar.data.stream import batch_of
from nearfar.errors import UserError, not_one_of
from nearfar.modalities import DataSet, Description
from nearfar.modalities.base import MakeViews
from nearfar.modalities.dataset import grouped
from nearfar.modalities.showing import plain_views
from nearfar.parts.encoders.stages import named_stages
from nearfar.run import checkpoints
from nearfar.run.facts import fits
from nearfar.run.features import shared_batches
from nearfar.run.folder import RunFolder
from nearfar.run.teachers import check_teacher
from nearfar.run.trained import backbones_of, copies_of, fresh_method, views_of
from nearfar.train.compiling import CompiledNetworks
from nearfar.train.display import Display
from nearfar.train.hooks import AdaptiveSchedules, Hook
from nearfar.train.loggers import Logger
from nearfar.train.loss_scale import LossScale
from nearfar.train.monitors import Diverged, FiniteMonitor, Spread, embedding_spread
from nearfar.train.saving import CheckpointWriter, Interrupts, pack_states, unpack_states
from nearfar.train.step import StepOutcome, seed_step, take_step

WorkResult = TypeVar("WorkResult")
CHECKED_ROWS = 4  # instances on which a user's views are tried
SCHEDULE_SAMPLES = 64  # points of a run at which its schedules are checked together


class Session:
    """A method, its data stream and its optimiser at some step of a run.

    `data` is what is trained on, `description` its sizes and statistics. `precision` is that of the encoders'
    arithmetic; with float64 weights and everything else are float64 too, so that differences show mistakes
    and not rounding (`train.equality`).

    Hooks use `step`, `steps`, `progress`, `settings`, `method`, `optimizer`, `strategy`, `log`, `say` and
    `stop`.
    """

    def __init__(
        self,
        settings: Settings,
        data: DataSet,
        description: Description,
        device: torch.device,
        precision: torch.dtype,
        objects: Objects = NO_OBJECTS,
        strategy: Strategy = SINGLE,
    ) -> None:
        self.settings, self.data, self.description = settings, data, description
        self.device, self.precision, self.strategy = device, precision, strategy
        self.views = views_of(settings, description, device, objects)
        if VIEWS in objects:
            check_custom_views(self.views, data, settings)
        self.method = self._build_method(objects)
        self.compiled = self._compile() if settings.compile else None
        self.stream = Stream(
            data,
            self.views,
            settings.batch_size,
            settings.seed,
            workers=settings.workers,
            rank=strategy.rank,
            world=strategy.world,
            device=device,
        )
        self.steps_per_epoch = self.stream.steps_per_epoch
        self.steps = settings.epochs * self.steps_per_epoch
        self.step = 0
        self.seconds = 0.0  # of training, without evaluations and checkpoints
        self.lr: Value = settings.lr
        if not callable(settings.lr):
            self.lr = cosine(settings.lr, 0.0, warmup=min(settings.warmup, settings.epochs / 2))
        self.optimizer = self._build_optimizer()
        # a mask may hold infinities, and so may a running mean that has seen nothing yet
        self.unbounded = [
            f"method/{name}"
            for name, buffer in self.method.named_buffers()
            if checkpoints.not_finite({"": buffer}) is not None
        ]
        self.adaptive = AdaptiveSchedules([self.lr, *settings.schedules().values()], self.steps_per_epoch)
        self.finite = FiniteMonitor(settings.skip_steps)
        self.loss_scale = LossScale() if precision is torch.float16 else None
        self.hooks: list[Hook] = self._own_hooks()
        self.loggers: list[Logger] = []  # of rank 0
        self.facts: dict[str, Any] = {}  # of the data, written into every checkpoint with the state
        # `attach` sets where the run is stored and shown, `run` sets what writes checkpoints and what stops it
        self.folder: RunFolder
        self.display: Display
        self.writer: CheckpointWriter
        self.interrupts: Interrupts
        self.stop_reason: str | None = None
        self.interrupt: str | None = None
        self.resumed = False
        self._spread: tuple[StepOutcome, Spread] | None = None
        self.clock = Clock(self)
        check_schedules(self)

    def _build_method(self, objects: Objects) -> Any:
        settings = self.settings
        method = fresh_method(settings, self.description, objects)
        check_teacher(method.encoders, self.description)
        if settings.batch_norm == "shuffled" and not method.encoders.separate_key_network:
            raise UserError(
                "batch_norm was shuffled, which needs keys with their own network (encoders=momentum, as in "
                "moco and byol); use synchronised, or per-rank"
            )
        if settings.batch_norm == "shuffled" and not settings.modality.views.one_shape:
            raise UserError(
                "batch_norm was shuffled, which exchanges views between ranks, but views of "
                f"{settings.modality.plural} differ in size; use synchronised, or per-rank"
            )
        if settings.freeze is not None:
            freeze_stages(method, settings.freeze, settings.backbone)
        if settings.checkpoint_activations and not blocks_of(method.encoders):
            raise UserError(
                "checkpoint_activations was true, but the networks have no blocks (modules in an nn.Sequential "
                "or nn.ModuleList); use encode_chunk"
            )
        method.encoding = Encoding(
            self.strategy,
            settings.batch_norm,
            settings.encode_chunk,
            settings.checkpoint_activations,
            settings.exchange,
        )
        method.check_exchange()
        for part in method.selections:
            if part.group_by is not None:
                part.assign(torch.from_numpy(grouped(self.data, part.group_by)))
        settings.modality.networks.check_method(self.data, method)
        to_channels_last(method, self.device)
        if self.precision is torch.float64:
            method.double()
        self.strategy.place_weights(cast(nn.Module, method.encoders), self.device)
        return method

    def _build_optimizer(self) -> Optimizer:
        settings = self.settings
        return optimisers.build(
            settings.optimizer,
            self.method,
            lr=at(self.lr),
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            options=settings.optimizer_options,
            scales=optimisers.layer_scales(self.method, backbones_of(self.method), settings.layer_decay),
            strategy=self.strategy,
            precision=self.precision,
        )

    def _compile(self) -> CompiledNetworks:
        settings = self.settings
        refusals = {
            "checkpoint_activations=true": settings.checkpoint_activations,
            "sharding=fsdp": settings.sharding == "fsdp" and self.strategy.is_distributed,
            f"views of {settings.modality.plural}, which differ in size": not settings.modality.views.one_shape,
        }
        for reason, refused in refusals.items():
            if refused:
                raise UserError(f"compile was true, which does not work with {reason}; use compile=false")
        return CompiledNetworks(self.method.encoders)

    # --------------------------------------------------------------------------------------------- progress

    @property
    def progress(self) -> Progress:
        return Progress(self.step, self.steps, self.steps_per_epoch, dict(self.adaptive.moves))

    @property
    def is_last_step(self) -> bool:
        return self.step == self.steps

    @property
    def is_over(self) -> bool:
        """Whether this was the last step, or a hook stopped the run."""
        return self.is_last_step or self.stop_reason is not None

    @property
    def ends_epoch(self) -> bool:
        return self.step % self.steps_per_epoch == 0

    def stop(self, reason: str) -> None:
        """Ends the run after this step, as finished, with a checkpoint that stores the `reason`."""
        self.stop_reason = reason or "no reason given"

    def is_due(self, epochs: float) -> bool:
        """Whether a multiple of `epochs` epochs ends at this step, or the run. Never for 0 epochs."""
        if not epochs:
            return False
        period = max(1, round(epochs * self.steps_per_epoch))
        return self.step % period == 0 or self.is_last_step

    # --------------------------------------------------------------------------------------------- training

    def attach(self, folder: RunFolder, display: Display, hooks: Sequence[Hook]) -> None:
        """Sets where the run is stored and what happens around its steps. `hooks` come after those that every
        step needs."""
        self.folder, self.display = folder, display
        self.hooks = [*self._own_hooks(), *hooks]

    def _own_hooks(self) -> list[Hook]:
        """Those that every step needs."""
        return [self.adaptive, self.finite, *([] if self.loss_scale is None else [self.loss_scale])]

    def run(self) -> None:
        """Trains to the end, or raises `Stopped` after writing a checkpoint."""
        batches = self.stream.batches(self.step, self.steps)
        self.writer = CheckpointWriter()
        try:
            with Interrupts(self.settings.max_time) as self.interrupts, self.display, self.writer:
                for hook in self.hooks:
                    hook.on_start(self)
                self.agree(save=False)
                self.clock = Clock(self)
                for batch in () if self.is_over else batches:
                    self.notify(take_step(self, self.to_device(batch)))
                    if self.is_over:
                        break
                if self.stop_reason is not None and not self.is_last_step:
                    self.say(f"ended at step {self.step} of {self.steps}: {self.stop_reason}")
                for hook in self.hooks:
                    hook.on_end(self)
        except Diverged as diverged:
            with suppress(UserError):  # a full disk is not why this run ends
                self._write_diverged()
            raise Diverged(f"{diverged}; {self._saved_sentence()}") from None
        finally:
            batches.close()
            for logger in self.loggers:
                logger.close()

    def notify(self, outcome: StepOutcome) -> None:
        """Calls every hook in order. The last one saves, so it stores the state of all others."""
        for hook in self.hooks:
            hook.on_step(self, outcome)
            if self.ends_epoch:
                hook.on_epoch(self)

    def agree(self, save: bool) -> bool:
        """One exchange after every step. Lets all ranks stop at the same step and for the same reason: a
        hook's, a signal, or the time limit; tells them which rows cannot be used; and returns whether rank 0
        wants to `save`."""
        interrupt = self.interrupts.reason()
        unusable = self.data.unusable_rows
        has_news = unusable is not None and unusable.has_unshared_rows()
        reasons = [self.stop_reason, interrupt, "time" if save else None, "news" if has_news else None]
        self.stop_reason, interrupt, save_reason, news = self.strategy.first_reasons(reasons)
        self.interrupt = (
            None if self.stop_reason is not None else interrupt
        )  # what a hook stopped is finished
        if news is not None and unusable is not None and self.strategy.is_distributed:
            unusable.sync(self.strategy)
        return save_reason is not None

    def to_device(self, batch: Batch) -> Batch:
        return batch.to(self.device, torch.float64 if self.precision is torch.float64 else None)

    def autocast(self) -> torch.autocast:
        half = self.precision in (torch.bfloat16, torch.float16)
        return torch.autocast(self.device.type, dtype=self.precision if half else None, enabled=half)

    def spread(self, outcome: StepOutcome) -> Spread:
        """How the embeddings of the batch are spread, computed once per step. Every rank must call this."""
        if self._spread is None or self._spread[0] is not outcome:
            self._spread = (outcome, embedding_spread(self.strategy.all_gather(outcome.anchors)))
        return self._spread[1]

    # ----------------------------------------------------------------------------------------------- output

    def log(self, row: Mapping[str, Any]) -> None:
        """Sends a row to every logger (rank 0 has them), with `kind` (default "hook"), `step`, `epoch`."""
        numbers = {key: plain_number(value) for key, value in row.items()}
        complete = {"kind": "hook", "step": self.step, "epoch": self.progress.epoch, **numbers}
        for logger in self.loggers:
            logger.log(complete)

    def say(self, message: str) -> None:
        """Shows a message to the user and logs it."""
        for logger in self.loggers:
            logger.log({"kind": "event", "step": self.step, "message": message})
        self.display.say(message)

    # ------------------------------------------------------------------------------------------------ state

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of method and optimiser, live, and sharded where weights are."""
        tensors = {f"method/{name}": tensor for name, tensor in self.method.state_dict().items()}
        moments = optimisers.state_tensors(self.optimizer, self.method)
        return tensors | {f"optimizer/{name}": tensor for name, tensor in moments.items()}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts of a checkpoint. Every rank must call this; rank 0 gets full tensors."""
        tensors = self.strategy.full_state(self.tensors())
        hook_tensors, hook_states = pack_states(self.hooks)
        facts = {
            **self.facts,
            "step": self.step,
            "optimizer": self.settings.optimizer,
            "seconds": self.seconds,
            "unbounded": self.unbounded,
            "hooks": hook_states,
            "ended": self.stop_reason,
        }
        return tensors | hook_tensors, facts

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Restores all but the hooks, which `restore_hooks` does once they are attached."""
        stored = checkpoints.under(tensors, "method/")
        if not fits(self.method, stored):
            raise ValueError("other tensors than the settings describe")
        self.method.load_state_dict(self.strategy.shard_state(self.method, stored))
        if facts["optimizer"] == self.settings.optimizer:  # the moments of another optimiser are of no use
            moments = checkpoints.under(tensors, "optimizer/")
            optimisers.load_state_tensors(self.optimizer, self.method, moments, self.strategy)
        self.step, self.seconds, self.resumed = facts["step"], facts["seconds"], True

    def restore_hooks(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        unpack_states(self.hooks, tensors, facts["hooks"])

    def _write_diverged(self) -> None:
        """Writes the state at divergence next to the checkpoints, never among them."""
        tensors, facts = self.state()
        if self.strategy.is_first:
            checkpoints.save(self.folder.diverged, self.step, tensors, facts, keep=1)

    def _saved_sentence(self) -> str:
        saved = checkpoints.newest_step(self.folder.checkpoints)
        return f"the checkpoint of step {saved} is kept; the command with other settings and --allow-change resumes from it"

    # ------------------------------------------------------------------------------------------- embeddings

    @torch.no_grad()
    def embed_all(self) -> Tensor:
        """The key network's embedding of every instance in plain view, in order, shared among ranks."""
        settings = self.settings
        share, gather = shared_batches(self.data, settings.batch_size, self.strategy)
        plain_view = settings.parts["views"].plain_view(self.description, self.device)
        with frozen(self.method), self.strategy.full_weights(self.method):
            parts = [
                self.method.embed(self._view_to_device(plain_view.as_views(view, 1)[0])).cpu()
                for view in plain_views(share, plain_view, settings.batch_size, settings.workers)
            ]
        return gather(torch.cat(parts))

    def _view_to_device(self, view: Tensor) -> Tensor:
        return self.to_device(Batch((view,), torch.empty(0, dtype=torch.long))).views[0]

    @torch.no_grad()
    def prefill(self) -> None:
        """Shows the negatives the instances they need before the first step, in plain view."""
        settings = self.settings
        count = min(self.method.negatives.prefill_size(), len(self.data))
        if not count:
            return
        plain_view = settings.parts["views"].plain_view(self.description, self.device)
        rows = self.data.sample(settings.seed, 0, count)
        self.method.train()
        seed_step(settings.seed, 2**40)
        # parts of almost equal size: a last part of one instance would have no batch statistics
        for part in np.array_split(rows, max(1, count // settings.batch_size)):
            share = part[self.strategy.share(len(part))]
            (view,) = plain_view(self.data.load(share), 0, 0, share)
            views = plain_view.as_views(view, self.method.key_views or settings.views["count"])
            batch = replace(batch_of(self.data, views, share), total=len(part))
            self.method.prime(self.to_device(batch))


def freeze_stages(method: Method, names: str, network: str) -> None:
    """Freezes stages of the backbones and of their slow copies. `network`: its name, for an error."""
    requested = [name.strip() for name in names.split(",")]
    for backbone in backbones_of(method):
        for body in copies_of(method, backbone):
            stages = named_stages(body)
            if not stages:
                raise UserError(
                    f"freeze was {names}, but {network} has no stages known here; use a ResNet, a vision "
                    "transformer, ConvNeXt or Swin"
                )
            for name in requested:
                if name not in stages:
                    raise not_one_of("freeze", name, stages)
                method.freeze(*stages[name])


def plain_number(value: Any) -> Any:
    """A number or array of numpy or torch as Python's numbers; anything else as it is."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray | Tensor) else value


class Clock:
    """Instances per second since the last reading, without evaluations and checkpoints."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._start, self._step = time.perf_counter(), session.step

    def rate(self) -> float:
        time_now, step = time.perf_counter(), self._session.step
        elapsed = max(time_now - self._start, 1e-9)
        self._session.seconds += elapsed
        instances = (step - self._step) * self._session.settings.batch_size
        self._start, self._step = time_now, step
        return instances / elapsed

    def exclude(self, work: Callable[[], WorkResult]) -> WorkResult:
        """The result of `work`, whose time does not count."""
        start = time.perf_counter()
        result = work()
        self._start += time.perf_counter() - start
        return result


def check_custom_views(views: MakeViews, data: DataSet, settings: Settings) -> None:
    """Applies a user's views to the first instances, twice: the number of views and rows must fit, and all
    randomness must be a function of (seed, epoch, index)."""
    rows = np.arange(min(CHECKED_ROWS, len(data)))
    first, second = (views(data.load(rows), settings.seed, 0, rows) for _ in range(2))
    count = settings.views["count"]
    shapes = (
        [tuple(view.shape) if isinstance(view, Tensor) else () for view in first]
        if isinstance(first, (tuple, list))
        else None
    )
    if shapes is None or len(shapes) != count or any(not shape or shape[0] != len(rows) for shape in shapes):
        result = type(first).__name__ if shapes is None else f"{len(shapes)} views of shapes {shapes}"
        raise UserError(
            f"views returned {result} for {len(rows)} instances; expected {count} tensors with a row for "
            "each instance (the attribute `count` sets the number of views)"
        )
    if not all(torch.isfinite(view).all() for view in first):
        raise UserError(f"views of the first {len(rows)} instances have numbers that are not finite")
    if not all(torch.equal(x, y) for x, y in zip(first, second, strict=True)):
        raise UserError(
            "views are not deterministic for the same (seed, epoch, index), so no run could be resumed; draw "
            "from these alone (nearfar.core.randomness.uniforms does), or, in a function of one picture, from "
            "the global generators of torch, numpy and Python"
        )


def check_schedules(session: Session) -> None:
    """Refuses negatives that are too few for the batch or a later value of a schedule.

    Adaptive schedules follow loss or score, so only their ends are checked.
    """
    settings, method = session.settings, session.method
    count = settings.views["count"]
    method.certificate(settings.batch_size, count)
    if any(isinstance(schedule, Adaptive) for schedule in settings.schedules().values()):
        return
    for k in range(SCHEDULE_SAMPLES):
        progress = Progress(session.steps * k // SCHEDULE_SAMPLES, session.steps, session.steps_per_epoch)
        method.certificate(settings.batch_size, count, progress)
        if "object" in settings.selection:
            continue
        lower = at(settings.selection.get("lower", 0.0), progress)
        upper = at(settings.selection.get("upper", 1.0), progress)
        if lower > upper:
            raise UserError(
                f"selection.lower, {as_text(settings.selection['lower'])}, is {lower:.3g} at step "
                f"{progress.step} of {progress.steps}, where selection.upper, "
                f"{as_text(settings.selection['upper'])}, is {upper:.3g}; it must never exceed it"
            )
