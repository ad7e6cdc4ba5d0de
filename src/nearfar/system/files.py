"""Atomic writes of files and folders.

After a kill or on a full disk there is the old file or the new one, never a part of it.
"""

import ctypes
import errno
import functools
import hashlib
import io
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from nearfar.errors import UserError
from nearfar.system.untrusted import open_regular_file


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the folder of `path`. When the block ends, it replaces `path`, durably.

    Raises OSError if `path` is a device, a pipe or a folder.
    """
    if os.path.lexists(path) and not stat.S_ISREG(mode := os.lstat(path).st_mode) and not stat.S_ISLNK(mode):
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
    temporary = temporary_name(path)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as problem:
        temporary.unlink(missing_ok=True)
        if (
            isinstance(problem, OSError)
            and problem.errno
            and problem.filename in (None, os.fspath(temporary))
        ):
            problem.filename = os.fspath(path)  # a failed fsync names no file
        raise
    finally:
        _ACTIVE.discard(temporary.name)


def as_path(key: str, value: Any) -> Path:
    """Returns a Python argument as a Path, or raises UserError."""
    if not isinstance(value, (str, os.PathLike)):
        raise UserError(f"{key} was {value!r}; expected a path")
    return Path(value)


def check_output(
    option: str, path: Path, inputs: Iterable[str | os.PathLike[str]], begins: bytes = b""
) -> None:
    """Refuses to overwrite an input, or a file of another kind (its first bytes are not `begins`)."""
    for source in map(Path, inputs):
        if path.exists() and source.exists() and path.samefile(source):
            raise UserError(f"{option} was {path}, which is also an input; choose another name")
    if begins and path.is_file():
        with open_regular_file(path) as file:
            start = file.read(len(begins))
        if start and start.lower() != begins:
            raise UserError(f"{option} was {path}, a file of another kind; choose another name")


def check_folder(folder: Path, names: Iterable[str], owner: str) -> None:
    """Refuses to write into a folder that contains any of `names`, files that do not belong to `owner`."""
    existing = next((name for name in names if os.path.lexists(folder / name)), None)
    if existing is not None:
        raise UserError(
            f"--out {folder} contains {existing}, which does not belong to {owner}; choose a new folder"
        )


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replaces the content of a file atomically. Text is UTF-8, other bytes become `\\udcff`."""
    with replace_file(path) as temporary:
        write_new(
            temporary, content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
        )


def write_figure(figure: Any, path: Path, **options: Any) -> None:
    """Replaces a picture by a figure of matplotlib, atomically; the suffix of the name is its format."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.removeprefix("."), **options)
    write_atomic(path, buffer.getvalue())


def write_new(path: Path, content: bytes) -> None:
    """Writes a new file and syncs it to disk."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def append_line(path: Path, line: str) -> None:
    """Appends a line in one write, so lines of several processes do not mix. The folder may be untrusted:
    links are not followed, pipes do not block."""
    with open_own(path, os.O_WRONLY | os.O_APPEND) as file:
        file.write(line.encode("utf-8", "backslashreplace") + b"\n")


def open_own(path: Path, flags: int) -> BinaryIO:
    """Opens or creates a file to write in place. Follows no links, waits for no pipe, truncates nothing."""
    for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, flag, 0)
    descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} in it is not a regular file", os.fspath(path))
    return os.fdopen(descriptor, "ab" if flags & os.O_APPEND else "rb+", buffering=0)


# temporary names that this process uses now, and the folders where it has removed those of dead processes
_ACTIVE: set[str] = set()
_SWEPT: set[str] = set()
_TEMPORARY = re.compile(r"\..+\.(?P<process>\d+)-(?P<machine>[0-9a-f]{4})[0-9a-f]{8}\.(writing|old)")
MAX_FOREIGN_AGE = 86400  # seconds after which a temporary file of another machine counts as left over


def temporary_name(path: Path, suffix: str = "writing") -> Path:
    """Returns a new hidden name in the folder of `path`, with the process number. The first in a folder
    removes the temporary files and folders that dead processes left there."""
    folder = os.path.abspath(path.parent)
    if folder not in _SWEPT:
        _SWEPT.add(folder)
        with suppress(OSError):
            for entry in Path(folder).iterdir():
                if entry.name.endswith(".writing") and not is_writer_alive(entry):
                    remove_tree(entry)
    name = f".{path.name}.{os.getpid()}-{machine_mark()}{secrets.token_hex(4)}.{suffix}"
    _ACTIVE.add(name)
    return path.with_name(name)


@functools.cache
def machine_mark() -> str:
    """Returns four hexadecimal digits for the host and its table of processes (a container has its own)."""
    try:
        processes = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        processes = 0
    return hashlib.sha256(f"{platform.node()} {processes}".encode()).hexdigest()[:4]


def is_writer_alive(path: Path) -> bool:
    """Returns whether the process in a temporary name may still be writing; True for any other name."""
    match = _TEMPORARY.fullmatch(path.name)
    if match is None or os.name == "nt":  # signal 0 would interrupt the process
        return True
    if match["machine"] != machine_mark():
        with suppress(OSError):
            return time.time() - path.lstat().st_mtime < MAX_FOREIGN_AGE
    number = int(match["process"])
    if number == os.getpid():  # an earlier process may have had the number
        return path.name in _ACTIVE
    try:
        os.kill(number, 0)
    except (OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def remove_tree(path: Path) -> None:
    """Removes a folder with its content, or whatever has the name; `shutil.rmtree` would wait for a pipe."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def replace_folder(temporary: Path, path: Path) -> None:
    """Replaces the folder `path` by the complete folder `temporary`, durably.

    If the system can exchange two folders, a kill leaves the old or the new folder at `path`. Otherwise
    `path` may be missing between two renames, and `recover_folder` restores the old folder.
    """
    sync_tree(temporary)
    if not path.is_dir():
        os.replace(temporary, path)
    elif not _exchange(temporary, path):
        old = temporary_name(path, "old")
        os.replace(path, old)
        try:
            os.replace(temporary, path)
        except BaseException:
            os.replace(old, path)
            raise
        sync_folder(path.parent)
        os.replace(old, temporary)  # only a complete folder is ever called .old
    sync_folder(path.parent)
    shutil.rmtree(temporary, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Restores the folder that a killed `replace_folder` left, and removes leftovers of dead processes."""
    if not path.parent.is_dir():
        return
    leftovers = [
        folder
        for folder in path.parent.iterdir()
        if folder.name.startswith(f".{path.name}.")
        and stat.S_ISDIR(folder.lstat().st_mode)
        and not is_writer_alive(folder)
    ]
    complete = [folder for folder in leftovers if folder.name.endswith(".old")]
    if complete and not os.path.lexists(path):
        os.replace(complete[0], path)
        sync_folder(path.parent)
    for folder in leftovers:
        shutil.rmtree(folder, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges two folders atomically (Linux renameat2). Returns False if the system cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    current_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(current_folder, os.fsencode(first), current_folder, os.fsencode(second), exchange) == 0


def sync_tree(folder: Path) -> None:
    """Syncs all files and folders below a folder to disk."""
    for root, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(root, name), "rb+") as file:
                os.fsync(file.fileno())
        sync_folder(Path(root))


def sync_folder(folder: Path) -> None:
    """Syncs the entries of a folder to disk. Windows cannot open folders, so nothing happens there."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
