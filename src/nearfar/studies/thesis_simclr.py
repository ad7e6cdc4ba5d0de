"""SimCLR's grids of the thesis in small (Sáez Maldonado 2021, sec. 10.1, Tables 3 to 11, Fig. 23 to 25).

Every cell of its three grids: batch x temperature x jitter without blur (Table 3), with the deeper network (Table 6), with blur on both
networks (Table 8), and the batch alone (Fig. 23a). The thesis trains 100 epochs of 50,000 images; here orders and signs can be compared, levels
cannot. As there, every arm has as many epochs, so that a small batch has more steps.

Command: nearfar study thesis-simclr data=cifar10:ROOT     Cost: about 25 minutes of one quiet core. `tables=3,23a` trains only those, and says of
         the trends what they can.
"""

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from nearfar.errors import UserError
from nearfar.studies.frame import Bench, Result, Study
from nearfar.studies.images import percent
from nearfar.studies.thesis import Budget, Cell, Found, Trend, lines, table, train, trends

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPERATURES = JITTERS = (0.25, 0.5, 0.75, 1.0)
FIRST = [Cell(b, t, j) for b, t, j in product((512, 1024), TEMPERATURES, JITTERS)]
SECOND = [Cell(b, t, j, deep=True) for b, t, j in product((32, 64, 128, 256), (0.5, 0.75), (0.65, 0.75))]
THIRD = [Cell(b, t, j, blur=True) for b, t, j in product((256, 512, 1024), (0.25, 0.5), (0.65, 0.75))]
THIRD += [Cell(256, t, j, blur=True, deep=True) for t, j in product((0.25, 0.5), (0.65, 0.75))]
BATCHES = [Cell(b, 0.25, 0.75) for b in (16, 32, 64, 128, 256, 512, 1024)]
TABLES = {"Table 3": FIRST, "Figure 23a": BATCHES, "Table 8": THIRD, "Table 6": SECOND}

_PRINTED = {  # top-1/top-5 in percent, in the order of the cells; a line is a batch, in Table 3 a batch and a temperature
    "Table 3": """
        83.3/99.4  83.2/99.3  83.1/99.4  83.0/99.2
        81.9/99.3  82.2/99.3  82.1/99.3  81.7/99.2
        80.9/99.3  81.2/99.3  80.5/99.0  79.3/99.0
        79.8/99.0  79.7/99.0  79.3/99.0  78.2/98.9
        83.6/99.3  83.9/99.5  84.1/99.5  83.5/99.3
        82.2/99.3  82.7/99.4  82.6/99.4  82.0/99.3
        81.4/99.1  81.6/99.2  81.3/99.3  80.2/98.9
        80.6/99.1  80.2/99.2  79.4/99.0  79.0/98.9
    """,
    "Table 6": """
        82.2/99.2  81.4/99.2  -          -
        83.5/99.5  83.3/99.4  82.8/99.3  82.2/99.3
        84.4/99.4  84.2/99.4  83.1/99.4  82.9/99.4
        84.6/99.5  84.8/99.4  83.2/99.4  83.3/99.4
    """,
    "Table 8": """
        82.7/99.2  82.5/99.4  81.9/99.3  -
        84.1/99.3  83.7/99.4  82.4/99.4  82.3/99.4
        84.6/99.4  84.1/99.5  -          -
        86.2/99.7  86.1/99.6  84.9/99.6  85.1/99.5
    """,
}
PAPER = {
    cell: (float(word.split("/")[0]), float(word.split("/")[1]))
    for name, printed in _PRINTED.items()
    for cell, word in zip(TABLES[name], printed.split(), strict=True)
    if word != "-"
}
SOURCE = (
    "Sáez Maldonado 2021, Tables 3, 6 and 8: CIFAR-10, 100 epochs, ResNet-18 (deep: ResNet-50). Where the rows of Tables 6 and 8 have slipped, a figure is "
    "placed by its steps and its regularisation loss; what could not be placed is left out. Figure 23a is only drawn: more than 8 points from 16 to 1024"
)

