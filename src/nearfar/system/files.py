"""The one way a file is written here: whole or not at all.

A reader, a kill or a full disk finds the old file or the new one, never a part. (`run.checkpoints` does the same with whole
folders, by these functions.)
"""

import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearfar.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; what is there when the block ends takes `path`'s place, durably. The place of a device, a pipe or a folder is not taken."""
    if os.path.lexists(path) and not stat.S_ISREG(mode := os.lstat(path).st_mode) and not stat.S_ISLNK(mode):
        raise OSError(errno.EINVAL, "there is something else than a file", os.fspath(path))
    fresh = temporary_name(path)
    try:
        yield fresh
        with open(fresh, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def as_path(key: str, given: Any) -> Path:
    """What was given in Python for a file or folder, which may be anything."""
    if not isinstance(given, (str, os.PathLike)):
        raise UserError(f"{key} was {given!r}; expected a path")
    return Path(given)


def check_output(
    option: str, path: Path, inputs: Iterable[str | os.PathLike[str]], begins: bytes = b""
) -> None:
    """Stops what would be written over one of the inputs, or over a file that does not begin as what is written does."""
    for given in map(Path, inputs):
        if path.exists() and given.exists() and path.samefile(given):
            raise UserError(f"{option} was {path}, which is also an input; name another file")
    if begins and path.is_file():
        with path.open("rb") as file:
            start = file.read(len(begins))
        if start and start.lower() != begins:
            raise UserError(
                f"{option} was {path}, a file of another kind, which would be lost; name another file"
            )


def check_folder(folder: Path, names: Iterable[str], whose: str) -> None:
    """Stops what would be written into a folder with files of somebody else; `whose` are the new ones."""
    held = next((name for name in names if os.path.lexists(folder / name)), None)
    if held is not None:
        raise UserError(f"--out {folder} holds {held}, which is not of {whose}; name a new folder")


def write_whole(path: Path, content: bytes | str) -> None:
    """Puts `content` in the place of what the file held: text as UTF-8, and what names of files hold besides as `\\udcff`."""
    with replacing(path) as fresh:
        write_new(fresh, content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


def write_new(path: Path, content: bytes) -> None:
    """A file that was not there, on the disk when this returns."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def temporary_name(path: Path, suffix: str = "writing") -> Path:
    """A new hidden name beside `path` that tells which process made it."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.{suffix}")


def is_writer_alive(name: str) -> bool:
    """Whether the process whose number is in a temporary name may still be at work; this process has not begun."""
    if os.name == "nt":  # where signal 0 is no question but an interrupt
        return True
    try:
        number = int(name.rpartition(".")[0].rpartition(".")[2].partition("-")[0])
        os.kill(number, 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return number != os.getpid()


def replace_folder(fresh: Path, path: Path) -> None:
    """Puts the complete folder `fresh` in the place of `path`, durably, and removes what was there.

    Where the system can exchange two folders, a kill at any moment leaves the old folder or the new one at `path`. Elsewhere
    nothing may be there for as long as a rename takes, and `recover_folder` puts the old folder back.
    """
    sync_tree(fresh)
    if not path.is_dir():
        os.replace(fresh, path)
    elif not _exchange(fresh, path):
        old = temporary_name(path, "old")
        os.replace(path, old)
        try:
            os.replace(fresh, path)
        except BaseException:
            os.replace(old, path)
            raise
        sync_folder(path.parent)
        os.replace(old, fresh)  # only a complete folder is ever called .old
    sync_folder(path.parent)
    shutil.rmtree(fresh, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Puts back the folder that a killed `replace_folder` left beside `path`, and removes temporary folders of dead processes."""
    if not path.parent.is_dir():
        return
    pattern = re.compile(rf"\.{re.escape(path.name)}\.\d+-[0-9a-f]{{8}}\.(writing|old)")
    leftovers = [
        folder
        for folder in path.parent.iterdir()
        if pattern.fullmatch(folder.name)
        and stat.S_ISDIR(folder.lstat().st_mode)
        and not is_writer_alive(folder.name)
    ]
    complete = [folder for folder in leftovers if folder.name.endswith(".old")]
    if complete and not os.path.lexists(path):
        os.replace(complete[0], path)
        sync_folder(path.parent)
    for folder in leftovers:
        shutil.rmtree(folder, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step (Linux's renameat2); False where the system or the file system cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    current_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(current_folder, os.fsencode(one), current_folder, os.fsencode(other), exchange) == 0


def sync_tree(folder: Path) -> None:
    """Makes everything in a folder durable: contents of files, and names."""
    for root, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(root, name), "rb+") as file:
                os.fsync(file.fileno())
        sync_folder(Path(root))


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable, where the system can (Windows opens no folders)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
