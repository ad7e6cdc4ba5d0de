"""What notebooks show: HTML of methods, certificates, runs and results, and figures by matplotlib."""

from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from typing import Any

COLOURS = {"proven": "#0f766e", "measured": "#b45309", "not covered": "#b45309", "objective only": "#6b7280"}
CARD = "border:1px solid #8884;border-radius:8px;padding:.5em .8em;min-width:8em;vertical-align:top"


def badge_html(status: str) -> str:
    colour = COLOURS.get(status, "#6b7280")
    return f'<span style="border:1px solid {colour};color:{colour};border-radius:1em;padding:0 .6em">{escape(status)}</span>'


def table_html(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its head."""
    cells = lambda row, tag: "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
    head, *body = rows
    lines = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in body)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{lines}</tbody></table>"


def cards_html(cards: Mapping[str, tuple[str, Mapping[str, Any]]]) -> str:
    """A card for each choice: its name, the part, the part's settings."""
    columns = []
    for choice, (part, settings) in cards.items():
        lines = "".join(
            f"<br><small>{escape(key)} = {escape(str(value))}</small>" for key, value in settings.items()
        )
        columns.append(
            f'<td style="{CARD}"><small>{escape(choice)}</small><br><b>{escape(part)}</b>{lines}</td>'
        )
    return f'<table style="border-spacing:.4em;border-collapse:separate"><tr>{"".join(columns)}</tr></table>'


def make_figure(titles: Sequence[str], width: float = 3.2, height: float = 2.4) -> tuple[Any, list[Any]]:
    """A matplotlib figure with a panel for each title, of this size in inches, shown by any backend."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            buffer = BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    figure = NotebookFigure(figsize=(width * len(titles), height), layout="constrained")
    panels = list(figure.subplots(1, len(titles), squeeze=False)[0])
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, fontsize=11)
    return figure, panels


def bar_figure(bars: Mapping[str, Mapping[str, Any]]) -> Any:
    """A panel for each protocol, a bar for each kind of features: a `Figure`, a share with its interval."""
    figure, panels = make_figure(list(bars))
    for axes, panel in zip(panels, bars.values(), strict=True):
        values = [100 * bar.value for bar in panel.values()]
        ends = [bar.interval or (bar.value, bar.value) for bar in panel.values()]
        errors = [
            [value - 100 * low for value, (low, _) in zip(values, ends, strict=True)],
            [100 * high - value for value, (_, high) in zip(values, ends, strict=True)],
        ]
        axes.barh(list(panel), values, xerr=errors, color="#0f766e", ecolor="#444")
        axes.set(xlim=(0, 100), xlabel="%")
        axes.invert_yaxis()
    return figure


def curve_figure(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Any:
    """A panel for each curve of (step, value)."""
    figure, panels = make_figure(list(curves))
    for axes, points in zip(panels, curves.values(), strict=True):
        axes.plot(*zip(*points, strict=True), color="#0f766e")
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    return figure
