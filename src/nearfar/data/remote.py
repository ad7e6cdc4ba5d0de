"""Files here, or anywhere that fsspec opens (s3://, gs://, https://, memory://), and a local cache with a limit for those.

`NEARFAR_CACHE` names the cache's folder (default: nearfar/ in the user's cache folder) and `NEARFAR_CACHE_GB` its limit (default 10).
"""

import hashlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from nearfar.data.tries import NO_RANGES, Steady, Unreachable, reason, said_of, tried
from nearfar.errors import UserError
from nearfar.system.files import replace_file
from nearfar.system.untrusted import arrow_path, check_regular


def is_url(spec: str) -> bool:
    return "://" in spec


@dataclass(frozen=True)
class At:
    """A file here, or on a file system of fsspec's (`system`)."""

    path: str
    system: Any = None

    def open(self) -> BinaryIO:
        if self.system is None:
            return open(self.path, "rb")
        return Steady(self.path, lambda: self.system.open(self.path, "rb"))  # type: ignore[return-value]

    def read_all(self) -> bytes:
        with self.open() as file:
            return file.read()

    def part(self, start: int, size: int) -> bytes:
        """So many bytes from `start` on, or as many as there are."""
        if self.system is None:
            with open(self.path, "rb") as file:
                return os.pread(file.fileno(), size, start)
        if not size:
            return b""
        end = start + size
        try:
            data: bytes = tried(self.path, lambda: self.system.cat_file(self.path, start=start, end=end))
        except Exception as error:
            if isinstance(error, UserError | Unreachable):
                raise
            raise UserError(f"{self.path!r} cannot be read: {said_of(error)}.") from error
        if len(data) > size:
            raise UserError(f"{self.path!r} cannot be read in parts: {NO_RANGES}")
        return data

    def exists(self) -> bool:
        """Whether it is there and may be looked at; not whether that could be asked, which is `Unreachable`."""
        try:
            return check_regular(self.path) >= 0 if self.system is None else bool(self.info())
        except Unreachable:
            raise
        except Exception:  # some stores forbid what is not there
            return False

    def size(self) -> int:
        if self.system is None:
            return check_regular(self.path)
        size = self.info().get("size")
        if size is None:
            raise UserError(
                f"{self.path!r} cannot be read in parts: its server does not tell its size; copy it here"
            )
        return int(size)

    def info(self) -> dict[str, Any]:
        info: dict[str, Any] = tried(self.path, lambda: self.system.info(self.path))
        return info

    def arrow_source(self) -> Any:
        """The file as Arrow opens it."""
        if self.system is None:
            check_regular(self.path)
            return arrow_path(self.path)
        return self.open()

    def parquet(self, metadata: Any = None) -> Any:
        return pq.ParquetFile(self.arrow_source(), metadata=metadata)

    def mark(self) -> str:
        """Changes when the file may have."""
        if self.system is not None:
            return str(tried(self.path, lambda: self.system.ukey(self.path)))
        status = os.stat(self.path)
        return f"{os.path.abspath(self.path)}\0{status.st_size}\0{status.st_mtime_ns}"


def elsewhere(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path on it."""
    import fsspec  # type: ignore[import-untyped]

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as problem:
        raise UserError(
            f"data {url!r} cannot be opened: {problem}; expected a URL whose file system fsspec has installed "
            "(pip install 'nearfar[s3]', 'nearfar[gcs]' or 'nearfar[http]')"
        ) from None
    return system, path


def listed(url: str, suffix: str | tuple[str, ...]) -> list[tuple[At, int]]:
    """The files of a remote folder, or the file itself, by name, with their sizes. A folder over http is its page of links."""
    system, root = elsewhere(url)
    at = At(root, system)
    try:
        single = root.lower().endswith(suffix) and at.info().get("type") == "file"
        found = [root] if single else sorted(_below(system, root))
        files = [At(path, system) for path in found if path.lower().endswith(suffix)]
        return [(file, file.size()) for file in files]
    except UserError:
        raise
    except Unreachable as problem:
        raise UserError(f"data {url!r} cannot be opened: {reason(problem.__cause__ or problem)}.") from None
    except Exception as problem:  # every file system fails in its own way
        raise UserError(f"data {url!r} cannot be opened: {said_of(problem)}.") from None


def _below(system: Any, folder: str) -> Iterator[str]:
    """Every file in a folder elsewhere and in those within it; fsspec's own `find` leaves out what it fails to list."""
    for entry in tried(folder, lambda: system.ls(folder, detail=True)):
        name = str(entry["name"])
        if entry["type"] != "directory":
            yield name
        elif name.rstrip("/") != folder.rstrip("/") and name.startswith(
            folder
        ):  # a page may link to what is above it
            yield from _below(system, name)


class RowGroupCache:
    """Row groups of remote files on the local disk, the least recently used dropped beyond the limit.

    An entry is an Arrow file that appears by one rename, so processes may share a folder. What cannot be written is not kept.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._lock = threading.Lock()

    @classmethod
    def of_user(cls) -> "RowGroupCache":
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = os.environ.get("NEARFAR_CACHE") or os.path.join(home, "nearfar")
        asked = os.environ.get("NEARFAR_CACHE_GB", "10")
        try:
            limit = float(asked)
        except ValueError:
            limit = math.nan
        if not 0 <= limit < math.inf:
            raise UserError(f"NEARFAR_CACHE_GB was {asked!r}; expected a number of gigabytes, 0 for no cache")
        return cls(Path(folder), int(limit * 1e9))

    def table(self, mark: str, group: int, fetch: Callable[[], pa.Table]) -> pa.Table:
        """The row group, read from the disk, or fetched and kept."""
        file = self.folder / f"{hashlib.sha256(f'{mark}/{group}'.encode()).hexdigest()[:40]}.arrow"
        with suppress(OSError, pa.ArrowException), pa.OSFile(arrow_path(file)) as source:
            table = pa.ipc.open_file(source).read_all()
            os.utime(file)
            return table
        table = fetch()
        if table.nbytes <= self.limit:
            with self._lock, suppress(OSError):
                self._make_room(table.nbytes)
                self.folder.mkdir(parents=True, exist_ok=True)
                with (
                    replace_file(file) as fresh,
                    pa.OSFile(arrow_path(fresh), "wb") as sink,
                    pa.ipc.new_file(sink, table.schema) as writer,
                ):
                    writer.write_table(table)
        return table

    def _make_room(self, needed: int) -> None:
        held = []
        for entry in self.folder.glob("*.arrow"):
            with suppress(OSError):  # another process may have dropped it
                status = entry.stat()
                held.append((status.st_mtime_ns, status.st_size, entry))
        room = self.limit - needed - sum(size for _, size, _ in held)
        for _, size, entry in sorted(held):
            if room >= 0:
                return
            entry.unlink(missing_ok=True)
            room += size
