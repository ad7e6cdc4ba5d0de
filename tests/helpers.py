"""What tests of several folders share: quick settings, child processes, ports, signals, tensors of a run."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.run import checkpoints

# settings of a training that takes a second or two, and pictures for it
QUICK: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 16,
    "workers": 0,
    "precision": "fp32",
    "probe_every": 0,
    "held_out": 0,
    "quiet": True,
}
IMAGES = np.random.default_rng(0).integers(0, 256, (48, 12, 12, 3), dtype=np.uint8)
LABELS = np.arange(48) % 3


def run_python(*words: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Runs the interpreter with these words and captures its output as text."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, **{"capture_output": True, "text": True, "check": False, **options})


def newest_tensors(out: Path) -> dict[str, Tensor]:
    """The tensors of the newest checkpoint of a run's folder."""
    newest = checkpoints.newest(out / "ckpt")
    assert newest is not None
    return checkpoints.load(newest)[0]


def default_signals() -> None:
    """In a child: default signal handling, whatever the tests were started with (nohup, a background job)."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
