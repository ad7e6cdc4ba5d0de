"""Two thousand damaged files: never a traceback, never a warning, every one either usable or explained."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearfar.data import open_data
from nearfar.errors import UserError

FILES = 2000
SUFFIX = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp"}
EXIF = (
    b"Exif\0\0II*\0\x08\0\0\0\x02\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"
    b"\x1a\x01\x05\0\x01\0\0\0\x60\0\0\0\0\0\0\0"
)


def seeds() -> list[tuple[str, bytes]]:
    """Small valid files of every format, mode and extra that the decoders know."""
    rng = np.random.default_rng(0)
    colour = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    clear = Image.fromarray(rng.integers(0, 256, (9, 12, 4), dtype=np.uint8))
    cases: list[tuple[Image.Image, str, dict[str, object]]] = [
        (colour, "JPEG", {}),
        (colour, "JPEG", {"progressive": True, "exif": EXIF}),
        (colour.convert("L"), "JPEG", {"comment": b"a comment"}),
        (colour.convert("CMYK"), "JPEG", {}),
        (colour, "PNG", {"exif": EXIF, "icc_profile": b"profile" * 5}),
        (clear, "PNG", {}),
        (colour.quantize(7), "PNG", {"transparency": 2}),
        (colour.convert("1"), "PNG", {}),
        (colour, "PNG", {"save_all": True, "append_images": [colour.rotate(180)]}),
        (colour, "WEBP", {"exif": EXIF}),
        (clear, "WEBP", {"lossless": True}),
        (colour, "WEBP", {"save_all": True, "append_images": [colour.rotate(180)]}),
        (colour, "BMP", {}),
        (colour.quantize(7), "BMP", {}),
        (clear, "BMP", {}),
    ]
    files = []
    for picture, kind, options in cases:
        out = io.BytesIO()
        picture.save(out, kind, **options)
        files.append((kind, out.getvalue()))
    return files


def mutated(data: bytes, donor: bytes, rng: np.random.Generator) -> bytes:
    """One to three of: flip, insert, delete, truncate, zero, repeat, or take another file's header."""
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(0, len(data) + 1))
        width = int(rng.integers(1, 9))
        raw = bytearray(data)
        match rng.integers(0, 8):
            case 0 if raw:
                raw[place % len(raw)] ^= 1 << int(rng.integers(0, 8))
            case 1 if raw:  # headers are where it hurts
                raw[place % min(len(raw), 64)] = int(rng.integers(0, 256))
            case 2:
                raw[place:place] = rng.bytes(width)
            case 3:
                del raw[place : place + width]
            case 4:
                del raw[place:]
            case 5:
                raw[place : place + width] = bytes(len(raw[place : place + width]))
            case 6:
                raw[place:place] = raw[place : place + 10 * width]
            case _:
                raw[: 4 * width] = donor[: 4 * width]
        data = bytes(raw)
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mutated")
    rng = np.random.default_rng(1)
    originals = seeds()
    for number in range(FILES):
        kind, data = originals[number % len(originals)]
        other_kind, donor = originals[int(rng.integers(0, len(originals)))]
        suffix = SUFFIX[other_kind if rng.random() < 0.1 else kind]
        (root / f"{number:04}.{suffix}").write_bytes(mutated(data, donor, rng))
    return root


@pytest.mark.parametrize("cache_bytes", [2**31, 0], ids=["in memory", "streamed"])
def test_two_thousand_mutated_files(folder: Path, tmp_path: Path, cache_bytes: int) -> None:
    listed = tmp_path / "quarantine.csv"
    images = open_data(folder, max_bad_share=1.0, quarantine=listed, cache_bytes=cache_bytes)
    with open(listed, newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["path", "reason"]
    assert [tuple(row) for row in rows[1:]] == list(images.quarantine)
    accepted = {str(folder / path) for path in images.paths}
    refused = {path for path, _ in images.quarantine}
    assert accepted | refused == {str(path) for path in folder.iterdir()}
    assert not accepted & refused
    assert len(accepted) > FILES // 20  # the mutations are not all fatal, nor all harmless
    assert len(refused) > FILES // 20
    signatures = (
        "truncated",
        "corrupt",
        "not an image",
        "empty file",
        "too large",
        "wrong mode",
        "unsupported format",
    )
    for _, reason in images.quarantine:
        assert reason.startswith(signatures)
        assert "Warning" not in reason
    for row in range(len(images)):
        pixels = images.load(np.array([row]))
        assert pixels.data.shape == (1, *pixels.size[0], 3)
        assert tuple(pixels.size[0]) == tuple(images.sizes[row])


def test_accepted_files_are_the_same_with_and_without_cache(folder: Path) -> None:
    opened = open_data(folder, max_bad_share=1.0)
    streamed = open_data(folder, max_bad_share=1.0, cache_bytes=0)
    assert opened.paths == streamed.paths
    assert opened.fingerprint == streamed.fingerprint
    small = np.flatnonzero(opened.sizes.max(1) < 100)
    assert len(small) > 100
    np.testing.assert_array_equal(opened.load(small).data, streamed.load(small).data)


def test_too_many_bad_files_are_an_error(folder: Path, tmp_path: Path) -> None:
    listed = tmp_path / "quarantine.csv"
    with pytest.raises(UserError) as caught:
        open_data(folder, quarantine=listed)
    message = str(caught.value)
    with open(listed, newline="") as file:
        first, *rest = list(csv.reader(file))[1:]
    assert str(folder) in message
    assert f"{len(rest) + 1} of {FILES}" in message
    assert first[0] in message
    assert first[1] in message
    assert "0.05" in message
