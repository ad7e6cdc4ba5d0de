"""Fine-tuning: the encoder goes on learning from labels, and is judged by its own classifier.

The same composition as `nearfar train` (recipe "supervised"), in a loop without checkpoints; from an untrained encoder it is the
supervised baseline of the same network and budget.
"""

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearfar.config.resolving import resolve
from nearfar.core.layout import keep_contiguous
from nearfar.core.method import Method
from nearfar.core.optimisers import build, layer_scales, set_lr
from nearfar.core.results import Measurement, mean_over_draws
from nearfar.core.schedules import Progress, at, cosine
from nearfar.data import Stream
from nearfar.errors import NotFinite, UserError
from nearfar.evaluate.few import called, part_of
from nearfar.evaluate.figures import classified, ranked
from nearfar.evaluate.labels import stratified_split
from nearfar.evaluate.linear import fit_chosen
from nearfar.evaluate.options import Options
from nearfar.evaluate.subject import LabelledSet, Subject
from nearfar.modalities import DataSet, Instances
from nearfar.modalities.showing import plain_views
from nearfar.run.features import features
from nearfar.run.trained import backbones_of, fresh_method, views_of

LEAST_STEPS = 300  # however few labels there are
BATCH = 512  # instances in a pass without gradient
RECIPE = "supervised"


def finetune(subject: Subject, options: Options) -> Measurement:
    """All labels of the training set; the rate is chosen on a stratified fifth of it where several are given."""
    predicted, rate = _tuned(subject, subject.train, options, options.seed)
    return classified(
        predicted, subject.test.labels, _class_count(subject.train), _training_details(options, rate)
    )


def finetune_fractions(subject: Subject, options: Options) -> dict[str, Measurement]:
    """The same on part of the labels: for each share (or number of each class) the mean of several draws."""
    found = {}
    for asked in options.labels:
        draws, rates = [], []
        for draw in range(options.draws):
            rows = part_of(subject.train.labels, asked, options.seed + draw)
            predicted, rate = _tuned(subject, subject.train.rows(rows), options, options.seed + draw)
            draws.append(classified(predicted, subject.test.labels, _class_count(subject.train)))
            rates.append(rate)
        details = {**_training_details(options, rates), "labels": len(rows)}
        found[called(asked)] = mean_over_draws(draws, len(subject.test.labels), details)
    return found


def own_classifier(subject: Subject, options: Options) -> Measurement:
    """What the run itself learned to say: the classes that its own classifier finds likeliest. Nothing is fitted."""
    classifier = None if subject.method is None else subject.method.encoders.classifier()
    if classifier is None:
        raise UserError(
            "--protocol classifier asks a run's own classifier, and this one learned none; use linear, or nearfar train"
        )
    if not subject.own:
        raise UserError(
            "--protocol classifier answers in the classes that the run learned; leave out --train, or use linear"
        )
    embedded = features(subject.encoder, subject.test.images, subject.plain, device=subject.device)
    with torch.no_grad():
        logits = classifier.eval()(embedded.to(subject.device)).cpu()
    classes = torch.arange(logits.shape[1])
    return classified(ranked(logits, classes), subject.test.labels, len(classes))


def _class_count(part: LabelledSet) -> int:
    return len(torch.unique(part.labels))


def _training_details(options: Options, rate: float | list[float]) -> dict[str, Any]:
    return {"epochs": options.epochs, "lr": rate, "layer_decay": options.layer_decay}


def _tuned(
    subject: Subject, train: LabelledSet, options: Options, seed: int
) -> tuple[Int[Tensor, "test rank"], float]:
    """The five likeliest classes of every test instance, and the rate taken."""
    rates = list(options.lr)
    rest, held = stratified_split(train.labels, 0.2, seed)
    if len(rates) > 1 and len(held):
        fit, ask = train.rows(rest), train.rows(held)
        right = [
            _right(_predicted(subject, fit, ask.images, options, each, seed), ask.labels) for each in rates
        ]
        rates = [rates[right.index(max(right))]]
    return _predicted(subject, train, subject.test.images, options, rates[0], seed), rates[0]


def _right(predicted: Int[Tensor, "row rank"], labels: Int[Tensor, "row"]) -> float:
    return float((predicted[:, 0] == labels).double().mean())


