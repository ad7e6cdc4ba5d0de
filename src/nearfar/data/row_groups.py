"""Rows of Parquet files by number, read by row group; a window of groups is in memory."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nearfar.data.records import content_digest
from nearfar.data.remote import RemoteFile, RowGroupCache, is_not_disk_error, retry
from nearfar.errors import Stopped, UserError, error_reason
from nearfar.modalities.dataset import Blocks, Unusable
from nearfar.system.arrow_reading import DecodedBytes, content_batches, content_leaf

# of row groups that are mixed at a time: bounds memory, and is the same on every machine
WINDOW_BYTES = 2**28
MAX_GROUPS = 64
SPARE = 4  # groups beyond the window, for batches that are made ahead
DIGEST = "digest"  # column of packed files: `content_digest` of each row's bytes

StoredRow = tuple[bytes | Unusable, bytes | None]  # bytes, and their digest where one is stored


class RowGroups:
    """Random access to the bytes in one column of several files.

    A row whose bytes were read and are invalid, or do not match their digest, is an `Unusable` with the
    reason. Bytes that cannot be read are tried again, and then end the run (`data.retry`).
    """

    def __init__(self, files: Sequence[RemoteFile], column: str, *, digests: bool = False) -> None:
        self._files, self._column, self._digests = files, column, digests
        self._footers, self._leaves = [], []
        for file in files:
            metadata, schema = footer_of(file)
            self._footers.append(metadata)
            leaves = [column, DIGEST] if digests and DIGEST in schema.names else [column]
            self._leaves.append([content_leaf(schema, name, file.path) for name in leaves])
        self._groups = [
            (number, group)
            for number, footer in enumerate(self._footers)
            for group in range(footer.num_row_groups)
        ]
        counts = [self._footers[file].row_group(group).num_rows for file, group in self._groups]
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.blocks = Blocks(self._ends - counts, self._window())
        self._loaded: OrderedDict[int, Future[list[StoredRow]]] = OrderedDict()
        self._bytes: dict[int, int] = {}  # of the groups in memory
        self._lock = threading.Lock()
        remote = any(file.system is not None for file in files)
        self._cache = RowGroupCache.of_user() if remote else None
        self._marks = [file.mark() for file in files] if remote else []

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def counts(self) -> list[int]:
        """Rows of each file."""
        return [footer.num_rows for footer in self._footers]

    def read_row(self, row: int) -> bytes:
        block = int(np.searchsorted(self._ends, row, side="right"))
        data, digest = self._block(block)[row - int(self.blocks.starts[block])]
        if isinstance(data, Unusable):
            raise data
        if digest is not None and content_digest(data) != digest:
            raise Unusable("damaged: its bytes are no longer those that were packed")
        return data

    def _block(self, block: int) -> list[StoredRow]:
        """A group's rows; the first caller reads them, callers meanwhile wait for that."""
        with self._lock:
            future = self._loaded.get(block)
            reads = future is None
            if future is None:
                future = self._loaded[block] = Future()
                while len(self._loaded) > self.blocks.window + SPARE:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(block)
        if reads:
            try:
                rows = self._rows(block)
                future.set_result(rows)
                self._make_room(block, sum(len(row) for row, _ in rows if isinstance(row, bytes)))
            except BaseException as error:
                with self._lock:  # the next caller tries again
                    if self._loaded.get(block) is future:
                        del self._loaded[block]
                future.set_exception(error)
        return future.result()

    def _make_room(self, block: int, count: int) -> None:
        """Drops the oldest groups where they take more than their footers promised."""
        with self._lock:
            self._bytes[block] = count
            self._bytes = {number: size for number, size in self._bytes.items() if number in self._loaded}
            while len(self._loaded) > 1 and sum(self._bytes.values()) > 2 * WINDOW_BYTES:
                self._bytes.pop(self._loaded.popitem(last=False)[0], None)

    def _rows(self, block: int) -> list[StoredRow]:
        number, group = self._groups[block]
        count = self._footers[number].row_group(group).num_rows
        try:
            table = self._table(number, group)
            cells = contents(table.column(self._column))
            digests = table.column(DIGEST).to_pylist() if self._digests else [None] * len(cells)
            empty = Unusable(f"empty row: no {self._column} bytes are stored")
            rows: list[StoredRow] = [
                (empty if row is None else row, digest) for row, digest in zip(cells, digests, strict=True)
            ]
        except UserError:
            raise
        except MemoryError as error:
            raise UserError(
                f"{self._files[number].path!r}: row group {group} does not fit into the memory that is left."
            ) from error
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise UserError(
                    f"{self._files[number].path!r} cannot be read: {error_reason(error)}."
                ) from error
            rows = [(Unusable(f"unreadable row group: {error_reason(error)}"), None)] * count
        if len(rows) != count:
            reason = Unusable("unreadable row group: the number of rows differs from the footer")
            rows = [(reason, None)] * count
        return rows

    def _table(self, number: int, group: int) -> pa.Table:
        file = self._files[number]

        def fetch() -> pa.Table:
            limit = f"more than {WINDOW_BYTES:,} bytes, too large to be mixed in memory"
            counter = DecodedBytes(
                WINDOW_BYTES, f"{file.path!r}: row group {group} would decompress to {limit}"
            )
            with file.parquet(self._footers[number]) as opened:
                batches = list(content_batches(opened, group, self._leaves[number], counter))
            return pa.Table.from_batches(batches).combine_chunks()

        if self._cache is None:
            return retry(self._files[number].path, fetch, is_not_disk_error)
        return self._cache.table(self._marks[number], group, fetch)

    def _window(self) -> int:
        sizes = [self._footers[file].row_group(group).total_byte_size for file, group in self._groups]
        largest = max(sizes, default=0)
        if largest > WINDOW_BYTES:
            raise UserError(
                f"{self._files[0].path!r} and its like have row groups of up to {largest / 2**20:,.0f} MiB, "
                "too large to be mixed in memory; nearfar pack writes smaller ones"
            )
        mean = sum(sizes) / max(1, len(sizes))
        return max(1, min(MAX_GROUPS, int(WINDOW_BYTES / max(1.0, mean))))


def open_parquet(file: RemoteFile) -> Any:
    """The opened file, or one sentence about it."""
    try:
        return file.parquet()
    except (UserError, Stopped):
        raise
    except Exception as error:  # whatever a damaged file provokes in the reader
        raise UserError(f"{file.path!r} cannot be read as Parquet: {error_reason(error)}.") from error


def footer_of(file: RemoteFile) -> tuple[Any, Any]:
    """The metadata and the Arrow schema of a file."""
    with open_parquet(file) as opened:
        return opened.metadata, opened.schema_arrow


def contents(column: Any) -> list[bytes | None]:
    """The bytes of a column that holds them, or structs of `bytes` and more."""
    kind = column.type
    cells = pc.struct_field(column, "bytes") if pa.types.is_struct(kind) else column
    return list(cells.to_pylist())
