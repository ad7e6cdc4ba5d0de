"""What evaluations say beside accuracies: clusters, retrieval, calibration, proven nats about the label, quality without labels; and which
classes are told apart and which are not."""

from collections.abc import Iterator, Mapping
from typing import Any

from nearfar.report.facts import Section
from nearfar.run.results import results_of
from nearfar.run.trained import Run

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
    rows = [row for result in results_of(run.evaluation) for row in _rows(result)][:MOST_ROWS]
    if not rows:
        return None
    said = (
        "What was measured beside accuracies. RankMe, LiDAR and alpha-ReQ look at no label; nats about the label are a lower bound on the "
        "information between features and label, on rows the classifier behind it never saw.",
    )
    return Section("Beyond accuracy", said, ("figure", "features", "value", "test set"), tuple(rows))


def _rows(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    test = str(result["test"]["name"])
    for kind, found in {"learned": result, **(result.get("baselines") or {})}.items():
        for figures in found.values() if isinstance(found, Mapping) else ():
            if not isinstance(figures, Mapping):
                continue
            for key, title in SHOWN.items():
                if _number(figures.get(key)):
                    yield title, str(kind), f"{figures[key]:.3f}", test
            yield from _nats(figures, str(kind), test)


def _nats(figures: Mapping[str, Any], kind: str, test: str) -> Iterator[tuple[str, ...]]:
    """The bound on labels, with what it proves and the most there is to know."""
    least = figures.get("at_least")
    if not isinstance(least, Mapping) or not _number(least.get("nats")) or not _number(figures.get("nats")):
        return
    certificate = least.get("certificate")
    status = str(certificate.get("status")) if isinstance(certificate, Mapping) else "not known"
    most = f" of {figures['entropy']:.3f}" if _number(figures.get("entropy")) else ""
    proven = f"; at least {least['nats']:.3f} (proven)" if status == "proven" else f" ({status})"
    yield "nats about the label", kind, f"{figures['nats']:.3f}{most}{proven}", test


def classes_told_apart(run: Run) -> Section | None:
    """The classes with the lowest accuracy, and the pairs most often taken for each other, of the newest result that says."""
    for result in reversed(results_of(run.evaluation)):
        for name, figures in result.items():
            if isinstance(figures, Mapping) and isinstance(figures.get("confusion"), Mapping):
                pairs = sorted(_confused(figures["confusion"]), key=lambda pair: -pair[2])[:MOST]
                worst = sorted(_shares(figures.get("per_class")), key=lambda pair: pair[1])[:MOST]
                listed = ", ".join(f"{label} {100 * share:.0f} %" for label, share in worst)
                said = (
                    f"By {name}, tested on {result['test']['name']}.",
                    f"Accuracy of a class, lowest first: {listed}." if listed else "",
                )
                rows = tuple(
                    (truth, taken, f"{count:,}", f"{100 * share:.1f} %")
                    for truth, taken, count, share in pairs
                )
                return Section(
                    "Classes",
                    tuple(filter(None, said)),
                    ("class", "taken for", "how often", "of the class"),
                    rows,
                )
    return None


def _confused(confusion: Mapping[str, Any]) -> Iterator[tuple[str, str, int, float]]:
    classes, counts = confusion.get("classes"), confusion.get("counts")
    if not isinstance(classes, list) or not isinstance(counts, list) or len(classes) != len(counts):
        return
    for truth, row in zip(classes, counts, strict=True):
        if not isinstance(row, list) or len(row) != len(classes) or not all(_number(count) for count in row):
            return
        for taken, count in zip(classes, row, strict=True):
            if taken != truth and count:
                yield str(truth), str(taken), int(count), count / sum(row)


def _shares(per_class: Any) -> Iterator[tuple[str, float]]:
    for label, share in per_class.items() if isinstance(per_class, Mapping) else ():
        if _number(share):
            yield str(label), float(share)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
