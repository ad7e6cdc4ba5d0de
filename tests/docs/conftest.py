"""The built documentation site, and a browser to look at it."""

import subprocess
import sys
from pathlib import Path

import pytest

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
