"""Fine-tuning: the encoder is trained on labels, and its own classifier is tested.

The same method as `nearfar train` (recipe "supervised"), in a loop without checkpoints. From an untrained
encoder it is the supervised baseline of the same network and budget.
"""

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from nearfar.config.resolving import resolve
from nearfar.core.method import Method
from nearfar.core.networks import keep_contiguous
from nearfar.core.optimisers import build, layer_scales, set_lr
from nearfar.core.results import Measurement, mean_over_draws
from nearfar.core.schedules import Progress, at, cosine
from nearfar.data import Stream
from nearfar.errors import NotFinite, UserError
from nearfar.evaluate.accuracy import classified, rank_classes
from nearfar.evaluate.linear import fit_chosen
from nearfar.evaluate.options import Options
from nearfar.evaluate.probes import amount_text, draw_labels
from nearfar.evaluate.sets import LabelledInstances, Subject, stratified_split
from nearfar.modalities import DataSet, Instances
from nearfar.modalities.showing import plain_views
from nearfar.run.features import features
from nearfar.run.trained import backbones_of, fresh_method, views_of

MIN_STEPS = 300  # however few labels there are
BATCH = 512  # instances in a pass without gradient
RECIPE = "supervised"
VALIDATION_SHARE = 0.2


def finetune(subject: Subject, options: Options) -> Measurement:
    """All labels of the training set; of several rates the best on a stratified fifth of it."""
    ranked, rate = _fine_tuned_ranking(subject, subject.train, options, options.seed)
    details = _training_details(options, rate)
    return classified(ranked, subject.test.labels, subject.train.class_count, details)


def finetune_fractions(subject: Subject, options: Options) -> dict[str, Measurement]:
    """The same on part of the labels: for each share (or number per class) the mean over several draws."""
    measurements = {}
    for amount in options.labels:
        draws, rates = [], []
        for draw in range(options.draws):
            rows = draw_labels(subject.train.labels, amount, options.seed + draw)
            part = subject.train.rows(rows)
            ranked, rate = _fine_tuned_ranking(subject, part, options, options.seed + draw)
            draws.append(classified(ranked, subject.test.labels, subject.train.class_count))
            rates.append(rate)
        details = {**_training_details(options, rates), "labels": len(rows)}
        measurements[amount_text(amount)] = mean_over_draws(draws, len(subject.test.labels), details)
    return measurements


def own_classifier(subject: Subject, options: Options) -> Measurement:
    """The accuracy of the classifier that the run itself learned; nothing is fitted."""
    classifier = None if subject.method is None else subject.method.encoders.classifier()
    if classifier is None:
        raise UserError(
            "--protocol classifier needs a run with its own classifier (nearfar train); this run has "
            "none, use linear"
        )
    if not subject.own_data:
        raise UserError(
            "--protocol classifier uses the classes that the run learned; omit --train, or use linear"
        )
    embedded = features(subject.encoder, subject.test.instances, subject.plain_view, device=subject.device)
    with torch.no_grad():
        logits = classifier.eval()(embedded.to(subject.device)).cpu()
    classes = torch.arange(logits.shape[1])
    return classified(rank_classes(logits, classes), subject.test.labels, len(classes))


def _training_details(options: Options, rate: float | list[float]) -> dict[str, Any]:
    return {"epochs": options.epochs, "lr": rate, "layer_decay": options.layer_decay}


def _fine_tuned_ranking(
    subject: Subject, train: LabelledInstances, options: Options, seed: int
) -> tuple[Int[Tensor, "test rank"], float]:
    """The five likeliest classes of every test instance, and the learning rate used."""
    rates = list(options.lr)
    fit, holdout = (train.rows(rows) for rows in stratified_split(train.labels, VALIDATION_SHARE, seed))
    if len(rates) > 1 and len(holdout.labels):
        rankings = [_ranking(subject, fit, holdout.instances, options, rate, seed) for rate in rates]
        accuracy = [float((ranked[:, 0] == holdout.labels).double().mean()) for ranked in rankings]
        rates = [rates[accuracy.index(max(accuracy))]]
    return _ranking(subject, train, subject.test.instances, options, rates[0], seed), rates[0]


