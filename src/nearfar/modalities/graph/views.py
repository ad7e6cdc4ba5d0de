"""Views of graphs: each of a graph's views is one change, drawn from those allowed (You et al. 2020, sec.
3.1).

    drop       a share of the nodes, with their edges
    edges      a share of the edges, put between other nodes
    mask       the labels of a share of the nodes, hidden
    subgraph   a random walk from a random node, until all but a share of the nodes are there
    identity   nothing

Every draw is a function of (seed, epoch, instance, view). A view is a table of records: nodes with their
labels, then edges.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from nearfar.core.abstract import AbstractViews, AbstractViewSettings
from nearfar.core.randomness import uniforms
from nearfar.errors import UserError
from nearfar.modalities.base import PlainView
from nearfar.modalities.graph.data import HIDDEN, Graph, GraphDescription
from nearfar.parts.encoders.graphs import EDGE, NODE, NOTHING

Change = Callable[[Graph, float, np.random.Generator], Graph]


def _remaining(count: int, share: float) -> int:
    """`count` without `share` of it, at least one."""
    return max(1, count - int(count * share))


def drop(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    count = len(graph.labels)
    return graph.subgraph(np.sort(draw.permutation(count)[: _remaining(count, share)]))


def perturb_edges(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    """Undirected edges keep both of their directions."""
    forward = graph.edges[graph.edges[:, 0] <= graph.edges[:, 1]].copy()
    moved = draw.permutation(len(forward))[: int(len(forward) * share)]
    forward[moved] = draw.integers(len(graph.labels), size=(len(moved), 2))
    backward = forward[forward[:, 0] != forward[:, 1]][:, ::-1]
    return Graph(graph.labels, np.concatenate([forward, backward]))


def mask(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    labels = graph.labels.copy()
    labels[draw.permutation(len(labels))[: int(len(labels) * share)]] = HIDDEN
    return Graph(labels, graph.edges)


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


class Perturb(AbstractViewSettings):
    """`count` views of a graph, each under one of `changes`, which takes away or alters `share` of it."""

    def __init__(
        self,
        changes: list[str] = list(ALL),  # noqa: B006
        share: float = 0.2,
        count: int = 2,
        symmetric: bool = True,
    ) -> None:
        if not changes or any(name not in CHANGES for name in changes):
            raise UserError(f"views.changes was {changes}; expected some of {', '.join(CHANGES)}")
        if not 0 <= share < 1:
            raise UserError(f"views.share was {share:g}; it must lie in [0, 1)")
        if not 1 <= count <= 16:
            raise UserError(f"views.count was {count}; expected a whole number from 1 to 16")
        self.changes, self.share, self.count, self.symmetric = tuple(changes), share, count, symmetric

    def training(self, description: GraphDescription, device: torch.device) -> "Perturbed":
        return Perturbed(self, device)

    def plain_view(self, description: GraphDescription, device: torch.device) -> "WholeGraph":
        return WholeGraph(device)

    def view(
        self, graphs: Sequence[Graph], seed: int, epoch: int, index: np.ndarray, view: int
    ) -> list[Graph]:
        """View number `view` of the graphs."""
        words = (uniforms(seed, epoch, index, view, 2, "graph") * 2.0**53).astype(np.uint64)
        return [self._changed(graph, key) for graph, key in zip(graphs, words, strict=True)]

    def _changed(self, graph: Graph, key: np.ndarray) -> Graph:
        draw = np.random.Generator(np.random.Philox(key=key))
        return CHANGES[self.changes[draw.integers(len(self.changes))]](graph, self.share, draw)


class WholeGraph(PlainView):
    """Unchanged graphs: the view of evaluation."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __repr__(self) -> str:
        return "WholeGraph()"

    def __call__(self, loaded: list[Graph], seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        return (packed(loaded, _records(loaded)).to(self.device),)


class Perturbed(AbstractViews, WholeGraph):
    """The views of training: view v of graph i in epoch e is a function of (seed, e, i, v) and the graph."""

    def __init__(self, settings: Perturb, device: torch.device) -> None:
        super().__init__(device)
        self.options, self.count = settings, settings.count

    def __call__(self, loaded: list[Graph], seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        records = _records(loaded)  # the same for all views, so that they share a forward pass
        return tuple(
            packed(self.options.view(loaded, seed, epoch, index, view), records).to(self.device)
            for view in range(self.count)
        )


def packed(graphs: Sequence[Graph], records: int) -> Int[Tensor, "graph record 3"]:
    """Graphs as tables of this many records (see `encoders.graphs`)."""
    table = np.zeros((len(graphs), records, 3), dtype=np.int64)
    table[..., 0] = NOTHING
    for row, graph in zip(table, graphs, strict=True):
        nodes, total = len(graph.labels), len(graph.labels) + len(graph.edges)
        row[:nodes, 0], row[:nodes, 1] = NODE, graph.labels
        row[nodes:total, 0], row[nodes:total, 1:] = EDGE, graph.edges
    return torch.from_numpy(table)


def unpacked(table: Int[np.ndarray, "record 3"]) -> Graph:
    """The inverse of `packed` for one graph."""
    return Graph(table[table[:, 0] == NODE, 1], table[table[:, 0] == EDGE, 1:])


def _records(graphs: Sequence[Graph]) -> int:
    """Records of the largest graph, with room for every edge in both directions."""
    return max(len(graph.labels) + 2 * len(graph.edges) for graph in graphs)
