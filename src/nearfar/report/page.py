"""Facts -> one HTML page that asks nothing of the network.

The template escapes every string; the page's policy allows no script but its own (by hash), so a name that
slipped through would still be text.
"""

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nearfar.report.charts import SERIES, Axis, Line, chart
from nearfar.report.facts import Absent, Curve, Map, RunFacts, Score

_HERE = Path(__file__).parent

FEATURES = {"learned": "learned", "untrained": "untrained encoder", "pixels": "raw pixels"}
PROTOCOLS = {"knn": "kNN", "linear": "linear probe", "finetune": "fine-tuning"}


_FREE = Axis()


@dataclass(frozen=True)
class Plot:
    """What a chart shows, in words."""

    metric: str
    title: str
    note: str
    axis: Axis = _FREE


GROUPS = (
    (
        "What is climbed",
        (
            Plot("loss", "Loss", "what the optimiser lowers"),
            Plot(
                "nats",
                "Mutual information, nats",
                "the estimate; dashed, the most it can say",
                Axis(zero=True),
            ),
            Plot("knn_top1", "kNN probe", "top-1 on held-back training images", Axis(percent=True)),
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
COMPARED = ("loss", "nats", "knn_top1", "deviation", "rank", "lr")

ROOMS = (
    ("views", "what is seen"),
    ("encoders", "who encodes"),
    ("negatives", "where the others live"),
    ("selection", "which of them count"),
    ("bound", "what is climbed"),
)


@dataclass(frozen=True)
class Drawn:
    """A chart on the page."""

    title: str
    note: str
    now: str  # the last value, or "" where several runs are drawn
    words: str  # the chart for who cannot see it
    svg: Markup


@dataclass(frozen=True)
class Protocol:
    """One protocol's scores, the learned features first."""

    name: str
    scores: tuple[Score, ...]

    def learned(self) -> Score | None:
        return next((score for score in self.scores if score.features == "learned"), None)

    def baselines(self) -> tuple[Score, ...]:
        return tuple(score for score in self.scores if score.features != "learned")


def page(runs: Sequence[RunFacts]) -> str:
    """The whole page: a comparison first where there are several runs, then each of them."""
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    names = (f"c{place}" for place in count())
    return (
        _environment()
        .get_template("page.html")
        .render(
            runs=runs,
            titles=_titles(runs),
            groups=[_groups(run, names) for run in runs],
            protocols=[_protocols(run.scores) for run in runs],
            compared=_compared(runs, names) if len(runs) > 1 else (),
            columns=_columns(runs),
            differing=_differing(runs),
            sprites=_sprites(runs),
            rooms=ROOMS,
            feature_names=FEATURES,
            protocol_names=PROTOCOLS,
            series=SERIES,
            classes=max((len(run.map.classes) for run in runs if isinstance(run.map, Map)), default=0),
            style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, number=number, hue=_hue)
    environment.tests["absent"] = lambda part: isinstance(part, Absent)
    return environment


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def number(value: float) -> str:
    """Three digits that matter, thousands marked."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _titles(runs: Sequence[RunFacts]) -> list[str]:
    """The folders' names; their whole paths where two are called alike."""
    short = [run.title for run in runs]
    return short if len(set(short)) == len(short) else [run.path for run in runs]


def _groups(run: RunFacts, names: Iterable[str]) -> list[tuple[str, list[Drawn]]]:
    drawn = []
    for title, plots in GROUPS:
        charts = [
            _alone(plot, run, name)
            for plot, name in zip(plots, names, strict=False)
            if plot.metric in run.curves
        ]
        if charts:
            drawn.append((title, charts))
    return drawn


def _alone(plot: Plot, run: RunFacts, name: str) -> Drawn:
    curve = run.curves[plot.metric]
    lines = [Line(curve)]
    if plot.metric == "nats" and "ceiling" in run.curves:
        lines.append(Line(run.curves["ceiling"], ceiling=True))
    said = percent if plot.axis.percent else number
    words = f"{plot.title}: {_course(curve, said)}."
    if len(lines) > 1:
        words += f" The ceiling ends at {number(run.curves['ceiling'].last)}."
    note = plot.note if not curve.broken else f"{plot.note}; {curve.broken:,} not finite, left out"
    return Drawn(plot.title, note, said(curve.last), words, chart(lines, plot.axis, name))


def _course(curve: Curve, said: Callable[[float], str]) -> str:
    return f"from {said(curve.first)} to {said(curve.last)} over {curve.epoch[-1]:.3g} epochs"


def _compared(runs: Sequence[RunFacts], names: Iterable[str]) -> list[Drawn]:
    """The runs' curves over one another."""
    plots = {plot.metric: plot for _, group in GROUPS for plot in group}
    titles = _titles(runs)
    drawn = []
    for metric, name in zip(COMPARED, names, strict=False):
        plot = plots[metric]
        there = [(place, run.curves[metric]) for place, run in enumerate(runs) if metric in run.curves]
        if there:
            said = percent if plot.axis.percent else number
            words = "; ".join(f"{titles[place]} {_course(curve, said)}" for place, curve in there)
            svg = chart([Line(curve, place) for place, curve in there], plot.axis, name)
            note = plot.note if metric != "nats" else "each run's estimate"
            drawn.append(Drawn(plot.title, note, "", f"{plot.title}: {words}.", svg))
    return drawn


def _protocols(scores: Sequence[Score]) -> list[Protocol]:
    ranks = list(FEATURES)

    def rank(score: Score) -> int:
        return ranks.index(score.features) if score.features in ranks else len(ranks)

    names = dict.fromkeys(score.protocol for score in scores)
    return [
        Protocol(name, tuple(sorted((s for s in scores if s.protocol == name), key=rank))) for name in names
    ]


def _columns(runs: Sequence[RunFacts]) -> list[tuple[str, list[float | None], float | None]]:
    """For each protocol its name, the runs' learned top-1, and the best of them."""
    found = [{s.protocol: s.top1 for s in run.scores if s.features == "learned"} for run in runs]
    names = dict.fromkeys(name for scores in found for name in scores)
    return [
        (
            name,
            [scores.get(name) for scores in found],
            max(scores[name] for scores in found if name in scores),
        )
        for name in names
    ]


def _differing(runs: Sequence[RunFacts]) -> list[tuple[str, list[str]]]:
    """The settings in which the runs are not alike."""
    tables = [{fact.name: fact.value for fact in run.settings} for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = [(name, [table.get(name, "–") for table in tables]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _sprites(runs: Sequence[RunFacts]) -> dict[str, int]:
    """Each different sprite once: runs on the same data share theirs."""
    uris = dict.fromkeys(run.map.sprite.uri for run in runs if isinstance(run.map, Map))
    return {uri: place for place, uri in enumerate(uris)}


def _hue(place: int, of: int) -> int:
    return round(360 * place / max(1, of)) % 360
