"""TIFF, PNG of 16 bits and arrays of many bands, written by tifffile, OpenCV, Pillow and numpy."""

import contextlib
import io
import re
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tifffile
import torch
from PIL import Image
from safetensors.torch import load_file

import nearfar as nf
from nearfar.cli import main
from nearfar.core.types import Pixels
from nearfar.data import open_data, pack
from nearfar.errors import Stopped, UserError
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.image.decode import decode
from nearfar.modalities.image.views import Augment, PlainImages, Views, batched, draw
from nearfar.modalities.image.views.pipeline import Spans, wide_statistics
from nearfar.modalities.image.views.portable import plain_view


def uint16(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 65536, shape, dtype=np.uint16)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(300, 80, shape).astype(np.float32)


def tiff(pixels: np.ndarray, **options: Any) -> bytes:
    out = io.BytesIO()
    tifffile.imwrite(out, pixels, **options)
    return out.getvalue()


BANDS: dict[str, Any] = {"photometric": "minisblack", "planarconfig": "contig"}
RGBA = np.dstack([uint16(20, 16, 3), uint16(20, 16)])
# what is written, how, and what is read (None: the same)
LAYOUTS: dict[str, tuple[np.ndarray, dict[str, Any], np.ndarray | None]] = {
    "13 bands": (uint16(20, 16, 13), BANDS, None),
    "BigTIFF": (uint16(20, 16, 13), {**BANDS, "bigtiff": True}, None),
    "big-endian": (uint16(20, 16, 5), {**BANDS, "byteorder": ">"}, None),
    "one after the other": (uint16(6, 20, 16), {**BANDS, "planarconfig": "separate"}, uint16(6, 20, 16).transpose(1, 2, 0)),
    "pages": (uint16(6, 20, 16), {"photometric": "minisblack"}, uint16(6, 20, 16).transpose(1, 2, 0)),
    "one band": (uint16(20, 16), {}, uint16(20, 16)[..., None]),
    "colours": (uint16(20, 16, 3), {"photometric": "rgb"}, None),
    "strips": (uint16(40, 36, 6), {**BANDS, "compression": "zlib", "predictor": True, "rowsperstrip": 7}, None),
    "tiles": (uint16(40, 36, 6), {**BANDS, "compression": "zlib", "predictor": True, "tile": (16, 32)}, None),
    "8 bits": (uint16(20, 16, 5).astype(np.uint8), BANDS, None),
    "near infrared": (uint16(20, 16, 4).astype(np.uint8), {"photometric": "rgb", "extrasamples": ["unspecified"]}, None),
    "floats": (floats(20, 16, 5), BANDS, None),
    "doubles": (floats(20, 16, 5).astype(np.float64), BANDS, floats(20, 16, 5)),
    "signed": (floats(20, 16, 2).astype(np.int16), BANDS, floats(20, 16, 2).astype(np.int16).astype(np.float32)),
    "alpha": (RGBA, {"photometric": "rgb", "extrasamples": ["unassalpha"]},
              np.rint(RGBA[..., :3] * (RGBA[..., 3:] / 65535) + 65535 - RGBA[..., 3:].astype(float)).astype(np.uint16)),
    "plain grey": (uint16(20, 16).astype(np.uint8), {}, np.repeat(uint16(20, 16).astype(np.uint8)[..., None], 3, 2)),
    "plain colours": (uint16(20, 16, 3).astype(np.uint8), {"photometric": "rgb", "compression": "zlib"}, None),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_tiff_gives_its_samples(layout: str) -> None:
    written, options, read = LAYOUTS[layout]
    expected = written if read is None else read
    pixels = decode(tiff(written, **options))
    assert pixels.dtype == expected.dtype
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("codec", ["tiff_lzw", "tiff_adobe_deflate", "packbits", "zstd"])
def test_every_compression_is_unpacked(codec: str) -> None:
    out = io.BytesIO()
    Image.fromarray(uint16(50, 30)).save(out, "TIFF", compression=codec)
    np.testing.assert_array_equal(decode(out.getvalue())[..., 0], uint16(50, 30))
    assert out.getvalue() != tiff(uint16(50, 30))


def test_predicted_floats_of_another_library() -> None:
    """OpenCV writes LZW with differences, also of floats."""
    for pixels in (floats(40, 30), uint16(40, 30, 3)):
        done, data = cv2.imencode(".tiff", pixels, [cv2.IMWRITE_TIFF_COMPRESSION, 5, cv2.IMWRITE_TIFF_PREDICTOR, 3 if pixels.ndim == 2 else 2])  # fmt: skip
        assert done
        expected = (
            pixels[..., None] if pixels.ndim == 2 else pixels[..., ::-1]
        )  # OpenCV's order is blue first
        np.testing.assert_array_equal(decode(data.tobytes()), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_the_same_for_plain_pictures_and_bands(orientation: int) -> None:
    pixels = uint16(12, 20, 3)
    tag = [(274, "H", 1, orientation, True)]
    bands, plain = (
        decode(tiff(array, photometric="rgb", extratags=tag)) for array in (pixels, pixels.astype(np.uint8))
    )
    np.testing.assert_array_equal(bands.astype(np.uint8), plain)


@pytest.mark.parametrize("row_filter", range(5))
def test_png_of_16_bits(row_filter: int) -> None:
    """Written by OpenCV with each of PNG's filters of rows (flags 8 to 128 of libpng)."""
    options = [cv2.IMWRITE_PNG_FILTER, 8 << row_filter]
    for pixels in (uint16(20, 16), uint16(20, 16, 3)):
        data = cv2.imencode(".png", pixels, options)[1].tobytes()
        expected = pixels[..., None] if pixels.ndim == 2 else pixels[..., ::-1]
        np.testing.assert_array_equal(decode(data), expected)
    data = cv2.imencode(".png", RGBA[..., [2, 1, 0, 3]], options)[1].tobytes()
    on_white = LAYOUTS["alpha"][2]
    assert on_white is not None
    np.testing.assert_array_equal(decode(data), on_white)


def patched(tag: int, value: int) -> Callable[[], bytes]:
    """A TIFF of 13 bands with another number in one of its tags."""

    def make() -> bytes:
        data = bytearray(tiff(uint16(20, 16, 13), **BANDS))
        start = struct.unpack_from("<I", data, 4)[0]
        for place in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", data, start)[0], 12):
            if struct.unpack_from("<H", data, place)[0] == tag:
                struct.pack_into("<HII", data, place + 2, 4, 1, value)
                return bytes(data)
        raise KeyError(tag)

    return make


def small_tiff(height: int, tags: dict[int, tuple[str, list[int]]]) -> bytes:
    """A TIFF of one column and 16 bits, with further tags."""
    basic = {256: ("I", [1]), 257: ("I", [height]), 258: ("H", [16]), 259: ("H", [1]), 262: ("H", [1])}
    body, entries = bytearray(b"II*\0" + bytes(4)), b""
    for tag, (kind, values) in sorted({**basic, **tags}.items()):
        raw = struct.pack(f"<{len(values)}{kind}", *values)
        place = raw.ljust(4, b"\0") if len(raw) <= 4 else struct.pack("<I", len(body))
        entries += struct.pack("<HHI", tag, {"H": 3, "I": 4}[kind], len(values)) + place
        body += raw if len(raw) > 4 else b""
    body[4:8] = struct.pack("<I", len(body))
    return bytes(body) + struct.pack("<H", len(entries) // 12) + entries + bytes(4)


def tiles(height: int, rows: int, columns: int, count: int) -> bytes:
    """Tiles of that many rows and columns, all at the same place of the file."""
    shape = {322: ("I", [columns]), 323: ("I", [rows])}
    return small_tiff(height, {**shape, 324: ("I", [8] * count), 325: ("I", [2] * count)})


def many_tags() -> bytes:
    """A BigTIFF whose only page has 100,000 tags and follows itself."""
    header = b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, 100_000)
    return header + struct.pack("<HHQQ", 60_000, 3, 1, 0) * 100_000 + struct.pack("<Q", 16)


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "bomb": (patched(257, 2**31), "too large: 16 x 2147483648"),
    "bands": (patched(277, 60_000), "too large|corrupt|samples"),
    "cut": (lambda: tiff(uint16(20, 16, 13), **BANDS)[:-500], "truncated"),
    "tags cut": (lambda: tiff(uint16(20, 16, 13), **BANDS)[:100], "truncated"),
    "packed and cut": (lambda: tiff(uint16(90, 90, 6), **BANDS, compression="zlib")[:-900], "truncated"),
    "offset": (patched(273, 2**31), "truncated"),
    "too few bytes": (patched(279, 100), "truncated"),
    "codec": (patched(259, 34712), "compression 34712"),
    "a loop of pages": (lambda: looped(tiff(uint16(20, 16))), "pages"),
    "pages of two sizes": (lambda: two_sizes(), "2 pages"),
    "tiles of many times the picture": (lambda: tiles(2000, 1, 2**20, 2000), "too large: 1 bands, 4,194,304,000 bytes"),
    "millions of tiles": (lambda: tiles(40_000_000, 1, 1, 1), "1 segments where the picture has 40000000"),
    "tiles of nothing": (lambda: tiles(2, 0, 16, 1), "segments of 16 x 0 pixels"),
    "many tags": (many_tags, "a page of 100,000 tags"),
    "not finite": (lambda: tiff(np.full((8, 8), np.nan, np.float32)), "64 values are not finite"),
    "complex": (lambda: tiff(np.ones((8, 8), np.complex64)), "samples of"),
}  # fmt: skip


def looped(data: bytes) -> bytes:
    """The TIFF with its first page following itself."""
    start = struct.unpack_from("<I", data, 4)[0]
    end = start + 2 + 12 * struct.unpack_from("<H", data, start)[0]
    return data[:end] + struct.pack("<I", start) + data[end + 4 :]


def two_sizes() -> bytes:
    out = io.BytesIO()
    with tifffile.TiffWriter(out) as writer:
        writer.write(uint16(20, 16))
        writer.write(uint16(10, 16))
    return out.getvalue()


@pytest.mark.parametrize("case", BAD)
def test_bad_tiff_is_refused_with_a_reason(case: str) -> None:
    make, reason = BAD[case]
    data = make()
    tracemalloc.start()
    with pytest.raises(Unusable, match=reason):
        decode(data)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


def png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels)[1].tobytes()


