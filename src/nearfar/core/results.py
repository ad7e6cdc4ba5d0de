"""Results of evaluations, typed, and their JSON (`nearfar evaluate --json`, evaluation.json).

    Result       train, test, settings, figures by protocol, baselines by name, notes
    Measurement  one protocol's figures by name ("top1", "nmi", …), with details
    Figure       value, interval, spread, draws

A `Result` and a `Measurement` can be read like their JSON: `result["knn"]["top1"]`. A protocol with several
settings has one measurement for each, named PROTOCOL/SETTING ("fractions/1 %"); in the JSON these are nested.
"""

import base64
import binascii
import hashlib
import json
import math
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from nearfar.core.notebook import bar_figure, table_html
from nearfar.core.statistics import Interval, mean_and_spread, wilson
from nearfar.core.tables import plus_minus, text_table
from nearfar.system.untrusted import is_number

MAX_ANSWER_BYTES = 2**26  # of one array when unpacked
MAX_DEPTH = 3  # of nested measurements
# keys of a result's JSON that are no protocol
NOTES = ("split", "labels", "confidence", "encoder", "input", "leak", "overlap", "unfinished")
WARNINGS = ("leak", "overlap", "unfinished")


@dataclass(frozen=True)
class FigureKind:
    """How a figure is called in tables, and whether it is shown in percent."""

    title: str
    percent: bool = False


# every number that is a figure, in the order of tables; other numbers of a measurement are details
FIGURE_KINDS = {
    "top1": FigureKind("top-1", True),
    "top5": FigureKind("top-5", True),
    "chance": FigureKind("by chance", True),
    "back_top1": FigureKind("back, top-1", True),
    "back_chance": FigureKind("back, by chance", True),
    "nmi": FigureKind("NMI"),
    "ari": FigureKind("ARI"),
    "recall@1": FigureKind("recall@1", True),
    "recall@5": FigureKind("recall@5", True),
    "recall@10": FigureKind("recall@10", True),
    "map": FigureKind("mAP", True),
    "ece": FigureKind("ECE", True),
    "log_loss": FigureKind("log-loss, nats"),
    "brier": FigureKind("Brier score"),
    "nats": FigureKind("nats"),
    "rankme": FigureKind("RankMe"),
    "lidar": FigureKind("LiDAR"),
    "alpha_req": FigureKind("alpha-ReQ"),
    "uniformity": FigureKind("uniformity"),
    "alignment": FigureKind("alignment"),
}
_SIDE_KEYS = ("interval", "interval_top5", "intervals", "spread", "draws", "answers", "test")


@dataclass(frozen=True)
class Figure:
    """A measured number, its confidence `interval`, the sample deviation `spread` of repetitions `draws`."""

    value: float
    interval: Interval | None = None
    spread: float | None = None
    draws: tuple[float, ...] = ()

    @classmethod
    def share(cls, value: float, samples: float) -> "Figure":
        """An accuracy on this many samples, with Wilson's interval."""
        return cls(value, wilson(value, samples))

    @classmethod
    def mean(cls, draws: Sequence[float], samples: float | None = None) -> "Figure":
        """The mean ± spread of several draws; with `samples`, also Wilson's interval of an accuracy."""
        value, spread = mean_and_spread(draws)
        return cls(value, None if samples is None else wilson(value, samples), spread, tuple(draws))

    def text(self, percent: bool) -> str:
        """`58.1 ± 0.2 % (57.1–59.1)` for a share, `0.581 ± 0.002` for another number."""
        if not percent:
            return plus_minus(self.value, self.spread, 3)
        spread = None if self.spread is None else 100 * self.spread
        within = "" if self.interval is None else " ({:.1f}–{:.1f})".format(*(100 * e for e in self.interval))
        return f"{plus_minus(100 * self.value, spread)} %{within}"


