"""A lock that ends with the process that holds it, however it ends; the systems differ in how one is had."""

import errno
import os
import stat
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def open_lock(path: Path) -> IO[str]:
    """The file of a lock, made if need be. A folder may come from a stranger: a link is not followed, nothing is emptied, and a pipe is not waited for."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} in it is not a regular file", os.fspath(path))
    return os.fdopen(descriptor, "r+", encoding="utf-8")


def locked(file: IO[str]) -> bool:
    """Takes the lock of an open file, without waiting; whether it was free."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return False
    return True