def test_a_png_with_wrong_checksums_is_refused() -> None:
    data = png(uint16(20, 16))
    assert decode(data).shape == (20, 16, 1)
    for start in (data.index(b"IHDR") + 4, data.index(b"IDAT") + 6):
        damaged = bytearray(data)
        damaged[start + 2] ^= 1
        with pytest.raises(Unusable, match=r"checksum of a (IHDR|IDAT) chunk is wrong|too large"):
            decode(bytes(damaged))


def test_transparency_takes_little_memory() -> None:
    """A megapixel of 16 bits with alpha has 8 MB; twice that and its colours, whatever is laid on white."""
    data = png(np.tile(uint16(64, 64, 4), (16, 16, 1)))
    decode(png(RGBA))  # compiled
    tracemalloc.start()
    decode(data)
    assert tracemalloc.get_traced_memory()[1] < len(data) + 4 * 2**23
    tracemalloc.stop()


def test_no_segment_unpacks_to_more_than_its_layout() -> None:
    """A strip of 32 MiB of zeros in 32 kB is read as the 416 bytes of its row, or refused."""
    bomb = zlib.compress(bytes(2**25), 9)
    data = bytearray(tiff(uint16(1, 16, 13), **BANDS))
    start = struct.unpack_from("<I", data, 4)[0]
    for place in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", data, start)[0], 12):
        changes = {259: 8, 273: len(data), 279: len(bomb)}
        tag = struct.unpack_from("<H", data, place)[0]
        if tag in changes:
            struct.pack_into("<HII", data, place + 2, 4, 1, changes[tag])
    tracemalloc.start()
    with contextlib.suppress(Unusable):
        assert not decode(bytes(data) + bomb).any()
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()


