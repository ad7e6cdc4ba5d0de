"""Probabilities of classes from frozen features: how well calibrated they are, and what they prove the features know of the label."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.core.results import Figure, Measurement
from nearfar.evaluate.figures import classified
from nearfar.evaluate.labels import Labelled
from nearfar.evaluate.linear import LinearClassifier, fit_chosen
from nearfar.evaluate.options import Options

BINS = 15


def calibration(train: Labelled, test: Labelled, options: Options) -> Measurement:
    """The linear probe's probabilities against what happens: expected calibration error (Naeini et al. 2015) of the likeliest class in
    15 bins of equal width, log-loss in nats, Brier score; and the bins."""
    classifier, _ = linear_probe(train, options.seed)
    log_p = classifier.log_probabilities(test.features)
    truth = (test.labels[:, None].to(classifier.classes.device) == classifier.classes).double()
    ranked = classifier.ranked_classes(test.features)
    error, bins = expected_calibration_error(log_p.exp(), truth)
    accuracies = classified(ranked, test.labels, len(classifier.classes), {"bins": bins})
    figures = {
        "ece": Figure(error),
        "log_loss": Figure(float(-(log_p.double() * truth).sum(1).mean())),
        "brier": Figure(float((log_p.exp().double() - truth).square().sum(1).mean())),
    }
    return replace(accuracies, figures={**accuracies.figures, **figures})


def expected_calibration_error(
    probabilities: Float[Tensor, "row class"], truth: Float[Tensor, "row class"], bins: int = BINS
) -> tuple[float, list[dict[str, float]]]:
    """sum over bins of share × |accuracy - mean confidence|, bin b holding confidences in ((b-1)/bins, b/bins]; and the bins that hold
    any row."""
    confidence, said = probabilities.double().max(1)
    right = truth.gather(1, said[:, None])[:, 0]
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    count = torch.bincount(place, minlength=bins).double()
    mean = torch.bincount(place, confidence, bins) / count.clamp(min=1)
    accuracy = torch.bincount(place, right, bins) / count.clamp(min=1)
    error = float((count / len(place) * (accuracy - mean).abs()).sum())
    shown = [
        {"confidence": float(mean[b]), "accuracy": float(accuracy[b]), "rows": int(count[b])}
        for b in range(bins)
        if count[b]
    ]
    return error, shown


def information(train: Labelled, test: Labelled, options: Options) -> Measurement:
    """A lower bound in nats on what the features tell about the label: InfoNCE on the test rows, each contrasted with the labels of
    all others, with the linear probe's log-probabilities, fitted on train alone, as critic (`estimate.labels`). Rows that were fitted on are
    left out, so that it speaks of new ones."""
    from nearfar.estimate.labels import label_information  # scipy.stats takes a second to load

    classifier, _ = linear_probe(train, options.seed)
    new = test if test.repeated is None else test.rows((~test.repeated).nonzero()[:, 0])
    asked, unseen = (new, options.unseen) if len(new) > 1 else (test, False)
    scores = classifier.log_probabilities(asked.features).cpu()
    codes = _codes(asked.labels.cpu(), classifier.classes.cpu())
    estimate = label_information(
        scores, codes, held_out=unseen, left_out=len(test) - len(asked), dependent=test.dependent
    )
    return Measurement.from_json(estimate)


def linear_probe(train: Labelled, seed: int) -> tuple[LinearClassifier, float]:
    """The linear probe of these features and its penalty, solved once for all protocols that read it."""
    key = ("linear", seed)
    if key not in train.fitted:
        train.fitted[key] = fit_chosen(train.features, train.labels, seed=seed)
    classifier, penalty = train.fitted[key]
    return classifier, penalty


def _codes(labels: Int[Tensor, "row"], classes: Int[Tensor, "class"]) -> Int[Tensor, "row"]:
    return torch.searchsorted(classes, labels)
