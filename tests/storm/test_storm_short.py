"""A short storm: the same cases as `make storm`, few of each, always the same seeds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# (part, first seed, cases), those of one process together: all in about a minute of one core. The crowd of 100,000 files waits for
# the long storm; the kill and the mishap (a full disk) happen to one job, so that what it should come to is found once
SHORT = {
    "files": (("files", 1000, 60), ("settings", 1000, 100), ("parsers", 1000, 22)),
    "folders": (("folders", 1000, 30), ("compositions", 1000, 12), ("odd", 1000, 40), ("odd", 1049, 1)),
    "commands": (("kills", 1010, 1), ("mishaps", 1005, 1), ("faults", 1000, 2)),
}
RUN = """
import json, sys
from pathlib import Path
from tests.storm.__main__ import run_part
for number, (name, seed, count) in enumerate(json.loads(sys.argv[2])):
    run_part(name, seed, count, None, Path(sys.argv[1]) / f"{number}.jsonl")
"""


@pytest.mark.parametrize("group", SHORT)
def test_short_storm_breaks_nothing(group: str, tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), json.dumps(SHORT[group])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    for number, (_, _, count) in enumerate(SHORT[group]):
        rows = [json.loads(line) for line in (tmp_path / f"{number}.jsonl").read_text().splitlines()]
        ended = [row for row in rows if "outcome" in row]
        broken = [(row["part"], row["seed"], row["message"]) for row in ended if row["outcome"] == "broken"]
        assert not broken, f"{broken[0][:2]}: {broken[0][2]}"
        assert len(ended) == count
        assert len({row["outcome"] for row in ended}) > 1 or count < 10  # the storm reaches both sides


def test_storm_detects_a_broken_promise(tmp_path: Path) -> None:
    """The runner itself: a case that raises is counted, named by its seed, and gives exit code 1."""
    code = (
        "import sys, tests.storm.__main__ as storm\n"
        "def case(rng, place):\n    if rng.random() < 0.5: raise KeyError('lost')\n    return 'fine', {}\n"
        "storm.case_of = lambda name: case\n"
        f"sys.argv = ['storm', '--part', 'files', '--count', '10', '--out', {str(tmp_path)!r}]\n"
        "sys.exit(storm.main())"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 1, process.stderr
    rows = [json.loads(line) for line in (tmp_path / "files.jsonl").read_text().splitlines()]
    outcomes = [row["outcome"] for row in rows if "outcome" in row]
    assert 0 < outcomes.count("broken") < len(outcomes) == 10
