"""Real processes killed at random moments: the end is bit-equal to never having been killed."""

import functools
import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from nearfar.run import checkpoints

RUNS: dict[str, dict[str, Any]] = {
    "simclr": {},
    "moco": {"encoders": {"dropout": 0.2}, "negatives": {"size": 512}},
    "instdisc": {"negatives": {"sample": 256}},
    "simclr-cave": {"selection": {"after": 0.5, "every": 1.0}},
}
SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 256,
    "epochs": 2,
    "checkpoint_every": 1,
    "workers": 1,
    "keep": 1,
}


def work(recipe: str, out: str) -> None:
    """Train, evaluate, embed and report: what a night's job does."""
    torch.set_num_threads(1)
    from nearfar.evaluate import evaluate_run
    from nearfar.report import write_report
    from nearfar.run.embed import write_embedding
    from nearfar.train.pretrain import pretrain

    run = pretrain(recipe, "digits", out, quiet=True, config={**SMALL, **RUNS[recipe]})
    evaluate_run(run, protocols=["knn"])
    write_embedding(run, "digits", Path(out) / "features.parquet")
    write_report([run], Path(out) / "report.html")


def start(recipe: str, out: Path) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["nearfar.train.pretrain", "nearfar.report", "torch.utils.tensorboard"])
    child = context.Process(target=work, args=(recipe, str(out)))
    child.start()
    return child


@functools.cache
def reference(recipe: str) -> tuple[Path, float]:
    """The same work never killed, and how long it took."""
    out, begun = Path(tempfile.mkdtemp(prefix="storm-whole-")), time.monotonic()
    child = start(recipe, out)
    child.join()
    assert child.exitcode == 0
    return out, time.monotonic() - begun


def left(out: Path) -> tuple[dict[str, torch.Tensor], bytes, bytes]:
    newest = checkpoints.newest(out / "ckpt")
    assert newest is not None
    evaluation = (out / "evaluation.json").read_bytes()
    return checkpoints.load(newest)[0], evaluation, (out / "features.parquet").read_bytes()


def case(rng: random.Random, place: Path) -> str:
    recipe = rng.choice([*RUNS])
    whole, duration = reference(recipe)
    kills, out = 0, place / "run"
    for _ in range(12):
        child = start(recipe, out)
        child.join(rng.uniform(0, 1.1 * duration))
        if child.exitcode is None:
            number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            os.kill(child.pid, number)
            if number is signal.SIGSTOP:
                time.sleep(0.2)
                os.kill(child.pid, signal.SIGCONT)
                time.sleep(rng.uniform(0, 0.3 * duration))
                if child.exitcode is None:
                    os.kill(child.pid, signal.SIGKILL)
            kills += 1
        child.join()
        found = sorted((out / "ckpt").glob("step-*")) if (out / "ckpt").exists() else []
        assert all(checkpoints.valid(folder) for folder in found)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL, child.exitcode
    else:
        last = start(recipe, out)
        last.join()
        assert last.exitcode == 0
    (one, scores, features), (other, again, embedded) = left(whole), left(out)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert scores == again
    assert features == embedded
    assert (out / "report.html").stat().st_size > 10_000
    return f"{kills} kills, same bits"
