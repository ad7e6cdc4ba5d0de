"""`nearfar bench information`: the estimator on the 40 tasks of Czyż et al. 2023, beside rivals.

Rivals: KSG (Kraskov et al. 2004), CCA (Gaussian, by canonical correlations), and a separable network fitted
by InfoNCE. The oracle is the mean of the exact log ratio over the same rows: its error is that of sampling
alone. Nothing was tuned on these tasks.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from nearfar.bench.information_tasks import InformationTask
from nearfar.estimate import estimate_mi
from nearfar.estimate.baselines import gaussian_information, ksg_information
from nearfar.system.files import append_line
from nearfar.system.hardware import one_thread
from nearfar.system.untrusted import read_text

MIN_ORACLE_ERROR = 1e-3  # nats: a smaller error of the oracle is luck, and a ratio to it says nothing
RIVALS = {"ksg": "KSG", "cca": "CCA", "network": "InfoNCE network"}


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

    def error(self, name: str = "nats") -> float:
        value = asdict(self)[name]
        return float("nan") if value is None else abs(value - self.truth)

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
    """Measures every task at every size. `record`: a file of results by line, from which a second run
    resumes."""
    earlier = [] if record is None or not record.exists() else read_text(record).splitlines()
    stored = {(r.task, r.rows, r.seed): r for r in (TaskResult(**json.loads(line)) for line in earlier)}
    results = []
    for rows in sizes:
        for seed in range(seeds):
            for task in tasks:
                result = stored.get((task.name, rows, seed))
                if result is None:
                    result = measure_task(task, rows, seed, network)
                    if record is not None:
                        append_line(record, json.dumps(asdict(result)))
                    say(
                        f"{task.name} n={rows}: {result.nats:.3f} [{result.low:.3f}, {result.high:.3f}] of "
                        f"{result.truth:.3f}, oracle {result.oracle:.3f}, KSG {result.ksg:.3f}"
                    )
                results.append(result)
    return results


def information_table(results: Sequence[TaskResult]) -> Iterator[str]:
    """Markdown: a summary for each number of rows, then every task."""
    sizes = sorted({result.rows for result in results})
    yield "| | " + " | ".join(f"{rows:,} rows" for rows in sizes) + " |"
    yield "|---|" + "---|" * len(sizes)
    groups = [[result for result in results if result.rows == rows] for rows in sizes]

    def line(label: str, cell: Callable[[list[TaskResult]], str]) -> str:
        return f"| {label} | " + " | ".join(cell(group) for group in groups) + " |"

    yield line("tasks × seeds", lambda g: str(len(g)))
    yield line("mean absolute error", lambda g: f"**{fmean(r.error() for r in g):.4f}**")
    yield line("… of the oracle", lambda g: f"{fmean(r.error('oracle') for r in g):.4f}")
    for name, label in RIVALS.items():
        yield line(f"… of {label}", partial(_mean_error, name=name))
    yield line("error over the oracle's, median", lambda g: _ratio(g))
    yield line("nearer than KSG", lambda g: _share([r.error() < r.error("ksg") for r in g]))
    yield line("90 % interval contains the truth", lambda g: _share([r.covered for r in g]))
    yield line("`at_least` above the truth", lambda g: _share([r.at_least > r.truth for r in g]))
    yield line("CPU-seconds, median", lambda g: f"{median(r.seconds['nats'] for r in g):.1f}")
    for rows, group in zip(sizes, groups, strict=True):
        yield ""
        rivals = " | ".join(RIVALS.values())
        yield f"| {rows:,} rows | truth | oracle | nearfar | 90 % interval | {rivals} | CPU-s |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for name in dict.fromkeys(result.task for result in group):
            same = [result for result in group if result.task == name]
            values = {k: _mean([_number(asdict(r)[k]) for r in same], 3) for k in ("oracle", "nats", *RIVALS)}
            low, high = (fmean(asdict(r)[k] for r in same) for k in ("low", "high"))
            mark = "" if all(r.covered for r in same) else " ✗"
            yield (
                f"| {name} | {same[0].truth:.3f} | {values['oracle']} | {values['nats']} | "
                f"{low:.3f} to {high:.3f}{mark} | {values['ksg']} | {values['cca']} | {values['network']} | "
                f"{fmean(r.seconds['nats'] for r in same):.1f} |"
            )


def _mean_error(group: list[TaskResult], name: str) -> str:
    return _mean([result.error(name) for result in group])


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _mean(values: Sequence[float], digits: int = 4) -> str:
    finite = [value for value in values if np.isfinite(value)]
    return f"{fmean(finite):.{digits}f}" if finite else "–"


def _ratio(group: list[TaskResult]) -> str:
    return f"{median(r.error() / max(r.error('oracle'), MIN_ORACLE_ERROR) for r in group):.2f}"


def _share(values: list[bool]) -> str:
    return f"{sum(values)} of {len(values)}"


def information_chart(results: Sequence[TaskResult]) -> str:
    """An SVG: for every task the error of each estimator at the largest number of rows, on a log scale."""
    rows = max(result.rows for result in results)
    group = [result for result in results if result.rows == rows]
    names = list(dict.fromkeys(result.task for result in group))
    colours = {"oracle": "#222", "nats": "#2a6f97", "ksg": "#d08c60", "cca": "#8a9a5b", "network": "#a34a6b"}
    labels = {"oracle": "oracle", "nats": "nearfar", **RIVALS}
    left, width, step, top = 270, 760, 17, 46
    lowest_error, highest_error = 1e-3, 10.0

    def across(error: float) -> float:
        clipped = min(max(error, lowest_error), highest_error)
        share = np.log10(clipped / lowest_error) / np.log10(highest_error / lowest_error)
        return float(left + share * (width - left - 30))

    height = top + step * len(names) + 12
    parts = [f'<text x="8" y="16" font-weight="bold">absolute error in nats, {rows:,} rows</text>']
    for k, (name, colour) in enumerate(colours.items()):
        parts.append(f'<circle cx="{left + 100 * k - 20}" cy="12" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + 100 * k - 12}" y="16">{labels[name]}</text>')
    for error in (0.001, 0.01, 0.1, 1, 10):
        x = across(error)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 8}" y2="{height - 8}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{top - 12}" text-anchor="middle" fill="#666">{error:g}</text>')
    for k, name in enumerate(names):
        y = top + step * k + 6
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{name}</text>')
        for estimator, colour in colours.items():
            errors = [result.error(estimator) for result in group if result.task == name]
            if np.isfinite(errors).all():
                parts.append(f'<circle cx="{across(fmean(errors)):.1f}" cy="{y}" r="4" fill="{colour}"/>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11">\n<rect width="{width}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n'
    )
