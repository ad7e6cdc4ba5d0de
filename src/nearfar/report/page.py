"""Facts -> one HTML page that asks nothing of the network.

The template escapes every string; the page's policy allows no script but its own (by hash), so a name that
slipped through would still be text.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nearfar.modalities import MODALITIES
from nearfar.report.charts import SERIES
from nearfar.report.facts import Absent, Map, RunFacts, Score, Tested
from nearfar.report.plots import (
    between,
    breakable,
    choice_of,
    compared,
    groups_of,
    number,
    percent,
    selection_charts,
    similarity,
    titles_of,
)

_HERE = Path(__file__).parent

FEATURES = {
    "learned": "learned",
    "untrained": "untrained encoder",
    **{name: title for modality in MODALITIES.values() for name, title in modality.baseline_titles.items()},
}
PROTOCOLS = {"knn": "kNN", "linear": "linear probe", "finetune": "fine-tuning"}

ROOMS = (
    ("views", "what is seen"),
    ("encoders", "who encodes"),
    ("negatives", "where the others live"),
    ("selection", "which of them count"),
    ("bound", "what is maximised"),
)


@dataclass(frozen=True)
class Protocol:
    """One protocol's scores, the learned features first."""

    name: str
    scores: tuple[Score, ...]

    def learned(self) -> Score | None:
        return next((score for score in self.scores if score.features == "learned"), None)

    def baselines(self) -> tuple[Score, ...]:
        return tuple(score for score in self.scores if score.features != "learned")


@dataclass(frozen=True)
class Judged:
    """What one test set says of a run."""

    tested: Tested
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True)
class Column:
    """One protocol's learned top-1 of every run; `best` only where two runs or more have one to compare."""

    protocol: str
    scores: tuple[Score | None, ...]
    best: float | None


@dataclass(frozen=True)
class Compared:
    """Runs side by side on one test set: the only place where one may be called better than another."""

    tested: Tested
    columns: tuple[Column, ...]


def page(runs: Sequence[RunFacts]) -> str:
    """The whole page: a comparison first where there are several runs, then each of them."""
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    names = (f"c{place}" for place in count())
    return (
        _environment()
        .get_template("page.html")
        .render(
            runs=runs,
            titles=titles_of(runs),
            groups=[groups_of(run, names) for run in runs],
            selections=[selection_charts(run, names) for run in runs],
            judged=[_judged(run.scores) for run in runs],
            compared=compared(runs, names) if len(runs) > 1 else (),
            tables=_tables(runs),
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
    environment.filters.update(
        percent=percent,
        between=between,
        number=number,
        similarity=similarity,
        hue=_hue,
        choice=choice_of,
        breakable=breakable,
    )
    environment.tests["absent"] = lambda part: isinstance(part, Absent)
    return environment


def _judged(scores: Sequence[Score]) -> list[Judged]:
    """A run's scores by test set, each with its protocols."""
    return [
        Judged(tested, _protocols([score for score in scores if score.tested == tested]))
        for tested in dict.fromkeys(score.tested for score in scores)
    ]


def _protocols(scores: Sequence[Score]) -> tuple[Protocol, ...]:
    ranks = list(FEATURES)

    def rank(score: Score) -> int:
        return ranks.index(score.features) if score.features in ranks else len(ranks)

    names = dict.fromkeys(score.protocol for score in scores)
    return tuple(
        Protocol(name, tuple(sorted((s for s in scores if s.protocol == name), key=rank))) for name in names
    )


def _tables(runs: Sequence[RunFacts]) -> list[Compared]:
    """One table for each test set that any of the runs was tested on; the one most runs share comes first."""
    learned = [[score for score in run.scores if score.features == "learned"] for run in runs]
    sets = {score.tested.kind: score.tested for scores in learned for score in scores}
    tables = [Compared(tested, _columns(learned, kind)) for kind, tested in sets.items()]

    def shared(table: Compared) -> int:
        return sum(any(column.scores[place] for column in table.columns) for place in range(len(runs)))

    return sorted(tables, key=shared, reverse=True)


def _columns(learned: Sequence[Sequence[Score]], kind: str) -> tuple[Column, ...]:
    found = [{score.protocol: score for score in scores if score.tested.kind == kind} for scores in learned]
    columns = []
    for name in dict.fromkeys(name for scores in found for name in scores):
        row = tuple(scores.get(name) for scores in found)
        there = [score.top1 for score in row if score is not None]
        columns.append(Column(name, row, max(there) if len(there) > 1 else None))
    return tuple(columns)


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
