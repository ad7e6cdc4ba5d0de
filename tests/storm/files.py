"""Files of every kind we read, changed at random places: they are opened, or refused in one sentence."""

import io
import random
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from nearfar.data import open_data
from nearfar.estimate.read import read_sample


def picture(rng: random.Random, kind: str) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(rng.getrandbits(32)).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def sound(rng: random.Random) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((rng.choice([1, 2]), rng.choice([1, 2, 3, 4]), 8000, 0, "NONE", ""))
        file.writeframes(rng.randbytes(file.getnchannels() * file.getsampwidth() * 300))
    return out.getvalue()


def arrays(rng: random.Random, **named: np.ndarray) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if rng.random() < 0.5 else np.savez)(out, **named)  # type: ignore[arg-type]
    return out.getvalue()


def images_npz(rng: random.Random) -> bytes:
    return arrays(rng, images=np.zeros((5, 8, 8, 3), np.uint8), labels=np.arange(5) % 2)


def tokens_npz(rng: random.Random) -> bytes:
    return arrays(rng, tokens=np.arange(40).reshape(5, 8) % 7)


def table(rng: random.Random) -> bytes:
    out = io.BytesIO()
    columns = {"image": [{"bytes": picture(rng, "PNG")} for _ in range(6)], "label": [0, 1] * 3}
    options = {"compression": rng.choice(["none", "snappy", "zstd"]), "use_dictionary": rng.random() < 0.5}
    pq.write_table(pa.table(columns), out, row_group_size=4, **options)
    return out.getvalue()


def numbers(rng: random.Random) -> bytes:
    rows = [",".join(f"{rng.gauss(0, 1):.4f}" for _ in range(3)) for _ in range(30)]
    return "\n".join(["a,b,c", *rows]).encode()


def text(rng: random.Random) -> bytes:
    return "".join(rng.choices("abc déf\n ☃", k=400)).encode()


KINDS: dict[str, Callable[[random.Random], bytes]] = {
    ".png": lambda rng: picture(rng, "PNG"),
    ".jpg": lambda rng: picture(rng, "JPEG"),
    ".webp": lambda rng: picture(rng, "WEBP"),
    ".bmp": lambda rng: picture(rng, "BMP"),
    ".wav": sound,
    ".txt": text,
    ".npz": lambda rng: rng.choice([images_npz, tokens_npz])(rng),
    ".parquet": table,
    ".csv": numbers,
}


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """One to four of: flip a bit, set a byte, insert, delete, repeat, zero, truncate, take another file's part."""
    for _ in range(rng.randint(1, 4)):
        raw = bytearray(data)
        place, width = rng.randrange(len(raw) + 1), rng.randint(1, 16)
        kind = rng.randrange(9)
        if kind == 0 and raw:
            raw[place % len(raw)] ^= 1 << rng.randrange(8)
        elif kind == 1 and raw:  # headers are where it hurts
            raw[place % min(len(raw), 64)] = rng.randrange(256)
        elif kind == 2 and raw:  # and footers
            raw[-1 - place % min(len(raw), 400)] = rng.randrange(256)
        elif kind == 3:
            raw[place:place] = rng.randbytes(width)
        elif kind == 4:
            del raw[place : place + width]
        elif kind == 5:
            raw[place:place] = raw[place : place + width] * rng.randint(1, 50)
        elif kind == 6:
            raw[place : place + width] = bytes(len(raw[place : place + width]))
        elif kind == 7:
            del raw[place:]
        else:
            raw[place : place + width] = other[place : place + width]
        data = bytes(raw)
    return data


def case(rng: random.Random, place: Path) -> str:
    suffix = rng.choice([*KINDS])
    make = KINDS[suffix]
    damaged = [mutated(make(rng), make(rng), rng) for _ in range(4)]
    if suffix == ".csv":
        (place / "a.csv").write_bytes(damaged[0])
        read_sample(str(place / "a.csv"))
        return "read"
    if suffix in (".npz", ".parquet"):
        (place / f"a{suffix}").write_bytes(damaged[0])
        opened = open_data(place / f"a{suffix}", max_bad_share=0.99)
    else:
        for number, data in enumerate([make(rng), *damaged]):
            (place / f"{number}{suffix}").write_bytes(data)
        opened = open_data(place, max_bad_share=0.99, cache_bytes=rng.choice([0, 10**6]))
    opened.load(np.arange(len(opened)))
    return "opened, some set aside" if opened.quarantine else "opened"
