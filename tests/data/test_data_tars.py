"""`nearfar pack` on hostile tar files: one sentence within 2 GB, where Python 3.11.7's tarfile never ends."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tifffile
import webdataset
from braceexpand import braceexpand  # webdataset's own
from PIL import Image

from nearfar.data import open_data, pack
from nearfar.data.tars import _HeaderReader, shard_names
from nearfar.errors import UserError
from tests import limited

pytestmark = limited.needs_linux


def picture() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (9, 9), (10, 200, 30)).save(out, "PNG")
    return out.getvalue()


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header of 512 bytes; negative sizes are written in base 256, as GNU tar does."""
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, 0
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136] = b"%011o\0" % size if size >= 0 else b"\xff" + (size % 256**11).to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name: str, data: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, len(data), kind) + data + bytes(-len(data) % 512)


def record(key: bytes, value: bytes) -> bytes:
    """One record of a pax header, which begins with its own length."""
    length = len(key) + len(value) + 3
    length += len(str(length + len(str(length))))
    return b"%d %s=%s\n" % (length, key, value)


GOOD, END = member("0.png", picture()), bytes(1024)
SPARSE_MAP = (
    record(b"GNU.sparse.major", b"1")
    + record(b"GNU.sparse.minor", b"0")
    + record(b"GNU.sparse.name", b"1.png")
)
HOSTILE = {
    "negative size": (GOOD + header("1.png", -512) + END, "negative size"),
    "negative size below a block": (GOOD + header("1.png", -1) + END, "negative size"),
    "negative size of the first": (header("1.png", -1024) + GOOD + END, "negative size"),
    "negative size in a pax header": (
        GOOD + member("x", record(b"size", b"-1024"), tarfile.XHDTYPE) + header("1.png", 0) + END, "negative size",
    ),
    "negative size of a pax header": (GOOD + header("x", -1, tarfile.XHDTYPE) + END, "header"),
    "pax header of 200 KB": (GOOD + member("x", b"1" * 200_000, tarfile.XHDTYPE) + GOOD + END, "header has more than"),
    "global header of 200 KB": (member("g", b"1" * 200_000, tarfile.XGLTYPE) + GOOD + END, "header has more than"),
    "long name": (GOOD + member("L", b"n" * 10**6, tarfile.GNUTYPE_LONGNAME) + GOOD + END, "header has more than"),
    "name of a terabyte": (GOOD + header("L", 2**33 - 1, tarfile.GNUTYPE_LONGNAME), "header has more than"),
    "endless headers": (member("x", record(b"a", b"b"), tarfile.XHDTYPE) * 2000 + GOOD + END, "header has more than"),
    "sparse file": (GOOD + member("1.png", bytes(512), tarfile.GNUTYPE_SPARSE) + END, "sparse"),
    "sparse map without an end": (
        member("x", SPARSE_MAP, tarfile.XHDTYPE) + member("1.png", b"999999999\n" + b"0\n" * 10**5) + END, "header has more than",
    ),
}  # fmt: skip


def test_hostile_tars_are_refused(tmp_path: Path) -> None:
    """A negative size loops for ever (CVE-2025-8194), and so does one in a pax header. A pax header of 200 KB
    takes quadratic time (CVE-2024-6232)."""
    commands = []
    for number, (content, _) in enumerate(HOSTILE.values()):
        (tmp_path / f"{number}.tar").write_bytes(content)
        commands.append(["pack", str(tmp_path / f"{number}.tar"), "--out", str(tmp_path / f"out{number}")])
    for name, (code, message) in zip(HOSTILE, limited.outcomes(commands), strict=True):
        assert code == 2, (name, message)
        assert HOSTILE[name][1] in message, (name, message)
        assert len(message.strip().splitlines()) == 1, (name, message)


