"""`nearfar bench`: whole training steps and losses beside those of other libraries, on this machine.

Arms take turns in one process, a block of steps each, so that whatever else the machine does falls on all of them; the first block
warms up. A peer is used as its documentation shows: its own transform in a `DataLoader`, its own loss, its own loop. One that is not
installed is named as absent.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from nearfar.bench.arms import contests
from nearfar.bench.peers import Absent, Contest
from nearfar.hardware import keep_freed_memory
from nearfar.machine import cpu_name, version


@dataclass(frozen=True)
class Block:
    """What a block of steps cost, by thing."""

    wall: float
    cpu: float  # of this process and those that load data for it: what others do on the machine hardly matters to it


@dataclass(frozen=True)
class Row:
    """What is said of an arm; ratios are ours over it, above 1 where ours is better."""

    name: str
    rate: float  # things per second, median
    lowest: float
    highest: float
    ratio: float
    cpu: float  # microseconds per thing, median
    cpu_ratio: float


@dataclass
class Result:
    contest: Contest
    blocks: dict[str, list[Block]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[Row]:
        ours = self.blocks[next(arm.name for arm in self.contest.arms if arm.ours)]
        wall, cpu = _medians(ours)
        for name, blocks in self.blocks.items():
            rates = [1 / block.wall for block in blocks]
            own_wall, own_cpu = _medians(blocks)
            yield Row(
                name, 1 / own_wall, min(rates), max(rates), own_wall / wall, 1e6 * own_cpu, own_cpu / cpu
            )


def _medians(blocks: list[Block]) -> tuple[float, float]:
    return statistics.median(b.wall for b in blocks), statistics.median(b.cpu for b in blocks)


def children() -> dict[int, float]:
    """CPU seconds of each living child so far, by process number; none elsewhere than Linux."""
    found = {}
    for child in multiprocessing.active_children():
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            found[int(child.pid or 0)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def measured(contest: Contest, blocks: int, seconds: float) -> Result:
    result, steps = Result(contest), {}
    made: dict[str, set[int]] = {}  # the processes that an arm began with
    for arm in contest.arms:
        known = set(children())
        try:
            steps[arm.name] = arm.make()
            made[arm.name] = set(children()) - known
        except Absent as absent:
            result.absent.append(f"{arm.name}: {absent} is not installed")
    walls: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    # the processes that load data for an arm or do its work, and what they had taken when it was warm
    loading: dict[str, dict[int, float]] = {name: {} for name in steps}
    things = dict.fromkeys(steps, 0)
    for block in range(blocks + 1):
        for name, step in steps.items():
            before = set(children()) - made.get(name, set())
            begun, cpu, taken = time.perf_counter(), time.process_time(), 0
            while not taken or time.perf_counter() - begun < seconds:
                step()
                taken += 1
            count = contest.count * taken
            spent = (time.perf_counter() - begun) / count, (time.process_time() - cpu) / count
            if block:
                things[name] += count
                walls[name].append(spent)
            else:
                loading[name] = {pid: taken for pid, taken in children().items() if pid not in before}
    # they load ahead while others take their turn: their cost is spread over all that the arm took
    held = children()
    shares = {
        name: sum(held.get(pid, was) - was for pid, was in loading[name].items()) / things[name]
        for name in steps
    }
    result.blocks = {
        name: [Block(wall, cpu + shares[name]) for wall, cpu in found] for name, found in walls.items()
    }
    return result


def run_bench(
    blocks: int = 5, seconds: float = 1.0, say: Callable[[str], None] = print, **sizes: Any
) -> list[Result]:
    """Every contest in turn; what was found is said as it is."""
    keep_freed_memory()
    say(machine_line())
    found = []
    for contest in contests(**sizes):
        result = measured(contest, blocks, seconds)
        found.append(result)
        for line in table([result]):
            say(line)
    return found


def machine_line() -> str:
    names = ("nearfar", "torch", "torchvision", "lightly", "open_clip_torch", "sentence-transformers")
    held = ", ".join(f"{name} {version(name) or 'absent'}" for name in names)
    return f"{cpu_name()}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}; {held}"


def table(results: list[Result]) -> Iterator[str]:
    """Markdown."""
    for result in results:
        unit = result.contest.unit
        yield ""
        yield f"| {result.contest.title} | {unit}, median | lowest to highest | ours over it | CPU µs each | ours over it |"
        yield "|---|---|---|---|---|---|"
        for row in result.rows():
            yield (
                f"| {row.name} | {row.rate:,.0f} | {row.lowest:,.0f} to {row.highest:,.0f} | {row.ratio:.2f}× | "
                f"{row.cpu:,.1f} | {row.cpu_ratio:.2f}× |"
            )
        for line in result.absent:
            yield f"| {line} | | | | | |"


def picture(results: list[Result]) -> str:
    """Bars of the medians, a group for each contest, each on its own scale; whiskers from the lowest to the highest block."""
    wide, bar, gap, left = 760, 18, 14, 250
    parts, y = [], 8
    for result in results:
        rows = list(result.rows())
        most = max(row.highest for row in rows)
        across = (wide - left - 90) / most
        parts.append(
            f'<text x="8" y="{y + 12}" font-weight="bold">{result.contest.title} ({result.contest.unit})</text>'
        )
        y += 20
        for row in rows:
            name, median, low, high = row.name, row.rate, row.lowest, row.highest
            colour = "#2a6f97" if name.startswith("nearfar") else "#b0b7bd"
            middle = y + bar / 2
            parts += [
                f'<text x="{left - 8}" y="{middle + 4}" text-anchor="end">{name}</text>',
                f'<rect x="{left}" y="{y}" width="{max(1.0, median * across):.1f}" height="{bar - 4}" fill="{colour}"/>',
                f'<line x1="{left + low * across:.1f}" x2="{left + high * across:.1f}" y1="{middle - 2}" y2="{middle - 2}" stroke="#222"/>',
                f'<text x="{left + high * across + 6:.1f}" y="{middle + 3}">{median:,.0f}</text>',
            ]
            y += bar
        y += gap
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {y}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{wide}" height="{y}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def plain(results: list[Result]) -> dict[str, Any]:
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
