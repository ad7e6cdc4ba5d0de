"""Arms of one data set side by side, and for each claim of a paper a verdict: the paired difference, its interval, what follows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from nearfar.studies.frame import Bench, Cell, Finding, Result, Row
from nearfar.studies.images import Figures, Measure, Setup, percent, repeated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIDENCE = 0.95
GRAIN = 1e-6  # points: differences nearer than this are one,
FEW = 4  # and fewer of them than this may agree by chance
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


def verdict(differences: Sequence[float], of: str = "seeds") -> str:
    """Of differences in points, paired by seed (or `of` whatever else), that a claim says are above 0: holds, does not hold, or cannot be told apart, by Student's
    interval for their mean."""
    mean = float(np.mean(differences))
    if len(differences) < 2:
        return f"cannot be told apart: {mean:+.1f} points with one seed, which has no interval"
    error = float(np.std(differences, ddof=1)) / len(differences) ** 0.5
    # a test set counts in whole rows: that two or three seeds agree says little of how far others would be
    if len(differences) < FEW and np.ptp(differences) < GRAIN:
        return f"cannot be told apart: {mean:+.1f} points for each of {len(differences)} {of}, which show no spread to make an interval of"
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(differences) - 1)) * error
    said = "holds" if mean - reach > 0 else "does not hold" if mean + reach < 0 else "cannot be told apart"
    return f"{said}: {mean:+.1f} points, {CONFIDENCE:.0%} interval {mean - reach:+.1f} to {mean + reach:+.1f}, {len(differences)} {of}"


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
