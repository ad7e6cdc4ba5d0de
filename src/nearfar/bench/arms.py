"""The arms of `nearfar bench`: our steps and losses, and those of peers as their documentation shows them."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nearfar import losses
from nearfar.data import open_data
from nearfar.encoders import backbone
from nearfar.hardware import has_bf16
from nearfar.resolve import resolve
from nearfar.train.prepare import described, prepare, prime

DIM, TEMPERATURE, QUEUE = 128, 0.1, 16384
Step = Callable[[], Any]


class Absent(Exception):
    """A peer that is not installed."""


@dataclass(frozen=True)
class Arm:
    """One way to do a step. `make` builds it: what is built is not timed."""

    name: str
    make: Callable[[], Step]
    ours: bool = False


@dataclass(frozen=True)
class Contest:
    """Arms that do the same, and how many things (images, rows) one step of each deals with."""

    title: str
    unit: str
    count: int
    arms: tuple[Arm, ...]


def peer(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as problem:
        raise Absent(module.partition(".")[0]) from problem


# ------------------------------------------------------------------------------------------------- whole steps


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def our_step(recipe: str, network: str, batch: int, precision: torch.dtype, **settings: Any) -> Step:
    """Everything a step of `nearfar pretrain` does but for logging."""
    data = open_data(pictures(4 * batch))
    chosen = resolve(recipe, "noise", {"backbone": network, "batch_size": batch, "epochs": 10**4, **settings})
    known = described(data, chosen, None, False)
    trainer, stream = prepare(chosen, data, known, torch.device("cpu"), precision)
    prime(trainer, data, known)
    batches = stream.batches(0, trainer.steps)
    return lambda: trainer.train_step(next(batches))


class _Pictures(torch.utils.data.Dataset[Any]):
    """PIL images under a transform, as a folder of them would be."""

    def __init__(self, transform: Callable[[Any], Any], count: int) -> None:
        from PIL import Image

        self._images = [Image.fromarray(image) for image in pictures(count)]
        self._transform = transform

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> Any:
        return self._transform(self._images[number])


def _loaded(transform: Callable[[Any], Any], batch: int) -> Iterator[Any]:
    loader = torch.utils.data.DataLoader(
        _Pictures(transform, 4 * batch),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )
    while True:
        yield from loader


class _Network(nn.Module):
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
    """SimCLR as in lightly's documentation; `best` adds the layout and precision that are quickest here."""
    transforms, loss_module = peer("lightly.transforms"), peer("lightly.loss")
    heads = peer("lightly.models.modules")
    model = _Network(network, lambda width: heads.SimCLRProjectionHead(width, width, DIM))
    layout = torch.channels_last if best else torch.contiguous_format
    model = model.to(memory_format=layout)
    criterion, optimizer = loss_module.NTXentLoss(), torch.optim.SGD(model.parameters(), lr=0.06)
    batches = _loaded(transforms.SimCLRTransform(input_size=32, gaussian_blur=0.0), batch)
    half = best and has_bf16(torch.device("cpu"))

    def step() -> None:
        x0, x1 = (view.contiguous(memory_format=layout) for view in next(batches)[:2])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            z0, z1 = model(x0), model(x1)
        criterion(z0.float(), z1.float()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def moco_step(network: str, batch: int) -> Step:
    """A plain script in MoCo's style: torchvision's transforms, a slow copy, a queue, cross-entropy over [positive, queue]."""
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
    model = _Network(
        network, lambda width: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, DIM))
    )
    slow = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    queue, place = functional.normalize(torch.randn(DIM, QUEUE), dim=0), 0
    batches = _loaded(lambda image: (crop(image), crop(image)), batch)

    def step() -> None:
        nonlocal place
        first, second = next(batches)
        anchors = functional.normalize(model(first), dim=1)
        with torch.no_grad():
            for own, other in zip(model.parameters(), slow.parameters(), strict=True):
                other.mul_(0.999).add_(own, alpha=0.001)
            keys = functional.normalize(slow(second), dim=1)
        logits = torch.cat([(anchors * keys).sum(1, keepdim=True), anchors @ queue], dim=1) / TEMPERATURE
        loss = functional.cross_entropy(logits, torch.zeros(batch, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue[:, place : place + batch] = keys.T
        place = (place + batch) % QUEUE

    return step


# ------------------------------------------------------------------------------------------------------- losses


def _differentiated(loss: Callable[[Tensor, Tensor], Tensor], n: int) -> Step:
    anchors, keys = (torch.randn(n, DIM, requires_grad=True) for _ in range(2))

    def step() -> None:
        anchors.grad = keys.grad = None
        loss(anchors, keys).backward()

    return step


def _scaled(loss: Any) -> Callable[[Tensor, Tensor], Tensor]:
    unit, scale = functional.normalize, torch.tensor(10.0)
    return lambda anchors, keys: loss(unit(anchors), unit(keys), scale)


def _ranking(n: int) -> Step:
    module = peer("sentence_transformers.sentence_transformer.losses.multiple_negatives_ranking")
    ranking = module.MultipleNegativesRankingLoss(model=None)
    return _differentiated(lambda a, k: ranking.compute_loss_from_embeddings([a, k], None), n)


def contests(network: str = "resnet8-w16", batch: int = 128, n: int = 2048) -> list[Contest]:
    half = torch.bfloat16 if has_bf16(torch.device("cpu")) else torch.float32
    steps = [
        Arm("nearfar, fp32", lambda: our_step("simclr", network, batch, torch.float32), ours=True),
        Arm("lightly, as documented", lambda: lightly_step(network, batch, best=False)),
        Arm("lightly, best layout and precision", lambda: lightly_step(network, batch, best=True)),
    ]
    if half is torch.bfloat16:
        steps.insert(1, Arm("nearfar, bf16", lambda: our_step("simclr", network, batch, half)))
    moco = [
        Arm(
            "nearfar, fp32",
            lambda: our_step("moco", network, batch, torch.float32, negatives={"size": QUEUE}),
            ours=True,
        ),
        Arm("plain script", lambda: moco_step(network, batch)),
    ]
    lightly = lambda: _differentiated(peer("lightly.loss").NTXentLoss(TEMPERATURE), n)
    clip = lambda: _differentiated(_scaled(peer("open_clip.loss").ClipLoss()), n)
    ours = lambda loss: lambda: _differentiated(loss, n)
    return [
        Contest(f"SimCLR step, {network}, batch {batch}, 32 x 32", "images/s", batch, tuple(steps)),
        Contest(f"MoCo step, {network}, batch {batch}, queue {QUEUE:,}", "images/s", batch, tuple(moco)),
        Contest(
            f"NT-Xent, N = {n:,}, {DIM}-d",
            "rows/s",
            n,
            (Arm("nearfar", ours(losses.NTXentLoss(TEMPERATURE)), ours=True), Arm("lightly", lightly)),
        ),
        Contest(
            f"CLIP's loss, N = {n:,}, {DIM}-d",
            "rows/s",
            n,
            (Arm("nearfar", ours(_scaled(losses.ClipLoss())), ours=True), Arm("open_clip", clip)),
        ),
        Contest(
            f"Multiple negatives ranking, N = {n:,}, {DIM}-d",
            "rows/s",
            n,
            (
                Arm("nearfar", ours(losses.MultipleNegativesRankingLoss()), ours=True),
                Arm("sentence-transformers", lambda: _ranking(n)),
            ),
        ),
    ]
