"""`nearfar pack` on hostile tar files: one sentence within 2 GB, where Python 3.11.7's tarfile never ends."""

import io
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from nearfar.data import open_data, pack
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
