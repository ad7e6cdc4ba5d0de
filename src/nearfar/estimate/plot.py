"""Plots of an estimate, of lags and of a ranking."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from nearfar.core.notebook import make_figure
from nearfar.estimate.matrix import MiMatrix
from nearfar.estimate.result import Estimate
from nearfar.estimate.table import RankedColumn
from nearfar.system.files import write_figure

NEAR, FAR, GREY = "#1f5f8b", "#c8553d", "#8a8a8a"
MAX_DRAWN = 40  # columns of a ranking
MAX_NAME = 36  # characters
LEARNING = {
    "learned": "training rows",
    "unseen": "unseen rows",
    "half": "unseen rows, half\nthe training rows",
}


def estimate_figure(estimate: Estimate) -> Any:
    """A matplotlib figure of up to three panels.

    The estimate with interval, lower limit, baselines and ceiling; training rows against unseen rows;
    calibration.
    """
    panels = {f"{estimate.samples} rows, {estimate.confidence:.0%} interval": _draw_numbers}
    if estimate.learning:
        panels["fit against held-out"] = _draw_learning
    if estimate.calibration:
        panels["calibration on unseen rows"] = _draw_calibration
    figure, all_axes = make_figure(list(panels), width=4.6, height=4.0)
    for draw, axes in zip(panels.values(), all_axes, strict=True):
        draw(axes, estimate)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_numbers(axes: Any, estimate: Estimate) -> None:
    low, high = estimate.drawn_interval()
    rows = [("best estimate" if estimate.p_value is not None else estimate.bound, estimate.nats, NEAR)]
    rows += [(f"at least ({estimate.at_least.confidence:.0%})", float(estimate.at_least), FAR)]
    rows += [(name, value, GREY) for name, value in estimate.baselines.items()]
    axes.hlines(0, low, high, color=NEAR, lw=6, alpha=0.35)
    _dots(axes, rows)
    remark = ""
    if estimate.ceiling is not None and estimate.ceiling >= 4 * max(high, 0.25):
        remark = f" (ceiling {estimate.ceiling:.2f})"
    elif estimate.ceiling is not None:
        axes.axvline(estimate.ceiling, color=GREY, ls=":")
        axes.annotate(
            "ceiling", (estimate.ceiling, len(rows) - 0.6), rotation=90, color=GREY, ha="right", fontsize=9
        )
    axes.set_xlim(left=min(0.0, *(value for _, value, _ in rows)) - 0.02 * max(high, 0.1))
    axes.set_xlabel(f"nats{remark}")


def _dots(axes: Any, rows: Sequence[tuple[str, float, str]]) -> None:
    """A named dot per line, with its value."""
    for k, (_, value, colour) in enumerate(rows):
        axes.plot(value, k, "o", color=colour)
        axes.annotate(f"{value:.3f}", (value, k), (0, 8), textcoords="offset points", ha="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.margins(x=0.15)


def _draw_learning(axes: Any, estimate: Estimate) -> None:
    """Training rows look better by the overfitting; half the training rows show what more would gain."""
    _dots(
        axes,
        [
            (label, estimate.learning[name], FAR if name == "learned" else NEAR)
            for name, label in LEARNING.items()
        ],
    )
    axes.axvline(estimate.nats, color=GREY, ls="--", lw=1)
    axes.annotate(
        "best\nestimate", (estimate.nats, 2.45), (3, 0), textcoords="offset points", color=GREY, fontsize=8
    )
    values = [0.0, estimate.nats, *estimate.learning.values()]
    axes.set_xlim(min(values), max(values) + 0.25 * (max(values) - min(values)) + 1e-3)  # room for the text
    axes.set_xlabel("mean log ratio, nats")


def _draw_calibration(axes: Any, estimate: Estimate) -> None:
    predicted, observed = zip(*estimate.calibration, strict=True)
    ends = min(*predicted, *observed), max(*predicted, *observed)
    axes.plot(ends, ends, color=GREY, lw=1)
    axes.plot(predicted, observed, "o-", color=NEAR, ms=4)
    axes.set_xlabel("predicted log ratio")
    axes.set_ylabel("observed: rows against mismatched pairs")


def draw_ranking(ranked: Sequence[RankedColumn], target: str, file: Path) -> None:
    """Draws estimate, interval and lower limit of every column; hollow if it may be chance."""
    from matplotlib.figure import Figure

    omitted = len(ranked) - MAX_DRAWN
    ranked = ranked[:MAX_DRAWN]
    first = ranked[0].estimate
    figure = Figure(figsize=(8.5, 1.6 + 0.32 * len(ranked)), layout="constrained")
    axes = figure.subplots()
    for k, column in enumerate(ranked):
        clear = column.p_value < 0.05
        axes.hlines(k, *column.estimate.drawn_interval(), color=NEAR, lw=5, alpha=0.35)
        axes.plot(float(column.estimate.at_least), k, "|", color=FAR, ms=11, mew=2)
        axes.plot(column.estimate.nats, k, "o", color=NEAR, mfc=NEAR if clear else "white")
        axes.annotate(
            f"{column.estimate.nats:.3f}",
            (column.estimate.drawn_interval()[1], k),
            (5, 0),
            textcoords="offset points",
            va="center",
            color=GREY,
            fontsize=8,
        )
    highest = max(column.estimate.drawn_interval()[1] for column in ranked)
    axes.set_yticks(range(len(ranked)), [_short(column.column) for column in ranked])
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    axes.set_xlim(-0.015 * highest, 1.1 * highest)  # room for a mark at zero and for numbers
    axes.set_xlabel("nats")
    more = f"; {omitted} more with less" if omitted > 0 else ""
    axes.set_title(f"Information of each column about {target}: {first.samples} rows{more}", fontsize=11)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _ranking_legend(figure, ranked)
    write_figure(figure, file)


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _ranking_legend(figure: Any, ranked: Sequence[RankedColumn]) -> None:
    from matplotlib.lines import Line2D

    first = ranked[0].estimate
    marks = [
        Line2D([], [], color=NEAR, marker="o", ls="", label="estimate"),
        Line2D([], [], color=NEAR, lw=5, alpha=0.35, label=f"{first.confidence:.0%} interval"),
        Line2D(
            [],
            [],
            color=FAR,
            marker="|",
            ms=11,
            mew=2,
            ls="",
            label=f"at least ({first.at_least.confidence:.0%})",
        ),
    ]
    if any(column.p_value >= 0.05 for column in ranked):
        marks.append(
            Line2D(
                [], [], color=NEAR, marker="o", mfc="white", ls="", label="may be chance (p ≥ 0.05 among all)"
            )
        )
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=9)


def draw_lags(estimates: Mapping[int, Estimate], file: Path) -> None:
    """Draws estimate, interval and lower limit at every lag."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5.0, 1.5 + 0.45 * len(estimates)), 3.6), layout="constrained")
    axes = figure.subplots()
    for lag, estimate in estimates.items():
        axes.vlines(lag, *estimate.drawn_interval(), color=NEAR, lw=5, alpha=0.35)
        axes.plot(lag, float(estimate.at_least), "_", color=FAR, ms=11, mew=2)
    axes.plot(list(estimates), [estimate.nats for estimate in estimates.values()], "o-", color=NEAR, lw=1)
    axes.set_ylim(bottom=0)
    axes.set_xticks(list(estimates))
    axes.set_xlabel("lag: steps by which y comes after x")
    axes.set_ylabel("nats")
    axes.set_title("estimate with interval; red, at least", fontsize=11)
    axes.grid(axis="y", alpha=0.3)
    write_figure(figure, file)


def matrix_figure(matrix: MiMatrix) -> Any:
    """A heat map of the nats, with columns in the order of a hierarchical clustering."""
    from matplotlib.figure import Figure

    nats = np.nan_to_num(matrix.matrix("nats"))
    order = clustered_order(nats)
    side = min(14.0, 3.0 + 0.22 * len(order))
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    shown = nats[np.ix_(order, order)]
    np.fill_diagonal(shown, np.nan)
    image = axes.imshow(shown, cmap="viridis", vmin=0)
    figure.colorbar(image, ax=axes, label="nats", shrink=0.8)
    if len(order) <= MAX_DRAWN:
        names = [_short(matrix.columns[place]) for place in order]
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(names)), names, fontsize=8)
    else:
        axes.set_xlabel(f"{len(order)} columns, similar ones beside one another")
    return figure


def clustered_order(nats: np.ndarray) -> list[int]:
    """An order in which columns with much information about one another are close: leaves of average linkage
    with the distance exp(-2 nats), which is 1 for independent columns."""
    if len(nats) < 3:
        return list(range(len(nats)))
    distance = np.exp(-2 * (nats + nats.T) / 2)
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=len(nats) <= 200)
    return leaves_list(tree).tolist()
