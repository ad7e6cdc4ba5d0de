"""What adaptive schedules have heard: the validation score at every probe, the loss at every step (Wu et al. 2021, App. E)."""

import math
from collections.abc import Iterable
from typing import Any

from nearfar.core.schedules import Adaptive, Plateau, Schedule

MEMORY = 0.99  # of the loss's moving average: about the last hundred steps


class AdaptiveState:
    """How many moves each adaptive schedule has made, by the schedule as it is written; a checkpoint's facts hold it.

    The first number of a kind is only something to compare with. A number that is not finite is bad news, and is not
    remembered.
    """

    def __init__(self, schedules: Iterable[Schedule], steps_per_epoch: int = 1) -> None:
        adaptive = [schedule for schedule in schedules if isinstance(schedule, Adaptive)]
        self._schedules = {schedule.written(): schedule for schedule in adaptive}
        self.moves = dict.fromkeys(self._schedules, 0)
        self._before: dict[str, float] = {}
        self._steps_per_epoch = steps_per_epoch

    def listens_to(self, kind: str) -> bool:
        return any(schedule.hears == kind for schedule in self._schedules.values())

    def observe_score(self, score: float) -> None:
        """Compares with the last score."""
        self._hear("score", score - self._before.get("score", score), "score" in self._before)
        if math.isfinite(score):
            self._before["score"] = score

    def observe_loss(self, loss: float) -> None:
        """Compares with the moving average of losses, one step being too noisy to compare with another."""
        before = self._before.get("loss", loss)
        self._hear("loss", before - loss, "loss" in self._before)
        if math.isfinite(loss):
            self._before["loss"] = MEMORY * before + (1 - MEMORY) * loss
        if self.listens_to("epoch"):
            self._observe_epoch(loss)

    def _observe_epoch(self, loss: float) -> None:
        """Sums losses up to the end of an epoch; its mean then is the least so far, or one more epoch without."""
        heard = self._before
        news = math.isfinite(loss)
        for name, more in (("sum", loss if news else 0.0), ("heard", float(news)), ("steps", 1.0)):
            heard[name] = heard.get(name, 0.0) + more
        if heard["steps"] < self._steps_per_epoch:
            return
        total, count, _ = (heard.pop(name) for name in ("sum", "heard", "steps"))
        mean = total / count if count else math.inf
        for name, schedule in self._schedules.items():
            if not isinstance(schedule, Plateau):
                continue
            least, since = f"{name} least", f"{name} since"
            if mean < heard.get(least, math.inf):
                heard[least], heard[since] = mean, 0.0
                continue
            heard[since] = heard.get(since, 0.0) + 1
            if heard[since] >= schedule.patience and self.moves[name] < schedule.moves:
                self.moves[name] += 1
                heard[since] = 0.0

    def _hear(self, kind: str, gain: float, comparable: bool) -> None:
        for name, schedule in self._schedules.items():
            if schedule.hears == kind and comparable:
                move = 1 if gain > 0 else -1
                self.moves[name] = min(max(self.moves[name] + move, 0), int(schedule.moves))

    def state(self) -> dict[str, Any]:
        return {"moves": dict(self.moves), "before": dict(self._before)}

    def restore(self, state: dict[str, Any]) -> None:
        self.moves = {name: state["moves"].get(name, 0) for name in self._schedules}
        self._before = dict(state["before"])
