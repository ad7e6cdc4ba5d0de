"""Quality without labels, of a network on data: in plain view, and in several draws of the training views."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.buffers import frozen
from nearfar.core.randomness import order
from nearfar.core.results import Figure, Measurement
from nearfar.core.types import Batch
from nearfar.data.aside import HELD_OUT_DRAW
from nearfar.data.stream import batch_of
from nearfar.evaluate.held_out import HeldOut, held_out_estimate
from nearfar.evaluate.options import Options
from nearfar.evaluate.quality import measures_of
from nearfar.evaluate.subject import Subject
from nearfar.modalities import DataSet
from nearfar.modalities.base import MakeViews
from nearfar.run.features import features

ROWS, INSTANCES, VIEWS = 4096, 512, 8  # looked at in plain view; in several views, and in how many


def quality(subject: Subject, options: Options) -> Measurement:
    """The measures of `quality.py` on the test instances, and of a whole method the nats that two views share, with what they prove."""
    images: Any = subject.test.images
    rows = np.sort(order(options.seed, 0, len(images))[:ROWS])
    sample = images.subset(rows) if hasattr(images, "subset") else images
    plain = features(subject.encoder, sample, subject.plain, device=subject.device)
    several = None
    if subject.views is not None:
        several = view_features(
            subject.encoder, sample, subject.views, options.seed, subject.device, plain.shape[1]
        )
    figures = {name: Figure(value) for name, value in measures_of(plain, several).items()}
    details: dict[str, Any] = {}
    if subject.method is not None and subject.views is not None:
        told = shared(subject, sample, options.seed)
        if told is not None:
            figures["nats"] = Figure(told.nats)
            details = {
                "error": told.error,
                "ceiling": told.certificate.ceiling,
                "certificate": {"status": told.certificate.status, "condition": told.certificate.condition},
            }
    return Measurement(figures, {**details, "samples": len(sample)})


@torch.no_grad()
def view_features(
    encoder: nn.Module,
    data: Any,
    views: MakeViews,
    seed: int,
    device: torch.device,
    width: int,
    instances: int = INSTANCES,
    draws: int = VIEWS,
) -> Float[Tensor, "instance view dim"] | None:
    """Features of several draws of the first training view; None where the encoder is not shown such views (luminance alone)."""
    rows = np.arange(min(instances, len(data)))
    loaded = data.load(rows)
    found = []
    with frozen(encoder) as still:
        for draw in range(draws):
            shown = views(loaded, seed, HELD_OUT_DRAW + 8 + draw, rows)[0]
            try:
                embedded = still(shown.to(device)).float().cpu()
            except (
                RuntimeError
            ):  # another number of channels: a network of its own, which the encoder is made of
                return None
            if embedded.shape != (len(rows), width):
                return None
            found.append(embedded)
    return torch.stack(found, dim=1)


def shared(subject: Subject, data: DataSet, seed: int, batch: int = 256) -> HeldOut | None:
    """What two views of these instances tell about each other, by the method's own critic."""
    method, views = subject.method, subject.views
    assert method is not None
    assert views is not None

    def batches() -> Iterator[Batch]:
        for rows in np.array_split(np.arange(len(data)), math.ceil(len(data) / batch)):
            seen = views(data.load(rows), seed, HELD_OUT_DRAW, rows)
            if len(seen) == 1 and not method.encoders.works_with_one_view:
                seen = (*seen, *views(data.load(rows), seed, HELD_OUT_DRAW + 1, rows))
            yield batch_of(data, seen, rows).to(subject.device)

    if method.encoders.needs_labels:
        return None
    return held_out_estimate(method, batches(), held_out=subject.unseen)
