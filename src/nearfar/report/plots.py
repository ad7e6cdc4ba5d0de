"""The charts of a page: curves and counts of a run with titles, notes and text alternatives."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from nearfar.report.charts import Axis, Line, chart, histogram, shares
from nearfar.report.facts import Curve, RunFacts, Selected, Strip
from nearfar.report.gather import EDGES

ANY, ZERO, PERCENT, UNIT = Axis(), Axis(zero=True), Axis(percent=True), Axis(zero=True, top=1.0)


@dataclass(frozen=True)
class Plot:
    """Title, note and axis of a chart."""

    metric: str
    title: str
    note: str
    axis: Axis = ANY


_EDGES = {f"selection.{name}" for name in EDGES}
GROUPS = {
    "Objective and probes": (
        Plot("loss", "Loss", "what the optimiser minimises"),
        Plot("nats", "Training objective, nats", "on training batches; dashed: its ceiling", ZERO),
        Plot("held-out nats", "Held-out estimate, nats", "of held-out instances; dashed: its ceiling", ZERO),
        Plot("knn_top1", "kNN probe", "top-1 on held-out images", PERCENT),
        Plot("linear_top1", "Linear probe", "top-1 on held-out images", PERCENT),
    ),
    "Quality without labels": (
        Plot("rankme", "RankMe", "effective number of directions of the features", ZERO),
        Plot("lidar", "LiDAR", "directions that separate instances from their views", ZERO),
        Plot("alpha_req", "alpha-ReQ", "decay of the spectrum; near 1 is best"),
        Plot("uniformity", "Uniformity", "lower: spread more evenly"),
        Plot("alignment", "Alignment", "mean squared distance of two views; lower is better", ZERO),
    ),
    "Is it collapsing?": (
        Plot("deviation", "Deviation", "1: spread evenly, 0: collapsed", UNIT),
        Plot("rank", "Effective rank", "number of dimensions in use", ZERO),
        Plot("mean_cosine", "Mean cosine", "near 0: spread evenly, 1: all equal", UNIT),
    ),
    "Optimisation": (
        Plot("lr", "Learning rate", "as scheduled", ZERO),
        Plot("grad_norm", "Gradient norm", "before clipping", ZERO),
        Plot("images_per_s", "Images per second", "over all processes", ZERO),
    ),
}
COMPARED = (
    "loss", "nats", "held-out nats", "knn_top1", "linear_top1", "rankme", "lidar", "deviation", "rank", "lr",
)  # fmt: skip


@dataclass(frozen=True)
class ChartOnPage:
    """A chart on the page."""

    title: str
    note: str
    last_value: str  # the last value, or "" where several runs are drawn
    words: str  # text alternative of the chart
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
    """Three significant digits, with thousands separators."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def choice_of(text: str) -> tuple[str, list[tuple[str, str]]]:
    """`cosine(temperature=0.2, bias=0.0)` as its name and its settings; other text is a name alone."""
    name, opened, inside = text.partition("(")
    parts = _at_commas(inside.removesuffix(")")) if opened and text.endswith(")") and name.strip() else []
    pairs = [part.partition("=") for part in parts]
    if not pairs or not all(equals and key.isidentifier() for key, equals, _ in pairs):
        return text, []
    as_setting = {"True": "true", "False": "false", "None": "none"}
    return name, [(key, as_setting.get(value, value)) for key, _, value in pairs]


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
    """A name that may be broken after underscores, dots, slashes and commas only."""
    return Markup(re.sub(r"(?<=[_./,])(?=\w)", "<wbr>", str(escape(text))))


def titles_of(runs: Sequence[RunFacts]) -> list[str]:
    """The names of the folders; their paths where two have the same name."""
    short = [run.title for run in runs]
    return short if len(set(short)) == len(short) else [run.path for run in runs]


def groups_of(run: RunFacts, names: Iterable[str]) -> list[tuple[str, list[ChartOnPage]]]:
    groups = []
    for title, plots in GROUPS.items():
        charts = [
            _single(plot, run, name)
            for plot, name in zip(plots, names, strict=False)
            if plot.metric in run.curves
        ]
        if charts:
            groups.append((title, charts))
    if schedules := _schedules(run, names):
        groups.append(("Schedules", schedules))
    return groups


def _schedules(run: RunFacts, names: Iterable[str]) -> list[ChartOnPage]:
    """Values that a schedule or training changed, except the edges of a selection."""
    moving = [name for name in run.curves if "." in name and name not in _EDGES]
    return [
        _single(Plot(metric, metric, "as scheduled or learnt"), run, name)
        for metric, name in zip(moving, names, strict=False)
    ]