@dataclass(frozen=True, eq=False)
class Answers:
    """The class predicted for each test instance and the true one, in the order of the test set."""

    predicted: Int[np.ndarray, "instance"]
    true: Int[np.ndarray, "instance"]

    @property
    def correct(self) -> Bool[np.ndarray, "instance"]:
        return self.predicted == self.true

    def to_json(self) -> dict[str, str]:
        """zlib of little-endian int32, as base64."""
        return {"said": _packed(self.predicted), "true": _packed(self.true)}

    @classmethod
    def from_json(cls, stored: Any) -> "Answers | None":
        """None where `stored` does not hold two arrays of one length."""
        if not isinstance(stored, Mapping):
            return None
        predicted, true = _unpacked(stored.get("said")), _unpacked(stored.get("true"))
        if predicted is None or true is None or len(predicted) != len(true) or not len(true):
            return None
        return cls(predicted, true)


def _packed(values: Int[np.ndarray, "instance"]) -> str:
    return base64.b64encode(zlib.compress(values.astype("<i4").tobytes(), 9)).decode("ascii")


def _unpacked(text: Any) -> Int[np.ndarray, "instance"] | None:
    if not isinstance(text, str):
        return None
    try:
        raw = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MAX_ANSWER_BYTES)
        return np.frombuffer(raw, "<i4").astype(np.int64)
    except (binascii.Error, zlib.error, ValueError):
        return None


@dataclass(frozen=True)
class SetFacts:
    """A data set that was fitted or tested on."""

    name: str
    samples: int
    fingerprint: str
    unit: str = "images"

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, stored: Any) -> "SetFacts | None":
        if not isinstance(stored, Mapping) or type(stored.get("samples")) is not int:
            return None
        texts = [stored.get("name"), stored.get("fingerprint"), stored.get("unit", "images")]
        if not all(isinstance(text, str) for text in texts):
            return None
        return cls(texts[0], stored["samples"], texts[1], texts[2])


