"""Files that somebody else made: what is read of them is a regular file, of a size known beforehand.

A pipe without a writer would be waited for without end; a few kilobytes of zstd or deflate unpack to more than
any memory. So kinds and sizes are looked at before anything is read, and before anything is unpacked.
"""

import errno
import os
import stat
import zipfile
from pathlib import Path

from nearfar.errors import UserError

TEXT = 2**26  # bytes of a file of settings, metrics or results
# what unpacks to more than FREE bytes may not be more than RATIO times its packed size: pictures, sounds and
# numbers never are, and a file of zeros is
FREE, RATIO = 2**28, 200


def check_regular(path: str | os.PathLike[str]) -> int:
    """The size of a regular file; anything else is an OSError, as if it could not be opened."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file but a pipe, a socket or a device", os.fspath(path))
    return status.st_size


def read_text(path: str | os.PathLike[str], most: int = TEXT) -> str:
    """A regular file of UTF-8 text; longer than `most` bytes is an OSError, other bytes than UTF-8 a ValueError."""
    size = check_regular(path)
    if size > most:
        raise OSError(errno.EFBIG, f"{size:,} bytes are too many; allowed are {most:,}", os.fspath(path))
    return Path(path).read_text(encoding="utf-8")


def check_unpacked(path: str | os.PathLike[str], packed: int, unpacked: int) -> None:
    """Stops what would unpack to a large multiple of itself."""
    if unpacked > max(FREE, RATIO * packed):
        raise UserError(
            f"{os.fspath(path)!r} would unpack from {packed:,} to {unpacked:,} bytes; allowed are {RATIO} times as many, or {FREE:,}"
        )


def check_npz(path: str | os.PathLike[str]) -> None:
    """Stops an .npz file that is a bomb, by the sizes in its directory; what is no archive is left to its reader."""
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return
    for member in members:
        check_unpacked(path, member.compress_size, member.file_size)
