"""File locks that the operating system releases when the process ends, however it ends."""

import os
from pathlib import Path
from typing import IO, Any, BinaryIO

from nearfar.system.files import open_own

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def open_lock(path: Path) -> BinaryIO:
    """Opens or creates a lock file, in a folder that may be untrusted."""
    return open_own(path, os.O_RDWR)


def try_lock(file: IO[Any]) -> bool:
    """Acquires the lock of an open file without waiting. Returns whether that worked."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return False
    return True
