"""Stores that fail to give bytes: the run does not change, and unread items are not reported as bad."""

import csv
import re
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from nearfar.cli import main
from nearfar.data import open_data, pack
from nearfar.data import remote as retry_module
from nearfar.errors import Stopped, UserError
from tests.data.test_data_packed import COUNT, as_folder, as_parquet, as_tar, content, everything, pictures


class NoAnswer(Exception):
    """What a client library raises that knows nothing of OSError."""


class FailingFile:
    """A file whose reads fail on request."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        Flaky.called()
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Flaky(LocalFileSystem):
    """Local files; the calls with these numbers fail."""

    protocol = "flaky"
    calls = 0
    fails: Callable[[int], bool] = staticmethod(lambda call: False)
    kind: type[Exception] = ConnectionResetError

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("flaky://", ""))

    @classmethod
    def called(cls) -> None:
        cls.calls += 1
        if cls.fails(cls.calls):
            raise cls.kind("Connection reset by peer")

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.called()
        return FailingFile(super().open(path, mode, **options))

    def info(self, path: str, **options: Any) -> Any:
        self.called()
        return super().info(path, **options)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Flaky]]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setenv("NEARFAR_CACHE_GB", "0")
    monkeypatch.setattr(retry_module, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    Flaky.calls, Flaky.fails = 0, staticmethod(lambda call: False)
    yield Flaky
    Flaky.fails = staticmethod(lambda call: False)


@pytest.mark.parametrize("kind", [ConnectionResetError, TimeoutError, NoAnswer])
@pytest.mark.parametrize("packed", [False, True])
def test_a_single_failed_remote_call_changes_nothing(
    kind: type[Exception], packed: bool, tmp_path: Path, flaky: type[Flaky]
) -> None:
    spec = as_parquet(tmp_path / "q", pictures())
    spec = str(pack(spec, tmp_path / "p")) if packed else spec
    read_all = lambda: everything(open_data(f"flaky://{spec}", quarantine=tmp_path / "bad.csv"))
    full = read_all()
    assert flaky.calls > 10
    flaky.kind = kind
    for place in range(7):
        flaky.calls, flaky.fails = 0, staticmethod(lambda call, place=place: call % 7 == place)
        np.testing.assert_array_equal(read_all(), full)
    assert (tmp_path / "bad.csv").read_text() == "path,reason\n"


def test_run_stops_without_its_store_and_resumes_with_it(
    tmp_path: Path, flaky: type[Flaky], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = f"flaky://{as_parquet(tmp_path / 'q', pictures())}"
    fixed = [
        "batch_size=40",
        "backbone=resnet8-w8",
        "image_size=8",
        "epochs=1",
        "held_out=0",
        "probe_every=0",
        "workers=0",
    ]
    command = ["pretrain", "simclr", spec, "--out", str(tmp_path / "run"), *fixed, "--quiet"]
    data = open_data(spec)
    opening = flaky.calls
    flaky.fails = staticmethod(lambda call: call > opening + 2)
    with pytest.raises(Stopped, match=r"could not be read in 4 tries \(Connection reset by peer\)"):
        everything(data)
    flaky.fails = staticmethod(lambda call: False)
    assert len(everything(data)) == COUNT  # the same object reads on
    flaky.calls = 0
    flaky.fails = staticmethod(lambda call: call > opening + 12)
    assert main(command) == 75
    assert "rerun the command to resume" in capsys.readouterr().err
    flaky.fails = staticmethod(lambda call: False)
    assert main(command) == 0
    with open(tmp_path / "run" / "quarantine.csv", newline="") as file:
        assert list(csv.reader(file)) == [["path", "reason"]]
    flaky.fails = staticmethod(lambda call: True)
    assert main([*command[:3], "--out", str(tmp_path / "other"), *fixed]) == 2
    assert "cannot be opened: Connection reset by peer" in capsys.readouterr().err


def test_missing_local_file_is_not_reported_as_damaged(tmp_path: Path) -> None:
    spec = as_parquet(tmp_path / "q", pictures())
    data = open_data(spec, scan_bytes=0, quarantine=tmp_path / "bad.csv")
    for file in Path(spec).rglob("*.parquet"):
        file.unlink()
    with pytest.raises(UserError, match="No such file"):
        everything(data)
    assert (tmp_path / "bad.csv").read_text() == "path,reason\n"


class Served(SimpleHTTPRequestHandler):
    """Files of a folder, with or without an answer to range requests."""

    ranges = True

    def log_message(self, *words: Any) -> None:
        pass

    def send_head(self) -> Any:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return super().send_head()
        size, byte_range = path.stat().st_size, re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (
            (int(byte_range[1]), min(int(byte_range[2]), size - 1))
            if byte_range and self.ranges
            else (0, size - 1)
        )
        self.send_response(206 if byte_range and self.ranges else 200)
        if self.ranges:
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        file = path.open("rb")
        file.seek(first)
        return file

    def copyfile(self, source: Any, outputfile: Any) -> None:
        byte_range = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if self.ranges else None
        outputfile.write(source.read(int(byte_range[2]) - int(byte_range[1]) + 1 if byte_range else -1))


@pytest.fixture
def http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("NEARFAR_CACHE_GB", "0")
    monkeypatch.setattr(retry_module, "RETRY_SECONDS", (0.0,))
    monkeypatch.setattr(Served, "ranges", True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_remote_tars_and_parquet_equal_local_ones(tmp_path: Path, http: str) -> None:
    tars, parquet = as_tar(tmp_path / "t", pictures()), as_parquet(tmp_path / "q", pictures())
    local = content(pack(tars, tmp_path / "here", shuffle=False))
    shards = {name: digest for name, digest in local.items() if name.startswith("shard")}
    for place, url in enumerate([f"file://{tars}", f"{http}/t/"]):  # over http: the page that links to them
        remote = content(pack(url, tmp_path / f"there{place}", shuffle=False))
        assert {name: remote[name] for name in shards} == shards
        here, there = open_data(tars), open_data(url)  # read in place, nothing is packed
        np.testing.assert_array_equal(everything(there), everything(here))
        np.testing.assert_array_equal(there.labels, here.labels)
    single = open_data(str(pack(f"{http}/t/0.tar", tmp_path / "single", shuffle=False)))
    np.testing.assert_array_equal(everything(single), pictures()[:45])
    np.testing.assert_array_equal(everything(open_data(f"{http}/q/")), everything(open_data(parquet)))


def test_messages_about_unreadable_remote_data(
    tmp_path: Path, http: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_parquet(tmp_path / "q", pictures())
    as_tar(tmp_path / "t", pictures())
    folder = as_folder(tmp_path / "s", pictures())
    for url in (f"{http}/s/", f"file://{folder}"):
        with pytest.raises(UserError, match=r"which is what can be read from elsewhere"):
            pack(url, tmp_path / "p")
    for value in ("inf", "nan", "-1", "much"):
        monkeypatch.setenv("NEARFAR_CACHE_GB", value)
        with pytest.raises(
            UserError, match=f"NEARFAR_CACHE_GB was '{value}'; expected a number of gigabytes"
        ):
            open_data(f"file://{tmp_path / 'q'}")
    monkeypatch.setenv("NEARFAR_CACHE_GB", "0")
    monkeypatch.setattr(Served, "ranges", False)
    for name in ("q/0.parquet", "t/0.tar"):
        with pytest.raises(
            UserError, match=r"cannot be read in parts.*its server does not answer range requests"
        ):
            pack(f"{http}/{name}", tmp_path / "p")


def test_refused_connection_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec raises FileNotFoundError with the URL alone, whatever happened; its cause says what it was."""
    monkeypatch.setattr("nearfar.data.remote.RETRY_SECONDS", ())
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening, so that connections are refused
        with pytest.raises(UserError, match=r"cannot be opened: .*[Cc]onnect"):
            open_data(f"http://127.0.0.1:{unused.getsockname()[1]}/photos.parquet")
