"""Every mode, orientation and kind of damage, one picture at a time."""

import io
import struct
import sys
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from nearfar.modalities.dataset import Unusable
from nearfar.modalities.image.decode import MAX_PIXELS, decode, shrunk, shrunk_size


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    """A gradient with a bright corner: survives JPEG, and no orientation maps it onto itself."""
    y, x = np.mgrid[:height, :width]
    picture = np.stack([255 * y / height, 255 * x / width, 80 + 0 * x], axis=-1)
    picture[: height // 3, : width // 3] += 60
    return picture.clip(0, 255).astype(np.uint8)


def encoded(picture: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {})])
def test_lossless_formats_give_the_very_pixels(kind: str, options: dict[str, object]) -> None:
    pixels = noise(9, 14)
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(pixels), kind, **options)), pixels)


def test_jpeg_gives_what_a_plain_decoder_gives() -> None:
    data = encoded(Image.fromarray(smooth(40, 30)), "JPEG")
    np.testing.assert_array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data))))


GREY = noise(7, 11, 1)[..., 0]
COLOUR = noise(7, 11)
ALPHA = noise(7, 11, 1, seed=5)[..., 0]


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha[..., None] / 255
    return np.rint(colour * share + 255 * (1 - share))


def _palette(**options: object) -> bytes:
    picture = Image.fromarray(COLOUR).quantize(16)
    return encoded(picture, "PNG", **options)


