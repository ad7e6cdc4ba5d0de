"""Bytes of one picture → pixels, or `Unusable` with a reason.

Pictures of 8 bits become RGB, whatever the file's mode: greyscale, 1-bit and palette pictures are expanded,
CMYK is converted, anything with transparency is laid on white (as a page would show it), and the EXIF
orientation is applied. Animations give their first frame. PNG of 16 bits and TIFF with more bits or bands keep
them: uint16 of one or more bands, other numbers as float32 (`tiff.py`).

Pillow decodes. PNG of 16 bits is unfiltered by `deep_png.py`, since Pillow drops the low byte of colours. Limits are
completed where SECURITY.md promises more: the format is decided by the first bytes, only five decoders are
ever opened, and the number of pixels is limited before any memory is allocated.
"""

import io
import struct
import warnings
from typing import Any, Final

import numpy as np
from jaxtyping import Shaped
from PIL import ExifTags, Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from nearfar.errors import UserError
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.files import MAX_BYTES
from nearfar.modalities.image.deep_png import PNG_START, deep_png_pixels, is_deep_png
from nearfar.modalities.image.tiff import STARTS, tiff_pixels

DecodedPicture = Shaped[np.ndarray, "height width channel"]  # uint8, uint16 or float32
MAX_PIXELS: Final = 50_000_000
MAX_CHANNELS: Final = 256
# of pixels, by bits
VALUE_TYPES: Final[dict[int, np.dtype[Any]]] = {
    8: np.dtype(np.uint8),
    16: np.dtype(np.uint16),
    32: np.dtype(np.float32),
}

# Pillow warns of damaged metadata, which are of no interest here. One filter for the process: decoders run in
# threads.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

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
_PNG_END: Final = b"IEND\xaeB`\x82"
_OTHER_FORMATS: Final = (  # by the bytes at an offset
    (0, b"GIF8", "GIF"),
    (0, b"8BPS", "PSD"),
    (0, b"\0\0\1\0", "ICO"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"v/1\x01", "OpenEXR"),
    (0, b"%PDF", "PDF"),
    (0, b"<svg", "SVG"),
    (0, b"<?xml", "XML"),
    (4, b"ftyp", "HEIF or AVIF"),
    (128, b"DICM", "DICOM"),
)
# formats of images by suffix that are not read
_CAMERA = "camera RAW"
UNREAD: Final = {
    ".gif": "GIF",
    ".heic": "HEIC",
    ".heif": "HEIC",
    ".avif": "AVIF",
    ".dcm": "DICOM",
    ".dicom": "DICOM",
    ".nii": "NIfTI",
    ".jp2": "JPEG 2000",
    ".jxl": "JPEG XL",
    ".psd": "Photoshop",
    ".exr": "OpenEXR",
    ".hdr": "Radiance HDR",
    ".svg": "SVG",
    **dict.fromkeys((".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"), _CAMERA),
}
_RAW_START: Final = b"NFPX"  # pixels as `nearfar pack` writes them
_RAW_HEADER: Final = struct.Struct("<4s4I")  # start, height, width, channels, bits


def decode(data: bytes, image_size: int | None = None) -> DecodedPicture:
    """The picture's pixels, shrunk if `image_size` is given and it is larger than needed (see `shrunk_size`):
    three channels of 8 bits, the bands of TIFF and 16-bit PNG, or those of raw pixels, which `nearfar pack`
    writes."""
    if not data:
        raise Unusable("empty file (0 bytes)")
    if len(data) > MAX_BYTES:
        raise Unusable(f"too large: {len(data):,} bytes; the limit is {MAX_BYTES:,}")
    if data.startswith(_RAW_START):
        return shrunk(_raw_pixels(data), image_size)
    try:
        return _decode(data, image_size)
    except Unusable:
        raise
    except Exception as error:  # decoders fail on damaged bytes in more ways than they document
        kind = "truncated" if isinstance(error, EOFError) or "truncat" in str(error).lower() else "corrupt"
        raise Unusable(f"{kind}: {str(error) or type(error).__name__}") from error


def shrunk_size(width: int, height: int, image_size: int | None) -> tuple[int, int]:
    """(width, height) kept in memory: a shorter side beyond 2 × image_size is shrunk to just that, a longer
    one beyond 8 × image_size to that.

    Twice the training size leaves a random crop of a quarter of the picture its full resolution. A batch is
    padded to its highest and its widest picture, so that one thin one of either kind would cost the square of
    their lengths; up to 8:1 the shorter side still has image_size.
    """
    if image_size is None:
        return width, height
    scale = min(1.0, 2 * image_size / min(width, height), 8 * image_size / max(width, height))
    if scale == 1.0:
        return width, height
    return max(1, round(width * scale)), max(1, round(height * scale))


def shrunk(pixels: DecodedPicture, image_size: int | None) -> DecodedPicture:
    """The same shrinking for pixels that are decoded already, any number of channels."""
    height, width, channels = pixels.shape
    size = shrunk_size(width, height, image_size)
    if size == (width, height):
        return pixels
    planes = pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)
    small = np.stack(
        [
            np.asarray(_resized(Image.fromarray(np.ascontiguousarray(planes[..., c])), size))
            for c in range(channels)
        ],
        axis=-1,
    )
    return np.rint(small).clip(0, 65535).astype(np.uint16) if pixels.dtype == np.uint16 else small


