"""The tutorials run from beginning to end, with fewer pictures and epochs. Committed outputs hold no error."""

import json
import os
import re
from functools import partial
from pathlib import Path

import nbformat
import pytest

from tests.forked import run_command

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.ipynb"))
# assignments and numbers that decide how long a tutorial takes
SMALLER = {
    r"^epochs = \d+$": "epochs = 1",
    r"np\.arange\(4000\)": "np.arange(900)",
    r"range\(201\)": "range(11)",
}


def with_small_budget(code: str) -> str:
    for pattern, replacement in SMALLER.items():
        code = re.sub(pattern, replacement, code, flags=re.MULTILINE)
    return code


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_five_tutorials_exist() -> None:
    assert len(TUTORIALS) == 5


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_committed_outputs_are_complete(path: Path) -> None:
    notebook = nbformat.read(path, 4)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    assert outputs(notebook)
    assert all(output.output_type != "error" for output in outputs(notebook))


RUN_CELLS = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
for cell in json.loads(sys.argv[1]):
    shell.run_cell(cell).raise_error()
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(path: Path, tmp_path: Path) -> None:
    """Its cells in their order, in IPython."""
    cells = [
        with_small_budget(cell.source) for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"
    ]
    process = run_command(json.dumps(cells), code=RUN_CELLS, setup=partial(os.chdir, tmp_path))
    assert process.returncode == 0, process.stderr
