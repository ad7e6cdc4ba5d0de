"""What happens around a step. A hook is one class; `nf.pretrain(..., hooks=[MyHook()])` adds it to a run.

    class StopAtLoss(nf.Hook):
        def on_step(self, session, outcome):
            if outcome.loss < 0.1:
                session.stop("the loss is below 0.1")

The rest of this file are the hooks of every run: schedules, metrics, evaluation.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from nearfar.core.method import Method
from nearfar.core.schedules import Adaptive, OnStall, Plateau, Progress, at
from nearfar.errors import NotFinite, UserError
from nearfar.evaluate.held_out import HeldOutNats
from nearfar.system.hardware import peak_memory

if TYPE_CHECKING:
    from nearfar.train.session import Session
    from nearfar.train.step import StepOutcome


class Hook:
    """Base class of what happens around steps. Every rank calls its own hooks, in order.

    The state is saved in checkpoints and restored before `on_start`, matched by class name.
    """

    def on_start(self, session: "Session") -> None:
        """Called before the first step of a new run (`session.step` is 0) or of a resumed one."""

    def on_step(self, session: "Session", outcome: "StepOutcome") -> None:
        """Called after every step. `outcome` has `loss`, `grad_norm`, `nats`, `ceiling` and `computed`."""

    def on_epoch(self, session: "Session") -> None:
        """Called after `on_step` of the last step of every epoch."""

    def on_end(self, session: "Session") -> None:
        """Called when the run is over: after its last step or after `session.stop`, once the last checkpoint
        is written. Not called when a signal or the time limit interrupts a run that will be resumed."""

    def state(self) -> Mapping[str, Any]:
        """What `restore` needs: JSON values and tensors, nested in dicts and lists."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a state that `state` returned."""


_METHODS = ("on_start", "on_step", "on_epoch", "on_end", "state", "restore")


def as_hooks(hooks: Any) -> list[Hook]:
    """Hooks as `Hook` objects. An object with some of the methods of `Hook` is adapted and keeps its class name."""
    return as_objects("hooks", hooks, Hook, _METHODS, _complaint)


def _complaint(methods: Collection[str]) -> str | None:
    if ("state" in methods) != ("restore" in methods):
        return "with only one of state and restore; expected both or neither"
    if any(name.startswith("on_") for name in methods):
        return None
    return "without on_start, on_step, on_epoch and on_end; expected a nearfar.Hook"


Base = TypeVar("Base")


def as_objects(
    argument: str,
    objects: Any,
    base: type[Base],
    names: Sequence[str],
    complaint: Callable[[Collection[str]], str | None],
) -> list[Base]:
    """Objects of the class `base`; an object of another class that has methods of these names is adapted.
    `complaint`: why objects with only these methods cannot be used, as the end of a sentence."""
    if not isinstance(objects, Sequence):
        kind = type(objects).__name__
        raise UserError(f"{argument} was of type {kind}; expected a list of nearfar.{base.__name__} objects")
    adapted = []
    for item in objects:
        if isinstance(item, type):
            name = item.__name__
            raise UserError(f"{argument} has the class {name}; expected an object of it: {name}(…)")
        if not isinstance(item, base):
            methods = {name: getattr(item, name) for name in names if callable(getattr(item, name, None))}
            if problem := complaint(methods):
                raise UserError(f"{argument} has an object of type {type(item).__name__} {problem}")
            wrapper = type(type(item).__name__, (base,), {})()
            vars(wrapper).update(methods)
            item = wrapper
        adapted.append(item)
    return adapted


LOSS_MEMORY = 0.99  # of the moving average of losses: about the last hundred steps
SCHEDULE_SCORE = "knn_top1"  # the score that schedules follow


