"""Only the user names URLs: a local server counts the requests of commands on an untrusted run."""

import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

import nearfar as nf
from nearfar.cli import main
from tests.data.test_data_packed import as_parquet, pictures
from tests.data.test_data_unreachable import Served

pytest.importorskip("aiohttp")

WORDS = ["backbone=resnet8-w8", "batch_size=32", "epochs=1", "probe_every=0", "workers=0", "device=cpu"]
REQUESTS: list[str] = []


class CountingServer(Served):
    """Files of a folder; every request is noted."""

    def send_head(self) -> Any:
        REQUESTS.append(f"{self.command} {self.path}")
        return super().send_head()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures with labels in `q/`, a run on them in `run/`, and a student of it in `student/`."""
    folder = tmp_path_factory.mktemp("urls")
    data = as_parquet(folder / "q", pictures())
    assert main(["pretrain", "simclr", data, "--out", str(folder / "run"), "--quiet", *WORDS]) == 0
    words = ["--out", str(folder / "child"), "--quiet", f"init={folder / 'run'}", *WORDS]
    assert main(["pretrain", "simclr", data, *words]) == 0
    return folder


@pytest.fixture
def http(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NEARFAR_CACHE_GB", "0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(CountingServer, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    REQUESTS.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def set_data(run: Path, url: str) -> None:
    """What a stranger may write into a run's config.yaml."""
    settings = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**settings, "data": url}))


@pytest.fixture
def strange(folder: Path, http: str, tmp_path: Path) -> Path:
    """The run, with a URL as its data."""
    run = tmp_path / "strange"
    shutil.copytree(folder / "run", run, ignore=shutil.ignore_patterns("cache"))
    set_data(run, f"{http}/q/")
    return run