def encode(pixels: DecodedPicture, encoding: str, quality: int) -> bytes:
    """PNG or JPEG of three channels of 8 bits, or raw pixels of any number and type."""
    bits = 8 * pixels.dtype.itemsize
    if encoding == "raw":
        return _RAW_HEADER.pack(_RAW_START, *pixels.shape, bits) + np.ascontiguousarray(pixels).tobytes()
    if (pixels.shape[2], bits) != (3, 8):
        raise UserError(
            f"encoding was {encoding}, which holds three channels of 8 bits; these images have "
            f"{pixels.shape[2]} of {bits}: use raw"
        )
    out = io.BytesIO()
    options = {"quality": quality, "subsampling": 0} if encoding == "jpeg" else {"compress_level": 3}
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, encoding.upper(), **options)
    return out.getvalue()


def _decode(data: bytes, image_size: int | None) -> np.ndarray:
    bands = None
    if data.startswith(STARTS):
        bands = tiff_pixels(data, MAX_PIXELS, MAX_BYTES, MAX_CHANNELS)
    elif is_deep_png(data):
        bands = deep_png_pixels(data, MAX_PIXELS)
    if bands is not None:
        return shrunk(bands, image_size)
    picture = _opened(data)
    width, height = picture.size
    _check_size(width, height)
    if picture.mode not in _MODES:
        raise Unusable(f"wrong mode ({picture.mode}): only 8-bit greyscale and colour are used")
    size = shrunk_size(width, height, image_size)
    box: tuple[float, float, float, float] | None = None
    if size != (width, height) and isinstance(picture, JpegImageFile):
        # A JPEG can be decoded at 1/2, 1/4 or 1/8 for less. The smallest of these that is not below `size` is resized.
        draft = picture.draft(picture.mode, size)
        box = draft[1] if draft else None
    picture.load()
    colour = opaque(picture)
    if size != (width, height):
        colour = _resized(colour, size, box)
    turn = _UPRIGHT.get(_orientation(picture))
    return np.asarray(colour if turn is None else colour.transpose(turn))


def _opened(data: bytes) -> ImageFile:
    """The picture with its header read."""
    if data.startswith(b"\xff\xd8\xff"):
        return JpegImageFile(io.BytesIO(data))
    if data.startswith(PNG_START):
        if _PNG_END not in data:  # Pillow shows such a file
            raise Unusable("truncated: the PNG ends before its end marker")
        return PngImageFile(io.BytesIO(data))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        _check_size(*_webp_size(data))
        return WebPImageFile(io.BytesIO(data))
    if data.startswith(b"BM"):
        return BmpImageFile(io.BytesIO(data))
    if data.startswith(STARTS):
        return TiffImageFile(io.BytesIO(data))
    names = [name for offset, start, name in _OTHER_FORMATS if data.startswith(start, offset)]
    if names:
        raise Unusable(f"unsupported format ({names[0]}); expected JPEG, PNG, TIFF, WebP or BMP")
    raise Unusable("not an image: the first bytes are not those of JPEG, PNG, TIFF, WebP or BMP")


def _webp_size(data: bytes) -> tuple[int, int]:
    """(width, height) of a WebP's canvas, before Pillow's decoder allocates it."""
    if int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise Unusable("truncated: the WebP is shorter than its header claims")
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


def _orientation(picture: ImageFile) -> int:
    """The EXIF orientation, 1 to 8; 1 (upright) when there is none or it cannot be read."""
    if "exif" not in picture.info:
        return 1
    try:
        return int(picture.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged metadata, which Pillow reads in more ways than it documents
        return 1


def _raw_pixels(data: bytes) -> DecodedPicture:
    """Pixels behind their shape: the quickest to read, with any number of channels."""
    if len(data) < _RAW_HEADER.size:
        raise Unusable("truncated: raw pixels without their shape")
    _, height, width, channels, bits = _RAW_HEADER.unpack_from(data)
    if not (0 < height * width <= MAX_PIXELS and 0 < channels <= MAX_CHANNELS and bits in VALUE_TYPES):
        raise Unusable(f"corrupt: raw pixels of shape {height} x {width} x {channels}, {bits} bits")
    if len(data) != _RAW_HEADER.size + height * width * channels * bits // 8:
        raise Unusable(
            f"truncated: {len(data) - _RAW_HEADER.size:,} bytes for {height} x {width} x {channels} pixels "
            f"of {bits} bits"
        )
    return np.frombuffer(data, VALUE_TYPES[bits], offset=_RAW_HEADER.size).reshape(height, width, channels)


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise Unusable(f"too large: {width} x {height} pixels; the limit is {MAX_PIXELS:,} in all")


def opaque(picture: Any) -> Any:
    """A PIL image in RGB; what is transparent is laid on white."""
    if picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        picture = layer.copy()
        picture.paste((255, 255, 255, 255), (0, 0, *layer.size))
        picture.alpha_composite(layer)
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _resized(
    picture: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float] | None = None
) -> Image.Image:
    return picture.resize(size, Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
