"""The usual evaluation of graph features: a support vector machine, 10 folds, 5 repeats; and baselines
without learning.

Sun et al. 2020 and You et al. 2020 report the mean accuracy of 10-fold cross-validation, repeated with 5
seeds, C chosen within the training folds. They also choose the epoch by it, which we do not.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.method import Method
from nearfar.core.results import Figure, Measurement
from nearfar.modalities.base import MakeViews, Measure
from nearfar.modalities.graph.data import Graph
from nearfar.modalities.showing import plain_views
from nearfar.parts.encoders import graph_network
from nearfar.system.extras import need

FOLDS, SEEDS, INNER = 10, 5, 5
PENALTIES = tuple(10.0**power for power in range(-3, 4))  # C
ITERATIONS = 3  # of Weisfeiler-Lehman
ROWS = 256  # graphs at a time


def label_counts(data: Any) -> Float[Tensor, "graph label"]:
    """How often each node label occurs in each graph."""
    graphs = data.load(np.arange(len(data)))
    width = 1 + max(int(graph.labels.max()) for graph in graphs)
    counts = [np.bincount(graph.labels, minlength=width) for graph in graphs]
    return torch.from_numpy(np.stack(counts).astype(np.float32))


def weisfeiler_lehman(graphs: Sequence[Graph], iterations: int = ITERATIONS) -> list[Counter[int]]:
    """How often each label occurs in each graph, over all rounds of relabelling nodes by themselves and their
    neighbours (Shervashidze et al. 2011)."""
    numbers: dict[Any, int] = {}
    number = lambda key: numbers.setdefault(key, len(numbers))
    histograms = []
    for graph in graphs:
        neighbours: list[list[int]] = [[] for _ in graph.labels]
        for a, b in graph.edges.tolist():
            neighbours[a].append(b)
        label = [number((0, value)) for value in graph.labels.tolist()]
        counts = Counter(label)
        for round_ in range(1, 1 + iterations):
            label = [
                number((round_, label[node], tuple(sorted(label[end] for end in neighbours[node]))))
                for node in range(len(label))
            ]
            counts.update(label)
        histograms.append(counts)
    return histograms


def wl_kernel(graphs: Sequence[Graph]) -> Float[np.ndarray, "graph graph"]:
    """Inner products of their counts, each graph's with itself one."""
    sparse = need("scipy.sparse")
    counts = weisfeiler_lehman(graphs)
    rows = np.repeat(np.arange(len(counts)), [len(histogram) for histogram in counts])
    columns = np.concatenate([np.fromiter(histogram.keys(), dtype=np.int64) for histogram in counts])
    values = np.concatenate([np.fromiter(histogram.values(), dtype=np.float64) for histogram in counts])
    table = sparse.csr_matrix((values, (rows, columns)))
    inner = (table @ table.T).toarray()
    size = np.sqrt(inner.diagonal())
    return inner / size[:, None] / size[None]


def rbf_kernel(features: Float[np.ndarray, "graph dim"]) -> Float[np.ndarray, "graph graph"]:
    """e^(-g |x - y|^2), g = 1 / (dim x variance): scikit-learn's gamma="scale", which is the field's."""
    variance = features.var() * features.shape[1]
    square = (features**2).sum(axis=1)
    distance = np.maximum(square[:, None] + square[None] - 2 * features @ features.T, 0)
    return np.exp(-distance / (variance if variance > 0 else 1.0))


def svm_scores(
    kernel: Float[np.ndarray, "graph graph"], labels: np.ndarray, seed: int, repeats: int = SEEDS
) -> Measurement:
    """Mean accuracy over folds, for each of `repeats` ways of making them; C by `INNER` folds within the
    training folds."""
    model, validation = need("sklearn.svm"), need("sklearn.model_selection")
    smallest_class = int(np.bincount(labels).min(initial=len(labels)))
    folds = max(2, min(FOLDS, smallest_class))
    accuracies = []
    for repeat in range(repeats):
        accuracy = 0.0
        split = validation.StratifiedKFold(folds, shuffle=True, random_state=seed + repeat)
        for fit, test in split.split(kernel, labels):
            inner = max(2, min(INNER, int(np.bincount(labels[fit]).min())))
            search = validation.GridSearchCV(
                model.SVC(kernel="precomputed"), {"C": list(PENALTIES)}, cv=inner, scoring="accuracy"
            )
            search.fit(kernel[np.ix_(fit, fit)], labels[fit])
            accuracy += float((search.predict(kernel[np.ix_(test, fit)]) == labels[test]).mean()) / folds
        accuracies.append(accuracy)
    return Measurement({"top1": Figure.mean(accuracies, len(labels))}, {"folds": folds})


@torch.no_grad()
def network_features(
    network: nn.Module, data: Any, plain_view: MakeViews, device: torch.device
) -> np.ndarray:
    training = network.training
    network.eval()
    features = [network(view.to(device)).cpu() for view in plain_views(data, plain_view, ROWS, 0)]
    network.train(training)
    return torch.cat(features).double().numpy()


def svm_measure(plain_view: MakeViews) -> Measure:
    """The protocol on a labelled set, which it splits into folds itself."""

    def learned(method: Method, test: Any, views: Any, /, *, device: torch.device, seed: int) -> Measurement:
        if test.labels is None:
            return Measurement({})
        features = network_features(method.encoders.backbone(), test, plain_view, device)
        return svm_scores(rbf_kernel(features), test.labels, seed)

    def untrained(train: Any, test: Any, views: Any, /, *, seed: int) -> Measurement:
        if test.labels is None:
            return Measurement({})
        width = label_counts(train).shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = graph_network("gin", width)
        features = network_features(network, test, plain_view, torch.device("cpu"))
        return svm_scores(rbf_kernel(features), test.labels, seed)

    def counts(train: Any, test: Any, views: Any, /, *, seed: int) -> Measurement:
        if test.labels is None:
            return Measurement({})
        return svm_scores(rbf_kernel(label_counts(test).double().numpy()), test.labels, seed)

    def relabelled(train: Any, test: Any, views: Any, /, *, seed: int) -> Measurement:
        if test.labels is None:
            return Measurement({})
        return svm_scores(wl_kernel(test.load(np.arange(len(test)))), test.labels, seed)

    return Measure(learned, {"labels": counts, "weisfeiler-lehman": relabelled, "untrained": untrained})
