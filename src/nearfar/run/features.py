"""Features of a frozen encoder for every instance of a set, computed once and cached."""

import copy
import hashlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from safetensors import SafetensorError
from safetensors.torch import save as bytes_of
from torch import Tensor, nn

from nearfar.core.buffers import frozen
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.errors import NotFinite
from nearfar.modalities import DataSet, Instances
from nearfar.modalities.base import MakeViews
from nearfar.modalities.showing import plain_views
from nearfar.run.weights import load_tensors
from nearfar.system.files import write_atomic


def features(
    encoder: nn.Module, images: Instances, plain_view: MakeViews, **options: Any
) -> Float[Tensor, "image dim"]:
    """The features of every image, in order, as float32 on the CPU; `options` of `feature_batches`."""
    embedded, place = torch.empty(0), 0
    for part in feature_batches(encoder, images, plain_view, **options):
        if not place:  # one tensor: joining a list would need twice the memory
            embedded = torch.empty(len(images), *part.shape[1:])
        embedded[place : place + len(part)] = part
        place += len(part)
    return embedded


def feature_batches(
    encoder: nn.Module,
    images: Instances,
    plain_view: MakeViews,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 2,
    precision: Literal["fp32", "bf16"] = "fp32",
    strategy: Strategy = SINGLE,
) -> Iterator[Float[Tensor, "image dim"]]:
    """The features of every image in order, by batches that ranks share; each rank gets all of them.

    The encoder is not changed: batch norm reads its running statistics, the training mode of every module is
    restored, and an encoder on another device than `device` is copied there, not moved. Features that are not
    finite raise `NotFinite` after the last batch.
    """
    device, count, part_of_rank = torch.device(device), -(-len(images) // batch_size), images
    if count < strategy.world:  # every rank computes all
        strategy = SINGLE
    elif strategy.is_distributed:
        turns = np.arange(len(images)) // batch_size % strategy.world
        part_of_rank = cast(DataSet, images).subset(np.flatnonzero(turns == strategy.rank))
    half = torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
    views = plain_views(part_of_rank, plain_view, batch_size, workers)
    wrong, part = 0, torch.empty(0)
    with frozen(_on(encoder, device)) as network:
        for _ in range(-(-count // strategy.world)):
            view = next(views, None)
            if view is None:  # a rank may have no batch in the last turn
                part = part[:0]
            else:
                with torch.inference_mode(), half:
                    part = network(_laid_out(view).to(device)).float().cpu()
                part = part.clone()  # outside inference mode, so that the result may enter autograd
            gathered = strategy.all_gather(part)
            wrong += int((~gathered.isfinite().flatten(1).all(dim=1)).sum())
            yield from gathered.split(batch_size)
    if wrong:
        raise NotFinite(
            f"the features of {wrong} of {len(images)} items of {images.name} are not finite: the encoder's "
            "weights are unusable, or too large for these inputs"
        )


def shared_batches(
    images: Instances, batch_size: int, strategy: Strategy
) -> tuple[Instances, Callable[[Tensor], Tensor]]:
    """This rank's consecutive batches, each as in one process, and a function that gathers the rows of all
    ranks. With fewer batches than ranks, every rank computes all."""
    count = -(-len(images) // batch_size)
    if not strategy.is_distributed or count < strategy.world:
        return images, lambda rows: rows
    share = strategy.share(count)
    rows = np.arange(share.start * batch_size, min(share.stop * batch_size, len(images)))
    return cast(DataSet, images).subset(rows), strategy.all_gather


def _laid_out(view: Tensor) -> Tensor:
    """Images in channels-last layout, which is faster for convolutions; sequences unchanged."""
    return view.contiguous(memory_format=torch.channels_last) if view.ndim == 4 else view


def _on(encoder: nn.Module, device: torch.device) -> nn.Module:
    homes = {tensor.device for tensor in (*encoder.parameters(), *encoder.buffers())}
    on_device = all(home.type == device.type and device.index in (None, home.index) for home in homes)
    return encoder if on_device else copy.deepcopy(encoder).to(device)


def features_key(encoder: nn.Module, images: Instances, plain_view: MakeViews) -> str:
    """A digest of everything that features depend on: the weights, the images and the view."""
    digest = hashlib.sha256(images.fingerprint.encode())
    digest.update(encoder_digest(encoder).encode())
    digest.update(_view_digest(plain_view))
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
    plain_view: MakeViews,
    *,
    batch_size: int = 512,
    workers: int = 2,
    strategy: Strategy = SINGLE,
) -> Int64[Tensor, "image 2"]:
    """A 128-bit hash of the plain view of each instance: equal for two that an encoder cannot distinguish."""
    part_of_rank, gather = shared_batches(images, batch_size, strategy)
    digests = [
        hashlib.blake2b(_raw(one), digest_size=16).digest()
        for view in plain_views(part_of_rank, plain_view, batch_size, workers)
        for one in view
    ]
    return gather(torch.from_numpy(np.frombuffer(b"".join(digests), dtype="<i8").reshape(-1, 2).copy()))


def contents_key(images: Instances, plain_view: MakeViews) -> str:
    return hashlib.sha256(b"contents" + images.fingerprint.encode() + _view_digest(plain_view)).hexdigest()


def _view_digest(plain_view: MakeViews) -> bytes:
    """The repr of a view shows what it depends on; one with an address is never reused."""
    written = repr(plain_view)
    return uuid.uuid4().bytes if " at 0x" in written else hashlib.sha256(written.encode()).digest()


def cached_features(
    folder: Path, key: str, compute: Callable[[], Shaped[Tensor, "image dim"]], strategy: Strategy = SINGLE
) -> Shaped[Tensor, "image dim"]:
    """The features (or `content_hashes`) that `folder` has under `key`; computed and stored if they are
    missing or damaged. Ranks share the computation.

    A file whose numbers do not match its digest is computed again. If nothing can be written, the features
    are still returned.
    """
    path = folder / f"{key}.safetensors"
    stored = _read_cached(path)
    if strategy.first_reason("missing" if stored is None else None) is None and stored is not None:
        return stored
    computed = compute()
    if strategy.is_first:
        _write_cached(path, computed)
    return computed


def _read_cached(path: Path) -> Tensor | None:
    try:
        tensors = load_tensors(path)
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
    if tensors.keys() != {"features", "digest"}:
        return None
    stored = tensors["features"]
    valid = torch.equal(tensors["digest"], _seal(stored)) and bool(stored.isfinite().all())
    return stored if valid else None


def _write_cached(path: Path, features: Tensor) -> None:
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
