"""Where metrics go: always to metrics.jsonl, and with `logger=tensorboard,wandb,mlflow,trackio` to others.

A row is a flat dict: `kind` ("train", "probe", "held-out", "event", or what a hook sets), `step`, `epoch` and
its values. A new logger is one class; `nf.pretrain(..., loggers=[MyLogger()])` adds it to a run.
"""

import io
import json
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.util import find_spec
from typing import Any

from nearfar.config.settings import Settings
from nearfar.errors import UserError
from nearfar.run.folder import RunFolder
from nearfar.run.metrics import rewind_metrics
from nearfar.system.extras import need
from nearfar.system.untrusted import is_number
from nearfar.train.hooks import as_objects

PROJECT = "nearfar"  # name of the project or experiment in services that have them


class Logger:
    """Base class. Only rank 0 logs."""

    def log(self, row: dict[str, Any]) -> None:
        """Takes one row. Rows of a resumed run start after the checkpoint's step."""
        raise NotImplementedError

    def flush(self) -> None:
        """Makes rows durable. Called before a checkpoint is written."""

    def close(self) -> None:
        """Called once, when training ends for whatever reason."""


def as_loggers(loggers: Any) -> list[Logger]:
    """Loggers as `Logger` objects. An object with `log` is adapted."""
    return as_objects("loggers", loggers, Logger, ("log", "flush", "close"), _complaint)


def _complaint(methods: Collection[str]) -> str | None:
    return None if "log" in methods else "without log; expected a nearfar.Logger"


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row that can be plotted, by "kind/name": all but its step and epoch."""
    numbers = {key: value for key, value in row.items() if is_number(value) and key not in ("step", "epoch")}
    return {f"{row['kind']}/{key}": value for key, value in numbers.items()}


class JsonLines(Logger):
    """Appends rows to metrics.jsonl. Rows after `step`, computed again by a resumed run, are removed."""

    def __init__(self, folder: RunFolder, step: int) -> None:
        self._path = folder.metrics
        rewind_metrics(self._path, step)
        self._file = self._path.open("a", encoding="utf-8")

    def log(self, row: dict[str, Any]) -> None:
        with self._name_file_in_errors():
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def flush(self) -> None:
        with self._name_file_in_errors():
            os.fsync(self._file.fileno())

    @contextmanager
    def _name_file_in_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise UserError(
                f"{self._path} cannot be written ({problem.strerror}); free some space or repair the disk, "
                "then run the same command again"
            ) from None

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


class TensorBoard(Logger):
    """Writes event files to tb/. Without them the run continues: metrics.jsonl has the same rows."""

    def __init__(self, folder: RunFolder, settings: Settings, step: int) -> None:
        need("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = None
        # its thread fails on a full disk; the error is raised again by the next call here
        self._previous_hook = threading.excepthook
        threading.excepthook = self._ignore_os_errors
        with suppress(UnicodeEncodeError, OSError):  # it takes UTF-8 paths only; the disk may be read-only
            self._writer = SummaryWriter(str(folder.path / "tb"), purge_step=step + 1)

    def _ignore_os_errors(self, problem: threading.ExceptHookArgs) -> None:
        if not isinstance(problem.exc_value, OSError):
            self._previous_hook(problem)

    def _write(self, write: Callable[[Any], None]) -> None:
        try:
            if self._writer is not None:
                write(self._writer)
        except OSError:
            self._writer = None

    def log(self, row: dict[str, Any]) -> None:
        def add(writer: Any) -> None:
            for name, value in scalars(row).items():
                writer.add_scalar(name, value, row["step"])

        self._write(add)

    def flush(self) -> None:
        self._write(lambda writer: writer.flush())

    def close(self) -> None:
        self._write(lambda writer: writer.close())
        threading.excepthook = self._previous_hook


class WeightsAndBiases(Logger):
    """Weights & Biases. WANDB_MODE=offline writes to wandb/ in the run folder and uses no network."""

    def __init__(self, folder: RunFolder, settings: Settings, step: int) -> None:
        wandb = need("wandb")
        with redirect_stdout(io.StringIO()):
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=folder.path.resolve().name,
                dir=str(folder.path),
                config=settings.as_plain(),
                settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
                reinit="create_new",
            )

    def log(self, row: dict[str, Any]) -> None:
        if values := scalars(row):
            self._run.log({**values, "step": row["step"]}, step=row["step"])

    def close(self) -> None:
        with redirect_stdout(io.StringIO()):
            self._run.finish()


class MLflow(Logger):
    """MLflow, with mlflow.db in the run folder unless MLFLOW_TRACKING_URI is set, without statistics."""

    def __init__(self, folder: RunFolder, settings: Settings, step: int) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        mlflow = need("mlflow")
        store = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder.path.resolve() / 'mlflow.db'}")
        self._metric = mlflow.entities.Metric
        self._client = mlflow.MlflowClient(tracking_uri=store)
        experiment = self._client.get_experiment_by_name(PROJECT)
        number = (
            self._client.create_experiment(
                PROJECT, artifact_location=(folder.path.resolve() / "mlflow").as_uri()
            )
            if experiment is None
            else experiment.experiment_id
        )
        place = str(folder.path.resolve())
        runs = self._client.search_runs([number], f"tags.`nearfar.folder` = {place!r}") if step >= 0 else []
        if runs:
            self._run_id = runs[0].info.run_id
        else:
            tags = {"nearfar.folder": place}
            self._run_id = self._client.create_run(
                number, run_name=folder.path.resolve().name, tags=tags
            ).info.run_id
            for key, value in settings.as_plain().items():
                self._client.log_param(self._run_id, key, str(value)[:500])

    def log(self, row: dict[str, Any]) -> None:
        metrics = [self._metric(name, value, 0, row["step"]) for name, value in scalars(row).items()]
        if metrics:
            self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class Trackio(Logger):
    """trackio, which stores in TRACKIO_DIR. What it prints is dropped: standard output is for results."""

    def __init__(self, folder: RunFolder, settings: Settings, step: int) -> None:
        self._trackio = need("trackio")
        with redirect_stdout(io.StringIO()):
            self._run = self._trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=folder.path.resolve().name,
                config=settings.as_plain(),
                resume="allow" if step >= 0 else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, row: dict[str, Any]) -> None:
        if values := scalars(row):
            self._run.log(values, step=row["step"])

    def close(self) -> None:
        with redirect_stdout(io.StringIO()):
            self._trackio.finish()


LOGGERS: dict[str, Callable[[RunFolder, Settings, int], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
}


def logger_names(setting: str) -> tuple[str, ...]:
    """The loggers of the setting: "auto" is TensorBoard if installed, "none" is metrics.jsonl only."""
    if setting == "auto":
        return ("tensorboard",) if find_spec("tensorboard") else ()
    return tuple(name.strip() for name in setting.split(",")) if setting != "none" else ()


def open_loggers(
    folder: RunFolder, settings: Settings, step: int, custom: Sequence[Logger] = ()
) -> list[Logger]:
    """metrics.jsonl, the loggers of the setting, and the user's, for a run after `step` (-1: new)."""
    opened: list[Logger] = [JsonLines(folder, step)]
    try:
        for name in logger_names(settings.logger):
            opened.append(LOGGERS[name](folder, settings, step))
    except BaseException:
        for logger in opened:
            logger.close()
        raise
    return [*opened, *custom]
