"""What a study is: an experiment of a paper, run again, its figures compared with the paper's.

    @study("binary", "what it shows, in a line")
    def run(workspace: Workspace, p: float = 0.5) -> StudyResult: ...

The signature is the schema of the options; a parameter
that is a dataclass stands for its fields, so that studies share options. Whatever takes long is a cell of
`workspace`: a finished cell is stored in the study's folder and not computed again.
"""

import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from nearfar.config.schema import unknown
from nearfar.core.statistics import mean_and_spread
from nearfar.core.tables import plus_minus, text_table
from nearfar.errors import UserError
from nearfar.sweeps.engine import Cell, CellStore, Compute, run_cells

TableValue = float | str | None  # a number, a claim in words, or nothing
Values = Mapping[str, Any]  # of a cell, as JSON
Option = TypeVar("Option")
ArmKey = TypeVar("ArmKey", bound=Hashable)
StudyFunction = TypeVar("StudyFunction", bound=Callable[..., Any])


@dataclass(frozen=True)
class StudyRow:
    """One line of a table: the paper's value and ours. `spread`: over repetitions.

    Rows with `x` are points of the line `series`; those of REFERENCE are dashed horizontal lines.
    """

    label: str
    paper: TableValue = None
    ours: TableValue = None
    spread: float | None = None
    x: float | None = None
    series: str = ""


REFERENCE = "reference"
DOTS = "dots"  # a line of a table that is drawn as dots, alternately in two colours


def mean_row(
    label: str,
    values: Sequence[float],
    paper: TableValue = None,
    *,
    scale: float = 1.0,
    x: float | None = None,
    series: str = "",
) -> StudyRow:
    """Mean and spread over repetitions, multiplied by `scale`; a row without a value where there are none."""
    if not values:
        return StudyRow(label, paper, x=x, series=series)
    return StudyRow(label, paper, *mean_and_spread([scale * value for value in values]), x, series)


@dataclass(frozen=True)
class StudyTable:
    """One figure or table of a paper. `lines`: further curves (x, y), in the figure and the JSON only."""

    name: str
    rows: tuple[StudyRow, ...]
    source: str = ""  # where exactly the paper's values are from, and how they were read
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    x_label: str = ""
    log: str = ""  # logarithmic axes: "x", "y" or "xy"

    def __post_init__(self) -> None:
        if any(row.paper is not None for row in self.rows) and not self.source:
            raise ValueError(f"{self.name!r} shows a paper's figures without their source")

    def row(self, label: str) -> StudyRow:
        return next(row for row in self.rows if row.label == label)

    def paper(self) -> dict[str, TableValue]:
        return {row.label: row.paper for row in self.rows if row.paper is not None}

    def ours(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            row.label: row.ours if row.spread is None else {"mean": row.ours, "sd": row.spread}
            for row in self.rows
        }
        curves = {name: {"x": list(x), "y": list(y)} for name, (x, y) in self.lines.items()}
        return {**values, "curves": curves} if curves else values

    def text(self) -> str:
        lines = [(self.name, "paper", "ours")]
        for row in self.rows:
            lines.append((row.label, _cell_text(row.paper), _cell_text(row.ours, row.spread)))
        return "\n".join([*text_table(lines), *([f"paper: {self.source}"] if self.source else [])])


def _cell_text(value: TableValue, spread: float | None = None) -> str:
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    return plus_minus(value, spread, 6, significant=True)


@dataclass(frozen=True)
class StudyResult:
    """The tables of a study, and remarks: verdicts on claims, differences from the paper."""

    tables: tuple[StudyTable, ...]
    remarks: tuple[str, ...] = ()

    def table(self, name: str) -> StudyTable:
        return next(table for table in self.tables if table.name == name)

    def adding(self, *tables: StudyTable) -> "StudyResult":
        return replace(self, tables=(*self.tables, *tables))

    def as_json(self) -> dict[str, Any]:
        return {
            "paper": {table.name: table.paper() for table in self.tables},
            "ours": {table.name: table.ours() for table in self.tables},
            "sources": {table.name: table.source for table in self.tables if table.source},
        }


