"""Gathers the facts of a page from a run.

Numbers (settings, metrics, evaluation) are always available. What needs the data and the encoder (map,
gallery, strip) may be absent, with a reason; the page is written all the same.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, cast

import numpy as np

from nearfar.core.results import Measurement, Result, display_name
from nearfar.core.schedules import Learnt, Schedule
from nearfar.core.tables import duration
from nearfar.core.types import Certificate, Status
from nearfar.errors import UserError, counted
from nearfar.modalities.dataset import ignored_files
from nearfar.report.facts import Absent, Curve, Detail, Event, Fact, HeldOut, RunFacts, Score, Tested
from nearfar.report.sections import sections_of
from nearfar.report.visuals import visuals_of
from nearfar.run.folder import DataNotes, RunFolder
from nearfar.run.trained import Run
from nearfar.system.untrusted import is_number, read_json

POINTS = 500

TRAINED = ("loss", "nats", "ceiling", "lr", "grad_norm", "images_per_s", "deviation", "rank", "mean_cosine")
PROBED = ("knn_top1", "linear_top1", "rankme", "lidar", "alpha_req", "uniformity", "alignment")
HELD_OUT = ("nats", "ceiling")
EDGES = ("lower", "upper")  # of a selection by rank: the outer and the inner edge


def curves_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Every logged number with a finite value, by its name in metrics.jsonl; schedules have dots."""
    curves = {}
    schedule_names = dict.fromkeys(
        name for row in rows if row.get("kind") == "train" for name in row if "." in name
    )
    for kind, names in (("train", (*TRAINED, *schedule_names)), ("probe", PROBED), ("held-out", HELD_OUT)):
        rows_of_kind = of_kind(rows, kind)
        for name in names:
            curve = curve_of((row["epoch"], row.get(name)) for row in rows_of_kind)
            if curve is not None:
                curves[f"held-out {name}" if kind == "held-out" else name] = curve
    if "nats" not in curves:  # a ceiling without an estimate below it means nothing
        curves.pop("ceiling", None)
    return curves


def edges_of(rows: Sequence[Mapping[str, Any]], selection: Mapping[str, Any]) -> dict[str, Curve]:
    """The edges of a selection over training, as shares of an anchor's candidates."""
    trained = of_kind(rows, "train")
    curves = {}
    for name in EDGES:
        fixed = selection.get(name)
        if isinstance(fixed, (int, float)):
            curve = curve_of((row["epoch"], float(fixed)) for row in trained)
        else:
            curve = curve_of((row["epoch"], row.get(f"selection.{name}")) for row in trained)
        if curve is not None:
            curves[name] = curve
    return curves


