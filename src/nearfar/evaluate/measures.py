"""Protocols other than accuracy: clustering, retrieval, calibration, information about the label."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from nearfar.core.randomness import short_seed
from nearfar.core.results import Figure, Measurement, mean_over_draws
from nearfar.core.statistics import clipped_student_interval
from nearfar.evaluate.accuracy import classified
from nearfar.evaluate.linear import linear_probe
from nearfar.evaluate.options import Options
from nearfar.evaluate.sets import LabelledFeatures
from nearfar.system.extras import need

RECALL_AT = (1, 5, 10)
MAX_QUERIES = 2000  # of retrieval, drawn by the seed
STARTS = 5  # of k-means; the tightest is kept
TILE = 2**25  # similarities in memory at a time
BINS = 15  # of calibration


def clustering(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> Measurement:
    """k-means of the test features, scaled to unit length, with as many clusters as classes: normalised
    mutual information and adjusted Rand index with the classes (Hubert and Arabie 1985). The mean over
    several draws, each the best of five k-means++ starts. `train` is not used."""
    metrics, cluster = need("sklearn.metrics"), need("sklearn.cluster")
    rows = np.ascontiguousarray(functional.normalize(test.features.float(), dim=1).cpu().numpy())
    labels = test.labels.cpu().numpy()
    draws = []
    for draw in range(options.draws):
        seed = short_seed(options.seed + draw)
        clusters = cluster.KMeans(test.class_count, n_init=STARTS, random_state=seed).fit_predict(rows)
        scores = {
            "nmi": metrics.normalized_mutual_info_score(labels, clusters),
            "ari": metrics.adjusted_rand_score(labels, clusters),
        }
        draws.append(Measurement({name: Figure(float(value)) for name, value in scores.items()}))
    return mean_over_draws(draws, None, {"clusters": test.class_count})


def retrieval(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> Measurement:
    """Training rows ranked by cosine similarity to each test row. Recall@k: how often one of the first k has
    the query's class. mAP: over the complete ranking, the mean over relevant rows of the precision at their
    ranks."""
    if len(test) > MAX_QUERIES:
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(options.seed))
        test = test.rows(order[:MAX_QUERIES].to(test.labels.device))
    keys, queries = (functional.normalize(part.features.float(), dim=1) for part in (train, test))
    precision, first = [], []
    for part in torch.arange(len(test)).split(max(1, TILE // len(train))):
        order = (queries[part] @ keys.T).argsort(dim=1, descending=True, stable=True)
        relevant = train.labels[order] == test.labels[part][:, None]
        place = torch.arange(1, len(train) + 1, device=relevant.device)
        at_rank = relevant.cumsum(1) / place
        precision.append((at_rank * relevant).sum(1).double() / relevant.sum(1))
        first.append(torch.where(relevant.any(1), relevant.int().argmax(1), len(train)))
    rank, precisions = torch.cat(first), torch.cat(precision)
    figures = {f"recall@{k}": Figure.share(float((rank < k).double().mean()), len(test)) for k in RECALL_AT}
    figures["map"] = Figure(float(precisions.mean()), clipped_student_interval(precisions.tolist()))
    return Measurement(figures, {"queries": len(test)})


def calibration(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> Measurement:
    """The probabilities of the linear probe against the outcomes: expected calibration error (Naeini et al.
    2015) of the likeliest class in 15 bins of equal width, log-loss in nats, Brier score; and the bins."""
    classifier, _ = linear_probe(train, options.seed)
    log_p = classifier.log_probabilities(test.features)
    truth = (test.labels[:, None].to(classifier.classes.device) == classifier.classes).double()
    error, bins = expected_calibration_error(log_p.exp(), truth)
    ranked = classifier.ranked_classes(test.features)
    accuracies = classified(ranked, test.labels, len(classifier.classes), {"bins": bins})
    figures = {
        "ece": Figure(error),
        "log_loss": Figure(float(-(log_p.double() * truth).sum(1).mean())),
        "brier": Figure(float((log_p.exp().double() - truth).square().sum(1).mean())),
    }
    return replace(accuracies, figures={**accuracies.figures, **figures})


def expected_calibration_error(
    probabilities: Float[Tensor, "row class"], truth: Float[Tensor, "row class"]
) -> tuple[float, list[dict[str, float]]]:
    """sum over bins of share × |accuracy - mean confidence|, where bin b has confidences in ((b-1)/BINS,
    b/BINS]; and the bins that are not empty."""
    confidence, predicted = probabilities.double().max(1)
    correct = truth.gather(1, predicted[:, None])[:, 0]
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    count = torch.bincount(place, minlength=BINS).double()
    mean = torch.bincount(place, confidence, BINS) / count.clamp(min=1)
    accuracy = torch.bincount(place, correct, BINS) / count.clamp(min=1)
    error = float((count / len(place) * (accuracy - mean).abs()).sum())
    filled = [
        {"confidence": float(mean[b]), "accuracy": float(accuracy[b]), "rows": int(count[b])}
        for b in range(BINS)
        if count[b]
    ]
    return error, filled


def information(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> Measurement:
    """A lower bound in nats on the information between features and label: InfoNCE on the test rows, each
    contrasted with the labels of all others. The critic is the linear probe's log-probabilities, fitted on
    train alone (`estimate.label_information`). Test rows that are identical to rows fitted on are left out,
    so that the bound is about new rows."""
    from nearfar.estimate.label_information import label_information  # scipy.stats takes a second to load

    classifier, _ = linear_probe(train, options.seed)
    new = test if test.repeated is None else test.rows((~test.repeated).nonzero()[:, 0])
    rows, unseen = (new, options.unseen) if len(new) > 1 else (test, False)
    scores = classifier.log_probabilities(rows.features).cpu()
    codes = torch.searchsorted(classifier.classes.cpu(), rows.labels.cpu())
    estimate = label_information(
        scores, codes, held_out=unseen, left_out=len(test) - len(rows), dependent=test.dependence
    )
    return Measurement.from_json(estimate)
