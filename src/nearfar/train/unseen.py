"""The held-out estimate of a run: what two views tell about each other, on instances that were kept aside.

It proves something only if nothing was fitted to them. A run remembers whether that is so (`unseen` among a checkpoint's facts):
one that went on with another split, or began with weights of a run that saw them, cannot claim it.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch

from nearfar.config.building import NONE
from nearfar.config.objects import BACKBONE, METHOD, VIEWS, Objects
from nearfar.config.settings import Settings
from nearfar.core.method import Method
from nearfar.core.randomness import order
from nearfar.core.schedules import Progress
from nearfar.core.types import Batch
from nearfar.data.aside import HELD_OUT_DRAW
from nearfar.data.stream import batch_of
from nearfar.evaluate.held_out import HeldOut, held_out_estimate
from nearfar.modalities import DataSet, Description
from nearfar.modalities.showing import plain_views
from nearfar.run.checkpoints import Loaded
from nearfar.run.trained import Run, views_of

LOOKED_AT = 4096  # instances of what is trained on that are compared with those kept aside

Estimate = Callable[[Method, Progress], HeldOut | None]


def never_trained_on(
    known: Description,
    everything: DataSet,
    settings: Settings,
    restored: Loaded | None,
    objects: Objects = NONE,
) -> bool | None:
    """Whether what is kept aside was never trained on; None where nobody knows: weights came from elsewhere."""
    if restored is not None:
        before = settings.modality.reader.description(restored.facts["data"])
        unseen = False if before.fingerprint != known.fingerprint else restored.facts.get("unseen")
        teacher = settings.encoders.get("teacher")  # another one than before, where that was allowed
        return _never_seen_by(teacher, known, everything) if unseen and teacher else unseen
    begun_with = [name for name in (settings.init, settings.encoders.get("teacher")) if name]
    if begun_with:  # weights, or what a student is taught, may come of what is kept aside
        seen = [_never_seen_by(name, known, everything) for name in begun_with]
        return False if False in seen else None if None in seen else True
    return None if {METHOD, BACKBONE, "encoders", "critic"} & set(objects) else True


def _never_seen_by(init: str, known: Description, everything: DataSet) -> bool | None:
    """Whether a run whose weights one begins with never saw what is kept aside: so if it kept the same aside, not if it was trained on
    another part of the same data; of other data nobody knows."""
    try:
        run = Run.open(init)
        facts = run.facts
        theirs = run.trained_on(everything).fingerprint
    except Exception:  # a weights file, or what is no run at all: `start_from` has said so
        return None
    before = facts["data"].get("fingerprint")
    if before == known.fingerprint:
        return facts.get("unseen")
    return False if before == theirs else None


def make_estimate(
    images: DataSet,
    aside: DataSet | None,
    known: Description,
    settings: Settings,
    device: torch.device,
    unseen: bool | None,
    objects: Objects = NONE,
) -> Estimate | None:
    """What two views of held-out instances tell about each other; None where nothing was kept aside."""
    if aside is None:
        return None
    views = views_of(settings, known, device, objects)

    def shown(rows: np.ndarray, draw: int) -> tuple[torch.Tensor, ...]:
        return views(aside.load(rows), settings.seed, HELD_OUT_DRAW + draw, rows)

    def batches(method: Method) -> Iterator[Batch]:
        for rows in np.array_split(np.arange(len(aside)), math.ceil(len(aside) / settings.batch_size)):
            seen = shown(rows, 0)
            # a method that knows one view of each instance by its place in a bank is asked about a second one here
            if settings.views["count"] == 1 and not method.encoders.works_with_one_view:
                seen = (*seen, *shown(rows, 1))
            yield batch_of(aside, seen, rows).to(device)

    @cache
    def looked_at() -> tuple[str, bool]:
        return dependence(aside, images, settings, known), VIEWS in objects and _mixes(aside, settings, shown)

    def estimate(method: Method, progress: Progress) -> HeldOut | None:
        with torch.random.fork_rng(devices=[]):
            dependent, mixed = looked_at()
            return held_out_estimate(
                method, batches(method), progress, held_out=unseen, dependent=dependent, mixed=mixed
            )

    return estimate


def _mixes(aside: DataSet, settings: Settings, shown: Callable[..., tuple[torch.Tensor, ...]]) -> bool:
    """Whether somebody's own views of an instance are others when half of its batch is not there (mixed pictures)."""
    rows = np.arange(min(len(aside), settings.batch_size))
    half = np.sort(order(settings.seed, HELD_OUT_DRAW + 3, len(rows))[: len(rows) // 2])
    return any(
        not torch.allclose(alone, beside[half], rtol=1e-3, atol=1e-3)
        for alone, beside in zip(shown(rows[half], 0), shown(rows, 0), strict=True)
    )


def dependence(aside: DataSet, images: DataSet, settings: Settings, known: Description) -> str:
    """Why the instances kept aside are no independent draws, in a clause; empty where nothing speaks against it."""
    if aside.cut_from is not None and images.cut_from is not None:
        shared = np.isin(aside.cut_from, images.cut_from)
        if shared.any() or len(np.unique(aside.cut_from)) < len(aside):
            return f"{aside.unit} of one file are among these, or here and among those trained on"
    found = copies(aside, images, settings, known)
    return f"{found} of these instances are copies" if found else ""


def copies(aside: DataSet, images: DataSet, settings: Settings, known: Description) -> int:
    """How many of the instances kept aside are copies of one another, or of some of those trained on, in plain view."""
    plain = settings.modality.views.plain(settings.views, known, torch.device("cpu"))

    def digests(data: DataSet) -> list[bytes]:
        rows = (
            row for view in plain_views(data, plain, settings.batch_size, settings.workers) for row in view
        )
        return [hashlib.sha256(row.contiguous().numpy().tobytes()).digest() for row in rows]

    some = images.subset(images.sample(settings.seed, HELD_OUT_DRAW + 2, LOOKED_AT))
    held, trained = digests(aside), set(digests(some))
    return sum(held.count(digest) > 1 or digest in trained for digest in held)
