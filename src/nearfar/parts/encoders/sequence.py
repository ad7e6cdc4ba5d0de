"""Predicting what comes next in a sequence, in the space of what it is encoded to (CPC, Liu 2022, sec. 2).

    sound --strided convolutions--> z_t --GRU--> c_t          one frame t for every 160 samples
    f_k(z_{t+k}, c_t) = z_{t+k}^T W_k c_t                      Liu 2022, Eq. 28, one W_k for each step ahead

A pair of the method is one step ahead: anchors[k] = W_k c_t, keys[k] = z_{t+k}, a row for every frame of
every recording that has one k steps later. The critic that goes with it is `dot`. Where several stretches of
a recording are heard, each predicts its own future: step k of stretch v has the number k + steps * v.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractEncoders
from nearfar.core.types import Batch, Encoded, Pair
from nearfar.errors import UserError, check_whole
from nearfar.parts.encoders.heads import InputSpec

Strides = tuple[int, int, int, int, int]
STRIDES: Strides = (5, 4, 2, 2, 2)
Pooling = Literal["mean", "moments"]
PredictiveFeatures = Literal["both", "z", "c"]


class ConvGRU(nn.Module):
    """Five strided convolutions and a GRU; features are the means of z and c over time, or of one.

    What lies beyond a recording's end is zero after every layer, so a recording's frames do not depend on how
    far it was padded. `pooling="moments"` adds the standard deviations over time to the means.
    """

    def __init__(
        self,
        width: int,
        context: int,
        strides: Strides = STRIDES,
        pooling: Pooling = "mean",
        features: PredictiveFeatures = "both",
    ) -> None:
        super().__init__()
        self.strides, self.pooling, self.features = strides, pooling, features
        frame = {"both": width + context, "z": width, "c": context}[features]
        self.dim = frame * (2 if pooling == "moments" else 1)
        inputs = [1, *[width] * (len(strides) - 1)]
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, width, 2 * stride, stride, padding=stride, bias=False)
            for channels, stride in zip(inputs, strides, strict=True)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in strides)
        self.context = nn.GRU(width, context, batch_first=True)

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return math.prod(self.strides)

    def frames(
        self, sound: Float[Tensor, "item 2 time"]
    ) -> tuple[Float[Tensor, "item frame width"], Bool[Tensor, "item frame"]]:
        """z, and which frames begin before the recording ends: ceil(length / hop) of them."""
        x, real = sound[:, :1], sound[:, 1:]
        for layer, norm, stride in zip(self.layers, self.norms, self.strides, strict=True):
            real = real[..., ::stride]
            x = F.relu(norm(layer(x)[..., : real.shape[-1]])) * real
        return x.transpose(1, 2), real[:, 0] > 0

    def contexts(self, z: Float[Tensor, "item frame width"]) -> Float[Tensor, "item frame context"]:
        """c_t, a function of z up to and including z_t."""
        return self.context(z)[0]

    def forward(self, sound: Float[Tensor, "item 2 time"]) -> Float[Tensor, "item dim"]:
        z, real = self.frames(sound)
        parts = [] if self.features == "c" else [z]
        parts += [] if self.features == "z" else [self.contexts(z)]
        frames = torch.cat(parts, dim=2)
        weight = real[..., None].to(frames.dtype) / real.sum(dim=1)[:, None, None]
        mean = (frames * weight).sum(dim=1)
        if self.pooling == "mean":
            return mean
        variance = ((frames - mean[:, None]) ** 2 * weight).sum(dim=1)
        return torch.cat([mean, variance.sqrt()], dim=1)


def _too_many_steps(steps: int, samples: int, strides: Strides) -> str | None:
    """The sentence for a window that has no frame `steps` ahead; None if it has one."""
    hop = math.prod(strides)
    frames = -(-samples // hop)
    if steps < frames:
        return None
    return (
        f"encoders.steps was {steps}, but a window of views.samples={samples} has {frames} frames of {hop} "
        "samples; use fewer steps or a longer window"
    )


def whole_instance_memory(
    setting: str, rows: str, choices: Mapping[str, Any], parts: Mapping[str, Any]
) -> str | None:
    """The sentence for encoders that contrast rows of one instance with each other, used with a part that
    remembers an instance as a whole; None if there is none."""
    for room in ("negatives", "selection"):
        if parts[room].remembers_instances:
            return (
                f"{setting} with {room}={choices[room]['name']}: {rows} are contrasted with each other, and "
                "what remembers an instance as a whole cannot tell them apart"
            )
    return None


class Predictive(nn.Module, AbstractEncoders):
    """Every frame's context predicts the frames 1 to `steps` ahead.

    `others`: what a frame is contrasted with. "sequences": frames of other recordings; its identity is the
    recording's. "times": those and other frames of its own recording; its identity is instance + instances *
    time. `features`: what is kept of a recording after training, z_t, c_t or both, pooled over time (van den
    Oord et al. 2018 uses c_t, or z_t where no memory is needed). `strides` of the convolutions multiply to the hop: (5, 4, 2, 2, 2) makes frames of 20 ms at 8 kHz.
    """

    equation = "u = W_k c_t, v = z_(t+k), k = 1 to {steps}: z_t encodes frame t, c_t all frames up to it"
    built_in_backbone = "conv-gru"
    view_names = ("window",)
    width_setting = "width"  # the width of anchors and keys
    row_per_instance = False  # there are many embeddings of an instance
    works_with_one_view = True  # a sequence's positive is its own future, so one view is enough

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        encoders, views = choices["encoders"], choices["views"]
        if "samples" in views and "strides" in encoders:
            too_long = _too_many_steps(encoders["steps"], views["samples"], encoders["strides"])
            if too_long:
                return too_long
        if encoders.get("others") != "times":
            return None
        memory = whole_instance_memory("encoders.others was times", "times of one recording", choices, parts)
        return memory and f"{memory}; use encoders.others=sequences"

    def __init__(
        self,
        width: int = 64,
        context: int = 128,
        steps: int = 6,
        others: Literal["sequences", "times"] = "sequences",
        strides: Strides = STRIDES,
        pooling: Pooling = "mean",
        features: PredictiveFeatures = "both",
        *,
        samples: int | None = None,
        instances: int = 0,
    ) -> None:
        super().__init__()
        for key, value in (("width", width), ("context", context), ("steps", steps)):
            check_whole(f"encoders.{key}", value, 1, 65536)
        if features not in ("both", "z", "c"):
            raise UserError(f"encoders.features was {features!r}; expected both, z or c")
        if min(strides) < 1:
            raise UserError(f"encoders.strides was {list(strides)}; each must be at least 1")
        self.steps, self.others = steps, others
        # frames k ahead are contrasted with frames k ahead: for another k most are the same frames again
        self.key_groups = steps
        if samples is not None:
            self._make_networks(samples, instances)

    def meet(self, inputs: InputSpec) -> None:
        self._make_networks(inputs.context["samples"], inputs.context["instances"])

    def _make_networks(self, samples: int, instances: int) -> None:
        width, context, strides = (self.settings[key] for key in ("width", "context", "strides"))
        self.instances = instances
        self.listener = ConvGRU(width, context, strides, self.settings["pooling"], self.settings["features"])
        self.window = -(-samples // self.listener.hop)
        too_long = _too_many_steps(self.steps, samples, strides)
        if too_long:
            raise UserError(too_long)
        self.predictors = nn.ModuleList(nn.Linear(context, width, bias=False) for _ in range(self.steps))

    def group_of(self, key: int) -> int:
        return key % self.steps  # steps count from 1

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        return tuple(self._pair(number, views) for number in range(1, self.steps * views + 1))

    def _pair(self, number: int, views: int) -> Pair:
        places = self.window - self._step(number)
        same = places - 1 if self.others == "times" else 0
        return Pair(number, number, 1 / (self.steps * views), places, same)

    def _step(self, number: int) -> int:
        """How far ahead a pair predicts."""
        return (number - 1) % self.steps + 1

    def backbone(self) -> nn.Module:
        return self.listener

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        """A row for every frame that has one the requested number of steps later."""
        anchor_embeddings, key_embeddings, identity, instance = {}, {}, {}, {}
        for view, sound in enumerate(batch.views):
            view_numbers = range(1 + self.steps * view, 1 + self.steps * (view + 1))
            requested = [number for number in view_numbers if number in {*anchors, *keys}]
            if not requested:
                continue
            z, real = self.listener.frames(sound)
            c = self.listener.contexts(z) if anchors else z
            for number in requested:
                k = self._step(number)
                later = real[:, k:]  # a row for frame t and step k is one whose frame t + k is real
                if number in anchors:
                    anchor_embeddings[number] = self.predictors[k - 1](c[:, :-k][later])
                if number in keys:
                    key_embeddings[number], instance[number] = z[:, k:][later], later.nonzero()[:, 0]
                    identity[number] = self._identity(batch.index, real, k)
        return Encoded(anchor_embeddings, key_embeddings, identity, instance)

    def _identity(
        self, who: Int[Tensor, "item"], real: Bool[Tensor, "item frame"], k: int
    ) -> Int[Tensor, "row"]:
        time = torch.arange(k, real.shape[1], device=real.device)
        names = who[:, None] + (self.instances * time if self.others == "times" else 0 * time)
        return names[real[:, k:]]
