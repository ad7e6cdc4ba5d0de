"""`nearfar bench`: training steps and losses, compared with those of other libraries, on this machine.

Arms alternate in blocks of steps, so that other load affects all of them alike. The first block warms up. A
peer is used as its documentation shows: its own transform in a `DataLoader`, its own loss and loop, torch's
default settings. The table lists peers that are not installed.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from nearfar.bench.arms import contests
from nearfar.bench.peers import Contest, PeerMissing
from nearfar.bench.turns import Turn, open_arm
from nearfar.core.tables import markdown_table
from nearfar.sweeps.pictures import panels
from nearfar.system.hardware import keep_freed_memory
from nearfar.system.machine import cpu_name, version

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ArmTiming:
    """Timing of one arm. Ratios compare nearfar with it; above 1, nearfar is faster."""

    name: str
    rate: float  # items per second, median
    lowest: float
    highest: float
    ratio: float
    cpu: float  # microseconds per item, median
    cpu_ratio: float


@dataclass
class ContestResult:
    contest: Contest
    blocks: dict[str, list[Turn]] = field(default_factory=dict)  # seconds per item (image, row)
    absent: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[ArmTiming]:
        ours = self.blocks[next(arm.name for arm in self.contest.arms if arm.ours)]
        wall, cpu = _medians(ours)
        for name, blocks in self.blocks.items():
            rates = [1 / block.wall for block in blocks]
            own_wall, own_cpu = _medians(blocks)
            yield ArmTiming(
                name, 1 / own_wall, min(rates), max(rates), own_wall / wall, 1e6 * own_cpu, own_cpu / cpu
            )


def _medians(blocks: list[Turn]) -> tuple[float, float]:
    return statistics.median(b.wall for b in blocks), statistics.median(b.cpu for b in blocks)


def time_contest(contest: Contest, blocks: int, seconds: float) -> ContestResult:
    result = ContestResult(contest)
    with ExitStack() as stack:
        turns = {}
        for arm in contest.arms:
            try:
                turns[arm.name] = stack.enter_context(open_arm(arm))
            except PeerMissing as absent:
                result.absent.append(f"{arm.name}: {absent} is not installed")
        result.blocks = {name: [] for name in turns}
        for block in range(blocks + 1):
            for name, take in turns.items():
                spent = take(seconds)
                if block:
                    result.blocks[name].append(Turn(spent.wall / contest.count, spent.cpu / contest.count))
    return result


def run_bench(
    blocks: int = 5, seconds: float = 1.0, say: Callable[[str], None] = print, **sizes: Any
) -> list[ContestResult]:
    """Times every contest and prints each result."""
    keep_freed_memory()
    say(machine_line())
    results = []
    for contest in contests(**sizes):
        result = time_contest(contest, blocks, seconds)
        results.append(result)
        for line in table([result]):
            say(line)
    return results


def machine_line() -> str:
    names = ("nearfar", "torch", "torchvision", "lightly", "open_clip_torch", "sentence-transformers")
    versions = ", ".join(f"{name} {version(name) or 'absent'}" for name in names)
    return f"{cpu_name()}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}; {versions}"


def table(results: list[ContestResult]) -> Iterator[str]:
    """Markdown."""
    for result in results:
        unit = result.contest.unit
        head = [f"{unit}, median", "lowest to highest", "ours over it", "CPU µs each", "ours over it"]
        rows = [
            [
                row.name,
                f"{row.rate:,.0f}",
                f"{row.lowest:,.0f} to {row.highest:,.0f}",
                f"{row.ratio:.2f}×",
                f"{row.cpu:,.1f}",
                f"{row.cpu_ratio:.2f}×",
            ]
            for row in result.rows()
        ]
        absent = [[line, *[""] * len(head)] for line in result.absent]
        yield from ["", *markdown_table([[result.contest.title, *head], *rows, *absent])]


def bar_chart(results: list[ContestResult]) -> "Figure":
    """Bars of the medians, a panel for each contest; whiskers from the lowest to the highest block."""
    figure, axes = panels([f"{r.contest.title} ({r.contest.unit})" for r in results], 6.0, 2.0)
    for axis, result in zip(axes, results, strict=True):
        rows = list(result.rows())
        ends = [[row.rate - row.lowest for row in rows], [row.highest - row.rate for row in rows]]
        colours = ["#2a6f97" if row.name.startswith("nearfar") else "#b0b7bd" for row in rows]
        axis.barh([row.name for row in rows], [row.rate for row in rows], xerr=ends, color=colours)
        axis.invert_yaxis()
    return figure


def to_json(results: list[ContestResult]) -> dict[str, Any]:
    """For --json: by contest and arm."""
    return {
        result.contest.title: {
            "unit": result.contest.unit,
            "absent": result.absent,
            "arms": {
                row.name: {k: v for k, v in asdict(row).items() if k != "name"} for row in result.rows()
            },
        }
        for result in results
    }