class _ReadsAsJson(Mapping[str, Any]):
    """A frozen value that can also be read like its JSON."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...

    @cached_property
    def _json(self) -> dict[str, Any]:
        return self.to_json()

    def __getitem__(self, key: str) -> Any:
        return self._json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._json)

    def __len__(self) -> int:
        return len(self._json)


@dataclass(frozen=True, eq=False)
class Measurement(_ReadsAsJson):
    """One protocol's figures. `details`: anything else as JSON (penalty, per_class, confusion, certificate,
    …); `answers`: for each test instance; `test`: the test set where it is not that of the whole result."""

    figures: Mapping[str, Figure]
    details: Mapping[str, Any] = field(default_factory=dict)
    answers: Answers | None = None
    test: SetFacts | None = None

    @property
    def main(self) -> Figure:
        """The first figure: the one that spread and draws belong to."""
        return next(iter(self.figures.values()))

    def titles(self) -> dict[str, str]:
        """The figures to show, in order, with their titles. Of five classes or fewer, top-5 is left out."""
        classes = self.details.get("classes")
        hidden = ("top5",) if is_number(classes) and classes <= 5 else ()
        return {
            name: kind.title
            for name, kind in FIGURE_KINDS.items()
            if name in self.figures and name not in hidden
        }

    def text(self, name: str) -> str:
        """`58.1 % (57.1–59.1)`: a figure with its interval and spread, or nats ± error; `–` without one."""
        if name not in self.figures:
            return "–"
        figure, error = self.figures[name], self.details.get("error")
        if name == "nats" and is_number(error):
            return plus_minus(figure.value, error, 3)
        return figure.text(FIGURE_KINDS[name].percent)

    def to_json(self, *, answers: bool = False) -> dict[str, Any]:
        """`answers`: with those for each instance, as the file has them."""
        tree: dict[str, Any] = {name: figure.value for name, figure in self.figures.items()}
        other_intervals: dict[str, Any] = {}
        for name, figure in self.figures.items():
            if figure.interval is not None:
                key = _interval_key(name, self.figures)
                (tree if key else other_intervals)[key or name] = list(figure.interval)
        if other_intervals:
            tree["intervals"] = other_intervals
        if self.figures and (self.main.draws or self.main.spread is not None):
            tree["spread"] = self.main.spread
        if self.figures and self.main.draws:
            tree["draws"] = list(self.main.draws)
        tree |= self.details
        if answers and self.answers is not None:
            tree["answers"] = self.answers.to_json()
        return tree if self.test is None else {**tree, "test": self.test.to_json()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Measurement":
        """Reads what `to_json` wrote. Values of another type, from a damaged file, are left out."""
        values = {name: float(stored[name]) for name in stored if _is_figure(stored, name)}
        other_intervals = stored.get("intervals")
        other_intervals = other_intervals if isinstance(other_intervals, Mapping) else {}
        figures = {}
        for place, (name, value) in enumerate(values.items()):
            key = _interval_key(name, values)
            interval = stored.get(key) if key else other_intervals.get(name)
            spread, draws = (stored.get("spread"), stored.get("draws")) if place == 0 else (None, None)
            listed = draws if isinstance(draws, list) and all(map(is_number, draws)) else ()
            figures[name] = Figure(
                value, _interval(interval), spread if is_number(spread) else None, tuple(listed)
            )
        details = {key: value for key, value in stored.items() if key not in (*values, *_SIDE_KEYS)}
        return cls(
            figures, details, Answers.from_json(stored.get("answers")), SetFacts.from_json(stored.get("test"))
        )


def _is_figure(stored: Mapping[str, Any], name: str) -> bool:
    if name not in FIGURE_KINDS or not _is_finite(stored[name]):
        return False
    return not FIGURE_KINDS[name].percent or 0 <= stored[name] <= 1


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _interval_key(name: str, figures: Mapping[str, Any]) -> str | None:
    """The key of a figure's interval; None where it stands under `intervals`, by the figure's name."""
    first = next((one for one in ("top1", "nats") if one in figures), None)
    return "interval" if name == first else "interval_top5" if name == "top5" else None


def _interval(stored: Any) -> Interval | None:
    if not isinstance(stored, (list, tuple)) or len(stored) != 2 or not all(map(_is_finite, stored)):
        return None
    return float(stored[0]), float(stored[1])


def display_name(path: str) -> str:
    """The name of a measurement in words: `fractions/1 %` is `fractions 1 %`."""
    return path.replace("/", " ")


def mean_over_draws(
    draws: Sequence[Measurement], samples: float | None, details: Mapping[str, Any] | None = None
) -> Measurement:
    """The mean of each figure; spread and draws of the first. `samples`: of the test set, for Wilson."""
    names = list(draws[0].figures)
    shared = {key: value for key, value in draws[0].details.items() if key == "classes"}
    columns = {name: [draw.figures[name].value for draw in draws] for name in names}
    figures = {name: Figure.mean(values, samples) for name, values in columns.items()}
    for name in names[1:]:
        figures[name] = replace(figures[name], spread=None, draws=())
    return Measurement(figures, {**shared, **(details or {})})


@dataclass(frozen=True, eq=False, repr=False)
class Result(_ReadsAsJson):
    """An evaluation: what was fitted on, tested on and how; figures by protocol; the same of each baseline.

    `notes`, as JSON: `confidence` (of intervals), `encoder` (a digest of its weights), `split` (of one set in
    two), `labels` (how classes of two sets were matched) and `input` (how the data were shown). Warnings are
    `leak`, `overlap` and `unfinished`.
    """

    train: SetFacts
    test: SetFacts
    settings: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Measurement] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, Measurement]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "\n".join([*text_table(self.rows(), numbers=True), self._caption()])

    def _repr_html_(self) -> str:
        return f"{table_html(self.rows())}<small>{escape(self._caption())}</small>"

    def rows(self, paths: Iterable[str] | None = None) -> list[list[str]]:
        """A row for each kind of features, a column for each figure of the measurements at `paths`."""
        measurements = {path: self.figures[path] for path in (self.figures if paths is None else paths)}
        columns = [
            (path, name, title) for path, m in measurements.items() for name, title in m.titles().items()
        ]
        rows = [["features", *(f"{display_name(path)} {title}" for path, _, title in columns)]]
        for kind, measured in self.by_features().items():
            cells = [measured[path].text(name) if path in measured else "–" for path, name, _ in columns]
            rows.append([kind, *cells])
        return rows

    def _caption(self) -> str:
        return (
            f"fitted on {self.train.name}, tested on {self.test.name} ({self.test.samples} {self.test.unit})"
        )

    def plot(self) -> Any:
        """A matplotlib figure: the accuracy of each protocol with its interval, and of the baselines."""
        accuracies = [path for path, measurement in self.figures.items() if "top1" in measurement.figures]
        if not accuracies:
            raise ValueError("this result has no accuracy to plot")
        panels = self.by_features().items()
        return bar_figure(
            {
                path: {kind: measured[path].figures["top1"] for kind, measured in panels if path in measured}
                for path in accuracies
            }
        )

    @property
    def encoder(self) -> str:
        """A digest of the weights that were evaluated."""
        return str(self.notes.get("encoder", ""))

    @cached_property
    def kind(self) -> str:
        """A digest of what was fitted on, tested on and how; only results with the same are comparable."""
        facts = [self.train.fingerprint, self.test.fingerprint, self.settings, self.notes.get("split")]
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=dict).encode()).hexdigest()[:16]

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(str(self.notes[key]) for key in WARNINGS if key in self.notes)

    def by_features(self) -> dict[str, Mapping[str, Measurement]]:
        """The measurements of each kind of features: baselines first, then the learned ones."""
        return {**self.baselines, "learned": self.figures}

    def to_json(self, *, answers: bool = False) -> dict[str, Any]:
        """`answers`: with those of the learned features for each test instance."""
        tree: dict[str, Any] = _nested(self.figures, answers)
        tree |= {"train": self.train.to_json(), "test": self.test.to_json(), **self.notes}
        tree["settings"] = dict(self.settings)
        tree["baselines"] = {name: _nested(figures) for name, figures in self.baselines.items()}
        return tree

    @classmethod
    def from_json(cls, stored: Any) -> "Result | None":
        """None where `stored` does not name its data; unreadable measurements are left out."""
        if not isinstance(stored, Mapping):
            return None
        train, test = (SetFacts.from_json(stored.get(role)) for role in ("train", "test"))
        settings, baselines = stored.get("settings", {}), stored.get("baselines", {})
        if train is None or test is None or not isinstance(baselines, Mapping):
            return None
        skipped = ("train", "test", "settings", "baselines", *NOTES)
        figures = {name: value for name, value in stored.items() if name not in skipped}
        return cls(
            train,
            test,
            settings if isinstance(settings, Mapping) else {},
            _flattened(figures),
            {
                str(name): _flattened(values_by_name)
                for name, values_by_name in baselines.items()
                if isinstance(values_by_name, Mapping)
            },
            {key: stored[key] for key in NOTES if key in stored},
        )


def _nested(measurements: Mapping[str, Measurement], answers: bool = False) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, measurement in measurements.items():
        *parents, name = path.split("/")
        place = tree
        for part in parents:
            place = place.setdefault(part, {})
        place[name] = measurement.to_json(answers=answers)
    return tree


def _flattened(tree: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Measurement]:
    """Measurements by path; a mapping with a figure in it is one."""
    measurements: dict[str, Measurement] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if not isinstance(value, Mapping):
            continue
        if any(_is_figure(value, key) for key in value):
            measurements[path] = Measurement.from_json(value)
        elif depth < MAX_DEPTH:
            measurements |= _flattened(value, f"{path}/", depth + 1)
    return measurements
