"""The figure of a sweep: a line for one axis, a heat map for two, parallel coordinates for more."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nearfar.sweeps.table import SweepResult, SweepRow, setting_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = ("#2c6e91", "#c2562d", "#4d8b4f", "#7b5ea7", "#b48a12", "#5c5c5c", "#b0507b")
MAX_COLUMNS = 3


def panels(titles: Sequence[str], width: float = 4.0, height: float = 3.2) -> "tuple[Figure, list[Axes]]":
    """Titled axes, at most three in a row; `width` and `height` of each, in inches."""
    from matplotlib.figure import Figure

    columns = min(MAX_COLUMNS, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, title in zip(axes, titles, strict=False):
        axis.set_title(title, fontsize=9.5)
        axis.grid(alpha=0.25, linewidth=0.5)
    for axis in axes[len(titles) :]:
        axis.set_axis_off()
    return figure, axes[: len(titles)]


def draw(sweep: SweepResult) -> "Figure | None":
    """None where nothing was varied, or no cell has a value."""
    rows = [row for row in sweep.rows if row.mean is not None]
    keys = list(sweep.rows[0].point) if sweep.rows else []
    if not rows or not keys:
        return None
    listed = {
        key: list(dict.fromkeys(map(setting_text, (row.point[key] for row in sweep.rows)))) for key in keys
    }
    if len(keys) == 1:
        return _line(sweep, rows, keys[0])
    if len(keys) == 2 and len(sweep.rows) == len(listed[keys[0]]) * len(listed[keys[1]]):
        return _heat(sweep, rows, listed)
    return _parallel(sweep, rows, keys)


def _scaled(sweep: SweepResult, value: float | None) -> float:
    return float("nan") if value is None else 100 * value if sweep.percent else value


def _line(sweep: SweepResult, rows: Sequence[SweepRow], key: str) -> "Figure":
    figure, (axes,) = panels([sweep.title])
    numbers = _numbers([row.point[key] for row in rows])
    order = np.argsort(numbers, kind="stable")
    means = np.array([_scaled(sweep, row.mean) for row in rows])[order]
    spreads = np.array([_scaled(sweep, row.spread or 0.0) for row in rows])[order]
    _axis(axes, [row.point[key] for row in rows], key)
    axes.errorbar(numbers[order], means, spreads, marker="o", color=COLOURS[0], capsize=3)
    axes.set_ylabel(sweep.unit)
    return figure


def _axis(axes: "Axes", values: Sequence[Any], key: str) -> None:
    """Logarithmic where numbers span more than a decade; words are evenly spaced."""
    axes.set_xlabel(key)
    if not all(_is_number(value) for value in values):
        axes.set_xticks(range(len(values)), [setting_text(value) for value in values])
    elif min(values) > 0 and max(values) / min(values) >= 10:
        axes.set_xscale("log")


def _heat(sweep: SweepResult, rows: Sequence[SweepRow], listed: dict[str, list[str]]) -> "Figure":
    (down, across), names = listed, list(listed.values())
    figure, (axes,) = panels([sweep.title], 1.6 + 1.0 * len(names[1]), 1.4 + 0.55 * len(names[0]))
    grid = np.full((len(names[0]), len(names[1])), np.nan)
    words = np.full(grid.shape, "", dtype=object)
    for row in sweep.rows:
        place = names[0].index(setting_text(row.point[down])), names[1].index(setting_text(row.point[across]))
        grid[place] = _scaled(sweep, row.mean)
        words[place] = (
            sweep.number(row.mean, row.spread).replace(" ± ", "\n± ") if row.mean is not None else row.state
        )
    picture = axes.imshow(np.ma.masked_invalid(grid), cmap="cividis", aspect="auto")
    low, high = np.nanmin(grid), np.nanmax(grid)
    for place in np.ndindex(*grid.shape):
        dark = np.isfinite(grid[place]) and grid[place] < (low + high) / 2
        best = sweep.best is not None and np.isfinite(grid[place]) and grid[place] == high
        axes.text(
            place[1], place[0], words[place], ha="center", va="center", fontsize=8,
            color="white" if dark else "black", fontweight="bold" if best else "normal",
        )  # fmt: skip
    axes.set_xticks(range(len(names[1])), names[1])
    axes.set_yticks(range(len(names[0])), names[0])
    axes.set_xlabel(across)
    axes.set_ylabel(down)
    axes.grid(False)
    figure.colorbar(picture, ax=axes, label=sweep.unit)
    return figure


def _parallel(sweep: SweepResult, rows: Sequence[SweepRow], keys: Sequence[str]) -> "Figure":
    """Each point is a line through its settings to its value; the best one is thick."""
    import matplotlib as mpl

    figure, (axes,) = panels([sweep.title], 1.5 + 1.4 * (len(keys) + 1), 3.8)
    columns = [[row.point[key] for row in rows] for key in keys]
    columns.append([_scaled(sweep, row.mean) for row in rows])
    heights = [*map(_heights, columns[:-1]), _heights(columns[-1], even=True)]
    values = np.array(columns[-1], dtype=float)
    low, high = float(values.min()), float(values.max())
    colour = mpl.colormaps["cividis"]
    for place in np.argsort(values, kind="stable"):
        row, share = rows[place], 1.0 if high == low else (values[place] - low) / (high - low)
        thick = 2.8 if row is sweep.best else 1.0
        axes.plot(range(len(columns)), [h[place] for h in heights], color=colour(share), linewidth=thick)
    for place, (column, at) in enumerate(zip(columns, heights, strict=True)):
        ticks = sorted(
            {
                (round(float(y), 6), f"{v:.3g}" if isinstance(v, float) else str(v))
                for y, v in zip(at, column, strict=True)
            }
        )
        for y, text in ticks if len(ticks) <= 8 else (ticks[0], ticks[len(ticks) // 2], ticks[-1]):
            axes.annotate(text, (place, y), xytext=(4, 2), textcoords="offset points", fontsize=7)
    axes.set_xticks(range(len(columns)), [*keys, sweep.unit])
    axes.set_yticks([])
    axes.grid(axis="x", alpha=0.5)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(-0.1, len(columns) - 0.5)
    return figure


def _heights(values: Sequence[Any], even: bool = False) -> np.ndarray:
    """Positions in [0, 1]: numbers by size, logarithmic over decades unless `even`; words in order."""
    numbers = _numbers(values)
    decades = all(map(_is_number, values)) and numbers.min() > 0 and numbers.max() / numbers.min() >= 10
    if decades and not even:
        numbers = np.log(numbers)
    span = numbers.max() - numbers.min()
    return np.full(len(numbers), 0.5) if span == 0 else (numbers - numbers.min()) / span


def _numbers(values: Sequence[Any]) -> np.ndarray:
    if all(_is_number(value) for value in values):
        return np.array(values, dtype=float)
    places = list(dict.fromkeys(map(setting_text, values)))
    return np.array([places.index(setting_text(value)) for value in values], dtype=float)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
