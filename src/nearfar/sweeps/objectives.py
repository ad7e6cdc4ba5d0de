"""What a cell computes and which figure selects: a training, or an estimate of mutual information.

Selection uses the validation split only. The reported figure comes from data that no selection used:
`--data`, or for `mi` the held-out rows.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from nearfar.config.building import NO_OBJECTS
from nearfar.config.objects import Objects
from nearfar.config.settings import MAY_CHANGE, Settings
from nearfar.core.randomness import order
from nearfar.data import Columns, Limits, Located, locate
from nearfar.errors import UserError, counted
from nearfar.evaluate import evaluate_run
from nearfar.modalities import DataSet
from nearfar.modalities.dataset import ignored_files
from nearfar.run.teachers import Teacher, load_teacher
from nearfar.run.trained import Run
from nearfar.system.hardware import one_thread
from nearfar.train.defaults import resolve_here
from nearfar.train.distill import student_of
from nearfar.train.loggers import Logger
from nearfar.train.pretrain import run_pretraining

# metric: (protocol, figure) of an evaluation
METRICS = {
    "knn": ("knn", "top1"),
    "linear": ("linear", "top1"),
    "accuracy": ("classifier", "top1"),
    "rankme": ("quality", "rankme"),
    "lidar": ("quality", "lidar"),
}
LABEL_FREE = ("rankme", "lidar")
SPLIT_SEED = 0  # of the validation split: the same for every cell and seed
# defaults of every training of a sweep: fit all given data, keep one checkpoint
CELL_DEFAULTS = {"held_out": 0.0, "keep": 1, "workers": 1}

OnProbe = Callable[[dict[str, Any]], None]


class Objective(Protocol):
    """What a sweep computes from settings (fixed ones and those of a point) and a seed."""

    metric: str

    @property
    def percent(self) -> bool:
        """Whether the metric is a share, shown in percent."""
        ...

    def identity(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Everything the result depends on. Refuses bad settings before any work."""
        ...

    def value(
        self, settings: Mapping[str, Any], seed: int, folder: Path, on_probe: OnProbe | None = None
    ) -> float:
        """The metric on the validation split; larger is better."""
        ...

    def test(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        """A selected cell on the validation split and on the test data, with baselines."""
        ...

    def facts(self) -> dict[str, Any]:
        """Names and sizes of the data that were fitted and evaluated on."""
        ...

    def notes(self) -> list[str]:
        """Sentences about the data, such as which files are not read."""
        ...

    def command(self, settings: Mapping[str, Any]) -> str:
        """The command that trains with these settings on all of the data."""
        ...


class ProbeReporter(Logger):
    """Passes on the rows of probes. `report` may raise to end the run."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self._report = report

    def log(self, row: dict[str, Any]) -> None:
        if row["kind"] == "probe":
            self._report(row)


@dataclass(frozen=True)
class FitAndValidation:
    """The two parts of the training data."""

    fit: DataSet
    validation: DataSet


def _split(data: DataSet, share: float) -> tuple[DataSet, DataSet]:
    """Splits as evaluation does (`DataSet.parts`); without labels, a share of all."""
    if data.labels is None:
        return data.split(share, SPLIT_SEED)
    fit, validation = data.parts(share, SPLIT_SEED)
    return data.subset(fit), data.subset(validation)


@dataclass
class TrainingObjective:
    """`nearfar pretrain RECIPE DATA`, `train DATA` and `distill TEACHER DATA`."""

    name: str  # of the command
    recipe: Any  # or the teacher
    data: Any
    metric: str
    validation_share: float = 0.2
    test_data: Any = None
    same_labels: bool = False
    probes: bool = False  # whether trainings probe, for pruning
    _opened: dict[str, FitAndValidation] = field(default_factory=dict, init=False)
    _resolved: dict[str, tuple[Settings, Objects]] = field(default_factory=dict, init=False)
    _sources: dict[Columns, Located] = field(default_factory=dict, init=False)

    @property
    def percent(self) -> bool:
        return self.metric not in LABEL_FREE

    def identity(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        resolved, _ = self.settings(settings, seed)
        parts = self.parts(resolved)
        relevant = {key: v for key, v in resolved.as_plain().items() if key not in (*MAY_CHANGE, "data")}
        prints = {"fit": parts.fit.fingerprint, "validation": parts.validation.fingerprint}
        return {"version": 1, "command": self.name, "settings": relevant, **prints}

    def settings(self, settings: Mapping[str, Any], seed: int) -> tuple[Settings, Objects]:
        """The complete settings of a cell, and the Python objects they need: a teacher. Resolved once."""
        key = json.dumps([settings, seed], default=str)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(settings, seed)
        return self._resolved[key]

    def _resolve(self, settings: Mapping[str, Any], seed: int) -> tuple[Settings, Objects]:
        defaults = {**CELL_DEFAULTS, **({} if self.probes else {"probe_every": 0.0})}
        words = {**settings, "seed": seed}
        located = self._located(Columns(settings.get("image_column"), settings.get("label_column")))
        if self.name != "distill":
            resolved, _ = resolve_here(self.recipe, located.name, None, defaults, words, located=located)
            return resolved, NO_OBJECTS
        objective = words.pop("objective", None)
        resolved, objects, _ = student_of(
            self._teacher, located.name, None, defaults, words, objective=objective, located=located
        )
        return resolved, objects

    @cached_property
    def _teacher(self) -> Teacher:
        return load_teacher(self.recipe)

    def _located(self, columns: Columns) -> Located:
        if columns not in self._sources:
            self._sources[columns] = locate(self.data, columns=columns)
        return self._sources[columns]

    def notes(self) -> list[str]:
        sources = [located.source for located in self._sources.values() if located.source is not None]
        return [ignored_files(source.ignored) for source in sources if source.ignored][:1]

    def parts(self, settings: Settings) -> FitAndValidation:
        """The two parts of the data as these settings open them; opened once for each way of opening."""
        options = settings.modality.reader.options_for(settings.views, settings.image_size, None)
        columns = Columns(settings.image_column, settings.label_column)
        key = f"{options} {columns}"
        if key not in self._opened:
            limits = Limits(max_bad_share=settings.max_bad_share)
            data = self._located(columns).open(limits, **options)
            if data.labels is None and self.percent:
                reason = f" ({data.unlabelled})" if data.unlabelled else ""
                raise UserError(
                    f"{data.name} has no labels to select by{reason}; --metric {' or '.join(LABEL_FREE)} "
                    "needs none"
                )
            fit, validation = _split(data, self.validation_share)
            if not len(fit) or not len(validation):
                purpose = "to select by" if len(fit) else "to train on"
                raise UserError(
                    f"{data.name} has {counted(len(data), data.unit)}; holding out {self.validation_share:.0%} "
                    f"leaves none {purpose}; "
                    "give more data, or another --validation"
                )
            name = f"{self.validation_share:.0%} of {data.name}, held out"
            self._opened[key] = FitAndValidation(fit, replace(validation, name=name))
        return self._opened[key]

    def value(
        self, settings: Mapping[str, Any], seed: int, folder: Path, on_probe: OnProbe | None = None
    ) -> float:
        resolved, objects = self.settings(settings, seed)
        parts = self.parts(resolved)
        validation = parts.validation if self.probes else None
        loggers = [ProbeReporter(on_probe)] if self.probes and on_probe is not None else []
        with one_thread():
            run = run_pretraining(
                resolved,
                parts.fit,
                folder,
                quiet=True,
                objects=objects,
                validation=validation,
                loggers=loggers,
            )
            protocol, figure = METRICS[self.metric]
            return float(evaluate_run(run, parts.validation, [protocol], same_labels=True)[protocol][figure])

    def test(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        resolved, objects = self.settings(settings, seed)
        parts = self.parts(resolved)
        run = Run(folder, resolved, objects, locate(parts.fit))
        run.set_open_data(parts.fit)
        protocol, figure = METRICS[self.metric]
        sets = {"validation": (parts.validation, True)}
        if self.test_data is not None:
            sets["test"] = (self.test_data, self.same_labels)
        figures: dict[str, Any] = {}
        with one_thread():
            for name, (data, same_labels) in sets.items():
                result = evaluate_run(run, data, [protocol], baselines=True, same_labels=same_labels)
                baselines = {
                    kind: float(values[protocol][figure])
                    for kind, values in result["baselines"].items()
                    if protocol in values
                }
                value = float(result[protocol][figure])
                figures[name] = {"value": value, "set": result["test"], "baselines": baselines}
        return figures

    def facts(self) -> dict[str, Any]:
        parts = next(iter(self._opened.values()))
        return {
            name: {"name": data.name, "samples": len(data), "fingerprint": data.fingerprint}
            for name, data in (("fit", parts.fit), ("validation", parts.validation))
        }

    def command(self, settings: Mapping[str, Any]) -> str:
        recipe = "" if self.name == "train" else f" {self.recipe}"
        data = self._located(Columns()).name if isinstance(self.data, (str, Path)) else "DATA"
        words = " ".join(shell_word(key, value) for key, value in settings.items())
        return f"nearfar {self.name}{recipe} {data} --out RUN {words}".rstrip()


def shell_word(key: str, value: Any) -> str:
    """A setting as one word of a shell."""
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"'{key}={text}'" if set(text) & set(" ()[]{}'\"*?$&|;<>") else f"{key}={text}"


@dataclass
class InformationObjective:
    """`nearfar mi X Y`: bound, critic and their options, selected on some rows and reported on the others.

    The largest of several lower bounds on one sample is not a bound: it was selected for being large
    there. So the selected one is estimated again on rows that the selection did not use.
    """

    x: str
    y: str
    metric: str = "at_least"
    held_out_share: float = 0.5
    METRICS: ClassVar[tuple[str, ...]] = ("at_least", "nats")
    OPTIONS: ClassVar[tuple[str, ...]] = (
        "bound", "alpha", "critic", "negatives", "scaling", "discrete", "folds", "confidence",
    )  # fmt: skip
    SET_NAMES: ClassVar[dict[str, str]] = {"validation": "the selection rows", "test": "the held-out rows"}

    @property
    def percent(self) -> bool:
        return False

    @cached_property
    def samples(self) -> tuple[dict[str, Any], dict[str, Any]]:
        from nearfar.estimate.read import read_pair

        first, second, _ = read_pair(self.x, self.y)
        return {k: np.asarray(v) for k, v in first.items()}, {k: np.asarray(v) for k, v in second.items()}

    @cached_property
    def rows(self) -> dict[str, np.ndarray]:
        """Row numbers of each set."""
        count = len(next(iter(self.samples[0].values())))
        shuffled, held_out = order(SPLIT_SEED, 0, count), round(self.held_out_share * count)
        return {"validation": np.sort(shuffled[held_out:]), "test": np.sort(shuffled[:held_out])}

    def identity(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        for key in settings:
            if key not in self.OPTIONS:
                from nearfar.config.schema import unknown

                raise unknown(key, self.OPTIONS, "options of mi")
        digest = hashlib.sha256(self.rows["validation"].tobytes())
        for side in self.samples:
            for name, column in side.items():
                digest.update(name.encode() + repr(column.tolist()).encode())
        return {
            "version": 1,
            "command": "mi",
            "settings": dict(settings),
            "seed": seed,
            "rows": digest.hexdigest(),
        }

    def _estimate(self, settings: Mapping[str, Any], seed: int, rows: np.ndarray) -> Any:
        from nearfar.estimate.bound_choice import named_bound
        from nearfar.estimate.mi import estimate_mi

        options = {key: value for key, value in settings.items() if key not in ("bound", "alpha")}
        bound = named_bound(settings.get("bound", "auto"), settings.get("alpha"))
        x, y = ({name: column[rows] for name, column in side.items()} for side in self.samples)
        return estimate_mi(x, y, bound, baselines=False, seed=seed, **options)

    def value(
        self, settings: Mapping[str, Any], seed: int, folder: Path, on_probe: OnProbe | None = None
    ) -> float:
        return float(getattr(self._estimate(settings, seed, self.rows["validation"]), self.metric))

    def test(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        figures = {}
        for name, rows in self.rows.items():
            estimate = self._estimate(settings, seed, rows)
            figures[name] = {
                "value": float(getattr(estimate, self.metric)),
                "set": {"name": self.SET_NAMES[name], "samples": len(rows)},
                "baselines": {},
                "certificate": estimate.certificate.status,
            }
        return figures

    def notes(self) -> list[str]:
        return []

    def facts(self) -> dict[str, Any]:
        return {
            name: {"name": self.SET_NAMES[name], "samples": len(rows)} for name, rows in self.rows.items()
        }

    def command(self, settings: Mapping[str, Any]) -> str:
        words = " ".join(f"--{key} {value}" for key, value in settings.items())
        return f"nearfar mi {self.x} {self.y} {words}".rstrip()
