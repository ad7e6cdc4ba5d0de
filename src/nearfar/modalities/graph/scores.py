"""The usual evaluations of graph and node features, and baselines without learning.

svm: Sun et al. 2020 and You et al. 2020 report the mean accuracy of 10-fold cross-validation of a support
vector machine, repeated with 5 seeds, C chosen within the training folds. They also choose the epoch by it,
which we do not.

nodes: Zhu et al. 2020 fits logistic regression to a random tenth of the nodes and tests it on the others.
Here too, with 5 such splits, the penalty chosen within the fitted tenth.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.method import Method
from nearfar.core.results import Figure, Measurement
from nearfar.modalities.base import Measure
from nearfar.modalities.graph.data import Graph, GraphReader
from nearfar.modalities.graph.views import WholeGraph, network_for
from nearfar.modalities.showing import plain_views
from nearfar.parts.encoders import GraphNetwork
from nearfar.parts.encoders.graphs import flattened
from nearfar.system.extras import need

FOLDS, SEEDS, INNER = 10, 5, 5
PENALTIES = tuple(10.0**power for power in range(-3, 4))  # C
ITERATIONS = 3  # of Weisfeiler-Lehman
ROWS = 256  # graphs at a time
NODE_SHARE, MAX_FIT_NODES = 0.1, 5000  # of the nodes that are fitted to
NODE_PENALTIES, NODE_FOLDS = (0.01, 0.1, 1.0, 10.0), 3


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
    """Mean accuracy over folds, for each of `repeats` ways of making them; C by folds within training."""
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
def network_features(network: nn.Module, data: Any, function: Callable[[Tensor], Tensor]) -> np.ndarray:
    """What a function of a whole view gives of all graphs, with the network in evaluation mode."""
    training = network.training
    plain_view = WholeGraph(_device(network), GraphReader().describe(data, None))
    network.eval()
    rows = [function(view).cpu() for view in plain_views(data, plain_view, ROWS, 0)]
    network.train(training)
    return torch.cat(rows).double().numpy()


def _device(network: nn.Module) -> torch.device:
    return next((weight.device for weight in network.parameters()), torch.device("cpu"))


def untrained_network(data: Any, seed: int, name: str = "gin") -> GraphNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network_for(name, GraphReader().describe(data, None))


def svm_measure() -> Measure:
    """The protocol on a labelled set, which it splits into folds itself."""

    def of_kernel(kernel: Callable[[Any, Any, int], np.ndarray]) -> Callable[..., Measurement]:
        def measure(train: Any, test: Any, views: Any, /, *, seed: int) -> Measurement:
            if test.labels is None:
                return Measurement({})
            return svm_scores(kernel(train, test, seed), test.labels, seed)

        return measure

    def features(network: nn.Module, data: Any) -> np.ndarray:
        return rbf_kernel(network_features(network, data, network))

    def learned(method: Method, test: Any, views: Any, /, *, device: torch.device, seed: int) -> Measurement:
        network = method.encoders.backbone().to(device)
        return of_kernel(lambda train, test, seed: features(network, test))(None, test, views, seed=seed)

    baselines = {
        "labels": lambda train, test, seed: rbf_kernel(label_counts(test).double().numpy()),
        "weisfeiler-lehman": lambda train, test, seed: wl_kernel(test.load(np.arange(len(test)))),
        "untrained": lambda train, test, seed: features(untrained_network(train, seed), test),
    }
    return Measure(learned, {name: of_kernel(kernel) for name, kernel in baselines.items()})


def node_classes(data: Any) -> np.ndarray | None:
    """The class of every node, where the network was not shown it."""
    classes = [graph.classes for graph in data.load(np.arange(len(data)))]
    return None if any(one is None for one in classes) else np.concatenate(classes)


def node_features(network: GraphNetwork, data: Any) -> np.ndarray:
    return network_features(network, data, lambda view: network.nodes(view)[0])


def node_inputs(network: GraphNetwork, data: Any) -> np.ndarray:
    """What the network is shown of each node."""
    return network_features(network, data, lambda view: network.inputs(flattened(view)))


def node_scores(
    features: Float[np.ndarray, "node dim"], classes: np.ndarray, seed: int, repeats: int = SEEDS
) -> Measurement:
    """Accuracy of logistic regression on standardised features, for each of `repeats` random splits."""
    linear, validation = need("sklearn.linear_model"), need("sklearn.model_selection")
    deviation = features.std(axis=0)
    rows = (features - features.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    count = min(MAX_FIT_NODES, max(int(NODE_SHARE * len(rows)), 2 * NODE_FOLDS))
    accuracies = []
    for repeat in range(repeats):
        order = np.random.default_rng([seed, repeat]).permutation(len(rows))
        fit, test = order[:count], order[count:]
        search = validation.GridSearchCV(
            linear.LogisticRegression(max_iter=300, tol=1e-3),
            {"C": list(NODE_PENALTIES)},
            cv=validation.KFold(NODE_FOLDS),
            error_score=0.0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # a penalty too weak to converge, or a fold of one class, scores low
            search.fit(rows[fit], classes[fit])
        accuracies.append(float((search.predict(rows[test]) == classes[test]).mean()))
    return Measurement({"top1": Figure.mean(accuracies, len(rows) - count)}, {"fitted_nodes": count})


def node_measure() -> Measure:
    """The protocol on graphs whose nodes have classes that the network was not shown."""

    def measure(features: Callable[[], np.ndarray], data: Any, seed: int) -> Measurement:
        classes = node_classes(data)
        if classes is None or len(classes) < 4 * NODE_FOLDS or len(np.unique(classes)) < 2:
            return Measurement({})
        return node_scores(features(), classes, seed)

    def learned(method: Method, test: Any, views: Any, /, *, device: torch.device, seed: int) -> Measurement:
        network = method.encoders.backbone().to(device)
        if not isinstance(network, GraphNetwork):
            return Measurement({})
        return measure(lambda: node_features(network, test), test, seed)

    def inputs(train: Any, test: Any, views: Any, /, *, seed: int) -> Measurement:
        return measure(lambda: node_inputs(untrained_network(train, seed), test), test, seed)

    def untrained(train: Any, test: Any, views: Any, /, *, seed: int) -> Measurement:
        return measure(lambda: node_features(untrained_network(train, seed, "gcn-2"), test), test, seed)

    return Measure(learned, {"inputs": inputs, "untrained": untrained})
