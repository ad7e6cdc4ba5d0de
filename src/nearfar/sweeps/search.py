"""Searches instead of listing: optuna (TPE) proposes points and ends runs that fall behind.

The sweep's folder is the storage: `trials/*/0007.json` is written before its training begins, its values are
those of its cells, and optuna reads all of it again each time. So a proposal is a function of the seed, the
trial's number and the earlier trials.
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
from nearfar.sweeps.engine import COMPLETED, FAILED, PRUNED, CellOutcome
from nearfar.sweeps.space import Point, Space
from nearfar.system.extras import need
from nearfar.system.files import write_atomic
from nearfar.system.untrusted import read_json

METHODS = ("tpe", "random")
STARTUP_TRIALS = 5  # before any run is pruned
WARMUP_EPOCHS = 1  # of each run, without pruning


class Pruned(Exception):
    """A run was ended because its probe is below the median."""


@dataclass(frozen=True)
class SearchTrial:
    """A proposed point and its outcome: `curve` is the probe by epoch, `value` the mean over seeds."""

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

    def proposed(self) -> list[SearchTrial]:
        """The trials so far, by number, without their outcomes."""
        trials = []
        for file in sorted(self.folder.glob("*.json")):
            stored = read_json(file)
            if isinstance(stored, Mapping) and isinstance(stored.get("settings"), Mapping):
                trials.append(SearchTrial(int(stored["number"]), dict(stored["settings"])))
        return trials

    def propose(self, earlier: Sequence[SearchTrial]) -> SearchTrial:
        """Stores and returns the next trial. The caller holds the lock of proposals."""
        number = len(earlier)
        with _quiet() as optuna:
            study = self._study(earlier, number)
            params = study.ask(self._distributions(optuna)).params
        point = {key: self._from_optuna(key, value) for key, value in params.items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {"number": number, "settings": point}
        write_atomic(self.folder / f"{number:04d}.json", json.dumps(content, indent=1) + "\n")
        return SearchTrial(number, point)

    def is_behind(
        self, trial: SearchTrial, earlier: Sequence[SearchTrial], curve: Mapping[int, float]
    ) -> bool:
        """Whether a run with this curve is below the median of the trials at the same epoch."""
        if not self.prune:
            return False
        with _quiet() as optuna:
            study = self._study(earlier, trial.number)
            state = optuna.trial.TrialState.RUNNING
            return bool(study.pruner.prune(study, self._frozen(optuna, trial, state, curve)))

    def _study(self, trials: Sequence[SearchTrial], number: int) -> Any:
        import optuna

        seed = self.seed * 100_003 + number
        samplers = {
            "tpe": lambda: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
            "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        }
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=WARMUP_EPOCHS)
        study = optuna.create_study(direction="maximize", sampler=samplers[self.method](), pruner=pruner)
        states = optuna.trial.TrialState
        by_state = {
            COMPLETED: states.COMPLETE,
            PRUNED: states.PRUNED,
            FAILED: states.FAIL,
            "": states.RUNNING,
        }
        for trial in trials:
            study.add_trial(self._frozen(optuna, trial, by_state[trial.state], trial.curve))
        return study

    def _frozen(self, optuna: Any, trial: SearchTrial, state: Any, curve: Mapping[int, float]) -> Any:
        return optuna.trial.create_trial(
            state=state,
            value=trial.value if state == optuna.trial.TrialState.COMPLETE else None,
            params={key: self._to_optuna(key, value) for key, value in trial.point.items()},
            distributions=self._distributions(optuna),
            intermediate_values=dict(curve),
        )

    def _distributions(self, optuna: Any) -> dict[str, Any]:
        kinds = optuna.distributions
        distributions = {
            key: kinds.CategoricalDistribution(range(len(v))) for key, v in self.space.axes.items()
        }
        for key, span in self.space.ranges.items():
            if span.integers:
                distributions[key] = kinds.IntDistribution(int(span.low), int(span.high), log=span.log)
            else:
                distributions[key] = kinds.FloatDistribution(span.low, span.high, log=span.log)
        return distributions

    # optuna sees the positions of listed values: a value may be anything, also a schedule or a list
    def _from_optuna(self, key: str, value: Any) -> Any:
        if key in self.space.axes:
            return self.space.axes[key][value]
        span = self.space.ranges[key]
        # proposed numbers are rounded to six digits, as the table prints them
        return value if span.integers else min(max(float(f"{value:.6g}"), span.low), span.high)

    def _to_optuna(self, key: str, value: Any) -> Any:
        return self.space.axes[key].index(value) if key in self.space.axes else value


def with_outcomes(
    trial: SearchTrial, outcomes: Sequence[CellOutcome | None], metric: str, curve: Mapping[int, float]
) -> SearchTrial:
    """The trial with its state and value, from the outcomes of its cells (one for each seed)."""
    states = {outcome.state if outcome else "" for outcome in outcomes}
    if PRUNED in states or FAILED in states:
        return SearchTrial(trial.number, trial.point, PRUNED if PRUNED in states else FAILED, None, curve)
    values = [outcome.values.get(metric) for outcome in outcomes if outcome]
    if "" in states or None in values:
        return SearchTrial(trial.number, trial.point, "", None, curve)
    mean = sum(value for value in values if value is not None) / len(values)
    return SearchTrial(trial.number, trial.point, COMPLETED, mean, curve)


def probe_curve(run: Path) -> dict[int, float]:
    """The kNN probe of a run by epoch, so far."""
    rows = read_metrics(run / "metrics.jsonl") if (run / "metrics.jsonl").is_file() else []
    probes = [row for row in rows if row.get("kind") == "probe" and "knn_top1" in row]
    return {round(row["epoch"]): row["knn_top1"] for row in probes if row["epoch"] > 0}


@contextmanager
def _quiet() -> Iterator[Any]:
    """optuna without its log and its warnings about experimental features."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield optuna