def test_headers_are_read_forward_only() -> None:
    """Whatever a header says: reading one twice could go on for ever."""
    headers = _HeaderReader(io.BytesIO(bytes(4096)))
    headers.read(1024)
    headers.seek(1023)  # the byte before the next header, which tarfile reads again
    headers.read(1)
    headers.seek(2048)
    headers.read(512)
    with pytest.raises(tarfile.ReadError, match="negative size"):
        headers.seek(1024)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_read_in_every_format(form: int, tmp_path: Path) -> None:
    names = [f"{'folder' * 10}/{'n' * 90}{number}.png" for number in range(4)]
    if form != tarfile.USTAR_FORMAT:
        names.append(f"{'folder/' * 1000}x.png")
    with tarfile.open(tmp_path / "a.tar", "w", format=form) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(picture())
            archive.addfile(info, io.BytesIO(picture()))
    packed = open_data(str(pack(str(tmp_path / "a.tar"), tmp_path / "packed")))
    assert sorted(path.partition("/")[2] for path in packed.paths) == sorted(names)


def test_shards_of_webdataset_are_read_in_place(tmp_path: Path) -> None:
    """Two shards that webdataset's own writer made, with members that are not read; PNG and TIFF of 16 bits."""
    images = np.random.default_rng(0).integers(0, 256, (12, 9, 7, 3), dtype=np.uint8)
    pattern = str(tmp_path / "train-%04d.tar")
    with webdataset.ShardWriter(pattern, maxcount=8, verbose=0) as sink:
        for number, image in enumerate(images):
            sink.write({"__key__": f"{number:05d}", "png": image, "cls": number % 3, "json": {"n": number}})
    for scan_bytes in (2**31, 0):
        data = open_data(str(tmp_path), scan_bytes=scan_bytes)
        np.testing.assert_array_equal(data.load(np.arange(12)).data, images)
        assert data.labels.tolist() == [number % 3 for number in range(12)]
        assert list(data.paths)[8] == "train-0001.tar/00008.png"
        assert sum(data.ignored.values()) == 12
    with webdataset.ShardWriter(pattern, maxcount=3, verbose=0) as sink:  # four shards
        for number, image in enumerate(images):
            sink.write({"__key__": f"{number:05d}", "png": image, "cls": number % 3})
    ranged = str(tmp_path / "train-{0001..0003}.tar")
    assert [*shard_names(ranged)] == [*braceexpand(ranged)]
    for spec in (ranged, f"file://{ranged}"):
        np.testing.assert_array_equal(open_data(spec).load(np.arange(9)).data, images[3:])
    with pytest.raises(UserError, match=r"'.*train-0004\.tar' was not found"):
        open_data(str(tmp_path / "train-{0001..9999999999}.tar"))
    with pytest.raises(UserError, match=r"train-\{0003\.\.0001\}\.tar' was not found"):
        open_data(str(tmp_path / "train-{0003..0001}.tar"))
    with webdataset.TarWriter(str(tmp_path / "other.tar")) as sink:
        for number in range(3):
            out = io.BytesIO()
            tifffile.imwrite(out, images[number].astype(np.uint16) * 200, photometric="rgb")
            sink.write({"__key__": f"{number:05d}", "tif": out.getvalue(), "cls": 1})
    np.testing.assert_array_equal(
        open_data(str(tmp_path / "other.tar")).load(np.arange(3)).data, images[:3].astype(np.uint16) * 200
    )
    (tmp_path / "other.tar.gz").write_bytes(gzip.compress((tmp_path / "other.tar").read_bytes()))
    with pytest.raises(UserError, match="unpack a compressed one first"):
        open_data(str(tmp_path / "other.tar.gz"))
    (tmp_path / "large.tar").write_bytes(GOOD + member("0.cls", b"9" * 30) + END)
    with pytest.raises(UserError, match=r"0\.cls must contain a whole number"):
        open_data(str(tmp_path / "large.tar"))
    with webdataset.TarWriter(str(tmp_path / "sound.tar")) as sink:
        for number in range(3):
            out = io.BytesIO()
            soundfile.write(out, images[number].ravel() / 512, 8000, format="FLAC", subtype="PCM_16")
            sink.write({"__key__": f"{number:05d}", "flac": out.getvalue()})
    sound = open_data(str(tmp_path / "sound.tar"))
    np.testing.assert_allclose(sound.load(np.array([2])).data[0], images[2].ravel() / 512, atol=2**-15)
