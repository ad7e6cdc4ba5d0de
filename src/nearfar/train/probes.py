"""What a run is asked while it trains: how well its features name classes, on a sample of its own data or on other data, and how good
they look without a label. Features are those of the frozen backbone: no gradient, no statistic and no draw of the training is touched.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from nearfar.config.settings import KNN, LINEAR, QUALITY, Settings
from nearfar.core.method import Method
from nearfar.data import Limits
from nearfar.errors import UserError
from nearfar.evaluate.knn import knn
from nearfar.evaluate.labels import Labelled
from nearfar.evaluate.linear import linear
from nearfar.evaluate.quality import measures_of
from nearfar.evaluate.unlabelled import view_features
from nearfar.modalities import DataSet, Description
from nearfar.modalities.base import MakeViews
from nearfar.run.features import features
from nearfar.run.trained import backbone_of, check_kind, locate_beside

SAMPLE = 4096  # instances that probes look at
LEAST_PROBED = 50  # labelled instances: of fewer, a held-out fifth tells nothing
INSTANCES, VIEWS = 256, 4  # looked at in several views, for LiDAR and alignment

Probe = Callable[[Method], dict[str, float]]


@dataclass(frozen=True)
class Probed:
    """The instances that probes look at, as they are shown to the encoder."""

    sample: DataSet
    plain: MakeViews
    why_not: str | None  # classes cannot be asked about


def probed(data: DataSet, known: Description, settings: Settings, device: torch.device) -> Probed:
    """A sample of the training data, or of `probe_data`, which bring their own statistics."""
    modality = settings.modality
    if settings.probe_data is not None:
        located = locate_beside(settings, settings.probe_data)
        check_kind(settings, located)
        limits = Limits(max_bad_share=settings.max_bad_share)
        opened = located.open(
            limits, **modality.reader.options_for(settings.views, settings.image_size, known)
        )
        data = known.convert_channels(opened, "this run")
        known = known.with_statistics_of(data, None)
    sample = data.subset(data.sample(0, 0, SAMPLE))
    return Probed(sample, modality.views.plain(settings.views, known, device), why_not_probed(data))


def make_probe(
    data: DataSet,
    known: Description,
    views: MakeViews,
    settings: Settings,
    device: torch.device,
    validation: DataSet | None = None,
) -> Probe | None:
    """The figures that `probe=` asks for, by name; None where there is nothing to ask. Of classes, a fifth of the sample is held out, or a
    sample of `validation` asked about, which is numbered like `data` and not trained on."""
    asked = settings.probes
    if not settings.probe_every:
        return None
    looked = probed(data, known, settings, device)
    if settings.probe_data is not None and looked.why_not and set(asked) & {KNN, LINEAR}:
        raise UserError(f"probe_data was {settings.probe_data}, but {looked.why_not}")
    if looked.why_not:
        asked = tuple(name for name in asked if name == QUALITY)
    if not asked:
        return None
    labels = None if looked.why_not else torch.from_numpy(np.asarray(looked.sample.labels))
    parts = [] if looked.why_not else [torch.from_numpy(p) for p in looked.sample.parts(0.2, settings.seed)]
    # views are of the run's own kind, so those of other data are not made by them
    seen = data.subset(data.sample(0, 0, SAMPLE)[:INSTANCES]) if QUALITY in asked else None
    apart = None if validation is None else validation.subset(validation.sample(0, 0, SAMPLE))

    def probe(method: Method) -> dict[str, float]:
        encoder = backbone_of(method)
        strategy = method.encoding.strategy
        embed = lambda sample: features(
            encoder, sample, looked.plain, device=device, workers=settings.workers, strategy=strategy
        )
        embedded = embed(looked.sample)
        found: dict[str, float] = {}
        if labels is not None:
            whole = Labelled(embedded, labels)
            if apart is None:
                fit, ask = (whole.rows(rows) for rows in parts)
            else:
                fit, ask = whole, Labelled(embed(apart), torch.from_numpy(np.asarray(apart.labels)))
            found |= _classes(fit, ask, asked, settings.seed)
        if seen is not None:
            several = view_features(
                encoder, seen, views, settings.seed, device, embedded.shape[1], INSTANCES, VIEWS
            )
            found |= measures_of(embedded, several)
        return found

    return probe


def _classes(fit: Labelled, ask: Labelled, asked: tuple[str, ...], seed: int) -> dict[str, float]:
    sides = (fit.features, fit.labels, ask.features, ask.labels)
    found = {}
    if KNN in asked:
        found["knn_top1"] = knn(*sides)["top1"]
    if LINEAR in asked:
        found["linear_top1"] = linear(*sides, seed=seed)["top1"]
    return found


def why_not_probed(data: DataSet) -> str | None:
    """Why no held-out fifth of a sample could tell anything; None if it could."""
    if data.labels is None:
        return f"{data.name} has no labels to probe with"
    sample = np.asarray(data.labels)[data.sample(0, 0, SAMPLE)]
    _, sizes = np.unique(sample, return_counts=True)
    if len(sample) < LEAST_PROBED:
        return f"{data.name} has {len(sample)} labelled {data.unit} to train on, and a probe needs {LEAST_PROBED}"
    if len(sizes) < 2:
        return f"the labels of {data.name} name one class only"
    if sizes.max() < 2:
        return f"no two {data.unit} of {data.name} are of one class"
    return None


def check_heard(settings: Settings, data: DataSet, probed: bool) -> None:
    """Stops a run whose schedule waits for a score that nobody will take."""
    waiting = settings.listens_to("score")
    probed = (
        probed and KNN in settings.probes and (settings.probe_data is not None or not why_not_probed(data))
    )
    if waiting and not probed:
        why = (
            "probe_every is 0"
            if not settings.probe_every
            else why_not_probed(data) or f"probe is {settings.probe}"
        )
        raise UserError(f"{waiting} follows the kNN probe but {why}; use on_loss, which follows the loss")
