"""Everything numbered in the five papers, and what became of it here: the table that docs/papers.md is printed from.

A paper is a text, a line a row:   items | what it is | command | state | reason

Items are as the paper numbers them (`Eq. 13-15`, `Fig. 2`, `Thm 3.1`), several of one kind with commas, ranges with a hyphen. The
command shows it or checks it; `-` is none. A test holds that every number in the papers' texts has a row, that no row names what is not there, and that every command exists.
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
class Entry:
    """A row: some numbered things of a paper and what became of them."""

    kind: str
    numbers: tuple[str, ...]
    what: str
    command: str | None
    state: str
    reason: str

    @property
    def items(self) -> str:
        return f"{self.kind} {', '.join(_ranges(self.numbers))}"


def entries(paper: str) -> list[Entry]:
    """The rows of a paper, as its text has them."""
    return [_entry(line) for line in PAPERS[paper].ROWS.strip().splitlines() if line.strip()]


def _entry(line: str) -> Entry:
    cells = [cell.strip() for cell in line.split(" | ")]
    if len(cells) != 5:
        raise ValueError(f"a row has five cells: {line!r}")
    items, what, command, state, reason = cells
    kind, _, listed = items.partition(" ")
    if kind not in KINDS or state not in STATES:
        raise ValueError(f"{kind!r} or {state!r} is unknown: {line!r}")
    numbers = tuple(number for part in listed.split(", ") for number in _counted(part))
    return Entry(
        kind, numbers, what, None if command == "-" else command, state, "" if reason == "-" else reason
    )


def _counted(part: str) -> Iterator[str]:
    """`13-15` is 13, 14, 15; `3.1.1` is itself."""
    first, hyphen, last = part.partition("-")
    if hyphen:
        yield from map(str, range(int(first), int(last) + 1))
    else:
        yield part


def _ranges(numbers: tuple[str, ...]) -> list[str]:
    """Numbers that follow one another as `13-15`."""
    found: list[list[str]] = []
    for number in numbers:
        follows = (
            found
            and number.isdecimal()
            and found[-1][-1].isdecimal()
            and int(number) == int(found[-1][-1]) + 1
        )
        if follows:
            found[-1].append(number)
        else:
            found.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found]


def counted(paper: str) -> Mapping[str, int]:
    """How many numbered things are in each state."""
    found = dict.fromkeys(STATES, 0)
    for entry in entries(paper):
        found[entry.state] += len(entry.numbers)
    return found


def page() -> str:
    """docs/papers.md, whole."""
    lines = [
        "# The five papers, number by number",
        "",
        "Every numbered equation, theorem, algorithm, table and figure of the papers that nearfar began with: what shows or checks it, and what came out. "
        "Printed by `nearfar study --papers`; a test holds it against the papers' texts and against the commands there are. "
        "DATA is CIFAR-10 unless the row says otherwise, [studies.md](studies.md) has the figures and [references.md](references.md) the papers.",
        "",
        "| state | means |",
        "|---|---|",
        *(f"| {state} | {means} |" for state, means in STATES.items()),
        "",
        "| paper | " + " | ".join(STATES) + " |",
        "|---|" + "---|" * len(STATES),
        *(f"| {paper} | " + " | ".join(str(n) for n in counted(paper).values()) + " |" for paper in PAPERS),
    ]
    for paper, held in PAPERS.items():
        lines += ["", f"## {paper}: {held.ABOUT}"]
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


def _line(entry: Entry) -> str:
    command = f"`{entry.command}`" if entry.command else ""
    return f"| {entry.items} | {entry.what} | {command} | {entry.state} | {entry.reason} |"