def of_kind(rows: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    """The rows of a kind that say where in the run they are, in that order."""
    placed = (row for row in rows if row.get("kind") == kind and is_number(row.get("epoch")))
    return sorted((row for row in placed if math.isfinite(row["epoch"])), key=lambda row: row["epoch"])


def curve_of(pairs: Iterable[tuple[float, float | None]]) -> Curve | None:
    """A curve of (epoch, value); a null value was never measured, a NaN or infinite one was and is a gap."""
    measured = [(epoch, value) for epoch, value in pairs if is_number(value)]
    table = np.array(measured, dtype=np.float64).reshape(-1, 2)
    epoch, value = table[:, 0], np.where(np.isfinite(table[:, 1]), table[:, 1], np.nan)
    finite = value[~np.isnan(value)]
    if not len(finite):
        return None
    parts = np.array_split(np.arange(len(value)), min(POINTS, len(value)))
    points = [_point(epoch[part], value[part]) for part in parts]
    at, mean, low, high = (tuple(column) for column in zip(*points, strict=True))
    broken = len(value) - len(finite)
    return Curve(at, mean, low, high, first=float(finite[0]), last=float(finite[-1]), broken=broken)


def _point(epoch: np.ndarray, value: np.ndarray) -> tuple[float, float, float, float]:
    finite = value[~np.isnan(value)]
    if not len(finite):
        return float(epoch.mean()), math.nan, math.nan, math.nan
    return float(epoch.mean()), float(finite.mean()), float(finite.min()), float(finite.max())


def gather(run: Run, detail: Detail) -> RunFacts:
    """Everything the page shows of one run."""
    settings = run.settings.as_plain()
    environment = _environment(run)
    metrics = list(run.metrics)
    drawn_map, gallery, strip, selection = visuals_of(run, settings, detail)
    return RunFacts(
        title=run.path.resolve().name,
        path=str(run.path),
        recipe=as_text(settings.get("recipe", "")),
        data=as_text(settings.get("data", "")),
        unit=run.modality.unit,
        summary=tuple(_summary(run, settings, environment, metrics)),
        environment=tuple(Fact(name, value) for name, value in environment.items()),
        choices=dict(run.choices()),
        certificate=_certificate(run),
        held_out=_held_out(metrics),
        curves=curves_of(metrics),
        scores=tuple(_scores(run.results)),
        events=tuple(_events(metrics)),
        settings=tuple(Fact(name, as_text(value)) for name, value in flattened(settings)),
        map=drawn_map,
        gallery=gallery,
        strip=strip,
        edges=edges_of(metrics, settings.get("selection") or {}),
        selection=selection,
        cost=tuple(_cost(run, settings, metrics)),
        sections=tuple(sections_of(run)),
    )


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested settings by dotted name, as on the command line."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def as_text(value: Any) -> str:
    """A setting as on the command line."""
    if isinstance(value, (Schedule, Learnt)):
        return str(value.written())
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(as_text(item) for item in value)
    return str(value)


def _environment(run: Run) -> dict[str, str]:
    """env.json, flattened; empty when the file is missing or damaged, since the page can do without it."""
    tree = read_json(run.path / "env.json")
    return {name: as_text(value) for name, value in flattened(tree)} if isinstance(tree, dict) else {}


def _summary(
    run: Run,
    settings: Mapping[str, Any],
    environment: Mapping[str, str],
    metrics: Sequence[Mapping[str, Any]],
) -> Iterator[Fact]:
    trained, epochs = of_kind(metrics, "train"), settings.get("epochs")
    if trained:
        last = max(trained, key=lambda row: row["step"])
        planned = f" of {epochs:g}" if isinstance(epochs, (int, float)) else ""
        yield Fact("steps", f"{last['step']:,}")
        yield Fact("epochs", f"{last['epoch']:.3g}{planned}")
        yield from _speed(run, trained)
    for name in ("backbone", "batch_size"):
        if settings.get(name) is not None:
            yield Fact(name.replace("_", " "), as_text(settings[name]))
    yield from _data(RunFolder(run.path).notes())
    yield from _machine(run, settings, environment)


def _data(notes: DataNotes | None) -> Iterator[Fact]:
    """Counts of the data."""
    if notes is None:
        return
    yield Fact(
        "data",
        counted(notes.instances, notes.unit) + (f", {notes.held_out:,} held out" * bool(notes.held_out)),
    )
    if notes.set_aside:
        reasons = ", ".join(f"{count:,} ({reason})" for reason, count in notes.set_aside.items())
        yield Fact("left out", reasons)
    if notes.ignored:
        yield Fact("ignored", ignored_files(notes.ignored))
    if notes.unlabelled and not notes.classes:
        yield Fact("labels", f"none ({notes.unlabelled})")
    if notes.left_over:
        yield Fact("dropped per epoch", f"{notes.left_over:,} (incomplete batch)")


def _dated(moment: datetime) -> str:
    return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC).strftime("%-d %B %Y, %H:%M UTC")


def _machine(run: Run, settings: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Fact]:
    """When and where, by the last part of the names in env.json."""
    values = {name.rpartition(".")[2]: value for name, value in environment.items()}
    values.setdefault("precision", as_text(settings.get("precision", "")))
    with suppress(OSError):
        written_at = (run.path / "metrics.jsonl").stat().st_mtime
        values["last logged"] = _dated(datetime.fromtimestamp(written_at, UTC))
    with suppress(ValueError):  # other text than an ISO 8601 date stays as it is
        values["started"] = _dated(datetime.fromisoformat(values.get("started", "")))
    for name in ("started", "last logged", "precision", "device", "cpu", "gpu", "torch", "nearfar"):
        if values.get(name, "none") not in ("", "none"):
            yield Fact(name, values[name].removeprefix("torch."))


