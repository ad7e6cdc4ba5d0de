"""The arms of `nearfar bench`: our steps and losses, and those of peers as their documentation shows them."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nearfar import losses
from nearfar.bench.losses import (
    CHUNK,
    DIM,
    WORLD,
    by_two_ranks,
    differentiated,
    our_cached_step,
    ranking_step,
    scaled,
    their_cached_step,
)
from nearfar.bench.peers import Arm, Contest, Step, peer
from nearfar.core.networks import to_channels_last
from nearfar.data import locate, open_data
from nearfar.modalities import DataSet
from nearfar.parts.encoders import backbone
from nearfar.system.hardware import has_bf16, pick_precision
from nearfar.train.defaults import resolve_here
from nearfar.train.resuming import describe_data
from nearfar.train.session import Session
from nearfar.train.step import take_step

TEMPERATURE, QUEUE = 0.1, 16384
NETWORKS = ("resnet8-w16",)
LOADER_PROCESSES, PREFETCHED_BATCHES = 2, 4  # of a peer's loader; two batches per process is torch's default


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def our_step(recipe: str, network: str, batch: int, precision: torch.dtype, **overrides: Any) -> Step:
    """Returns one training step of `nearfar pretrain`, without logging."""
    data = open_data(pictures(4 * batch))
    session = our_session(
        recipe, data, {"backbone": network, "batch_size": batch, "epochs": 10**4, **overrides}, precision
    )
    batches = session.stream.batches(0, session.steps)
    return lambda: take_step(session, next(batches))


def our_session(
    recipe: str, data: DataSet, overrides: dict[str, Any], precision: torch.dtype | None = None
) -> Session:
    """A session of `nearfar pretrain` on the CPU, with its defaults, at its first step; `precision` is the
    settings' if None."""
    device = torch.device("cpu")
    settings, _ = resolve_here(recipe, data.name, None, overrides | {"device": "cpu"}, located=locate(data))
    description = describe_data(data, settings, None, False)
    if precision is None:
        precision = pick_precision(settings.precision, device)
    session = Session(settings, data, description, device, precision)
    session.prefill()
    return session


class _Pictures(torch.utils.data.Dataset[Any]):
    """PIL images with a transform, as from an image folder."""

    def __init__(self, transform: Callable[[Any], Any], images: np.ndarray) -> None:
        from PIL import Image

        self._images = [Image.fromarray(image) for image in images]
        self._transform = transform

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> Any:
        return self._transform(self._images[number])


def _loaded(transform: Callable[[Any], Any], batch: int, images: np.ndarray | None = None) -> Iterator[Any]:
    loader = torch.utils.data.DataLoader(
        _Pictures(transform, pictures(4 * batch) if images is None else images),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=LOADER_PROCESSES,
        persistent_workers=True,
        prefetch_factor=PREFETCHED_BATCHES // LOADER_PROCESSES,
    )
    while True:
        yield from loader


class NetworkWithHead(nn.Module):
    """A backbone under a projection head of two layers."""

    def __init__(self, network: str, head: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.backbone = backbone(network)
        with torch.no_grad():
            width = self.backbone.eval()(torch.zeros(2, 3, 32, 32)).shape[1]
        self.head = head(width)
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images).flatten(1))


def lightly_step(network: str, batch: int, best: bool) -> Step:
    return lightly_loop(network, batch, best=best)[0]