def _ranking(
    subject: Subject, train: LabelledInstances, test: Instances, options: Options, rate: float, seed: int
) -> Int[Tensor, "row rank"]:
    with torch.random.fork_rng(devices=[]):
        method = _fit(subject, train, options, rate, seed)
    try:
        embedded = features(method.encoders.backbone(), test, subject.plain_view, device=subject.device)
    except NotFinite:
        raise UserError(
            f"lr was {rate:g}, with which fine-tuning ended in weights that are not finite; lower it"
        ) from None
    classifier = method.eval().encoders.classifier()
    assert classifier is not None
    with torch.no_grad():
        logits = classifier(embedded.to(subject.device)).cpu()
    classes = torch.unique(train.labels)
    return rank_classes(logits[:, classes], classes)


def _fit(subject: Subject, train: LabelledInstances, options: Options, rate: float, seed: int) -> Method:
    """A method trained on these labels from the subject's encoder."""
    objects = {"backbone": subject.encoder.requires_grad_(True)}
    batch_size = max(min(options.batch_size, len(train.labels)), 2)
    changes = {"batch_size": batch_size, "seed": seed}
    settings = resolve(RECIPE, "data", changes, modality=subject.modality, objects=objects)
    description = subject.description.of(train.instances).labelled(int(train.labels.max()) + 1)
    method = fresh_method(settings, description, objects).to(subject.device)
    keep_contiguous(method)  # views are channels-last
    if subject.trained and not subject.own_data:
        retake_statistics(method.encoders.backbone(), subject, train)
    if subject.trained:
        start_from_probe(method.encoders, subject, train, seed)
    data = replace(cast(DataSet, train.instances), labels=np.asarray(train.labels.numpy()))
    views = views_of(settings, description, subject.device)
    stream = Stream(data, views, settings.batch_size, seed, workers=1)
    epochs = max(options.epochs, math.ceil(MIN_STEPS / stream.steps_per_epoch))
    scales = layer_scales(method, backbones_of(method), options.layer_decay)
    optimiser = build(settings.optimizer, method, lr=rate, weight_decay=settings.weight_decay, scales=scales)
    torch.manual_seed(seed)
    _train(method, stream, epochs, optimiser, rate, subject.device)
    return method.eval()


def _train(
    method: Method,
    stream: Stream,
    epochs: int,
    optimiser: torch.optim.Optimizer,
    rate: float,
    device: torch.device,
) -> None:
    steps = epochs * stream.steps_per_epoch
    schedule = cosine(rate, 0.0, warmup=min(1.0, epochs / 10))
    method.train()
    for step, batch in enumerate(stream.batches(0, steps)):
        progress = Progress(step, steps, stream.steps_per_epoch)
        set_lr(optimiser, at(schedule, progress))
        outcome = method(batch.to(device), progress)
        optimiser.zero_grad(set_to_none=True)
        outcome.loss.backward()
        optimiser.step()
        method.advance(outcome, progress)


def retake_statistics(encoder: nn.Module, subject: Subject, train: LabelledInstances) -> None:
    """Recomputes the statistics of batch norms on these data (Li et al. 2017). With those of other data, the
    classifier would start from features that no training step sees."""
    views = plain_views(train.instances, subject.plain_view, BATCH, workers=1)
    update_bn(views, encoder, subject.device)


def start_from_probe(encoders: Any, subject: Subject, train: LabelledInstances, seed: int) -> None:
    """Initialises the classifier with the linear probe of the same labels (Kumar et al. 2022). From random
    weights, the first steps would undo features that were learned before."""
    rows = features(encoders.backbone(), train.instances, subject.plain_view, device=subject.device).cpu()
    probe, _ = fit_chosen(rows, train.labels.cpu(), seed=seed)
    weight = probe.weight / probe.scale  # the probe reads standardised features
    table: nn.Linear = encoders.table
    with torch.no_grad():
        table.weight[probe.classes] = weight.to(table.weight)
        table.bias[probe.classes] = (probe.bias - weight @ probe.mean.double()).to(table.bias)
