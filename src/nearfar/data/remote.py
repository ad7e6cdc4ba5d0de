"""Files on this machine, or anywhere that fsspec opens (s3://, gs://, https://), and their local cache.

Reads that fail through no fault of the data are tried again, then the run stops resumably: bytes that could
not be read may be sound, so they never go to quarantine.

`NEARFAR_CACHE` names the cache's folder, `NEARFAR_CACHE_GB` its limit (default 10).
"""

import errno
import hashlib
import io
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from nearfar.errors import Stopped, UserError, error_reason
from nearfar.system.files import replace_file
from nearfar.system.untrusted import arrow_path, check_regular, open_regular_file

T = TypeVar("T")
RETRY_SECONDS = (0.2, 1.0, 5.0)  # seconds between tries
PERMANENT_ERRORS = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    ValueError,
    NotImplementedError,
)
TEMPORARY_STATUS = (408, 425, 429)  # HTTP answers to a request that may change
NOT_DISK_ERRORS = (None, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EINVAL)

NO_RANGES = "its server does not answer range requests; copy it here"


class Unreachable(Stopped):
    """Bytes that could not be read in several tries; whether they are sound is not known."""


def is_permanent(error: Exception) -> bool:
    """Whether a remote file system would fail again."""
    error = _root_error(error)
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return 400 <= status < 500 and status not in TEMPORARY_STATUS
    return isinstance(error, PERMANENT_ERRORS)


def _root_error(error: Exception) -> Exception:
    """The failure itself: over http, FileNotFoundError stands for every failure and has it as its cause."""
    cause = error.__cause__
    is_failure = isinstance(cause, OSError) or type(cause).__module__.startswith("aiohttp")
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and is_failure:
        return _root_error(cause)
    return error


def is_not_disk_error(error: Exception) -> bool:
    """Whether an error is not one of the disk. Arrow's decoders raise OSError without a number."""
    return not isinstance(error, OSError) or error.errno in NOT_DISK_ERRORS


def retry(path: str, read: Callable[[], T], permanent: Callable[[Exception], bool] = is_permanent) -> T:
    """The result of `read`, which is tried again after an error that is not `permanent`."""
    for wait in (*RETRY_SECONDS, None):
        try:
            return read()
        except (UserError, Stopped):
            raise
        except Exception as error:  # every file system fails in its own way
            if permanent(error):
                raise
            if wait is None:
                failure = _root_error(error)
                raise Unreachable(
                    f"{path!r} could not be read in {len(RETRY_SECONDS) + 1} tries ({error_reason(failure)}); "
                    "rerun the command to resume"
                ) from failure
        time.sleep(wait)
    raise AssertionError


class RetryingFile(io.BufferedIOBase):
    """A remote file for reading: after an error the file is reopened and read at the same place."""

    def __init__(self, path: str, opened: Callable[[], Any]) -> None:
        self._path, self._opened, self._place = path, opened, 0
        self._file: Any = None
        self._do(lambda file: None)

    def _do(self, use: Callable[[Any], T]) -> T:
        def attempt() -> T:
            try:
                self._file = self._opened() if self._file is None else self._file
                return use(self._file)
            except Exception:
                self._file = None
                raise

        try:
            return retry(self._path, attempt)
        except UserError:
            raise
        except (ValueError, NotImplementedError) as error:
            raise UserError(
                f"{self._path!r} cannot be read in parts ({error_reason(error)}): {NO_RANGES}"
            ) from error
        except (OSError, ImportError) as error:
            raise UserError(f"{self._path!r} cannot be read: {file_error_text(error)}.") from error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, place: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_END:
            self._place = int(self._do(lambda file: file.seek(place, os.SEEK_END)))
        else:
            self._place = place + (self._place if whence == os.SEEK_CUR else 0)
        return self._place

    def read(self, size: int | None = -1, /) -> bytes:
        def read_here(file: Any) -> bytes:
            file.seek(self._place)
            return bytes(file.read(-1 if size is None else size))

        data = self._do(read_here)
        self._place += len(data)
        return data

    def close(self) -> None:
        if self._file is not None and not self.closed:
            self._file.close()
        super().close()


def file_error_text(error: BaseException) -> str:
    """The message of an error about a file; file systems say only the name of a missing one."""
    return "it was not found" if isinstance(error, FileNotFoundError) else error_reason(error)


def is_url(spec: str) -> bool:
    return "://" in spec