def lightly_loop(
    network: str, batch: int, images: np.ndarray | None = None, best: bool = False
) -> tuple[Step, NetworkWithHead]:
    """A SimCLR step as in lightly's documentation, and the network that it trains. `images` `(n, h, w, 3)`
    are noise if None; `best`: with the fastest layout and precision."""
    transforms, loss_module = peer("lightly.transforms"), peer("lightly.loss")
    heads = peer("lightly.models.modules")
    model = NetworkWithHead(network, lambda width: heads.SimCLRProjectionHead(width, width, DIM))
    layout = torch.channels_last if best else torch.contiguous_format
    if best:
        to_channels_last(model)
    criterion, optimizer = loss_module.NTXentLoss(), torch.optim.SGD(model.parameters(), lr=0.06)
    batches = _loaded(transforms.SimCLRTransform(input_size=32, gaussian_blur=0.0), batch, images)
    half = best and has_bf16(torch.device("cpu"))

    def step() -> None:
        x0, x1 = (view.contiguous(memory_format=layout) for view in next(batches)[:2])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            z0, z1 = model(x0), model(x1)
        criterion(z0.float(), z1.float()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model


class _Twice:
    """Two views of a picture. A class, because loader processes receive it by pickling."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self._transform = transform

    def __call__(self, image: Any) -> tuple[Any, Any]:
        return self._transform(image), self._transform(image)


def moco_step(network: str, batch: int) -> Step:
    """A plain script in MoCo's style: torchvision's transforms, a slow copy, a queue, cross-entropy."""
    from torchvision import transforms as tv

    crop = tv.Compose(
        [
            tv.RandomResizedCrop(32, scale=(0.2, 1.0)),
            tv.RandomApply([tv.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            tv.RandomGrayscale(p=0.2),
            tv.RandomHorizontalFlip(),
            tv.ToTensor(),
            tv.Normalize((0.5,) * 3, (0.25,) * 3),
        ]
    )
    model = NetworkWithHead(
        network, lambda width: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, DIM))
    )
    slow = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    queue, start = functional.normalize(torch.randn(DIM, QUEUE), dim=0), 0
    batches = _loaded(_Twice(crop), batch)

    def step() -> None:
        nonlocal start
        first, second = next(batches)
        anchors = functional.normalize(model(first), dim=1)
        with torch.no_grad():
            for weight, slow_weight in zip(model.parameters(), slow.parameters(), strict=True):
                slow_weight.mul_(0.999).add_(weight, alpha=0.001)
            keys = functional.normalize(slow(second), dim=1)
        logits = torch.cat([(anchors * keys).sum(1, keepdim=True), anchors @ queue], dim=1) / TEMPERATURE
        loss = functional.cross_entropy(logits, torch.zeros(batch, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue[:, start : start + batch] = keys.T
        start = (start + batch) % QUEUE

    return step


def contests(
    networks: Sequence[str] = NETWORKS, batch: int = 128, n: int = 2048, only: Sequence[str] = ()
) -> list[Contest]:
    """Every contest, or those whose titles begin with one of `only`."""
    steps = [simclr(network, batch) for network in networks]
    candidates = [*steps, moco(networks[0], batch), *loss_contests(n), cached(batch), two_ranks(n)]
    return [contest for contest in candidates if not only or contest.title.startswith(tuple(only))]


def simclr(network: str, batch: int) -> Contest:
    half = has_bf16(torch.device("cpu"))
    ours = {"fp32": torch.float32, "bf16": torch.bfloat16}
    theirs = {"as documented": False, "best layout and precision": True}
    steps = [
        Arm(f"nearfar, {name}", partial(our_step, "simclr", network, batch, kind), name == "fp32", "ours")
        for name, kind in ours.items()
    ] + [
        Arm(
            f"lightly, {name}",
            partial(lightly_step, network, batch, best),
            process="theirs",
            prefetched=PREFETCHED_BATCHES,
        )
        for name, best in theirs.items()
    ]
    arms = tuple(arm for arm in steps if half or "bf16" not in arm.name)
    return Contest(f"SimCLR step, {network}, batch {batch}, 32 x 32", "images/s", batch, arms)


def moco(network: str, batch: int) -> Contest:
    ours = partial(our_step, "moco", network, batch, torch.float32, negatives={"size": QUEUE})
    arms = (
        Arm("nearfar, fp32", ours, ours=True, process="ours"),
        Arm(
            "plain script",
            partial(moco_step, network, batch),
            process="theirs",
            prefetched=PREFETCHED_BATCHES,
        ),
    )
    return Contest(f"MoCo step, {network}, batch {batch}, queue {QUEUE:,}", "images/s", batch, arms)


def loss_contests(n: int) -> list[Contest]:
    ours = lambda loss: Arm("nearfar", lambda: differentiated(loss, n), ours=True)
    theirs = {
        "NT-Xent": (
            ours(losses.NTXentLoss(TEMPERATURE)),
            Arm("lightly", lambda: differentiated(peer("lightly.loss").NTXentLoss(TEMPERATURE), n)),
        ),
        "CLIP's loss": (
            ours(scaled(losses.ClipLoss())),
            Arm("open_clip", lambda: differentiated(scaled(peer("open_clip.loss").ClipLoss()), n)),
        ),
        "Multiple negatives ranking": (
            ours(losses.MultipleNegativesRankingLoss()),
            Arm("sentence-transformers", lambda: ranking_step(n)),
        ),
    }
    return [Contest(f"{name}, N = {n:,}, {DIM}-d", "rows/s", n, arms) for name, arms in theirs.items()]


def cached(batch: int) -> Contest:
    title = f"Cached gradients, resnet8-w16, batch {batch}, {CHUNK} at a time"
    arms = (
        Arm("nearfar", lambda: our_cached_step(batch), ours=True),
        Arm("sentence-transformers", lambda: their_cached_step(batch)),
        Arm("nearfar, all at once", lambda: our_cached_step(batch, None)),
    )
    return Contest(title, "pairs/s", batch, arms)


def two_ranks(n: int) -> Contest:
    title = f"CLIP's loss gathered by {WORLD} gloo processes, N = {n:,}, {DIM}-d"
    arms = (
        Arm("nearfar", lambda: by_two_ranks(True, n), ours=True),
        Arm("open_clip", lambda: by_two_ranks(False, n)),
    )
    return Contest(title, "rows/s", n, arms)
