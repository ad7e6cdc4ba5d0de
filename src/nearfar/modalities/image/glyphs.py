"""The embedded demo data: capital letters on coloured, cluttered grounds, drawn here from real typefaces.

    letter x typeface --shape--> outline --place--> cover (32, 32) --colour--> image (32, 32, 3)

The typefaces are the text faces that matplotlib carries, so every machine has them offline. Training draws
from DejaVu and STIX, testing from Computer Modern alone: no test image shows a letterform training saw.

Each picture has its own position, size, slant, rotation, colours, polarity (dark on light or light on
dark), shading, strokes behind the letter, perhaps a piece of a neighbouring letter, and noise. Two pictures
of one letter thus share almost no pixel values, which is why raw pixels do badly here and an encoder has
something to learn.

Every picture is a pure function of (split, picture number); nothing is kept on disk.
"""

import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from jaxtyping import Float, Int64, UInt8
from PIL import Image, ImageDraw, ImageFont

from nearfar.core.randomness import uniforms
from nearfar.errors import UserError

SIZE = 32

# Left out: C, I, O, Q, V, W, which at this size and tilt are easily taken for other letters.
CLASSES = tuple("ABDEFGHJKLMNPRSTUXYZ")

# Left out: cmex, cmsy, cmmi, STIXNonUni, STIXSiz..., ...Display and LastResort, which are not for text.
FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "DejaVu Sans": ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
        "DejaVu Sans Mono": (
            "DejaVuSansMono",
            "DejaVuSansMono-Bold",
            "DejaVuSansMono-Oblique",
            "DejaVuSansMono-BoldOblique",
        ),
        "DejaVu Serif": ("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
        "STIX General": ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    },
    "test": {"Computer Modern": ("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10")},
}

PICTURES_PER_FACE = 20  # of each letter

_SEEDS = {"train": 1, "test": 2}
_PLACE, _CLUTTER, _COLOUR, _NOISE = range(4)  # independent streams of random numbers

_CANVAS = 2 * SIZE  # shapes are placed at twice the size and averaged down, which smooths their edges
_POINTS = 64  # the size at which a letter is drawn before it is placed

# How different two pictures of one letter may be; lengths are shares of the picture's side.
_HEIGHT = (0.52, 0.82)
_SHIFT = 0.12
_TURN = math.radians(15)
_SLANT = 0.15
_STRETCH = (0.85, 1.15)
_STROKES = 2  # at most
_NEIGHBOUR_SHARE = 0.5
_CONTRAST = (0.35, 0.8)
_CLUTTER_CONTRAST = (0.2, 0.5)  # as a share of the letter's
_CHROMA = 0.7
_SHADE = 0.15
_GRAIN = 0.03


