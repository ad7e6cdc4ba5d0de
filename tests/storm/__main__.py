"""The storm: random mishaps against nearfar's promises, each reproducible from its seed.

    make storm HOURS=1                                     every part in turn, an hour in all
    python -m tests.storm --part files --seed 17 --count 1     one case again

A case is a function of a random generator and an empty folder. It returns a word for what happened, or raises: anything but a
`UserError` is a promise broken. Every part runs in a process of its own, so that one that is brought down is a finding too.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHARES = {"files": 0.2, "settings": 0.05, "folders": 0.15, "compositions": 0.3, "kills": 0.3}


def part(name: str) -> Callable[[random.Random, Path], str]:
    """The case of a part, imported when asked for: not every part needs torch."""
    if name == "files":
        from tests.storm.files import case
    elif name == "settings":
        from tests.storm.words import case
    elif name == "folders":
        from tests.storm.folders import case
    elif name == "compositions":
        from tests.storm.compositions import case
    else:
        from tests.storm.kills import case
    return case


def run_part(name: str, seed: int, count: int | None, seconds: float | None, out: Path) -> int:
    """Cases of one part until either limit; a line of JSON for each, written before the next begins."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    from nearfar.errors import UserError

    case, begun, broken = part(name), time.monotonic(), 0
    with out.open("a", encoding="utf-8") as lines:
        number = 0
        while (count is None or number < count) and (seconds is None or time.monotonic() - begun < seconds):
            place = Path(tempfile.mkdtemp(prefix="storm-"))
            row: dict[str, Any] = {"part": name, "seed": seed + number}
            lines.write(json.dumps({**row, "began": True}) + "\n")
            lines.flush()
            try:
                row["outcome"] = case(random.Random(f"{name} {seed + number}"), place)
            except UserError as refusal:
                row |= {"outcome": "refused", "said": str(refusal)[:500]}
            except BaseException:
                row |= {"outcome": "broken", "said": traceback.format_exc()[-3000:]}
                broken += 1
            finally:
                shutil.rmtree(place, ignore_errors=True)
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            number += 1
    return broken


def storm(parts: list[str], seed: int, counts: dict[str, int], hours: float | None, out: Path) -> int:
    """Every part in a process of its own; returns how many promises were broken."""
    broken = 0
    total = sum(SHARES[name] for name in parts)
    for name in parts:
        file = out / f"{name}.jsonl"
        file.unlink(missing_ok=True)
        limit = ["--count", str(counts[name])] if name in counts else []
        if hours is not None:
            limit = ["--seconds", str(3600 * hours * SHARES[name] / total)]
        words = [sys.executable, "-m", "tests.storm", "--part", name, "--seed", str(seed), *limit]
        done = subprocess.run([*words, "--out", str(out)], check=False, capture_output=True, text=True)
        broken += told(name, file, done)
    return broken


def told(name: str, file: Path, done: "subprocess.CompletedProcess[str]") -> int:
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    ended = [row for row in rows if "outcome" in row]
    counted = Counter(row["outcome"] for row in ended)
    print(
        f"{name:<14}{len(ended):>8} cases   " + ", ".join(f"{n} {what}" for what, n in counted.most_common())
    )
    bad = [row for row in ended if row["outcome"] == "broken"]
    for row in bad[:5]:
        print(f"  seed {row['seed']}: {row['said'].strip().splitlines()[-1]}")
    if done.returncode not in (0, 1):  # brought down from outside Python: the last case that began
        last = rows[-1]["seed"] if rows else "none"
        print(f"  the process ended with {done.returncode} at seed {last}\n{done.stderr[-2000:]}")
        return len(bad) + 1
    return len(bad)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm")
    parser.add_argument("--hours", type=float, help="how long in all, shared out between the parts")
    parser.add_argument("--part", choices=[*SHARES], action="append", help="this part, in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="cases of each part")
    parser.add_argument("--seconds", type=float, help="of one part")
    parser.add_argument("--out", type=Path, default=Path("runs/storm"), help="folder of outcomes")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.part and len(given.part) == 1 and given.hours is None:
        limit = given.count if given.count is not None or given.seconds is not None else 1
        broken = run_part(
            given.part[0], given.seed, limit, given.seconds, given.out / f"{given.part[0]}.jsonl"
        )
        return min(broken, 1)
    parts = given.part or [*SHARES]
    counts = dict.fromkeys(parts, given.count) if given.count else {}
    return min(storm(parts, given.seed, counts, given.hours, given.out), 1)


if __name__ == "__main__":
    sys.exit(main())
