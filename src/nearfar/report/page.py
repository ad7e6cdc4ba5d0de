"""Renders facts as one HTML page that loads nothing from the network.

The template escapes every string, and the content security policy allows only the page's own script (by
hash), so a name is never run as code.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nearfar.modalities import MODALITIES
from nearfar.report.charts import SERIES
from nearfar.report.compare import same_points, same_queries, tables_of
from nearfar.report.facts import Absent, Fact, Gallery, Map, RunFacts, Score, Section, Tested
from nearfar.report.plots import (
    between,
    breakable,
    chance,
    choice_of,
    compared,
    groups_of,
    number,
    percent,
    points,
    selection_charts,
    similarity,
    titles_of,
    view_charts,
)
from nearfar.report.visuals import explorer_data

_FOLDER = Path(__file__).parent
SCRIPTS = ("page.js", "field.js", "explorer.js", "gestures.js")
STYLES = ("page.css", "explorer.css")

FEATURES = {
    "learned": "learned",
    "untrained": "untrained encoder",
    **{
        name: title
        for modality in MODALITIES.values()
        for name, title in modality.presenter.baseline_titles.items()
    },
}
PROTOCOLS = {
    "knn": "kNN",
    "nn": "nearest neighbour",
    "linear": "linear probe",
    "linear-sgd": "linear probe by SGD",
    "mlp": "one hidden layer",
    "finetune": "fine-tuning",
}

QUESTIONS = (
    ("views", "what is seen"),
    ("encoders", "what encodes them"),
    ("negatives", "where negatives come from"),
    ("selection", "which negatives count"),
    ("bound", "what is maximised"),
)


def page(runs: Sequence[RunFacts], summary: Section | None = None) -> str:
    """The page: a summary if there is one, a comparison if there are several runs, then each run."""
    script = "".join((_FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    style = "".join((_FOLDER / name).read_text(encoding="utf-8") for name in STYLES)
    names = (f"c{place}" for place in count())
    comparison = _comparison(runs, names)
    return (
        _environment()
        .get_template("page.html")
        .render(
            runs=runs,
            titles=titles_of(runs),
            groups=[groups_of(run, names) for run in runs],
            selections=[selection_charts(run, names) for run in runs],
            changes=[view_charts(run, names) for run in runs],
            judged=[_by_test_set(run.scores) for run in runs],
            summary=summary,
            comparison=comparison,
            maps=[
                explorer_data([("", run.map)])
                if isinstance(run.map, Map) and not (comparison and place in comparison["same"])
                else None
                for place, run in enumerate(runs)
            ],
            questions=QUESTIONS,
            feature_names=FEATURES,
            protocol_names=PROTOCOLS,
            series=SERIES,
            classes=max((len(run.map.classes) for run in runs if isinstance(run.map, Map)), default=0),
            style=Markup(style),
            script=Markup(script),
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
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
        hue=lambda place, of: round(360 * place / max(1, of)) % 360,
        choice=choice_of,
        breakable=breakable,
        points=points,
        chance=chance,
    )
    environment.tests["absent"] = lambda part: isinstance(part, Absent)
    return environment


def _by_test_set(scores: Sequence[Score]) -> dict[Tested, dict[str, list[Score]]]:
    """A run's scores by test set and protocol, those of the learned features first."""
    ranks = {name: rank for rank, name in enumerate(FEATURES)}
    groups: dict[Tested, dict[str, list[Score]]] = {}
    for score in sorted(scores, key=lambda score: ranks.get(score.features, len(ranks))):
        groups.setdefault(score.tested, {}).setdefault(score.protocol, []).append(score)
    return groups


def _comparison(runs: Sequence[RunFacts], names: Iterable[str]) -> dict[str, Any] | None:
    """What compare.html shows of several runs."""
    if len(runs) < 2:
        return None
    titles, same = titles_of(runs), same_points(runs)
    maps = [(titles[place], run_map) for place in same if isinstance(run_map := runs[place].map, Map)]
    settings = _side_by_side([run.settings for run in runs])
    return {
        "runs": runs,
        "titles": titles,
        "colour_count": SERIES,
        "protocol_names": PROTOCOLS,
        "tables": tables_of(runs),
        "compared": compared(runs, names),
        "costs": _side_by_side([run.cost for run in runs]),
        "same": same,  # places of the runs whose maps show the same instances
        "shared_map": explorer_data(maps) if maps else None,
        "queries": same_queries(runs),
        "queries_crisp": any(isinstance(run.gallery, Gallery) and run.gallery.crisp for run in runs),
        "differing": [row for row in settings if len(set(row[1:])) > 1],
    }


def _side_by_side(facts: Sequence[Sequence[Fact]]) -> list[list[str]]:
    """Facts of the runs by name, with a dash where a run has none."""
    tables = [dict(run_facts) for run_facts in facts]
    names = dict.fromkeys(name for table in tables for name in table)
    return [[name, *(table.get(name, "–") for table in tables)] for name in names]
