"""Loggers: every service stores exactly the rows of metrics.jsonl, offline; a custom logger gets them all."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nearfar as nf
from nearfar.config import fields
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.run.metrics import read_metrics
from nearfar.train.loggers import LOGGERS, scalars
from tests.helpers import run_python

SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 32,
    "epochs": 2,
    "probe_every": 0,
    "workers": 0,
    "held_out": 0.0,
    "log_every": 1,
}

# refuses connections to other machines; connections through a proxy reach the listener of the test
CHILD = """
import ipaddress, json, sys

def audit(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            print("CONNECTION", arguments[1], flush=True)
            raise ConnectionRefusedError(f"a test connects to {arguments[1]}")
    if event == "socket.getaddrinfo" and arguments[0] not in (None, "localhost", "127.0.0.1"):
        print("LOOKUP", arguments[0], flush=True)
        raise ConnectionRefusedError(f"a test looks up {arguments[0]}")

sys.addaudithook(audit)
import nearfar as nf
settings = json.loads(sys.argv[1])
nf.pretrain("simclr", sys.argv[2], sys.argv[3], quiet=True, **settings)
"""


@pytest.fixture
def listener() -> Iterator[tuple[int, list[Any]]]:
    """A local port that counts the connections made to it."""
    server = socket.create_server(("127.0.0.1", 0))
    connections: list[Any] = []

    def accept() -> None:
        while True:
            try:
                connection, address = server.accept()
            except OSError:
                return
            connections.append(address)
            connection.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield server.getsockname()[1], connections
    server.close()


def tensorboard_values(folder: Path) -> dict[tuple[int, str], float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "run" / "tb"))
    events.Reload()
    return {(e.step, tag): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}


def mlflow_values(folder: Path) -> dict[tuple[int, str], float]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'run' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("nearfar")
    (run,) = client.search_runs([experiment.experiment_id])
    histories = [client.get_metric_history(run.info.run_id, name) for name in run.data.metrics]
    return {(m.step, m.key): m.value for history in histories for m in history}


def trackio_values(folder: Path) -> dict[tuple[int, str], float]:
    code = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as S; "
        "print(json.dumps(S.get_logs('nearfar', 'run')))"
    )
    process = run_python("-c", code, env={**os.environ, "TRACKIO_DIR": str(folder / "trackio")}, check=True)
    rows = json.loads(process.stdout)
    return {(row["step"], key): value for row in rows for key, value in row.items() if "/" in key}


def wandb_values(folder: Path) -> dict[tuple[int, str], float]:
    from wandb.proto import wandb_internal_pb2

    (path,) = (folder / "run" / "wandb").glob("offline-run-*/*.wandb")
    values: dict[tuple[int, str], float] = {}
    for content in leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "history":
            row = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            values |= {(row["_step"], key): value for key, value in row.items() if "/" in key}
    return values


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log: blocks of 32 KB, parts with checksum (4 bytes), length (2), type (1: whole,
    2-4)."""
    place, parts = 7, b""  # the file's own header
    while place < len(content):
        remaining = 2**15 - place % 2**15
        if remaining < 7:
            place += remaining
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


READERS: dict[str, Callable[[Path], dict[tuple[int, str], float]]] = {
    "tensorboard": tensorboard_values,
    "wandb": wandb_values,
    "mlflow": mlflow_values,
    "trackio": trackio_values,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOGGERS)
def test_a_service_stores_the_rows_of_metrics_offline(
    name: str, tmp_path: Path, listener: tuple[int, list[Any]]
) -> None:
    pytest.importorskip(name)
    port, connections = listener
    np.savez(tmp_path / "digits.npz", images=np.arange(64 * 64, dtype=np.uint8).reshape(64, 8, 8))
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), f"http://127.0.0.1:{port}")
    environment = {
        **os.environ,
        **proxies,
        **{key.upper(): value for key, value in proxies.items()},
        "HOME": str(tmp_path),
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "OMP_NUM_THREADS": "1",
    }
    for key in ("MLFLOW_TRACKING_URI", "NO_PROXY", "no_proxy"):
        environment.pop(key, None)
    settings = json.dumps({**SMALL, "logger": name})
    process = run_python(
        "-c", CHILD, settings, tmp_path / "digits.npz", tmp_path / "run", env=environment, cwd=tmp_path
    )
    assert process.returncode == 0, process.stderr
    assert (process.stdout, connections) == ("", [])
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    expected = {(row["step"], key): value for row in rows for key, value in scalars(row).items()}
    assert len(expected) > 20
    stored = READERS[name](tmp_path)
    assert stored.keys() == expected.keys()
    assert stored == pytest.approx(expected, rel=1e-6)  # TensorBoard stores float32


def test_integers_are_plotted_and_step_epoch_and_flags_are_not() -> None:
    row = {"kind": "hook", "step": 4, "epoch": 1, "count": 3, "value": 3.0, "flag": True, "text": "x"}
    assert scalars(row) == {"hook/count": 3, "hook/value": 3.0}


class Collected(nf.Logger):
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.closed = 0

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.closed += 1


def digits() -> Any:
    return open_data("digits").subset(np.arange(96))


def test_a_custom_logger_gets_every_row_and_is_closed_once(tmp_path: Path) -> None:
    logger = Collected()
    run = nf.pretrain("simclr", digits(), tmp_path / "run", quiet=True, loggers=[logger], **SMALL)
    assert [{**row} for row in logger.rows] == read_metrics(run.path / "metrics.jsonl")
    assert logger.closed == 1
    assert {"step", "loss", "nats", "ceiling", "images_per_s"} <= logger.rows[0].keys()


def test_a_resumed_run_logs_only_new_rows(tmp_path: Path) -> None:
    first, second = Collected(), Collected()
    with pytest.raises(nf.Stopped):
        nf.pretrain("moco", digits(), tmp_path, quiet=True, loggers=[first], max_time=1e-9, **SMALL)
    run = nf.pretrain("moco", digits(), tmp_path, quiet=True, loggers=[second], **SMALL)
    steps = [[row["step"] for row in logger.rows if row["kind"] == "train"] for logger in (first, second)]
    assert steps == [[1], [2, 3, 4, 5, 6]]
    assert [row["step"] for row in run.metrics if row["kind"] == "train"] == steps[0] + steps[1]


def test_a_logger_that_fails_ends_the_run_and_all_are_closed(tmp_path: Path) -> None:
    class Failing(nf.Logger):
        def log(self, row: dict[str, Any]) -> None:
            raise RuntimeError("no connection")

    collector = Collected()
    with pytest.raises(RuntimeError, match="no connection"):
        nf.pretrain("simclr", digits(), tmp_path, quiet=True, loggers=[Failing(), collector], **SMALL)
    assert collector.closed == 1


def test_names_of_loggers(tmp_path: Path) -> None:
    assert set(fields.LOGGERS) == set(LOGGERS)
    with pytest.raises(
        UserError, match=r"logger was 'wandbb' .did you mean wandb.*; expected tensorboard, wandb"
    ):
        nf.pretrain("simclr", digits(), tmp_path / "a", quiet=True, logger="tensorboard,wandbb", **SMALL)
    nf.pretrain("simclr", digits(), tmp_path / "b", quiet=True, logger="none", **SMALL)
    assert not (tmp_path / "b" / "tb").exists()
    assert (tmp_path / "b" / "metrics.jsonl").is_file()
    nf.pretrain("simclr", digits(), tmp_path / "b", quiet=True, logger="auto", **SMALL)  # may change