class AdaptiveSchedules(Hook):
    """Counts the moves of adaptive schedules. They follow the validation score or the held-out bound of each
    probe, the loss of each step (Wu et al. 2021, App. E), or mean or variance of the loss over each epoch.
    `moves` maps each schedule, as it is written in settings, to its number of moves.

    The first value of a kind is only compared with. A value that is not finite counts as worse and is not
    remembered.
    """

    def __init__(self, schedules: Iterable[object], steps_per_epoch: int = 1) -> None:
        self._schedules: dict[str, Adaptive] = {
            schedule.written(): schedule for schedule in schedules if isinstance(schedule, Adaptive)
        }
        self.moves = dict.fromkeys(self._schedules, 0)
        self._previous: dict[str, float] = {}
        self._steps_per_epoch = steps_per_epoch

    def on_step(self, session: "Session", outcome: "StepOutcome") -> None:
        self.observe_loss(outcome.loss)

    def observe_score(self, score: float) -> None:
        """Compares with the previous score."""
        previous = self._previous.get("score")
        if previous is not None:
            self._move("score", score - previous)
        if math.isfinite(score):
            self._previous["score"] = score

    def observe_loss(self, loss: float) -> None:
        """Compares with the moving average of losses, because losses of single steps are noisy."""
        average = self._previous.get("loss")
        if average is not None:
            self._move("loss", average - loss)
        if math.isfinite(loss):
            average = loss if average is None else average
            self._previous["loss"] = LOSS_MEMORY * average + (1 - LOSS_MEMORY) * loss
        if any(schedule.monitors in ("epoch", "variance") for schedule in self._schedules.values()):
            self._observe_epoch(loss)

    def observe_bound(self, nats: float) -> None:
        """Compares the held-out bound with the highest one since the last move."""
        self._wait("bound", -nats if math.isfinite(nats) else math.inf)

    def _observe_epoch(self, loss: float) -> None:
        """Sums losses and squared differences of successive losses over an epoch. At its end, the mean and the
        variance are each the lowest so far, or one more epoch without improvement. Losses that are not finite
        are left out."""
        memory = self._previous
        values = {"steps": 1.0}
        if math.isfinite(loss):
            values |= {"sum": loss, "count": 1.0}
            if "predecessor" in memory:
                values |= {"squares": (loss - memory["predecessor"]) ** 2, "differences": 1.0}
            memory["predecessor"] = loss
        for name, value in values.items():
            memory[name] = memory.get(name, 0.0) + value
        if memory["steps"] < self._steps_per_epoch:
            return
        total, count, squares, differences, _ = (
            memory.pop(name, 0.0) for name in ("sum", "count", "squares", "differences", "steps")
        )
        memory.pop("predecessor", None)
        self._wait("epoch", total / count if count else math.inf)
        self._wait("variance", squares / (2 * differences) if differences else math.inf)

    def _wait(self, kind: str, value: float) -> None:
        """Counts observations that are not below the lowest one; at the schedule's patience it moves on."""
        memory = self._previous
        for name, schedule in self._schedules.items():
            if schedule.monitors != kind or not isinstance(schedule, Plateau | OnStall):
                continue
            lowest, waited = f"{name} lowest", f"{name} waited"
            if value < memory.get(lowest, math.inf):
                memory[lowest], memory[waited] = value, 0.0
                continue
            memory[waited] = memory.get(waited, 0.0) + 1
            if memory[waited] >= schedule.patience and self.moves[name] < schedule.moves:
                self.moves[name] += 1
                memory[waited] = 0.0
                if isinstance(schedule, OnStall):
                    memory.pop(lowest, None)

    def _move(self, kind: str, gain: float) -> None:
        for name, schedule in self._schedules.items():
            if schedule.monitors == kind:
                move = 1 if gain > 0 else -1
                self.moves[name] = min(max(self.moves[name] + move, 0), int(schedule.moves))

    def state(self) -> dict[str, Any]:
        return {"moves": dict(self.moves), "previous": dict(self._previous)}

    def restore(self, state: dict[str, Any]) -> None:
        self.moves = {name: state["moves"].get(name, 0) for name in self._schedules}
        self._previous = dict(state["previous"])


class Metrics(Hook):
    """Logs and displays a row every `log_every` steps, and at the first and the last step."""

    def on_start(self, session: "Session") -> None:
        if session.resumed:
            return
        for warning in (*selection_cautions(session), refresh_warning(session)):
            if warning:
                session.say(warning)

    def on_step(self, session: "Session", outcome: "StepOutcome") -> None:
        if logs_step(session):
            row = train_row(session, outcome)
            session.log(row)
            session.display.show({"step": session.step, "epoch": session.progress.epoch, **row})


def logs_step(session: "Session") -> bool:
    return session.step % session.settings.log_every == 0 or session.step == 1 or session.is_last_step


def train_row(session: "Session", outcome: "StepOutcome") -> dict[str, Any]:
    """The metrics of a step. Values that are not finite are None, which JSON can hold."""
    scheduled = {"lr": session.lr, **session.settings.schedules()}
    prior, memory, spread = outcome.computed.prior, peak_memory(session.device), session.spread(outcome)
    values = {
        "loss": float(outcome.computed.loss.detach()),
        "nats": math.nan if outcome.nats is None else outcome.nats,
        "ceiling": math.nan if outcome.ceiling is None else outcome.ceiling,
        **({} if prior is None else {"prior": float(prior.detach())}),
        "images_per_s": session.clock.rate(),  # instances of any kind: recordings, texts, graphs too
        **({} if memory is None else {"peak_memory": memory}),
        "grad_norm": outcome.grad_norm,
        "skipped_steps": session.finite.skipped_steps,
        **({} if session.loss_scale is None else {"loss_scale": session.loss_scale.value}),
        "deviation": spread.deviation,
        "rank": spread.rank,
        "mean_cosine": spread.mean_cosine,
        **{name: at(value, outcome.progress) for name, value in scheduled.items()},
        **session.method.learnt(),
    }
    return {"kind": "train", **finite_or_none(values)}


def finite_or_none(values: Mapping[str, float]) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in values.items()}


def selection_cautions(session: "Session") -> list[str | None]:
    """Warnings of the selection before the first step."""
    return [part.startup_warning() for part in session.method.selections]


