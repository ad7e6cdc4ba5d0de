"""A comparison as a specification: arms x seeds, the paper's column, and its claims with a verdict each.

    @comparison_study("ring", "…")
    def ring(setup: ImageSetup, depth: float = 0.9) -> Comparison: ...

Every arm is trained under every seed and evaluated by the same measures. A claim says that one arm is better
than another; its verdict is that of the paired differences (`core.statistics`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from nearfar.core.statistics import mean_difference
from nearfar.errors import check_whole
from nearfar.studies.frame import (
    REFERENCE,
    STUDIES,
    Study,
    StudyResult,
    StudyTable,
    TableValue,
    Values,
    Workspace,
    mean_row,
)
from nearfar.studies.images import ImageSetup, RunMeasure, StudyArm, compute_arm
from nearfar.sweeps.engine import Cell, Compute

MEASURES = {"knn": "kNN top-1 in percent", "linear": "linear top-1 in percent"}
UNTRAINED = "untrained"
VERDICTS = {"better": "holds", "worse": "does not hold", "not distinguishable": "not distinguishable"}

# by arm: the values of each seed, None where it is not finished
Figures = Mapping[str, Sequence[Values | None]]


@dataclass(frozen=True)
class PaperColumn:
    """A paper's values by arm, and where they are from."""

    values: Mapping[str, TableValue]
    source: str


@dataclass(frozen=True)
class Claim:
    """That one arm is better than another."""

    better: str
    worse: str


@dataclass(frozen=True)
class Comparison:
    """Arms by name; `paper`: columns by measure; `x`: (series, number) of arms to draw as lines."""

    title: str
    arms: Mapping[str, Any]  # StudyArm, where images are trained on
    claims: Sequence[Claim] = ()
    paper: Mapping[str, PaperColumn] = field(default_factory=dict)
    measures: Mapping[str, str] = field(default_factory=lambda: MEASURES)
    baselines: tuple[str, ...] = (UNTRAINED,)
    x: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    x_label: str = ""
    remarks: tuple[str, ...] = ()

    def all_arms(self) -> dict[str, Any]:
        return {**{name: StudyArm(name) for name in self.baselines}, **self.arms}


def verdict(differences: Sequence[float], unit: str = "seeds") -> str:
    """Whether a claim's paired differences are above 0: `holds: +1.2 points, 95% interval …`."""
    difference = mean_difference(differences)
    return f"{VERDICTS[difference.verdict]}: {difference.points(unit)}"


def paired(figures: Figures, first: str, second: str, measure: str) -> list[float]:
    """first - second for each seed that both have: both began with the same weights and order of data."""
    pairs = zip(figures[first], figures[second], strict=True)
    return [a[measure] - b[measure] for a, b in pairs if a is not None and b is not None]


def compute_figures(
    workspace: Workspace,
    setup: ImageSetup,
    *comparisons: Comparison,
    measure: RunMeasure | None = None,
    deadline: float = math.inf,
) -> dict[str, list[Any]]:
    """The values of every arm, one for each seed; comparisons share the arms that have one name."""
    arms = {name: arm for comparison in comparisons for name, arm in comparison.all_arms().items()}
    compute = partial(compute_arm, setup=setup, measure=measure)
    cell_of = lambda name, seed: setup.cell(name, arms[name], seed, measure)
    return workspace.run_arms(list(arms), setup.numbers, cell_of, compute, setup.jobs, deadline)


def values_of(figures: Figures, arm: str, measure: str) -> list[Any]:
    """A measure of an arm for each finished seed that has it."""
    return [one[measure] for one in figures[arm] if one is not None and one.get(measure) is not None]


def measure_table(
    title: str, figures: Figures, arms: Iterable[str], measure: str, **options: Any
) -> StudyTable:
    """A further measure by arm, which the paper does not report."""
    return StudyTable(
        title, tuple(mean_row(arm, values_of(figures, arm, measure)) for arm in arms), **options
    )


def make_table(figures: Figures, comparison: Comparison, measure: str) -> StudyTable:
    column = comparison.paper.get(measure, PaperColumn({}, ""))
    rows = []
    for name in comparison.all_arms():
        finished = [one for one in figures[name] if one is not None]
        values = [one[measure] for one in finished if measure in one]
        if finished and not values:
            continue  # a baseline without this measure
        total = len(figures[name])
        partial_label = f" ({len(finished)} of {total} seeds)" if len(finished) < total else ""
        series, x = comparison.x.get(name, (REFERENCE if name in comparison.baselines else "", None))
        label, paper = f"{name}{partial_label}", column.values.get(name)
        rows.append(mean_row(label, values, paper, scale=100, x=x, series=series))
    title = f"{comparison.title}, {comparison.measures[measure]}"
    return StudyTable(title, tuple(rows), column.source, x_label=comparison.x_label)


def make_verdicts(figures: Figures, comparison: Comparison) -> list[str]:
    """A sentence for each claim and measure, by the seeds that both arms have."""
    sentences = []
    for claim in comparison.claims:
        for measure, title in comparison.measures.items():
            differences = paired(figures, claim.better, claim.worse, measure)
            result = verdict(differences) if differences else "not run yet"
            measured = title.removesuffix(" in percent")
            sentences.append(f"{claim.better} above {claim.worse} ({measured}) {result}.")
    return sentences


def make_result(figures: Figures, *comparisons: Comparison) -> StudyResult:
    """The tables of each comparison, then the verdicts and remarks of each."""
    tables = [make_table(figures, one, measure) for one in comparisons for measure in one.measures]
    remarks = [text for one in comparisons for text in (*make_verdicts(figures, one), *one.remarks)]
    return StudyResult(tuple(tables), tuple(remarks))


def compare_cells(
    workspace: Workspace,
    comparison: Comparison,
    seeds: range,
    identity: Mapping[str, Any],
    compute: Compute,
    jobs: int,
) -> StudyResult:
    """The result of arms that are no trainings on images: `compute` gives the values of a cell with the identity and
    its `arm` and `seed`."""
    check_whole("seeds", len(seeds), 1)
    cell_of = lambda arm, seed: Cell(f"{arm},seed={seed}", {"arm": arm, "seed": seed, **identity})
    figures = workspace.run_arms(list(comparison.arms), seeds, cell_of, compute, jobs)
    return make_result(figures, comparison)


Finish = Callable[[StudyResult, Figures, Comparison], StudyResult]
Specify = TypeVar("Specify", bound=Callable[..., Comparison])


def comparison_study(
    name: str, about: str, measure: RunMeasure | None = None, finish: Finish | None = None
) -> Callable[[Specify], Specify]:
    """Lists `specify(setup, **options)` as a study. `measure`: further values; `finish`: tables, remarks."""

    def register(specify: Specify) -> Specify:
        def run(workspace: Workspace, setup: ImageSetup, **options: Any) -> StudyResult:
            comparison = specify(setup, **options)
            figures = compute_figures(workspace, setup, comparison, measure=measure)
            result = make_result(figures, comparison)
            return finish(result, figures, comparison) if finish else result

        STUDIES[name] = Study(name, about, run, specify)
        return specify

    return register
