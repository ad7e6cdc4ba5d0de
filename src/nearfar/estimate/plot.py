"""Pictures of an estimate and of a ranking: what is estimated, what is proven, how far chance may have moved it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearfar.estimate.result import Estimate
from nearfar.estimate.table import Ranked

NEAR, FAR, GREY = "#1f5f8b", "#c8553d", "#8a8a8a"


def draw_estimate(estimate: Estimate, file: Path) -> None:
    """Left: the estimate with its interval, what is proven, baselines and the ceiling. Right: whether the critic's log ratios
    mean what they say on unseen rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    low, high = estimate.interval
    rows = [("best estimate" if estimate.p_value is not None else estimate.bound, estimate.nats, NEAR)]
    rows += [(f"at least ({estimate.at_least.confidence:.0%})", float(estimate.at_least), FAR)]
    rows += [(name, value, GREY) for name, value in estimate.baselines.items()]
    left.hlines(0, low, high, color=NEAR, lw=6, alpha=0.35)
    for k, (_, value, colour) in enumerate(rows):
        left.plot(value, k, "o", color=colour)
        left.annotate(f"{value:.3f}", (value, k), (0, 8), textcoords="offset points", ha="center", fontsize=9)
    left.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    left.set_ylim(len(rows) - 0.5, -0.6)
    if estimate.ceiling is not None and estimate.ceiling < 4 * max(high, 0.25):
        left.axvline(estimate.ceiling, color=GREY, ls=":")
        left.annotate(
            "ceiling", (estimate.ceiling, len(rows) - 0.6), rotation=90, color=GREY, ha="right", fontsize=9
        )
    left.set_xlim(left=min(0.0, *(value for _, value, _ in rows)) - 0.02 * max(high, 0.1))
    left.set_xlabel("nats")
    left.set_title(f"{estimate.samples} rows, {estimate.confidence:.0%} interval", fontsize=11)
    _calibration(right, estimate)
    figure.savefig(file)


def _calibration(draw: Any, estimate: Estimate) -> None:

    if not estimate.calibration:
        draw.axis("off")
        return
    said, counted = zip(*estimate.calibration, strict=True)
    ends = min(*said, *counted), max(*said, *counted)
    draw.plot(ends, ends, color=GREY, lw=1)
    draw.plot(said, counted, "o-", color=NEAR, ms=4)
    draw.set_xlabel("log ratio as the critic says")
    draw.set_ylabel("as counted: rows against pairs apart")
    draw.set_title("calibration on unseen rows", fontsize=11)


def draw_ranking(ranked: Sequence[Ranked], target: str, file: Path) -> None:
    """Columns from the most telling down: estimate and interval, what is proven; hollow if it may be chance."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.2 + 0.32 * len(ranked)), layout="constrained")
    axes = figure.subplots()
    for k, one in enumerate(ranked):
        low, high = one.estimate.interval
        clear = one.p_value < 0.05
        axes.hlines(k, low, high, color=NEAR, lw=5, alpha=0.35)
        axes.plot(one.estimate.nats, k, "o", color=NEAR, mfc=NEAR if clear else "white")
        axes.plot(float(one.estimate.at_least), k, "|", color=FAR, ms=11, mew=2)
    axes.set_yticks(range(len(ranked)), [one.column for one in ranked])
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"nats about {target}: estimate with interval; red, at least; hollow, p > 0.05 among all")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(file)
