"""The tutorials run from beginning to end, with fewer pictures and epochs. Committed outputs hold no error."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

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


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = with_small_budget(cell.source)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(output.output_type != "error" for output in outputs(notebook))