TRENDS = (
    Trend("T 0.25 above T 1", [(Cell(b, 0.25, j), Cell(b, 1.0, j)) for b, j in product((512, 1024), JITTERS)]),
    Trend("T 0.25 above T 0.5", [(Cell(b, 0.25, j), Cell(b, 0.5, j)) for b, j in product((512, 1024), JITTERS)]),
    Trend("batch 1024 above 512", [(Cell(1024, t, j), Cell(512, t, j)) for t, j in product(TEMPERATURES, JITTERS)]),
    Trend("batch 1024 above 16", [(BATCHES[-1], BATCHES[0])], "more than 8 points"),
    Trend(
        "jitter 0.5 and 0.75 above 0.25 and 1",
        [(Cell(b, t, inner), Cell(b, t, outer)) for b, t, (inner, outer) in product((512, 1024), TEMPERATURES, ((0.5, 0.25), (0.75, 1.0)))],
    ),
    Trend(
        "blur above none",
        [(Cell(b, t, 0.75, blur=True), Cell(b, t, 0.75)) for b, t in product((512, 1024), (0.25, 0.5))]
        + [(Cell(256, 0.5, j, blur=True, deep=True), Cell(256, 0.5, j, deep=True)) for j in (0.65, 0.75)],
    ),
    Trend(
        "deep above shallow",
        [(Cell(256, t, j, blur=True, deep=True), Cell(256, t, j, blur=True)) for t, j in product((0.25, 0.5), (0.65, 0.75))],
    ),
)  # fmt: skip


def run(bench: Bench, budget: Budget, tables: str = "all") -> Result:
    """`tables` names some of them by number, with commas between: 3, 23a, 8, 6."""
    wanted = _named(tables)
    found = train(bench, budget, [cell for cells in wanted.values() for cell in cells])
    findings = [
        finding
        for name, cells in wanted.items()
        for finding in table(
            name, cells, found, lambda cell, place: PAPER[cell][place] if cell in PAPER else None, SOURCE
        )
    ]
    return Result((*findings, trends(TRENDS, found, PAPER, SOURCE)), _remarks(found, budget))


def _named(tables: str) -> dict[str, list[Cell]]:
    numbers = {name.split()[1]: name for name in TABLES}
    asked = list(numbers) if tables == "all" else [number.strip() for number in tables.split(",")]
    if not asked or not {*asked} <= {*numbers}:
        raise UserError(f"tables was {tables!r}; expected all, or {', '.join(numbers)} with commas between")
    return {numbers[number]: TABLES[numbers[number]] for number in numbers if number in asked}


def _remarks(found: Found, budget: Budget) -> tuple[str, ...]:
    best = max(found, key=lambda cell: percent(found[cell], "linear")[0])
    value = percent(found[best], "linear")[0]
    return (
        f"best of all cells: {best} with {value:.1f} percent, the highest of {len(found)} and so an optimistic figure; the thesis' best "
        "is simclr, deep, batch 256, T 0.25, jitter 0.65, blur with 86.2 (Table 11).",
        f"batches are scaled: {budget.batch} stands for 1024, {budget.batch // 64} for 16; a verdict's pairs are cells and seeds, which share their images.",
        "every arm has the same epochs, as in the thesis: a batch a fourth as large takes four times the steps, so the batch's effect is that of both.",
    )


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import panels

    figure, axes = panels(
        ["Batch (Fig. 23a)", "Temperature (Fig. 25), batch 1024", "Jitter (Fig. 24), T 0.25"]
    )
    values: dict[str, tuple[float, float | None]] = {}
    for finding in result.findings[:-1:2]:
        values |= finding.curves["figures (mean, sd)"]

    def line(cells: list[Cell], places: Sequence[float]) -> list[tuple[float, float, float | None]]:
        there = [(place, cell) for place, cell in zip(places, cells, strict=True) if str(cell) in values]
        return [(place, *values[str(cell)]) for place, cell in there]

    over = {f"jitter {j:g}": line([Cell(1024, t, j) for t in TEMPERATURES], TEMPERATURES) for j in JITTERS}
    lines(axes[0], {"simclr": line(BATCHES, [float(cell.batch) for cell in BATCHES])}, "the thesis' batch")
    axes[0].set_xscale("log", base=2)
    lines(axes[1], over, "temperature")
    over = {f"batch {b}": line([Cell(b, 0.25, j) for j in JITTERS], JITTERS) for b in (512, 1024)}
    lines(axes[2], over, "strength of jitter")
    return figure


STUDY = Study(
    "thesis-simclr",
    "Sáez Maldonado 2021, sec. 10.1 in small: SimCLR over batch, temperature, jitter, blur and network",
    run,
    draw,
)
