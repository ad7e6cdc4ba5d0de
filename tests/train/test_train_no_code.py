"""Opening a run executes nothing that is in it, and no command speaks to anybody: audit hooks watch."""

import re
from pathlib import Path

import pytest

from nearfar.cli import main
from nearfar.train.pretrain import pretrain
from tests.forked import run_command
from tests.helpers import run_python

WATCH = """
import sys
import nearfar.run.trained, nearfar.evaluate   # our own imports come before the watch begins
seen = []
watched = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec")
sys.addaudithook(lambda event, args: seen.append(event) if event in watched else None)
run = nearfar.run.trained.Run.open(sys.argv[1])
run.encoder()
run.metrics, run.results, run.choices()
print(seen)
"""


def test_loading_a_run_runs_no_code(tmp_path: Path) -> None:
    config = {"backbone": "resnet8-w16", "batch_size": 256, "epochs": 1, "probe_every": 0}
    pretrain("moco", "digits", tmp_path / "run", quiet=True, config=config)
    process = run_command(tmp_path / "run", code=WATCH)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "[]"


def test_a_config_with_a_python_tag_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(f"recipe: !!python/object/apply:os.mkdir ['{tmp_path}/made']\n")
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "config.yaml" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


OFFLINE_RUN = """
import sys
seen = []
calls = ("connect", "bind", "sendto", "sendmsg", "getaddrinfo", "gethostbyname")
watched = tuple(f"socket.{call}" for call in calls)
sys.addaudithook(lambda event, args: seen.append((event, str(args[1:]))) if event in watched else None)
import nearfar as nf
run = nf.pretrain(
    "moco", "digits", sys.argv[1], backbone="resnet8-w16", batch_size=256, epochs=1, probe_every=0, quiet=True
)
nf.evaluate(run, protocols=["knn"])
run.embed("digits")
nf.write_report([run], sys.argv[1] + "/report.html")
print(seen)
"""


def test_nothing_listens_and_nothing_is_sent(tmp_path: Path) -> None:
    process = run_python("-c", OFFLINE_RUN, tmp_path / "run")
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize(("page", "minimum"), [("SECURITY.md", 14), ("docs/reliability.md", 38)])
def test_every_promise_and_finding_cites_an_existing_test(page: str, minimum: int) -> None:
    root = Path(__file__).parents[2]
    rows = [line for line in (root / page).read_text().splitlines() if "::test_" in line]
    assert len(rows) >= minimum
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", "\n".join(rows)):
        assert f"def {name}(" in (root / file).read_text(), f"{file}::{name}"
