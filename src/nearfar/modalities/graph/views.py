"""Views of graphs.

`perturb`: each view is one change, drawn from those allowed (You et al. 2020, sec. 3.1).

    drop       a share of the nodes, with their edges
    edges      a share of the edges, put between other nodes
    mask       the labels and attributes of a share of the nodes, hidden
    subgraph   a random walk from a random node, until all but a share of the nodes are there
    identity   nothing

`shuffle-nodes`: the graph, and the same edges between nodes in another order (Veličković et al. 2019). `thin`: two
views without some of the edges and some of the features (Zhu et al. 2020).

Every draw is a function of (seed, epoch, instance, view). A view is a table of records: nodes with their
labels and attributes, then edges.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from nearfar.core.abstract import AbstractViews, AbstractViewSettings
from nearfar.core.method import Method
from nearfar.core.randomness import uniforms
from nearfar.errors import UserError, check_number, check_whole
from nearfar.modalities.base import AbstractNetworks, Choice, PlainView
from nearfar.modalities.graph.data import HIDDEN, Graph, GraphDescription, Graphs, Inputs, check_inputs
from nearfar.parts.encoders import GRAPH_NETWORKS, GraphNetwork, InputSpec, graph_network
from nearfar.parts.encoders.graphs import EDGE, NODE, NOTHING

Change = Callable[[Graph, float, np.random.Generator], Graph]


def _remaining(count: int, share: float) -> int:
    """`count` without `share` of it, at least one."""
    return max(1, count - int(count * share))


def drop(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    count = len(graph.labels)
    return graph.subgraph(np.sort(draw.permutation(count)[: _remaining(count, share)]))


def undirected(graph: Graph) -> Int[np.ndarray, "edge"]:
    """One of the two directions of every edge, by its row."""
    return np.flatnonzero(graph.edges[:, 0] <= graph.edges[:, 1])


def both_directions(graph: Graph) -> Graph:
    """A graph that has one direction of every edge, with the other one too."""
    backward = np.flatnonzero(graph.edges[:, 0] != graph.edges[:, 1])
    doubled = graph.with_edges(np.concatenate([np.arange(len(graph.edges)), backward]))
    ends = doubled.edges.copy()
    ends[len(graph.edges) :] = ends[len(graph.edges) :, ::-1]
    return replace(doubled, edges=ends)


def perturb_edges(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    """A moved edge keeps its label."""
    forward = graph.with_edges(undirected(graph))
    ends = forward.edges.copy()
    moved = draw.permutation(len(ends))[: int(len(ends) * share)]
    ends[moved] = draw.integers(len(graph.labels), size=(len(moved), 2))
    return both_directions(replace(forward, edges=ends))


def mask(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    """Attributes are standardised, so a hidden one is its mean."""
    hidden = draw.permutation(len(graph.labels))[: int(len(graph.labels) * share)]
    labels, attributes = graph.labels.copy(), None if graph.attributes is None else graph.attributes.copy()
    labels[hidden] = HIDDEN
    if attributes is not None:
        attributes[hidden] = 0
    return replace(graph, labels=labels, attributes=attributes)


def shuffle(graph: Graph, draw: np.random.Generator) -> Graph:
    """Other nodes at the ends of the same edges."""
    order = draw.permutation(len(graph.labels))
    attributes = None if graph.attributes is None else graph.attributes[order]
    return replace(graph, labels=graph.labels[order], attributes=attributes)


def thin(graph: Graph, edges: float, features: float, labels: int, draw: np.random.Generator) -> Graph:
    """Every edge is left out with one probability; every label and every attribute is hidden, from all nodes
    of the graph, with the other."""
    rows = undirected(graph)
    graph = both_directions(graph.with_edges(rows[draw.random(len(rows)) >= edges]))
    hidden_label = draw.random(labels) < features
    visible = (graph.labels >= 0) & (graph.labels < labels)
    hidden = visible & hidden_label[np.where(visible, graph.labels, 0)]
    attributes = graph.attributes
    if attributes is not None:
        attributes = np.where(draw.random(attributes.shape[1]) < features, np.float32(0), attributes)
    return replace(graph, labels=np.where(hidden, HIDDEN, graph.labels), attributes=attributes)


def subgraph(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    """Nodes next to those already nodes are nodes in a random order; where there is none, anywhere."""
    count = len(graph.labels)
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for a, b in graph.edges.tolist():
        neighbours[a].append(b)
    order = draw.permutation(count).tolist()
    nodes: dict[int, None] = {}
    border: list[int] = []
    while len(nodes) < _remaining(count, share):
        pool = [node for node in border if node not in nodes]
        node = pool[draw.integers(len(pool))] if pool else next(n for n in order if n not in nodes)
        nodes[node] = None
        border = [*pool, *neighbours[node]]
    return graph.subgraph(np.sort(np.fromiter(nodes, dtype=np.int64)))


def identity(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    return graph


CHANGES: dict[str, Change] = {
    "drop": drop,
    "edges": perturb_edges,
    "mask": mask,
    "subgraph": subgraph,
    "identity": identity,
}
ALL = ("drop", "edges", "mask", "subgraph")


class AbstractGraphViews(AbstractViewSettings):
    """Views that change each graph by itself. `inputs`: see `nearfar.modalities.graph.data`."""

    inputs: Inputs

    @abstractmethod
    def change(
        self, graph: Graph, view: int, description: GraphDescription, draw: np.random.Generator
    ) -> Graph:
        """View number `view` of a graph."""

    def training(self, description: GraphDescription, device: torch.device) -> "ChangedGraphs":
        return ChangedGraphs(self, description, device)

    def plain_view(self, description: GraphDescription, device: torch.device) -> "WholeGraph":
        return WholeGraph(device, description)

    def view(
        self,
        graphs: Sequence[Graph],
        seed: int,
        epoch: int,
        index: np.ndarray,
        view: int,
        description: GraphDescription,
    ) -> list[Graph]:
        """View number `view` of the graphs."""
        words = (uniforms(seed, epoch, index, view, 2, "graph") * 2.0**53).astype(np.uint64)
        draws = [np.random.Generator(np.random.Philox(key=key)) for key in words]
        return [
            self.change(graph, view, description, draw) for graph, draw in zip(graphs, draws, strict=True)
        ]


class Perturb(AbstractGraphViews):
    """`count` views of a graph, each under one of `changes`, which takes away or alters `share` of it."""

    def __init__(
        self,
        changes: list[str] = list(ALL),  # noqa: B006
        share: float = 0.2,
        count: int = 2,
        symmetric: bool = True,
        inputs: Inputs = "auto",
    ) -> None:
        if not changes or any(name not in CHANGES for name in changes):
            raise UserError(f"views.changes was {changes}; expected some of {', '.join(CHANGES)}")
        check_number("views.share", share, 0, 1, exclude_high=True)
        check_whole("views.count", count, 1, 16)
        check_inputs(inputs)
        self.changes, self.share, self.count, self.symmetric = tuple(changes), share, count, symmetric
        self.inputs = inputs

    def change(
        self, graph: Graph, view: int, description: GraphDescription, draw: np.random.Generator
    ) -> Graph:
        return CHANGES[self.changes[draw.integers(len(self.changes))]](graph, self.share, draw)


class Shuffle(AbstractGraphViews):
    """The graph, and the graph with its nodes at one another's places (Veličković et al. 2019, sec. 4.2)."""

    symmetric = False

    def __init__(self, inputs: Inputs = "auto") -> None:
        check_inputs(inputs)
        self.inputs = inputs

    def change(
        self, graph: Graph, view: int, description: GraphDescription, draw: np.random.Generator
    ) -> Graph:
        return shuffle(graph, draw) if view else graph


