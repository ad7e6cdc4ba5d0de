"""The built documentation site, and a browser to look at it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.browser import browser as browser
from tests.browser import chromium as chromium

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A broken link or a docstring that does not parse is a warning, and warnings are
    errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-E",
        str(ROOT / "docs"),
        str(folder),
    ]
    build = subprocess.run(command, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What README and the guides take for granted: photos/, labelled/, test/ and others/."""
    root, rng = tmp_path_factory.mktemp("readme"), np.random.default_rng(0)
    for name, count in (("photos", 260), ("labelled", 40), ("test", 40), ("others", 40)):
        for number in range(count):
            label = number % 2
            pixels = rng.integers(0, 60, (16, 16, 3)) + np.array([(180, 40, 40), (40, 40, 180)][label])
            target = root / name / ("" if name == "photos" else ("red", "blue")[label])
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(target / f"{number}.png")
    return root