def test_random_damage_raises_nothing_else() -> None:
    generator = np.random.default_rng(0)
    for data in (
        tiff(uint16(20, 16, 13), **BANDS),
        tiff(uint16(40, 36, 6), **BANDS, compression="zlib", tile=(16, 16)),
    ):
        for _ in range(150):
            damaged = np.frombuffer(data, np.uint8).copy()
            damaged[generator.integers(0, len(data), 4)] = generator.integers(0, 256, 4)
            try:
                decode(damaged.tobytes())
            except Unusable:
                continue


# --------------------------------------------------------------------------------------------------- views


def wide(count: int = 6, bands: int = 5) -> tuple[Pixels, Spans]:
    sizes = np.tile(np.array([30, 26], dtype=np.int32), (count, 1))
    data = uint16(count, 30, 26, bands) // 16
    return Pixels(data, sizes), Spans(np.arange(bands) * 10.0, 4095 - np.arange(bands) * 7.0)


def test_views_of_bands_are_those_of_the_batched_pipeline() -> None:
    """Compiled and batched views agree, contrast keeps the mean of each band, and no operation mixes bands."""
    pixels, spans = wide()
    index, augment = np.arange(6), Augment(solarise=0.5)
    statistics = np.full(5, 0.5), np.full(5, 0.3)
    (view,) = Views([augment], 16, [0.5] * 5, [0.3] * 5, spans=spans)(pixels, 3, 1, index)
    window = np.tile(np.array([16, 16, 0, 0], dtype=np.int32), (6, 1))
    scaled = (pixels.data - spans.low) / (spans.high - spans.low)
    reference = batched.render(
        Pixels(scaled.astype(np.float32), pixels.size), draw(augment, pixels.size, 3, 1, index, 0), window, 16,
        augment.kernel_width(16), *statistics, torch.device("cpu"),
    )  # fmt: skip
    torch.testing.assert_close(view, reference, atol=1e-4, rtol=0)
    for band in range(5):  # a band alone has the same view
        alone = Pixels(pixels.data[..., band : band + 1], pixels.size)
        span = Spans(spans.low[band : band + 1], spans.high[band : band + 1])
        (one,) = Views([augment], 16, [0.5], [0.3], spans=span)(alone, 3, 1, index)
        torch.testing.assert_close(one[:, 0], view[:, band], atol=1e-5, rtol=0)


