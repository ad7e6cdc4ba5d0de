"""The answer does not depend on which extras are installed."""

import ast
from pathlib import Path

import pytest

import nearfar as nf
from nearfar.system.extras import EXTRAS
from tests.helpers import run_python

RATIOS = sorted(Path(nf.__file__).parent.glob("estimate/ratios/*.py"))
HIDE_EXTRAS = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRAS)!r}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Hidden())
"""
PRODUCT = """
import numpy as np, nearfar as nf
rng = np.random.default_rng(0)
sign, size = rng.choice([-1.0, 1.0], 300), rng.normal(size=300)
product = sign * size + 0.3 * rng.normal(size=300)
"""
ESTIMATE = "nf.estimate_mi(np.column_stack([sign, size]), product, folds=2, baselines=False)"


def test_estimate_is_the_same_without_extras() -> None:
    """y = sign * size + noise is what a forest sees and smooth ratios do not."""
    code = f"{HIDE_EXTRAS}{PRODUCT}estimate = {ESTIMATE}\nprint(estimate.nats.hex(), estimate.critic)"
    process = run_python("-c", code)
    assert process.returncode == 0, process.stderr
    names: dict[str, object] = {}
    exec(PRODUCT, names)
    rows_here = eval(ESTIMATE, names)
    assert process.stdout.strip() == f"{rows_here.nats.hex()} {rows_here.critic}"
    assert "forest" in rows_here.critic
    assert rows_here.nats > 0.3


@pytest.mark.parametrize("file", RATIOS, ids=lambda file: file.name)
def test_no_ratio_imports_an_optional_package(file: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
    assert not imported & {*EXTRAS, "importlib"}