class Thin(AbstractGraphViews):
    """Two views of the same nodes: each edge is left out and each feature hidden by chance (Zhu et al. 2020,
    sec. 3.2.2). `edges` and `features` are the probabilities of the two views."""

    def __init__(
        self,
        edges: list[float] = [0.2, 0.4],  # noqa: B006
        features: list[float] = [0.3, 0.4],  # noqa: B006
        inputs: Inputs = "auto",
    ) -> None:
        for key, chances in (("edges", edges), ("features", features)):
            if len(chances) != 2 or any(not 0 <= chance < 1 for chance in chances):
                raise UserError(f"views.{key} was {list(chances)}; expected two numbers in [0, 1)")
        check_inputs(inputs)
        self.edges, self.features, self.inputs = tuple(edges), tuple(features), inputs

    def change(
        self, graph: Graph, view: int, description: GraphDescription, draw: np.random.Generator
    ) -> Graph:
        return thin(graph, self.edges[view], self.features[view], description.node_labels, draw)


class WholeGraph(PlainView):
    """Unchanged graphs: the view of evaluation. `description` has the statistics of node attributes."""

    def __init__(self, device: torch.device, description: GraphDescription | None = None) -> None:
        self.device, self.description = device, description

    def __repr__(self) -> str:
        return "WholeGraph()"

    def __call__(self, loaded: list[Graph], seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        graphs = self._standardised(loaded)
        return (packed(graphs, _records(graphs)).to(self.device),)

    def _standardised(self, graphs: Sequence[Graph]) -> list[Graph]:
        if self.description is None or not self.description.mean:
            return list(graphs)
        mean, std = np.array(self.description.mean), np.array(self.description.std)
        return [
            graph
            if graph.attributes is None
            else replace(graph, attributes=((graph.attributes - mean) / std).astype(np.float32))
            for graph in graphs
        ]


class ChangedGraphs(AbstractViews, WholeGraph):
    """The views of training: view v of graph i in epoch e is a function of (seed, e, i, v) and the graph."""

    def __init__(
        self, settings: AbstractGraphViews, description: GraphDescription, device: torch.device
    ) -> None:
        super().__init__(device, description)
        self.options, self.count, self.of = settings, settings.count, description

    def __call__(self, loaded: list[Graph], seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        records = _records(loaded)  # the same for all views, so that they share a forward pass
        graphs = self._standardised(loaded)
        return tuple(
            packed(self.options.view(graphs, seed, epoch, index, view, self.of), records).to(self.device)
            for view in range(self.count)
        )


def packed(graphs: Sequence[Graph], records: int) -> Int[Tensor, "graph record column"]:
    """Graphs as tables of this many records (see `encoders.graphs`)."""
    table = np.zeros(
        (len(graphs), records, 3 + max(map(_further_columns, graphs), default=0)), dtype=np.int64
    )
    table[..., 0] = NOTHING
    for row, graph in zip(table, graphs, strict=True):
        nodes, total = len(graph.labels), len(graph.labels) + len(graph.edges)
        row[:nodes, 0], row[:nodes, 1] = NODE, graph.labels
        row[nodes:total, 0], row[nodes:total, 1:3] = EDGE, graph.edges
        if graph.attributes is not None:
            bits = np.ascontiguousarray(graph.attributes, dtype=np.float32).view(np.int32)
            row[:nodes, 3 : 3 + bits.shape[1]] = bits
        if graph.edge_labels is not None:
            row[nodes:total, 3] = graph.edge_labels
    return torch.from_numpy(table)


def _further_columns(graph: Graph) -> int:
    attributes = 0 if graph.attributes is None else graph.attributes.shape[1]
    return max(attributes, int(graph.edge_labels is not None))


def unpacked(table: Int[np.ndarray, "record column"]) -> Graph:
    """Nodes and edges of one graph of `packed`."""
    return Graph(table[table[:, 0] == NODE, 1], table[table[:, 0] == EDGE, 1:3])


def _records(graphs: Sequence[Graph]) -> int:
    """Records of the largest graph, with room for every edge in both directions."""
    return max(len(graph.labels) + 2 * len(graph.edges) for graph in graphs)


# -------------------------------------------------------------------------------------------- networks


def network_for(name: str, description: GraphDescription) -> GraphNetwork:
    """A network of that name for graphs of this description."""
    return graph_network(
        name,
        description.node_labels,
        attributes=len(description.mean),
        edge_labels=description.edge_labels or 1,
    )


class GraphNetworks(AbstractNetworks):
    names = tuple(GRAPH_NETWORKS)
    default = "gin"
    smallest = "gin-small"

    def inputs(self, network: str, choice: Choice, description: GraphDescription) -> InputSpec:
        columns = 3 + max(len(description.mean), int(description.edge_labels is not None))
        return InputSpec(
            lambda view: network_for(network, description),
            ((description.most_nodes, columns),) * choice["count"],
            {"instances": description.instances, "nodes": description.most_nodes},
        )

    def check_method(self, data: Graphs, method: Method) -> None:
        """One graph is enough where its nodes are contrasted with each other or with corrupted ones."""
        encoders = method.encoders
        if len(data) < 2 and not (encoders.same_rows_in_views or encoders.gives_corrupted_keys):
            raise UserError(f"data {data.name!r}: training needs at least 2 graphs; found {len(data)}.")
