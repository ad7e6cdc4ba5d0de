"""Comparison of several runs: paired differences on the same test instances, by class, cost, and neighbours.

Nothing is ranked across test sets: two runs are compared only if both were tested on the same instances under
the same settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from nearfar.core.results import Answers
from nearfar.core.statistics import Difference, adjust_for_all, compare_answers, mean_and_spread
from nearfar.report.facts import Fact, Gallery, Map, Neighbour, Picture, RunFacts, Score, Tested

MOST_CLASSES = 40  # listed, those that differ most


@dataclass(frozen=True)
class Column:
    """One protocol's learned top-1 of every run; `best` only where two runs or more have one to compare."""

    protocol: str
    scores: tuple[Score | None, ...]
    best: float | None


@dataclass(frozen=True)
class PairRow:
    """Two runs, by place, under one protocol; p is adjusted over all pairs of the protocol."""

    protocol: str
    first: int
    second: int
    difference: Difference


@dataclass(frozen=True)
class ClassRow:
    name: str
    samples: int
    shares: tuple[float | None, ...]  # of each run
    difference: Difference | None  # of two runs, the first minus the second


@dataclass(frozen=True)
class Classes:
    protocol: str
    rows: tuple[ClassRow, ...]
    left_out: int


@dataclass(frozen=True)
class Seeds:
    """Runs that differ only in their seed; for each column mean, deviation (n - 1) and number."""

    places: tuple[int, ...]
    cells: tuple[tuple[float, float | None, int] | None, ...]


@dataclass(frozen=True)
class Compared:
    """Runs side by side on one test set."""

    tested: Tested
    columns: tuple[Column, ...]
    seeds: tuple[Seeds, ...] = ()
    pairs: tuple[PairRow, ...] = ()
    classes: tuple[Classes, ...] = ()


def tables_of(runs: Sequence[RunFacts]) -> list[Compared]:
    """One table for each test set that any of the runs was tested on; the one most runs share comes first."""
    learned = [[score for score in run.scores if score.features == "learned"] for run in runs]
    sets = {score.tested.kind: score.tested for scores in learned for score in scores}
    tables = [_compared(tested, _columns(learned, kind), runs) for kind, tested in sets.items()]

    def shared(table: Compared) -> int:
        return sum(any(column.scores[place] for column in table.columns) for place in range(len(runs)))

    return sorted(tables, key=shared, reverse=True)


def _columns(learned: Sequence[Sequence[Score]], kind: str) -> tuple[Column, ...]:
    by_protocol = [
        {score.protocol: score for score in scores if score.tested.kind == kind} for scores in learned
    ]
    columns = []
    for name in dict.fromkeys(name for scores in by_protocol for name in scores):
        row = tuple(scores.get(name) for scores in by_protocol)
        values = [score.top1 for score in row if score is not None]
        columns.append(Column(name, row, max(values) if len(values) > 1 else None))
    return tuple(columns)


def _compared(tested: Tested, columns: tuple[Column, ...], runs: Sequence[RunFacts]) -> Compared:
    pairs, classes = [], []
    for column in columns:
        answered = {
            place: score.answers
            for place, score in enumerate(column.scores)
            if score is not None and score.answers is not None
        }
        pairs += _pairs(column.protocol, answered)
        if len(answered) > 1 and (by_class := _classes(column.protocol, answered, tested, runs)) is not None:
            classes.append(by_class)
    return Compared(tested, columns, tuple(_over_seeds(runs, columns)), tuple(pairs), tuple(classes))


def _over_seeds(runs: Sequence[RunFacts], columns: Sequence[Column]) -> list[Seeds]:
    groups: dict[tuple[Fact, ...], list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(tuple(fact for fact in run.settings if fact.name != "seed"), []).append(place)
    seeds = []
    for places in groups.values():
        top1 = [[score.top1 for at in places if (score := column.scores[at])] for column in columns]
        cells = [(*mean_and_spread(one), len(one)) if len(one) > 1 else None for one in top1]
        if any(cells):
            seeds.append(Seeds(tuple(places), tuple(cells)))
    return seeds


def _pairs(protocol: str, answered: dict[int, Answers]) -> list[PairRow]:
    places = [
        (first, second)
        for first, second in combinations(answered, 2)
        if np.array_equal(answered[first].true, answered[second].true)
    ]
    differences = [compare_answers(answered[a].correct, answered[b].correct) for a, b in places]
    return [
        PairRow(protocol, *pair, difference)
        for pair, difference in zip(places, adjust_for_all(differences), strict=True)
    ]


def _classes(
    protocol: str, answered: dict[int, Answers], tested: Tested, runs: Sequence[RunFacts]
) -> Classes | None:
    """Top-1 of each class by each run, those that differ most first."""
    truths = [answers.true for answers in answered.values()]
    if not all(np.array_equal(truth, truths[0]) for truth in truths):
        return None
    named_maps = (run.map.classes for run in runs if isinstance(run.map, Map) and run.map.classes)
    names = dict(tested.names) or dict(enumerate(next(named_maps, ())))
    rows = []
    for label in np.unique(truths[0]).tolist():
        inside = truths[0] == label
        correct = {place: answers.correct[inside] for place, answers in answered.items()}
        shares = tuple(
            float(correct[place].mean()) if place in correct else None for place in range(len(runs))
        )
        difference = compare_answers(*correct.values()) if len(correct) == 2 else None
        rows.append(ClassRow(names.get(label, f"class {label}"), int(inside.sum()), shares, difference))
    rows.sort(key=lambda row: -_spread(row.shares))
    return Classes(protocol, tuple(rows[:MOST_CLASSES]), max(0, len(rows) - MOST_CLASSES))


def _spread(shares: Sequence[float | None]) -> float:
    present = [share for share in shares if share is not None]
    return max(present) - min(present)


def same_points(runs: Sequence[RunFacts]) -> list[int]:
    """The places of the runs whose maps show the same instances: the largest such group of two or more."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, run in enumerate(runs):
        if isinstance(run.map, Map):
            groups.setdefault((*run.map.atlas.sheets, *run.map.names), []).append(place)
    largest = max(groups.values(), key=len, default=[])
    return largest if len(largest) > 1 else []


def same_queries(runs: Sequence[RunFacts]) -> list[tuple[Picture, list[tuple[int, tuple[Neighbour, ...]]]]]:
    """Query images that several runs share, with the place of each run and the neighbours in it."""
    pictures: dict[str, Picture] = {}
    rows_by_uri: dict[str, list[tuple[int, tuple[Neighbour, ...]]]] = {}
    for place, run in enumerate(runs):
        for query in run.gallery.queries if isinstance(run.gallery, Gallery) else ():
            pictures.setdefault(query.picture.uri, query.picture)
            rows_by_uri.setdefault(query.picture.uri, []).append((place, query.neighbours))
    return [(pictures[uri], rows) for uri, rows in rows_by_uri.items() if len(rows) > 1]
