"""Graphs: TU folders (Morris et al. 2020) or torch_geometric's data sets.

A TU folder holds all graphs of a set in a few text files, a line for each edge, node or graph, counted from
1. A node is its label; where nodes have no labels, its degree. Labels of edges and attributes of nodes are
not read.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int
from torch import Tensor

from nearfar.errors import UserError
from nearfar.modalities.base import AbstractReader, Collection, Decoded, Description
from nearfar.modalities.dataset import DataSet, Unusable
from nearfar.modalities.labels import Labels, set_fields
from nearfar.system.untrusted import read_text

MAX_NUMBER = 2**53  # of any number in the files
MAX_DEGREE = 64  # where nodes have no labels, the label is their degree, up to this
HIDDEN = -1  # label of a node whose label is hidden
EDGES, NODES, CLASSES, NODE_LABELS = "A", "graph_indicator", "graph_labels", "node_labels"


@dataclass(frozen=True, eq=False)
class Graph:
    """Labels of the nodes, and (from, to) of every edge in both directions."""

    labels: Int[np.ndarray, "node"]
    edges: Int[np.ndarray, "edge 2"]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return np.array_equal(self.labels, other.labels) and np.array_equal(self.edges, other.edges)

    __hash__ = None  # type: ignore[assignment]  # arrays may be written to

    def subgraph(self, nodes: Int[np.ndarray, "some"]) -> "Graph":
        """The graph of some of the nodes, in this order."""
        place = np.full(len(self.labels), -1)
        place[nodes] = np.arange(len(nodes))
        ends = place[self.edges]
        return Graph(self.labels[nodes], ends[(ends >= 0).all(axis=1)])

    def labelled_by_degree(self) -> "Graph":
        degree = np.bincount(self.edges[:, 0], minlength=len(self.labels))
        return Graph(np.minimum(degree, MAX_DEGREE).astype(np.int64), self.edges)


@dataclass(frozen=True)
class GraphList:
    """Graphs in memory."""

    graphs: Sequence[Graph]

    def take(self, rows: Int[np.ndarray, "graph"]) -> list[Graph]:
        return [self.graphs[row] for row in rows]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Graphs(DataSet):
    """Opened graphs: `load` returns a list of them."""

    modality: ClassVar[str] = "graph"
    unit: ClassVar[str] = "graphs"


@dataclass(frozen=True)
class GraphDescription(Description):
    """Any graph can be shown to a network; labels that were not in the training data count as hidden."""

    node_labels: int  # number of different labels
    most_nodes: int  # of the largest graph


class GraphReader(AbstractReader):
    description_type = GraphDescription
    files = "graphs"

    def claims(self, spec: str) -> bool:
        folder = Path(spec)
        return folder.is_dir() and tu_files(folder) is not None

    def open_spec(self, spec: str, options: Mapping[str, Any]) -> Graphs:
        return read_tu(Path(spec), spec)

    def convert(self, item: Any, options: Mapping[str, Any]) -> Decoded | None:
        """torch_geometric's `Data`: `x` of one-hot labels (the highest counts), `edge_index` in both
        directions."""
        edges = getattr(item, "edge_index", None)
        if not isinstance(edges, Tensor):
            return None
        count, x = int(item.num_nodes), item.x
        ends = edges.detach().cpu().numpy().T.astype(np.int64)
        if not count or (len(ends) and not (ends.min() >= 0 and ends.max() < count)):
            raise Unusable("a graph without nodes, or with an edge to a node that does not exist")
        if x is None:
            graph = Graph(np.zeros(count, dtype=np.int64), ends).labelled_by_degree()
        else:
            graph = Graph(x.detach().cpu().argmax(dim=1).numpy(), ends)
        return Decoded(graph, (count,), graph.labels.nbytes + graph.edges.nbytes)

    def collect(self, collection: Collection, options: Mapping[str, Any]) -> Graphs:
        return Graphs(**collection.common(), store=GraphList(collection.all_contents()))

    def describe(self, data: Graphs, size: int | None) -> GraphDescription:
        graphs = data.load(np.arange(len(data)))
        labels = 1 + max(int(graph.labels.max()) for graph in graphs)
        return GraphDescription(data.fingerprint, len(data), labels, max(len(g.labels) for g in graphs))

    def example_description(self, instances: int) -> GraphDescription:
        return GraphDescription("", instances, 7, 28)


def tu_files(folder: Path) -> tuple[Path, str] | None:
    """The folder with the files and the name of the set; None if it is no TU folder. torch_geometric keeps
    them in `raw`."""
    for place in (folder, folder / "raw"):
        for file in sorted(place.glob(f"*_{NODES}.txt")) if place.is_dir() else []:
            name = file.name.removesuffix(f"_{NODES}.txt")
            if (place / f"{name}_{EDGES}.txt").exists():
                return place, name
    return None


def read_tu(folder: Path, spec: str) -> Graphs:
    """The graphs of a TU folder, or an error about the first file that does not fit.

    torch_geometric's own reader checks nothing: a node label of 10^12 would allocate as many columns,
    isolated nodes at the end are lost where nodes have no labels, and edges between two graphs are accepted.
    """
    files = tu_files(folder)
    if files is None:
        raise UserError(
            f"data {spec!r}: no files NAME_{EDGES}.txt and NAME_{NODES}.txt; expected a TU folder of graphs."
        )
    place, name = files
    graph_of = _numbers(place / f"{name}_{NODES}.txt", 1, spec)[:, 0]
    edges = _numbers(place / f"{name}_{EDGES}.txt", 2, spec)
    count = int(graph_of.max(initial=0))
    if not count or (graph_of < 1).any() or (np.diff(graph_of) < 0).any():
        raise UserError(
            f"data {spec!r}: {name}_{NODES}.txt must name a graph from 1 up for each node, in rising order."
        )
    wrong = edges[(edges < 1) | (edges > len(graph_of))]
    if len(wrong):
        raise UserError(
            f"data {spec!r}: {name}_{EDGES}.txt names node {wrong[0]}; there are nodes 1 to {len(graph_of)}."
        )
    if count > len(graph_of):
        raise UserError(
            f"data {spec!r}: {name}_{NODES}.txt names graph {count}, but there are {len(graph_of)} nodes; "
            "every graph needs one."
        )
    file = place / f"{name}_{NODE_LABELS}.txt"
    node_labels = _codes(_numbers(file, 1, spec)[:, 0]) if file.exists() else np.zeros_like(graph_of)
    if len(node_labels) != len(graph_of):
        raise UserError(
            f"data {spec!r}: {len(node_labels)} node labels for {len(graph_of)} nodes; expected one for each."
        )
    graphs = _split(graph_of - 1, node_labels, edges - 1, count, spec)
    if not file.exists():
        graphs = [graph.labelled_by_degree() for graph in graphs]
    labelled = _classes(place / f"{name}_{CLASSES}.txt", count, spec)
    digest = hashlib.sha256()
    for graph in graphs:
        for part in (graph.labels, graph.edges):
            digest.update(repr(part.shape).encode() + np.ascontiguousarray(part.astype("<i8")).tobytes())
    paths = [f"{name}#{number}" for number in range(count)]
    without = "the folder has no file of graph labels"
    return Graphs(**set_fields(spec, Graphs.unit, labelled, paths, digest, without), store=GraphList(graphs))


def _split(graph_of: np.ndarray, labels: np.ndarray, edges: np.ndarray, count: int, spec: str) -> list[Graph]:
    """The graphs one by one, every edge in both directions and once."""
    if (graph_of[edges[:, 0]] != graph_of[edges[:, 1]]).any():
        wrong = int(np.flatnonzero(graph_of[edges[:, 0]] != graph_of[edges[:, 1]])[0])
        raise UserError(f"data {spec!r}: edge {wrong + 1} joins nodes of two graphs.")
    directed = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0)
    nodes = np.searchsorted(graph_of, np.arange(count + 1))  # where the nodes of each graph begin
    starts = np.searchsorted(directed[:, 0], nodes)  # where its edges begin
    if (np.diff(nodes) == 0).any():
        raise UserError(
            f"data {spec!r}: graph {int(np.flatnonzero(np.diff(nodes) == 0)[0]) + 1} has no nodes."
        )
    return [
        Graph(labels[nodes[g] : nodes[g + 1]], directed[starts[g] : starts[g + 1]] - nodes[g])
        for g in range(count)
    ]


def _classes(file: Path, count: int, spec: str) -> Labels:
    if not file.exists():
        return None, ()
    numbers = _numbers(file, 1, spec)[:, 0]
    if len(numbers) != count:
        raise UserError(
            f"data {spec!r}: {len(numbers)} graph labels for {count} graphs; expected one for each."
        )
    return _codes(numbers), tuple(str(value) for value in np.unique(numbers))


def _codes(values: np.ndarray) -> np.ndarray:
    """Numbers from 0 up, in the order of the values."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _numbers(file: Path, columns: int, spec: str) -> np.ndarray:
    try:
        lines = [line for line in read_text(file).splitlines() if line.strip()]
        rows = [[int(part) for part in line.split(",")] for line in lines]
    except (ValueError, OSError) as problem:
        raise UserError(f"data {spec!r}: {file.name} cannot be read: {problem}.") from None
    if any(len(row) != columns for row in rows):
        raise UserError(
            f"data {spec!r}: {file.name} must hold {columns} whole numbers in each line, joined by commas."
        )
    if any(abs(number) > MAX_NUMBER for row in rows for number in row):
        raise UserError(
            f"data {spec!r}: {file.name} holds a number beyond {MAX_NUMBER}; expected smaller ones."
        )
    return np.array(rows, dtype=np.int64).reshape(-1, columns)