def choose(words: str, allowed: Mapping[str, Option], kind: str) -> dict[str, Option]:
    """Those that a list such as `ring,curricula` names, or `all`."""
    names = list(allowed) if words == "all" else [word.strip() for word in words.split(",")]
    for name in names:
        if name not in allowed:
            raise unknown(name, allowed, kind)
    return {name: allowed[name] for name in names}


def read_numbers(
    words: str, name: str, expected: str, is_valid: Callable[[list[float]], bool]
) -> list[float]:
    """The numbers of a list such as `0.1,1`."""
    try:
        values = [float(word) for word in words.split(",")]
    except ValueError:
        values = []
    if not values or not is_valid(values):
        raise UserError(f"{name} was {words!r}; expected {expected}")
    return values


@dataclass
class Workspace:
    """The folder of a study, in which its cells are computed and stored."""

    path: Path
    study: str
    earlier_seconds: float = 0.0  # that finished cells took in earlier commands

    @property
    def store(self) -> CellStore:
        return CellStore(self.path)

    def report(self, text: str) -> None:
        """Prints a line of progress to standard error."""
        print(f"{self.study}: {text}", file=sys.stderr, flush=True)

    def run(
        self, cells: Sequence[Cell], compute: Compute, jobs: int = 1, deadline: float = math.inf
    ) -> list[Any]:
        """The values of each cell, computed in `jobs` processes; None for one after the deadline."""
        finished = {cell.name for cell in cells if self.store.outcome(cell) is not None}
        owner = f"study {self.study}"
        outcomes = run_cells(
            self.store, cells, compute, owner=owner, jobs=jobs, deadline=deadline, title=self.study
        )
        by_name = {cell.name: outcome for cell, outcome in zip(cells, outcomes, strict=True)}
        self.earlier_seconds += sum(o.seconds for name, o in by_name.items() if o and name in finished)
        return [None if outcome is None else outcome.values for outcome in outcomes]

    def call(
        self, function: Callable[..., Values], options: Mapping[str, Mapping[str, Any]], jobs: int = 1
    ) -> dict[str, Any]:
        """`function(**options)` by label, each a cell of its own."""
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        cells = [
            Cell(label, {"function": name, "options": dict(keywords)}) for label, keywords in options.items()
        ]
        return dict(zip(options, self.run(cells, FunctionCell(function), jobs), strict=True))

    def repeat(
        self,
        function: Callable[..., Values],
        arms: Mapping[str, Mapping[str, Any]],
        seeds: range,
        jobs: int = 1,
    ) -> dict[str, list[Any]]:
        """`function(seed=…, **options)` by arm, for every seed; the first seed of all arms comes first."""
        options = {f"{arm},seed={s}": {**arms[arm], "seed": s} for s in seeds for arm in arms}
        values = self.call(function, options, jobs)
        return {arm: [values[f"{arm},seed={s}"] for s in seeds] for arm in arms}

    def run_arms(
        self,
        arms: Sequence[ArmKey],
        seeds: range,
        cell_of: Callable[[ArmKey, int], Cell],
        compute: Compute,
        jobs: int = 1,
        deadline: float = math.inf,
    ) -> dict[ArmKey, list[Any]]:
        """The values of the cells `cell_of(arm, seed)` in the same order, by arm and one for each seed."""
        values = self.run([cell_of(arm, seed) for seed in seeds for arm in arms], compute, jobs, deadline)
        return {arm: values[place :: len(arms)] for place, arm in enumerate(arms)}


@dataclass(frozen=True)
class FunctionCell:
    """Computes a cell by a function of the options that its identity holds."""

    function: Callable[..., Values]

    def __call__(self, cell: Cell, folder: Path) -> Values:
        return self.function(**cell.identity["options"])


@dataclass(frozen=True)
class Study:
    """`schema`: the callable with the options, if not `run`."""

    name: str
    about: str
    run: Callable[..., StudyResult]
    schema: Callable[..., Any] | None = None


STUDIES: dict[str, Study] = {}  # by name, in the order of import


def study(name: str, about: str) -> Callable[[StudyFunction], StudyFunction]:
    """Lists a function of a workspace and options as a study."""

    def register(run: StudyFunction) -> StudyFunction:
        STUDIES[name] = Study(name, about, run)
        return run

    return register