def glyphs(
    split: str,
) -> tuple[UInt8[np.ndarray, "image 32 32 3"], Int64[np.ndarray, "image"], tuple[str, ...]]:
    """The pictures of a split ("train" or "test"), their labels, and the letters the labels stand for.

    Letters and typefaces take turns (picture i shows letter i mod 20), so any run of 20 pictures is balanced.
    """
    if split not in FAMILIES:
        raise UserError(f"glyphs has no split {split!r}; expected train or test")
    faces = [face for family in FAMILIES[split].values() for face in family]
    index = np.arange(len(CLASSES) * len(faces) * PICTURES_PER_FACE)
    labels = index % len(CLASSES)
    turns = zip(index // len(CLASSES) % len(faces), labels, strict=True)
    outlines = [_outline(faces[face], CLASSES[label]) for face, label in turns]
    letter, clutter = _covers(outlines, _SEEDS[split])
    return _coloured(letter, clutter, _SEEDS[split]), labels, CLASSES


@cache
def _outline(face: str, letter: str) -> Image.Image:
    """The letter in the typeface, white on black, cut to its own box."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    # BASIC: the other layout engine is not in every build of Pillow
    font = ImageFont.truetype(path, _POINTS, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = (round(edge) for edge in font.getbbox(letter))
    image = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(image).text((-left, -top), letter, fill=255, font=font)
    return image


def _covers(
    outlines: list[Image.Image], seed: int
) -> tuple[Float[np.ndarray, "image 32 32"], Float[np.ndarray, "image 32 32"]]:
    """How much of each pixel the letter covers, and how much the clutter behind it, in [0, 1]."""
    count = len(outlines)
    index = np.arange(count)
    places = uniforms(seed, 0, index, _PLACE, 6).tolist()
    strokes = uniforms(seed, 0, index, _CLUTTER, 4 + 5 * _STROKES).tolist()
    letter, clutter = np.empty((2, count, SIZE, SIZE), np.float32)
    for i, (outline, place, (number, whether, which_letter, side, *lines)) in enumerate(
        zip(outlines, places, strokes, strict=True)
    ):
        pose = _pose(place)
        letter[i] = np.asarray(_placed(outline, pose).reduce(2))
        behind = Image.new("L", (_CANVAS, _CANVAS))
        for line in range(int(number * (_STROKES + 1))):
            *ends, width = lines[5 * line : 5 * line + 5]
            ImageDraw.Draw(behind).line([_CANVAS * end for end in ends], fill=255, width=int(2 + 4 * width))
        if whether < _NEIGHBOUR_SHARE:
            neighbour = outlines[int(which_letter * count)]
            behind.paste(255, mask=_neighbour_letter(neighbour, outline, pose, 1 if side < 0.5 else -1))
        clutter[i] = np.asarray(behind.reduce(2))
    return letter / 255, clutter / 255


class _Pose(NamedTuple):
    """Of a letter on the canvas, in its pixels and radians."""

    height: float
    turn: float
    slant: float
    stretch: float
    x: float
    y: float


def _pose(u: list[float]) -> _Pose:
    """A pose from six uniform numbers."""
    return _Pose(
        _CANVAS * _between(u[0], _HEIGHT),
        _between(u[1], (-_TURN, _TURN)),
        _between(u[2], (-_SLANT, _SLANT)),
        _between(u[3], _STRETCH),
        _CANVAS * _between(u[4], (0.5 - _SHIFT, 0.5 + _SHIFT)),
        _CANVAS * _between(u[5], (0.5 - _SHIFT, 0.5 + _SHIFT)),
    )


def _placed(outline: Image.Image, pose: _Pose) -> Image.Image:
    """The outline on the canvas: slanted, turned, its centre at (x, y)."""
    height, turn, slant, stretch, x, y = pose
    zoom = outline.height / height
    cos, sin = math.cos(turn), math.sin(turn)
    # Pillow needs the place that a canvas point comes from: undo the turn, then slant and size.
    a, b = zoom * (cos / stretch - slant * sin), zoom * (sin / stretch + slant * cos)
    c, d = -zoom * sin, zoom * cos
    offset = outline.width / 2 - a * x - b * y, outline.height / 2 - c * x - d * y
    return outline.transform(
        (_CANVAS, _CANVAS),
        Image.Transform.AFFINE,
        (a, b, offset[0], c, d, offset[1]),
        Image.Resampling.BILINEAR,
    )


def _neighbour_letter(neighbour: Image.Image, outline: Image.Image, pose: _Pose, side: int) -> Image.Image:
    """The neighbour set on the same line as the letter, a little apart; most of it falls off the canvas."""
    width = outline.width / outline.height + neighbour.width / neighbour.height
    distance = side * (pose.height * pose.stretch * width / 2 + _CANVAS / 16)
    x, y = pose.x + distance * math.cos(pose.turn), pose.y + distance * math.sin(pose.turn)
    return _placed(neighbour, pose._replace(x=x, y=y))


def _coloured(
    letter: Float[np.ndarray, "image 32 32"], clutter: Float[np.ndarray, "image 32 32"], seed: int
) -> UInt8[np.ndarray, "image 32 32 3"]:
    """Ground, clutter, letter, shading and grain, painted in that order."""
    index = np.arange(len(letter))
    u = uniforms(seed, 0, index, _COLOUR, 15).astype(np.float32)
    contrast = _between(u[:, 0], _CONTRAST)
    middle = _between(u[:, 1], (contrast / 2, 1 - contrast / 2))
    contrast = np.where(u[:, 2] < 0.5, contrast, -contrast)
    dark = middle - contrast / 2  # or bright, where the contrast is negative
    ground = _colour(dark, u[:, 3:6])
    stroke = _colour(dark + contrast * _between(u[:, 6], _CLUTTER_CONTRAST), u[:, 7:10])
    ink = _colour(middle + contrast / 2, u[:, 10:13])

    image = ground + (stroke - ground) * clutter[..., None]
    image += (ink - image) * letter[..., None]
    image += (_SHADE * u[:, 13, None, None] * _ramp(u[:, 14]))[..., None]
    grain = uniforms(seed, 0, index, _NOISE, SIZE * SIZE).astype(np.float32).reshape(letter.shape)
    image += _between(grain, (-_GRAIN, _GRAIN))[..., None]
    return np.rint(image.clip(0, 1) * 255).astype(np.uint8)


def _colour(
    brightness: Float[np.ndarray, "image"], u: Float[np.ndarray, "image 3"]
) -> Float[np.ndarray, "image 1 1 3"]:
    """A colour of the given mean brightness and a random hue and strength."""
    return (brightness[:, None] + _CHROMA * (u - u.mean(1, keepdims=True)))[:, None, None]


def _ramp(u: Float[np.ndarray, "image"]) -> Float[np.ndarray, "image 32 32"]:
    """A plane that rises across the picture in a random direction."""
    along = np.linspace(-1, 1, SIZE, dtype=np.float32)
    x, y = np.cos(2 * np.pi * u), np.sin(2 * np.pi * u)
    return x[:, None, None] * along + y[:, None, None] * along[:, None]


def _between(u, ends):  # type: ignore[no-untyped-def]
    """The point a share u of the way from the first end to the second."""
    return ends[0] + (ends[1] - ends[0]) * u