MODES: dict[str, tuple[Callable[[], bytes], Callable[[], np.ndarray]]] = {
    "L": (lambda: encoded(Image.fromarray(GREY), "PNG"), lambda: np.repeat(GREY[..., None], 3, 2)),
    "L bmp": (lambda: encoded(Image.fromarray(GREY), "BMP"), lambda: np.repeat(GREY[..., None], 3, 2)),
    "1": (
        lambda: encoded(Image.fromarray(GREY > 99), "PNG"),
        lambda: np.repeat(255 * (GREY > 99)[..., None], 3, 2),
    ),
    "RGBA": (
        lambda: encoded(Image.fromarray(np.dstack([COLOUR, ALPHA])), "PNG"),
        lambda: on_white(COLOUR, ALPHA),
    ),
    "RGBA webp": (
        lambda: encoded(Image.fromarray(np.dstack([COLOUR, ALPHA])), "WEBP", lossless=True, exact=True),
        lambda: on_white(COLOUR, ALPHA),
    ),
    "LA": (
        lambda: encoded(Image.fromarray(np.dstack([GREY, ALPHA]), "LA"), "PNG"),
        lambda: on_white(np.repeat(GREY[..., None], 3, 2), ALPHA),
    ),
    "P": (_palette, lambda: np.asarray(Image.fromarray(COLOUR).quantize(16).convert("RGB"))),
    "P, one clear colour": (
        lambda: _palette(transparency=3),
        lambda: np.where(
            (np.asarray(Image.fromarray(COLOUR).quantize(16)) == 3)[..., None],
            255,
            np.asarray(Image.fromarray(COLOUR).quantize(16).convert("RGB")),
        ),
    ),
    "P, alpha per colour": (
        lambda: _palette(transparency=bytes(range(0, 256, 16))),
        lambda: on_white(
            np.asarray(Image.fromarray(COLOUR).quantize(16).convert("RGB")),
            16 * np.asarray(Image.fromarray(COLOUR).quantize(16)),
        ),
    ),
    "RGB, one clear colour": (
        lambda: encoded(Image.fromarray(COLOUR), "PNG", transparency=tuple(COLOUR[2, 3].tolist())),
        lambda: np.where((COLOUR[2, 3] == COLOUR).all(-1, keepdims=True), 255, COLOUR),
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(mode: str) -> None:
    make, expected = MODES[mode]
    pixels = decode(make())
    assert pixels.dtype == np.uint8
    assert pixels.shape == (7, 11, 3)
    assert np.abs(pixels.astype(int) - expected()).max() <= 1


def test_cmyk_jpegs_have_the_right_colours() -> None:
    picture = smooth(48, 64)
    data = encoded(Image.fromarray(picture).convert("CMYK"), "JPEG", quality=95)
    assert np.abs(decode(data).astype(int) - picture).mean() < 4


def _tiff_orientation(value: int, order: str) -> bytes:
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(f"{order}IHHHIHHI", 8, 1, 0x0112, 3, 1, value, 0, 0)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_orientation_is_applied_as_pil_would(kind: str, value: int, order: str) -> None:
    exif = b"Exif\0\0" + _tiff_orientation(value, order)
    options: dict[str, object] = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(Image.fromarray(smooth(20, 33)), kind, exif=exif, **options)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    np.testing.assert_array_equal(decode(data), expected)
    assert decode(data).shape == ((20, 33, 3) if value < 5 else (33, 20, 3))


@pytest.mark.parametrize("prefix", [b"", b"junk", b"\xff\xff\xff", b"\xff\xd0"])
def test_damaged_exif_is_ignored_without_a_warning(prefix: bytes) -> None:
    picture = Image.fromarray(smooth(20, 33))
    unmarked = encoded(picture, "JPEG")
    block = b"Exif\0\0II*\0\x08\0\0\0\x09\0\x12\x01\x03\0"
    segment = b"\xff\xfe\0\2" + prefix + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block
    without_jfif = unmarked[:2] + segment + unmarked[20:]
    np.testing.assert_array_equal(decode(without_jfif), decode(unmarked))


def test_damaged_animation_data_are_ignored() -> None:
    still = encoded(Image.fromarray(COLOUR), "PNG")
    broken = still[:33] + _png_chunk(b"acTL", bytes(8)) + _png_chunk(b"zTXt", b"a\0\0junk") + still[33:]
    np.testing.assert_array_equal(decode(broken), COLOUR)


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_animations_give_their_first_frame(kind: str, options: dict[str, object]) -> None:
    frames = [Image.fromarray(noise(6, 8, seed=s)) for s in range(3)]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(decode(data), np.asarray(frames[0]))


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _claiming(width: int, height: int, depth: int = 8, colour: int = 2, body: bytes = b"\0" * 40) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = _png_chunk(b"IHDR", header) + _png_chunk(b"IDAT", zlib.compress(body)) + _png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _vast_webp() -> bytes:
    small = encoded(Image.fromarray(COLOUR), "WEBP", lossless=True)
    return small[:21] + struct.pack("<I", 0x3FFF | 0x3FFF << 14) + small[25:]


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "empty file"),
    "text": (lambda: b"hello, this is not a picture", "not an image"),
    "gif": (lambda: encoded(Image.fromarray(GREY), "GIF"), "unsupported format (GIF)"),
    "dicom": (lambda: bytes(128) + b"DICM", "unsupported format (DICOM)"),
    "16-bit bomb": (lambda: _claiming(100_000, 100_000, depth=16), "too large: 100000 x 100000"),
    "16-bit cut": (lambda: _claiming(30, 30, depth=16), "truncated"),
    "bomb": (lambda: _claiming(100_000, 100_000), "too large: 100000 x 100000"),
    "just over the cap": (lambda: _claiming(10_000, MAX_PIXELS // 10_000 + 1), "too large"),
    "webp over the cap": (_vast_webp, "too large: 16384 x 16384"),
    "png cut": (lambda: encoded(Image.fromarray(noise(50, 50)), "PNG")[:-300], "truncated"),
    "png without its end": (lambda: encoded(Image.fromarray(COLOUR), "PNG")[:-12], "truncated"),
    "jpeg header only": (lambda: encoded(Image.fromarray(COLOUR), "JPEG")[:40], "truncated"),
    "jpeg cut": (lambda: encoded(Image.fromarray(noise(50, 50)), "JPEG")[:-300], "truncated"),
    "webp cut": (lambda: encoded(Image.fromarray(noise(50, 50)), "WEBP")[:-300], "truncated"),
    "bmp cut": (lambda: encoded(Image.fromarray(noise(50, 50)), "BMP")[:-300], "truncated"),
    "too few pixels": (lambda: _claiming(30, 30), "truncated"),
    "no size": (lambda: _claiming(0, 30), "corrupt"),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_pictures_are_refused_with_a_reason(case: str) -> None:
    make, reason = BAD[case]
    with pytest.raises(Unusable) as caught:
        decode(make())
    assert reason in str(caught.value)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 300))
@settings(deadline=None)
def test_shrinking_brings_both_sides_to_their_limits_and_keeps_the_shape(
    width: int, height: int, image_size: int
) -> None:
    size = shrunk_size(width, height, image_size)
    limits = (2 * image_size, 8 * image_size)
    short, long = sorted(size)
    assert short <= limits[0]
    assert long <= limits[1]
    if min(width, height) <= limits[0] and max(width, height) <= limits[1]:
        assert size == (width, height)
    else:
        assert short == limits[0] or long == limits[1]
        # each side is rounded, and none to nothing
        assert abs(short - max(1.0, long * min(width, height) / max(width, height))) <= 1
    if max(width, height) <= 8 * min(width, height):  # no view is enlarged that was not before
        assert short >= min(image_size, width, height)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_shrunk_pictures_are_antialiased_copies(kind: str) -> None:
    """A chequerboard of single pixels must become even grey, a gradient must stay that gradient."""
    board = np.repeat((255 * (np.indices((256, 320)).sum(0) % 2)).astype(np.uint8)[..., None], 3, 2)
    grey = decode(encoded(Image.fromarray(board), kind, quality=100), image_size=16)
    assert grey.shape == (32, 40, 3)
    assert np.abs(grey.astype(int) - 127.5).max() < 6
    picture = smooth(320, 256)
    small = decode(encoded(Image.fromarray(picture), kind, quality=100), image_size=16)
    expected = picture.reshape(40, 8, 32, 8, 3).mean((1, 3))
    inside = np.abs(small - expected)[14:]  # below the bright corner's edge
    assert inside.max() < 5


@pytest.mark.parametrize("side", [300, 400, 520, 1030])
def test_a_jpeg_decoded_at_a_fraction_is_near_the_whole_one(side: int) -> None:
    """Decoded at 1/2, 1/4 or 1/8, then resized; beside decoded whole, then resized. Detail falls with its scale."""
    random, shape = np.random.default_rng(side), (side + side // 3, side)
    picture = np.full((side, side + side // 3, 3), 128.0)
    for cells in (4, 16, 64, 256):
        coarse = random.normal(0, 100 / cells**0.5, (cells, cells)).astype(np.float32)
        picture += np.asarray(Image.fromarray(coarse).resize(shape, Image.Resampling.BICUBIC))[..., None]
    data = encoded(Image.fromarray(picture.clip(0, 255).astype(np.uint8)), "JPEG", quality=90)
    small = decode(data, image_size=64)
    assert min(small.shape[:2]) == 128
    whole = Image.open(io.BytesIO(data)).convert("RGB").resize(small.shape[1::-1], Image.Resampling.BICUBIC)
    difference = small.astype(float) - np.asarray(whole)
    assert np.abs(difference).max() <= 8
    assert np.square(difference).mean() <= 3
    assert abs(difference.mean()) <= 0.1


def test_a_jpeg_decoded_at_an_eighth_is_not_stretched() -> None:
    """257 pixels at an eighth are 33, the last of which stands for one pixel only."""
    picture = Image.fromarray(smooth(257, 257))
    small = decode(encoded(picture, "JPEG", quality=100), image_size=4).astype(int)
    assert np.abs(small - decode(encoded(picture, "PNG"), image_size=4)).max() <= 3


def test_shrinking_pixels_equals_shrinking_their_file() -> None:
    picture = noise(90, 70)
    np.testing.assert_array_equal(
        shrunk(picture, 10), decode(encoded(Image.fromarray(picture), "PNG"), image_size=10)
    )


def test_orientation_is_applied_after_shrinking() -> None:
    exif = b"Exif\0\0" + _tiff_orientation(6, "<")
    assert decode(encoded(Image.fromarray(smooth(100, 200)), "JPEG", exif=exif), image_size=10).shape == (
        40,
        20,
        3,
    )


def test_a_bomb_is_refused_before_memory_is_taken() -> None:
    import resource

    previous_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for make in (lambda: _claiming(100_000, 100_000), _vast_webp):
        with pytest.raises(Unusable, match="too large"):
            decode(make())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - previous_peak
    assert grown * (1 if sys.platform == "darwin" else 1024) < 50_000_000
