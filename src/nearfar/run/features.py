"""Frozen features: what an encoder says of every image of a set, computed once."""

import copy
import hashlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor, nn

from nearfar.core.buffers import frozen
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.errors import NotFinite
from nearfar.modalities import DataSet, Instances
from nearfar.modalities.base import MakeViews
from nearfar.modalities.showing import plain_views
from nearfar.system.files import write_atomic


def features(
    encoder: nn.Module,
    images: Instances,
    plain: MakeViews,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 2,
    precision: Literal["fp32", "bf16"] = "fp32",
    strategy: Strategy = SINGLE,
) -> Float[Tensor, "image dim"]:
    """The encoder's features of every image, in order, as float32 on the CPU; several ranks share the work, and each has all of it.

    The encoder comes back as it was: batch norm reads its statistics and moves none of them, every module's
    training mode is put back, and an encoder that lives elsewhere than `device` is copied there, not moved. Features that
    are not finite are refused: whatever is made of them would be a number about nothing.
    """
    mine, gather = shared_batches(images, batch_size, strategy)
    embedded = torch.empty(0)
    place = 0
    for part in _embedded(encoder, mine, plain, batch_size, device, workers, precision):
        if not place:  # one tensor: a list to be joined would hold everything twice
            embedded = torch.empty(len(mine), *part.shape[1:])
        embedded[place : place + len(part)] = part
        place += len(part)
    embedded = gather(embedded)
    _check_finite(_not_finite(embedded), images)
    return embedded


def feature_batches(
    encoder: nn.Module,
    images: Instances,
    plain: MakeViews,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 2,
    precision: Literal["fp32", "bf16"] = "fp32",
    strategy: Strategy = SINGLE,
) -> Iterator[Float[Tensor, "image dim"]]:
    """The same, a batch at a time, in order; those that are not finite are counted to the end, and then refused. Several ranks take
    turns with the batches, and each gets all of them."""
    count = -(-len(images) // batch_size)
    mine = images
    if count < strategy.world:  # everybody takes all
        strategy = SINGLE
    elif strategy.is_distributed:
        turns = np.arange(len(images)) // batch_size % strategy.world
        mine = cast(DataSet, images).subset(np.flatnonzero(turns == strategy.rank))
    parts = _embedded(encoder, mine, plain, batch_size, device, workers, precision)
    wrong, part = 0, torch.empty(0)
    for _ in range(-(-count // strategy.world)):
        part = next(parts, part[:0])  # in the last turn there may be none left
        everyones = strategy.all_gather(part)
        wrong += _not_finite(everyones)
        yield from everyones.split(batch_size)
    _check_finite(wrong, images)


def _embedded(
    encoder: nn.Module,
    images: Instances,
    plain: MakeViews,
    batch_size: int,
    device: torch.device | str,
    workers: int,
    precision: Literal["fp32", "bf16"],
) -> Iterator[Float[Tensor, "image dim"]]:
    device = torch.device(device)
    half = torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
    with frozen(_on(encoder, device)) as still:
        for view in plain_views(images, plain, batch_size, workers):
            with torch.inference_mode(), half:
                part = still(_laid_out(view).to(device, non_blocking=True)).float().cpu()
            yield part.clone()  # outside inference mode, so that the result may enter autograd


def _not_finite(rows: Float[Tensor, "image dim"]) -> int:
    return int((~rows.isfinite().flatten(1).all(dim=1)).sum())


def _check_finite(wrong: int, images: Instances) -> None:
    if wrong:
        raise NotFinite(
            f"the features of {wrong} of {len(images)} items of {images.name} are not finite: the encoder's weights are unusable, "
            "or too large for these inputs"
        )


def shared_batches(
    images: Instances, batch_size: int, strategy: Strategy
) -> tuple[Instances, Callable[[Tensor], Tensor]]:
    """This rank's run of whole batches, so that none is other than in one process, and what puts all ranks' rows together. Of fewer
    batches than ranks everybody takes all."""
    count = -(-len(images) // batch_size)
    if not strategy.is_distributed or count < strategy.world:
        return images, lambda rows: rows
    mine = strategy.share(count)
    rows = np.arange(mine.start * batch_size, min(mine.stop * batch_size, len(images)))
    return cast(DataSet, images).subset(rows), strategy.all_gather


def _laid_out(view: Tensor) -> Tensor:
    """Pictures with their channels last, as convolutions like them; sequences as they are."""
    return view.contiguous(memory_format=torch.channels_last) if view.ndim == 4 else view


def _on(encoder: nn.Module, device: torch.device) -> nn.Module:
    homes = {tensor.device for tensor in (*encoder.parameters(), *encoder.buffers())}
    here = all(home.type == device.type and device.index in (None, home.index) for home in homes)
    return encoder if here else copy.deepcopy(encoder).to(device)


def features_key(encoder: nn.Module, images: Instances, plain: MakeViews) -> str:
    """A name that changes when the features would: with the weights, the images, or what the view does."""
    digest = hashlib.sha256(images.fingerprint.encode())
    digest.update(encoder_digest(encoder).encode())
    digest.update(_view_digest(plain))
    return digest.hexdigest()


def encoder_digest(encoder: nn.Module) -> str:
    """sha256 over the encoder's layers and every number in its state."""
    digest = hashlib.sha256(repr(encoder).encode())
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(f"\0{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        digest.update(_raw(value))
    return digest.hexdigest()


def content_hashes(
    images: Instances,
    plain: MakeViews,
    *,
    batch_size: int = 512,
    workers: int = 2,
    strategy: Strategy = SINGLE,
) -> Int64[Tensor, "image 2"]:
    """128 bits of what is seen of each instance in plain view: the same for two that an encoder cannot tell apart."""
    mine, gather = shared_batches(images, batch_size, strategy)
    marks = [
        hashlib.blake2b(_raw(one), digest_size=16).digest()
        for view in plain_views(mine, plain, batch_size, workers)
        for one in view
    ]
    return gather(torch.from_numpy(np.frombuffer(b"".join(marks), dtype="<i8").reshape(-1, 2).copy()))


def contents_key(images: Instances, plain: MakeViews) -> str:
    return hashlib.sha256(b"contents" + images.fingerprint.encode() + _view_digest(plain)).hexdigest()


def _view_digest(plain: MakeViews) -> bytes:
    """Views say in their representation all that they depend on; of one that does not, nothing is reused."""
    written = repr(plain)
    return uuid.uuid4().bytes if " at 0x" in written else hashlib.sha256(written.encode()).digest()


def cached_features(
    folder: Path, key: str, compute: Callable[[], Shaped[Tensor, "image dim"]], strategy: Strategy = SINGLE
) -> Shaped[Tensor, "image dim"]:
    """The features (or `content_hashes`) stored in `folder` under `key`, computed and stored if they are not there whole, for each of the ranks that share the
    computation.

    A file whose numbers do not match the digest beside them is never trusted: it is computed again. Where
    nothing can be written the features are still returned.
    """
    path = folder / f"{key}.safetensors"
    stored = _read(path)
    if strategy.first_reason("missing" if stored is None else None) is None and stored is not None:
        return stored
    fresh = compute()
    if strategy.is_first:
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
        write_atomic(path, content)
    except OSError:
        return


def _seal(features: Tensor) -> Tensor:
    shape = f"{features.dtype}{tuple(features.shape)}".encode()
    return torch.frombuffer(bytearray(hashlib.sha256(shape + _raw(features)).digest()), dtype=torch.uint8)


def _raw(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
