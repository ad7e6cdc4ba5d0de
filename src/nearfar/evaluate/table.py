"""An evaluation as a small table of plain text."""

from collections.abc import Mapping
from typing import Any

from nearfar.evaluate.protocols import PROTOCOLS

MASKED = "masked"  # hidden symbols told, which has a third figure: nats


def table(result: Mapping[str, Any]) -> str:
    """One row for each kind of features (baselines first), a column for each figure of each protocol."""
    columns = [(name, f"top{top}") for name in (*PROTOCOLS, MASKED) if name in result for top in (1, 5)]
    columns += [(MASKED, "nats")] if MASKED in result else []
    rows = [["features", *(f"{name} {figure.replace('top', 'top-')}" for name, figure in columns)]]
    for kind, figures in {**result.get("baselines", {}), "learned": result}.items():
        rows.append([kind, *(_cell(figure, figures.get(name, {}).get(figure)) for name, figure in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join([*(_line(row, widths) for row in rows), _caption(result)])


def _cell(figure: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if figure == "nats" else f"{100 * value:.1f} %"


def _line(row: list[str], widths: list[int]) -> str:
    first, *numbers = widths
    return "  ".join(
        [row[0].ljust(first), *(f"{cell:>{width}}" for cell, width in zip(row[1:], numbers, strict=True))]
    )


def _caption(result: Mapping[str, Any]) -> str:
    samples, train, test = result["samples"], result["data"]["train"]["name"], result["data"]["test"]["name"]
    where = f"the held-out {result['split']['share']:.0%}" if result["split"] else test
    unit = result["data"]["train"].get("unit", "images")
    if (
        result["data"]["train"]["fingerprint"] == result["data"]["test"]["fingerprint"]
        and not result["split"]
    ):
        where = f"{test}, the training text itself"
    return f"fitted on {samples['train']} {unit} of {train}; tested on {samples['test']} of {where}"
