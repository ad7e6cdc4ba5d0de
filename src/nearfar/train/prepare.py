"""What a run needs before its first step: facts of the data, the method on its device, a source that knows the instances, a
probe."""

import numpy as np
import torch

from nearfar.config.building import NONE
from nearfar.config.objects import VIEWS, Objects
from nearfar.config.settings import Settings
from nearfar.core.buffers import frozen
from nearfar.core.encoding import Encoding
from nearfar.core.schedules import Adaptive, Progress, at, written
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.core.types import Batch
from nearfar.data import Stream
from nearfar.data.stream import batch_of
from nearfar.errors import UserError
from nearfar.modalities import DataSet, Description
from nearfar.modalities.base import MakeViews
from nearfar.modalities.dataset import grouped
from nearfar.modalities.showing import plain_views
from nearfar.run.features import shared_batches
from nearfar.run.teachers import check_teacher
from nearfar.run.trained import fresh_method, views_of
from nearfar.train.trainer import Trainer, seed_step

TRIED = 64  # places in a run at which its schedules are tried together


def described(
    data: DataSet,
    settings: Settings,
    before: Description | None,
    allow_change: bool,
    whole: DataSet | None = None,
) -> Description:
    """What the data are like: size of a view, statistics, vocabulary, classes (of the `whole` that they are part of). A resumed
    run keeps its own."""
    if before is not None and before.fingerprint != data.fingerprint:
        if not allow_change:
            raise UserError(
                f"{data.name} changed since the run began (it held {before.instances} {data.unit}, now {len(data)}); "
                "restore it, choose another --out, or add --allow-change"
            )
        return before.of(data)
    if before is not None:
        return before.resized(settings.image_size)
    return settings.modality.reader.describe(data, settings.image_size).labelled(*(whole or data).label_range)


def prepare(
    settings: Settings,
    data: DataSet,
    known: Description,
    device: torch.device,
    precision: torch.dtype,
    objects: Objects = NONE,
    strategy: Strategy = SINGLE,
) -> tuple[Trainer, Stream]:
    views = views_of(settings, known, device, objects)
    if VIEWS in objects:
        check_own_views(views, data, settings)
    stream = Stream(
        data,
        views,
        settings.batch_size,
        settings.seed,
        workers=settings.workers,
        rank=strategy.rank,
        world=strategy.world,
    )
    method = fresh_method(settings, known, objects)
    check_teacher(method.encoders, known)
    if settings.batch_norm == "shuffled" and not method.encoders.separate_key_network:
        raise UserError(
            "batch_norm was shuffled, which is for keys of a network of their own (encoders=momentum, as in moco and byol); "
            "use synchronised, or per-rank"
        )
    if settings.batch_norm == "shuffled" and not settings.modality.views.one_shape:
        raise UserError(
            f"batch_norm was shuffled, which exchanges views between ranks, and those of {settings.modality.plural} are as large as the largest "
            "of a batch; use synchronised, or per-rank"
        )
    method.encoding = Encoding(strategy, settings.batch_norm, settings.encode_chunk)
    for part in method.selections:
        if part.group_by is not None:
            part.assign(torch.from_numpy(grouped(data, part.group_by)))
    settings.modality.networks.check_method(data, method)
    trainer = Trainer(method, settings, stream.steps_per_epoch, device, precision)
    try_run(trainer)
    return trainer, stream


def check_own_views(views: MakeViews, data: DataSet, settings: Settings) -> None:
    """Tries views that somebody made on the first instances, twice: as many as was said, one row for each, and no chance in
    them but by (seed, epoch, index)."""
    rows = np.arange(min(2, len(data)))
    first, again = (views(data.load(rows), settings.seed, 0, rows) for _ in range(2))
    count = settings.views["count"]
    shapes = (
        [tuple(getattr(view, "shape", ())) for view in first] if isinstance(first, (tuple, list)) else None
    )
    if shapes is None or len(shapes) != count or any(not shape or shape[0] != len(rows) for shape in shapes):
        what = type(first).__name__ if shapes is None else f"{len(shapes)} views of shapes {shapes}"
        raise UserError(
            f"views gave {what} of {len(rows)} instances; expected {count} tensors with a row for each (an attribute `count` says "
            "how many views there are)"
        )
    if not all(torch.equal(one, other) for one, other in zip(first, again, strict=True)):
        raise UserError(
            "views gave something else when asked again with the same seed, epoch and index, so no run could be resumed; draw "
            "by those alone (nearfar.core.randomness.uniforms does)"
        )


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
        if "object" in settings.selection:
            continue
        lower, upper = (
            at(settings.selection.get(edge, other), progress)
            for edge, other in (("lower", 0.0), ("upper", 1.0))
        )
        if lower > upper:
            raise UserError(
                f"selection.lower, {written(settings.selection['lower'])}, is {lower:.3g} at step {progress.step} of {progress.steps}, "
                f"where selection.upper, {written(settings.selection['upper'])}, is {upper:.3g}; it must never exceed it"
            )


@torch.no_grad()
def prime(trainer: Trainer, data: DataSet, known: Description) -> None:
    """Shows the source the instances it wants to know before the first step, in plain view."""
    wanted = min(trainer.method.negatives.prefill_size(), len(data))
    if not wanted:
        return
    plain = trainer.settings.modality.views.plain(trainer.settings.views, known, trainer.device)
    rows = data.sample(trainer.settings.seed, 0, wanted)
    trainer.method.train()
    seed_step(trainer.settings.seed, 2**40)
    # parts of almost equal size: a last part of one image would have no batch statistics
    for part in np.array_split(rows, max(1, wanted // trainer.settings.batch_size)):
        own = part[trainer.strategy.share(len(part))]
        (shown,) = plain(data.load(own), 0, 0, own)
        views = plain.as_views(shown, trainer.settings.views["count"])
        trainer.method.prime(trainer.here(batch_of(data, views, own)))


@torch.no_grad()
def embedded(trainer: Trainer, data: DataSet, known: Description) -> torch.Tensor:
    """What the key network says of every image in plain view, in order; no network moves. Strategy share the batches."""
    mine, gather = shared_batches(data, trainer.settings.batch_size, trainer.strategy)
    plain = trainer.settings.modality.views.plain(trainer.settings.views, known, trainer.device)
    with frozen(trainer.method), trainer.strategy.full_weights(trainer.method):
        parts = [
            trainer.method.embed(_shown(trainer, plain.as_views(view, 1)[0])).cpu()
            for view in plain_views(mine, plain, trainer.settings.batch_size, trainer.settings.workers)
        ]
    return gather(torch.cat(parts))


def _shown(trainer: Trainer, view: torch.Tensor) -> torch.Tensor:
    return trainer.here(Batch((view,), torch.empty(0, dtype=torch.long))).views[0]
