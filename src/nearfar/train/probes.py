"""Probes: how well the features of a run in training classify, and how good they are without labels.

Features are those of the frozen backbone: training and its random draws are not changed.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfar.config.settings import KNN, LINEAR, QUALITY, Settings
from nearfar.core.method import Method
from nearfar.data import Limits
from nearfar.errors import UserError, counted
from nearfar.evaluate.knn import knn
from nearfar.evaluate.linear import linear
from nearfar.evaluate.quality import measures_of, view_features
from nearfar.evaluate.sets import LabelledFeatures
from nearfar.modalities import DataSet
from nearfar.modalities.base import MakeViews
from nearfar.run.features import features
from nearfar.run.trained import check_kind, locate_beside
from nearfar.train.hooks import Probe
from nearfar.train.session import Session

MAX_PROBED = 4096  # instances
MIN_LABELLED = 50  # fewer labelled instances give no reliable score
QUALITY_INSTANCES, QUALITY_VIEWS = 256, 4  # for LiDAR and alignment


@dataclass(frozen=True)
class ProbeSample:
    """The instances of a probe, and how they are shown to the encoder."""

    data: DataSet
    plain_view: MakeViews
    problem: str | None  # why classes cannot be probed


def probe_sample(session: Session) -> ProbeSample:
    """A sample of the training data, or of `probe_data`, which has its own statistics."""
    settings, data, description = session.settings, session.data, session.description
    modality = settings.modality
    if settings.probe_data is not None:
        located = locate_beside(settings, settings.probe_data)
        check_kind(settings, located)
        limits = Limits(max_bad_share=settings.max_bad_share)
        opened = located.open(
            limits, **modality.reader.options_for(settings.views, settings.image_size, description)
        )
        data = description.convert_channels(opened, "this run")
        if settings.mean is None:
            description = description.with_statistics_of(data, None)
    sample = data.subset(data.sample(0, 0, MAX_PROBED))
    plain_view = settings.parts["views"].plain_view(description, session.device)
    return ProbeSample(sample, plain_view, probe_problem(data))


def make_probe(session: Session, validation: DataSet | None = None) -> Probe | None:
    """The metrics of the setting `probe`, by name; None if there is nothing to compute. Classes are predicted
    for a held-out fifth of the sample, or for `validation`, which has the same class numbers and is not
    trained on."""
    settings = session.settings
    names = settings.probes
    if not settings.probe_every:
        return None
    sample = probe_sample(session)
    if settings.probe_data is not None and sample.problem and set(names) & {KNN, LINEAR}:
        raise UserError(f"probe_data was {settings.probe_data}, but {sample.problem}")
    if sample.problem:
        names = tuple(name for name in names if name == QUALITY)
    if not names:
        return None
    labels = None if sample.problem else label_tensor(sample.data)
    parts = (
        [torch.from_numpy(rows) for rows in sample.data.parts(0.2, settings.seed)]
        if labels is not None
        else []
    )
    # views are those of the run, so they are applied to its own data
    quality_rows = session.data.sample(0, 0, MAX_PROBED)[:QUALITY_INSTANCES]
    viewed = session.data.subset(quality_rows) if QUALITY in names else None
    test_data = None if validation is None else validation.subset(validation.sample(0, 0, MAX_PROBED))

    def probe(method: Method) -> dict[str, float]:
        encoder, strategy = method.encoders.backbone(), method.encoding.strategy

        def embed(data: DataSet) -> Tensor:
            options = {"device": session.device, "workers": settings.workers, "strategy": strategy}
            return features(encoder, data, sample.plain_view, **options)

        embedding = embed(sample.data)
        scores: dict[str, float] = {}
        if labels is not None:
            labelled = LabelledFeatures(embedding, labels)
            if test_data is None:
                train, test = (labelled.rows(rows) for rows in parts)
            else:
                train, test = labelled, LabelledFeatures(embed(test_data), label_tensor(test_data))
            scores |= class_scores(train, test, names, settings.seed)
        if viewed is not None:
            view_embeddings = view_features(
                encoder,
                viewed,
                session.views,
                settings.seed,
                session.device,
                embedding.shape[1],
                QUALITY_INSTANCES,
                QUALITY_VIEWS,
            )
            scores |= measures_of(embedding, view_embeddings)
        return scores

    return probe


def label_tensor(data: DataSet) -> Tensor:
    return torch.from_numpy(np.asarray(data.labels))


def class_scores(
    train: LabelledFeatures, test: LabelledFeatures, names: tuple[str, ...], seed: int
) -> dict[str, float]:
    sides = (train.features, train.labels, test.features, test.labels)
    scores = {}
    if KNN in names:
        scores["knn_top1"] = knn(*sides)["top1"]
    if LINEAR in names:
        scores["linear_top1"] = linear(*sides, seed=seed)["top1"]
    return scores


def probe_problem(data: DataSet) -> str | None:
    """Why a held-out fifth of a sample gives no score; None if it does."""
    if data.labels is None:
        return f"{data.name} has no labels to probe with"
    sample = np.asarray(data.labels)[data.sample(0, 0, MAX_PROBED)]
    _, sizes = np.unique(sample, return_counts=True)
    if len(sample) < MIN_LABELLED:
        return f"{data.name} has {counted(len(sample), f'labelled {data.unit}')} to train on, and a probe needs {MIN_LABELLED}"
    if len(sizes) < 2:
        return f"the labels of {data.name} have only one class"
    if sizes.max() < 2:
        return f"no two {data.unit} of {data.name} have the same class"
    return None


def check_probe_schedules(settings: Settings, data: DataSet, has_probe: bool, has_estimate: bool) -> None:
    """Refuses a schedule that follows a score or a held-out bound which is never computed."""
    schedule = settings.adaptive_on("bound")
    if schedule and not (has_estimate and settings.probe_every):
        reason = "probe_every is 0" if has_estimate else f"no {data.unit} are set aside (held_out)"
        raise UserError(
            f"{schedule} follows the held-out bound but {reason}; use on_variance, which follows the loss"
        )
    schedule = settings.adaptive_on("score")
    problem = probe_problem(data)
    has_score = has_probe and KNN in settings.probes and (settings.probe_data is not None or not problem)
    if not schedule or has_score:
        return
    reason = "probe_every is 0" if not settings.probe_every else problem or f"probe is {settings.probe}"
    raise UserError(f"{schedule} follows the kNN probe but {reason}; use on_loss, which follows the loss")
