"""File locks that the operating system releases when the process ends, however it ends."""

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
    """Opens or creates a lock file.

    The folder may be untrusted: links are not followed, files are not truncated, pipes do not block.
    """
    flags = os.O_RDWR | os.O_CREAT
    if os.name != "nt":
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} in it is not a regular file", os.fspath(path))
    return os.fdopen(descriptor, "r+", encoding="utf-8")


def try_lock(file: IO[str]) -> bool:
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
