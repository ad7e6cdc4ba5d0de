"""A hook: this file, and no line elsewhere.

nf.pretrain("simclr", "photos/", "runs/a", hooks=[EarlyStopping(patience=5)])
"""

import math
from typing import Any

import nearfar as nf


class EarlyStopping(nf.Hook):
    """Ends a run when the mean loss of an epoch has not improved for `patience` epochs."""

    def __init__(self, patience: int = 5, min_gain: float = 0.0) -> None:
        self.patience, self.min_gain = patience, min_gain
        self.best, self.waited = math.inf, 0
        self.total, self.count = 0.0, 0

    def on_step(self, session: Any, outcome: Any) -> None:
        self.total += outcome.loss
        self.count += 1

    def on_epoch(self, session: Any) -> None:
        mean = self.total / self.count
        self.total, self.count = 0.0, 0
        session.log({"kind": "early-stopping", "mean_loss": mean})
        if mean < self.best - self.min_gain:
            self.best, self.waited = mean, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            session.stop(f"the loss has not improved for {self.patience} epochs")

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited, "total": self.total, "count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]
        self.total, self.count = state["total"], state["count"]
