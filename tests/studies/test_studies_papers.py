"""docs/papers.md: printed from the table, nothing numbered in the papers without a row, no row and no command for what is not there."""

import json
import re
import shlex
from pathlib import Path

import pytest

import nearfar as nf
from nearfar.cli import COMMANDS, main
from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import read_words, resolve
from nearfar.studies.mapped import PAPERS, STATES, PaperItem, entries, page
from nearfar.studies.run import read_options, studies

ROOT = Path(__file__).parents[2]
FILES = {
    "Liu 2022": "000",
    "Wu et al. 2021": "001",
    "Song & Ermon 2020": "002",
    "Wu et al. 2020": "003",
    "Sáez Maldonado 2021": "004",
}
ALL_STUDIES = studies()
ALL = [(paper, entry) for paper in PAPERS for entry in entries(paper)]
WORDS = {
    "Figure": "Fig.", "Fig.": "Fig.", "Table": "Table", "Algorithm": "Alg.", "Theorem": "Thm", "Corollary": "Cor.",
    "Proposition": "Prop.", "Lemma": "Lemma", "Example": "Ex.",
}  # fmt: skip
# an equation's number ends its line, or the formula that the line is, or is its tag
EQUATION = re.compile(r"\\tag\{(\d+)\}|\((\d{1,2})\)\s*\$\$\s*$|^\s*\((\d{1,2})\)?\s*$", re.MULTILINE)
NUMBERED = re.compile(rf"({'|'.join(re.escape(word) for word in WORDS)}) ([A-Z]\.\d+|\d+(?:\.\d+)*)")


def numbered(text: str) -> dict[str, set[str]]:
    """Every number of each kind that a paper's own text has, references to other works left out."""
    body = re.split(r"^#* ?(?:References|REFERENCES|BIBLIOGRAPHY)\s*$", text, maxsplit=1, flags=re.MULTILINE)[
        0
    ] + _appendix(text)
    result: dict[str, set[str]] = {"Eq.": {a or b or c for a, b, c in EQUATION.findall(body)}}
    for word, number in NUMBERED.findall(body):
        result.setdefault(WORDS[word], set()).add(number.rstrip("."))
    return result


def _appendix(text: str) -> str:
    """What follows the references."""
    parts = re.split(r"^(?:#+ )?(?:A |APPENDIX|A\t|Appendix)", text, flags=re.MULTILINE)
    return "\n".join(parts[1:])


def test_page_equals_the_output_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert (ROOT / "docs" / "papers.md").read_text(encoding="utf-8") == page()
    assert main(["study", "--papers"]) == 0
    assert capsys.readouterr().out == page()
    assert main(["study", "--papers", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert sum(len(rows) for rows in printed.values()) == len(ALL)
    assert main(["study", "family", "--papers"]) == 2


@pytest.mark.parametrize("paper", PAPERS)
def test_every_item_has_one_row(paper: str) -> None:
    items = [(entry.kind, number) for entry in entries(paper) for number in entry.numbers]
    assert len(items) == len(set(items))
    for kind in ("Eq.", "Table", "Fig."):  # and none is skipped within a kind
        numbers = sorted(int(number) for k, number in items if k == kind)
        assert numbers == list(range(1, len(numbers) + 1)), kind


@pytest.mark.parametrize("paper", PAPERS)
def test_rows_match_the_numbers_in_the_papers(paper: str, papers: dict[str, str]) -> None:
    in_paper = numbered(papers[FILES[paper]])
    in_table: dict[str, set[str]] = {}
    for entry in entries(paper):
        in_table.setdefault(entry.kind, set()).update(entry.numbers)
    for kind in {*WORDS.values(), "Eq."}:
        assert in_paper.get(kind, set()) == in_table.get(kind, set()), kind


def test_search_finds_numbers() -> None:
    text = "$$a = b \\quad (3)$$\n$$c \\tag{4}$$\n$$d$$\n (5)\nsee Fig. 2 and Table 12. By Lemma A.1, Theorem 3.2.1 (2)\n"
    assert numbered(text) == {
        "Eq.": {"3", "4", "5"},
        "Fig.": {"2"},
        "Table": {"12"},
        "Lemma": {"A.1"},
        "Thm": {"3.2.1"},
    }


def test_every_row_has_a_reason() -> None:
    for _, entry in ALL:
        assert entry.title
        if entry.state in (
            "refuted here",
            "corrected",
            "not feasible here",
            "not found here",
            "not there",
            "not run",
        ):
            assert entry.reason, entry
        if entry.state in ("tested", "reproduced", "in small", "not found here", "not run"):
            assert entry.command, entry
    assert {entry.state for _, entry in ALL} <= {*STATES}


@pytest.mark.parametrize("entry", [entry for _, entry in ALL if entry.command], ids=lambda entry: entry.items)
def test_every_command_exists(entry: PaperItem) -> None:
    assert entry.command is not None
    tool, *words = shlex.split(entry.command)
    if tool == "pytest":
        assert (ROOT / words[0]).is_file()
        return
    assert tool == "nearfar"
    command, *rest = words
    assert command in COMMANDS
    settings = [word for word in rest if "=" in word]
    if command == "study":
        study = ALL_STUDIES[rest[0]]
        read_options(study, settings)
    elif command in ("pretrain", "recipes"):
        assert rest[0] in RECIPES
        resolve(rest[0], "DATA", read_words(settings))


def test_every_name_in_a_reason_exists() -> None:
    for _, entry in ALL:
        for name in re.findall(r"`nf\.([\w.]+)`", entry.reason):
            result = nf
            for part in name.split("."):
                result = getattr(result, part)
        for name in re.findall(r"`nearfar study ([\w-]+)`", entry.reason):
            assert name in ALL_STUDIES, name
        for file in re.findall(r"(?:tests|docs)/[\w/]+\.(?:py|md)", entry.reason):
            assert (ROOT / file).is_file(), file
