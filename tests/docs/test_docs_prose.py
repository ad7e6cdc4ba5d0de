"""README and docs: sentences are short, commands parse, code runs or says why it is not run."""

import ast
import json
import re
import shlex
import statistics
from pathlib import Path

import pytest

from nearfar.cli import _parsed
from nearfar.config.methods_page import CompleteRecipe, methods_page
from nearfar.config.recipes import RECIPES
from nearfar.studies.mapped import page as papers_page
from tests.docs.prose import percentile, sentence_lengths

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.parent.name != "generated"
]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
names = [str(page.relative_to(ROOT)) for page in PAGES]


def text_of(page: Path) -> str:
    """A page, or the text cells of a notebook."""
    if page.suffix != ".ipynb":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown") + "\n"


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """(language, code, the line above) of every fenced block."""
    fenced = re.compile(r"^(.*)\n+```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        (language, code, previous_line) for previous_line, language, code in fenced.findall(text_of(page))
    ]


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_sentences_are_short(page: Path) -> None:
    lengths = sentence_lengths(page.read_text())
    if lengths:
        assert statistics.mean(lengths) <= 18
        assert percentile(lengths, 0.9) <= 30
    if page.name == "README.md":
        assert max(lengths) <= 25


def test_sentences_of_generated_pages_are_short() -> None:
    for text in (methods_page({name: CompleteRecipe.of(name) for name in RECIPES}), papers_page()):
        lengths = sentence_lengths(text)
        assert statistics.mean(lengths) <= 18
        assert percentile(lengths, 0.9) <= 30


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    """Every `nearfar` command of a shell block is accepted by the command line's own parser."""
    for language, code, _ in blocks(page):
        if language not in ("", "sh", "bash", "console"):
            continue
        assert "\\\\" not in code, code  # a shell would take the second backslash as a word
        for line in code.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ")
            if not re.match(r"(torchrun .* -m )?nearfar ", command) or re.search(r"\[|…|\.\.\.", command):
                continue
            words = shlex.split(command, comments=True)
            _parsed(words[words.index("nearfar") + 1 :])


REPOSITORY = [
    *PAGES,
    *(ROOT / name for name in ("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
]


@pytest.mark.parametrize("page", [*REPOSITORY, ROOT / "examples" / "README.md"], ids=lambda page: page.name)
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    """Whoever reads a page without the site; a heading that a link names exists too."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for path, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, anchor


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_benchmarks_named_in_a_page_exist(page: Path) -> None:
    for file in re.findall(r"\b(?:benchmarks|examples)/[\w/]+\.py\b", page.read_text()):
        assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_python_blocks_parse_and_use_names_that_exist(page: Path) -> None:
    """README's blocks run (test_docs_site.py). Those of guides need data of the reader; each public name in
    them exists."""
    import nearfar as nf

    for language, code, _ in blocks(page):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nf":
                assert node.attr in nf.__all__, f"nf.{node.attr}"


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_exact_resuming_is_promised_for_cpus_on_every_page(page: Path) -> None:
    """Tables of what was measured, on CPUs, and `pack`, which trains nothing, are apart."""
    if page.parent.name == "results":
        return
    for line in page.read_text().splitlines():
        resumes = re.search(r"resum|kill|dies|continues", line, re.IGNORECASE)
        exact = re.search(
            r"bit for bit|bit-equal|same bits|resuming is exact|resumes exactly|exact resum",
            line,
            re.IGNORECASE,
        )
        if resumes and exact and "`pack`" not in line and "| `compositions`" not in line:
            assert "CPU" in line
