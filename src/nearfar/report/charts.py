"""Curves -> inline SVG that follows the page's colours.

matplotlib draws with stand-in colours; afterwards each becomes a CSS variable, so the same figure is right in
light and dark. Words stay text in the page's own font. Names and legends are the page's work: no string of
the user's enters a figure.
"""

import io
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

from nearfar.report.facts import Curve

SERIES = 10  # --series-0 .. --series-9 in page.css

_INK, _RULE, _CEILING = "#0a0b01", "#0a0b02", "#0a0b03"
_LINES = [f"#0a0c{number:02x}" for number in range(SERIES)]
_VARIABLES = {_INK: "--quiet", _RULE: "--rule", _CEILING: "--far"} | {
    colour: f"--series-{number}" for number, colour in enumerate(_LINES)
}
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "nearfar",
    "text.parse_math": False,
    "font.size": 9.5,
}
_STEPS = [1, 2, 5, 10]  # multiples of a power of ten that ticks are apart
_NONE = 0.7  # where a count of none stands on a logarithmic scale
_SIZE = (4.3, 2.5)  # inches of 72 units: near the width a phone shows it at, so that its text keeps its size


@dataclass(frozen=True)
class Line:
    curve: Curve
    series: int = 0
    ceiling: bool = False  # dashed, in the ceiling's colour


@dataclass(frozen=True)
class Axis:
    """How the vertical axis reads."""

    percent: bool = False
    zero: bool = False  # always show zero
    top: float | None = None  # always show this value


def chart(lines: Sequence[Line], axis: Axis, name: str) -> Markup:
    """One figure of all the lines; `name` is unique in the page, so that ids of two figures never meet."""

    def draw(axes: Axes) -> None:
        for line in lines:
            _draw(axes, line)
        _frame(axes, axis)

    return _figure(draw, name)


def histogram(
    bins: Sequence[float], counts_by_series: Iterable[tuple[int, Sequence[int]]], mark: float, name: str
) -> Markup:
    """Counts over one another on a logarithmic scale; a dashed line stands at `mark`."""
    groups = list(counts_by_series)

    def draw(axes: Axes) -> None:
        for series, counts in groups:
            _stairs(axes, bins, counts, series, baseline=_NONE)
        axes.axvline(mark, color=_INK, linewidth=1.1, dashes=(4, 3))
        axes.set_yscale("log")
        axes.set_ylim(_NONE, max(10, 1.6 * max(max(counts) for _, counts in groups)))
        _style(axes, LogLocator(numticks=5), percent=False)
        axes.yaxis.set_minor_locator(NullLocator())

    return _figure(draw, name)


def shares(bins: Sequence[float], original: Sequence[float], augmented: Sequence[float], name: str) -> Markup:
    """Two histograms of shares over one another; the augmented one is filled."""

    def draw(axes: Axes) -> None:
        _stairs(axes, bins, augmented, 1)
        axes.stairs(original, bins, color=_LINES[0], linewidth=1.4)
        # what never varies stands in one bin, and must not press the other flat
        axes.set_ylim(0, 1.15 * min(max(max(original), max(augmented)), 2 * max(augmented)))
        _style(axes, MaxNLocator(4, steps=_STEPS), percent=True)

    return _figure(draw, name)


def _stairs(
    axes: Axes, bins: Sequence[float], counts: Sequence[float], series: int, baseline: float = 0
) -> None:
    colour = _LINES[series % SERIES]
    axes.stairs(counts, bins, baseline=baseline, fill=True, color=colour, alpha=0.22, linewidth=0)
    axes.stairs(counts, bins, baseline=baseline, color=colour, linewidth=1.4)


def _figure(draw: Callable[[Axes], None], name: str) -> Markup:
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=_SIZE)
        draw(figure.add_axes((0.115, 0.135, 0.87, 0.83)))
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Markup(_inline(file.getvalue(), name))


def _draw(axes: Axes, line: Line) -> None:
    curve = line.curve
    epoch = np.array(curve.epoch)
    if line.ceiling:
        axes.plot(epoch, curve.value, color=_CEILING, linewidth=1.2, dashes=(4, 3))
        return
    colour = _LINES[line.series % SERIES]
    style = "-" if line.series < SERIES else (0, (2, 1.5))
    if curve.low != curve.high:
        axes.fill_between(epoch, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(epoch, curve.value, color=colour, linewidth=1.6, linestyle=style, solid_joinstyle="round")
    value = np.array(curve.value)
    isolated = _isolated(value)
    if isolated.any():
        axes.plot(epoch[isolated], value[isolated], "o", color=colour, markersize=3.5)


def _isolated(value: np.ndarray) -> np.ndarray:
    """Points without a finite neighbour: a line cannot show them."""
    finite = np.isfinite(np.pad(value, 1, constant_values=np.nan))
    few = finite.sum() <= 12  # a handful of probes reads better with each of them marked
    return finite[1:-1] & (few | ~(finite[:-2] | finite[2:]))


def _frame(axes: Axes, axis: Axis) -> None:
    axes.margins(x=0.02, y=0.08)
    low, high = axes.get_ylim()
    if axis.zero:
        low = min(0.0, low)
    if axis.top is not None:
        high = max(axis.top, high)
    axes.set_ylim(low, high)
    whole_ticks = axes.get_xlim()[1] > 4
    _style(axes, MaxNLocator(5, steps=_STEPS), axis.percent, whole_ticks=whole_ticks)


def _style(axes: Axes, heights: Locator, percent: bool, *, whole_ticks: bool = False) -> None:
    """Margins, grid and ticks; `whole_ticks`: ticks of the horizontal axis are whole numbers."""
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole_ticks, steps=_STEPS))
    axes.yaxis.set_major_locator(heights)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _tick(y, percent)))
    axes.grid(axis="y", color=_RULE, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_RULE)
    axes.tick_params(colors=_INK, length=0, pad=4)


def _tick(value: float, percent: bool) -> str:
    if percent:
        return f"{100 * value:.4g}%"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _inline(svg: str, name: str) -> str:
    """An SVG file of matplotlib as an element of the page, with its ids, colours and font."""
    view = re.search(r'viewBox="([^"]*)"', svg)
    body = re.search(r"<svg[^>]*>(.*)</svg>", svg, re.DOTALL)
    if view is None or body is None:
        raise RuntimeError("matplotlib wrote an SVG without a viewBox")
    inner = re.sub(
        r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", body[1], flags=re.DOTALL
    )
    inner = re.sub(r'font: (?:\d+ )?([\d.]+)px [^;"]*', r"font-size: \1px", inner)
    inner = re.sub(r'font-family: [^;"]*; ', "", inner)
    inner = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), inner)
    inner = _own_ids(inner, name)
    for colour, variable in _VARIABLES.items():
        inner = inner.replace(colour, f"var({variable})")
    inner = re.sub(r"\s*\n\s*", "\n", inner)
    return f'<svg class="chart" viewBox="{view[1]}" aria-hidden="true">{inner}</svg>'


def _own_ids(svg: str, name: str) -> str:
    """Ids that something refers to get the figure's name and a number; the others go."""
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", svg))
    new_ids = {old: f"{name}-{number}" for old, number in zip(sorted(used), itertools.count(), strict=False)}
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{new_ids[m[1]]}"' if m[1] in new_ids else "", svg)
    return re.sub(r"(url\(|href=\")#([^)\"]+)", lambda m: f"{m[1]}#{new_ids[m[2]]}", svg)