def test_statistics_are_those_of_all_values() -> None:
    pixels, _ = wide(7, 3)
    parts = [Pixels(pixels.data[:4], pixels.size[:4]), Pixels(pixels.data[4:], pixels.size[4:])]
    spans, mean, std = wide_statistics(parts)
    values = pixels.data.reshape(-1, 3).astype(np.float64)
    np.testing.assert_array_equal(spans.low, values.min(axis=0))
    np.testing.assert_array_equal(spans.high, values.max(axis=0))
    width = spans.high - spans.low
    np.testing.assert_allclose(spans.low + width * mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(width * std, values.std(axis=0), rtol=1e-12)


# ---------------------------------------------------------------------------------------------------- runs


def scenes(count: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Images of 6 bands, 16 x 16: class 1 is bright in band 4, which the first three bands do not show."""
    labels = np.arange(count) % 2
    images = np.random.default_rng(0).integers(200, 1200, (count, 16, 16, 6)).astype(np.uint16)
    images[..., 4] += (1500 * labels[:, None, None]).astype(np.uint16)
    return images, labels


def write_scenes(folder: Path) -> Path:
    for number, (image, label) in enumerate(zip(*scenes(), strict=True)):
        place = folder / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(place / f"{number:02d}.tif", image, **BANDS)
    return folder


SMALL = [
    "backbone=resnet8-w8",
    "epochs=1",
    "batch_size=8",
    "image_size=16",
    "workers=0",
    "probe_every=0",
    "held_out=0",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A run on a folder of TIFF, and what it printed."""
    place = tmp_path_factory.mktemp("bands")
    data = write_scenes(place / "scenes")
    words = io.StringIO()
    with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
        assert main(["pretrain", "simclr", str(data), "--out", str(place / "run"), *SMALL]) == 0
    return place / "run", data, words.getvalue()


def test_a_folder_of_bands_is_trained_on(trained: tuple[Path, Path, str]) -> None:
    run = nf.Run.open(trained[0])
    images, _ = scenes()
    description: Any = run.description
    assert (description.channels, description.values) == (6, "uint16")
    flat = images.reshape(-1, 6)
    assert (description.low, description.high) == (tuple(flat.min(axis=0)), tuple(flat.max(axis=0)))
    assert "images of 6 bands: saturation, hue and greyscale need three bands and are left out" in trained[2]


def test_the_commands_take_such_a_run(trained: tuple[Path, Path, str], tmp_path: Path, capsys: Any) -> None:
    run, data, _ = map(str, trained)
    assert main(["embed", run, data, "--out", str(tmp_path / "features.parquet")]) == 0
    assert main(["evaluate", run, "--train", data, "--data", data, "--protocol", "knn", "--json"]) == 0
    assert '"top1"' in capsys.readouterr().out
    assert main(["report", run, "--out", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert main(["export", run, "--to", str(tmp_path / "export")]) == 0
    card = (tmp_path / "export" / "README.md").read_text()
    low, high = (getattr(nf.Run.open(run).description, name)[0] for name in ("low", "high"))
    assert f"uint16 values become 0 to 1, band by band: {low:g} to {high:g}" in card
    assert load_file(tmp_path / "export" / "model.safetensors")


def test_exported_preprocessing_of_bands_equals_the_plain_view() -> None:
    pixels, spans = wide(3)
    mean, std = [0.4] * 5, [0.2] * 5
    (ours,) = PlainImages(20, mean, std, spans=spans)(pixels)
    theirs = [
        plain_view(torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1), 20, mean, std, "rgb", spans.low.tolist(), spans.high.tolist())
        for image in pixels.data
    ]  # fmt: skip
    torch.testing.assert_close(torch.cat(theirs), ours, atol=1e-4, rtol=0)


def test_every_source_of_the_same_bands_gives_the_same_images(tmp_path: Path, trained: Any) -> None:
    images, labels = scenes()
    files = [tiff(image, **BANDS) for image in images]
    pq.write_table(pa.table({"image": files, "label": labels}), tmp_path / "scenes.parquet")
    np.save(tmp_path / "scenes.npy", images)
    np.savez(tmp_path / "scenes.npz", images=images, labels=labels)
    packed = pack(str(tmp_path / "scenes.parquet"), tmp_path / "packed", shuffle=False)
    source = pack(str(tmp_path / "scenes.parquet"), tmp_path / "source", shuffle=False, encoding="source")
    sources = [tmp_path / "scenes.parquet", tmp_path / "scenes.npy", tmp_path / "scenes.npz", packed, source]
    for data in (*map(str, sources), images, images.transpose(0, 3, 1, 2), list(images)):
        opened = open_data(data)
        assert (opened.channels, opened.values) == (6, "uint16")
        np.testing.assert_array_equal(opened.load(np.arange(24)).data, images)
    floating = images.astype(np.float32) / 7 - 50
    opened = open_data(floating)
    assert opened.values == "float32"
    np.testing.assert_array_equal(opened.load(np.arange(24)).data, floating)
    unchecked = open_data(str(tmp_path / "scenes.parquet"), scan_bytes=0)
    assert (unchecked.channels, unchecked.values) == (6, "uint16")
    np.testing.assert_array_equal(unchecked.load(np.arange(24)).data, images)


def test_a_run_on_floats_resumes_exactly(tmp_path: Path) -> None:
    images = scenes()[0].astype(np.float32) / 7 - 50
    settings: dict[str, Any] = {"backbone": "resnet8-w8", "epochs": 2, "batch_size": 12, "workers": 0, "probe_every": 0, "held_out": 0.0, "checkpoint_every": 1, "log_every": 1, "quiet": True}  # fmt: skip
    whole = nf.pretrain("simclr", images, tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        nf.pretrain("simclr", images, tmp_path / "stopped", max_time=1e-9, **settings)
    resumed = nf.pretrain("simclr", images, tmp_path / "stopped", **settings)
    losses = [[row["loss"] for row in run.metrics if row["kind"] == "train"] for run in (whole, resumed)]
    assert losses[0] == losses[1]
    with pytest.raises(UserError, match=r"has images of uint16 but .* was trained on float32"):
        whole.embed(scenes()[0])


def test_mixed_folders_get_a_sentence(tmp_path: Path) -> None:
    folder = write_scenes(tmp_path / "scenes")
    Image.new("RGB", (16, 16)).save(folder / "class0" / "photo.jpg")
    data = open_data(folder)
    ((path, reason),) = data.quarantine
    assert path.endswith("photo.jpg")
    assert reason.startswith("3 bands of 8 bits, where most images have 6 bands of 16 bits")
    unchecked = open_data(folder, scan_bytes=0)
    assert len(unchecked) == 25
    unchecked.load_usable(np.arange(25))
    assert reason == next(iter(unchecked.unusable_rows.bad.values()))
    for number in range(3):
        Image.new("RGB", (16, 16)).save(folder / "class0" / f"{number}.jpg")
    with pytest.raises(UserError, match=r"4 of 28 images cannot be used.*3 bands of 8 bits"):
        open_data(folder)


def test_other_formats_are_named_and_counted(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16)).save(tmp_path / "a.gif")
    for name in ("a.heic", "b.HEIC", "a.dcm", "a.nef"):
        (tmp_path / name).write_bytes(b"")
    message = re.escape("HEIC (.heic) is not read: convert to PNG, JPEG or TIFF (2), DICOM (.dcm)")
    with pytest.raises(UserError, match=message):
        open_data(tmp_path)
    with pytest.raises(UserError, match=re.escape("GIF (.gif) is not read: convert to PNG, JPEG or TIFF")):
        open_data(tmp_path / "a.gif")
    (tmp_path / "sounds").mkdir()
    (tmp_path / "sounds" / "a.mp3").write_bytes(b"")
    with pytest.raises(UserError, match=re.escape("MP3 (.mp3) is not read: convert to WAV or FLAC")):
        open_data(tmp_path / "sounds")
