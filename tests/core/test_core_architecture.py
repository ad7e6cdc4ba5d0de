"""Packages import their own layer and lower ones, rooms do not import one another, public names stay."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import nearfar as nf

SOURCE = Path(nf.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = ("encoders", "critics", "negatives", "selections", "bounds", "priors")
BASE = {
    "nearfar.errors",
    "nearfar.parts.joined",
    "nearfar.system.extras",
    *(
        f"nearfar.core.{name}"
        for name in (
            "abstract",
            "learnt",
            "networks",
            "types",
            "schedules",
            "scores",
            "kernels",
            "randomness",
        )
    ),
}
# a package may import its own layer and those before it
LAYERS = [
    ("errors", "system"),
    ("core",),
    ("parts", "losses", "distributed", "testing"),
    ("modalities", "config", "estimate"),
    ("data", "run", "evaluate", "train"),
    ("report", "sweeps", "studies", "simclrv2", "detect", "exported", "search", "sklearn", "bench"),
    ("cli", "__main__", "__init__"),
]


def imports(path: Path) -> set[str]:
    result = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nearfar"):
            names = (
                [node.module]
                if node.module != "nearfar"
                else [f"nearfar.{a.name}" for a in node.names if a.name != "__version__"]
            )
            result |= set(names)
        elif isinstance(node, ast.Import):
            result |= {a.name for a in node.names if a.name.startswith("nearfar.")}
    return result


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_the_base_and_themselves(room: str) -> None:
    files = [*(SOURCE / "parts" / room).rglob("*.py")]
    assert files
    for path in files:
        foreign = {m for m in imports(path) if m not in BASE and not m.startswith(f"nearfar.parts.{room}")}
        assert not foreign, f"{path.relative_to(SOURCE)} imports {foreign}"


def test_parts_are_abstract_or_final() -> None:
    """All classes between a concrete part and the abstract class of its kind are abstract."""
    from nearfar.config.sections import PARTS_BY_CHOICE as KINDS
    from nearfar.core.abstract import AbstractPart

    for parts in KINDS.values():
        for part in parts.values():
            if isinstance(part, type):
                bases = [base for base in part.__mro__[1:] if issubclass(base, AbstractPart)]
                assert bases, part
                assert all(inspect.isabstract(base) or base is AbstractPart for base in bases), part


def test_packages_import_their_layer_and_lower_ones() -> None:
    level = {name: depth for depth, names in enumerate(LAYERS) for name in names}
    assert len(FILES) > 300
    for path in FILES:
        origin = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for module in imports(path):
            present = module.split(".")[1]
            assert level[present] <= level[origin], f"{path.relative_to(SOURCE)} imports {module}"


# May name kinds of data and parts. Rooms and modalities define them and recipes choose them. Estimators,
# held-out estimates, drop-in losses, studies and the demo use some as tools. `__init__` exports them.
# A schedule is called cosine too.
MAY_NAME = {"parts", "core", "modalities", "config", "estimate", "losses", "studies", "__init__"}
MAY_NAME_FILES = {"evaluate/held_out.py", "cli/demo.py"}


def concrete() -> tuple[set[str], set[str]]:
    """(class names of parts and modalities, the names by which settings know them)."""
    from nearfar.config.sections import PARTS_BY_CHOICE as PARTS
    from nearfar.modalities import MODALITIES
    from nearfar.modalities.image import views

    parts = [part for room in PARTS.values() for part in room.values()]
    kinds = [*MODALITIES.values()]
    classes = {getattr(part, "__name__", "") for part in parts}
    classes |= {kind.name.upper() for kind in kinds} | {"Images", "Recordings", "Texts", "Vectors", "Pixels"}
    classes |= {name for name in views.__all__ if name[0].isupper()}
    classes |= {"Mask", "WholeSound", "WholeText", "Window"}
    names = {name for room in PARTS.values() for name in room} | {kind.name for kind in kinds}
    names |= {name for kind in kinds for name in (*kind.views.names, *kind.networks.names)}
    # "none" also means "not given", "cosine" a schedule or a vote, "momentum" an optimiser, "mlp" a protocol
    return classes - {""}, names - {"none", "cosine", "momentum", "mlp"}


TYPE_MAKERS = {"TypeVar", "NewType", "TypedDict", "NamedTuple"}


def type_names(source: str) -> list[str]:
    """The classes, type variables and aliases of types that a module defines at its top."""
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            value = node.value
            makes_type = isinstance(value, ast.Call) and ast.unparse(value.func) in TYPE_MAKERS
            is_alias = isinstance(value, ast.Subscript | ast.BinOp | ast.Name | ast.Attribute)
            is_capitalised = target.id.lstrip("_")[:1].isupper() and not target.id.isupper()
            if is_capitalised and (makes_type or is_alias):
                names.append(target.id)
    return names


def test_a_type_name_has_one_meaning() -> None:
    """A class, an alias or a type variable is defined once in the project and imported elsewhere."""
    files: dict[str, list[str]] = {}
    for path in FILES:
        for name in type_names(path.read_text()):
            files.setdefault(name, []).append(str(path.relative_to(SOURCE)))
    assert {name: places for name, places in files.items() if len(places) > 1} == {}


def test_type_names_are_detected() -> None:
    lines = [
        "class Row: pass",
        "Rows = list[Row]",
        'Side = TypeVar("Side")',
        "Choice = Row | str",
        "Alias = Row",
        "SIZES = list[int]",
        "total = count[0]",
        "Limits = Row()",
    ]
    assert type_names("\n".join(lines)) == ["Row", "Rows", "Side", "Choice", "Alias"]


def uses_of_concrete_names(path: Path, classes: set[str], names: set[str]) -> list[str]:
    """Where a file uses a concrete part or modality, or compares with, or looks up by, the name of one."""
    tree = ast.parse(path.read_text())
    homes = [["nearfar"], ["nearfar", "parts"], ["nearfar", "modalities"]]
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if getattr(node, field, None) is not None
        for inner in ast.walk(getattr(node, field))
    }
    result = []
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt)):
        strings: list[Any] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[:2] in homes:
            result += [
                f"{node.lineno}: imports {alias.name}" for alias in node.names if alias.name in classes
            ]
        elif isinstance(node, ast.Attribute) and node.attr in classes and id(node) not in annotations:
            result.append(f"{node.lineno}: .{node.attr}")
        elif isinstance(node, ast.Compare):
            strings = [inner for side in (node.left, *node.comparators) for inner in ast.walk(side)]
        elif isinstance(node, ast.Dict):
            strings = list(node.keys)
        elif isinstance(node, ast.Subscript) and id(node) not in annotations:
            strings = [node.slice]
        result += [
            f"{node.lineno}: {inner.value!r}"
            for inner in strings
            if isinstance(inner, ast.Constant) and inner.value in names
        ]
    return result


def test_only_rooms_modalities_and_recipes_name_concrete_parts_and_modalities() -> None:
    """Everything else calls a method of the part or of the modality."""
    classes, names = concrete()
    for path in FILES:
        file = path.relative_to(SOURCE)
        if file.parts[0].removesuffix(".py") not in MAY_NAME and file.as_posix() not in MAY_NAME_FILES:
            assert uses_of_concrete_names(path, classes, names) == [], path.relative_to(SOURCE)


def test_uses_of_concrete_names_are_detected(tmp_path: Path) -> None:
    lines = [
        "from nearfar.parts.selections import Ring",
        'if choice["name"] == "cave": pass',
        'SOURCES = {"queue": 1}',
        "nearfar.modalities.text.views.WholeText()",
        'from nearfar.modalities import MODALITIES; MODALITIES["sound"]',
        'if name in ("window", "mask"): pass',
    ]
    (tmp_path / "a.py").write_text("\n".join(lines))
    result = uses_of_concrete_names(tmp_path / "a.py", *concrete())
    assert {int(line.partition(":")[0]) for line in result} == {1, 2, 3, 4, 5, 6}


# the names that users were promised, written out: a name may be added, none may go
PROMISED = """
pretrain Run Method evaluate_run write_report open_data
Shared Momentum PerView InfoMax Network backbone Views
Cosine Dot Bilinear Joint Separable Distance
InBatch Queue Bank NoNegatives
Everyone Ball Ring Cave Neighbours Accept Group
InfoNCE AlphaCPC MultiLabelCPC NWJ DonskerVaradhan JensenShannon BarberAgakov BinaryNCE Vince UBA TUBA
SMILE Triplet Tuple NPair Agreement
Scores dense_scores streamed_scores
linear geometric cosine steps
estimate_mi check_mi info Estimate Certificate
UserError Stopped
"""


def test_promised_public_names_exist() -> None:
    assert sorted(set(PROMISED.split()) - set(nf.__all__)) == []
    assert len(set(nf.__all__)) == len(nf.__all__)
    for name in nf.__all__:
        assert getattr(nf, name) is not None
    for name in ("entropy", "conditional_entropy", "mutual_information", "kl"):
        assert callable(getattr(nf.info, name))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = nf.nonsense
