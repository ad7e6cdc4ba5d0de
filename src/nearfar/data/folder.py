"""A folder of files, nested as one likes; first-level folders are classes when every file lies in one."""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from nearfar.data.remote import RemoteFile
from nearfar.data.source import AbstractSource, Item
from nearfar.modalities import MODALITIES
from nearfar.modalities.files import Labels, file_bytes
from nearfar.system.prefetch import prefetch
from nearfar.system.untrusted import open_regular_file

HIDDEN, OTHER_KIND = "hidden", "{} is data of another kind"
_LONGEST_SUFFIX = 12  # characters
_HEADER = 4096  # bytes that tell a file from unread of its name and size, where not all are read


@dataclass(frozen=True)
class Entry:
    path: str  # as the system knows it
    parts: tuple[str, ...]  # below the root
    nbytes: int
    system: Any = None  # of fsspec's, where it is not here

    @property
    def file(self) -> RemoteFile:
        return RemoteFile(self.path, self.system)


@dataclass
class Listing:
    """The files of a folder with one of the `suffixes`, and Parquet files. Hidden files and folders are left
    out; a folder reached twice is listed once."""

    suffixes: tuple[str, ...]
    entries: list[Entry] = field(default_factory=list)
    parquet: list[Entry] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)  # files that are not read, by reason
    tars: list[Entry] = field(default_factory=list)
    visited: set[tuple[int, int]] = field(default_factory=set)

    def add(self, folder: str) -> None:
        folders: list[tuple[str, tuple[str, ...]]] = [(folder, ())]
        while folders:  # may be nested deeper than Python's calls
            folders += reversed(self._add_files(*folders.pop()))

    def _add_files(self, folder: str, parts: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
        """Lists the files of one folder, and returns the folders in it."""
        try:
            identity = os.stat(folder)
            inside = sorted(os.scandir(folder), key=lambda entry: (entry.is_symlink(), entry.name))
        except OSError:  # an entry of its own, so that the scan reports it
            self.entries.append(Entry(folder, parts, 0))
            return []
        if (identity.st_dev, identity.st_ino) in self.visited:
            return []
        self.visited.add((identity.st_dev, identity.st_ino))
        folders = []
        for entry in inside:
            path_parts = (*parts, printable(entry.name))
            if entry.name.startswith("."):
                self.unread[HIDDEN] += 1
            elif _is_folder(entry):
                folders.append((entry.path, path_parts))
            elif entry.name.lower().endswith(self.suffixes):
                self.entries.append(Entry(entry.path, path_parts, _nbytes(entry)))
            elif entry.name.lower().endswith(".parquet"):
                self.parquet.append(Entry(entry.path, path_parts, _nbytes(entry)))
            elif entry.name.lower().endswith(".tar"):
                self.tars.append(Entry(entry.path, path_parts, _nbytes(entry)))
            else:
                self.unread[reason_to_ignore(entry.name)] += 1
        return folders

    def ignored(self, tables: bool = True) -> Counter[str]:
        """How many files are not read, by reason; Parquet among them, unless it is what is read."""
        other_kinds = {".parquet": len(self.parquet) * tables, ".tar": len(self.tars)}
        return self.unread + Counter({OTHER_KIND.format(suffix): n for suffix, n in other_kinds.items()})


class AbstractFiles(AbstractSource):
    """Instances in files here or elsewhere, in the order of their names."""

    def __init__(self, root: str, entries: Sequence[Entry], ignored: Mapping[str, int]) -> None:
        self.root, self.ignored = root, ignored
        self.entries = sorted(entries, key=lambda entry: entry.parts)

    @property
    def is_local(self) -> bool:
        return all(entry.system is None for entry in self.entries)

    def nbytes(self) -> float:
        """Encoded bytes; infinite for remote files, which are never checked when they are opened."""
        return sum(entry.nbytes for entry in self.entries) if self.is_local else math.inf

    def stamp(self) -> str | None:
        return stamp_of([entry.path for entry in self.entries]) if self.is_local else None


class Folder(AbstractFiles):
    """The files of a listing, by path."""

    def __init__(self, root: str, listing: Listing) -> None:
        super().__init__(root, listing.entries, listing.ignored())

    def names(self) -> Sequence[str]:
        return ["/".join(entry.parts) for entry in self.entries]

    def read_item(self, number: int) -> bytes:
        return file_bytes(self.entries[number].path)

    def in_order(self) -> Iterator[Item]:
        return (Item(entry.nbytes, partial(file_bytes, entry.path)) for entry in self.entries)

    def labels(self, rows: np.ndarray) -> Labels:
        """Labels by class folder; a folder without a usable file counts, so that numbers do not shift."""
        if any(len(self.entries[number].parts) < 2 for number in rows):
            return None, ()
        classes = sorted({entry.parts[0] for entry in self.entries if len(entry.parts) > 1})
        numbers = {name: number for number, name in enumerate(classes)}
        return np.array([numbers[self.entries[n].parts[0]] for n in rows], dtype=np.int64), tuple(classes)

    def marks(self) -> bytes:
        """Over each file's name, size and first bytes."""
        digest = hashlib.sha256()
        starts = prefetch(lambda entry: _start(entry.path), self.entries, 4)
        for entry, start in zip(self.entries, starts, strict=True):
            digest.update("/".join(entry.parts).encode() + b"\0" + entry.nbytes.to_bytes(8, "little") + start)
        return digest.digest()

    def unlabelled(self) -> str:
        loose = sum(len(entry.parts) < 2 for entry in self.entries)
        if loose == len(self.entries):
            return "no class folders"
        return f"{loose} of its {len(self.entries)} files lie beside the folders, so these are no classes"


def reason_to_ignore(name: str) -> str:
    """Why a file of this name is not read."""
    suffix = os.path.splitext(printable(name))[1].lower()
    if not suffix or len(suffix) > _LONGEST_SUFFIX:
        return "without a known suffix"
    for modality in MODALITIES.values():
        if suffix in modality.reader.unread:
            form, target = modality.reader.unread[suffix], modality.reader.converted_to
            return f"{form} ({suffix}) is not read: convert to {target}"
    supported = any(suffix in modality.reader.suffixes for modality in MODALITIES.values())
    return OTHER_KIND.format(suffix) if supported else f"{suffix} is not supported"


def stamp_of(paths: Sequence[str]) -> str | None:
    """Over the paths, sizes and times of files; None where one cannot be looked at.

    `st_ctime` changes with every write and every rename, and no program can set it back: a picture replaced by
    one of the same size and modification time is seen. A copy or a change of permissions changes it as well;
    then the data are checked again.
    """
    digest = hashlib.sha256()
    try:
        for path in paths:
            status = os.stat(path)
            times = f"{status.st_mtime_ns}\0{status.st_ctime_ns}"
            text = f"{os.path.abspath(path)}\0{status.st_size}\0{times}\0"
            digest.update(text.encode("utf-8", "surrogateescape"))
    except OSError:
        return None
    return digest.hexdigest()


def _start(path: str) -> bytes:
    """The first bytes of a regular file; none of anything else, which is found out when it is read."""
    try:
        with open_regular_file(path) as file:
            return file.read(_HEADER)
    except OSError:
        return b""


def printable(name: str) -> str:
    """A file name as valid text, whatever bytes it is made of."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # e.g. a link to itself
        return False


def _nbytes(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0
