"""Real errors and kills at chosen file operations: a library that is preloaded, compiled when it is first needed."""

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path

from tests.storm.places import lasting

KILL = -1
ALWAYS = 10**9
CHANGES = "create write sync rename unlink mkdir"  # operations that change something


@functools.cache
def library() -> Path | None:
    """The compiled library; None without a C compiler, or on a system other than Linux with glibc."""
    compiler, out = shutil.which("gcc") or shutil.which("cc"), lasting("shim") / "shim.so"
    if compiler is None:
        return None
    words = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        str(out),
        str(Path(__file__).with_suffix(".c")),
        "-ldl",
    ]
    return out if subprocess.run(words, capture_output=True, check=False).returncode == 0 else None


def preloading() -> dict[str, str]:
    """The environment of a process in which `arm` works."""
    path = library()
    return dict(os.environ) if path is None else {**os.environ, "LD_PRELOAD": str(path)}


def arm(pattern: str, operations: str, at: int, times: int, code: int) -> bool:
    """In such a process: the `at`-th of these operations on paths that contain `pattern`, and the following ones up
    to `times`, fail with this errno (or kill the process). False where the library is not loaded."""
    loaded = ctypes.CDLL(None)
    if not hasattr(loaded, "shim_arm"):
        return False
    loaded.shim_arm(os.fsencode(pattern), operations.encode(), at, times, code)
    return True
