"""Pixels as they are, with their shape before them: the quickest to read, and for any number of channels."""

import struct
from typing import Final

import numpy as np
from jaxtyping import UInt8

from nearfar.modalities.dataset import Unusable

MAGIC: Final = b"NFPX"
_HEAD: Final = struct.Struct("<4s3I")  # magic, height, width, channels
_MOST_CHANNELS: Final = 16


def to_raw(pixels: UInt8[np.ndarray, "height width channel"]) -> bytes:
    return _HEAD.pack(MAGIC, *pixels.shape) + np.ascontiguousarray(pixels).tobytes()


def from_raw(data: bytes, most_pixels: int) -> UInt8[np.ndarray, "height width channel"]:
    """The pixels, not copied."""
    if len(data) < _HEAD.size:
        raise Unusable("truncated: raw pixels without their shape")
    _, height, width, channels = _HEAD.unpack_from(data)
    if not (0 < height * width <= most_pixels and 0 < channels <= _MOST_CHANNELS):
        raise Unusable(f"corrupt: raw pixels of shape {height} x {width} x {channels}")
    if len(data) != _HEAD.size + height * width * channels:
        raise Unusable(
            f"truncated: {len(data) - _HEAD.size:,} bytes for {height} x {width} x {channels} pixels"
        )
    return np.frombuffer(data, np.uint8, offset=_HEAD.size).reshape(height, width, channels)
