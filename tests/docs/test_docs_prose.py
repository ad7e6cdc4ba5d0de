"""README and docs: sentences are short, commands parse, code runs or says why it is not run."""

import ast
import re
import shlex
import statistics
from pathlib import Path

import pytest

from nearfar.cli import _parsed
from nearfar.config.methods_page import CompleteRecipe, methods_page
from nearfar.config.recipes import RECIPES
from nearfar.studies.mapped import page as papers_page
from tests.docs.pages import NOTEBOOKS, PAGES, PROJECT, ROOT, SHELL, blocks, text_of
from tests.docs.prose import percentile, sentence_lengths

WRITTEN = [*PAGES, *PROJECT, *NOTEBOOKS]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_sentences_are_short(page: Path) -> None:
    lengths = sentence_lengths(text_of(page))
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


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_commands_parse(page: Path) -> None:
    """Every `nearfar` command of a shell block is accepted by the command line's own parser."""
    for block in blocks(page):
        if block.language not in SHELL:
            continue
        assert "\\\\" not in block.code, block.code  # a shell would take the second backslash as a word
        for command in block.commands:
            assert not re.search(r"\[-|…|\.\.\.", command), f"mark a synopsis as text: {command}"
            if re.match(r"(\S+=\S+ |srun )?(torchrun .* -m )?nearfar ", command):
                words = shlex.split(command, comments=True)
                _parsed(words[words.index("nearfar") + 1 :])


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_blocks_have_a_language_that_is_checked(page: Path) -> None:
    """Shell and Python blocks are run or say why not (test_docs_commands.py, test_docs_code.py)."""
    for block in blocks(page):
        assert block.language in (*SHELL, "python", "text") or block.language.startswith("{"), block.language


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    """Whoever reads a page without the site; a heading that a link names exists too."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    for path, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, anchor


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_benchmarks_named_in_a_page_exist(page: Path) -> None:
    for file in re.findall(r"\b(?:benchmarks|examples)/[\w/]+\.py\b", page.read_text()):
        assert (ROOT / file).is_file(), file


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_parse_and_use_names_that_exist(page: Path) -> None:
    """README's blocks run (test_docs_site.py). Those of guides need data of the reader; each public name in
    them exists."""
    import nearfar as nf

    for block in blocks(page):
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nf":
                assert node.attr in nf.__all__, f"nf.{node.attr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
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