@dataclass(frozen=True)
class RemoteFile:
    """A file on this machine, or on one of fsspec's file systems (`system`)."""

    path: str
    system: Any = None

    def open(self) -> BinaryIO:
        if self.system is None:
            return open_regular_file(self.path)
        return RetryingFile(self.path, lambda: self.system.open(self.path, "rb"))  # type: ignore[return-value]

    def read_all(self) -> bytes:
        with self.open() as file:
            return file.read()

    def part(self, start: int, size: int) -> bytes:
        """`size` bytes from `start` on, or as many as there are."""
        if self.system is None:
            with open_regular_file(self.path) as file:
                return os.pread(file.fileno(), size, start)
        if not size:
            return b""
        end = start + size
        try:
            data: bytes = retry(self.path, lambda: self.system.cat_file(self.path, start=start, end=end))
        except Exception as error:
            if isinstance(error, UserError | Unreachable):
                raise
            raise UserError(f"{self.path!r} cannot be read: {file_error_text(error)}.") from error
        if len(data) > size:
            raise UserError(f"{self.path!r} cannot be read in parts: {NO_RANGES}")
        return data

    def exists(self) -> bool:
        """Whether the file exists and is accessible; raises `Unreachable` where that cannot be found out."""
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
        info: dict[str, Any] = retry(self.path, lambda: self.system.info(self.path))
        return info

    def arrow_source(self) -> Any:
        """The file as Arrow opens it."""
        if self.system is None:
            return arrow_path(self.path)
        return self.open()

    def parquet(self, metadata: Any = None) -> Any:
        return pq.ParquetFile(self.arrow_source(), metadata=metadata)

    def mark(self) -> str:
        """Changes when the file may have."""
        if self.system is not None:
            return str(retry(self.path, lambda: self.system.ukey(self.path)))
        status = os.stat(self.path)
        return f"{os.path.abspath(self.path)}\0{status.st_size}\0{status.st_mtime_ns}"


def open_filesystem(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path on it."""
    import fsspec  # type: ignore[import-untyped]

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as problem:
        raise UserError(
            f"data {url!r} cannot be opened: {problem}; expected a URL whose file system fsspec has "
            "installed (pip install 'nearfar[s3]', 'nearfar[gcs]' or 'nearfar[http]')"
        ) from None
    return system, path


def list_files(url: str, suffix: str | tuple[str, ...]) -> list[tuple[RemoteFile, int]]:
    """The files of a remote folder, or the file itself, with sizes. Over http: a page of links."""
    system, root = open_filesystem(url)
    at = RemoteFile(root, system)
    try:
        single = root.lower().endswith(suffix) and at.info().get("type") == "file"
        paths = [root] if single else sorted(_files_below(system, root))
        files = [RemoteFile(path, system) for path in paths if path.lower().endswith(suffix)]
        return [(file, file.size()) for file in files]
    except UserError:
        raise
    except Unreachable as problem:
        raise UserError(
            f"data {url!r} cannot be opened: {error_reason(problem.__cause__ or problem)}."
        ) from None
    except Exception as problem:  # every file system fails in its own way
        raise UserError(f"data {url!r} cannot be opened: {file_error_text(problem)}.") from None


def _files_below(system: Any, folder: str) -> Iterator[str]:
    """Every file of a remote folder and its folders; fsspec's own `find` leaves out what it fails to list."""
    for entry in retry(folder, lambda: system.ls(folder, detail=True)):
        name = str(entry["name"])
        if entry["type"] != "directory":
            yield name
        elif name.rstrip("/") != folder.rstrip("/") and name.startswith(
            folder
        ):  # a page may link to what is above it
            yield from _files_below(system, name)


class RowGroupCache:
    """Row groups of remote files on the local disk, the least recently used dropped beyond the limit.

    An entry is an Arrow file that appears by one rename, so processes may share a folder.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._lock = threading.Lock()

    @classmethod
    def of_user(cls) -> "RowGroupCache":
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = os.environ.get("NEARFAR_CACHE") or os.path.join(home, "nearfar")
        setting = os.environ.get("NEARFAR_CACHE_GB", "10")
        try:
            limit = float(setting)
        except ValueError:
            limit = math.nan
        if not 0 <= limit < math.inf:
            raise UserError(
                f"NEARFAR_CACHE_GB was {setting!r}; expected a number of gigabytes, 0 for no cache"
            )
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
                    replace_file(file) as new,
                    pa.OSFile(arrow_path(new), "wb") as sink,
                    pa.ipc.new_file(sink, table.schema) as writer,
                ):
                    writer.write_table(table)
        return table

    def _make_room(self, needed: int) -> None:
        entries = []
        for entry in self.folder.glob("*.arrow"):
            with suppress(OSError):  # another process may have dropped it
                status = entry.stat()
                entries.append((status.st_mtime_ns, status.st_size, entry))
        room = self.limit - needed - sum(size for _, size, _ in entries)
        for _, size, entry in sorted(entries):
            if room >= 0:
                return
            entry.unlink(missing_ok=True)
            room += size
