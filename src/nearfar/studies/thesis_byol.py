"""BYOL's experiments of the thesis in small, and whether it is less sensitive to the batch size than SimCLR (Sáez Maldonado 2021, sec. 8.2 and 10.2).

BYOL over the batch with both networks (Tables 12 and 14), then over jitter and blur, and SimCLR over the same batches with the same images, so
that the question is asked of one data set. The thesis' figures for BYOL are multiples of one over the batch, some of them 100 percent:
the accuracy of single batches of Imagenette. They stand in the paper column as what they are, and no trend is read from them.

Command: nearfar study thesis-byol data=cifar10:ROOT     Cost: about 12 minutes of one quiet core.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Figures, moments
from nearfar.studies.thesis import LARGEST, Budget, Cell, Found, Trend, lines, table, train, trends

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = (32, 64, 128, 256, 512, 1024)
SHALLOW = [Cell(b, method="byol") for b in BATCHES]
DEEP = [Cell(b, method="byol", deep=True) for b in BATCHES[:4]]
SIMCLR = [Cell(b, temperature=0.25) for b in BATCHES]
VIEWS = [Cell(256, jitter=j, method="byol") for j in (0.25, 0.5, 0.75, 1.0)] + [
    Cell(256, blur=True, method="byol")
]
TABLES = {"Table 12": SHALLOW, "Table 14": DEEP, "Views": VIEWS, "SimCLR": SIMCLR}
ONE_BATCH = dict(zip(SHALLOW, ((87.5, 100), (96.8, 100), (92.9, 97.6), (92.9, 99.6), (91.6, 99.4), (85.2, 98.3)), strict=True)) | dict(
    zip(DEEP, ((93.7, 96.9), (95.3, 100), (100, 100), (96.8, 100)), strict=True)
)  # fmt: skip
SOURCE = (
    "Sáez Maldonado 2021, Tables 12 and 14: Imagenette, ResNet-18 (deep: ResNet-50); multiples of one over the batch, hence of single batches and not "
    "of the test set"
)
CLAIMS = "Sáez Maldonado 2021, sec. 10.2.4, in words"
TRENDS = (
    Trend("byol: batch 64 above 1024", [(SHALLOW[1], SHALLOW[-1])], "a small batch is best"),
    Trend("simclr: batch 1024 above 64", [(SIMCLR[-1], SIMCLR[1])], "larger batches are better"),
    Trend("byol: deep above shallow", list(zip(DEEP, SHALLOW, strict=False)), "deeper is better"),
    Trend("byol above simclr, same batch", list(zip(SHALLOW, SIMCLR, strict=True)), "higher, on other data"),
    Trend("byol: blur above none", [(VIEWS[-1], SHALLOW[3])]),
    Trend("byol: jitter 1 above 0.25", [(VIEWS[3], VIEWS[0])]),
)


def sensitivity(found: Found, cells: Sequence[Cell]) -> list[dict[str, float]]:
    """For each seed, over the batches: the highest minus the lowest top-1, and the slope in points for a doubling."""

    def of(figures: Sequence[Figures]) -> dict[str, float]:
        values = [100 * one["linear"] for one in figures]
        slope = np.polyfit(np.log2([cell.batch for cell in cells]), values, 1)[0]
        return {"range": max(values) - min(values), "slope": float(slope)}

    return [of(seed) for seed in zip(*(found[cell] for cell in cells), strict=True)]


def run(bench: Bench, budget: Budget) -> Result:
    found = train(bench, budget, [cell for cells in TABLES.values() for cell in cells])
    findings = [
        finding for name, cells in TABLES.items() for finding in table(name, cells, found, _told, SOURCE)
    ]
    return Result(
        (*findings, _sensitivities(found), trends(TRENDS, found, {}, CLAIMS)), _remarks(found, budget)
    )


def _told(cell: Cell, place: int) -> str | None:
    return f"{ONE_BATCH[cell][place]:g}, of one batch" if cell in ONE_BATCH else None


def _sensitivities(found: Found) -> Finding:
    rows = []
    for name, cells in (("byol", SHALLOW), ("simclr", SIMCLR)):
        seeds = sensitivity(found, cells)
        claim = "less than simclr" if name == "byol" else None
        rows.append(
            Row(f"{name}: highest minus lowest, points", claim, *moments([one["range"] for one in seeds]))
        )
        rows.append(
            Row(
                f"{name}: points for a doubling of the batch", None, *moments([one["slope"] for one in seeds])
            )
        )
    return Finding("How much the batch matters", tuple(rows), source=CLAIMS)


def _remarks(found: Found, budget: Budget) -> tuple[str, ...]:
    byol, simclr = (sensitivity(found, cells) for cells in (SHALLOW, SIMCLR))
    less = [one["range"] < other["range"] for one, other in zip(byol, simclr, strict=True)]
    answer = (
        "yes, in every seed"
        if all(less)
        else "no, in no seed"
        if not any(less)
        else f"in {sum(less)} of {len(less)} seeds"
    )
    return (
        f"is BYOL less sensitive to the batch size than SimCLR (highest minus lowest top-1 over batches of {budget.batch * BATCHES[0] // LARGEST} to {budget.batch})? {answer}.",
        "every arm has the same epochs, so a small batch has more steps: what is compared is the batch with its steps, for both methods alike.",
        "BYOL has no temperature: a critic's scale only multiplies its loss.",
    )


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import panels

    figure, axes = panels(["Batch", "BYOL over jitter"])
    values: dict[str, tuple[float, float | None]] = {}
    for finding in result.findings[:-2:2]:
        values |= finding.curves["figures (mean, sd)"]
    groups = {"byol": SHALLOW, "byol, deep": DEEP, "simclr": SIMCLR}
    over = {
        name: [(float(cell.batch), *values[str(cell)]) for cell in cells] for name, cells in groups.items()
    }
    lines(axes[0], over, "the thesis' batch")
    axes[0].set_xscale("log", base=2)
    lines(
        axes[1],
        {"byol": [(cell.jitter or 0.0, *values[str(cell)]) for cell in VIEWS[:-1]]},
        "strength of jitter",
    )
    return figure


STUDY = Study(
    "thesis-byol",
    "Sáez Maldonado 2021, sec. 10.2 in small: BYOL over batch, network, jitter and blur; is it less sensitive to batch size than SimCLR?",
    run,
    draw,
)
