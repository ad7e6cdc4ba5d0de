"""The one way a file is written here: whole or not at all.

A reader, a kill or a full disk finds the old file or the new one, never a part. (`run.checkpoints` does the same with whole
folders, by these functions.)
"""

import errno
import os
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
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.writing")
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


def take_place(fresh: Path, path: Path) -> None:
    """A new folder in the place of an old one, which is away only for as long as a rename takes."""
    old = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.old")
    if path.is_dir():
        os.replace(path, old)
    os.replace(fresh, path)
    sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable, where the system can (Windows opens no folders)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
