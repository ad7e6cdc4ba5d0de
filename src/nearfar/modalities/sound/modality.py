"""Recordings: stretches of sound for a convolutional and recurrent network, compared with MFCC.

One set has one sample rate, the most common among its recordings: what was sampled otherwise goes to the quarantine list,
because a network that counts samples would hear it at another pitch.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image
from torch import Tensor

from nearfar.config.schema import chosen_views
from nearfar.core.method import Method
from nearfar.errors import UserError
from nearfar.modalities.base import Choice, Decoded, Description, Features, Found, MakeViews, Modality
from nearfar.modalities.dataset import DataSet
from nearfar.modalities.sequences import Held, Read, Series
from nearfar.modalities.showing import spectrogram
from nearfar.modalities.sound.decode import decode_sound
from nearfar.modalities.sound.mfcc import mfcc_features
from nearfar.modalities.sound.views import WholeSound, Window
from nearfar.parts.encoders import ConvGRU, InputSpec, Predictive

WIDTH, CONTEXT = 64, 128  # of the network, where a role does not bring its own


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Recordings(DataSet):
    """An opened set of recordings: `load` gives `Series` of numbers in [-1, 1)."""

    modality: ClassVar[str] = "sound"
    unit: ClassVar[str] = "recordings"
    each: ClassVar[tuple[str, ...]] = (*DataSet.each, "lengths")

    rate: int  # samples a second
    lengths: Int64[np.ndarray, "item"]  # in samples


@dataclass(frozen=True)
class SoundDescription(Description):
    rate: int


class SoundModality(Modality):
    name = "sound"
    unit = "recordings"
    files = "recordings"
    holds = "recordings"
    example = "recordings/"
    suffixes = (".wav", ".flac")
    columns = ("audio",)
    pipelines = ("window",)
    default_views = "window"
    networks = ("conv-gru",)
    default_network = "conv-gru"
    smallest_network = "conv-gru"
    baseline_titles: ClassVar[Mapping[str, str]] = {"mfcc": "MFCC", "mfcc-moments": "MFCC and deviations"}

    def decode(self, raw: bytes, options: Mapping[str, Any]) -> Decoded:
        recording = decode_sound(raw)
        return Decoded(recording.wave, (recording.rate, len(recording.wave)), recording.wave.nbytes)

    def odd(self, facts: Sequence[tuple[int, int]]) -> dict[int, str]:
        counted = Counter(rate for rate, _ in facts)
        usual = min(counted, key=lambda rate: (-counted[rate], rate), default=0)
        return {
            place: f"sampled at {rate} Hz; most of the set is at {usual} Hz"
            for place, (rate, _) in enumerate(facts)
            if rate != usual
        }

    def collect(self, found: Found, options: Mapping[str, Any]) -> Recordings:
        known = found.common()
        known["fingerprint"] = _marked(found.fingerprint, found.groups)
        lengths = np.asarray(found.facts)[:, 1].astype(np.int64)
        store = Read(found.read) if found.held is None else Held(found.held)
        return Recordings(**known, store=store, rate=int(found.facts[0][0]), lengths=lengths)

    def describe(self, data: Recordings, size: int | None) -> SoundDescription:
        return SoundDescription(data.fingerprint, len(data), data.rate)

    def typical(self, instances: int) -> SoundDescription:
        return SoundDescription("", instances, 8000)

    def description(self, plain: Mapping[str, Any]) -> SoundDescription:
        return SoundDescription.from_plain(plain)

    def check_alike(self, data: Recordings, known: SoundDescription, where: str) -> None:
        if data.rate != known.rate:
            raise UserError(
                f"{data.name} is sampled at {data.rate} Hz but {where} was trained on {known.rate} Hz"
            )

    def check_method(self, data: Recordings, method: Method) -> None:
        """Stops where most recordings have no frame to predict."""
        role = method.encoders
        if not isinstance(role, Predictive):
            return
        least = role.steps * role.listener.hop + 1
        short = int((data.lengths < least).sum())
        if 2 * short > len(data):
            raise UserError(
                f"encoders.steps was {role.steps}: {short} of {len(data)} recordings are shorter than so many frames of "
                f"{role.listener.hop} samples; use fewer encoders.steps or smaller encoders.strides"
            )

    def check_views(self, choice: Choice) -> dict[str, Any]:
        return chosen_views(Window, choice)

    def views(self, choice: Choice, known: SoundDescription, device: torch.device) -> Window:
        return Window(choice["samples"], choice["count"])

    def plain(self, choice: Choice, known: SoundDescription, device: torch.device) -> WholeSound:
        return WholeSound()

    def inputs(self, network: str, choice: Choice, known: SoundDescription) -> InputSpec:
        context = {"instances": known.instances, "samples": choice["samples"]}
        shape = (2, choice["samples"])
        return InputSpec(lambda view: ConvGRU(WIDTH, CONTEXT), (shape,) * choice["count"], context)

    def baselines(self, plain: MakeViews) -> dict[str, Features]:
        return {
            "mfcc": lambda sounds: mfcc_features(sounds),
            "mfcc-moments": lambda sounds: mfcc_features(sounds, moments=True),
        }

    def pictures(self, loaded: Series, known: SoundDescription) -> list[Image.Image]:
        return [spectrogram(wave[:length]) for wave, length in zip(loaded.data, loaded.length, strict=True)]

    def view_pictures(self, views: Window, shown: Tensor, known: SoundDescription) -> list[Image.Image]:
        waves = shown.detach().cpu().numpy()
        return [spectrogram(wave[: max(1, int(real.sum()))]) for wave, real in waves]


def _marked(digest: str, groups: Mapping[str, np.ndarray]) -> str:
    """A fingerprint that also changes when a recording changes its group."""
    whole = hashlib.sha256(digest.encode())
    for name, numbers in sorted(groups.items()):
        whole.update(name.encode() + b"\0" + numbers.astype("<i8").tobytes())
    return whole.hexdigest()


SOUND = SoundModality()
