"""Files that somebody else made: what is read of them is a regular file, of a size known beforehand.

A pipe without a writer would be waited for without end; a few kilobytes of zstd or deflate unpack to more than
any memory. So kinds and sizes are looked at before anything is read, and before anything is unpacked.
"""

import errno
import json
import os
import stat
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeGuard

from nearfar.errors import UserError

TEXT = 2**26  # bytes of a file of settings or results
DEEPEST = 32  # levels of a JSON file
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


def check_given(path: str | os.PathLike[str], spec: str) -> None:
    """One sentence about data that are no regular file: a pipe would be waited for without end."""
    try:
        check_regular(path)
    except OSError as problem:
        raise UserError(f"data {spec!r} cannot be opened: {problem.strerror}.") from None


def arrow_path(path: str | os.PathLike[str]) -> str:
    """A path as Arrow takes it: absolute, so that no name is taken for a URL; one that is not UTF-8 is an OSError."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise OSError("its path is not UTF-8, which Arrow asks for; rename it") from None
    return os.path.abspath(path)


def column_names(table: Any, spec: str) -> list[str]:
    """Names of an Arrow table's columns, each once and text; readers take other names without a word and fail later."""
    try:
        names = list(table.column_names)
    except UnicodeDecodeError:
        raise UserError(f"data {spec!r}: the name of a column is not UTF-8 text.") from None
    name, count = max(Counter(names).items(), key=lambda held: held[1], default=("", 0))
    if count > 1:
        raise UserError(f"data {spec!r}: it has {count} columns called `{name}`.")
    return names


def read_text(path: str | os.PathLike[str], most: int = TEXT) -> str:
    """A regular file of UTF-8 text; longer than `most` bytes is an OSError, other bytes than UTF-8 a ValueError."""
    size = check_regular(path)
    if size > most:
        raise OSError(errno.EFBIG, f"{size:,} bytes are too many; expected {most:,}", os.fspath(path))
    return Path(path).read_text(encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    """What a JSON file holds; None where it cannot be read, is too long, or nested deeper than anything we write."""
    try:
        loaded = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    level = [loaded]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return None if level else loaded


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value from JSON is a number that a float can be: NaN and infinities are, truth values are not."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**1023)


def check_unpacked(path: str | os.PathLike[str], packed: int, unpacked: int) -> None:
    """Stops what would unpack to a large multiple of itself."""
    if unpacked > max(FREE, RATIO * packed):
        raise UserError(
            f"{os.fspath(path)!r} would unpack from {packed:,} to {unpacked:,} bytes; expected {RATIO} times as many, or {FREE:,}"
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


def npz_arrays(path: Path, keys: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Those of these arrays that an .npz file holds, and the names of all it holds; pickles are refused, not loaded."""
    import numpy as np

    try:
        check_npz(path)
        # A header that is not quite numpy's makes numpy warn before it fails or succeeds.
        with warnings.catch_warnings(), open(path, "rb") as opened:
            warnings.simplefilter("ignore")
            file = np.load(opened, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it is a single array, not an .npz archive")
            with file:
                found = {key: file[key] for key in keys if key in file.files}
                other = [key for key, array in found.items() if not isinstance(array, np.ndarray)]
                if other:  # a member without numpy's first bytes comes back as its own
                    raise ValueError(f"{other[0]} is not an array")
                return found, list(file.files)
    except UserError:
        raise
    except Exception as error:  # zip, zlib and numpy each fail in their own ways on damaged files
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise UserError(f"{str(path)!r} cannot be read as .npz: {reason}.") from error
