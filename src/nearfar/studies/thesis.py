"""What the thesis' two grids share (Sáez Maldonado 2021, ch. 10): cells, their arms on a small budget, trends with a verdict.

A cell is what the thesis varies, with its own numbers: batch, temperature, SimCLR's strength of jitter (`views.strength`), blur, network. The batch
is scaled: `batch` stands for the thesis' 1,024, and the rate grows with its square root (Chen et al. 2020, appendix B.1). `backbone`
stands for its ResNet-18, `deep` for its ResNet-50.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nearfar.errors import UserError
from nearfar.studies.compared import verdict
from nearfar.studies.frame import Bench, Finding, Row
from nearfar.studies.images import Arm, Figures, Setup, percent, repeated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST = 1024  # the thesis' largest batch
RATE, RATE_AT = 2e-3, 64  # the recipes' rate, and the batch it is for
MEASURES = {"linear": "linear top-1 in percent", "linear_top5": "linear top-5 in percent"}


@dataclass(frozen=True)
class Budget(Setup):
    """So small that every cell of a grid can be trained twice within an hour."""

    images: int = 2_500
    epochs: int = 10
    size: int = 12
    batch: int = 256
    backbone: str = "resnet8-w8"
    deep: str = "resnet8-w16"  # of the same depth here, twice as wide: a deeper one by name, such as resnet18, costs hours


@dataclass(frozen=True)
class Cell:
    """One model of the thesis' tables; None: as the recipe has it."""

    batch: int
    temperature: float | None = None
    jitter: float | None = None
    blur: bool = False
    deep: bool = False
    method: str = "simclr"

    def __str__(self) -> str:
        said = [self.method, "deep"] if self.deep else [self.method]
        said.append(f"batch {self.batch}")
        said += [
            f"{name} {value:g}"
            for name, value in (("T", self.temperature), ("jitter", self.jitter))
            if value is not None
        ]
        return ", ".join([*said, "blur"] if self.blur else said)

    def arm(self, budget: Budget, seed: int) -> Arm:
        batch = budget.batch * self.batch // LARGEST
        own = replace(budget, batch=batch, backbone=budget.deep if self.deep else budget.backbone)
        changes: dict[str, Any] = {
            "lr": float(f"{RATE * (batch / RATE_AT) ** 0.5:.4g}"),
            "views.blur": 0.5 * self.blur,
        }
        changes |= {} if self.temperature is None else {"temperature": self.temperature}
        changes |= {} if self.jitter is None else {"views.strength": self.jitter}
        return own.recipe(self.method, seed, **changes)


Paper = Mapping[Cell, tuple[float, float]]  # top-1 and top-5, in percent
Found = Mapping[Cell, Sequence[Figures]]


@dataclass(frozen=True)
class Trend:
    """That the first of each pair of cells is better than the second, as the thesis says."""

    claim: str
    pairs: Sequence[tuple[Cell, Cell]]
    paper: str | None = None  # where the thesis only draws or says it

    def of_paper(self, paper: Paper) -> str | None:
        """The thesis' own mean difference over the pairs of which it prints both."""
        known = [paper[a][0] - paper[b][0] for a, b in self.pairs if a in paper and b in paper]
        return self.paper if not known else f"{np.mean(known):+.1f} points, {len(known)} pairs"

    def ours(self, found: Found) -> str | None:
        """The same of ours, over pairs and seeds; None where no pair was trained."""
        there = [(a, b) for a, b in self.pairs if a in found and b in found]
        differences = [
            100 * (one["linear"] - other["linear"])
            for a, b in there
            for one, other in zip(found[a], found[b], strict=True)
        ]
        return verdict(differences, "pairs") if differences else None


def train(bench: Bench, budget: Budget, cells: Sequence[Cell]) -> dict[Cell, list[Figures]]:
    """The figures of every cell, one for each seed."""
    least = 2 * LARGEST // min(cell.batch for cell in cells)
    if budget.batch < least:
        raise UserError(
            f"batch was {budget.batch}; it stands for the thesis' {LARGEST}, and its smallest must be at least 2: expected {least} or more"
        )
    arms = {cell: [cell.arm(budget, seed) for seed in budget.numbers] for cell in dict.fromkeys(cells)}
    return repeated(bench, budget, arms)


def table(
    name: str, cells: Sequence[Cell], found: Found, paper: Callable[[Cell, int], Any], source: str
) -> list[Finding]:
    """A table of the thesis: a finding for each of top-1 and top-5."""
    findings = []
    for place, (measure, said) in enumerate(MEASURES.items()):
        values = {str(cell): percent(found[cell], measure) for cell in cells}
        rows = [Row(str(cell), paper(cell, place), *values[str(cell)]) for cell in cells]
        told = source if any(row.paper is not None for row in rows) else ""
        findings.append(Finding(f"{name}, {said}", tuple(rows), {"figures (mean, sd)": values}, told))
    return findings


def trends(named: Sequence[Trend], found: Found, paper: Paper, source: str) -> Finding:
    rows = [
        Row(trend.claim, trend.of_paper(paper), ours)
        for trend in named
        if (ours := trend.ours(found)) is not None
    ]
    told = source if any(row.paper is not None for row in rows) else ""
    return Finding("Trends, linear top-1", tuple(rows), source=told)


def lines(axis: "Axes", found: Mapping[str, Sequence[tuple[float, float, float | None]]], label: str) -> None:
    """A line of (place, mean, deviation) for each name; places are doublings apart."""
    from nearfar.studies.drawing import COLOURS

    for colour, (name, points) in zip(COLOURS, found.items(), strict=False):
        if not points:
            continue
        x, mean, spread = zip(*points, strict=True)
        axis.errorbar(
            x, mean, yerr=[sd or 0.0 for sd in spread], color=colour, marker="o", markersize=4, label=name
        )
    axis.set(xlabel=label, ylabel="linear top-1, percent")
    if any(found.values()):
        axis.legend(frameon=False, fontsize=7.5)
