"""Reading files from untrusted sources: only regular files, and only up to a size limit.

A pipe without a writer would block for ever. A few kilobytes of zstd or deflate can decompress to more than
the memory. So the kind and size of a file are checked before it is read or decompressed.
"""

import errno
import io
import json
import os
import stat
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from nearfar.errors import UserError, error_reason
from nearfar.system.machine import memory_available

MAX_TEXT_BYTES = 2**26  # results and tables
MAX_SETTINGS_BYTES = 2**20  # a parser of YAML takes seconds for a mebibyte
MAX_JSON_DEPTH = 32
MAX_JSON_CONTAINERS = 2**20  # an empty one is two bytes of text and 64 of memory
NOT_REGULAR = "is a pipe, a socket or a device, not a regular file"
# above UNCHECKED_BYTES, the decompressed size may be at most MAX_RATIO times the compressed one: images,
# sound and
# numbers never exceed that, a file of zeros does
UNCHECKED_BYTES, MAX_RATIO = 2**28, 200


def check_regular(path: str | os.PathLike[str]) -> int:
    """Returns the size of a regular file; raises OSError for anything else."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))
    return status.st_size


def open_regular_file(path: str | os.PathLike[str], max_bytes: int | None = None) -> io.BufferedReader:
    """Opens a regular file to read bytes. Everything that a user or a stored file names is opened here.

    Raises OSError for anything else, without waiting for it, and for more than `max_bytes`.
    """
    check_regular(path)  # opening a device may have an effect
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    try:
        status = os.fstat(file.fileno())  # another file may have taken the name since
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))
        if max_bytes is not None and status.st_size > max_bytes:
            reason = f"{status.st_size:,} bytes; at most {max_bytes:,} are allowed"
            raise OSError(errno.EFBIG, reason, os.fspath(path))
    except BaseException:
        file.close()
        raise
    return file


def read_bytes(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Reads a regular file. Raises OSError if it is larger than `max_bytes`."""
    with open_regular_file(path, max_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def check_memory(path: str | os.PathLike[str], needed: int) -> None:
    """Raises OSError if reading a file needs more bytes than are free; holes of a sparse file become real."""
    available = memory_available()
    if available is not None and needed > available:
        raise OSError(errno.EFBIG, f"{needed:,} bytes; {available:,} of memory are free", os.fspath(path))


def check_data_file(path: str | os.PathLike[str], spec: str) -> None:
    """Raises UserError if a data file is not a regular file; a pipe would block for ever."""
    try:
        check_regular(path)
    except OSError as problem:
        raise UserError(f"data {spec!r} cannot be opened: {problem.strerror}.") from None


def arrow_path(path: str | os.PathLike[str]) -> str:
    """Returns an absolute path for Arrow, so that it is not parsed as a URL. Raises OSError if it is not
    UTF-8, or exists and is not a regular file."""
    with suppress(FileNotFoundError):  # to be written
        check_regular(path)
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise OSError("the path is not UTF-8, which Arrow needs; rename the file") from None
    return os.path.abspath(path)


def column_names(table: Any, spec: str) -> list[str]:
    """Returns the column names of an Arrow table; raises UserError if one is repeated or not UTF-8."""
    try:
        names = list(table.column_names)
    except UnicodeDecodeError:
        raise UserError(f"data {spec!r}: a column name is not UTF-8.") from None
    name, count = max(Counter(names).items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        raise UserError(f"data {spec!r}: it has {count} columns named `{name}`.")
    return names


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Reads a regular UTF-8 file; raises OSError above `max_bytes`, ValueError for other bytes."""
    return read_bytes(path, max_bytes).decode("utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Returns the content of a JSON file; None if it is unreadable, too long or nested too deeply."""
    try:
        return parse_json(read_text(path))
    except (OSError, ValueError, RecursionError):
        return None


def parse_json(text: str) -> Any:
    """Returns the content of JSON text. Raises ValueError if it has too many containers, which take 30 times
    their text in memory, or is nested too deeply."""
    if text.count("[") + text.count("{") > MAX_JSON_CONTAINERS:
        raise ValueError(f"it has more than {MAX_JSON_CONTAINERS:,} lists and mappings")
    loaded = json.loads(text)
    level = [loaded]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if level:
        raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} levels deep")
    return loaded


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether a JSON value is a number that fits a float. NaN and infinities do, booleans do not."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**1023)


def check_unpacked(path: str | os.PathLike[str], packed: int, unpacked: int) -> None:
    """Raises UserError if a file would decompress to a large multiple of its size."""
    if unpacked > max(UNCHECKED_BYTES, MAX_RATIO * packed):
        raise UserError(
            f"{os.fspath(path)!r} would decompress from {packed:,} to {unpacked:,} bytes; at most "
            f"{MAX_RATIO} times the size or {UNCHECKED_BYTES:,} bytes are allowed"
        )


def zip_members(path: str | os.PathLike[str]) -> list[zipfile.ZipInfo]:
    """Returns the directory of a zip archive; empty if the file is none."""
    try:
        with open_regular_file(path) as file, zipfile.ZipFile(file) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return []


def check_zip(path: str | os.PathLike[str], keys: Collection[str] = ()) -> None:
    """Raises UserError for a zip bomb, by the sizes in its directory, and OSError if the arrays `keys` (or
    all) do not fit the memory. Files that are not zip archives pass."""
    members = zip_members(path)
    for member in members:
        check_unpacked(path, member.compress_size, member.file_size)
    selected_members = [one for one in members if not keys or one.filename.removesuffix(".npy") in keys]
    check_memory(path, sum(member.file_size for member in selected_members))


def npz_arrays(path: Path, keys: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the arrays of an .npz file named in `keys`, and all names; refuses pickles."""
    import numpy as np

    try:
        check_zip(path, keys)
        # a malformed header makes numpy warn
        with warnings.catch_warnings(), open_regular_file(path) as opened:
            warnings.simplefilter("ignore")
            file = np.load(opened, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("it is a single array, not an .npz archive")
            with file:
                arrays = {key: file[key] for key in keys if key in file.files}
                invalid = [key for key, array in arrays.items() if not isinstance(array, np.ndarray)]
                if invalid:  # a member without numpy's magic bytes is returned as bytes
                    raise ValueError(f"{invalid[0]} is not an array")
                return arrays, list(file.files)
    except UserError:
        raise
    except Exception as error:  # zip, zlib and numpy raise many kinds of errors on damaged files
        raise UserError(f"{str(path)!r} cannot be read as .npz: {error_reason(error)}.") from error
