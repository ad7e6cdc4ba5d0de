"""Files of every kind we read, changed at random places: they are opened, or refused in one sentence."""

import gzip
import io
import random
import tarfile
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from nearfar.data import open_data
from nearfar.data.packing import pack
from nearfar.errors import UserError
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


def vectors_npz(rng: random.Random) -> bytes:
    return arrays(
        rng, x=np.random.default_rng(rng.getrandbits(32)).normal(size=(8, 3)), labels=np.arange(8) % 2
    )


def pairs(rng: random.Random) -> bytes:
    out = io.BytesIO()
    columns = {
        "image": [{"bytes": picture(rng, "PNG")} for _ in range(6)],
        "caption": [f"a {n} ☃" for n in range(6)],
    }
    pq.write_table(pa.table(columns), out, row_group_size=3)
    return out.getvalue()


def idx(rng: random.Random) -> bytes:
    raw = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (5, 6, 7)) + rng.randbytes(5 * 6 * 7)
    return gzip.compress(raw) if rng.random() < 0.5 else raw


def shard(rng: random.Random) -> bytes:
    """webdataset's convention."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(4):
            for suffix, data in ((".png", picture(rng, "PNG")), (".cls", str(number % 2).encode())):
                member = tarfile.TarInfo(f"{number:03}{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def graphs(rng: random.Random) -> dict[str, bytes]:
    """A TU folder of four graphs of three nodes."""
    edges = [(3 * g + a, 3 * g + b) for g in range(4) for a, b in ((1, 2), (2, 1), (2, 3), (3, 2))]
    files = {
        "A": [f"{a}, {b}" for a, b in edges],
        "graph_indicator": [str(node // 3 + 1) for node in range(12)],
        "graph_labels": [str(rng.choice([-1, 1])) for _ in range(4)],
        "node_labels": [str(rng.randrange(3)) for _ in range(12)],
    }
    return {f"SET_{name}.txt": "\n".join(lines).encode() + b"\n" for name, lines in files.items()}


# items of a folder: many damaged ones are opened at once, with an intact one
ITEMS: dict[str, Callable[[random.Random], bytes]] = {
    ".png": lambda rng: picture(rng, "PNG"),
    ".jpg": lambda rng: picture(rng, "JPEG"),
    ".webp": lambda rng: picture(rng, "WEBP"),
    ".bmp": lambda rng: picture(rng, "BMP"),
    ".wav": sound,
    ".txt": text,
}
# whole sets in one file: the name to write it to, and how it is then named as data
SETS: dict[str, tuple[str, str, Callable[[random.Random], bytes]]] = {
    "pictures in an array": ("a.npz", "{}", images_npz),
    "tokens": ("a.npz", "{}", tokens_npz),
    "vectors": ("a.npz", "{}", vectors_npz),
    "pictures in a table": ("a.parquet", "{}", table),
    "pairs": ("a.parquet", "pairs:{}:image,caption", pairs),
    "a time series": ("a.csv", "series:{}", numbers),
    "a table of numbers": ("a.csv", "{}", numbers),
    "idx": ("train-images-idx3-ubyte", "idx:{}", idx),
    "a tar file": ("a.tar", "{}", shard),
    "graphs": ("set", "{}", lambda rng: b""),
}
SETS_PER_CASE, ITEMS_PER_FOLDER = 4, 16  # sets of a case, items of a folder


def mutated(data: bytes, donor: bytes, rng: random.Random) -> bytes:
    """One to four of: flip a bit, set a byte, insert, delete, repeat, zero, truncate, splice in another
    file."""
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
            raw[place : place + width] = donor[place : place + width]
        data = bytes(raw)
    return data


def items(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    """A folder of damaged files and a sound one."""
    suffix = rng.choice([*ITEMS])
    make = ITEMS[suffix]
    contents = [make(rng) for _ in range(4)]
    for number in range(ITEMS_PER_FOLDER):
        (place / f"{number}{suffix}").write_bytes(mutated(rng.choice(contents), rng.choice(contents), rng))
    (place / f"sound{suffix}").write_bytes(contents[0])
    opened = open_data(place, max_bad_share=0.99, cache_bytes=rng.choice([0, 10**6]))
    opened.load(np.arange(len(opened)))
    return "opened, some set aside" if opened.quarantine else "opened", {"files": ITEMS_PER_FOLDER}


def whole(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    """Sets of one file, or of a few that belong together, each damaged."""
    kind, refused = rng.choice([*SETS]), 0
    name, spec, make = SETS[kind]
    for number in range(SETS_PER_CASE):
        folder = place / str(number)
        folder.mkdir()
        file = folder / name
        if kind == "graphs":
            file.mkdir()
            files = graphs(rng)
            hit = rng.choice([*files])
            for inside, data in files.items():
                (file / inside).write_bytes(mutated(data, files["SET_A.txt"], rng) if inside == hit else data)
        else:
            file.write_bytes(mutated(make(rng), make(rng), rng))
        try:
            read_set(kind, spec.format(folder if kind == "idx" else file), folder)
        except UserError:
            refused += 1
    return "refused" if refused == SETS_PER_CASE else "read" if not refused else "some refused", {
        "files": SETS_PER_CASE
    }


def read_set(kind: str, spec: str, folder: Path) -> None:
    if kind == "a table of numbers":
        read_sample(spec)
    elif kind == "a tar file":
        pack(spec, folder / "packed", max_bad_share=0.99, workers=1)
    else:
        opened = open_data(spec, max_bad_share=0.99)
        opened.load(np.arange(len(opened)))


def case(rng: random.Random, place: Path) -> tuple[str, dict[str, int]]:
    return (items if rng.random() < 0.7 else whole)(rng, place)
