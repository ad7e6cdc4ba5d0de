"""Searching instead of listing: optuna proposes the next point from what the earlier ones gave (TPE), and ends runs that fall behind.

The storage is the sweep's folder, as for a grid: `trials/*/0007.json` is written before its training begins, its values are those of its
cells, and optuna is told all of it anew each time. So there is no state to lose: what is proposed is a function of the seed, the
number of the trial and the trials before it.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearfar.errors import UserError
from nearfar.run.metrics import read_metrics
from nearfar.sweeps.cells import DONE, FAILED, PRUNED, Outcome
from nearfar.sweeps.space import Point, Space
from nearfar.system.extras import need
from nearfar.system.files import write_atomic
from nearfar.system.untrusted import read_json

METHODS = ("tpe", "random")
FIRST = 5  # trials before any run is ended early
PATIENCE = 1  # epochs that every run has


class Pruned(Exception):
    """A run was ended because it falls behind the median of the others."""


@dataclass(frozen=True)
class Trial:
    """A point that was proposed, and what became of it: `curve` is the probe by epoch, `value` the mean over seeds."""

    number: int
    point: Point
    state: str = ""  # empty while it runs
    value: float | None = None
    curve: Mapping[int, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"trial-{self.number:04d}"


@dataclass(frozen=True)
class Search:
    space: Space
    folder: Path  # of the trials of this search
    count: int
    method: str = "tpe"
    seed: int = 0
    prune: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"--search was {self.method!r}; expected {' or '.join(METHODS)}")
        need("optuna")

    @property
    def name(self) -> str:
        return self.folder.name

    def proposed(self) -> list[Trial]:
        """The trials so far, by number, without what became of them."""
        found = []
        for file in sorted(self.folder.glob("*.json")):
            stored = read_json(file)
            if isinstance(stored, Mapping) and isinstance(stored.get("settings"), Mapping):
                found.append(Trial(int(stored["number"]), dict(stored["settings"])))
        return found

    def propose(self, before: Sequence[Trial]) -> Trial:
        """The next trial, written down; whoever calls it holds the lock of all proposals."""
        number = len(before)
        with _quiet() as optuna:
            study = self._study(before, number)
            params = study.ask(self._distributions(optuna)).params
        point = {key: self._listed(key, value) for key, value in params.items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        told = {"number": number, "settings": point}
        write_atomic(self.folder / f"{number:04d}.json", json.dumps(told, indent=1) + "\n")
        return Trial(number, point)

    def behind(self, trial: Trial, others: Sequence[Trial], curve: Mapping[int, float]) -> bool:
        """Whether a run with this curve is below the median of those that came as far."""
        if not self.prune:
            return False
        with _quiet() as optuna:
            study = self._study(others, trial.number)
            state = optuna.trial.TrialState.RUNNING
            return bool(study.pruner.prune(study, self._frozen(optuna, trial, state, curve)))

    def _study(self, trials: Sequence[Trial], number: int) -> Any:
        import optuna

        seed = self.seed * 100_003 + number
        samplers = {
            "tpe": lambda: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
            "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        }
        pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST, n_warmup_steps=PATIENCE)
        study = optuna.create_study(direction="maximize", sampler=samplers[self.method](), pruner=pruner)
        states = optuna.trial.TrialState
        known = {DONE: states.COMPLETE, PRUNED: states.PRUNED, FAILED: states.FAIL, "": states.RUNNING}
        for trial in trials:
            study.add_trial(self._frozen(optuna, trial, known[trial.state], trial.curve))
        return study

    def _frozen(self, optuna: Any, trial: Trial, state: Any, curve: Mapping[int, float]) -> Any:
        return optuna.trial.create_trial(
            state=state,
            value=trial.value if state == optuna.trial.TrialState.COMPLETE else None,
            params={key: self._indexed(key, value) for key, value in trial.point.items()},
            distributions=self._distributions(optuna),
            intermediate_values=dict(curve),
        )

    def _distributions(self, optuna: Any) -> dict[str, Any]:
        kinds = optuna.distributions
        found = {key: kinds.CategoricalDistribution(range(len(v))) for key, v in self.space.axes.items()}
        for key, span in self.space.ranges.items():
            if span.whole:
                found[key] = kinds.IntDistribution(int(span.low), int(span.high), log=span.log)
            else:
                found[key] = kinds.FloatDistribution(span.low, span.high, log=span.log)
        return found

    # listed values are known to optuna by their places: they may be anything, a schedule or a list too
    def _listed(self, key: str, value: Any) -> Any:
        if key in self.space.axes:
            return self.space.axes[key][value]
        span = self.space.ranges[key]
        # six digits are enough of a proposed number, and are what the table says
        return value if span.whole else min(max(float(f"{value:.6g}"), span.low), span.high)

    def _indexed(self, key: str, value: Any) -> Any:
        return self.space.axes[key].index(value) if key in self.space.axes else value


def became(
    trial: Trial, outcomes: Sequence[Outcome | None], metric: str, curve: Mapping[int, float]
) -> Trial:
    """The trial with what became of it, from the outcomes of its cells (one for each seed)."""
    states = {outcome.state if outcome else "" for outcome in outcomes}
    if PRUNED in states or FAILED in states:
        return Trial(trial.number, trial.point, PRUNED if PRUNED in states else FAILED, None, curve)
    values = [outcome.values.get(metric) for outcome in outcomes if outcome]
    if "" in states or None in values:
        return Trial(trial.number, trial.point, "", None, curve)
    mean = sum(value for value in values if value is not None) / len(values)
    return Trial(trial.number, trial.point, DONE, mean, curve)


def curve_of(run: Path) -> dict[int, float]:
    """The kNN probe by epoch, as far as a run came."""
    rows = read_metrics(run / "metrics.jsonl") if (run / "metrics.jsonl").is_file() else []
    probes = [row for row in rows if row.get("kind") == "probe" and "knn_top1" in row]
    return {round(row["epoch"]): row["knn_top1"] for row in probes if row["epoch"] > 0}


@contextmanager
def _quiet() -> Iterator[Any]:
    """optuna without its log and its words about what is experimental in it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield optuna
