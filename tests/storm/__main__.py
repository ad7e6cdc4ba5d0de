"""The storm: random mishaps against nearfar's promises, each reproducible from its seed.

    make storm HOURS=1                                         every part, an hour in all, on two cores
    python -m tests.storm --project                            what an hour would hold, from a minute of trying
    python -m tests.storm --part files --seed 17 --count 1     one case again

A case is a function of a random generator and an empty folder. It returns a word for what happened and counts of what was tried, or
raises: anything but a `UserError` is a promise broken. Every part runs in a process of its own, so that one that is brought down is a
finding too.
"""

import argparse
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple


class Part(NamedTuple):
    module: str
    share: float  # of the time
    refused_as: str | None = None  # what a refused case counts as
    function: str = "case"
    max_cases: int | None = None  # of a worker


PARTS = {
    "files": Part("files", 0.16, None),
    "settings": Part("words", 0.07, "settings"),
    "folders": Part("folders", 0.14, "corruptions"),
    "compositions": Part("compositions", 0.16, "compositions"),
    "kills": Part("kills", 0.18),
    "mishaps": Part("mishaps", 0.10),
    "faults": Part("faults", 0.14),
    "odd": Part("odd", 0.03, "odd"),
    "parsers": Part("guided", 0.01),
    "crowd": Part("odd", 0.01, None, "many", 1),
}
# cases of an hour on two cores
GOALS = {"kills": 500, "compositions": 3_000, "corruptions": 5_000, "files": 50_000, "settings": 5_000}
WORKERS = 2  # unless --workers says otherwise
SEED_STEP = 10**7  # between the seeds of workers


def case_of(name: str) -> Callable[[random.Random, Path], Any]:
    """The case of a part. Its module is imported here: not every part needs everything."""
    return getattr(importlib.import_module(f"tests.storm.{PARTS[name].module}"), PARTS[name].function)


