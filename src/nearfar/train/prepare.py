"""What a run needs before its first step: facts of the data, the method on its device, a source that knows the instances, a
probe."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from nearfar.buffers import frozen
from nearfar.data import Images, Sequences, Stream
from nearfar.data.aside import HELD_OUT_DRAW
from nearfar.data.sequences import groups_of
from nearfar.encoders import Predictive
from nearfar.errors import UserError
from nearfar.evaluate.features import features, plain_views
from nearfar.evaluate.knn import knn_probe
from nearfar.held_out import HeldOut, held_out_estimate
from nearfar.method import Method
from nearfar.randomness import order
from nearfar.schedules import Adaptive, Progress, at, written
from nearfar.selections import Group
from nearfar.settings import Settings
from nearfar.train.loop import Trainer, seed_step
from nearfar.train.run import backbone_of, fresh_method, plain_view, training_views
from nearfar.types import Batch
from nearfar.views import statistics

LARGEST = 224  # side of a view when the settings name none and the pictures are larger
TRIED = 64  # places in a run at which its schedules are tried together
SAMPLE = 4096  # images that statistics and probes look at


def make_estimate(
    aside: Images | None, facts: Mapping[str, Any], settings: Settings, device: torch.device
) -> Callable[[Method, Progress], HeldOut | None] | None:
    """What two views of held-out instances tell about each other; None where nothing was kept aside."""
    if aside is None:
        return None
    views = training_views(settings, facts, device)

    def shown(rows: np.ndarray, draw: int) -> tuple[torch.Tensor, ...]:
        return views(aside.load(rows), settings.seed, HELD_OUT_DRAW + draw, rows)

    def batches(method: Method) -> Iterator[Batch]:
        for rows in np.array_split(np.arange(len(aside)), math.ceil(len(aside) / settings.batch_size)):
            seen = shown(rows, 0)
            # a method that knows one view of each instance by its place in a bank is asked about a second one here
            if settings.views["count"] == 1 and not getattr(method.encoders, "one_view", False):
                seen = (*seen, *shown(rows, 1))
            yield Batch(seen, torch.from_numpy(rows)).to(device)

    def estimate(method: Method, progress: Progress) -> HeldOut | None:
        with torch.random.fork_rng(devices=[]):
            return held_out_estimate(method, batches(method), progress)

    return estimate


def facts_of(
    images: Images, settings: Settings, before: Mapping[str, Any] | None, allow_change: bool
) -> dict[str, Any]:
    """What the data are like: size of a view, channel statistics, fingerprint. A resumed run keeps its own."""
    if before is not None and before["fingerprint"] != images.fingerprint:
        if not allow_change:
            raise UserError(
                f"{images.name} changed since the run began (it held {before['instances']} {images.unit}, now {len(images)}); "
                "restore it, choose another --out, or add --allow-change"
            )
        return {**before, "fingerprint": images.fingerprint, "instances": len(images)}
    if before is not None:
        return {**before, "image_size": settings.image_size or before["image_size"]}
    if isinstance(images, Sequences):
        return sequence_facts(images)
    sample = [images.load(rows) for rows in np.array_split(_sample(len(images)), 16) if len(rows)]
    mean, std = statistics(sample)
    side = int(np.median(np.concatenate([pixels.size.min(axis=1) for pixels in sample])))
    return {
        "fingerprint": images.fingerprint,
        "instances": len(images),
        "channels": images.channels,
        "image_size": settings.image_size or max(8, min(LARGEST, side)),
        "mean": list(mean),
        "std": list(std),
    }


def sequence_facts(sequences: Sequences) -> dict[str, Any]:
    """The same of sequences; their `image_size` is the longest of them."""
    return {
        "fingerprint": sequences.fingerprint,
        "instances": len(sequences),
        "channels": sequences.channels,
        "image_size": int(sequences.sizes[:, 1].max()),
        "rate": sequences.rate,
        "symbols": list(sequences.symbols),
    }


def _sample(size: int) -> np.ndarray:
    return np.sort(order(0, 0, size)[:SAMPLE])


def prepare(
    settings: Settings,
    images: Images,
    facts: Mapping[str, Any],
    device: torch.device,
    precision: torch.dtype,
) -> tuple[Trainer, Stream]:
    views = training_views(settings, facts, device)
    stream = Stream(images, views, settings.batch_size, settings.seed, workers=settings.workers)
    method = fresh_method(settings, images.channels, facts["image_size"], facts["instances"])
    if isinstance(method.selection, Group):
        method.selection.assign(torch.from_numpy(groups_of(images, method.selection.by)))
    if isinstance(method.encoders, Predictive):
        check_long_enough(images, method.encoders)
    trainer = Trainer(method, settings, stream.steps_per_epoch, device, precision)
    try_run(trainer)
    return trainer, stream


def try_run(trainer: Trainer) -> None:
    """A source too small for the batch, or for what a schedule asks later, says so here, before anything is written.

    What follows loss or score goes nobody knows where: it is tried at its ends alone.
    """
    settings = trainer.settings
    trainer.method.certificate(settings.batch_size, settings.views["count"])
    adaptive = any(isinstance(schedule, Adaptive) for schedule in settings.schedules().values())
    for part in range(0 if adaptive else TRIED):
        progress = Progress(trainer.steps * part // TRIED, trainer.steps, trainer.steps_per_epoch)
        trainer.method.certificate(settings.batch_size, settings.views["count"], progress)
        lower, upper = (
            at(settings.selection.get(edge, other), progress)
            for edge, other in (("lower", 0.0), ("upper", 1.0))
        )
        if lower > upper:
            raise UserError(
                f"selection.lower, {written(settings.selection['lower'])}, is {lower:.3g} at step {progress.step} of {progress.steps}, "
                f"where selection.upper, {written(settings.selection['upper'])}, is {upper:.3g}; it must never exceed it"
            )


def check_long_enough(images: Images, role: Predictive) -> None:
    """Stops where most recordings have no frame to predict."""
    least = role.steps * role.listener.hop + 1
    short = int((images.sizes[:, 1] < least).sum())
    if 2 * short > len(images):
        raise UserError(
            f"encoders.steps was {role.steps}: {short} of {len(images)} recordings are shorter than so many frames of "
            f"{role.listener.hop} samples; use fewer encoders.steps or smaller encoders.strides"
        )


@torch.no_grad()
def prime(trainer: Trainer, images: Images, facts: Mapping[str, Any]) -> None:
    """Shows the source the instances it wants to know before the first step, in plain view."""
    wanted = min(trainer.method.negatives.prefill_size(), len(images))
    if not wanted:
        return
    plain = plain_view(trainer.settings, facts, trainer.device)
    rows = np.sort(order(trainer.settings.seed, 0, len(images))[:wanted])
    trainer.method.train()
    seed_step(trainer.settings.seed, 2**40)
    # parts of almost equal size: a last part of one image would have no batch statistics
    for part in np.array_split(rows, max(1, wanted // trainer.settings.batch_size)):
        shown = plain(images.load(part), 0, 0, part)  # type: ignore[arg-type]
        # sound comes with whose it is
        views = shown if len(shown) > 1 else plain.as_views(shown[0], trainer.settings.views["count"])
        trainer.method.prime(Batch(views, torch.from_numpy(part)).to(trainer.device))


@torch.no_grad()
def embedded(trainer: Trainer, images: Images, facts: Mapping[str, Any]) -> torch.Tensor:
    """What the key network says of every image in plain view, in order; no network moves."""
    plain = plain_view(trainer.settings, facts, trainer.device)
    with frozen(trainer.method):
        parts = [
            trainer.method.embed(plain.as_views(view, 1)[0].to(trainer.device)).cpu()
            for view in plain_views(images, plain, trainer.settings.batch_size, trainer.settings.workers)
        ]
    return torch.cat(parts)


def check_heard(settings: Settings, images: Images, probed: bool) -> None:
    """Stops a run whose schedule waits for a score that nobody will take."""
    waiting = settings.listens_to("score")
    if waiting and not probed:
        why = "probe_every is 0" if not settings.probe_every else f"{images.name} has no labels to probe with"
        raise UserError(f"{waiting} follows the kNN probe but {why}; use on_loss, which follows the loss")


def make_probe(
    images: Images, facts: Mapping[str, Any], settings: Settings, device: torch.device
) -> Callable[[nn.Module], float] | None:
    """kNN accuracy within a sample of the training data, a fifth of it held out; None without labels."""
    if images.labels is None:
        return None
    sample = images.subset(_sample(len(images)))
    _, sizes = np.unique(np.asarray(sample.labels), return_counts=True)
    if len(sample) < 50 or len(sizes) < 2 or sizes.max() < 2:  # nothing that a held-out fifth could tell
        return None
    plain = plain_view(settings, facts, device)
    labels = torch.from_numpy(np.asarray(sample.labels))

    def probe(method: Method) -> float:
        embedded = features(backbone_of(method), sample, plain, device=device, workers=settings.workers)
        return knn_probe(embedded, labels, seed=settings.seed)

    return probe  # type: ignore[return-value]
