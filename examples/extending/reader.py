"""A data reader: this file, and a line in `nearfar/data/open.py`:  FORMATS[".idx"] = ArrayFormat(3, read)

    nearfar pretrain simclr train-images.idx --out runs/a

IDX is MNIST's format: two zero bytes, a type, the number of axes, each axis as a big-endian 32-bit number,
then the numbers. Three axes are grey pictures."""

import struct
from pathlib import Path

import numpy as np

from nearfar.errors import UserError
from nearfar.modalities.base import Arrays


def read(path: Path, name: str) -> Arrays:
    raw = path.read_bytes()
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise UserError(f"data {name!r} are no IDX file of bytes")
    shape = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]]) if len(raw) >= 4 + 4 * raw[3] else ()
    body = np.frombuffer(raw, dtype=np.uint8, offset=min(len(raw), 4 + 4 * raw[3]))
    if len(shape) != 3 or len(body) != np.prod(shape, dtype=np.int64):
        raise UserError(
            f"data {name!r} hold {len(body)} bytes for the shape {shape}; expected (images, height, width)"
        )
    return Arrays(body.reshape(shape), paths=tuple(f"{path.name}#{row}" for row in range(shape[0])))
