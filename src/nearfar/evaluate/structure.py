"""What lies near what, without a classifier: k-means clusters against classes, and retrieval by similarity."""

import numpy as np
import torch
from torch.nn import functional

from nearfar.core.randomness import short_seed
from nearfar.core.results import Figure, Measurement, mean_over_draws
from nearfar.core.statistics import student_interval
from nearfar.evaluate.labels import Labelled
from nearfar.evaluate.options import Options
from nearfar.system.extras import need

RECALL_AT = (1, 5, 10)
MOST_QUERIES = 2000  # that retrieval asks, drawn by the seed
STARTS = 5  # of k-means; the tightest is kept
TILE = 2**25  # similarities held at once


def clustering(train: Labelled, test: Labelled, options: Options) -> Measurement:
    """k-means of the test features, each of unit length, into as many clusters as there are classes: normalised mutual information
    and adjusted Rand index with the classes (Hubert and Arabie 1985), the mean of several draws, each the best of five starts by k-means++. Nothing is fitted on
    train."""
    metrics, cluster = need("sklearn.metrics"), need("sklearn.cluster")
    rows = np.ascontiguousarray(functional.normalize(test.features.float(), dim=1).cpu().numpy())
    labels = test.labels.cpu().numpy()
    count = len(np.unique(labels))
    draws = []
    for draw in range(options.draws):
        means = cluster.KMeans(count, n_init=STARTS, random_state=short_seed(options.seed + draw))
        found = means.fit_predict(rows)
        draws.append(
            Measurement(
                {
                    "nmi": Figure(float(metrics.normalized_mutual_info_score(labels, found))),
                    "ari": Figure(float(metrics.adjusted_rand_score(labels, found))),
                }
            )
        )
    return mean_over_draws(draws, None, {"clusters": count})


def retrieval(train: Labelled, test: Labelled, options: Options) -> Measurement:
    """Test rows ask, training rows answer in order of cosine. Recall@k: how often one of the first k is of the asked class.
    mAP: over the whole ranking, the mean over relevant rows of the precision at their places."""
    asked = test
    if len(test) > MOST_QUERIES:
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(options.seed))
        asked = test.rows(order[:MOST_QUERIES].to(test.labels.device))
    keys = functional.normalize(train.features.float(), dim=1)
    queries = functional.normalize(asked.features.float(), dim=1)
    precision, first = [], []
    for part in torch.arange(len(asked)).split(max(1, TILE // len(train))):
        order = (queries[part] @ keys.T).argsort(dim=1, descending=True, stable=True)
        relevant = train.labels[order] == asked.labels[part][:, None]
        place = torch.arange(1, len(train) + 1, device=relevant.device)
        at_each = relevant.cumsum(1) / place
        precision.append((at_each * relevant).sum(1).double() / relevant.sum(1))
        first.append(torch.where(relevant.any(1), relevant.int().argmax(1), len(train)))
    rank, precisions = torch.cat(first), torch.cat(precision)
    figures = {f"recall@{k}": Figure.share(float((rank < k).double().mean()), len(asked)) for k in RECALL_AT}
    interval = student_interval(precisions.tolist())
    inside = None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))
    figures["map"] = Figure(float(precisions.mean()), inside)
    return Measurement(figures, {"queries": len(asked)})