COMMANDS: dict[str, tuple[int, Callable[[Path, str, Path], list[str]]]] = {
    "report": (0, lambda run, data, out: ["report", str(run), "--out", str(out / "page.html")]),
    "evaluate": (2, lambda run, data, out: ["evaluate", str(run)]),
    "evaluate on other data": (
        2, lambda run, data, out: ["evaluate", str(run), "--data", data, "--protocol", "knn"],
    ),
    "evaluate with two sets": (
        0,
        lambda run, data, out: ["evaluate", str(run), "--train", data, "--data", data, "--protocol", "knn"],
    ),
    "embed": (0, lambda run, data, out: ["embed", str(run), data, "--out", str(out / "f.parquet")]),
    "export": (0, lambda run, data, out: ["export", str(run), "--to", str(out / "out"), "--projector", data]),
    "distill": (
        0, lambda run, data, out: ["distill", str(run), data, "--out", str(out / "r"), "--quiet", *WORDS],
    ),
    "init": (
        0,
        lambda run, data, out: [
            "pretrain", "simclr", data, "--out", str(out / "r"), "--quiet", f"init={run}", *WORDS
        ],
    ),
    "resume": (2, lambda run, data, out: ["pretrain", "simclr", data, "--out", str(run), "--quiet", *WORDS]),
    "config": (
        2,
        lambda run, data, out: [
            "pretrain", "--config", str(run / "config.yaml"), "--out", str(out / "r"), "--quiet"
        ],
    ),
    "distill by config": (
        2,
        lambda run, data, out: [
            "distill", str(run), "--config", str(run / "config.yaml"), "--out", str(out / "r"), "--quiet"
        ],
    ),
    "search": (
        0, lambda run, data, out: ["search", str(run), data, "--query", f"{data}/0.parquet", "--top", "1"],
    ),
    "index": (0, lambda run, data, out: ["index", str(run), data, "--out", str(out / "index")]),
    "curate": (0, lambda run, data, out: ["curate", str(run), data, "--out", str(out / "curation")]),
    "sweep": (
        0,
        lambda run, data, out: [
            "sweep", "simclr", data, "seed=0,1", f"init={run}", *WORDS, "--out", str(out / "s"), "--jobs",
            "1",
            "--quiet",
        ],
    ),
    "semi": (
        0,
        lambda run, data, out: [
            "semi", "simclr", data, "--labels", "8", "--init", str(run), "--out", str(out / "semi"),
            "--quiet",
            "finetune.epochs=1", "distil.epochs=1", "workers=0",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_url_in_a_run_sends_no_request(
    name: str, strange: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, words = COMMANDS[name]
    assert main(words(strange, str(folder / "q"), tmp_path)) == code, capsys.readouterr().err
    assert REQUESTS == []
    if name in ("report", "evaluate", "evaluate on other data"):
        assert "--allow-urls" in capsys.readouterr().err


def test_a_url_in_an_ancestor_of_a_run_sends_no_request(strange: Path, folder: Path, tmp_path: Path) -> None:
    """`evaluate` looks for test instances in the data of ancestors, by `init` in config.yaml."""
    child = tmp_path / "child"
    shutil.copytree(folder / "child", child, ignore=shutil.ignore_patterns("cache"))
    text = (child / "config.yaml").read_text()
    (child / "config.yaml").write_text(text.replace(str(folder / "run"), str(strange)))
    assert main(["evaluate", str(child), "--protocol", "knn,quality", "--no-baselines"]) == 0
    assert REQUESTS == []
    command = ["evaluate", str(child), "--protocol", "knn,quality", "--no-baselines", "--allow-urls"]
    assert main(command) == 0
    assert REQUESTS != []


@pytest.mark.parametrize(
    "url",
    [
        "{http}/q/",
        "{http}/q/0.parquet",
        "HTTP://127.0.0.1:9/q/",
        "s3://bucket/q",
        "gs://bucket/q",
        "reference://::{http}/references.json",
        "simplecache::{http}/q/0.parquet",
        "zip://0.parquet::{http}/q.zip",
        "dir://q::{http}/",
        "file://{folder}/q",
        "memory://q",
        "nowhere://a",
    ],
)
def test_whatever_fsspec_opens_is_refused_in_a_run(url: str, strange: Path, http: str, folder: Path) -> None:
    set_data(strange, url.format(http=http, folder=folder))
    run = nf.Run.open(strange)
    with pytest.raises(nf.UserError, match=r"config\.yaml names the URL .* it was not opened"):
        nf.evaluate(run)
    with pytest.raises(nf.UserError, match=r"names the URL"):
        run.open_data()
    with pytest.raises(nf.UserError, match=r"names the URL"):
        run.at(run.steps[-1]).open_data()
    nf.write_report(run, strange / "page.html")
    assert REQUESTS == []


def test_a_url_is_opened_where_the_user_repeats_or_allows_it(
    strange: Path, http: str, tmp_path: Path
) -> None:
    url, knn = f"{http}/q/", ["--protocol", "knn", "--no-baselines"]
    for words in (["--data", url], ["--train", url], ["--allow-urls"]):
        REQUESTS.clear()
        assert main(["evaluate", str(strange), *knn, *words]) == 0
        assert REQUESTS != [], words
    REQUESTS.clear()
    assert main(["report", str(strange), "--allow-urls", "--out", str(tmp_path / "page.html")]) == 0
    assert REQUESTS != []
    for run in (nf.Run.open(strange, data=url), nf.Run.open(strange, allow_urls=True)):
        REQUESTS.clear()
        assert len(run.open_data()) == len(pictures())
        assert REQUESTS != []


def test_a_url_that_resembles_the_repeated_one_is_not_opened(strange: Path, http: str, folder: Path) -> None:
    with pytest.raises(nf.UserError, match="names the URL"):
        nf.evaluate(nf.Run.open(strange), train=None, data=str(folder / "q"), protocols=["knn"])
    set_data(strange, f"{http}/q/0.parquet")
    with pytest.raises(nf.UserError, match="names the URL"):
        nf.evaluate(nf.Run.open(strange), data=f"{http}/q/", protocols=["knn"])
    assert REQUESTS == []


def test_pretraining_on_a_url_is_resumed_by_the_same_command(http: str, tmp_path: Path) -> None:
    words = ["pretrain", "simclr", f"{http}/q/", "--out", str(tmp_path / "run"), "--quiet", *WORDS]
    assert main([*words, "max_time=0.001s"]) in (0, 75)
    REQUESTS.clear()
    assert main(words) == 0
    assert REQUESTS != []
    assert nf.Run.open(tmp_path / "run").settings.data == f"{http}/q/"


def test_a_url_in_a_file_of_settings_is_used_where_it_is_repeated_or_allowed(
    http: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, file = f"{http}/q/", tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({"recipe": "simclr", "data": url}))
    common = ["--config", str(file), "--quiet", "--print-config"]
    assert main(["pretrain", *common]) == 2
    assert f"data names the URL {url!r}" in capsys.readouterr().err
    assert REQUESTS == []
    for words in (["simclr", url], ["--allow-urls"]):
        REQUESTS.clear()
        assert main(["pretrain", *words, *common]) == 0
        assert REQUESTS != []
    file.write_text(yaml.safe_dump({"probe_data": [url, "digits"]}))
    REQUESTS.clear()
    assert main(["sweep", "simclr", "digits", "--config", str(file), "--out", str(tmp_path / "s")]) == 2
    assert f"probe_data names the URL {url!r}" in capsys.readouterr().err
    assert REQUESTS == []
