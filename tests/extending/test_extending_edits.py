"""The additions of `examples/extending`, made as each file says: the file in the package, the import and the line
in the file that it names. In a fresh process, one run then uses the additions by name."""

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


# a named logger is two edits without a file of its own
CSV = """

class Csv(Logger):
    def __init__(self, folder, settings, step):
        self.path = folder.path / "losses.csv"

    def log(self, row):
        with self.path.open("a") as file:
            print(row["kind"], row["step"], sep=",", file=file)


LOGGERS["csv"] = Csv
"""
# uses parts, an optimiser, an operation, a format, a section and a logger by the names that the edits gave them
RUN = """
import sys
from pathlib import Path

import numpy as np

import nearfar as nf
from nearfar.config.resolving import resolve
from nearfar.data import open_data
from nearfar.evaluate.protocols import NETWORK_PROTOCOLS
from nearfar.modalities import MODALITIES
from nearfar.report.sections import SECTIONS

folder = Path(sys.argv[1])
images = np.random.default_rng(0).integers(0, 255, (16, 16, 16, 3), dtype=np.uint8)
run = nf.pretrain(
    "simclr", images, folder / "run", backbone="resnet8-w8", epochs=1, batch_size=8, workers=0, quiet=True,
    log_every=1, probe_every=0, optimizer="lion", bound="cpc-t", critic="student-t", prior="mean-zero",
    selection="every-other", views={"posterise": 0.5}, logger="csv",
)
assert (run.path / "losses.csv").read_text().split() == ["train,1", "train,2"]
method = run.method()
parts = [type(method.parts()[choice]).__name__ for choice in ("bound", "critic", "prior", "selection")]
assert parts == ["TemperedCPC", "StudentT", "MeanZero", "EveryOther"]
assert resolve("moco", "data", {"negatives": "prototypes"}).negatives["name"] == "prototypes"
(folder / "images.idx").write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 8]) + bytes(range(128)))
assert len(open_data(folder / "images.idx")) == 2
assert "mirror" in NETWORK_PROTOCOLS and "Pace" in SECTIONS and {"angles", "video"} <= set(MODALITIES)
"""


def test_a_run_uses_every_addition_by_name(tmp_path: Path) -> None:
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
    with (tmp_path / "nearfar" / "train" / "loggers.py").open("a") as source:
        source.write(CSV)
    with (tmp_path / "nearfar" / "config" / "fields.py").open("a") as source:
        source.write('LOGGERS.append("csv")\n')
    code = f"import {', '.join(sorted(modules))}\n{RUN}"
    process = run_python("-c", code, tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert process.returncode == 0, process.stderr
