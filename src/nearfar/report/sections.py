"""Sections of a page in addition to the standard ones: functions of a run that return a `Section` or None.

A section is a title, sentences, a table of text and pictures. `SECTIONS` lists them. One that fails shows the reason,
and the page is written all the same.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeFloat, NonNegativeInt, ValidationError

from nearfar.core.results import Measurement, Result, display_name
from nearfar.detect.table import TITLES as DETECTION_TITLES
from nearfar.detect.table import caption, rows_of
from nearfar.errors import as_sentence, counted
from nearfar.report.facts import UNAVAILABLE, Picture, PictureRow, Section
from nearfar.report.pictures import Sample, data_uri, fitted
from nearfar.run.features import encoder_digest
from nearfar.run.trained import Run
from nearfar.search.curate import FACTS, TITLES
from nearfar.system.untrusted import is_number, read_json

MAX_SHOWN = 12  # pictures of a row
SIDE = 128  # pixels


def curation(run: Run) -> Section | None:
    """The clearest duplicates, outliers and doubtful labels of RUN/curation.json, with pictures."""
    stored = read_json(run.path / FACTS)
    if stored is None:
        return None
    try:
        sentence = f"{stored['data']}: {counted(int(stored['instances']), 'instances')}. " + ", ".join(
            counted(int(stored[name]["count"]), title) for name, title in TITLES.items() if name in stored
        )
        rows = {name: _cases(stored[name]["first"]) for name in TITLES if name in stored}
        encoder = stored["encoder"]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return Section("Curation", (f"RUN/{FACTS} cannot be read; nearfar curate writes a new one.",))
    title = "Curation"
    try:
        if encoder != encoder_digest(run.encoder()):
            problem = f"RUN/{FACTS} was made before the encoder changed; nearfar curate writes a new one."
            return Section(title, (problem,))
        return Section(title, (f"{sentence}.",), picture_rows=_picture_rows(run, stored, rows))
    except UNAVAILABLE as problem:
        return Section(title, (f"{sentence}.", f"The pictures are missing: {as_sentence(problem)}"))


def _cases(first: Any) -> list[tuple[int, str]]:
    """(row, what is remarkable) of the stored cases."""
    return [(int(row), str(remark)) for row, remark in first][:MAX_SHOWN]


def _picture_rows(
    run: Run, stored: Mapping[str, Any], rows: Mapping[str, list[tuple[int, str]]]
) -> tuple[PictureRow, ...]:
    if not run.may_open(str(stored["data"])):
        raise ValueError("the data are at a URL that was not confirmed")
    images = run.open_data(None if stored["data"] == run.settings.data else str(stored["data"]))
    if images.fingerprint != stored.get("fingerprint"):
        raise ValueError("the data have changed since; run nearfar curate again")
    if not all(0 <= row < len(images) for cases in rows.values() for row, _ in cases):
        raise ValueError(f"RUN/{FACTS} names rows that the data do not have")
    picture_rows = []
    for name, cases in rows.items():
        if cases:
            sample = Sample(run, images, np.array([row for row, _ in cases]))
            pictures = tuple(
                Picture(data_uri(fitted(picture, SIDE)), f"{remark} · {sample.caption(place)}")
                for place, (picture, (_, remark)) in enumerate(zip(sample.pictures(), cases, strict=True))
            )
            picture_rows.append(PictureRow(TITLES[name].capitalize(), pictures))
    return tuple(picture_rows)


FIGURE_TITLES = {
    "nmi": "NMI of k-means with the classes",
    "ari": "adjusted Rand index",
    "recall@1": "recall@1",
    "recall@10": "recall@10",
    "map": "mean average precision",
    "ece": "expected calibration error",
    "log_loss": "log-loss, nats",
    "rankme": "RankMe",
    "lidar": "LiDAR",
    "alpha_req": "alpha-ReQ",
    "uniformity": "uniformity (lower is better)",
    "alignment": "alignment (lower is better)",
}
MAX_LISTED = 12  # classes and pairs listed
MAX_ROWS = 200


def other_figures(run: Run) -> Section | None:
    """A table of the figures other than accuracies, of learned features and baselines."""
    rows = [row for result in run.results for row in _rows(result)][:MAX_ROWS]
    if not rows:
        return None
    sentences = (
        "Figures other than accuracies. RankMe, LiDAR and alpha-ReQ use no labels. Nats about the label "
        "are a lower bound on the information "
        "between features and label, on rows that its classifier was not fitted to.",
    )
    return Section("Beyond accuracy", sentences, ("figure", "features", "value", "test set"), tuple(rows))


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    for features, measurements in {"learned": result.figures, **result.baselines}.items():
        for measurement in measurements.values():
            for name, title in FIGURE_TITLES.items():
                if name in measurement.figures:
                    yield title, features, f"{measurement.figures[name].value:.3f}", result.test.name
            yield from _nats(measurement, features, result.test.name)


def _nats(measurement: Measurement, features: str, test: str) -> Iterator[tuple[str, ...]]:
    """The bound on information about the label, what is proven of it, and the entropy of the labels."""
    bound, entropy = measurement.details.get("at_least"), measurement.details.get("entropy")
    if (
        not isinstance(bound, Mapping)
        or not is_number(bound.get("nats"))
        or "nats" not in measurement.figures
    ):
        return
    certificate = bound.get("certificate")
    status = str(certificate.get("status")) if isinstance(certificate, Mapping) else "not known"
    entropy_text = f" of {entropy:.3f}" if is_number(entropy) else ""
    proven = f"; at least {bound['nats']:.3f} (proven)" if status == "proven" else f" ({status})"
    yield (
        "nats about the label",
        features,
        f"{measurement.figures['nats'].value:.3f}{entropy_text}{proven}",
        test,
    )


def class_confusions(run: Run) -> Section | None:
    """The classes with the lowest accuracy and the pairs most often confused, of the newest result."""
    for result in reversed(run.results):
        for path, measurement in result.figures.items():
            if isinstance(measurement.details.get("confusion"), Mapping):
                return _classes_section(display_name(path), measurement, result.test.name)
    return None


class _Stored(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Confusion(_Stored):
    """How often instances of each class (a row) were taken for each class."""

    classes: list[str]
    counts: list[list[NonNegativeInt]]


class _Breakdown(_Stored):
    """What evaluation.json has of the classes of a measurement."""

    confusion: _Confusion
    per_class: dict[str, FiniteFloat] = {}


def _classes_section(protocol: str, measurement: Measurement, test: str) -> Section:
    try:
        breakdown = _Breakdown.model_validate(measurement.details)
    except ValidationError:
        raise ValueError("its numbers are not those of classes; run nearfar evaluate again") from None
    pairs = sorted(_confused(breakdown.confusion), key=lambda pair: -pair[2])[:MAX_LISTED]
    worst = sorted(breakdown.per_class.items(), key=lambda pair: pair[1])[:MAX_LISTED]
    listed = ", ".join(f"{label} {100 * share:.0f} %" for label, share in worst)
    sentences = (
        f"Protocol {protocol}, tested on {test}.",
        f"Accuracy by class, lowest first: {listed}." if listed else "",
    )
    rows = tuple(
        (truth, mistaken_for, f"{count:,}", f"{100 * share:.1f} %")
        for truth, mistaken_for, count, share in pairs
    )
    columns = ("class", "mistaken for", "count", "share of the class")
    return Section("Classes", tuple(filter(None, sentences)), columns, rows)


def _confused(confusion: _Confusion) -> Iterator[tuple[str, str, int, float]]:
    for truth, row in zip(confusion.classes, confusion.counts, strict=True):
        for mistaken_for, count in zip(confusion.classes, row, strict=True):
            if mistaken_for != truth and count:
                yield truth, mistaken_for, count, count / sum(row)


class _DetectionSettings(_Stored):
    task: str
    fine_tune: bool
    class_agnostic: bool = False
    epochs: NonNegativeInt
    size: NonNegativeInt
    seeds: NonNegativeInt


class _DetectionData(_Stored):
    name: str
    samples: NonNegativeInt
    objects: NonNegativeInt


class _DetectionFigures(_Stored):
    map: FiniteFloat
    map_50: FiniteFloat = 0.0
    map_75: FiniteFloat = 0.0
    spread: NonNegativeFloat = 0.0


class _DetectionResult(_Stored):
    """A result in detection.json; `rows_of` and `caption` read these of its entries."""

    settings: _DetectionSettings
    train: _DetectionData
    test: _DetectionData
    untrained: dict[str, _DetectionFigures] = {}
    pretrained: dict[str, _DetectionFigures] = {}


class _DetectionFile(_Stored):
    results: list[_DetectionResult] = []


def _detection(run: Run) -> Section | None:
    """The results in RUN/detection.json, newest last."""
    stored = read_json(run.path / "detection.json")
    if stored is None:
        return None
    try:
        _DetectionFile.model_validate(stored)
    except ValidationError:
        return Section("Detection", ("RUN/detection.json cannot be read; nearfar detect writes a new one.",))
    rows = tuple((*row, caption(one)) for one in stored.get("results", ()) for row in rows_of(one))
    if not rows:
        return None
    sentence = "COCO's average precision in percent: over overlaps from 0.50 to 0.95, at 0.50, at 0.75."
    return Section("Detection", (sentence,), ("backbone", "of", *DETECTION_TITLES.values(), "how"), rows)


SECTIONS: dict[str, Callable[[Run], Section | None]] = {
    "Classes": class_confusions,
    "Beyond accuracy": other_figures,
    "Detection": _detection,
    "Curation": curation,
}


def sections_of(run: Run) -> Iterator[Section]:
    for name, section in SECTIONS.items():
        try:
            content = section(run)
        except UNAVAILABLE as problem:
            content = Section(name, (f"This section could not be made: {as_sentence(problem)}",))
        if content is not None:
            yield content
