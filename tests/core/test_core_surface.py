"""The public names: one list, lazy imports, and a core that needs few packages."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import nearfar as nf
from nearfar.system.extras import EXTRAS
from nearfar.system.machine import CORE, DISTRIBUTIONS
from tests.helpers import run_python

SOURCE = Path(nf.__file__)
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return run_python("-c", code)


def test_every_public_name_is_listed() -> None:
    assert set(nf.__all__) <= set(dir(nf))


def test_dir_lists_public_names_without_importing_torch() -> None:
    process = python("import nearfar, sys; print('pretrain' in dir(nearfar), 'torch' in sys.modules)")
    assert process.stdout.split() == ["True", "False"], process.stderr


def test_type_checkers_and_python_see_the_same_names() -> None:
    tree = ast.parse(SOURCE.read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        (alias.name, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported - {("losses", "nearfar")} == set(nf._MODULE_OF.items())


def test_one_version() -> None:
    assert PROJECT["dynamic"] == ["version"]
    process = run_python("-m", "nearfar", "--version", check=True)
    assert process.stdout.strip() == f"nearfar {nf.__version__}"


def distributions(requirements: list[str]) -> set[str]:
    return {r.partition(">")[0].partition("=")[0].strip().lower() for r in requirements if "[" not in r}


def test_extras_in_messages_exist() -> None:
    """Following the message about a missing package installs it."""
    extras = PROJECT["optional-dependencies"]
    for module, extra in EXTRAS.items():
        assert DISTRIBUTIONS.get(module, module) in distributions(extras[extra]), module
    assert distributions(PROJECT["dependencies"]) == {DISTRIBUTIONS.get(module, module) for module in CORE}


def imported_packages() -> set[str]:
    """The top-level packages that any module of nearfar imports: by a statement, or by `need`."""
    names = set()
    for path in Path(nf.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module or "")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "need":
                words = (word.value for word in node.args if isinstance(word, ast.Constant))
                names |= {word for word in words if isinstance(word, str)}
    return {name.partition(".")[0] for name in names}


def test_every_imported_package_is_declared() -> None:
    """fsspec was imported and came with other packages only by chance."""
    declared = distributions(
        [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]
    )
    needed = imported_packages() - sys.stdlib_module_names - {"nearfar"}
    assert {"torch", "fsspec", "PIL", "timm"} <= needed
    undeclared = {name for name in needed if DISTRIBUTIONS.get(name, name).lower() not in declared}
    assert undeclared == set()


WITHOUT = f"""
import sys
for name in {sorted({*EXTRAS, "lightly"})!r}:
    sys.modules[name] = None
"""

CORE_ALONE = """
import numpy as np, torch, nearfar as nf
from nearfar.losses import NTXentLoss, SupConLoss
a, k = torch.randn(2, 8, 4)
assert float(nf.InfoNCE()(nf.streamed_scores(a, k, temperature=0.1))) <= 2.08
assert float(NTXentLoss(0.5)(a, k)) > 0 and float(SupConLoss()(a, torch.arange(8) // 2)) > 0
for kind in (nf.NWJ, nf.DonskerVaradhan, nf.SMILE, nf.JensenShannon, nf.Triplet, lambda: nf.MultiLabelCPC(0.5)):
    assert torch.isfinite(kind()(nf.dense_scores(a, k)))
encoders = nf.Momentum(torch.nn.Linear(4, 3), 0.9)
method = nf.Method(encoders, nf.Cosine(0.2), nf.Queue(16, dim=3), nf.Ring(0.1, 0.9), nf.InfoNCE())
outcome = method(nf.Batch((a, k), torch.arange(8)))
outcome.loss.backward()
method.advance(outcome)
assert abs(nf.info.mutual_information(np.full((2, 2), 0.25))) < 1e-9
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 1))
mi = nf.estimate_mi(x, x + rng.normal(size=(300, 1)), folds=2)
assert mi.interval[0] < 0.3466 < mi.interval[1] + 0.2, mi
print("done")
"""


def test_losses_bounds_methods_and_information_need_only_the_core() -> None:
    process = python(WITHOUT + CORE_ALONE)
    assert process.stdout.strip() == "done", process.stderr


# expression, evaluated without the packages of an extra: the extra that the message must name
NEEDS = {
    "nf.pretrain": "train",
    "nf.Run": "train",
    "nf.Views": "train",
    "nf.open_data": "train",
    "nf.backbone('resnet18', channels=3, image_size=32)": "train",
    "nf.write_report": "report",
    "nf.open_data('glyphs')": "report",
}


@pytest.mark.parametrize("extra", ["train", "report"])
def test_a_missing_extra_is_one_sentence(extra: str) -> None:
    gone = [module for module, name in EXTRAS.items() if name == extra]
    expressions = [expression for expression, name in NEEDS.items() if name == extra]
    code = f"""
import sys
for name in {gone!r}:
    sys.modules[name] = None
import nearfar as nf
for expression in {expressions!r}:
    try:
        eval(expression)
    except nf.UserError as problem:
        print(problem)
"""
    process = python(code)
    messages = process.stdout.splitlines()
    assert len(messages) == len(expressions), process.stderr
    assert all(f"is not installed; pip install 'nearfar[{extra}]'" in message for message in messages)


HEAVY = ("torch", "numpy", "scipy", "sklearn", "yaml", *EXTRAS)
LIGHT = [["--help"], ["--version"], [], ["doctor"], ["doctor", "--json"]]
LIGHT += [
    [command, "--help"]
    for command in ("demo", "pretrain", "evaluate", "detect", "embed", "report", "export", "mi", "study")
]
LIGHT += [
    [command, "--help"]
    for command in (
        "recipes",
        "doctor",
        "train",
        "pack",
        "bench",
        "distill",
        "sweep",
        "semi",
        "search",
        "index",
        "curate",
    )
]


def test_help_and_doctor_import_nothing_heavy_and_survive_a_broken_install() -> None:
    """In one process for all of them; what is heavy is not there to be imported."""
    code = f"""
import contextlib, io, sys
for name in {HEAVY!r}:
    sys.modules[name] = None
from nearfar.cli import COMMANDS, main
assert {{words[0] for words in {LIGHT!r} if words[1:] == ["--help"]}} == set(COMMANDS), COMMANDS
for words in {LIGHT!r}:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code
    assert code == 0, (words, code)
    assert shown.getvalue().strip(), words
print("done")
"""
    process = python(code)
    assert process.stdout.strip() == "done", process.stderr


def test_a_command_without_its_extra_exits_with_one_sentence(tmp_path: Path) -> None:
    hook = "import sys\nsys.modules['numba'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "nearfar", "pretrain", "simclr", "digits", "--out", str(tmp_path / "run")]
    process = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert process.returncode == 2
    assert process.stderr.strip() == "nearfar: numba is not installed; pip install 'nearfar[train]'"
