"""The map of the papers: printed from the table; every row's evidence exists, contains the formula and runs; the papers' texts agree."""

import ast
import contextlib
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import nearfar as nf
from nearfar.cli import main
from nearfar.studies.mapped import PAPERS, PaperItem, entries, page

ROOT = Path(__file__).parents[2]
FILES = {
    "Liu 2022": "000",
    "Wu et al. 2021": "001",
    "Song & Ermon 2020": "002",
    "Wu et al. 2020": "003",
    "Sáez Maldonado 2021": "004",
}
ALL = [(paper, entry) for paper in PAPERS for entry in entries(paper)]
WORDS = {
    "Figure": "Fig.", "Fig.": "Fig.", "Table": "Table", "Algorithm": "Alg.", "Theorem": "Thm", "Corollary": "Cor.",
    "Proposition": "Prop.", "Lemma": "Lemma", "Example": "Ex.",
}  # fmt: skip
# what the papers number: how many, from 1 on, or which; so that the table's structure is known without their texts
ITEMS: dict[str, dict[str, int | str]] = {
    "Liu 2022": {"Eq.": 39, "Fig.": 5},
    "Wu et al. 2021": {"Eq.": 5, "Thm": "3.1 3.2", "Alg.": 1, "Table": 6, "Fig.": 2},
    "Song & Ermon 2020": {
        "Eq.": 37, "Thm": 2, "Cor.": 2, "Lemma": 1, "Prop.": 2, "Ex.": 1, "Alg.": 1, "Table": 4, "Fig.": 4,
    },
    "Wu et al. 2020": {
        "Eq.": 17, "Thm": "3.1 5.1 5.4 A.3", "Cor.": "3.1.1 3.1.2 5.3.1 5.4.1", "Lemma": "A.1 A.2 C.1",
        "Def.": "5.2 5.3", "Ex.": 4, "Fig.": 2,
    },
    "Sáez Maldonado 2021": {
        "Eq.": 25, "Thm": "2.1.1 3.2.1 4.1", "Cor.": 2, "Prop.": 9, "Def.": "5.1", "Ex.": 7, "Alg.": 1, "Table": 19,
        "Fig.": 34,
    },
}  # fmt: skip
SECTIONS = {  # of each paper that the project cites: numbers, then letters of the appendix
    "Liu 2022": "1 1.1 1.2 1.3 2 2.1 2.2 3 3.1 3.2 3.2.1 3.2.2 3.2.3",
    "Wu et al. 2021": "1 2 3 4 5 6 7 A A.1 A.2 B C D E F",
    "Song & Ermon 2020": "1 2 2.1 2.2 2.3 3 3.1 4 5 5.1 5.2 5.3 6 A A.1 A.2 A.3 A.4 B C C.1 C.2 C.3 C.4",
    "Wu et al. 2020": "1 2 3 4 4.1 4.2 4.3 5 5.1 5.2 5.3 6 A B C D",
    "Sáez Maldonado 2021": "1 2 2.1 2.2 2.3 3 3.1 3.2 4 4.1 4.2 5 5.1 5.2 6 6.1 6.2 7 7.1 7.2 8 8.1 8.2 9 9.1 9.2 9.3 9.4 9.5 "
    "10 10.1 10.1.1 10.1.2 10.1.3 10.1.4 10.1.5 10.2 10.2.1 10.2.2 10.2.3 10.2.4 11",
}
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


def by_kind(paper: str) -> dict[str, set[str]]:
    result: dict[str, set[str]] = {}
    for entry in entries(paper):
        result.setdefault(entry.kind, set()).update(entry.numbers)
    return result


# ---------------------------------------------------------------------------------------------------- structure


