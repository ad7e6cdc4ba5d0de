"""Frozen features: what an encoder says of every image of a set, computed once."""

import copy
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor, nn
from torch.nn import functional

from nearfar.buffers import frozen
from nearfar.data.prefetch import prefetch
from nearfar.errors import NotFinite
from nearfar.types import Pixels
from nearfar.views import WholeSound, WholeText

PIXEL_SIDE = 32  # raw pixels are compared at this size at most: beyond it they only get slower, not better


class ImageSet(Protocol):
    """What an evaluation needs of an opened data set (`nearfar.data.Images` is one, `Sequences` another); what it
    loads is for its own kind of view to understand."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def labels(self) -> np.ndarray | None: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def load(self, index: Int[np.ndarray, "image"], /) -> Any: ...


class View(Protocol):
    """A view pipeline without randomness (`nearfar.views.Plain` is one), of which the first view counts."""

    def __call__(
        self, loaded: Any, seed: int, epoch: int, index: Int[np.ndarray, "image"], /
    ) -> tuple[Tensor, ...]: ...


def features(
    encoder: nn.Module,
    images: ImageSet,
    plain: View,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 2,
    precision: Literal["fp32", "bf16"] = "fp32",
) -> Float[Tensor, "image dim"]:
    """The encoder's features of every image, in order, as float32 on the CPU.

    The encoder comes back as it was: batch norm reads its statistics and moves none of them, every module's
    training mode is put back, and an encoder that lives elsewhere than `device` is copied there, not moved. Features that
    are not finite are refused: whatever is made of them would be a number about nothing.
    """
    device = torch.device(device)
    half = torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
    with torch.inference_mode(), frozen(_on(encoder, device)) as still, half:
        parts = [
            still(_laid_out(view).to(device, non_blocking=True)).float().cpu()
            for view in plain_views(images, plain, batch_size, workers)
        ]
    embedded = torch.cat(parts)  # outside inference mode, so that the result may enter autograd
    wrong = int((~embedded.isfinite().all(dim=1)).sum())
    if wrong:
        raise NotFinite(
            f"the features of {wrong} of {len(embedded)} items of {images.name} are not finite: the encoder's weights are unusable, "
            "or too large for these inputs"
        )
    return embedded


def _laid_out(view: Tensor) -> Tensor:
    """Pictures with their channels last, as convolutions like them; sequences as they are."""
    return view.contiguous(memory_format=torch.channels_last) if view.ndim == 4 else view


def pixels_features(
    images: ImageSet, plain: View, *, batch_size: int = 512, workers: int = 2
) -> Float[Tensor, "image dim"]:
    """The plain view itself as a feature vector: what there was before anything was learned.

    Views larger than 32 × 32 are averaged down to that, which does raw pixels no harm: their neighbours and
    linear classifiers see little more than coarse colour.
    """
    parts = []
    for view in plain_views(images, plain, batch_size, workers):
        side = min(PIXEL_SIDE, view.shape[-1])
        parts.append(functional.adaptive_avg_pool2d(view, side).flatten(1).float().cpu())
    return torch.cat(parts)


def plain_views(images: ImageSet, plain: View, batch_size: int, workers: int) -> Iterator[Tensor]:
    """The plain view of the images in order, a batch at a time, made ahead by `workers` threads."""

    def view(index: Int[np.ndarray, "image"]) -> Tensor:
        return plain(images.load(index), 0, 0, index)[0]

    numbers = np.arange(len(images), dtype=np.int64)
    batches = (numbers[start : start + batch_size] for start in range(0, len(images), batch_size))
    return prefetch(view, batches, workers)


def _on(encoder: nn.Module, device: torch.device) -> nn.Module:
    homes = {tensor.device for tensor in (*encoder.parameters(), *encoder.buffers())}
    here = all(home.type == device.type and device.index in (None, home.index) for home in homes)
    return encoder if here else copy.deepcopy(encoder).to(device)


def features_key(encoder: nn.Module, images: ImageSet, plain: View) -> str:
    """A name that changes when the features would: with the weights, the images, or what the view does."""
    digest = hashlib.sha256(images.fingerprint.encode())
    digest.update(encoder_digest(encoder).encode())
    digest.update(_view_digest(plain, images.channels))
    return digest.hexdigest()


def encoder_digest(encoder: nn.Module) -> str:
    """sha256 over the encoder's layers and every number in its state."""
    digest = hashlib.sha256(repr(encoder).encode())
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(f"\0{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        digest.update(_raw(value))
    return digest.hexdigest()


def _view_digest(plain: View, channels: int) -> bytes:
    """Known by its deeds: a digest of what the view makes of a fixed picture (size, crop, statistics). The plain
    views of sequences have no settings, so their name is enough."""
    if isinstance(plain, (WholeSound, WholeText)):
        return hashlib.sha256(repr(plain).encode()).digest()
    ramp = np.arange(61 * 47 * channels, dtype=np.uint32).reshape(1, 61, 47, channels)
    picture = Pixels((ramp * 2654435761 >> 24).astype(np.uint8), np.array([[61, 47]], dtype=np.int32))
    seen = plain(picture, 0, 0, np.zeros(1, dtype=np.int64))[0].float().cpu()
    return hashlib.sha256(f"{tuple(seen.shape)}".encode() + _raw(seen)).digest()


def cached_features(
    folder: Path, key: str, compute: Callable[[], Float[Tensor, "image dim"]]
) -> Float[Tensor, "image dim"]:
    """The features stored in `folder` under `key`, computed and stored if they are not there whole.

    A file whose numbers do not match the digest beside them is never trusted: it is computed again. Where
    nothing can be written the features are still returned.
    """
    path = folder / f"{key}.safetensors"
    stored = _read(path)
    if stored is not None:
        return stored
    fresh = compute()
    _write(path, fresh)
    return fresh


def _read(path: Path) -> Tensor | None:
    try:
        tensors = tensors_of(path.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
    if tensors.keys() != {"features", "digest"}:
        return None
    stored = tensors["features"]
    whole = torch.equal(tensors["digest"], _seal(stored)) and bool(stored.isfinite().all())
    return stored if whole else None


def _write(path: Path, features: Tensor) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = bytes_of({"features": features.contiguous(), "digest": _seal(features)})
        write_whole(path, content)
    except OSError:
        return


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a reader, a kill or a full disk finds the old one or the new one, never a part."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _seal(features: Tensor) -> Tensor:
    shape = f"{features.dtype}{tuple(features.shape)}".encode()
    return torch.frombuffer(bytearray(hashlib.sha256(shape + _raw(features)).digest()), dtype=torch.uint8)


def _raw(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