def run_part(
    name: str, seed: int, count: int | None, seconds: float | None, out: Path, *, warm: bool = False
) -> int:
    """Cases of one part until either limit, the time counted from the second case if `warm`; a line of JSON for each, written before the
    next begins."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=ResourceWarning)
    from nearfar.errors import UserError

    case, start, broken = case_of(name), time.monotonic(), 0
    with out.open("a", encoding="utf-8") as lines:
        number = 0
        while (count is None or number < count) and (seconds is None or time.monotonic() - start < seconds):
            place = Path(tempfile.mkdtemp(prefix="storm-"))
            row: dict[str, Any] = {"part": name, "seed": seed + number}
            lines.write(json.dumps({**row, "began": True}) + "\n")
            lines.flush()
            case_start, cpu_start = time.monotonic(), processor_time()
            try:
                row["outcome"], row["counts"] = case(random.Random(f"{name} {seed + number}"), place)
            except UserError as refusal:
                refused_as = PARTS[name].refused_as
                row |= {
                    "outcome": "refused",
                    "message": str(refusal)[:500],
                    "counts": {refused_as: 1} if refused_as else {},
                }
            except BaseException:
                row |= {"outcome": "broken", "message": traceback.format_exc()[-4000:]}
                broken += 1
            finally:
                shutil.rmtree(place, ignore_errors=True)
            row["seconds"] = round(time.monotonic() - case_start, 4)
            row["cpu"] = round(processor_time() - cpu_start, 4)
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            number += 1
            if warm and number == 1:
                start = time.monotonic()
    return broken


def processor_time() -> float:
    """CPU seconds of this process and of the ended children of its fork server."""
    own, server = time.process_time(), getattr(forkserver._forkserver, "_forkserver_pid", None)
    stat = Path(f"/proc/{server}/stat")
    if server is None or not stat.exists():
        return own
    children = stat.read_text().rpartition(")")[2].split()[13:15]  # user and system time of those waited for
    return own + sum(map(int, children)) / os.sysconf("SC_CLK_TCK")


def command(name: str, seed: int, out: Path, count: int | None, seconds: float | None) -> list[str]:
    words = [sys.executable, "-m", "tests.storm", "--part", name, "--seed", str(seed), "--out", str(out)]
    words += [] if count is None else ["--count", str(count)]
    return words + ([] if seconds is None else ["--seconds", f"{seconds:.0f}"])


def worker(
    number: int, parts: Iterable[str], seed: int, count: int | None, hours: float | None, out: Path
) -> int:
    """Runs all parts, one after the other, each in a process of its own. Returns how many of these processes crashed."""
    folder, parts, failed = out / f"worker-{number}", list(parts), 0
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(PARTS[name].share for name in parts)
    for name in parts if number % 2 == 0 else reversed(parts):  # so that heavy parts do not meet
        seconds = None if hours is None else 3600 * hours * PARTS[name].share / total
        (folder / f"{name}.jsonl").unlink(missing_ok=True)
        limit = PARTS[name].max_cases if count is None else count
        words = command(name, seed + number * SEED_STEP, folder, limit, seconds)
        process = subprocess.run(
            words, check=False, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        if process.returncode not in (0, 1):
            last = rows_of([folder / f"{name}.jsonl"])[-1:]
            print(
                f"{name}: its process ended with {process.returncode} at {last}\n{process.stderr[-2000:]}",
                flush=True,
            )
            failed += 1
    return failed


def storm(
    parts: list[str], seed: int, count: int | None, hours: float | None, out: Path, workers: int
) -> int:
    """Every part by every worker; returns how many promises were broken."""
    count_of = workers if hours is not None else 1
    with ThreadPoolExecutor(count_of) as pool:
        failed = sum(pool.map(lambda n: worker(n, parts, seed, count, hours, out), range(count_of)))
    rows = {name: rows_of(sorted(out.glob(f"worker-*/{name}.jsonl"))) for name in parts}
    for name, part_rows in rows.items():
        print_part(name, part_rows)
    counted = totals(rows.values())
    print("\n".join(f"{what:<14}{counted[what]:>9,} of {goal:,}" for what, goal in GOALS.items()))
    return failed + sum(row.get("outcome") == "broken" for part_rows in rows.values() for row in part_rows)


def rows_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]


def totals(parts: Iterable[list[dict[str, Any]]]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for rows in parts:
        for row in rows:
            counted.update(row.get("counts", {}))
    return counted


def print_part(name: str, rows: list[dict[str, Any]]) -> None:
    ended = [row for row in rows if "outcome" in row]
    counted = Counter(row["outcome"] for row in ended)
    outcomes = ", ".join(f"{n} {what}" for what, n in counted.most_common())
    print(f"{name:<14}{len(ended):>8} cases   {outcomes}")
    for row in [row for row in ended if row["outcome"] == "broken"][:5]:
        print(f"  seed {row['seed']}: {row['message'].strip().splitlines()[-1][:300]}")


def project(parts: list[str], seed: int, seconds: float, out: Path) -> None:
    """Each part for a few seconds, alone; prints how many cases an hour of two workers would hold, in CPU seconds. The first case
    is left out: it makes what the others share."""
    total, projected = sum(part.share for part in PARTS.values()), Counter[str]()
    print(f"{'part':<14}{'cases':>7}{'CPU-s each':>12}{'in an hour':>12}")
    for name in parts:
        folder = out / "project"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jsonl").unlink(missing_ok=True)
        subprocess.run(
            [*command(name, seed, folder, PARTS[name].max_cases, seconds), "--warm"],
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        rows = [row for row in rows_of([folder / f"{name}.jsonl"]) if "outcome" in row]
        later = rows[1:] or rows
        each = sum(row["cpu"] for row in later) / len(later)
        cases = WORKERS * min(3600 * PARTS[name].share / total / each, PARTS[name].max_cases or 10**9)
        for what, number in totals([later]).items():
            projected[what] += round(cases * number / len(later))
        broken = sum(row["outcome"] == "broken" for row in rows)
        print(
            f"{name:<14}{len(rows):>7}{each:>12.3f}{cases:>12,.0f}"
            + (f"   {broken} broken" if broken else ""),
            flush=True,
        )
    for what, goal in GOALS.items():
        print(
            f"{what:<14}{projected[what]:>9,} projected, {goal:,} wanted"
            + ("" if projected[what] >= goal else "   too few")
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm")
    parser.add_argument("--hours", type=float, help="how long in all, shared out between the parts")
    parser.add_argument(
        "--project", action="store_true", help="try each part shortly and say what an hour would hold"
    )
    parser.add_argument("--part", choices=[*PARTS], action="append", help="this part, in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="cases of each part")
    parser.add_argument("--seconds", type=float, help="of one part (with --project: of each, 20)")
    parser.add_argument("--warm", action="store_true", help="with --seconds: after the first case of a part")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes at once, with --hours")
    parser.add_argument("--out", type=Path, default=Path("runs/storm"), help="folder of outcomes")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    parts = args.part or [*PARTS]
    if args.project:
        project(parts, args.seed, args.seconds or 20, args.out)
        return 0
    if args.part and len(parts) == 1 and args.hours is None:
        limit = args.count if args.count is not None or args.seconds is not None else 1
        outcomes = args.out / f"{parts[0]}.jsonl"
        return min(run_part(parts[0], args.seed, limit, args.seconds, outcomes, warm=args.warm), 1)
    return min(
        storm(
            parts,
            args.seed,
            args.count or (None if args.hours else 1),
            args.hours,
            args.out,
            args.workers,
        ),
        1,
    )


if __name__ == "__main__":
    sys.exit(main())
