"""Tar files in webdataset's convention: members with one name before the first dot are one sample.

`0001.jpg` and `0001.cls` are an image and its class number (a whole number as text). Members are indexed by
their headers and read in place, so that a sample can be read by number; compressed tars cannot.
"""

import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from nearfar.data.folder import AbstractFiles, Entry, printable, reason_to_ignore
from nearfar.data.remote import RemoteFile
from nearfar.errors import UserError, error_reason
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.files import MAX_BYTES, Labels, class_numbers

SUFFIX, LABEL = ".tar", ".cls"
_LONGEST_LABEL = 32
MAX_HEADER_BYTES = 2**15  # of all headers of one member


def shard_names(spec: str) -> Iterator[str]:
    """The files of webdataset's notation for shards, `a-{000..012}.tar`; of another name the name itself."""
    match = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}([^/{}]*\.tar)", spec, re.DOTALL)
    if match is None:
        yield spec
        return
    start, first, last, end = match.groups()
    for number in range(int(first), int(last) + 1):
        yield f"{start}{number:0{len(first)}}{end}"


@dataclass(frozen=True)
class _Member:
    """A member's place in its file."""

    file: RemoteFile
    name: str
    start: int
    size: int

    def read(self) -> bytes:
        if self.size > MAX_BYTES:
            raise Unusable(f"too large: {self.size:,} bytes, expected at most {MAX_BYTES:,}")
        try:
            data = self.file.part(self.start, self.size)
        except OSError as error:
            raise Unusable(f"unreadable: {error.strerror}") from error
        if len(data) < self.size:
            raise Unusable("truncated: the tar ends within it")
        return data


class Tars(AbstractFiles):
    """The samples of one or more tar files, in their order."""

    def __init__(
        self, root: str, entries: Sequence[Entry], ignored: Mapping[str, int], suffixes: tuple[str, ...]
    ) -> None:
        unread = Counter(ignored)
        super().__init__(root, entries, unread)
        self._members: list[_Member] = []
        self._labels: list[_Member | None] = []
        for entry in self.entries:
            self._add(entry.file, suffixes, unread)

    def _add(self, file: RemoteFile, suffixes: tuple[str, ...], unread: Counter[str]) -> None:
        labels: dict[str, _Member] = {}
        contents: dict[str, _Member] = {}
        for member in _members(file):
            key, suffix = _key_and_suffix(member.name)
            if suffix == LABEL:
                labels[key] = member
            elif suffix in suffixes and key not in contents:
                contents[key] = member
            else:
                unread[reason_to_ignore(member.name)] += 1
        self._members += contents.values()
        self._labels += [labels.get(key) for key in contents]

    def names(self) -> Sequence[str]:
        return [
            f"{printable(os.path.basename(member.file.path))}/{printable(member.name)}"
            for member in self._members
        ]

    def read_item(self, number: int) -> bytes:
        return self._members[number].read()

    def marks(self) -> bytes:
        if self.is_local:
            return (self.stamp() or "").encode()
        files = [entry.file for entry in self.entries]
        return "\0".join(f"{file.path} {file.size()} {file.mark()}" for file in files).encode()

    def labels(self, rows: np.ndarray) -> Labels:
        members = [self._labels[int(number)] for number in rows]
        if not members or any(member is None for member in members):
            return None, ()
        numbers = [_class_number(member) for member in members if member is not None]
        return class_numbers(np.array(numbers, dtype=np.int64), f"data {self.root!r}")

    def unlabelled(self) -> str:
        without = sum(label is None for label in self._labels)
        return f"{without} of its {len(self._labels)} samples have no {LABEL} member"


class _HeaderReader:
    """A tar file as `tarfile` may read it: forward only, and a few headers for each member.

    A negative size would lead back to an earlier header for ever. A long extended header takes quadratic
    time, and many in a row too much memory.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._position, self._end = file, 0, 0  # of what was read
        self.remaining = MAX_HEADER_BYTES  # of the member that is read next

    def read(self, size: int) -> bytes:
        self.remaining -= size
        if size < 0 or self.remaining < 0:
            raise tarfile.ReadError(f"a header has more than {MAX_HEADER_BYTES:,} bytes")
        data = self._file.read(size)
        self._position += len(data)
        self._end = max(self._end, self._position)
        return data

    def seek(self, position: int) -> None:
        if position < self._end - 1:  # tarfile reads the last byte before a header again
            raise tarfile.ReadError("a header has a negative size")
        self._position = self._file.seek(position)

    def tell(self) -> int:
        return self._position


def _members(file: RemoteFile) -> Iterator[_Member]:
    try:
        with file.open() as opened:
            headers = _HeaderReader(opened)
            for member in tarfile.TarFile(fileobj=headers):  # type: ignore[arg-type]
                headers.remaining = MAX_HEADER_BYTES
                if member.size < 0:
                    raise tarfile.ReadError("a header has a negative size")
                if member.issparse():
                    raise tarfile.ReadError(f"{printable(member.name)!r} is a sparse file")
                if member.isreg() and not os.path.basename(member.name).startswith("."):
                    yield _Member(file, member.name, member.offset_data, member.size)
    except UserError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(
            f"{file.path!r} cannot be read as a tar file: {error_reason(error)}; unpack a compressed one first."
        ) from error


def _key_and_suffix(name: str) -> tuple[str, str]:
    """(key, suffix) of a member: what comes before and after the first dot of its last part."""
    folder, base = os.path.split(name)
    stem, dot, suffix = base.partition(".")
    return os.path.join(folder, stem), (dot + suffix).lower()


def _class_number(member: _Member) -> int:
    try:
        text = member.read()[:_LONGEST_LABEL].decode("ascii").strip()
        return int(np.int64(int(text)))
    except UserError:
        raise
    except (Unusable, ValueError, OverflowError):
        raise UserError(
            f"{member.file.path!r}: {member.name} must contain a whole number (the class)."
        ) from None
