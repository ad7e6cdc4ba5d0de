"""How much a Parquet file unpacks to, read from its own directory and page headers before anything is unpacked.

Arrow tells this too, but ends the process on some damaged footers, and believes a page that is larger than its footer says. Both
structures are in Thrift's compact protocol, of which this reads as much as is needed: a struct as {field number: value}.

    FileMetaData  4: row groups      RowGroup  1: column chunks      ColumnChunk  3: ColumnMetaData
    ColumnMetaData  3: path  6: unpacked bytes  7: packed bytes  9: first data page  11: dictionary page
    PageHeader  2: unpacked bytes  3: packed bytes
"""

import os
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any, BinaryIO

from nearfar.errors import UserError
from nearfar.system.untrusted import check_regular, check_unpacked

_DEEPEST = 32
_LONGEST_HEADER = 2**16  # bytes of a page header: more than statistics of two values ever need
_MAGIC = b"PAR1"
_FAILURES = (OSError, ValueError, LookupError, TypeError, AttributeError)


def check_parquet(path: str | os.PathLike[str], columns: Collection[str]) -> None:
    """Stops a file of which one of these columns (with what is nested in it) unpacks to a large multiple of itself."""
    name = os.fspath(path)
    try:
        size = check_regular(path)
    except OSError as error:
        raise UserError(f"{name!r} cannot be read as Parquet: {error.strerror}.") from error
    Pages(lambda: open(path, "rb"), size, name).check(columns)  # noqa: SIM115  closed by whoever opens


class Pages:
    """The sizes of a file's pages: its directory is read once, the headers of a row group's pages when that is asked about."""

    def __init__(self, opened: Callable[[], BinaryIO], size: int, path: str) -> None:
        self._open, self._size, self._path = opened, size, path
        try:
            with opened() as file:
                self._groups = _chunks(file, size)
        except _FAILURES as error:
            raise self._unread(error) from error

    def check(self, columns: Collection[str], group: int | None = None) -> None:
        """Stops what unpacks to a large multiple of itself, in one row group or in all together."""
        packed: defaultdict[str, int] = defaultdict(int)
        unpacked: defaultdict[str, int] = defaultdict(int)
        try:
            groups = self._groups if group is None else [self._groups[group]]
            with self._open() as file:
                for chunk in (chunk for held in groups for chunk in held):
                    name = chunk[3][0].decode("utf-8", "replace")
                    if name in columns:
                        inside, outside = _pages(file, chunk)
                        packed[name] += min(outside, self._size)
                        unpacked[name] += max(inside, chunk[6])
        except _FAILURES as error:
            raise self._unread(error) from error
        for name in packed:
            check_unpacked(self._path, packed[name], unpacked[name])

    def unpacked(self, column: str, group: int | None = None) -> int:
        """Bytes of a column with what is nested in it, in one row group or in all, as the directory tells."""
        groups = self._groups if group is None else [self._groups[group]]
        name = column.encode()
        try:
            return sum(chunk[6] for held in groups for chunk in held if chunk[3][0] == name)
        except _FAILURES as error:
            raise self._unread(error) from error

    def _unread(self, error: Exception) -> UserError:
        reason = getattr(error, "strerror", None) or "its directory makes no sense"
        return UserError(f"{self._path!r} cannot be read as Parquet: {reason}.")


def _chunks(file: BinaryIO, size: int) -> list[list[dict[int, Any]]]:
    """The metadata of every row group's column chunks, from the footer."""
    file.seek(max(size - 8, 0))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length + 8 > size:
        raise ValueError("no footer")
    file.seek(size - 8 - length)
    groups = _Compact(file.read(length)).struct().get(4, [])
    return [[chunk[3] for chunk in group[1]] for group in groups]


def _pages(file: BinaryIO, chunk: dict[int, Any]) -> tuple[int, int]:
    """(unpacked, packed) bytes of a chunk by the headers of its pages, as far as they can be read."""
    place = min(chunk[9], chunk.get(11) or chunk[9])
    end = place + chunk[7]
    unpacked = packed = 0
    while 0 <= place < end:
        file.seek(place)
        reader = _Compact(file.read(_LONGEST_HEADER))
        try:
            header = reader.struct()
            inside, outside = header[2], header[3]
        except (ValueError, LookupError):  # a damaged page: its rows will say so
            break
        if min(inside, outside) < 0:
            break
        unpacked, packed = unpacked + inside, packed + outside
        place += reader.place + outside
    return unpacked, packed


class _Compact:
    """Thrift's compact protocol; what does not follow it, or ends early, is a ValueError or an IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data, self.place, self._depth = data, 0, 0

    def struct(self) -> dict[int, Any]:
        self._deeper()
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = self._value(head & 15, in_field=True)
        self._depth -= 1
        return fields

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("too deep")

    def _value(self, kind: int, in_field: bool = False) -> Any:
        if kind in (1, 2):  # a truth value: of a field, in its head; in a list, a byte
            return kind == 1 if in_field else self._byte() == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._unsigned())
        if kind in (9, 10):
            return self._list()
        if kind == 12:
            return self.struct()
        raise ValueError(f"kind {kind}")  # also a map, which Parquet does not use

    def _list(self) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        if count > len(self._data) - self.place:  # every element has a byte at least
            raise ValueError("too many")
        self._deeper()  # lists of lists of lists, too
        held = [self._value(head & 15) for _ in range(count)]
        self._depth -= 1
        return held

    def _byte(self) -> int:
        value = self._data[self.place]
        self.place += 1
        return value

    def _bytes(self, count: int) -> bytes:
        if count > len(self._data) - self.place:
            raise ValueError("too long")
        self.place += count
        return self._data[self.place - count : self.place]

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("endless number")

    def _signed(self) -> int:
        zigzag = self._unsigned()
        return zigzag >> 1 ^ -(zigzag & 1)
