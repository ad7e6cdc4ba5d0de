"""Reading that may fail for no fault of the data: it is tried again a few times, and then the run stops and can be resumed.

What could not be read says nothing of the bytes that lie there, so it never goes to quarantine.
"""

import errno
import io
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from nearfar.errors import Stopped, UserError

Read = TypeVar("Read")
WAITS = (0.2, 1.0, 5.0)  # seconds between tries
_FINAL = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    ValueError,
    NotImplementedError,
)
_LATER = (408, 425, 429)  # of the answers that blame a request, those that may change
_OF_NO_DISK = (None, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EINVAL)

NO_RANGES = "its server does not answer range requests; copy it here"


class Unreachable(Stopped):
    """Bytes that could not be read in several tries; whether they are sound is not known."""


def is_final(error: Exception) -> bool:
    """Whether a file system elsewhere would say the same again."""
    cause = error.__cause__
    hidden = (
        isinstance(error, FileNotFoundError) and cause is not None
    )  # over http it stands for every failure
    if hidden and (isinstance(cause, OSError) or type(cause).__module__.startswith("aiohttp")):
        return is_final(cause)  # type: ignore[arg-type]
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return 400 <= status < 500 and status not in _LATER
    return isinstance(error, _FINAL)


def is_no_read_error(error: Exception) -> bool:
    """Whether what was raised over a local file is for another reason than that its disk failed to give bytes. Arrow's decoders raise
    OSError too, without a number."""
    return not isinstance(error, OSError) or error.errno in _OF_NO_DISK


def tried(path: str, read: Callable[[], Read], final: Callable[[Exception], bool] = is_final) -> Read:
    """What `read` gives at one of its tries. An error that is `final` is raised as it is."""
    for wait in (*WAITS, None):
        try:
            return read()
        except (UserError, Stopped):
            raise
        except Exception as error:  # every file system fails in its own way
            if final(error):
                raise
            if wait is None:
                raise Unreachable(
                    f"{path!r} could not be read in {len(WAITS) + 1} tries ({reason(error)}); the same command goes on from what was "
                    "saved"
                ) from error
        time.sleep(wait)
    raise AssertionError


def reason(error: BaseException) -> str:
    """What an error says, in one line, or what it is called."""
    said = getattr(error, "strerror", None) or str(error)
    return (str(said).splitlines() or [""])[0].rstrip(".") or type(error).__name__


class Steady(io.BufferedIOBase):
    """A file elsewhere, to be read: where that fails, the file is opened anew and read at the same place."""

    def __init__(self, path: str, opened: Callable[[], Any]) -> None:
        self._path, self._opened, self._place = path, opened, 0
        self._file: Any = None
        self._do(lambda file: None)

    def _do(self, use: Callable[[Any], Read]) -> Read:
        def once() -> Read:
            try:
                self._file = self._opened() if self._file is None else self._file
                return use(self._file)
            except Exception:
                self._file = None
                raise

        try:
            return tried(self._path, once)
        except (ValueError, NotImplementedError) as error:
            raise UserError(
                f"{self._path!r} cannot be read in parts ({reason(error)}): {NO_RANGES}"
            ) from error
        except (OSError, ImportError) as error:
            raise UserError(f"{self._path!r} cannot be read: {said_of(error)}.") from error

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
        def here(file: Any) -> bytes:
            file.seek(self._place)
            return bytes(file.read(-1 if size is None else size))

        found = self._do(here)
        self._place += len(found)
        return found

    def close(self) -> None:
        if self._file is not None and not self.closed:
            self._file.close()
        super().close()


def said_of(error: BaseException) -> str:
    """Of a file that is not there file systems say nothing but its name."""
    return "it was not found" if isinstance(error, FileNotFoundError) else reason(error)
