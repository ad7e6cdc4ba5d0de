"""What a cell does and how it is judged, by command: a training judged on a part of the training data that it does not see, or an
estimate of mutual information.

The choice looks at that part alone. The figure to be told comes from data that no choice looked at: `--data`, or for `mi` the rows
that were kept back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from nearfar.config.building import NONE
from nearfar.config.objects import Objects
from nearfar.config.settings import MAY_CHANGE, Settings
from nearfar.core.randomness import order
from nearfar.data import Columns, Limits, Located, locate
from nearfar.errors import UserError
from nearfar.evaluate import evaluate_run
from nearfar.modalities import DataSet
from nearfar.run.teachers import Teacher, load_teacher
from nearfar.run.trained import Run
from nearfar.system.hardware import one_thread
from nearfar.train.defaults import resolve_here
from nearfar.train.distill import student_of
from nearfar.train.pretrain import Watch, run_pretraining

# what a metric is called, and where an evaluation says it
METRICS = {
    "knn": ("knn", "top1"),
    "linear": ("linear", "top1"),
    "accuracy": ("classifier", "top1"),
    "rankme": ("quality", "rankme"),
    "lidar": ("quality", "lidar"),
}
UNLABELLED = ("rankme", "lidar")
SPLIT_SEED = 0  # of what is kept for validation: the same for every cell and seed
# of every training, unless told otherwise: all data are fitted, one checkpoint is enough to go on from
CELL = {"held_out": 0.0, "keep": 1, "workers": 1}

Told = Callable[[dict[str, Any]], None]


class Objective(Protocol):
    """What a sweep tries, from settings (fixed ones and those of a point) and a seed."""

    metric: str

    @property
    def share(self) -> bool:
        """Whether the metric is a share, shown in percent."""
        ...

    def identity(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """All that the result depends on; bad settings are refused here, before any work."""
        ...

    def value(self, settings: Mapping[str, Any], seed: int, folder: Path, told: Told | None = None) -> float:
        """The metric on what the choice may look at; larger is better."""
        ...

    def test(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        """The chosen cell on what chose it and on data that no choice looked at, with baselines."""
        ...

    def facts(self) -> dict[str, Any]:
        """What was fitted, what was asked about."""
        ...

    def command(self, settings: Mapping[str, Any]) -> str:
        """How one does it with all of the data."""
        ...


@dataclass(frozen=True)
class Parts:
    """The data of a training, in two: fitted, and asked about."""

    fit: DataSet
    validation: DataSet


def _split(whole: DataSet, share: float) -> tuple[DataSet, DataSet]:
    """As evaluation holds out: a share of every class, of time series stretches with gaps; without labels a share of all."""
    if whole.labels is None:
        return whole.split(share, SPLIT_SEED)
    rest, held = whole.parts(share, SPLIT_SEED)
    return whole.subset(rest), whole.subset(held)


@dataclass
class Training:
    """`nearfar pretrain RECIPE DATA`, `nearfar train DATA` and, with a teacher in place of the recipe, `nearfar distill TEACHER DATA`."""

    name: str  # of the command
    recipe: Any  # or the teacher
    data: Any
    metric: str
    held: float = 0.2  # share of the data that is kept for validation
    asked: Any = None  # test data
    same_labels: bool = False
    probed: bool = False  # whether probes are heard, for pruning
    _opened: dict[str, Parts] = field(default_factory=dict, init=False)

    @property
    def share(self) -> bool:
        return self.metric not in UNLABELLED

    def identity(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        chosen, _ = self.settings(settings, seed)
        parts = self.parts(chosen)
        counted = {key: v for key, v in chosen.as_plain().items() if key not in (*MAY_CHANGE, "data")}
        prints = {"fit": parts.fit.fingerprint, "validation": parts.validation.fingerprint}
        return {"version": 1, "command": self.name, "settings": counted, **prints}

    def settings(self, settings: Mapping[str, Any], seed: int) -> tuple[Settings, Objects]:
        """The settings of a cell, complete, and the objects they leave open: a teacher."""
        usual = {**CELL, **({} if self.probed else {"probe_every": 0.0})}
        own = {**settings, "seed": seed}
        located = self._located(Columns(settings.get("image_column"), settings.get("label_column")))
        if self.name != "distill":
            return resolve_here(self.recipe, located.name, None, usual, own, modality=located.modality)[
                0
            ], NONE
        objective = own.pop("objective", None)
        found = student_of(
            self._teacher, located.name, None, usual, own, objective=objective, modality=located.modality
        )
        return found[0], found[1]

    @cached_property
    def _teacher(self) -> Teacher:
        return load_teacher(self.recipe)

    def _located(self, columns: Columns) -> Located:
        return locate(self.data, columns=columns)

    def parts(self, settings: Settings) -> Parts:
        """The two parts as these settings see them; opened once for each way of seeing."""
        options = settings.modality.opening(settings.views, settings.image_size, None)
        columns = Columns(settings.image_column, settings.label_column)
        key = f"{options} {columns}"
        if key not in self._opened:
            limits = Limits(max_bad_share=settings.max_bad_share)
            whole = self._located(columns).open(limits, **options)
            if whole.labels is None and self.share:
                why = f" ({whole.unlabelled})" if whole.unlabelled else ""
                raise UserError(
                    f"{whole.name} has no labels to choose by{why}; --metric {' or '.join(UNLABELLED)} needs none"
                )
            fit, validation = _split(whole, self.held)
            if not len(fit) or not len(validation):
                which = "to choose by" if len(fit) else "to train on"
                raise UserError(
                    f"{whole.name} has {len(whole)} {whole.unit}, of which {self.held:.0%} held out leave none {which}; "
                    "give more data, or another --validation"
                )
            self._opened[key] = Parts(
                fit, replace(validation, name=f"{self.held:.0%} of {whole.name}, held out")
            )
        return self._opened[key]

    def value(self, settings: Mapping[str, Any], seed: int, folder: Path, told: Told | None = None) -> float:
        chosen, objects = self.settings(settings, seed)
        parts = self.parts(chosen)
        watch = Watch(parts.validation, told) if self.probed else Watch()
        with one_thread():
            run = run_pretraining(chosen, parts.fit, folder, quiet=True, objects=objects, watch=watch)
            return self._read(
                evaluate_run(run, parts.validation, [METRICS[self.metric][0]], same_labels=True)
            )

    def _read(self, result: Mapping[str, Any]) -> float:
        protocol, figure = METRICS[self.metric]
        return float(result[protocol][figure])

    def test(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        chosen, objects = self.settings(settings, seed)
        parts = self.parts(chosen)
        run = Run(folder, chosen, objects, locate(parts.fit))
        run.remember(parts.fit)
        protocol = METRICS[self.metric][0]
        on = {"validation": (parts.validation, True)}
        if self.asked is not None:
            on["test"] = (self.asked, self.same_labels)
        found: dict[str, Any] = {}
        with one_thread():
            for name, (data, same) in on.items():
                result = evaluate_run(run, data, [protocol], baselines=True, same_labels=same)
                baselines = result["baselines"].items()
                found[name] = {
                    "value": self._read(result),
                    "set": result["test"],
                    "baselines": {kind: self._read(told) for kind, told in baselines if protocol in told},
                }
        return found

    def facts(self) -> dict[str, Any]:
        parts = next(iter(self._opened.values()))
        told = lambda data: {"name": data.name, "samples": len(data), "fingerprint": data.fingerprint}
        return {"fit": told(parts.fit), "validation": told(parts.validation)}

    def command(self, settings: Mapping[str, Any]) -> str:
        named = "" if self.name == "train" else f" {self.recipe}"
        name = self._located(Columns()).name if isinstance(self.data, (str, Path)) else "DATA"
        words = " ".join(written(key, value) for key, value in settings.items())
        return f"nearfar {self.name}{named} {name} --out RUN {words}".rstrip()


def written(key: str, value: Any) -> str:
    """A setting as a shell takes it."""
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"'{key}={text}'" if set(text) & set(" ()[]{}'\"*?$&|;<>") else f"{key}={text}"


@dataclass
class Information:
    """`nearfar mi X Y`: bound, critic and their settings, chosen on part of the rows and told of the others.

    The largest of several lower bounds on one sample is not a bound any more: it was chosen for being large there. So the chosen one is
    estimated again on rows that no choice looked at.
    """

    x: str
    y: str
    metric: str = "at_least"
    held: float = 0.5  # share of the rows that is kept back for the figure to be told
    METRICS: ClassVar[tuple[str, ...]] = ("at_least", "nats")
    OPTIONS: ClassVar[tuple[str, ...]] = (
        "bound",
        "alpha",
        "critic",
        "negatives",
        "scaling",
        "discrete",
        "folds",
        "confidence",
    )

    @property
    def share(self) -> bool:
        return False

    @cached_property
    def samples(self) -> tuple[dict[str, Any], dict[str, Any]]:
        from nearfar.estimate.read import read_pair

        first, second, _ = read_pair(self.x, self.y)
        return {k: np.asarray(v) for k, v in first.items()}, {k: np.asarray(v) for k, v in second.items()}

    @cached_property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Those that choose, and those kept back."""
        count = len(next(iter(self.samples[0].values())))
        shuffled, kept = order(SPLIT_SEED, 0, count), round(self.held * count)
        return np.sort(shuffled[kept:]), np.sort(shuffled[:kept])

    def identity(self, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        import hashlib

        for key in settings:
            if key not in self.OPTIONS:
                from nearfar.config.schema import unknown

                raise unknown(key, self.OPTIONS, "options of mi")
        digest = hashlib.sha256(self.rows[0].tobytes())
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
        from nearfar.estimate.choose import named_bound
        from nearfar.estimate.mi import estimate_mi

        options = {key: value for key, value in settings.items() if key not in ("bound", "alpha")}
        bound = named_bound(settings.get("bound", "auto"), settings.get("alpha"))
        x, y = ({name: column[rows] for name, column in side.items()} for side in self.samples)
        return estimate_mi(x, y, bound, baselines=False, seed=seed, **options)

    def value(self, settings: Mapping[str, Any], seed: int, folder: Path, told: Told | None = None) -> float:
        return float(getattr(self._estimate(settings, seed, self.rows[0]), self.metric))

    def test(self, settings: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
        return {
            name: {
                "value": float(getattr(found := self._estimate(settings, seed, rows), self.metric)),
                "set": {"name": which, "samples": len(rows)},
                "baselines": {},
                "certificate": found.certificate.status,
            }
            for name, which, rows in zip(
                ("validation", "test"), ("the rows that chose", "the rows kept back"), self.rows, strict=True
            )
        }

    def facts(self) -> dict[str, Any]:
        names = ("the rows that chose", "the rows kept back")
        sizes = [{"name": name, "samples": len(rows)} for name, rows in zip(names, self.rows, strict=True)]
        return {"validation": sizes[0], "test": sizes[1]}

    def command(self, settings: Mapping[str, Any]) -> str:
        words = " ".join(f"--{key} {value}" for key, value in settings.items())
        return f"nearfar mi {self.x} {self.y} {words}".rstrip()
