"""What a file says about itself, read before any decoder runs.

Decoders are the part of the library that meets hostile bytes, so they get as little as possible: the format is
told by its first bytes (never by its suffix), JPEG and PNG are reduced to what makes pixels (no comments,
profiles, animations or compressed text), and a WebP's canvas is measured before its decoder may allocate it.
What metadata matters, the EXIF orientation, is read here.
"""

import struct
from typing import Final

from nearfar.modalities.dataset import Unusable

SUPPORTED: Final = ("JPEG", "PNG", "WEBP", "BMP")

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_KNOWN_OTHERS: Final = (
    (b"GIF8", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"8BPS", "PSD"),
    (b"\0\0\1\0", "ICO"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"%PDF", "PDF"),
    (b"<svg", "SVG"),
    (b"<?xml", "XML"),
)


def format_of(data: bytes) -> str:
    """One of SUPPORTED, by the first bytes alone."""
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(_PNG):
        return "PNG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data.startswith(b"BM"):
        return "BMP"
    if data[4:8] == b"ftyp":
        raise Unusable("unsupported format (HEIF or AVIF); expected JPEG, PNG, WebP and BMP")
    for magic, name in _KNOWN_OTHERS:
        if data.startswith(magic):
            raise Unusable(f"unsupported format ({name}); expected JPEG, PNG, WebP and BMP")
    raise Unusable("not an image: the first bytes are not those of JPEG, PNG, WebP or BMP")


def bare_jpeg(data: bytes) -> tuple[bytes, bytes]:
    """The JPEG without metadata, and its EXIF block (empty if none).

    Kept are the segments that make pixels: frame, tables, restart interval, APP0 (JFIF) and APP14 (Adobe's
    colour transform), then everything from the first scan on.
    """
    kept, exif, place = [data[:2]], b"", 2
    while place + 4 <= len(data):
        marker = data[place + 1]
        if data[place] != 0xFF:  # junk between segments, which decoders allow
            found = data.find(b"\xff", place)
            place = len(data) if found < 0 else found
            continue
        if marker == 0xFF:
            place += 1
            continue
        if marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD9:  # these carry no length
            place += 2
            continue
        if marker == 0xDA:
            return b"".join([*kept, data[place:]]), exif
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        end = place + 2 + length
        if length < 2:
            raise Unusable("corrupt: a JPEG segment has an impossible length")
        if marker == 0xE1 and data[place + 4 : place + 10] == b"Exif\0\0" and not exif:
            exif = data[place + 10 : end]
        if (0xC0 <= marker <= 0xCF and marker != 0xC8) or marker in (0xDB, 0xDD, 0xE0, 0xEE):
            kept.append(data[place:end])
        place = end
    raise Unusable("truncated: the JPEG ends before its image data")


def bare_png(data: bytes) -> tuple[bytes, bytes]:
    """The PNG's pixels, palette and transparency alone, and its EXIF block (empty if none)."""
    kept, exif, place = [data[:8]], b"", 8
    while place + 12 <= len(data):
        kind = data[place + 4 : place + 8]
        end = place + 12 + int.from_bytes(data[place : place + 4], "big")
        if end > len(data):
            break
        if kind in (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS"):
            kept.append(data[place:end])
        elif kind == b"eXIf":
            exif = data[place + 8 : end - 4]
        if kind == b"IEND":
            return b"".join(kept), exif
        place = end
    raise Unusable("truncated: the PNG ends before its end marker")


def webp_size(data: bytes) -> tuple[int, int]:
    """(width, height) of a WebP's canvas, without its decoder."""
    if int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise Unusable("truncated: the WebP is shorter than its header says")
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and len(data) >= 30 and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise Unusable("corrupt: the WebP header cannot be read")


def orientation(exif: bytes) -> int:
    """The EXIF orientation, 1 to 8; 1 (upright) when there is none or it makes no sense."""
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(f"{order}I", exif, 4)
        (entries,) = struct.unpack_from(f"{order}H", exif, directory)
        for place in range(directory + 2, directory + 2 + 12 * entries, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, place)
            if (tag, kind) == (0x0112, 3):
                return value if 1 <= value <= 8 else 1
    except struct.error:  # the block ends early
        return 1
    return 1
