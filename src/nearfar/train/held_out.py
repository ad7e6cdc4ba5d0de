"""The held-out estimate of a run: the information that views of unseen instances share.

It proves something only if nothing was fitted to these instances. A checkpoint stores whether that is so
(`unseen` in its facts): it is not so if the run continued with another split, or started with weights of a
run that was trained on them.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor

from nearfar.config.building import NO_OBJECTS
from nearfar.config.objects import BACKBONE, METHOD, VIEWS, Objects
from nearfar.config.settings import Settings
from nearfar.core.method import Method
from nearfar.core.randomness import order
from nearfar.core.schedules import Progress
from nearfar.core.types import Batch
from nearfar.data.stream import batch_of
from nearfar.data.training import HELD_OUT_DRAW
from nearfar.evaluate.held_out import HeldOutNats, held_out_estimate
from nearfar.modalities import DataSet, Description
from nearfar.modalities.showing import plain_views
from nearfar.run.checkpoints import Loaded
from nearfar.run.trained import Run
from nearfar.train.hooks import HeldOutEstimate
from nearfar.train.session import Session

MAX_COMPARED = 4096  # training instances that held-out ones are compared with

Viewing = Callable[[np.ndarray, int], tuple[Tensor, ...]]


def is_holdout_clean(
    description: Description,
    all_data: DataSet,
    settings: Settings,
    restored: Loaded | None,
    objects: Objects = NO_OBJECTS,
) -> bool | None:
    """Whether the held-out instances were never trained on; None if unknown: weights of unknown origin. A
    schedule that follows the held-out bound lets them change the weights."""
    if settings.adaptive_on("bound"):
        return False
    teacher = settings.encoders.get("teacher")
    if restored is not None:
        previous = settings.modality.reader.description(restored.facts["data"])
        clean = False if previous.fingerprint != description.fingerprint else restored.facts.get("unseen")
        # the teacher may be another one than before, if that was allowed
        return _is_clean_for(teacher, description, all_data) if clean and teacher else clean
    origins = [name for name in (settings.init, teacher) if name]
    if origins:  # initial weights, or a teacher, may have been fitted to the held-out instances
        answers = [_is_clean_for(name, description, all_data) for name in origins]
        return False if False in answers else None if None in answers else True
    return None if {METHOD, BACKBONE, "encoders", "critic"} & set(objects) else True


def _is_clean_for(init: str, description: Description, all_data: DataSet) -> bool | None:
    """Whether another run, whose weights are used, was not trained on the held-out instances: True if it held
    out the same ones, False if it trained on another part of the same data, None for other data."""
    try:
        run = Run.open(init)
        facts = run.facts
        trained_on = run.trained_on(all_data).fingerprint
    except Exception:  # a weights file, or no run at all, which `start_from` reports
        return None
    fingerprint = facts["data"].get("fingerprint")
    if fingerprint == description.fingerprint:
        return facts.get("unseen")
    return False if fingerprint == trained_on else None


def make_estimate(
    session: Session, held_out: DataSet | None, clean: bool | None, objects: Objects = NO_OBJECTS
) -> HeldOutEstimate | None:
    """The estimate of the information that two views share; None without held-out instances."""
    if held_out is None:
        return None
    settings, data = session.settings, held_out

    def view(rows: np.ndarray, draw: int) -> tuple[Tensor, ...]:
        return session.views(data.load(rows), settings.seed, HELD_OUT_DRAW + draw, rows)

    def batches(method: Method) -> Iterator[Batch]:
        for rows in np.array_split(np.arange(len(data)), math.ceil(len(data) / settings.batch_size)):
            views = view(rows, 0)
            # a method that trains on one view and a bank is estimated with a second view
            if settings.views["count"] == 1 and not method.encoders.works_with_one_view:
                views = (*views, *view(rows, 1))
            yield batch_of(data, views, rows).to(session.device)

    @cache
    def data_facts() -> tuple[str, bool]:
        return dependence(data, session), VIEWS in objects and _views_mix_instances(data, settings, view)

    def estimate(method: Method, progress: Progress) -> HeldOutNats | None:
        with torch.random.fork_rng(devices=[]):
            dependent, mixed = data_facts()
            return held_out_estimate(
                method, batches(method), progress, held_out=clean, dependent=dependent, mixed=mixed
            )

    return estimate


def _views_mix_instances(data: DataSet, settings: Settings, view: Viewing) -> bool:
    """Whether a user's views of an instance change when half of its batch is missing (mixed images)."""
    rows = np.arange(min(len(data), settings.batch_size))
    half = np.sort(order(settings.seed, HELD_OUT_DRAW + 3, len(rows))[: len(rows) // 2])
    return any(
        not torch.allclose(of_half, of_batch[half], rtol=1e-3, atol=1e-3)
        for of_half, of_batch in zip(view(rows[half], 0), view(rows, 0), strict=True)
    )


def dependence(held_out: DataSet, session: Session) -> str:
    """Why held-out instances are not independent draws, in a clause; empty if they may be."""
    data = session.data
    if held_out.cut_from is not None and data.cut_from is not None:
        shared = np.isin(held_out.cut_from, data.cut_from)
        if shared.any() or len(np.unique(held_out.cut_from)) < len(held_out):
            return f"several {held_out.unit} come from one file"
    count = count_copies(held_out, session)
    return f"{count} of these instances are copies" if count else ""


def count_copies(held_out: DataSet, session: Session) -> int:
    """How many held-out instances equal another one, or a training instance, in plain view."""
    settings = session.settings
    plain_view = settings.parts["views"].plain_view(session.description, torch.device("cpu"))

    def digests(data: DataSet) -> list[bytes]:
        rows = (
            row
            for view in plain_views(data, plain_view, settings.batch_size, settings.workers)
            for row in view
        )
        return [hashlib.sha256(row.contiguous().numpy().tobytes()).digest() for row in rows]

    data = session.data
    sample = data.subset(data.sample(settings.seed, HELD_OUT_DRAW + 2, MAX_COMPARED))
    held_out_digests, trained = digests(held_out), set(digests(sample))
    return sum(held_out_digests.count(digest) > 1 or digest in trained for digest in held_out_digests)
