"""What one view's pipeline may do to an image, and the papers' pipelines as assignments.

    crop and resize → flip → colour jitter (order shuffled per sample) → greyscale → blur → solarise →
    normalise

Every probability and strength is a field of `Augment`, so a named pipeline is two assignments, one per view:
SimCLR's two are alike, BYOL's differ in blur and solarisation, instance discrimination greys before it
jitters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from nearfar.config.schema import between, check_fields, check_given, convert, rising, settable
from nearfar.errors import UserError
from nearfar.modalities.image.views.operations import (
    OPERATIONS,
    Operation,
    Probability,
    Ratios,
    Share,
    Shares,
    operation,
)

SMALL_SIZE = 64  # at most this many pixels a side, a pipeline's small variant is taken

_STRENGTHS = ("brightness", "contrast", "saturation")
STRENGTH = "strength"  # of the whole jitter: a setting that stands for four

# beyond a strength of 100 every picture is black and white, and float32 overflows long after
Strength = Annotated[float, between(0, 100, "a strength")]
OverallStrength = Annotated[float, between(0, 125)]
HueShift = Annotated[float, between(0, 0.5, "a share of the colour circle")]
# narrower than a hundredth of a pixel a Gaussian touches no neighbour, and its square underflows float32
Sigmas = Annotated[tuple[float, float], rising(0.01)]


@dataclass(frozen=True)
class Augment:
    """The settings of one view's pipeline; the defaults are SimCLR's (Chen et al. 2020, appendix A).

    A jitter strength s draws its factor from [max(0, 1 - s), 1 + s], hue its shift from [-hue, hue] of a full
    turn. Strength or probability 0 leaves the image exactly as it was.
    """

    crop: Probability = (
        1.0  # probability of a random crop; otherwise the largest central one within crop_ratio
    )
    crop_scale: Shares = (0.08, 1.0)  # share of the image's area
    crop_ratio: Ratios = (3 / 4, 4 / 3)  # width / height
    flip: Probability = 0.5
    jitter: Probability = 0.8
    brightness: Strength = 0.8
    contrast: Strength = 0.8
    saturation: Strength = 0.8
    hue: HueShift = 0.2
    greyscale: Probability = 0.2
    greyscale_first: bool = False  # before the jitter, as in instance discrimination and MoCo v1
    blur: Probability = 0.5
    blur_sigma: Sigmas = (0.1, 2.0)  # in pixels of the view
    blur_kernel: Share = 0.1  # width of the blur's window as a share of the view's
    solarise: Probability = 0.0
    solarise_threshold: Share = 0.5
    # after all of these, in this order (operations.py)
    also: tuple[Operation, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self, "views")

    def kernel_width(self, size: int) -> int:
        """The width of the blur's window on a view of `size` pixels: odd, at least 3 (SimCLR: 23 on 224)."""
        return max(3, int(self.blur_kernel * size) // 2 * 2 + 1)


SIMCLR = Augment()
# Chen et al. 2020, appendix B.9 on CIFAR-10: jitter at half strength, no blur. The smallest crop is a fifth of
# the image, not 0.08: of 32 × 32 pixels that would leave 9 × 9, too little to tell what it shows.
SIMCLR_SMALL = replace(
    SIMCLR, crop_scale=(0.2, 1.0), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, blur=0.0
)
# Grill et al. 2020, appendix B, table 6.
BYOL = replace(SIMCLR, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
BYOL_SMALL = replace(BYOL, crop_scale=(0.2, 1.0), blur=0.0)
# Wu et al. 2018; He et al. 2020 (MoCo v1) kept it.
INSTDISC = Augment(
    crop_scale=(0.2, 1.0),
    greyscale_first=True,
    jitter=1.0,
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.4,
    blur=0.0,
)
# Tian et al. 2020: crop and flip alone, since jittering colour would tie luminance and colour together again.
CMC = Augment(crop_scale=(0.2, 1.0), jitter=0.0, greyscale=0.0, blur=0.0)
NONE = Augment(crop=0.0, crop_ratio=(1.0, 1.0), flip=0.0, jitter=0.0, greyscale=0.0, blur=0.0)

PIPELINES: dict[str, tuple[Augment, Augment]] = {
    "simclr": (SIMCLR, SIMCLR),
    "simclr-small": (SIMCLR_SMALL, SIMCLR_SMALL),
    "byol": (replace(BYOL, blur=1.0), replace(BYOL, blur=0.1, solarise=0.2)),
    "byol-small": (BYOL_SMALL, replace(BYOL_SMALL, solarise=0.2)),
    "moco": (INSTDISC, INSTDISC),
    "instdisc": (INSTDISC, INSTDISC),
    "cmc": (CMC, CMC),
    "crop-flip": (CMC, CMC),
    "none": (NONE, NONE),
}

# Small crops of a multi-crop (Caron et al. 2021, appendix E): how much of the image they show, and that a
# pipeline whose two views differ blurs half of them and inverts none. Of 32 x 32 pixels a twentieth would be
# 7 x 7, so small images have the range below.
SMALL_CROP_SCALE, SMALL_CROP_SCALE_OF_SMALL_IMAGES = (0.05, 0.4), (0.1, 0.4)
_SMALL_CROPS = {"byol": replace(BYOL, blur=0.5), "byol-small": BYOL_SMALL}

SMALL_CROPS = "small"  # the changes of small crops
_SIDES = ("first", "second")


def pipelines(name: str, size: int, changes: Mapping[str, object] | None = None) -> tuple[Augment, Augment]:
    """The named pipeline's two views for images of `size` pixels a side, with the user's changes.

    Up to 64 pixels `simclr` means `simclr-small` and `byol` means `byol-small`. A change such as
    `{"blur": 0.1}` goes to both views, `{"second": {"solarise": 0.2}}` to one, after those to both.
    `{"strength": s}` is SimCLR's strength of the colour jitter.
    """
    first, second = (
        _changed(_changed(augment, _common(changes), "views"), (changes or {}).get(side, {}), f"views.{side}")
        for augment, side in zip(PIPELINES[_variant(name, size)], _SIDES, strict=True)
    )
    return first, second


def small_crops(name: str, size: int, changes: Mapping[str, object] | None = None) -> Augment:
    """The named pipeline's small crops for images of `size` pixels a side, with the user's changes: those to
    both views but for the crop's range, then those to `small`."""
    variant = _variant(name, size)
    augment = _changed(_SMALL_CROPS.get(variant, PIPELINES[variant][1]), _common(changes), "views")
    scale = SMALL_CROP_SCALE_OF_SMALL_IMAGES if size <= SMALL_SIZE else SMALL_CROP_SCALE
    return _changed(
        replace(augment, crop_scale=scale), (changes or {}).get(SMALL_CROPS, {}), f"views.{SMALL_CROPS}"
    )


def _variant(name: str, size: int) -> str:
    """The name of the pipeline for images of `size` pixels a side."""
    if name not in PIPELINES:
        raise UserError(f"views.pipeline is {name!r}; expected {', '.join(PIPELINES)}.")
    small = f"{name}-small"
    return small if size <= SMALL_SIZE and small in PIPELINES else name


def _common(changes: Mapping[str, object] | None) -> dict[str, object]:
    """The changes to all views."""
    return {key: value for key, value in (changes or {}).items() if key not in (*_SIDES, SMALL_CROPS)}


def jittered(augment: Augment, strength: float) -> Augment:
    """The pipeline's colour jitter at SimCLR's strength s (Chen et al. 2020, appendix A): brightness 0.8 s,
    the other three in the pipeline's own proportions, so that SimCLR's are 0.8 s, 0.8 s, 0.8 s and 0.2 s; hue
    ends at half a turn, which is all there is."""
    scale = SIMCLR.brightness * strength / augment.brightness
    scaled = {name: scale * getattr(augment, name) for name in _STRENGTHS}
    return replace(augment, **scaled, hue=min(0.5, scale * augment.hue))


def _changed(augment: Augment, changes: object, key: str) -> Augment:
    if not isinstance(changes, Mapping):
        raise UserError(f"{key} was {changes!r}; expected a mapping of settings of one view")
    names = [*settable(Augment), STRENGTH, *OPERATIONS]
    for name in changes:
        if name not in names:
            raise UserError(f"{key}.{name} is not a setting; expected {', '.join(names)}")
    # first, so that a strength and one of its four together are the strength but for that one
    if STRENGTH in changes:
        strength = convert(changes[STRENGTH], OverallStrength, f"{key}.{STRENGTH}")
        if not augment.brightness:
            raise UserError(
                f"{key}.{STRENGTH} was {strength:g}; strength scales brightness, which is 0 here. Set "
                "views.brightness."
            )
        augment = jittered(augment, strength)
    added = {name: operation(name, value, key) for name, value in changes.items() if name in OPERATIONS}
    also = (*(entry for entry in augment.also if entry.name not in added), *added.values())
    values = {name: value for name, value in changes.items() if name not in (*added, STRENGTH)}
    return replace(augment, also=also, **check_given(Augment, values, key))
