"""Curves and counts of a run -> the charts of its page, with their titles and their words."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from nearfar.report.charts import Axis, Bars, Line, chart, histogram, shares
from nearfar.report.curves import EDGES
from nearfar.report.facts import Curve, RunFacts, Selected, Strip

_FREE = Axis()


@dataclass(frozen=True)
class Plot:
    """What a chart shows, in words."""

    metric: str
    title: str
    note: str
    axis: Axis = _FREE


_EDGES = {f"selection.{name}" for name in EDGES}
GROUPS = (
    (
        "The objective, and what it is worth elsewhere",
        (
            Plot("loss", "Loss", "what the optimiser lowers"),
            Plot(
                "nats",
                "Training objective, nats",
                "on the batches it is fitted to; dashed, the most it can say",
                Axis(zero=True),
            ),
            Plot(
                "held-out nats",
                "Held-out estimate, nats",
                "what two views tell about each other, on instances nothing was fitted to; dashed, the most it can say",
                Axis(zero=True),
            ),
            Plot("knn_top1", "kNN probe", "top-1 on held-back images", Axis(percent=True)),
            Plot("linear_top1", "Linear probe", "top-1 on held-back images", Axis(percent=True)),
        ),
    ),
    (
        "How good it looks without labels",
        (
            Plot("rankme", "RankMe", "how many directions features fill", Axis(zero=True)),
            Plot("lidar", "LiDAR", "how many of them tell instances apart from their views", Axis(zero=True)),
            Plot("alpha_req", "alpha-ReQ", "how fast the spectrum falls; near 1 is best"),
            Plot("uniformity", "Uniformity", "lower is spread more evenly"),
            Plot("alignment", "Alignment", "how far two views are apart", Axis(zero=True)),
        ),
    ),
    (
        "Is it collapsing?",
        (
            Plot("deviation", "Deviation", "1 is spread evenly, 0 is collapsed", Axis(zero=True, top=1.0)),
            Plot("rank", "Effective rank", "how many dimensions are in use", Axis(zero=True)),
            Plot("mean_cosine", "Mean cosine", "near 0 is spread, 1 is all alike", Axis(zero=True, top=1.0)),
        ),
    ),
    (
        "How it ran",
        (
            Plot("lr", "Learning rate", "as scheduled", Axis(zero=True)),
            Plot("grad_norm", "Gradient norm", "before clipping", Axis(zero=True)),
            Plot("images_per_s", "Images a second", "of all views together", Axis(zero=True)),
        ),
    ),
)
COMPARED = (
    "loss",
    "nats",
    "held-out nats",
    "knn_top1",
    "linear_top1",
    "rankme",
    "lidar",
    "deviation",
    "rank",
    "lr",
)


@dataclass(frozen=True)
class Drawn:
    """A chart on the page."""

    title: str
    note: str
    now: str  # the last value, or "" where several runs are drawn
    words: str  # the chart for who cannot see it
    svg: Markup
    legend: tuple[tuple[str, int], ...] = ()  # names and the colours they have


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def between(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{100 * low:.1f}\N{EN DASH}{100 * high:.1f}%"


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def chance(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def similarity(value: float) -> str:
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def number(value: float) -> str:
    """Three digits that matter, thousands marked."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def choice_of(said: str) -> tuple[str, list[tuple[str, str]]]:
    """`cosine(temperature=0.2, bias=0.0)` as its name and its settings; what is written otherwise is a name alone."""
    name, opened, inside = said.partition("(")
    parts = _at_commas(inside.removesuffix(")")) if opened and said.endswith(")") and name.strip() else []
    pairs = [part.partition("=") for part in parts]
    if not pairs or not all(equals and key.isidentifier() for key, equals, _ in pairs):
        return said, []
    return name, [(key, value) for key, _, value in pairs]


def _at_commas(text: str) -> list[str]:
    """Split at commas outside brackets: a schedule is one value."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


def breakable(text: str) -> Markup:
    """A name that may be broken after its underscores, dots, slashes and commas, and nowhere else inside its words."""
    return Markup(re.sub(r"(?<=[_./,])(?=\w)", "<wbr>", str(escape(text))))


def titles_of(runs: Sequence[RunFacts]) -> list[str]:
    """The folders' names; their whole paths where two are called alike."""
    short = [run.title for run in runs]
    return short if len(set(short)) == len(short) else [run.path for run in runs]


def groups_of(run: RunFacts, names: Iterable[str]) -> list[tuple[str, list[Drawn]]]:
    drawn = []
    for title, plots in GROUPS:
        charts = [
            _alone(plot, run, name)
            for plot, name in zip(plots, names, strict=False)
            if plot.metric in run.curves
        ]
        if charts:
            drawn.append((title, charts))
    if moving := _schedules(run, names):
        drawn.append(("Schedules", moving))
    return drawn


