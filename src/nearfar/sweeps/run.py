"""A sweep from its first cell to its table: `nf.sweep` and `nearfar sweep`."""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearfar.errors import Stopped, UserError
from nearfar.sweeps.asked import Asked
from nearfar.sweeps.space import space_of
from nearfar.sweeps.table import Sweep
from nearfar.sweeps.work import Work
from nearfar.system.files import as_path, write_atomic
from nearfar.system.signals import exit_with_parent

RESUMABLE = 75  # what a worker ends with that was asked to stop


def sweep(
    recipe: Any,
    data: Any = None,
    out: str | Path = "sweep",
    *,
    command: str = "pretrain",
    metric: str | None = None,
    test: Any = None,
    validation: float | None = None,
    same_labels: bool = False,
    search: str | None = None,
    trials: int | None = None,
    prune: bool = True,
    jobs: int = 1,
    quiet: bool = False,
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Sweep:
    """Tries settings, chooses by a part of the training data that is not trained on, and says what the chosen does on `test`.

        found = nf.sweep("simclr", "photos/", out="sweeps/a", temperature=[0.1, 0.5], batch_size=[64, 256], seed=[0, 1, 2], test="other/")
        found.best.point, found.best.mean, print(found)

    Lists are axes, `seed=[0, 1, 2]` repetitions; with `search="tpe"` and `trials=30`, text such as "1e-4..1e-1:log" is a range. Dotted
    settings go into `config`: `config={"selection.lower": [0, 0.5]}`. `command`: "pretrain"; "train" (give the data alone), "distill" (a
    teacher and data), "mi" (two files). Called again it goes on, and calls from several processes share one folder.
    """
    subjects = (recipe,) if data is None else (recipe, data)
    space = space_of({**(config or {}), **settings})
    asked = Asked(
        command,
        subjects,
        space,
        as_path("out", out),
        metric,
        test,
        validation,
        same_labels,
        search,
        trials,
        prune,
        quiet,
    )
    return run_sweep(asked, jobs)


def run_sweep(asked: Asked, jobs: int = 1) -> Sweep:
    """Does what is left of a sweep, in `jobs` processes, and writes down what it found."""
    if jobs < 1:
        raise UserError(f"--jobs was {jobs}; expected a whole number from 1")
    if jobs > 1 and not all(isinstance(s, (str, Path)) for s in asked.subjects):
        raise UserError(
            f"jobs was {jobs}, but the data are an object of this process; write them to a file, or jobs=1"
        )
    work = Work(asked)
    work.check()
    storage = work.storage.made(asked.title)
    if jobs > 1 and work.left() > 1:
        _in_processes(asked, min(jobs, work.left()), work.failed_before)
    work.do()
    found = work.found()
    write_atomic(storage.path / "sweep.json", found.as_text())
    write_atomic(storage.path / "sweep.csv", found.as_csv())
    _draw(found, storage.path)
    return found


def _draw(found: Sweep, folder: Path) -> None:
    """figure.svg and figure.png, where matplotlib is installed: a table that took hours is not lost for want of it."""
    try:
        import matplotlib as mpl

        from nearfar.sweeps.pictures import draw
    except ModuleNotFoundError:
        print("sweep: no picture: pip install 'nearfar[report]'", file=sys.stderr)
        return
    with mpl.rc_context({"svg.hashsalt": "nearfar", "font.size": 9.0}):
        figure = draw(found)
        if figure is not None:
            figure.savefig(folder / "figure.svg", metadata={"Date": None})
            figure.savefig(folder / "figure.png", dpi=150)


def _in_processes(asked: Asked, jobs: int, failed_before: frozenset[tuple[int, int]]) -> None:
    """Work shared by processes of one thread each; whoever stops this one stops them."""
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    workers = [context.Process(target=_worker, args=(asked, failed_before)) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except BaseException:
        for worker in workers:
            worker.terminate()  # they save what they can
        for worker in workers:
            worker.join()
        raise
    codes = [worker.exitcode for worker in workers if worker.exitcode]
    if RESUMABLE in codes:
        raise Stopped("stopped; what was saved is kept, and the same command goes on from it")
    if codes:
        raise Stopped(
            f"a worker process ended with code {codes[0]}; the same command goes on from what was saved"
        )


def _worker(asked: Asked, failed_before: frozenset[tuple[int, int]]) -> None:
    exit_with_parent()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        Work(asked, failed_before).do()
    except (Stopped, KeyboardInterrupt):
        sys.exit(RESUMABLE)
    except (UserError, OSError) as problem:
        print(f"nearfar: {problem}", file=sys.stderr)
        sys.exit(2)