def _predicted(
    subject: Subject, train: LabelledSet, asked: Instances, options: Options, rate: float, seed: int
) -> Int[Tensor, "row rank"]:
    with torch.random.fork_rng(devices=[]):
        method = _trained(subject, train, options, rate, seed)
    try:
        embedded = features(method.encoders.backbone(), asked, subject.plain, device=subject.device)
    except NotFinite:
        raise UserError(
            f"lr was {rate:g}, with which fine-tuning ended in weights that are not finite; lower it"
        ) from None
    classifier = method.eval().encoders.classifier()
    assert classifier is not None
    with torch.no_grad():
        logits = classifier(embedded.to(subject.device)).cpu()
    there = torch.unique(train.labels)
    return ranked(logits[:, there], there)


def _trained(subject: Subject, train: LabelledSet, options: Options, rate: float, seed: int) -> Method:
    size = min(options.batch_size, len(train.labels))
    settings = resolve(
        RECIPE,
        "data",
        {"batch_size": max(size, 2), "seed": seed},
        modality=subject.modality,
        objects=_own(subject.encoder),
    )
    known = subject.known.of(train.images).labelled(int(train.labels.max()) + 1)
    method = fresh_method(settings, known, _own(subject.encoder)).to(subject.device)
    keep_contiguous(method)  # views are channels-last
    if subject.trained and not subject.own:
        retake_statistics(method.encoders.backbone(), subject, train)
    if subject.trained:
        start_from_probe(method.encoders, subject, train, seed)
    data = _with_labels(train)
    stream = Stream(data, views_of(settings, known, subject.device), settings.batch_size, seed, workers=1)
    epochs = max(options.epochs, math.ceil(LEAST_STEPS / stream.steps_per_epoch))
    steps = epochs * stream.steps_per_epoch
    scales = layer_scales(method, backbones_of(method), options.layer_decay)
    optimiser = build(settings.optimizer, method, lr=rate, weight_decay=settings.weight_decay, scales=scales)
    schedule = cosine(rate, 0.0, warmup=min(1.0, epochs / 10))
    method.train()
    torch.manual_seed(seed)
    for step, batch in enumerate(stream.batches(0, steps)):
        progress = Progress(step, steps, stream.steps_per_epoch)
        set_lr(optimiser, at(schedule, progress))
        outcome = method(batch.to(subject.device), progress)
        optimiser.zero_grad(set_to_none=True)
        outcome.loss.backward()
        optimiser.step()
        method.advance(outcome, progress)
    return method.eval()


@torch.no_grad()
def retake_statistics(encoder: nn.Module, subject: Subject, train: LabelledSet) -> None:
    """Batch norms normalise by the statistics of these data (Li et al. 2017): with those of other data the classifier would begin at
    features that no training step sees."""
    norms = [part for part in encoder.modules() if isinstance(part, _BatchNorm)]
    before = [(part, part.momentum, part.training) for part in norms]
    for part in norms:
        part.reset_running_stats()
        part.momentum, part.training = None, True  # None: the mean over all batches
    for view in plain_views(train.images, subject.plain, BATCH, workers=1):
        encoder(view.to(subject.device))
    for part, momentum, training in before:
        part.momentum, part.training = momentum, training


def start_from_probe(encoders: Any, subject: Subject, train: LabelledSet, seed: int) -> None:
    """The classifier begins as the linear probe of the same labels (Kumar et al. 2022): from random weights, its first steps would undo
    features that were learned before."""
    rows = features(encoders.backbone(), train.images, subject.plain, device=subject.device).cpu()
    probe, _ = fit_chosen(rows, train.labels.cpu(), seed=seed)
    weight = probe.weight / probe.scale  # the probe reads standardised features
    table: nn.Linear = encoders.table
    with torch.no_grad():
        table.weight[probe.classes] = weight.to(table.weight)
        table.bias[probe.classes] = (probe.bias - weight @ probe.mean.double()).to(table.bias)


def _own(encoder: nn.Module) -> dict[str, Any]:
    return {"backbone": encoder.requires_grad_(True)}


def _with_labels(train: LabelledSet) -> DataSet:
    """The instances, labelled in the numbering that the protocols use."""
    return replace(cast(DataSet, train.images), labels=np.asarray(train.labels.numpy()))
