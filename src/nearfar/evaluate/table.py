"""A result as a table of plain text."""

from collections.abc import Iterable, Mapping
from typing import Any

from nearfar.core.results import Result, display_name
from nearfar.core.tables import text_table
from nearfar.errors import counted
from nearfar.evaluate.protocols import NETWORK_PROTOCOLS, PROTOCOLS, UNLABELLED_PROTOCOLS

MAX_CLASSES = 20  # classes listed
MAX_COLUMNS = 6  # figures side by side; more stand below one another


def table(result: Result) -> str:
    """One row for each kind of features (baselines first), one column for each figure of each protocol; with
    many figures, the other way round. Then what was fitted and tested on, and how classes were matched."""
    rows = result.rows(in_order(result.figures))
    if len(rows[0]) > MAX_COLUMNS + 1:
        rows = [list(row) for row in zip(*rows, strict=True)]
    lines = [*text_table(rows, numbers=True), *_caption(result), *_proven(result)]
    return "\n".join([*lines, *matched_lines(result.notes.get("labels")), *result.warnings])


def in_order(paths: Iterable[str]) -> list[str]:
    """The measurements of the protocols in their order, then those of the modality."""
    names = [*PROTOCOLS, *NETWORK_PROTOCOLS, *UNLABELLED_PROTOCOLS]
    ranks = {name: rank for rank, name in enumerate(names)}
    return sorted(paths, key=lambda path: ranks.get(path.partition("/")[0], len(names)))


def _caption(result: Result) -> list[str]:
    described = lambda one: f"{counted(one.samples, one.unit)}: {one.name}"
    text = f"fitted on {described(result.train)}; tested on {described(result.test)}"
    for path, measurement in result.figures.items():
        if measurement.test is not None:
            text += f"; {display_name(path)} on {described(measurement.test)}"
    if facts := result.notes.get("input"):
        size = f"resized to {facts['size']} x {facts['size']} pixels, " if "size" in facts else ""
        text += f"; {size}normalised with the mean and standard deviation of {facts['statistics']}"
    return [
        text,
        f"in brackets, {result.notes['confidence']:.0%} intervals for test sets of this size (Wilson's for "
        "accuracies); they do not include the variation between training seeds",
    ]


def _proven(result: Result) -> list[str]:
    """The lower bound on the information about the label, if it was measured."""
    measurement = result.figures.get("information")
    if measurement is None:
        return []
    bound = measurement.details["at_least"]
    certificate = bound["certificate"]
    entropy = f"; the entropy of the labels is {measurement.details['entropy']:.3f}"
    if certificate["status"] != "proven":
        return [f"the information about the label is not proven: {certificate['condition']}{entropy}"]
    return [
        f"the features contain at least {bound['nats']:.3f} nats about the label with {bound['confidence']:.0%} "
        f"confidence (proven: {certificate['condition']}){entropy}"
    ]


def matched_lines(labels: Mapping[str, Any] | None) -> list[str]:
    """How classes of the test set were matched: one line where their numbers agree, else a table."""
    if labels is None:
        return []
    pairs, missing = labels["classes"], labels["not_in_test"]
    summary = f"{counted(len(pairs), 'classes')} matched by {labels['matched_by']}"
    if missing:
        more = ", …" if len(missing) > MAX_CLASSES else ""
        summary += f"; {len(missing)} are not in the test set: {', '.join(missing[:MAX_CLASSES])}{more}"
    if labels["matched_by"] == "number":
        summary += f" ({labels['because']})"
    if all(numbers["train"] == numbers["test"] for numbers in pairs.values()):
        return [summary]
    rows = [["class", "number in train", "number in test"]]
    rows += [
        [name, str(numbers["train"]), str(numbers["test"])]
        for name, numbers in list(pairs.items())[:MAX_CLASSES]
    ]
    rest = [f"… and {len(pairs) - MAX_CLASSES} more"] if len(pairs) > MAX_CLASSES else []
    return [summary, *text_table(rows, numbers=True), *rest]
