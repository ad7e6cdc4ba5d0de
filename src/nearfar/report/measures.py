"""What evaluations say beside accuracies: clusters, retrieval, calibration, proven nats about the label, quality without labels; and which
classes are told apart and which are not."""

from collections.abc import Iterator, Mapping
from typing import Any

from nearfar.core.results import Measurement, Result
from nearfar.evaluate.table import spoken
from nearfar.report.facts import Section
from nearfar.run.trained import Run
from nearfar.system.untrusted import is_number

SHOWN = {
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
MOST = 12  # classes and pairs listed
MOST_ROWS = 200


def beside_accuracy(run: Run) -> Section | None:
    """A table of every figure that is no accuracy, of learned features and baselines."""
    rows = [row for result in run.results for row in _rows(result)][:MOST_ROWS]
    if not rows:
        return None
    said = (
        "What was measured beside accuracies. RankMe, LiDAR and alpha-ReQ look at no label; nats about the label are a lower bound on the "
        "information between features and label, on rows the classifier behind it never saw.",
    )
    return Section("Beyond accuracy", said, ("figure", "features", "value", "test set"), tuple(rows))


def _rows(result: Result) -> Iterator[tuple[str, ...]]:
    for features, measurements in {"learned": result.figures, **result.baselines}.items():
        for measurement in measurements.values():
            for name, title in SHOWN.items():
                if name in measurement.figures:
                    yield title, features, f"{measurement.figures[name].value:.3f}", result.test.name
            yield from _nats(measurement, features, result.test.name)


def _nats(measurement: Measurement, features: str, test: str) -> Iterator[tuple[str, ...]]:
    """The bound on information about the label, what is proven of it, and the entropy of the labels."""
    least, entropy = measurement.details.get("at_least"), measurement.details.get("entropy")
    if (
        not isinstance(least, Mapping)
        or not is_number(least.get("nats"))
        or "nats" not in measurement.figures
    ):
        return
    certificate = least.get("certificate")
    status = str(certificate.get("status")) if isinstance(certificate, Mapping) else "not known"
    most = f" of {entropy:.3f}" if is_number(entropy) else ""
    proven = f"; at least {least['nats']:.3f} (proven)" if status == "proven" else f" ({status})"
    yield "nats about the label", features, f"{measurement.figures['nats'].value:.3f}{most}{proven}", test


def classes_told_apart(run: Run) -> Section | None:
    """The classes with the lowest accuracy, and the pairs most often confused, of the newest result that has them."""
    for result in reversed(run.results):
        for path, measurement in result.figures.items():
            if isinstance(measurement.details.get("confusion"), Mapping):
                return _classes_section(spoken(path), measurement, result.test.name)
    return None


def _classes_section(protocol: str, measurement: Measurement, test: str) -> Section:
    pairs = sorted(_confused(measurement.details["confusion"]), key=lambda pair: -pair[2])[:MOST]
    worst = sorted(_shares(measurement.details.get("per_class")), key=lambda pair: pair[1])[:MOST]
    listed = ", ".join(f"{label} {100 * share:.0f} %" for label, share in worst)
    sentences = (
        f"By {protocol}, tested on {test}.",
        f"Accuracy of a class, lowest first: {listed}." if listed else "",
    )
    rows = tuple((truth, taken, f"{count:,}", f"{100 * share:.1f} %") for truth, taken, count, share in pairs)
    columns = ("class", "taken for", "how often", "of the class")
    return Section("Classes", tuple(filter(None, sentences)), columns, rows)


def _confused(confusion: Mapping[str, Any]) -> Iterator[tuple[str, str, int, float]]:
    classes, counts = confusion.get("classes"), confusion.get("counts")
    if not isinstance(classes, list) or not isinstance(counts, list) or len(classes) != len(counts):
        return
    for truth, row in zip(classes, counts, strict=True):
        if (
            not isinstance(row, list)
            or len(row) != len(classes)
            or not all(is_number(count) for count in row)
        ):
            return
        for taken, count in zip(classes, row, strict=True):
            if taken != truth and count:
                yield str(truth), str(taken), int(count), count / sum(row)


def _shares(per_class: Any) -> Iterator[tuple[str, float]]:
    for label, share in per_class.items() if isinstance(per_class, Mapping) else ():
        if is_number(share):
            yield str(label), float(share)
