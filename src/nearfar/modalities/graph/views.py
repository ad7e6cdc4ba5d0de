"""Views of graphs: each of a graph's views is one change, drawn from those allowed (You et al. 2020, sec. 3.1).

    drop       a share of the nodes, with their edges
    edges      a share of the edges, put between other nodes
    mask       the labels of a share of the nodes, hidden
    subgraph   a random walk from a random node, until all but a share of the nodes are there
    identity   nothing

What is drawn is a function of (seed, epoch, instance, view). A graph is (label of each node, (from, to) of each edge in both directions).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from nearfar.core.randomness import uniforms
from nearfar.errors import UserError


@dataclass(frozen=True, eq=False)
class Graph:
    """Labels of the nodes, and every edge in both directions."""

    labels: Int[np.ndarray, "node"]
    edges: Int[np.ndarray, "edge 2"]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return np.array_equal(self.labels, other.labels) and np.array_equal(self.edges, other.edges)

    __hash__ = None  # type: ignore[assignment]  # arrays may be written to

    def within(self, kept: Int[np.ndarray, "some"]) -> "Graph":
        """The graph of some of the nodes, in this order."""
        place = np.full(len(self.labels), -1)
        place[kept] = np.arange(len(kept))
        ends = place[self.edges]
        return Graph(self.labels[kept], ends[(ends >= 0).all(axis=1)])


Change = Callable[[Graph, float, np.random.Generator], Graph]
HIDDEN = -1


def _fewer(count: int, share: float) -> int:
    """How many of `count` stay, at least one."""
    return max(1, count - int(count * share))


def drop(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    count = len(graph.labels)
    return graph.within(np.sort(draw.permutation(count)[: _fewer(count, share)]))


def perturb_edges(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    """Undirected edges keep both of their directions."""
    once = graph.edges[graph.edges[:, 0] <= graph.edges[:, 1]]
    moved = draw.permutation(len(once))[: int(len(once) * share)]
    once = once.copy()
    once[moved] = draw.integers(len(graph.labels), size=(len(moved), 2))
    back = once[once[:, 0] != once[:, 1]][:, ::-1]
    return Graph(graph.labels, np.concatenate([once, back]))


def mask(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    labels = graph.labels.copy()
    labels[draw.permutation(len(labels))[: int(len(labels) * share)]] = HIDDEN
    return Graph(labels, graph.edges)


def subgraph(graph: Graph, share: float, draw: np.random.Generator) -> Graph:
    """Nodes next to those already taken are taken in a random order; where there is none, anywhere."""
    count = len(graph.labels)
    near: list[list[int]] = [[] for _ in range(count)]
    for a, b in graph.edges.tolist():
        near[a].append(b)
    order = draw.permutation(count).tolist()
    taken: dict[int, None] = {}
    border: list[int] = []
    while len(taken) < _fewer(count, share):
        pool = [node for node in border if node not in taken]
        node = pool[draw.integers(len(pool))] if pool else next(n for n in order if n not in taken)
        taken[node] = None
        border = [*pool, *near[node]]
    return graph.within(np.sort(np.fromiter(taken, dtype=np.int64)))


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


class Perturb:
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

    def of(self, graphs: list[Graph], seed: int, epoch: int, index: np.ndarray, view: int) -> list[Graph]:
        words = (uniforms(seed, epoch, index, view, 2, "graph") * 2.0**53).astype(np.uint64)
        return [self._changed(graph, key) for graph, key in zip(graphs, words, strict=True)]

    def _changed(self, graph: Graph, key: np.ndarray) -> Graph:
        draw = np.random.Generator(np.random.Philox(key=key))
        return CHANGES[self.changes[draw.integers(len(self.changes))]](graph, self.share, draw)