def refresh_warning(session: "Session") -> str | None:
    """The warning for a selection that would never compute its clusters in this run."""
    settings = session.settings
    refreshing = [part for part in session.method.selections if part.refreshes]
    starts = (
        Progress(epoch * session.steps_per_epoch, session.steps, session.steps_per_epoch)
        for epoch in range(settings.epochs)
    )
    if not refreshing or any(part.due(start) for start in starts for part in refreshing):
        return None
    values = ((key, settings.selection.get(key)) for key in ("after", "every"))
    listed = ", ".join(f"selection.{key}={value}" for key, value in values if value is not None)
    return (
        f"The selection never computes its clusters in so short a run (epochs={settings.epochs}, {listed}), "
        "so every candidate counts; train longer, or refresh them earlier."
    )


Probe = Callable[[Method], dict[str, float]]
HeldOutEstimate = Callable[[Method, Progress], HeldOutNats | None]


class PeriodicEvaluation(Hook):
    """Evaluates on held-out data every `probe_every` epochs, before the first step and after the last.

    Rank 0 computes the held-out estimate while the others wait. The probe embeds a share on every rank.
    """

    def __init__(self, probe: Probe | None, estimate: HeldOutEstimate | None) -> None:
        self._probe, self._estimate = probe, estimate
        self._pace, self._start = ProbePace(), time.perf_counter()

    def on_start(self, session: "Session") -> None:
        self._start = time.perf_counter()
        if not session.resumed:
            self._evaluate(session)

    def on_step(self, session: "Session", outcome: "StepOutcome") -> None:
        if not (session.is_due(session.settings.probe_every) or session.is_last_step):
            return
        start = time.perf_counter()
        session.clock.exclude(lambda: self._evaluate(session))
        end = time.perf_counter()
        if warning := self._pace.observe(end - start, end - self._start):
            session.display.say(warning)  # about this machine, not the run, so it is not logged

    def _evaluate(self, session: "Session") -> None:
        with session.strategy.full_weights(session.method):
            if self._estimate is not None:
                nats = session.strategy.on_first(lambda: self._estimate_held_out(session))
                if nats is not None:
                    session.adaptive.observe_bound(nats)
            self._run_probe(session)

    def _estimate_held_out(self, session: "Session") -> float | None:
        """Logs the estimate and returns its nats; None if there is none."""
        assert self._estimate is not None
        result = self._estimate(session.method, session.progress)
        if result is None or not math.isfinite(result.nats):
            return None
        session.log({"kind": "held-out", **held_out_row(result)})
        if session.is_last_step:
            meaning = session.method.encoders.estimate_subject
            session.display.say(held_out_sentence(result, meaning))
        return result.nats

    def _run_probe(self, session: "Session") -> None:
        if self._probe is None or not session.settings.probe_every:
            return
        try:
            scores = self._probe(session.method)
        except NotFinite as problem:  # the weights exploded: the message that ends the run has details
            session.say(f"the probe was skipped: {problem}")
            return
        scores = session.strategy.broadcast_json(scores)
        session.log({"kind": "probe", **finite_or_none(scores)})
        if SCHEDULE_SCORE in scores:
            session.adaptive.observe_score(scores[SCHEDULE_SCORE])


def held_out_row(result: HeldOutNats) -> dict[str, Any]:
    certificate = result.certificate
    ceiling = math.nan if certificate.ceiling is None else certificate.ceiling
    return {
        **finite_or_none({"nats": result.nats, "error": result.error, "ceiling": ceiling}),
        "instances": result.instances,
        "status": certificate.status,
        "condition": certificate.condition,
    }


def held_out_sentence(result: HeldOutNats, meaning: str) -> str:
    certificate = result.certificate
    start = f"on {result.instances} held-out instances: {result.nats:.3f}"
    if certificate.status != "proven":
        return f"{start} nats, {certificate.status}: {certificate.summary}"
    ceiling = "" if certificate.ceiling is None else f", ceiling {certificate.ceiling:.3g}"
    return f"{start} ± {result.error:.3f} nats {meaning} ({certificate.status} lower bound{ceiling})"


class ProbePace:
    """Warns once if probes take more than half of the time of a run that is already long."""

    MIN_SECONDS, MAX_SHARE, MIN_PROBES = 60.0, 0.5, 3

    def __init__(self) -> None:
        self.seconds, self.count, self.warned = 0.0, 0, False

    def observe(self, seconds: float, elapsed: float) -> str | None:
        """The warning due after a probe of `seconds`, `elapsed` seconds since the run was started."""
        self.seconds, self.count = self.seconds + seconds, self.count + 1
        slow = self.seconds > self.MIN_SECONDS and self.seconds > self.MAX_SHARE * elapsed
        if self.warned or self.count < self.MIN_PROBES or not slow:
            return None
        self.warned = True
        return (
            f"probes take {self.seconds / self.count:.0f} s each, {100 * self.seconds / elapsed:.0f} % of "
            "the time; probe_every is in epochs: raise it, or set probe_every=0 for none"
        )
