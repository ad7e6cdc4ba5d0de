"""The figure of a study: a panel for each table, one colour per series, reference values as dashed lines."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nearfar.studies.frame import DOTS, REFERENCE, StudyResult, StudyRow, StudyTable
from nearfar.sweeps.pictures import COLOURS, panels

REFERENCE_COLOUR = "#1c1c1c"
DASHES = (0, (4, 3))


def draw_result(result: StudyResult) -> Figure:
    """A panel for each table: lines where its rows have an x or it has curves, bars otherwise."""
    tables = [table for table in result.tables if table.lines or any(map(_is_number, table.rows))]
    tallest = max((len(_bar_rows(table)) for table in tables), default=0)
    figure, axes = panels([table.name for table in tables] or [""], 5.0, max(3.2, 1.0 + 0.2 * tallest))
    for axis, table in zip(axes, tables, strict=False):
        draw_table(axis, table)
    return figure


def draw_table(axis: Axes, table: StudyTable) -> None:
    rows = _bar_rows(table)
    if rows:
        _draw_bars(axis, rows)
    else:
        _draw_lines(axis, table)


def _is_number(row: StudyRow) -> bool:
    return isinstance(row.ours, (int, float))


def _bar_rows(table: StudyTable) -> list[StudyRow]:
    """The rows to draw as bars; none where the table is drawn as lines."""
    has_lines = table.lines or any(row.x is not None for row in table.rows)
    return [] if has_lines else [row for row in table.rows if _is_number(row)]


def _draw_bars(axis: Axes, rows: Sequence[StudyRow]) -> None:
    rows = rows[::-1]
    places = range(len(rows))
    values = [float(row.ours or 0.0) for row in rows]
    axis.barh(places, values, xerr=[row.spread or 0.0 for row in rows], color=COLOURS[0])
    papers = [(place, row.paper) for place, row in zip(places, rows, strict=True)]
    papers = [(place, paper) for place, paper in papers if isinstance(paper, (int, float))]
    if papers:
        at, numbers = zip(*papers, strict=True)
        axis.plot(numbers, at, "|", color=COLOURS[1], markersize=12, label="paper")
        axis.legend(frameon=False, fontsize=7)
    axis.set_yticks(list(places), [row.label for row in rows], fontsize=7)


def _draw_lines(axis: Axes, table: StudyTable) -> None:
    series: dict[str, list[StudyRow]] = {}
    for row in table.rows:
        if row.x is not None and _is_number(row):
            series.setdefault(row.series, []).append(row)
    for place, (name, rows) in enumerate(series.items()):
        look: Any = {"color": COLOURS[place % len(COLOURS)], "markersize": 3.5}
        points: Any = [(row.x, row.ours, row.spread or 0.0) for row in rows]
        x, y, spreads = zip(*points, strict=True)
        axis.errorbar(x, y, yerr=spreads, marker="o", label=name or "ours", **look)
        papers: Any = [(row.x, row.paper) for row in rows if isinstance(row.paper, (int, float))]
        if papers:
            axis.plot(*zip(*papers, strict=True), "s--", alpha=0.5, label=f"{name} (paper)".lstrip(), **look)
    for place, (name, line) in enumerate(table.lines.items(), len(series)):
        if name == DOTS:
            axis.scatter(*line, s=2, c=[COLOURS[dot % 2] for dot in range(len(line[0]))], linewidths=0)
        else:
            axis.plot(*line, color=COLOURS[place % len(COLOURS)], linewidth=1.1, label=name)
    for row in table.rows:
        if row.series == REFERENCE and isinstance(row.ours, (int, float)):
            axis.axhline(row.ours, color=REFERENCE_COLOUR, linewidth=1.0, linestyle=DASHES, label=row.label)
    axis.set_xlabel(table.x_label)
    for letter in table.log:
        axis.set(**{f"{letter}scale": "log"})
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=7)