def _cost(run: Run, settings: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> Iterator[Fact]:
    """The cost of training: time, instances, memory."""
    trained = of_kind(metrics, "train")
    if not trained:
        return
    with suppress(UserError):
        yield Fact("time", duration(float(run.facts["seconds"])))
    step, batch = max(row["step"] for row in trained), settings.get("batch_size")
    yield Fact("steps", f"{step:,}")
    if isinstance(batch, int):
        yield Fact(f"{run.modality.unit} seen", f"{step * batch:,}")
    yield from _speed(run, trained, ", median")
    if memory := _logged(trained, "peak_memory"):
        yield Fact("peak memory", f"{max(memory):,.0f} MiB")


def _logged(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [value for row in rows if is_number(value := row.get(name))]


def _speed(run: Run, trained: Sequence[Mapping[str, Any]], suffix: str = "") -> Iterator[Fact]:
    if speeds := _logged(trained, "images_per_s"):
        yield Fact(f"{run.modality.unit} per second{suffix}", f"{median(speeds):,.0f}")


def _certificate(run: Run) -> Certificate | Absent:
    """What the bound claims; a run without a checkpoint yet cannot build its bound."""
    try:
        claim = run.certificate()
    except UserError as problem:
        return Absent(f"The certificate of the objective is not available: {problem}.")
    return _as_certificate(claim)


def _as_certificate(claim: Mapping[str, Any]) -> Certificate:
    ceiling, status = claim.get("ceiling"), claim.get("status")
    finite = is_number(ceiling) and math.isfinite(ceiling)
    return Certificate(cast(Status, str(status)), str(claim.get("condition")), ceiling if finite else None)


def _held_out(metrics: Sequence[Mapping[str, Any]]) -> HeldOut | Absent:
    """The last held-out estimate that was logged."""
    rows = [row for row in of_kind(metrics, "held-out") if is_number(row.get("nats"))]
    if not rows:
        return Absent(
            "No instances were held out, so nothing is proven about this run; held_out=0.05 holds out 5 %."
        )
    last = max(rows, key=lambda row: row["step"])
    error, instances = last.get("error"), last.get("instances")
    count = int(instances) if isinstance(instances, int) else 0
    error = float(error) if is_number(error) else math.nan
    return HeldOut(float(last["nats"]), error, count, _as_certificate(last))


def _events(metrics: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
    for row in metrics:
        if row.get("kind") == "event":
            yield Event(int(row.get("step", 0)), str(row.get("message", "")))


def _scores(results: Sequence[Result]) -> Iterator[Score]:
    """The accuracies of every result: of the learned features, then of each baseline."""
    for result in results:
        test_set = _tested(result)
        for features, measurements in {"learned": result.figures, **result.baselines}.items():
            for path, measurement in measurements.items():
                if "top1" in measurement.figures:
                    yield _score(display_name(path), features, measurement, test_set)


def _score(protocol: str, features: str, measurement: Measurement, test_set: Tested) -> Score:
    top5 = measurement.figures["top5"] if "top5" in measurement.titles() else None
    if measurement.test is not None:  # another test set than that of the other protocols
        kind = f"{test_set.kind} {measurement.test.fingerprint}"
        test_set = replace(test_set, kind=kind, test=measurement.test)
    return Score(
        protocol,
        features,
        measurement.figures["top1"].value,
        None if top5 is None else top5.value,
        measurement.figures["top1"].interval,
        test_set,
        measurement.answers,
    )


def _tested(result: Result) -> Tested:
    settings = tuple(Fact(str(name), as_text(value)) for name, value in result.settings.items())
    names = tuple(_class_names(result.notes.get("labels")))
    return Tested(result.kind, result.test, result.train, settings, names)


def _class_names(labels: Any) -> Iterator[tuple[int, str]]:
    """Names of the classes by their numbers in the set fitted on, which answers use."""
    classes = labels.get("classes") if isinstance(labels, Mapping) else None
    for name, numbers in classes.items() if isinstance(classes, Mapping) else ():
        number = numbers.get("train") if isinstance(numbers, Mapping) else None
        if isinstance(number, int):
            yield number, str(name)
