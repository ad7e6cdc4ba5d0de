"""A modality from nothing: this file, and a line in `nearfar/modalities/__init__.py`:  MODALITIES["video"] =
VIDEO

    nf.pretrain("simclr", data=clips, out="runs/clips")        clips: an array (n, t, h, w, c) of bytes
    nearfar pretrain simclr clips.npz --out runs/clips         an .npz with `clips` and maybe `labels`

Two views of a clip are two stretches of its frames, each perhaps mirrored. A small 3D convolutional network
reads them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int, UInt8
from PIL import Image
from torch import Tensor, nn

from nearfar.core.abstract import AbstractViews, AbstractViewSettings
from nearfar.core.randomness import uniforms
from nearfar.errors import UserError
from nearfar.modalities.base import (
    AbstractNetworks,
    AbstractPresenter,
    AbstractReader,
    Arrays,
    Choice,
    Features,
    MakeViews,
    Modality,
    StandardisedDescription,
    ViewFamily,
)
from nearfar.modalities.dataset import DataSet
from nearfar.modalities.showing import coloured, plain_views
from nearfar.parts.encoders import InputSpec

# ------------------------------------------------------------------------------------------------ data


@dataclass(frozen=True)
class ClipStore:
    array: UInt8[np.ndarray, "clip time height width channel"]

    def take(self, rows: Int[np.ndarray, "clip"]) -> UInt8[np.ndarray, "clip time height width channel"]:
        return self.array[rows]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Clips(DataSet):
    modality: ClassVar[str] = "video"
    unit: ClassVar[str] = "clips"

    shape: tuple[int, ...]  # (time, height, width, channel)


@dataclass(frozen=True)
class VideoDescription(StandardisedDescription):
    shape: tuple[int, ...]  # (time, height, width, channel)

    def check_alike(self, data: Clips, run_name: str) -> None:
        if data.shape != self.shape:
            raise UserError(
                f"{data.name} has clips of shape {data.shape} but {run_name} was trained on {self.shape}"
            )


class VideoReader(AbstractReader):
    description_type = VideoDescription
    files = "clips"
    array_key = "clips"
    array_axes = (5,)

    def from_array(self, arrays: Arrays, name: str, options: Mapping[str, Any]) -> Clips:
        array, (labels, classes) = arrays.array, arrays.labelled
        if array.ndim != 5 or 0 in array.shape or array.dtype != np.uint8:
            raise UserError(
                f"data {name!r}: clips are {array.dtype} of shape {array.shape}; expected bytes of shape "
                "(n, t, h, w, c)"
            )
        digest = hashlib.sha256(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
        return Clips(
            name=name,
            fingerprint=digest.hexdigest(),
            labels=labels,
            classes=classes,
            paths=tuple(arrays.paths or (f"{name}#{row}" for row in range(len(array)))),
            store=ClipStore(array),
            rows=np.arange(len(array)),
            shape=array.shape[1:],
        )

    def describe(self, data: Clips, size: int | None) -> VideoDescription:
        pixels = data.load(data.sample(0, 0, 256)).astype(np.float64) / 255
        mean, std = pixels.mean(axis=(0, 1, 2, 3)), pixels.std(axis=(0, 1, 2, 3)).clip(min=1e-3)
        return VideoDescription(
            data.fingerprint, len(data), tuple(mean.tolist()), tuple(std.tolist()), data.shape
        )

    def example_description(self, instances: int) -> VideoDescription:
        return VideoDescription("", instances, (0.5,) * 3, (0.25,) * 3, (8, 16, 16, 3))


# ----------------------------------------------------------------------------------------------- views


@dataclass(frozen=True)
class Stretch(AbstractViewSettings):
    """`count` random stretches of `frames` frames, each mirrored with probability one half."""

    frames: int = 4
    count: int = 2
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise UserError(f"views.frames was {self.frames}; it must be at least 1")

    def training(self, description: VideoDescription, device: torch.device) -> "Stretches":
        return Stretches(self, description, device)

    def plain_view(self, description: VideoDescription, device: torch.device) -> "MiddleStretch":
        return MiddleStretch(self, description, device)


class MiddleStretch:
    """The middle frames of each clip, channels at mean 0 and standard deviation 1: (n, c, frames, h, w)."""

    def __init__(self, stretch: Stretch, description: VideoDescription, device: torch.device) -> None:
        self.stretch, self.device = stretch, device
        self.mean, self.std = np.array(description.mean), np.array(description.std)

    def __repr__(self) -> str:
        return f"MiddleStretch({self.stretch.frames}, {self.mean.tolist()}, {self.std.tolist()})"

    def as_views(self, view: Tensor, count: int) -> tuple[Tensor, ...]:
        return (view,) * count

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        middle = np.full(len(loaded), 0.5)
        return (self._view(loaded, middle, mirrored=np.zeros(len(loaded), dtype=bool)),)

    def _view(self, loaded: np.ndarray, place: np.ndarray, mirrored: np.ndarray) -> Tensor:
        frames = min(self.stretch.frames, loaded.shape[1])
        start = (place * (loaded.shape[1] - frames + 1)).astype(np.int64)
        times = start[:, None] + np.arange(frames)
        clips = loaded[np.arange(len(loaded))[:, None], times]
        clips = np.where(mirrored[:, None, None, None, None], clips[:, :, :, ::-1], clips)
        normal = ((clips / 255 - self.mean) / self.std).astype(np.float32)
        return torch.from_numpy(normal).permute(0, 4, 1, 2, 3).contiguous().to(self.device)


class Stretches(AbstractViews, MiddleStretch):
    """Stretch v of clip i in an epoch is a function of (seed, epoch, i, v)."""

    def __call__(self, loaded: np.ndarray, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        draws = [uniforms(seed, epoch, index, view, 2) for view in range(self.stretch.count)]
        return tuple(self._view(loaded, draw[:, 0], draw[:, 1] < 0.5) for draw in draws)


# -------------------------------------------------------------------------------- networks and reports


class Conv3d(nn.Module):
    """Two 3D convolutions and the mean over time and place: (n, c, t, h, w) -> (n, width)."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        self.dim = width
        self.layers = nn.Sequential(
            nn.Conv3d(channels, width, 3, stride=(1, 2, 2), padding=1),
            nn.ReLU(),
            nn.Conv3d(width, width, 3, stride=(1, 2, 2), padding=1),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(dim=(2, 3, 4))


class VideoNetworks(AbstractNetworks):
    names = ("conv3d",)
    default = smallest = "conv3d"

    def inputs(self, network: str, choice: Choice, description: VideoDescription) -> InputSpec:
        time, height, width, channels = description.shape
        shape = (channels, min(choice["frames"], time), height, width)
        return InputSpec(
            lambda view: Conv3d(channels), (shape,) * choice["count"], {"instances": description.instances}
        )


class VideoPresenter(AbstractPresenter):
    baseline_titles: ClassVar[Mapping[str, str]] = {"frames": "mean of the frames"}

    def baselines(self, plain_view: MakeViews) -> dict[str, Features]:
        return {
            "frames": lambda data: torch.cat(
                [view.mean(dim=2).flatten(1).cpu() for view in plain_views(data, plain_view, 64, 0)]
            )
        }

    def pictures(self, loaded: np.ndarray, description: VideoDescription) -> list[Image.Image]:
        return [coloured(clip[len(clip) // 2]) for clip in loaded]

    def view_pictures(
        self, views: MiddleStretch, view: Tensor, description: VideoDescription
    ) -> list[Image.Image]:
        frames = view[:, :, view.shape[2] // 2].permute(0, 2, 3, 1).cpu().numpy() * views.std + views.mean
        return [coloured(frame) for frame in np.rint(255 * frames.clip(0, 1)).astype(np.uint8)]


VIDEO = Modality(
    name="video",
    unit="clips",
    plural="video clips",
    example="clips.npz",
    reader=VideoReader(),
    views=ViewFamily({"stretch": Stretch}),
    networks=VideoNetworks(),
    presenter=VideoPresenter(),
)
