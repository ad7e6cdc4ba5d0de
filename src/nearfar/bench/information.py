"""`nearfar bench information`: the estimator on the 40 tasks of Czyż et al. 2023, compared with rivals.

Rivals: KSG (Kraskov et al. 2004), CCA (Gaussian, by canonical correlations), and a separable network fitted
by InfoNCE. The oracle is the mean of the exact log ratio over the same rows: its error is that of sampling
alone. Nothing was tuned on these tasks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from nearfar.bench.information_tasks import InformationTask
from nearfar.bench.records import append_record, read_records
from nearfar.core.tables import markdown_table
from nearfar.estimate import estimate_mi
from nearfar.estimate.baselines import gaussian_information, ksg_information
from nearfar.sweeps.pictures import COLOURS, panels
from nearfar.system.hardware import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_ORACLE_ERROR = 1e-3  # nats: smaller errors of the oracle are luck, so ratios to them mean nothing
RIVALS = {"ksg": "KSG", "cca": "CCA", "network": "InfoNCE network"}
ESTIMATORS = {"oracle": "oracle", "nats": "nearfar", **RIVALS}


@dataclass(frozen=True)
class TaskResult:
    """One estimate. Nats; `seconds` of CPU time by name."""

    task: str
    rows: int
    seed: int
    truth: float
    oracle: float
    nats: float
    low: float
    high: float
    at_least: float
    ksg: float
    cca: float
    network: float | None
    seconds: dict[str, float]

    def value(self, name: str) -> float:
        """NaN where it was not measured."""
        value: float | None = getattr(self, name)
        return float("nan") if value is None else value

    def error(self, name: str = "nats") -> float:
        return abs(self.value(name) - self.truth)

    @property
    def covered(self) -> bool:
        return self.low <= self.truth <= self.high


def measure_task(task: InformationTask, rows: int, seed: int, network: bool) -> TaskResult:
    x, y, log_ratio = task.sample(rows, seed)
    seconds: dict[str, float] = {}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        start = time.process_time()
        value = function()
        seconds[name] = time.process_time() - start
        return value

    def fit_network() -> float:
        return estimate_mi(x, y, "infonce", "separable", seed=seed, baselines=False).nats

    with one_thread():
        result = timed("nats", lambda: estimate_mi(x, y, seed=seed, baselines=False))
        ksg = timed("ksg", lambda: ksg_information(x, y))
        cca = timed("cca", lambda: gaussian_information(x, y))
        by_network = timed("network", fit_network) if network else None
    return TaskResult(
        task=task.name,
        rows=rows,
        seed=seed,
        truth=task.truth,
        oracle=float(log_ratio.mean()),
        nats=result.nats,
        low=result.interval[0],
        high=result.interval[1],
        at_least=float(result.at_least),
        ksg=ksg,
        cca=cca,
        network=by_network,
        seconds=seconds,
    )


def run_information(
    tasks: Sequence[InformationTask],
    sizes: Sequence[int],
    seeds: int = 1,
    network: bool = True,
    record: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[TaskResult]:
    """Measures every task at every size; resumes from `record`, a file of results by line."""
    stored = {(r.task, r.rows, r.seed): r for r in read_records(record, TaskResult)}
    results = []
    for rows in sizes:
        for seed in range(seeds):
            for task in tasks:
                result = stored.get((task.name, rows, seed))
                if result is None:
                    result = measure_task(task, rows, seed, network)
                    append_record(record, result)
                    say(
                        f"{task.name} n={rows}: {result.nats:.3f} [{result.low:.3f}, {result.high:.3f}] of "
                        f"{result.truth:.3f}, oracle {result.oracle:.3f}, KSG {result.ksg:.3f}"
                    )
                results.append(result)
    return results


def information_table(results: Sequence[TaskResult]) -> Iterator[str]:
    """Markdown: a summary for each number of rows, then every task."""
    sizes = sorted({result.rows for result in results})
    groups = [[result for result in results if result.rows == rows] for rows in sizes]
    summary: dict[str, Callable[[list[TaskResult]], str]] = {
        "tasks × seeds": lambda g: str(len(g)),
        "mean absolute error": lambda g: f"**{fmean(r.error() for r in g):.4f}**",
        "… of the oracle": lambda g: f"{fmean(r.error('oracle') for r in g):.4f}",
        **{f"… of {label}": partial(_mean_error, name=name) for name, label in RIVALS.items()},
        "error over the oracle's, median": _ratio,
        "nearer than KSG": lambda g: _share([r.error() < r.error("ksg") for r in g]),
        "90 % interval contains the truth": lambda g: _share([r.covered for r in g]),
        "`at_least` above the truth": lambda g: _share([r.at_least > r.truth for r in g]),
        "CPU-seconds, median": lambda g: f"{median(r.seconds['nats'] for r in g):.1f}",
    }
    rows = [[label, *map(cell, groups)] for label, cell in summary.items()]
    yield from markdown_table([["", *(f"{size:,} rows" for size in sizes)], *rows])
    titles = ["truth", "oracle", "nearfar", "90 % interval", *RIVALS.values(), "CPU-s"]
    for size, group in zip(sizes, groups, strict=True):
        names = dict.fromkeys(result.task for result in group)
        tasks = [_task_row([result for result in group if result.task == name]) for name in names]
        yield from ["", *markdown_table([[f"{size:,} rows", *titles], *tasks])]


def _task_row(results: list[TaskResult]) -> list[str]:
    """The means over the seeds of one task."""
    names = ("truth", "oracle", "nats", "low", "high", *RIVALS)
    truth, oracle, nats, low, high, *rivals = (_mean([r.value(k) for r in results], 3) for k in names)
    interval = f"{low} to {high}" + ("" if all(r.covered for r in results) else " ✗")
    seconds = f"{fmean(r.seconds['nats'] for r in results):.1f}"
    return [results[0].task, truth, oracle, nats, interval, *rivals, seconds]


def _mean_error(group: list[TaskResult], name: str) -> str:
    return _mean([result.error(name) for result in group])


def _mean(values: Sequence[float], digits: int = 4) -> str:
    finite = [value for value in values if np.isfinite(value)]
    return f"{fmean(finite):.{digits}f}" if finite else "–"


def _ratio(group: list[TaskResult]) -> str:
    return f"{median(r.error() / max(r.error('oracle'), MIN_ORACLE_ERROR) for r in group):.2f}"


def _share(values: list[bool]) -> str:
    return f"{sum(values)} of {len(values)}"


def information_chart(results: Sequence[TaskResult]) -> "Figure":
    """The error of each estimator for every task at the largest number of rows, on a log scale."""
    rows = max(result.rows for result in results)
    group = [result for result in results if result.rows == rows]
    names = list(dict.fromkeys(result.task for result in group))
    title = f"absolute error in nats, {rows:,} rows"
    figure, (axes,) = panels([title], 7.6, 1.2 + 0.18 * len(names))
    for (name, label), colour in zip(ESTIMATORS.items(), COLOURS, strict=False):
        errors = [fmean(result.error(name) for result in group if result.task == task) for task in names]
        axes.plot(np.clip(errors, MIN_ORACLE_ERROR, None), names, "o", color=colour, label=label)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.legend()
    return figure
