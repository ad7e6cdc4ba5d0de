"""Arms of one data set side by side, and for each claim of a paper a verdict: the paired difference, its interval, what follows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearfar.core.statistics import mean_difference
from nearfar.studies.frame import Bench, Cell, Finding, Result, Row
from nearfar.studies.images import Figures, Measure, Setup, percent, repeated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {"knn": "kNN top-1", "linear": "linear top-1"}


@dataclass(frozen=True)
class Claim:
    """That one arm is better than another, as a paper says it."""

    better: str
    worse: str


@dataclass(frozen=True)
class Comparison:
    """Arms as (recipe, changes), what the paper says of each, where, and what it claims; `told` are the probes its figures are of."""

    title: str
    arms: Mapping[str, tuple[str, Mapping[str, Any]]]
    paper: Mapping[str, Cell]
    source: str
    claims: Sequence[Claim]
    told: tuple[str, ...] = tuple(MEASURES)


WORDS = {"better": "holds", "worse": "does not hold", "not distinguishable": "cannot be distinguished"}


def verdict(differences: Sequence[float], unit: str = "seeds") -> str:
    """Whether a claim that paired differences (in points) are above 0 holds, with their mean and its interval."""
    difference = mean_difference([points / 100 for points in differences])
    return f"{WORDS[difference.verdict]}: {difference.points(unit)}"


def compare(bench: Bench, setup: Setup, comparison: Comparison) -> Result:
    return results_of(found_by(bench, setup, comparison), comparison)


def found_by(
    bench: Bench, setup: Setup, comparison: Comparison, measure: Measure | None = None
) -> dict[str, list[Figures]]:
    """Every arm's figures, one for each seed, and those of the untrained network."""
    arms = {"untrained": [setup.baseline("untrained", s) for s in setup.numbers]}
    for name, (recipe, changes) in comparison.arms.items():
        arms[name] = [setup.recipe(recipe, s, **changes) for s in setup.numbers]
    return repeated(bench, setup, arms, measure)


def results_of(found: Mapping[str, Sequence[Figures]], comparison: Comparison) -> Result:
    findings = tuple(_finding(found, comparison, measure) for measure in MEASURES)
    return Result(findings, tuple(_verdicts(found, comparison)))


def _finding(found: Mapping[str, Sequence[Figures]], comparison: Comparison, measure: str) -> Finding:
    paper = comparison.paper if measure in comparison.told else {}
    rows = [Row(name, paper.get(name), *percent(found[name], measure)) for name in found]
    source = comparison.source if paper else ""
    return Finding(f"{comparison.title}, {MEASURES[measure]} in percent", tuple(rows), source=source)


def _verdicts(found: Mapping[str, Sequence[Figures]], comparison: Comparison) -> list[str]:
    said = []
    for claim in comparison.claims:
        for measure, title in MEASURES.items():
            pairs = zip(found[claim.better], found[claim.worse], strict=True)
            differences = [100 * (a[measure] - b[measure]) for a, b in pairs]
            said.append(f"{claim.better} above {claim.worse} ({title}) {verdict(differences)}.")
    return said


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels

    figure, axes = panels([finding.name for finding in result.findings])
    for axis, finding in zip(axes, result.findings, strict=True):
        places = range(len(finding.rows))
        values = [float(row.ours or 0.0) for row in finding.rows]
        axis.barh(places, values, xerr=[row.spread or 0.0 for row in finding.rows], color=COLOURS[0])
        axis.set_yticks(list(places), [row.label for row in finding.rows], fontsize=7.5)
    return figure
