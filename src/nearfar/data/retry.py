"""Reads that may fail through no fault of the data: tried again, then the run stops resumably.

Bytes that could not be read may be sound, so they never go to quarantine.
"""

import errno
import io
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from nearfar.errors import Stopped, UserError, error_reason

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
    cause = error.__cause__
    hidden = (
        isinstance(error, FileNotFoundError) and cause is not None
    )  # over http it stands for every failure
    if hidden and (isinstance(cause, OSError) or type(cause).__module__.startswith("aiohttp")):
        return is_permanent(cause)  # type: ignore[arg-type]
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return 400 <= status < 500 and status not in TEMPORARY_STATUS
    return isinstance(error, PERMANENT_ERRORS)


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
                raise Unreachable(
                    f"{path!r} could not be read in {len(RETRY_SECONDS) + 1} tries ({error_reason(error)}); "
                    "rerun the command to resume"
                ) from error
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
