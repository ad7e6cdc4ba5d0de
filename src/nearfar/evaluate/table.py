"""An evaluation as a small table of plain text."""

from collections.abc import Mapping
from typing import Any

from nearfar.evaluate.protocols import PROTOCOLS


def table(result: Mapping[str, Any]) -> str:
    """One row of percentages for each kind of features (baselines first), two columns for each protocol."""
    columns = [(name, top) for name in PROTOCOLS if name in result for top in (1, 5)]
    rows = [["features", *(f"{name} top-{top}" for name, top in columns)]]
    for kind, figures in {**result.get("baselines", {}), "learned": result}.items():
        rows.append([kind, *(_percent(figures.get(name, {}).get(f"top{top}")) for name, top in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join([*(_line(row, widths) for row in rows), _caption(result)])


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _line(row: list[str], widths: list[int]) -> str:
    first, *numbers = widths
    return "  ".join(
        [row[0].ljust(first), *(f"{cell:>{width}}" for cell, width in zip(row[1:], numbers, strict=True))]
    )


def _caption(result: Mapping[str, Any]) -> str:
    samples, train, test = result["samples"], result["data"]["train"]["name"], result["data"]["test"]["name"]
    where = f"the held-out {result['split']['share']:.0%}" if result["split"] else test
    return f"fitted on {samples['train']} images of {train}; tested on {samples['test']} of {where}"
