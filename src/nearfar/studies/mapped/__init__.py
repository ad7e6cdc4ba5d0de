"""Every numbered item of the five papers and its state here: the table that the page of papers is printed from.

A paper is a text, a line a row:   items | what it is | evidence | state | reason

Items are as the paper numbers them (`Eq. 13-15`, `Fig. 2`, `Thm 3.1`, `App. C`), several of one kind with commas,
ranges with a hyphen. Evidence is a test (`tests/FILE.py::NAME`), a page with a proof, or a command; `-` is none. Words
in backquotes in the reason of a test's row are the formula, and the test contains them. A test checks that every
number in the papers' texts has a row, that every row is in the paper, and that the evidence exists and runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nearfar.studies.mapped import liu, saez, song, wu_2020, wu_2021

STATES = {
    "proved": "a proof is on the page",
    "tested": "a test holds the formula against a reference of its own, a closed form or enumeration, as printed or as "
    "corrected in the reason; a counter-example is a test too; of a drawing of curves, the quantities alone",
    "reproduced": "every claim of the item came out here, at the scale and with the spread of the reason",
    "not reproduced": "run here at the scale of the reason, and a claim of the item was not seen, or its reverse was; "
    "the reason says which",
    "not possible here": "takes data or hardware that were not at hand, or holds nothing to compute",
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
    "Sec.": "Sections and appendices",
    "App.": "Sections and appendices",
}
PAPERS = {paper.CITED: paper for paper in (liu, wu_2021, song, wu_2020, saez)}


@dataclass(frozen=True)
class PaperItem:
    """A row: some numbered items of a paper and their status."""

    items: str  # as written, such as `Eq. 13-15`
    kind: str
    numbers: tuple[str, ...]
    title: str
    evidence: str | None
    state: str
    reason: str


def entries(paper: str) -> list[PaperItem]:
    """The rows of a paper, as its text has them."""
    return [_entry(line) for line in PAPERS[paper].ROWS.strip().splitlines() if line.strip()]


def _entry(line: str) -> PaperItem:
    cells = [cell.strip() for cell in line.split(" | ")]
    if len(cells) != 5:
        raise ValueError(f"a row has five cells: {line!r}")
    items, title, evidence, state, reason = cells
    kind, _, listed = items.partition(" ")
    if kind not in KINDS or state not in STATES:
        raise ValueError(f"{kind!r} or {state!r} is unknown: {line!r}")
    numbers = tuple(number for part in listed.split(", ") for number in _numbers(part))
    return PaperItem(items, kind, numbers, title, None if evidence == "-" else evidence, state, reason)


def _numbers(part: str) -> Iterator[str]:
    """`13-15` is 13, 14, 15; `3.1.1` is itself."""
    first, hyphen, last = part.partition("-")
    if hyphen:
        yield from map(str, range(int(first), int(last) + 1))
    else:
        yield part


def state_counts(paper: str) -> Mapping[str, int]:
    """How many items are in each state."""
    counts = dict.fromkeys(STATES, 0)
    for entry in entries(paper):
        counts[entry.state] += len(entry.numbers)
    return counts


def page() -> str:
    """The page of all items, rewritten whenever the site is built; its links are relative to docs/."""
    lines = [
        "# The five papers, number by number",
        "",
        "Every numbered item of the five papers that nearfar began with, and the sections that make a claim. "
        "Each row names its evidence and its state. `nearfar study --papers` prints this page. "
        "Tests walk all rows. Cited tests exist and contain the formula. Cited commands have the budget of their figures and "
        "run on a tiny one. Figures are on the page that the row names. "
        "Data are CIFAR-10 unless the row says otherwise. Figures are in "
        "[images](results/images.md), [bounds](results/bounds.md), [distillation](results/distillation.md) and "
        "[more studies](results/studies.md). "
        "The papers are in the [references](references.md).",
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
                    "| | what | evidence | state | reason |",
                    "|---|---|---|---|---|",
                ]
                lines += [_line(entry) for entry in rows]
    return "\n".join(lines) + "\n"


def _line(entry: PaperItem) -> str:
    evidence = f"`{entry.evidence}`" if entry.evidence else ""
    # a bar inside a cell would end it
    cells = (entry.items, entry.title, evidence, entry.state, entry.reason.replace("|", "\\|"))
    return f"| {' | '.join(cells)} |"
