"""Tables of plain text and of Markdown, and numbers and times as they are shown."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Lines of aligned columns, the first to the left, the others too or, with `numbers`, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    side = ">" if numbers else "<"

    def line(row: Sequence[str]) -> str:
        cells = [f"{row[0]:<{widths[0]}}"]
        cells += [f"{cell:{side}{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "  ".join(cells).rstrip()

    return [line(row) for row in rows]


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def duration(seconds: float) -> str:
    """`42 s`, `12.5 min`, `3.1 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plus_minus(
    mean: float, spread: float | None, digits: int = 1, *, sign: str = "", significant: bool = False
) -> str:
    """`44.7 ± 0.3`, or `44.7` without a spread. `digits` come after the point, or are all that are
    `significant`. `sign="+"` writes the sign of a positive mean."""
    style = f".{digits}{'g' if significant else 'f'}"
    text = f"{mean:{sign}{style}}"
    return text if spread is None else f"{text} ± {spread:{style}}"
