"""PNG of 16 bits → uint16. Pillow reads their colours with the high byte alone, so rows are unfiltered here."""

import struct
import zlib
from typing import Final

import numpy as np
from jaxtyping import UInt16
from numba import njit

from nearfar.modalities.dataset import Unusable
from nearfar.modalities.image.tiff import on_white

PNG_START: Final = b"\x89PNG\r\n\x1a\n"
_CHANNELS: Final = {0: 1, 2: 3, 4: 2, 6: 4}  # by colour type


def is_deep_png(data: bytes) -> bool:
    return data.startswith(PNG_START) and data[24:25] == b"\x10"


def deep_png_pixels(data: bytes, max_pixels: int) -> UInt16[np.ndarray, "height width channel"]:
    """Grey in one channel or colours in three; alpha is laid on white. Raises `Unusable`."""
    width, height, _, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    if width * height > max_pixels:
        raise Unusable(f"too large: {width} x {height} pixels; the limit is {max_pixels:,} in all")
    if colour not in _CHANNELS or not width * height:
        raise Unusable(f"corrupt: {width} x {height} pixels of colour type {colour}")
    if interlaced:
        raise Unusable("an interlaced PNG of 16 bits; save it without interlacing")
    step = 2 * _CHANNELS[colour]
    size = height * (1 + width * step)
    raw = zlib.decompressobj().decompress(_packed(data), size)
    if len(raw) < size:
        raise Unusable(f"truncated: {len(raw):,} of {size:,} bytes of pixels")
    rows = np.frombuffer(bytearray(raw), np.uint8).reshape(height, 1 + width * step)
    del raw
    if not _unfilter(rows, step):
        raise Unusable("corrupt: an unknown filter of a PNG's row")
    image = rows[:, 1:].view(">u2").astype(np.uint16).reshape(height, width, _CHANNELS[colour])
    return on_white(image) if image.shape[2] in (2, 4) else image


def _packed(data: bytes) -> bytes:
    """The compressed bytes of all IDAT chunks, whose checksums are compared."""
    parts: list[bytes] = []
    place = len(PNG_START)
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        if kind == b"IEND":
            return b"".join(parts)
        stored = data[place + 8 + length : place + 12 + length]
        if kind in (b"IHDR", b"IDAT") and zlib.crc32(body, zlib.crc32(kind)) != int.from_bytes(stored, "big"):
            raise Unusable(f"corrupt: the checksum of a {kind.decode()} chunk is wrong")
        if kind == b"IDAT":
            parts.append(body)
        place += length + 12
    raise Unusable("truncated: the PNG ends before its end marker")


@njit(cache=True, nogil=True)
def _unfilter(rows: np.ndarray, step: int) -> bool:
    """Undoes the filter of each row in place (PNG specification, section 9); False if one is unknown."""
    for y in range(len(rows)):
        kind = rows[y, 0]
        if kind > 4:
            return False
        for x in range(1, rows.shape[1]):
            left = int(rows[y, x - step]) if x > step else 0
            up = int(rows[y - 1, x]) if y > 0 else 0
            corner = int(rows[y - 1, x - step]) if y > 0 and x > step else 0
            add = 0
            if kind == 1:
                add = left
            elif kind == 2:
                add = up
            elif kind == 3:
                add = (left + up) // 2
            elif kind == 4:
                guess = left + up - corner
                by_left, by_up, by_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
                add = corner
                if by_left <= by_up and by_left <= by_corner:
                    add = left
                elif by_up <= by_corner:
                    add = up
            rows[y, x] = (int(rows[y, x]) + add) & 255
    return True
