"""A short storm: the same cases as `make storm`, few of each, always the same seeds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# the whole of it in under two minutes of one core; the crowd of 100,000 files waits for the long storm
COUNTS = {
    "files": 60,
    "settings": 100,
    "folders": 60,
    "compositions": 24,
    "kills": 2,
    "mishaps": 2,
    "odd": 40,
    "parsers": 22,
}


@pytest.mark.parametrize("part", COUNTS)
def test_nothing_breaks(part: str, tmp_path: Path) -> None:
    words = ["--part", part, "--count", str(COUNTS[part]), "--seed", "1000", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.storm", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    rows = [json.loads(line) for line in (tmp_path / f"{part}.jsonl").read_text().splitlines()]
    ended = [row for row in rows if "outcome" in row]
    broken = [(row["seed"], row["said"]) for row in ended if row["outcome"] == "broken"]
    assert not broken, broken[0][1]
    assert done.returncode == 0, (rows[-1], done.stderr[-2000:])
    assert len(ended) == COUNTS[part]
    assert len({row["outcome"] for row in ended}) > 1 or COUNTS[part] < 10  # the storm reaches both sides


def test_a_broken_promise_is_seen(tmp_path: Path) -> None:
    """The runner itself: a case that raises is counted, named by its seed, and gives exit code 1."""
    code = (
        "import sys, tests.storm.__main__ as storm\n"
        "def case(rng, place):\n    if rng.random() < 0.5: raise KeyError('lost')\n    return 'fine', {}\n"
        "storm.case_of = lambda name: case\n"
        f"sys.argv = ['storm', '--part', 'files', '--count', '10', '--out', {str(tmp_path)!r}]\n"
        "sys.exit(storm.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "files.jsonl").read_text().splitlines()]
    outcomes = [row["outcome"] for row in rows if "outcome" in row]
    assert 0 < outcomes.count("broken") < len(outcomes) == 10
