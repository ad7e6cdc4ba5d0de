"""Results by line in a file, so that a stopped benchmark continues where it was."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scipy.stats import beta

Record = dict[str, Any]


def run_recorded(
    file: Path, keys: Iterable[str], measure: Callable[[str], Record], seconds: float | None = None
) -> list[Record]:
    """Measures every key that the file does not have yet, at most for `seconds`; returns all records of
    `keys`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    stored = {}
    if file.exists():
        stored = {record["key"]: record for record in map(json.loads, file.read_text().splitlines())}
    end = None if seconds is None else time.monotonic() + seconds
    records = []
    for key in keys:
        if key not in stored:
            if end is not None and time.monotonic() > end:
                continue
            stored[key] = {"key": key, **measure(key)}
            with file.open("a") as out:
                print(json.dumps(stored[key]), file=out, flush=True)
        records.append(stored[key])
    return records


def share(values: Iterable[bool]) -> str:
    """How many of how many, with the 95 % limits of Clopper and Pearson (1934)."""
    flags = list(values)
    k, n = sum(flags), len(flags)
    if not n:
        return "none"
    low = float(beta.ppf(0.025, k, n - k + 1)) if k else 0.0
    high = float(beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0
    return f"{k} of {n} ({k / n:.1%}; {low:.1%} to {high:.1%})"