def _schedules(run: RunFacts, names: Iterable[str]) -> list[Drawn]:
    """What moved over the run by a schedule, or was learnt; a selection's edges have their own place."""
    moving = [name for name in run.curves if "." in name and name not in _EDGES]
    return [
        _alone(Plot(metric, metric, "as scheduled or learnt"), run, name)
        for metric, name in zip(moving, names, strict=False)
    ]


def _alone(plot: Plot, run: RunFacts, name: str) -> Drawn:
    curve = run.curves[plot.metric]
    lines = [Line(curve)]
    ceiling = run.curves.get(plot.metric.replace("nats", "ceiling")) if "nats" in plot.metric else None
    if ceiling is not None:
        lines.append(Line(ceiling, ceiling=True))
    said = percent if plot.axis.percent else number
    words = f"{plot.title}: {_course(curve, said)}."
    if ceiling is not None:
        words += f" The ceiling ends at {number(ceiling.last)}."
    note = plot.note if not curve.broken else f"{plot.note}; {curve.broken:,} not finite, left out"
    return Drawn(plot.title, note, said(curve.last), words, chart(lines, plot.axis, name))


def _course(curve: Curve, said: Callable[[float], str]) -> str:
    return f"from {said(curve.first)} to {said(curve.last)} over {curve.epoch[-1]:.3g} epochs"


def compared(runs: Sequence[RunFacts], names: Iterable[str]) -> list[Drawn]:
    """The runs' curves over one another."""
    plots = {plot.metric: plot for _, group in GROUPS for plot in group}
    titles = titles_of(runs)
    drawn = []
    for metric, name in zip(COMPARED, names, strict=False):
        plot = plots[metric]
        there = [(place, run.curves[metric]) for place, run in enumerate(runs) if metric in run.curves]
        if there:
            said = percent if plot.axis.percent else number
            words = "; ".join(f"{titles[place]} {_course(curve, said)}" for place, curve in there)
            svg = chart([Line(curve, place) for place, curve in there], plot.axis, name)
            note = plot.note.partition("; dashed")[0]
            drawn.append(Drawn(plot.title, note, "", f"{plot.title}: {words}.", svg))
    return drawn


def selection_charts(run: RunFacts, names: Iterable[str]) -> list[Drawn]:
    """The course of a selection's edges, and how similar those are that it keeps and drops at the end."""
    makers = ((_edges, run.edges), (_similarities, isinstance(run.selection, Selected)))
    return [make(run, name) for (make, there), name in zip(makers, names, strict=False) if there]


def view_charts(run: RunFacts, names: Iterable[str]) -> list[Drawn]:
    """What views did to the data, measured before and after."""
    if not isinstance(run.strip, Strip):
        return []
    return [
        Drawn(
            spread.title,
            spread.note,
            "",
            f"{spread.title}: median {number(spread.medians[0])} before, {number(spread.medians[1])} in the views.",
            shares(spread.bins, spread.before, spread.after, name),
            (
                (f"as it is, median {number(spread.medians[0])}", 0),
                (f"views, median {number(spread.medians[1])}", 1),
            ),
        )
        for spread, name in zip(run.strip.spreads, names, strict=False)
    ]


def _edges(run: RunFacts, name: str) -> Drawn:
    titles = {"lower": "outer edge", "upper": "inner edge"}
    words = "; ".join(f"{titles[edge]} {_course(curve, percent)}" for edge, curve in run.edges.items())
    lines = [Line(curve, EDGES.index(edge)) for edge, curve in run.edges.items()]
    return Drawn(
        "Edges of the selection",
        "kept: from the outer to the inner edge of an anchor's candidates in rising order of similarity",
        "",
        f"Edges of the selection: {words}.",
        chart(lines, Axis(percent=True, zero=True, top=1.0), name),
        tuple((titles[edge], EDGES.index(edge)) for edge in run.edges),
    )


def _similarities(run: RunFacts, name: str) -> Drawn:
    seen = run.selection
    assert isinstance(seen, Selected)
    words = "; ".join(
        f"{group.title}: {percent(group.share)} of candidates, from {similarity(group.low)} to {similarity(group.high)} for the median anchor"
        for group in seen.groups
    )
    return Drawn(
        "Similarity of the candidates",
        f"{seen.measure} against how many pairs, on a logarithmic scale; dashed, the median positive",
        "",
        f"Similarity of the candidates by {seen.measure}. {words}.",
        histogram(
            seen.bins, [Bars(group.histogram, group.series) for group in seen.groups], seen.positive, name
        ),
        tuple((group.title, group.series) for group in seen.groups),
    )
