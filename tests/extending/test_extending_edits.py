"""The additions of `examples/extending`, made as each file says: the file in the package, the import and the line
in the file that it names. The package then imports in a fresh process."""

import os
import re
import shutil
from pathlib import Path

from tests.helpers import run_python

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "extending"


def edit_of(example: Path) -> tuple[str, str, str] | None:
    """The file to edit, the line to add, and the name in it that the example defines; None: no line is needed."""
    first_paragraph = " ".join(example.read_text().split('"""')[1].split("\n\n")[0].split())
    match = re.search(r"a line in `(nearfar/[\w/]+\.py)`: (\w+\[.+)", first_paragraph)
    if match is None:
        return None
    return match[1], match[2], re.findall(r"\w+", match[2].partition("=")[2])[-1]


def test_package_imports_with_every_addition(tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "nearfar", tmp_path / "nearfar", ignore=ignore)
    edits = {path: edit for path in sorted(EXAMPLES.glob("*.py")) if (edit := edit_of(path)) is not None}
    assert {"json_lines", "reader", "protocol", "bound", "video"} <= {path.stem for path in edits}
    modules = set()
    for example, (file, line, name) in edits.items():
        target = tmp_path / file
        shutil.copy(example, target.with_name(f"added_{example.name}"))
        package = ".".join(Path(file).parent.parts)
        with target.open("a") as source:
            source.write(f"\nfrom {package}.added_{example.stem} import {name}\n{line}\n")
        modules.add(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    code = f"import {', '.join(sorted(modules))}"
    process = run_python("-c", code, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert process.returncode == 0, process.stderr
