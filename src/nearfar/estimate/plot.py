"""Pictures of an estimate, of lags and of a ranking: what is estimated, what is proven, how far chance may have moved it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.estimate.result import Estimate
from nearfar.estimate.table import Ranked

NEAR, FAR, GREY = "#1f5f8b", "#c8553d", "#8a8a8a"
MOST_DRAWN = 40  # columns of a ranking
LONGEST_NAME = 36  # characters
LEARNING = {
    "learned": "rows learned from",
    "unseen": "unseen rows",
    "half": "unseen rows, half\nas many to learn from",
}


def draw_estimate(estimate: Estimate, file: Path) -> None:
    """The estimate with its interval, what is proven, baselines and the ceiling; fit against held-out; and whether the critic's log
    ratios mean what they say on unseen rows."""
    from matplotlib.figure import Figure

    drawn = [
        _numbers,
        *([_learning] if estimate.learning else []),
        *([_calibration] if estimate.calibration else []),
    ]
    figure = Figure(figsize=(4.6 * len(drawn), 4.0), layout="constrained")
    for draw, axes in zip(drawn, figure.subplots(1, len(drawn), squeeze=False)[0], strict=True):
        draw(axes, estimate)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def _numbers(axes: Any, estimate: Estimate) -> None:
    low, high = estimate.drawn_interval()
    rows = [("best estimate" if estimate.p_value is not None else estimate.bound, estimate.nats, NEAR)]
    rows += [(f"at least ({estimate.at_least.confidence:.0%})", float(estimate.at_least), FAR)]
    rows += [(name, value, GREY) for name, value in estimate.baselines.items()]
    axes.hlines(0, low, high, color=NEAR, lw=6, alpha=0.35)
    _dots(axes, rows)
    beyond = ""
    if estimate.ceiling is not None and estimate.ceiling >= 4 * max(high, 0.25):
        beyond = f" (ceiling {estimate.ceiling:.2f})"
    elif estimate.ceiling is not None:
        axes.axvline(estimate.ceiling, color=GREY, ls=":")
        axes.annotate(
            "ceiling", (estimate.ceiling, len(rows) - 0.6), rotation=90, color=GREY, ha="right", fontsize=9
        )
    axes.set_xlim(left=min(0.0, *(value for _, value, _ in rows)) - 0.02 * max(high, 0.1))
    axes.set_xlabel(f"nats{beyond}")
    axes.set_title(f"{estimate.samples} rows, {estimate.confidence:.0%} interval", fontsize=11)


def _dots(axes: Any, rows: Sequence[tuple[str, float, str]]) -> None:
    """A named dot in each line, its value above it."""
    for k, (_, value, colour) in enumerate(rows):
        axes.plot(value, k, "o", color=colour)
        axes.annotate(f"{value:.3f}", (value, k), (0, 8), textcoords="offset points", ha="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.margins(x=0.15)


def _learning(axes: Any, estimate: Estimate) -> None:
    """Rows that were learned from look better than unseen ones by what was overlearned; half the rows show what more would bring."""
    _dots(
        axes,
        [
            (said, estimate.learning[name], FAR if name == "learned" else NEAR)
            for name, said in LEARNING.items()
        ],
    )
    axes.axvline(estimate.nats, color=GREY, ls="--", lw=1)
    axes.annotate(
        "best\nestimate", (estimate.nats, 2.45), (3, 0), textcoords="offset points", color=GREY, fontsize=8
    )
    drawn = [0.0, estimate.nats, *estimate.learning.values()]
    axes.set_xlim(min(drawn), max(drawn) + 0.25 * (max(drawn) - min(drawn)) + 1e-3)  # room for the words
    axes.set_xlabel("mean log ratio, nats")
    axes.set_title("fit against held-out", fontsize=11)


def _calibration(axes: Any, estimate: Estimate) -> None:
    said, counted = zip(*estimate.calibration, strict=True)
    ends = min(*said, *counted), max(*said, *counted)
    axes.plot(ends, ends, color=GREY, lw=1)
    axes.plot(said, counted, "o-", color=NEAR, ms=4)
    axes.set_xlabel("log ratio as the critic says")
    axes.set_ylabel("as counted: rows against pairs apart")
    axes.set_title("calibration on unseen rows", fontsize=11)


def draw_ranking(ranked: Sequence[Ranked], target: str, file: Path) -> None:
    """Columns from the most telling down: estimate and interval, what is proven; hollow if it may be chance."""
    from matplotlib.figure import Figure

    others = len(ranked) - MOST_DRAWN
    ranked = ranked[:MOST_DRAWN]
    first = ranked[0].estimate
    figure = Figure(figsize=(8.5, 1.6 + 0.32 * len(ranked)), layout="constrained")
    axes = figure.subplots()
    for k, one in enumerate(ranked):
        clear = one.p_value < 0.05
        axes.hlines(k, *one.estimate.drawn_interval(), color=NEAR, lw=5, alpha=0.35)
        axes.plot(float(one.estimate.at_least), k, "|", color=FAR, ms=11, mew=2)
        axes.plot(one.estimate.nats, k, "o", color=NEAR, mfc=NEAR if clear else "white")
        axes.annotate(
            f"{one.estimate.nats:.3f}",
            (one.estimate.drawn_interval()[1], k),
            (5, 0),
            textcoords="offset points",
            va="center",
            color=GREY,
            fontsize=8,
        )
    highest = max(one.estimate.drawn_interval()[1] for one in ranked)
    axes.set_yticks(range(len(ranked)), [_short(one.column) for one in ranked])
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    axes.set_xlim(-0.015 * highest, 1.1 * highest)  # a mark at zero is drawn whole, and a number has room
    axes.set_xlabel("nats")
    more = f"; {others} others tell less" if others > 0 else ""
    axes.set_title(f"What each column tells about {target}: {first.samples} rows{more}", fontsize=11)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _ranking_legend(figure, ranked)
    figure.savefig(file)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _ranking_legend(figure: Any, ranked: Sequence[Ranked]) -> None:
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
    if any(one.p_value >= 0.05 for one in ranked):
        marks.append(
            Line2D(
                [], [], color=NEAR, marker="o", mfc="white", ls="", label="may be chance (p ≥ 0.05 among all)"
            )
        )
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=9)


def draw_lags(found: Mapping[int, Estimate], file: Path) -> None:
    """Information at each lag: estimate and interval, what is proven."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5.0, 1.5 + 0.45 * len(found)), 3.6), layout="constrained")
    axes = figure.subplots()
    for lag, one in found.items():
        axes.vlines(lag, *one.drawn_interval(), color=NEAR, lw=5, alpha=0.35)
        axes.plot(lag, float(one.at_least), "_", color=FAR, ms=11, mew=2)
    axes.plot(list(found), [one.nats for one in found.values()], "o-", color=NEAR, lw=1)
    axes.set_ylim(bottom=0)
    axes.set_xticks(list(found))
    axes.set_xlabel("lag: steps by which y comes after x")
    axes.set_ylabel("nats")
    axes.set_title("estimate with interval; red, at least", fontsize=11)
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(file)
