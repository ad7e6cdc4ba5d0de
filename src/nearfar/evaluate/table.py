"""An evaluation as a small table of plain text."""

from collections.abc import Mapping
from typing import Any

from nearfar.evaluate.protocols import NETWORK_PROTOCOLS, PROTOCOLS, UNLABELLED_PROTOCOLS

# what is shown of a protocol, in the words of the field
FIGURES = {
    "top1": "top-1",
    "top5": "top-5",
    "chance": "by chance",
    "back_top1": "back, top-1",
    "back_chance": "back, by chance",
    "nmi": "NMI",
    "ari": "ARI",
    "recall@1": "recall@1",
    "recall@10": "recall@10",
    "map": "mAP",
    "ece": "ECE",
    "nats": "nats",
    "rankme": "RankMe",
    "lidar": "LiDAR",
    "alpha_req": "alpha-ReQ",
    "uniformity": "uniformity",
    "alignment": "alignment",
}
SHARES = (
    "top1",
    "top5",
    "chance",
    "back_top1",
    "back_chance",
    "recall@1",
    "recall@10",
    "map",
    "ece",
)  # shown in percent
MOST = 20  # classes listed
WIDEST = 6  # figures side by side; more stand below one another


def table(result: Mapping[str, Any]) -> str:
    """One row for each kind of features (baselines first), a column for each figure of each protocol; or, where there are many, the
    other way round. Then what it was fitted and tested on, and which class was taken for which."""
    columns = [
        (name, figure)
        for name, figures in measured(result).items()
        for figure in FIGURES
        if isinstance(figures.get(figure), (int, float))
    ]
    kinds = {
        kind: measured(found) for kind, found in {**result.get("baselines", {}), "learned": result}.items()
    }
    rows = [["features", *(f"{name} {FIGURES[figure]}" for name, figure in columns)]]
    for kind, found in kinds.items():
        rows.append([kind, *(cell(figure, found.get(name, {})) for name, figure in columns)])
    if len(columns) > WIDEST:
        rows = [list(row) for row in zip(*rows, strict=True)]
    said = [_caption(result), *_proven(result), *matched_lines(result.get("labels")), *_warned(result)]
    return "\n".join([*_lines(rows), *said])


def measured(result: Mapping[str, Any], above: str = "") -> dict[str, Mapping[str, Any]]:
    """What was measured, by name: the protocols in their order, then what a modality measures without labels; a protocol may have
    figures for each of several settings."""
    known = (*PROTOCOLS, *NETWORK_PROTOCOLS, *UNLABELLED_PROTOCOLS)
    names = [*(name for name in known if name in result), *(name for name in result if name not in known)]
    found: dict[str, Mapping[str, Any]] = {}
    for name in names:
        figures = result[name]
        if not isinstance(figures, Mapping) or name in _BESIDE:
            continue
        if any(isinstance(figures.get(figure), (int, float)) for figure in FIGURES):
            found[f"{above}{name}"] = figures
        else:
            found |= measured(figures, f"{above}{name} ")
    return found


_BESIDE = ("baselines", "train", "test", "labels", "settings", "split", "input", "per_class", "confusion")


def _lines(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_line(row, widths) for row in rows]


def cell(figure: str, figures: Mapping[str, Any]) -> str:
    """`58.1 % (57.1–59.1)`: the figure with its interval."""
    value = figures.get(figure)
    if value is None:
        return "–"
    if figure not in SHARES:
        error = figures.get("error") if figure == "nats" else None
        return f"{value:.3f}" + (f" ± {error:.3f}" if isinstance(error, (int, float)) else "")
    interval = figures.get({"top1": "interval", "top5": "interval_top5"}.get(figure, ""))
    interval = interval or figures.get("intervals", {}).get(figure)
    deviation = figures.get("spread") if figure == "top1" else None
    spread = "" if deviation is None else f" ± {100 * deviation:.1f}"
    within = f" ({100 * interval[0]:.1f}–{100 * interval[1]:.1f})" if interval else ""
    return f"{100 * value:.1f}{spread} %{within}"


def _line(row: list[str], widths: list[int]) -> str:
    first, *numbers = widths
    return "  ".join(
        [row[0].ljust(first), *(f"{cell:>{width}}" for cell, width in zip(row[1:], numbers, strict=True))]
    )


def _caption(result: Mapping[str, Any]) -> str:
    train, test = result["train"], result["test"]
    unit = test.get("unit", "images")
    said = f"fitted on {train['samples']} {train.get('unit', unit)}: {train['name']}; tested on {test['samples']} {unit}: {test['name']}"
    for name, figures in measured(result).items():
        other = figures.get("test")
        if other is None:
            continue
        said += f"; {name} on {other['samples']} {other.get('unit', unit)}: {other['name']}"
    if "input" in result:
        shown = result["input"]
        size = f"{shown['size']} pixels a side, " if "size" in shown else ""
        said += f"; shown at {size}mean and deviation of {shown['statistics']}"
    return f"{said}\nin brackets, {result['confidence']:.0%} intervals for test sets of this size (of accuracies Wilson's); how much other seeds of training would differ is not in them"


def _proven(result: Mapping[str, Any]) -> list[str]:
    """What is proven of the label, where it was asked."""
    found = result.get("information")
    if not isinstance(found, Mapping):
        return []
    least, certificate = found["at_least"], found["at_least"]["certificate"]
    most = f"; the labels' own entropy is {found['entropy']:.3f}"
    if certificate["status"] != "proven":
        return [f"what the features tell about the label is not proven: {certificate['condition']}{most}"]
    return [
        f"the features tell at least {least['nats']:.3f} nats about the label with {least['confidence']:.0%} confidence (proven: "
        f"{certificate['condition']}){most}"
    ]


def _warned(result: Mapping[str, Any]) -> list[str]:
    return [f"{result[key]}" for key in ("leak", "overlap", "unfinished") if key in result]


def matched_lines(labels: Mapping[str, Any] | None) -> list[str]:
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
