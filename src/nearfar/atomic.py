"""The one way a file is written here: whole or not at all.

A reader, a kill or a full disk finds the old file or the new one, never a part. (`run.checkpoints` does the same with whole
folders, by these functions.)
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; what is there when the block ends takes `path`'s place, durably."""
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