def test_page_equals_the_output_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--papers"]) == 0
    assert capsys.readouterr().out == page()
    assert main(["study", "--papers", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert sum(len(rows) for rows in printed.values()) == len(ALL)
    assert main(["study", "family", "--papers"]) == 2


@pytest.mark.parametrize("paper", PAPERS)
def test_every_numbered_item_has_one_row(paper: str) -> None:
    items = [(entry.kind, number) for entry in entries(paper) for number in entry.numbers]
    assert len(items) == len(set(items))
    listed = by_kind(paper)
    for kind, expected in ITEMS[paper].items():
        numbers = (
            set(expected.split()) if isinstance(expected, str) else {str(n) for n in range(1, expected + 1)}
        )
        assert listed.pop(kind) == numbers, kind
    assert set(listed) <= {"Sec.", "App."}
    for kind in listed:
        assert listed[kind] <= set(SECTIONS[paper].split())


@pytest.mark.parametrize("paper", PAPERS)
def test_rows_match_the_numbers_in_the_papers(paper: str, papers: dict[str, str]) -> None:
    in_paper, in_table = numbered(papers[FILES[paper]]), by_kind(paper)
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


def test_cited_sections_exist() -> None:
    """Wherever the project says `PAPER, sec. X` or `PAPER, App. X`."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    text = "\n".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in files)
    for paper, sections in SECTIONS.items():
        cited = re.findall(rf"{re.escape(paper)},? \(?(?:sec\.|ch\.|App\.) ([\dA-Z]+(?:\.\d+)*)", text)
        assert cited, paper
        assert set(cited) <= set(sections.split()), paper


@pytest.mark.parametrize("paper", PAPERS)
def test_sections_are_in_the_papers(paper: str, papers: dict[str, str]) -> None:
    text = papers[FILES[paper]]
    for section in SECTIONS[paper].split():
        # Wu et al. 2021's fourth heading is in bold; the thesis numbers chapters on lines of their own
        assert re.search(rf"^#* ?\**{re.escape(section)}\b", text, re.MULTILINE), section


# ----------------------------------------------------------------------------------------------------- evidence


def test_every_state_has_its_kind_of_evidence() -> None:
    kinds = {"tested": "tests/", "proved": "docs/", "reproduced": "nearfar ", "not reproduced": "nearfar "}
    for _, entry in ALL:
        assert entry.title
        assert entry.reason, entry
        if entry.state in kinds:
            assert entry.evidence is not None, entry
            assert entry.evidence.startswith(kinds[entry.state]), entry
        if entry.state in ("reproduced", "not reproduced") and "closed form" not in entry.reason:
            assert re.search(r"± \d|\([+-]?\d[\d.]* to [+-]?\d", entry.reason), f"no spread: {entry}"
            assert re.search(r"\b(one seed|\d+ (seeds|repetitions))\b", entry.reason), f"no seeds: {entry}"
            images = re.search(r"\d images\b", entry.reason)
            assert not images or re.search(r"\d px", entry.reason), f"no size: {entry}"


@cache
def _definitions(path: Path) -> dict[str, tuple[ast.stmt, str]]:
    """What a test file defines at its top, by name, with its source."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    result: dict[str, tuple[ast.stmt, str]] = {}
    for node in ast.parse(text).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        source = "\n".join(lines[first - 1 : node.end_lineno])
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        result |= dict.fromkeys(names, (node, source))
    return result


def _source_of(path: Path, name: str) -> str:
    """A test with all that it uses of its file."""
    definitions, wanted, sources = _definitions(path), [name], {}
    while wanted:
        current = wanted.pop()
        if current in sources or current not in definitions:
            continue
        node, sources[current] = definitions[current]
        wanted += [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return " ".join("\n".join(sources.values()).split())


@pytest.mark.parametrize(
    "entry", [entry for _, entry in ALL if entry.state == "tested"], ids=lambda entry: entry.items
)
def test_cited_test_exists_and_contains_the_formula(entry: PaperItem) -> None:
    file, _, name = (entry.evidence or "").partition("::")
    assert name in _definitions(ROOT / file), entry.evidence
    formulas = [word for word in re.findall(r"`([^`]+)`", entry.reason) if not word.startswith("nearfar ")]
    assert formulas, "the reason names the formula in backquotes"
    assert formulas[0] in _source_of(ROOT / file, name)


def test_everything_named_in_a_reason_exists() -> None:
    for _, entry in ALL:
        for file in re.findall(r"(?:tests|docs)/[\w/]+\.(?:py|md)", f"{entry.evidence} {entry.reason}"):
            assert (ROOT / file).is_file(), file
        if entry.state == "proved":
            heading = re.search(r'"([^"]+)"', entry.reason)
            assert heading is None or heading[1] in (ROOT / str(entry.evidence)).read_text(encoding="utf-8")


# ----------------------------------------------------------------------------------------------------- commands


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 pictures of four classes, which differ in brightness."""
    rng, labels = np.random.default_rng(0), np.arange(160) % 4
    images = (rng.integers(0, 60, (160, 8, 8, 3)) + 45 * labels[:, None, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("papers") / "pictures.npz"
    np.savez(path, images=images, labels=labels, classes=np.array(list("abcd")))
    return path


@pytest.fixture(scope="module")
def run(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers") / "run"
    settings = {"epochs": 1, "batch_size": 32, "image_size": 8, "backbone": "resnet8-w8", "probe_every": 0}
    nf.pretrain("simclr", str(pictures), folder, config=settings, quiet=True)
    return folder


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where all commands store their cells: two commands of one study share those that are equal. A linear probe, which is
    half of the work of so small a cell, stops after a few iterations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("nearfar.evaluate.linear"), "_ITERATIONS", 5)
        yield tmp_path_factory.mktemp("studies")


SMALL = "images=64 epochs=1 size=8 batch=32 seeds=1 jobs=1 backbone=resnet8-w8"
BUDGETS = {
    "bias-variance": "anchors=4 draws=2",
    "binary": "",
    "cnce-toy": "repeats=2 points=130 epochs=1 steps=2",
    "distillation": f"{SMALL} teacher_epochs=1",
    "family-long": f"{SMALL} sweep_images=32 sweep_epochs=1 sample=4 pool=8 transfer=",
    "gaussians": "steps=2 batch_size=4",
    "nce-density": "repeats=1 points=60",
    "spirals": "repeats=1 points=128 negatives=8 steps=2 held=600 noise=0.4 jobs=1",
    "thesis-byol": f"{SMALL} batch=128 images=128 deep=resnet8-w8",
    "thesis-simclr": f"{SMALL} batch=128 images=128 deep=resnet8-w8",
}
COMMANDS = sorted(
    {entry.evidence for _, entry in ALL if entry.evidence and entry.evidence.startswith("nearfar")}
)


@pytest.mark.parametrize("command", COMMANDS)
def test_cited_command_runs(
    command: str,
    pictures: Path,
    run: Path,
    study_folder: Path,
    tmp_path: Path,
    write_recordings: Callable[[Path, int, int], str],
) -> None:
    _, name, *words = shlex.split(command)
    if name == "study":
        study, budget = words[0], BUDGETS.get(words[0], SMALL).split()
        if SMALL.split()[0] in budget:
            budget += [f"data={pictures}", f"test={pictures}"]
        if study == "distillation":  # the last of the pairs and of the alphas
            options = dict(word.split("=", 1) for word in ["pairs=resnet8x2>resnet8", *words[1:]])
            budget += [f"{key}={value.split(',')[-1]}" for key, value in options.items()]
        if study == "speech":
            files = {"train": 72, "test": 20}
            budget = [
                f"{key}={write_recordings(tmp_path / f'{key}.parquet', rows, 0)}"
                for key, rows in files.items()
            ]
            budget += ["epochs=1", "seeds=1"]
        words = [*words, *budget, "--out", str(study_folder / study)]
    elif name == "detect":
        words = [*(str(run) if word == "RUN" else word for word in words), "--help"]
    else:
        words = [str(run) if word == "RUN" else word for word in words]
        words += ["--out", str(tmp_path / "page.html")] if name == "report" else []
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.redirect_stderr(io.StringIO()) as told,
    ):
        try:
            code = main([name, *words])
        except SystemExit as ended:  # of --help
            code = int(ended.code or 0)
    assert code == 0, told.getvalue()[-500:]
    assert printed.getvalue()
