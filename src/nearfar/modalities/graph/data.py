"""Graphs: TU folders (Morris et al. 2020) or torch_geometric's data sets.

A TU folder holds all graphs of a set in a few text files, a line for each edge, node or graph, counted from
1. `inputs` selects what a network is shown of a node: label, degree, attributes. Node labels that are
not shown are classes of nodes, which `evaluate` predicts. Attributes of edges are not read.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.errors import UserError, error_reason
from nearfar.modalities.base import AbstractReader, Choice, Collection, Decoded, StandardisedDescription
from nearfar.modalities.dataset import DataSet, RowStore, Unusable
from nearfar.modalities.files import Labels, set_fields
from nearfar.modalities.vectors.data import mean_and_std
from nearfar.system.untrusted import read_text

MAX_NUMBER = 2**53  # of any number in the files
MAX_DEGREE = 64  # where nodes have no labels, the label is their degree, up to this
HIDDEN = -1  # label of a node whose label is hidden
EDGES, NODES, CLASSES, NODE_LABELS = "A", "graph_indicator", "graph_labels", "node_labels"
ATTRIBUTES, EDGE_LABELS = "node_attributes", "edge_labels"
# what is shown of a node; auto: labels, or attributes, or degree, the first of them that there is
Inputs = Literal["auto", "labels", "degree", "attributes", "labels+attributes", "degree+attributes"]


@dataclass(frozen=True, eq=False)
class Graph:
    """Labels of the nodes, and (from, to) of every edge in both directions; attributes of the nodes, labels of
    the edges, and classes of the nodes, where there are any. No network is shown the classes."""

    labels: Int[np.ndarray, "node"]
    edges: Int[np.ndarray, "edge 2"]
    attributes: Float[np.ndarray, "node attribute"] | None = None
    edge_labels: Int[np.ndarray, "edge"] | None = None
    classes: Int[np.ndarray, "node"] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return all(np.array_equal(a, b) if a is not None and b is not None else a is b for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]  # arrays may be written to

    def subgraph(self, nodes: Int[np.ndarray, "some"]) -> "Graph":
        """The graph of some of the nodes, in this order."""
        place = np.full(len(self.labels), -1)
        place[nodes] = np.arange(len(nodes))
        ends = place[self.edges]
        inside = (ends >= 0).all(axis=1)
        return Graph(
            self.labels[nodes],
            ends[inside],
            None if self.attributes is None else self.attributes[nodes],
            None if self.edge_labels is None else self.edge_labels[inside],
            None if self.classes is None else self.classes[nodes],
        )

    def with_edges(self, rows: Int[np.ndarray, "some"] | np.ndarray) -> "Graph":
        """The graph of all nodes and some of the directed edges."""
        labels = None if self.edge_labels is None else self.edge_labels[rows]
        return replace(self, edges=self.edges[rows], edge_labels=labels)

    def to_bytes(self) -> bytes:
        """All that it holds, for fingerprints."""
        arrays = [array for array in vars(self).values() if array is not None]
        kinds = ["<f4" if array.dtype.kind == "f" else "<i8" for array in arrays]
        return b"".join(
            repr(array.shape).encode() + np.ascontiguousarray(array.astype(kind)).tobytes()
            for array, kind in zip(arrays, kinds, strict=True)
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.frombuffer(self.to_bytes(), dtype=np.uint8).astype(dtype or np.uint8)

    def with_inputs(self, inputs: Inputs, labelled: bool) -> "Graph":
        """The graph with the inputs that `inputs` selects; `labelled`: whether they have labels at all."""
        if inputs == "auto":
            inputs = "labels" if labelled else "degree" if self.attributes is None else "attributes"
        names = inputs.split("+")
        if "labels" in names and not labelled:
            raise Unusable(f"no node labels, but views.inputs is {inputs}")
        if "attributes" in names and self.attributes is None:
            raise Unusable(f"no node attributes, but views.inputs is {inputs}")
        classes, labels = self.classes, self.labels
        if "labels" not in names:
            classes = labels if labelled and classes is None else classes
            degree = np.minimum(np.bincount(self.edges[:, 0], minlength=len(labels)), MAX_DEGREE)
            labels = degree.astype(np.int64) if "degree" in names else np.zeros_like(labels)
        attributes = self.attributes if "attributes" in names else None
        return replace(self, labels=labels, attributes=attributes, classes=classes)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Graphs(DataSet):
    """Opened graphs: `load` returns a list of them."""

    modality: ClassVar[str] = "graph"
    unit: ClassVar[str] = "graphs"
    min_instances: ClassVar[int] = 1  # whose nodes are contrasted with one another


@dataclass(frozen=True)
class GraphDescription(StandardisedDescription):
    """Any graph can be shown to a network; labels that were not in the training data count as hidden. `mean`
    and `std` are those of node attributes."""

    node_labels: int  # number of different labels
    most_nodes: int  # of the largest graph
    edge_labels: int | None = None  # number of different ones; None: edges have no labels

    def check_alike(self, data: Graphs, run_name: str) -> None:
        attributes = data.load(np.arange(1))[0].attributes
        width = 0 if attributes is None else attributes.shape[1]
        self.check_width(data, width, "node attributes", run_name)


class GraphReader(AbstractReader):
    description_type = GraphDescription
    files = "graphs"

    def options(self, *, inputs: Inputs = "auto", **values: Any) -> Mapping[str, Any]:
        check_inputs(inputs)
        return {"inputs": inputs, **super().options(**values)}

    def options_for(self, views: Choice, size: int | None, description: Any) -> dict[str, Any]:
        return {"inputs": views["inputs"]} if "inputs" in views else {}

    def claims(self, spec: str) -> bool:
        folder = Path(spec)
        return folder.is_dir() and tu_files(folder) is not None

    def open_spec(self, spec: str, options: Mapping[str, Any]) -> Graphs:
        return read_tu(Path(spec), spec, options["inputs"])

    def convert(self, item: Any, options: Mapping[str, Any]) -> Decoded | None:
        """torch_geometric's `Data`: `edge_index` in both directions; `x` of one-hot labels, or of attributes;
        `y` with a class for each node, if it has as many rows as there are nodes."""
        edges = getattr(item, "edge_index", None)
        if not isinstance(edges, Tensor):
            return None
        count, x, y = int(item.num_nodes), item.x, item.y
        ends = edges.detach().cpu().numpy().T.astype(np.int64)
        if not count or (len(ends) and not (ends.min() >= 0 and ends.max() < count)):
            raise Unusable("a graph without nodes, or with an edge to a node that does not exist")
        graph, labelled = Graph(np.zeros(count, dtype=np.int64), ends), False
        if x is not None:
            rows = x.detach().cpu().numpy().reshape(count, -1).astype(np.float32)
            labelled = bool((((rows == 0) | (rows == 1)).all(axis=1) & (rows.sum(axis=1) == 1)).all())
            graph = replace(graph, **({"labels": rows.argmax(axis=1)} if labelled else {"attributes": rows}))
        if isinstance(y, Tensor) and y.ndim and len(y) == count > 1 and not y.is_floating_point():
            graph = replace(graph, classes=y.detach().cpu().numpy().reshape(count, -1)[:, 0].astype(np.int64))
        graph = graph.with_inputs(options["inputs"], labelled)
        return Decoded(graph, (count,), len(graph.to_bytes()))

    def collect(self, collection: Collection, options: Mapping[str, Any]) -> Graphs:
        return Graphs(**collection.common(), store=RowStore(collection.all_contents().__getitem__))

    def describe(self, data: Graphs, size: int | None) -> GraphDescription:
        graphs = data.load(np.arange(len(data)))
        edge_labels = [graph.edge_labels.max(initial=0) for graph in graphs if graph.edge_labels is not None]
        mean: tuple[float, ...] = ()
        std: tuple[float, ...] = ()
        if graphs[0].attributes is not None:
            attributes = [graph.attributes for graph in graphs if graph.attributes is not None]
            mean, std = mean_and_std(np.concatenate(attributes))
        return GraphDescription(
            data.fingerprint,
            len(data),
            mean,
            std,
            1 + max(int(graph.labels.max()) for graph in graphs),
            max(len(graph.labels) for graph in graphs),
            1 + int(max(edge_labels)) if edge_labels else None,
        )

    def example_description(self, instances: int) -> GraphDescription:
        return GraphDescription("", instances, (), (), 7, 28)


def check_inputs(inputs: str) -> None:
    if inputs not in get_args(Inputs):
        raise UserError(f"views.inputs was {inputs!r}; expected one of {', '.join(get_args(Inputs))}")


def tu_files(folder: Path) -> tuple[Path, str] | None:
    """The folder with the files (or its `raw`) and the name of the set; None if it is not a TU folder."""
    for place in (folder, folder / "raw"):
        for file in sorted(place.glob(f"*_{NODES}.txt")) if place.is_dir() else []:
            name = file.name.removesuffix(f"_{NODES}.txt")
            if (place / f"{name}_{EDGES}.txt").exists():
                return place, name
    return None


def read_tu(folder: Path, spec: str, inputs: Inputs = "auto") -> Graphs:
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
    labels = _rows(place / f"{name}_{NODE_LABELS}.txt", int, len(graph_of), "nodes", spec)
    attributes = _rows(place / f"{name}_{ATTRIBUTES}.txt", float, len(graph_of), "nodes", spec)
    edge_labels = _rows(place / f"{name}_{EDGE_LABELS}.txt", int, len(edges), "edges", spec)
    nodes = Graph(
        np.zeros_like(graph_of) if labels is None else _codes(labels[:, 0]),
        edges - 1,
        None if attributes is None else attributes.astype(np.float32),
        None if edge_labels is None else _codes(edge_labels[:, 0]),
    )
    try:
        graphs = [
            graph.with_inputs(inputs, labels is not None)
            for graph in _split(graph_of - 1, nodes, count, spec)
        ]
    except Unusable as problem:
        raise UserError(f"data {spec!r}: {problem}.") from None
    labelled = _classes(place / f"{name}_{CLASSES}.txt", count, spec)
    digest = hashlib.sha256()
    for graph in graphs:
        digest.update(graph.to_bytes())
    paths = [f"{name}#{number}" for number in range(count)]
    without = "the folder has no file of graph labels"
    return Graphs(
        **set_fields(spec, Graphs.unit, labelled, paths, digest, without), store=RowStore(graphs.__getitem__)
    )


def _split(graph_of: np.ndarray, joined: Graph, count: int, spec: str) -> list[Graph]:
    """The graphs one by one, every edge in both directions and once."""
    edges = joined.edges
    if (graph_of[edges[:, 0]] != graph_of[edges[:, 1]]).any():
        wrong = int(np.flatnonzero(graph_of[edges[:, 0]] != graph_of[edges[:, 1]])[0])
        raise UserError(f"data {spec!r}: edge {wrong + 1} joins nodes of two graphs.")
    directed, rows = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0, return_index=True)
    edge_labels = None if joined.edge_labels is None else joined.edge_labels[rows % max(1, len(edges))]
    nodes = np.searchsorted(graph_of, np.arange(count + 1))  # where the nodes of each graph begin
    starts = np.searchsorted(directed[:, 0], nodes)  # where its edges begin
    if (np.diff(nodes) == 0).any():
        raise UserError(
            f"data {spec!r}: graph {int(np.flatnonzero(np.diff(nodes) == 0)[0]) + 1} has no nodes."
        )

    def part(rows: np.ndarray | None, bounds: np.ndarray, g: int) -> Any:
        return None if rows is None else rows[bounds[g] : bounds[g + 1]]

    return [
        Graph(
            part(joined.labels, nodes, g),
            part(directed, starts, g) - nodes[g],
            part(joined.attributes, nodes, g),
            part(edge_labels, starts, g),
            part(joined.classes, nodes, g),
        )
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


def _rows(file: Path, kind: type[int] | type[float], count: int, unit: str, spec: str) -> np.ndarray | None:
    """The numbers of a file with a line for each of `count` nodes or edges; None if the file is missing."""
    if not file.exists():
        return None
    rows = _numbers(file, 1 if kind is int else None, spec, kind)
    if len(rows) != count:
        raise UserError(
            f"data {spec!r}: {file.name} has {len(rows)} lines for {count} {unit}; expected one for each."
        )
    return rows


def _numbers(file: Path, columns: int | None, spec: str, kind: type[int] | type[float] = int) -> np.ndarray:
    """The table in a file; columns None: as many as its first line has."""
    try:
        lines = [line for line in read_text(file).splitlines() if line.strip()]
        rows = [[kind(part) for part in line.split(",")] for line in lines]
    except (ValueError, OSError) as problem:
        raise UserError(f"data {spec!r}: {file.name} cannot be read: {error_reason(problem)}.") from None
    columns = len(rows[0]) if columns is None and rows else columns or 1
    if any(len(row) != columns for row in rows):
        numbers = "whole numbers" if kind is int else "numbers"
        raise UserError(
            f"data {spec!r}: {file.name} must hold {columns} {numbers} in each line, joined by commas."
        )
    if any(not abs(number) <= MAX_NUMBER for row in rows for number in row):
        raise UserError(
            f"data {spec!r}: {file.name} holds a number beyond {MAX_NUMBER}; expected smaller ones."
        )
    return np.array(rows, dtype=np.int64 if kind is int else np.float64).reshape(-1, columns)
