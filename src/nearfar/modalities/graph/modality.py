"""Graphs: TU folders, or torch_geometric's data sets, seen with nodes, edges or labels changed by a graph network.

    nearfar pretrain infograph TUDataset/MUTAG --out runs/mutag       a folder with NAME_A.txt, NAME_graph_indicator.txt, …
    nearfar evaluate runs/mutag --baselines                           10-fold SVM beside Weisfeiler-Lehman and counts of labels

A node is its label; where nodes have none, its degree. Labels of edges and attributes of nodes are not read.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor

from nearfar.config.schema import chosen_views, settable
from nearfar.errors import UserError
from nearfar.modalities.base import (
    Choice,
    Decoded,
    Description,
    Features,
    Found,
    MakeViews,
    Measure,
    Modality,
)
from nearfar.modalities.dataset import DataSet, Unusable
from nearfar.modalities.graph.drawing import drawn
from nearfar.modalities.graph.files import read_tu, tu_name
from nearfar.modalities.graph.scores import label_counts, svm_measure
from nearfar.modalities.graph.views import HIDDEN, Graph, Perturb
from nearfar.parts.encoders import GRAPH_NETWORKS, InputSpec, graph_network
from nearfar.parts.encoders.graphs import EDGE, NODE, NOTHING

MOST_DEGREE = 64  # where nodes have no labels, their degree is one, up to this


@dataclass(frozen=True)
class Held:
    """Graphs in a list."""

    graphs: Sequence[Graph]

    def take(self, rows: Int[np.ndarray, "graph"]) -> list[Graph]:
        return [self.graphs[row] for row in rows]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Graphs(DataSet):
    """Opened graphs: `load` gives a list of them."""

    modality: ClassVar[str] = "graph"
    unit: ClassVar[str] = "graphs"


@dataclass(frozen=True)
class GraphDescription(Description):
    node_labels: int  # how many there are
    most_nodes: int  # of the largest graph


def packed(graphs: Sequence[Graph], records: int) -> Int[Tensor, "graph record 3"]:
    """Graphs as tables of so many records (see `encoders.graphs`)."""
    table = np.zeros((len(graphs), records, 3), dtype=np.int64)
    table[..., 0] = NOTHING
    for row, graph in zip(table, graphs, strict=True):
        nodes, both = len(graph.labels), len(graph.labels) + len(graph.edges)
        row[:nodes, 0], row[:nodes, 1] = NODE, graph.labels
        row[nodes:both, 0], row[nodes:both, 1:] = EDGE, graph.edges
    return torch.from_numpy(table)


def unpacked(table: Int[np.ndarray, "record 3"]) -> Graph:
    return Graph(table[table[:, 0] == NODE, 1], table[table[:, 0] == EDGE, 1:])


def _records(graphs: Sequence[Graph]) -> int:
    """As many as the largest has, or would have with every edge in both directions."""
    return max(len(graph.labels) + 2 * len(graph.edges) for graph in graphs)


class WholeGraph:
    """Graphs as they are: what evaluation sees."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __repr__(self) -> str:
        return "WholeGraph()"

    def as_views(self, shown: Tensor, count: int) -> tuple[Tensor, ...]:
        return (shown,) * count

    def __call__(self, loaded: list[Graph], seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        return (packed(loaded, _records(loaded)).to(self.device),)


class Perturbed(WholeGraph):
    """What training sees: view v of graph i in epoch e is a function of (seed, e, i, v) and the graph."""

    def __init__(self, settings: Perturb, device: torch.device) -> None:
        super().__init__(device)
        self.settings = settings

    def __call__(self, loaded: list[Graph], seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        records = _records(loaded)  # all views alike, so that they share a forward pass
        return tuple(
            packed(self.settings.of(loaded, seed, epoch, index, view), records).to(self.device)
            for view in range(self.settings.count)
        )


class GraphModality(Modality):
    name = "graph"
    unit = "graphs"
    files = "graphs"
    holds = "graphs"
    example = "TUDataset/MUTAG"
    pipelines = ("perturb",)
    default_views = "perturb"
    networks: ClassVar[tuple[str, ...]] = tuple(GRAPH_NETWORKS)
    default_network = "gin"
    smallest_network = "gin-small"
    one_shape = False  # a batch is as wide as its largest graph
    baseline_titles: ClassVar[Mapping[str, str]] = {"labels": "how often each node label occurs"}

    def claims(self, spec: str) -> bool:
        folder = Path(spec)
        return folder.is_dir() and tu_name(folder) is not None

    def open_whole(self, spec: str, options: Mapping[str, Any]) -> Graphs:
        read = read_tu(Path(spec), spec)
        labels = read.labels
        graphs = read.graphs if read.has_labels else [_by_degree(graph) for graph in read.graphs]
        return _graphs(spec, graphs, labels, read.classes, read.paths)

    def convert(self, item: Any, options: Mapping[str, Any]) -> Decoded | None:
        """torch_geometric's `Data`: `x` of one-hot labels (the highest counts), `edge_index` in both directions."""
        edges = getattr(item, "edge_index", None)
        if not isinstance(edges, Tensor):
            return None
        count = int(item.num_nodes)
        x = getattr(item, "x", None)
        ends = edges.detach().cpu().numpy().T.astype(np.int64)
        if not count or (len(ends) and not (ends.min() >= 0 and ends.max() < count)):
            raise Unusable("a graph without nodes, or with an edge to a node that it has not")
        whole = Graph(np.zeros(count, dtype=np.int64), ends)
        graph = _by_degree(whole) if x is None else Graph(x.detach().cpu().argmax(dim=1).numpy(), ends)
        return Decoded(graph, count, graph.labels.nbytes + graph.edges.nbytes)

    def collect(self, found: Found, options: Mapping[str, Any]) -> Graphs:
        graphs = found.held or [found.read(place) for place in range(len(found.paths))]
        return Graphs(**found.common(), store=Held(graphs))

    def describe(self, data: Graphs, size: int | None) -> GraphDescription:
        graphs = data.load(np.arange(len(data)))
        labels = 1 + max(int(graph.labels.max()) for graph in graphs)
        return GraphDescription(data.fingerprint, len(data), labels, max(len(g.labels) for g in graphs))

    def typical(self, instances: int) -> GraphDescription:
        return GraphDescription("", instances, 7, 28)

    def description(self, plain: Mapping[str, Any]) -> GraphDescription:
        return GraphDescription.from_plain(plain)

    def check_alike(self, data: Graphs, known: GraphDescription, where: str) -> None:
        """Any graphs can be shown; labels that training never met are as good as hidden."""

    def check_views(self, choice: Choice) -> dict[str, Any]:
        return chosen_views(Perturb, choice)

    def views(self, choice: Choice, known: GraphDescription, device: torch.device) -> Perturbed:
        return Perturbed(Perturb(**{key: choice[key] for key in settable(Perturb)}), device)

    def plain(self, choice: Choice, known: GraphDescription, device: torch.device) -> WholeGraph:
        return WholeGraph(device)

    def inputs(self, network: str, choice: Choice, known: GraphDescription) -> InputSpec:
        return InputSpec(
            lambda view: graph_network(network, known.node_labels),
            ((known.most_nodes, 3),) * choice["count"],
            {"instances": known.instances, "nodes": known.most_nodes},
        )

    def baselines(self, plain: MakeViews) -> dict[str, Features]:
        return {"labels": label_counts}

    def measures(self) -> dict[str, Measure]:
        return {"svm": svm_measure(WholeGraph(torch.device("cpu")))}

    def pictures(self, loaded: list[Graph], known: GraphDescription) -> list[Image.Image]:
        return [drawn(graph, known.node_labels) for graph in loaded]

    def view_pictures(self, views: MakeViews, shown: Tensor, known: GraphDescription) -> list[Image.Image]:
        return [drawn(unpacked(table), known.node_labels) for table in shown.detach().cpu().numpy()]


def _by_degree(graph: Graph) -> Graph:
    degree = np.bincount(graph.edges[:, 0], minlength=len(graph.labels))
    return Graph(np.minimum(degree, MOST_DEGREE).astype(np.int64), graph.edges)


def _graphs(
    name: str,
    graphs: Sequence[Graph],
    labels: np.ndarray | None,
    classes: tuple[str, ...],
    paths: Sequence[str],
) -> Graphs:
    digest = hashlib.sha256()
    for graph in graphs:
        for part in (graph.labels, graph.edges):
            digest.update(repr(part.shape).encode() + np.ascontiguousarray(part.astype("<i8")).tobytes())
    digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
    if any((graph.labels < 0).any() for graph in graphs):
        raise UserError(f"data {name!r}: a node has a label below 0, which means hidden ({HIDDEN}).")
    return Graphs(
        name=name,
        fingerprint=digest.hexdigest(),
        labels=labels,
        classes=classes,
        paths=tuple(paths),
        store=Held(list(graphs)),
        rows=np.arange(len(graphs)),
        unlabelled="" if labels is not None else "the folder has no file of graph labels",
    )


GRAPH = GraphModality()
