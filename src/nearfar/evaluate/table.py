"""An evaluation as a small table of plain text."""

from collections.abc import Mapping
from typing import Any

from nearfar.evaluate.protocols import PROTOCOLS

FIGURES = {"top1": "top-1", "top5": "top-5", "nats": "nats"}
MOST = 20  # classes listed


def table(result: Mapping[str, Any]) -> str:
    """One row for each kind of features (baselines first), a column for each figure of each protocol; then what it was
    fitted and tested on, and which class was taken for which."""
    columns = [(name, figure) for name in _protocols(result) for figure in FIGURES if figure in result[name]]
    rows = [["features", *(f"{name} {FIGURES[figure]}" for name, figure in columns)]]
    for kind, figures in {**result.get("baselines", {}), "learned": result}.items():
        rows.append([kind, *(_cell(figure, figures.get(name, {})) for name, figure in columns)])
    return "\n".join([*_lines(rows), _caption(result), *_matched(result.get("labels")), *_unfinished(result)])


def _protocols(result: Mapping[str, Any]) -> list[str]:
    """What was measured: the protocols in their order, then what a modality measures without labels."""
    measured = [name for name, found in result.items() if isinstance(found, Mapping) and "top1" in found]
    return [*(name for name in PROTOCOLS if name in measured), *(n for n in measured if n not in PROTOCOLS)]


def _lines(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_line(row, widths) for row in rows]


def _cell(figure: str, figures: Mapping[str, Any]) -> str:
    """`58.1 % (57.1–59.1)`: the figure with its interval."""
    value = figures.get(figure)
    if value is None:
        return "–"
    if figure == "nats":
        return f"{value:.3f}"
    interval = figures.get("interval" if figure == "top1" else "interval_top5")
    return f"{100 * value:.1f} %" + (
        f" ({100 * interval[0]:.1f}–{100 * interval[1]:.1f})" if interval else ""
    )


def _line(row: list[str], widths: list[int]) -> str:
    first, *numbers = widths
    return "  ".join(
        [row[0].ljust(first), *(f"{cell:>{width}}" for cell, width in zip(row[1:], numbers, strict=True))]
    )


def _caption(result: Mapping[str, Any]) -> str:
    train, test = result["train"], result["test"]
    unit = test.get("unit", "images")
    said = f"fitted on {train['samples']} {train.get('unit', unit)}: {train['name']}; tested on {test['samples']} {unit}: {test['name']}"
    for name in _protocols(result):
        other = result[name].get("test")
        if other is None:
            continue
        said += f"; {name} on {other['samples']} {other.get('unit', unit)}: {other['name']}"
    return f"{said}\nin brackets, {result['confidence']:.0%} Wilson intervals for test sets of this size; how much other seeds of training would differ is not in them"


def _unfinished(result: Mapping[str, Any]) -> list[str]:
    return [result["unfinished"]] if "unfinished" in result else []


def _matched(labels: Mapping[str, Any] | None) -> list[str]:
    """Which class of the test set was taken for which: one line where numbers and names agree, else a table."""
    if labels is None:
        return []
    pairs, missing = labels["classes"], labels["not_in_test"]
    said = [f"{len(pairs)} classes matched by {labels['matched_by']}"]
    if missing:
        said[0] += (
            f"; {len(missing)} are not in the test set: {', '.join(missing[:MOST])}{', …' if len(missing) > MOST else ''}"
        )
    if labels["matched_by"] == "number":
        said[0] += f" ({labels['because']})"
    if all(numbers["train"] == numbers["test"] for numbers in pairs.values()):
        return said
    rows = [["class", "number in train", "number in test"]]
    rows += [
        [name, str(numbers["train"]), str(numbers["test"])] for name, numbers in list(pairs.items())[:MOST]
    ]
    return [*said, *_lines(rows), *([f"… and {len(pairs) - MOST} more"] if len(pairs) > MOST else [])]
