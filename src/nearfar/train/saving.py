"""Checkpoints and stops: what is saved, when, and how a run ends early without losing work.

A background thread writes checkpoints from a copy of the state while training continues.
"""

import copy
import math
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nearfar.errors import Stopped, UserError
from nearfar.run import checkpoints
from nearfar.system.signals import handle_signals, received_signal
from nearfar.train.hooks import Hook
from nearfar.train.step import StepOutcome, is_resumable

if TYPE_CHECKING:
    from nearfar.train.session import Session


class Checkpoints(Hook):
    """Writes a checkpoint every `checkpoint_every` steps, `checkpoint_minutes` minutes, and at the end."""

    def __init__(self) -> None:
        # a state that training cannot continue from is not written; the next step tries again
        self._save_pending = False

    def on_start(self, session: "Session") -> None:
        if not session.resumed:
            self._write(session)

    def on_step(self, session: "Session", outcome: StepOutcome) -> None:
        settings, writer = session.settings, session.writer
        # by the clock of rank 0, which writes: checking a state takes all ranks
        time_is_up = session.strategy.is_first and writer.minutes() >= settings.checkpoint_minutes
        time_is_up = session.agree(save=time_is_up)
        writer.check()
        at_step = session.step % settings.checkpoint_every == 0
        self._save_pending = self._save_pending or time_is_up or at_step
        ends = session.is_over or session.interrupt is not None
        if ends or self._save_pending:
            self._save_pending = not session.clock.exclude(lambda: self._save(session, outcome))
        if ends:
            writer.wait()
        if session.is_over and self._save_pending:
            raise session.finite.unfinished(session.step)
        if session.interrupt is not None and not session.is_over:
            raise Stopped(self._sentence(session, session.interrupt))

    def _save(self, session: "Session", outcome: StepOutcome) -> bool:
        """Writes the state if a run can continue from it; otherwise it would replace a usable one."""
        if not is_resumable(session, outcome):
            return False
        self._write(session)
        return True

    def _write(self, session: "Session") -> None:
        tensors, facts = session.state()
        if not session.strategy.is_first:
            return
        for logger in session.loggers:
            logger.flush()
        save = partial(
            checkpoints.save,
            session.folder.checkpoints,
            session.step,
            copy_tensors(tensors),
            copy.deepcopy(facts),
            keep=session.settings.keep,
        )
        session.writer.submit(save)

    def _sentence(self, session: "Session", reason: str) -> str:
        position = f"stopped by {reason} at step {session.step} of {session.steps}"
        if not self._save_pending:
            return f"{position}; the same command resumes from there"
        saved = checkpoints.newest_step(session.folder.checkpoints)
        return f"{position}; training cannot continue from the current state, so it was not saved; the same command resumes from step {saved}"


class CheckpointWriter:
    """Writes one checkpoint at a time in a thread, whose error the next call raises."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nearfar-save")
        self._pending: Future[Any] | None = None
        self._start = time.monotonic()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for a write in progress, so that nothing is half written and no thread is left."""
        self._pool.shutdown(wait=True)
        if error is None:
            self.wait()

    def submit(self, write: Callable[[], Any]) -> None:
        self.wait()
        self._pending = self._pool.submit(write)
        self._start = time.monotonic()

    def minutes(self) -> float:
        """Minutes since the last write started, or since this object was made."""
        return (time.monotonic() - self._start) / 60

    def wait(self) -> None:
        """Returns when the last write is on the disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def check(self) -> None:
        """Raises the error of a finished write."""
        if self._pending is not None and self._pending.done():
            self.wait()


def copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU, which later steps do not change."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


class Interrupts:
    """Inside, SIGTERM, SIGINT, SIGHUP and the time limit are reasons to stop, read after each step."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self, max_time: float | None) -> None:
        self._end = None if max_time is None else time.monotonic() + max_time
        self._max_time = max_time
        self._signal: str | None = received_signal()
        self._handling = handle_signals(self._receive, *self.SIGNALS)

    def __enter__(self) -> "Interrupts":
        self._handling.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handling.__exit__(kind, error, trace)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C stops at once
        self._signal = signal.Signals(number).name

    def reason(self) -> str | None:
        if self._signal is not None:
            return self._signal
        if self._end is not None and time.monotonic() >= self._end:
            return f"max_time of {self._max_time:g} s"
        return None


# ------------------------------------------------------------------------------------------------ state of
# hooks

_TENSOR, _FLOAT = "__tensor__", "__float__"  # keys of JSON objects that stand for what JSON cannot hold


def hook_names(hooks: Iterable[Hook]) -> dict[str, Hook]:
    """Hooks by class name; a second one of a class is NAME-2."""
    names: dict[str, Hook] = {}
    for hook in hooks:
        name, number = type(hook).__name__, 1
        while (name if number == 1 else f"{name}-{number}") in names:
            number += 1
        names[name if number == 1 else f"{name}-{number}"] = hook
    return names


def pack_states(hooks: Iterable[Hook]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, JSON) of the states of all hooks. Tensors are stored as bytes, for any value."""
    tensors: dict[str, Tensor] = {}

    def pack(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            content = value.detach().cpu().contiguous()
            tensors[path] = content.reshape(-1).view(torch.uint8).clone()
            return {
                _TENSOR: path,
                "dtype": str(content.dtype).removeprefix("torch."),
                "shape": list(content.shape),
            }
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return {_FLOAT: repr(value)}
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise UserError(
                    f"the state of hook {path} has keys that are not text; JSON and tensors can be saved"
                )
            return {key: pack(inner, f"{path}/{key}") for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [pack(inner, f"{path}/{k}") for k, inner in enumerate(value)]
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        raise UserError(
            f"the state of hook {path} has a {type(value).__name__}; only JSON values and tensors can be "
            "saved"
        )

    states = {name: pack(hook.state(), f"hooks/{name}") for name, hook in hook_names(hooks).items()}
    return tensors, {name: state for name, state in states.items() if state}


def unpack_states(hooks: Iterable[Hook], tensors: Mapping[str, Tensor], states: Mapping[str, Any]) -> None:
    """Restores the hooks that have a stored state. Tensors come back on the CPU."""

    def unpack(value: Any) -> Any:
        if isinstance(value, dict) and _TENSOR in value:
            content = tensors[value[_TENSOR]].clone()
            return content.view(getattr(torch, value["dtype"])).reshape(value["shape"])
        if isinstance(value, dict) and _FLOAT in value:
            return float(value[_FLOAT])
        if isinstance(value, dict):
            return {key: unpack(inner) for key, inner in value.items()}
        return [unpack(inner) for inner in value] if isinstance(value, list) else value

    for name, hook in hook_names(hooks).items():
        if name in states:
            hook.restore(unpack(states[name]))
