"""Every numbered item of the five papers and its status here: the table that docs/papers.md is printed from.

A paper is a text, a line a row:   items | what it is | command | state | reason

Items are as the paper numbers them (`Eq. 13-15`, `Fig. 2`, `Thm 3.1`), several of one kind with commas,
ranges with a hyphen. The command shows or checks it; `-` is none. A test checks that every number in the
papers' texts has a row, that every row is in the paper, and that every command exists.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nearfar.studies.mapped import liu, saez, song, wu_2020, wu_2021

STATES = {
    "tested": "an equation or a law that a test holds, against a reference of its own, a closed form or enumeration",
    "reproduced": "its figures or its shape came out here",
    "in small": "run here on a smaller budget; what came out is on the page of studies",
    "not found here": "run here on a smaller budget, and the paper's effect was not seen",
    "refuted here": "contradicted here, by a proof, a counter-example or a measurement",
    "corrected": "wrong as printed; here as the reason says",
    "not run": "the command is there and has only been run at the size of a test",
    "not feasible here": "takes data or hardware that this project's machine does not have; the command, if any, is what one would run",
    "not there": "nothing here does it yet",
    "no claim": "a step of a proof, a definition that nothing is computed from, or an illustration",
}
KINDS = {
    "Eq.": "Equations",
    "Thm": "Theorems",
    "Cor.": "Theorems",
    "Prop.": "Theorems",
    "Lemma": "Theorems",
    "Def.": "Theorems",
    "Ex.": "Examples",
    "Alg.": "Algorithms",
    "Table": "Tables",
    "Fig.": "Figures",
}
PAPERS = {paper.CITED: paper for paper in (liu, wu_2021, song, wu_2020, saez)}


@dataclass(frozen=True)
class PaperItem:
    """A row: some numbered items of a paper and their status."""

    kind: str
    numbers: tuple[str, ...]
    title: str
    command: str | None
    state: str
    reason: str

    @property
    def items(self) -> str:
        return f"{self.kind} {', '.join(_ranges(self.numbers))}"


def entries(paper: str) -> list[PaperItem]:
    """The rows of a paper, as its text has them."""
    return [_entry(line) for line in PAPERS[paper].ROWS.strip().splitlines() if line.strip()]


def _entry(line: str) -> PaperItem:
    cells = [cell.strip() for cell in line.split(" | ")]
    if len(cells) != 5:
        raise ValueError(f"a row has five cells: {line!r}")
    items, title, command, state, reason = cells
    kind, _, listed = items.partition(" ")
    if kind not in KINDS or state not in STATES:
        raise ValueError(f"{kind!r} or {state!r} is unknown: {line!r}")
    numbers = tuple(number for part in listed.split(", ") for number in _numbers(part))
    return PaperItem(
        kind, numbers, title, None if command == "-" else command, state, "" if reason == "-" else reason
    )


def _numbers(part: str) -> Iterator[str]:
    """`13-15` is 13, 14, 15; `3.1.1` is itself."""
    first, hyphen, last = part.partition("-")
    if hyphen:
        yield from map(str, range(int(first), int(last) + 1))
    else:
        yield part


def _ranges(numbers: tuple[str, ...]) -> list[str]:
    """Numbers that follow one another as `13-15`."""
    runs: list[list[str]] = []
    for number in numbers:
        follows = (
            runs and number.isdecimal() and runs[-1][-1].isdecimal() and int(number) == int(runs[-1][-1]) + 1
        )
        if follows:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def state_counts(paper: str) -> Mapping[str, int]:
    """How many items are in each state."""
    counts = dict.fromkeys(STATES, 0)
    for entry in entries(paper):
        counts[entry.state] += len(entry.numbers)
    return counts


def page() -> str:
    """The text of docs/papers.md."""
    lines = [
        "# The five papers, number by number",
        "",
        "Every numbered equation, theorem, algorithm, table and figure of the papers that nearfar began "
        "with: what shows or checks it, and what came out. "
        "Printed by `nearfar study --papers`; a test holds it against the papers' texts and against the "
        "commands there are. "
        "DATA is CIFAR-10 unless the row says otherwise, [studies.md](studies.md) has the figures and "
        "[references.md](references.md) the papers.",
        "",
        "| state | means |",
        "|---|---|",
        *(f"| {state} | {means} |" for state, means in STATES.items()),
        "",
        "| paper | " + " | ".join(STATES) + " |",
        "|---|" + "---|" * len(STATES),
        *(
            f"| {paper} | " + " | ".join(str(n) for n in state_counts(paper).values()) + " |"
            for paper in PAPERS
        ),
    ]
    for paper, module in PAPERS.items():
        lines += ["", f"## {paper}: {module.ABOUT}"]
        for heading in dict.fromkeys(KINDS.values()):
            rows = [entry for entry in entries(paper) if KINDS[entry.kind] == heading]
            if rows:
                lines += [
                    "",
                    f"### {heading}",
                    "",
                    "| | what | command | state | reason |",
                    "|---|---|---|---|---|",
                ]
                lines += [_line(entry) for entry in rows]
    return "\n".join(lines) + "\n"


def _line(entry: PaperItem) -> str:
    command = f"`{entry.command}`" if entry.command else ""
    return f"| {entry.items} | {entry.title} | {command} | {entry.state} | {entry.reason} |"
