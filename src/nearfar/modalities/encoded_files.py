"""Encoded pictures and recordings in files of their own."""

import os
import stat

from nearfar.modalities.dataset import Unusable

MAX_BYTES = 400_000_000  # of one file: what an uncompressed picture of the largest size may take, twice


def file_bytes(path: str) -> bytes:
    """A regular file's bytes; anything else (a pipe would block for ever) is unusable."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            os.listdir(path)  # a folder counts as a file only when it could not be listed; this says why
        if not stat.S_ISREG(status.st_mode):
            raise Unusable("unreadable: not a regular file")
        if status.st_size > MAX_BYTES:
            raise Unusable(f"too large: {status.st_size:,} bytes; the limit is {MAX_BYTES:,}")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Unusable(f"unreadable: {error.strerror}") from error
