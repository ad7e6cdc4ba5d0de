"""Folders that the cases of a process share."""

import atexit
import shutil
import tempfile
from pathlib import Path


def lasting(name: str) -> Path:
    """An empty folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"storm-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