def _single(plot: Plot, run: RunFacts, name: str) -> ChartOnPage:
    curve = run.curves[plot.metric]
    lines = [Line(curve)]
    ceiling = run.curves.get(plot.metric.replace("nats", "ceiling")) if "nats" in plot.metric else None
    if ceiling is not None:
        lines.append(Line(ceiling, ceiling=True))
    format_value = percent if plot.axis.percent else number
    words = f"{plot.title}: {_course(curve, format_value)}."
    if ceiling is not None:
        words += f" The ceiling ends at {number(ceiling.last)}."
    note = plot.note if not curve.broken else f"{plot.note}; {curve.broken:,} not finite, left out"
    return ChartOnPage(plot.title, note, format_value(curve.last), words, chart(lines, plot.axis, name))


def _course(curve: Curve, format_value: Callable[[float], str]) -> str:
    epochs = f"{curve.epoch[-1]:.3g}"
    return f"from {format_value(curve.first)} to {format_value(curve.last)} over {epochs} {'epoch' if epochs == '1' else 'epochs'}"


def compared(runs: Sequence[RunFacts], names: Iterable[str]) -> list[ChartOnPage]:
    """The curves of several runs in one chart each."""
    plots = {plot.metric: plot for group in GROUPS.values() for plot in group}
    titles = titles_of(runs)
    charts = []
    for metric, name in zip(COMPARED, names, strict=False):
        plot = plots[metric]
        available = [(place, run.curves[metric]) for place, run in enumerate(runs) if metric in run.curves]
        if available:
            format_value = percent if plot.axis.percent else number
            words = "; ".join(f"{titles[place]} {_course(curve, format_value)}" for place, curve in available)
            svg = chart([Line(curve, place) for place, curve in available], plot.axis, name)
            note = plot.note.partition("; dashed")[0]
            charts.append(ChartOnPage(plot.title, note, "", f"{plot.title}: {words}.", svg))
    return charts


def selection_charts(run: RunFacts, names: Iterable[str]) -> list[ChartOnPage]:
    """The edges of a selection over training, and the similarities of candidates at the end."""
    makers = ((_edges, run.edges), (_similarities, isinstance(run.selection, Selected)))
    return [make(run, name) for (make, available), name in zip(makers, names, strict=False) if available]


def view_charts(run: RunFacts, names: Iterable[str]) -> list[ChartOnPage]:
    """Measures of the data before and after augmentation."""
    if not isinstance(run.strip, Strip):
        return []
    return [
        ChartOnPage(
            spread.title,
            spread.note,
            "",
            f"{spread.title}: median {number(spread.medians[0])} originally, {number(spread.medians[1])} "
            "in the views.",
            shares(spread.bins, spread.original, spread.augmented, name),
            (
                (f"original, median {number(spread.medians[0])}", 0),
                (f"views, median {number(spread.medians[1])}", 1),
            ),
        )
        for spread, name in zip(run.strip.spreads, names, strict=False)
    ]


def _edges(run: RunFacts, name: str) -> ChartOnPage:
    titles = {"lower": "outer edge", "upper": "inner edge"}
    words = "; ".join(f"{titles[edge]} {_course(curve, percent)}" for edge, curve in run.edges.items())
    lines = [Line(curve, EDGES.index(edge)) for edge, curve in run.edges.items()]
    return ChartOnPage(
        "Edges of the selection",
        "candidates between the outer and the inner edge are kept, in rising order of similarity",
        "",
        f"Edges of the selection: {words}.",
        chart(lines, Axis(percent=True, zero=True, top=1.0), name),
        tuple((titles[edge], EDGES.index(edge)) for edge in run.edges),
    )


def _similarities(run: RunFacts, name: str) -> ChartOnPage:
    selection = run.selection
    assert isinstance(selection, Selected)
    words = "; ".join(
        f"{group.title}: {percent(group.share)} of candidates, from {similarity(group.low)} to "
        f"{similarity(group.high)} for the median anchor"
        for group in selection.groups
    )
    return ChartOnPage(
        "Similarity of the candidates",
        f"{selection.measure} against number of pairs, logarithmic; dashed: the median positive",
        "",
        f"Similarity of the candidates by {selection.measure}. {words}.",
        histogram(
            selection.bins,
            [(group.series, group.histogram) for group in selection.groups],
            selection.positive,
            name,
        ),
        tuple((group.title, group.series) for group in selection.groups),
    )
