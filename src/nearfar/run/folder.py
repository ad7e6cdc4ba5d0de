"""The folder of a run: the names of its files, and how they are read and written.

config.yaml       the complete settings               env.json          machine and versions at the start
data.json         counts of the data                  quarantine.csv    unreadable instances, with reasons
metrics.jsonl     the logged rows                     tb/               the same for TensorBoard
ckpt/step-*/      the state (`checkpoints`)           diverged/         the state at divergence
evaluation.json   results (`results`)                 cache/            features and scans, safe to delete
report.html       the page
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from nearfar.config.fields import CHOICES
from nearfar.config.reading import load_yaml
from nearfar.config.resolving import check
from nearfar.config.settings import Settings
from nearfar.errors import UserError, counted
from nearfar.modalities import DataSet
from nearfar.modalities.dataset import ignored_files
from nearfar.system.files import write_atomic
from nearfar.system.lock import open_lock, try_lock
from nearfar.system.untrusted import MAX_SETTINGS_BYTES, read_json, read_text


@dataclass(frozen=True)
class DataNotes:
    """Counts of the data, for the console and the report."""

    name: str
    unit: str
    instances: int
    classes: int
    set_aside: dict[str, int] = field(default_factory=dict)  # number of unreadable instances by reason
    first: str = ""  # the first of them
    ignored: dict[str, int] = field(default_factory=dict)  # files that are not read, by reason
    unlabelled: str = ""  # why there are no labels
    held_out: int = 0  # instances kept out of training
    left_over: int = 0  # training instances that an epoch does not visit
    undrawn: int = 0  # instances that `labels=` leaves out

    def lines(self) -> Iterator[str]:
        """One sentence per line."""
        labels = f", {counted(self.classes, 'classes')}" if self.classes else ", no labels"
        reason = f" ({self.unlabelled})" if self.unlabelled and not self.classes else ""
        yield f"{self.name}: {counted(self.instances, self.unit)}{labels}{reason}"
        if self.set_aside:
            counts = [f"{reason} ({count:,})" for reason, count in self.set_aside.items()]
            reasons = ", ".join(counts) if len(counts) > 1 else next(iter(self.set_aside))
            left_out = counted(sum(self.set_aside.values()), self.unit)
            yield f"{left_out} left out: {reasons}; first: {self.first}; all are listed in quarantine.csv"
        if self.ignored:
            yield ignored_files(self.ignored)
        if self.held_out:
            yield f"{counted(self.held_out, self.unit)} held out of training for estimates of information"
        trained = self.instances - self.held_out - self.undrawn
        if self.undrawn:
            yield f"training uses {counted(trained, self.unit)} (labels=)"
        if self.left_over:
            yield f"the last incomplete batch is dropped ({self.left_over:,} of {counted(trained, self.unit)}, different ones each epoch)"


def notes_of(data: DataSet, held_out: int, trained: int, batch_size: int) -> DataNotes:
    """The notes about opened data; reasons are counted without their details."""
    reasons = Counter(reason.partition(":")[0].partition(" (")[0] for _, reason in data.quarantine)
    return DataNotes(
        data.name,
        data.unit,
        len(data),
        data.class_count,
        dict(reasons.most_common()),
        data.quarantine[0][0] if data.quarantine else "",
        dict(data.ignored),
        data.unlabelled,
        held_out,
        trained % batch_size,
        len(data) - held_out - trained,
    )


# what a run may have written before its settings
OWN_NAMES = ("cache", "quarantine.csv", "ckpt", "diverged", "metrics.jsonl", "tb", "data.json", "env.json")


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "ckpt"

    @property
    def diverged(self) -> Path:
        return self.path / "diverged"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def results(self) -> Path:
        return self.path / "evaluation.json"

    @property
    def quarantine(self) -> Path:
        return self.path / "quarantine.csv"

    def begin_quarantine(self) -> None:
        """Removes the list of an attempt that wrote no checkpoint; it is made again."""
        with suppress(OSError):  # if it cannot be removed, writing it fails with a message
            self.quarantine.unlink(missing_ok=True)

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Locks the folder, created if needed, for this process. It must not be inside another run."""
        path = self.path.resolve()
        for run in map(RunFolder, path.parents):
            if run.config.is_file() and {path, *path.parents} & {run.checkpoints, run.diverged, run.cache}:
                raise UserError(f"--out {self.path} is inside the run {run.path}; choose another folder")
        self._check_free()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open_lock(self.path / ".lock")
        except OSError as problem:
            raise UserError(f"--out {self.path} cannot be written: {problem.strerror}") from None
        with lock:
            if not try_lock(lock):
                raise UserError(
                    f"--out {self.path} is being trained by another process; wait for it or choose another"
                )
            yield

    def _check_free(self) -> None:
        """Refuses a folder that holds other files and is not a run."""
        if self.path.is_file():
            raise UserError(f"--out {self.path} is a file; choose a new or empty folder")
        if self.config.exists() or not self.path.is_dir():
            return
        names = sorted(path.name for path in self.path.iterdir() if not path.name.startswith("."))
        if foreign_names := [name for name in names if name not in OWN_NAMES]:
            raise UserError(
                f"--out {self.path} is not a run folder: it contains {foreign_names[0]}"
                f"{f' and {len(foreign_names) - 1:,} more' if len(foreign_names) > 1 else ''}; choose a new or empty folder"
            )

    def stored_settings(self) -> dict[str, Any]:
        """The settings in config.yaml as plain values, for comparisons."""
        try:
            stored = load_yaml(read_text(self.config, MAX_SETTINGS_BYTES))
        except OSError as problem:
            raise UserError(f"{self.config} cannot be read as settings: {problem.strerror}") from None
        except (ValueError, yaml.YAMLError):
            raise UserError(f"{self.config} cannot be read as settings") from None
        keys = ("recipe", "data", *CHOICES)
        if not isinstance(stored, dict) or not all(key in stored for key in keys):
            raise UserError(f"{self.config} does not hold a run's settings ({', '.join(keys)} and more)")
        for choice in CHOICES:
            if not isinstance(stored[choice], dict):
                raise UserError(
                    f"{self.config}: {choice} was {stored[choice]!r}; it must be a mapping with a name"
                )
        return stored

    def settings(self) -> Settings:
        """The settings in config.yaml, checked."""
        self.stored_settings()  # refuses other content, and names the file
        return _checked_settings(read_text(self.config, MAX_SETTINGS_BYTES))

    def write_settings(self, settings: Settings) -> None:
        write_atomic(self.config, settings.as_yaml())

    def environment(self) -> dict[str, Any] | None:
        return read_mapping(self.path / "env.json")

    def write_environment(self, facts: Mapping[str, Any]) -> None:
        write_atomic(self.path / "env.json", json.dumps(facts, indent=1))

    def notes(self) -> DataNotes | None:
        """The notes in data.json; None if they are missing or invalid."""
        try:
            stored = json.dumps(read_json(self.path / "data.json"))
            return TypeAdapter(DataNotes).validate_json(stored, strict=True)
        except ValidationError:
            return None

    def write_notes(self, notes: DataNotes) -> None:
        write_atomic(self.path / "data.json", json.dumps(asdict(notes), indent=1))


@lru_cache(maxsize=32)
def _checked_settings(text: str) -> Settings:
    """The settings in a text, checked once however often a command opens the run."""
    return check(load_yaml(text), stored=True)


def read_mapping(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file if it is a mapping."""
    loaded = read_json(path)
    return loaded if isinstance(loaded, dict) else None
