"""Every number of the estimators stands in settings.py, with its kind."""

import ast
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from nearfar.estimate import settings

ROOT = Path(settings.__file__).parent
KINDS = {"numerical", "resource", "judgement", "calibrated"}
HINTS = get_type_hints(settings, include_extras=True)
# a definition of colours and lengths of a picture, not of an estimate
OUTSIDE = {"plot.py", "settings.py"}


def is_number(node: ast.expr | None) -> bool:
    """A literal number, or a tuple or arithmetic of literal numbers."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.Tuple):
        return any(map(is_number, node.elts))
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.UnaryOp) and is_number(node.operand)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_numbers_are_defined_in_settings(path: Path) -> None:
    if path.name in OUTSIDE:
        return
    assigned = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign | ast.AnnAssign)
    ]
    assert [ast.unparse(node) for node in assigned if is_number(node.value)] == []


def test_every_number_has_a_kind() -> None:
    names = [name for name in vars(settings) if name.isupper()]
    assert len(names) > 100
    for name in names:
        assert set(HINTS[name].__metadata__) <= KINDS, name


def test_what_is_calibrated_names_a_command_that_exists() -> None:
    text = Path(settings.__file__).read_text()
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    for name, hint in HINTS.items():
        if name.isupper() and "calibrated" in hint.__metadata__:
            line = next(line for line in text.splitlines() if line.startswith(f"{name}:"))
            command = re.search(r"benchmarks/(\w+\.py)", line)
            assert command, line
            assert (benchmarks / command[1]).exists()


def test_every_number_is_used() -> None:
    text = "\n".join(path.read_text() for path in ROOT.rglob("*.py") if path.name != "settings.py")
    assert [name for name in vars(settings) if name.isupper() and not re.search(rf"\b{name}\b", text)] == []
