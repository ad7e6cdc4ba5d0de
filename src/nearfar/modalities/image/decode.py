"""Bytes of one picture → RGB pixels, or `Unusable` with a reason.

Whatever the file's mode, three channels come out: greyscale, 1-bit and palette pictures are expanded, CMYK is
converted, anything with transparency is laid on white (as a page would show it), 16-bit colour keeps its high
byte, and the EXIF orientation is applied. Animations give their first frame. Sixteen-bit greyscale, integer and
float pictures are refused: what their grey range means is not ours to guess.
"""

import io
from typing import Final

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from nearfar.errors import UserError
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.image.containers import bare_jpeg, bare_png, format_of, orientation, webp_size
from nearfar.modalities.image.raw import MAGIC, from_raw, to_raw

MAX_PIXELS: Final = 50_000_000
MAX_BYTES: Final = 8 * MAX_PIXELS  # an uncompressed picture of MAX_PIXELS needs half of this

_MODES: Final = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"}
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(data: bytes, image_size: int | None = None) -> UInt8[np.ndarray, "height width channel"]:
    """The picture's pixels, shrunk if `image_size` is given and it is larger than needed (see `shrunk_size`): three channels,
    or those of raw pixels, which `nearfar pack` writes."""
    if not data:
        raise Unusable("empty file (0 bytes)")
    if len(data) > MAX_BYTES:
        raise Unusable(f"too large: {len(data):,} bytes; the limit is {MAX_BYTES:,}")
    if data.startswith(MAGIC):
        return shrunk(from_raw(data, MAX_PIXELS), image_size)
    try:
        return _decode(data, image_size)
    except Unusable:
        raise
    except Exception as error:  # decoders fail on damaged bytes in more ways than they document
        kind = "truncated" if isinstance(error, EOFError) or "truncat" in str(error).lower() else "corrupt"
        raise Unusable(f"{kind}: {str(error) or type(error).__name__}") from error


def shrunk_size(width: int, height: int, image_size: int | None) -> tuple[int, int]:
    """(width, height) kept in memory: a shorter side beyond 2 × image_size is shrunk to just that, a longer one beyond
    8 × image_size to that.

    Twice the training size leaves a random crop of a quarter of the picture its full resolution. A batch is padded to its highest
    and its widest picture, so that one thin one of either kind would cost the square of their lengths; up to 8:1 the shorter side
    still has image_size.
    """
    if image_size is None:
        return width, height
    scale = min(1.0, 2 * image_size / min(width, height), 8 * image_size / max(width, height))
    if scale == 1.0:
        return width, height
    return max(1, round(width * scale)), max(1, round(height * scale))


def shrunk(
    pixels: UInt8[np.ndarray, "height width channel"], image_size: int | None
) -> UInt8[np.ndarray, "height width channel"]:
    """The same shrinking for pixels that are decoded already, any number of channels."""
    height, width, channels = pixels.shape
    size = shrunk_size(width, height, image_size)
    if size == (width, height):
        return pixels
    planes = [_resized(Image.fromarray(np.ascontiguousarray(pixels[..., c])), size) for c in range(channels)]
    return np.stack([np.asarray(plane) for plane in planes], axis=-1)


def encode(pixels: UInt8[np.ndarray, "height width channel"], encoding: str, quality: int) -> bytes:
    """PNG or JPEG of three channels, or raw pixels of any number."""
    if encoding == "raw":
        return to_raw(pixels)
    if pixels.shape[2] != 3:
        raise UserError(
            f"encoding was {encoding}, which holds three channels; these images have {pixels.shape[2]}: use raw"
        )
    out = io.BytesIO()
    options = {"quality": quality, "subsampling": 0} if encoding == "jpeg" else {"compress_level": 3}
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, encoding.upper(), **options)
    return out.getvalue()


def _decode(data: bytes, image_size: int | None) -> np.ndarray:
    picture, exif = _opened(data)
    width, height = picture.size
    _check_size(width, height)
    if picture.mode not in _MODES:
        raise Unusable(f"wrong mode ({picture.mode}): only 8-bit greyscale and colour are used")
    size = shrunk_size(width, height, image_size)
    box: tuple[float, float, float, float] | None = None
    if size != (width, height) and isinstance(picture, JpegImageFile):
        # A JPEG can be decoded at 1/2, 1/4 or 1/8 for less; twice the target keeps the resize antialiased.
        drafted = picture.draft(picture.mode, (2 * size[0], 2 * size[1]))
        box = drafted[1] if drafted else None
    picture.load()
    colour = _rgb(picture)
    if size != (width, height):
        colour = _resized(colour, size, box)
    turn = _UPRIGHT.get(orientation(exif))
    return np.asarray(colour if turn is None else colour.transpose(turn))


def _opened(data: bytes) -> tuple[ImageFile, bytes]:
    """The picture with its header read, and its EXIF block. Only these four decoders are ever run."""
    kind = format_of(data)
    if kind == "JPEG":
        bare, exif = bare_jpeg(data)
        return JpegImageFile(io.BytesIO(bare)), exif
    if kind == "PNG":
        bare, exif = bare_png(data)
        return PngImageFile(io.BytesIO(bare)), exif
    if kind == "BMP":
        return BmpImageFile(io.BytesIO(data)), b""
    _check_size(*webp_size(data))
    picture = WebPImageFile(io.BytesIO(data))
    return picture, picture.info.get("exif", b"")


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise Unusable(f"too large: {width} x {height} pixels; the limit is {MAX_PIXELS:,} in all")


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info:
        clear = picture.convert("RGBA")
        white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, clear).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _resized(
    picture: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float] | None = None
) -> Image.Image:
    return picture.resize(size, Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
