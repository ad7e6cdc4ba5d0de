"""TU folders (Morris et al. 2020): all graphs of a set as a few text files, a line for each edge, node or graph, counted from 1."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearfar.errors import UserError
from nearfar.modalities.graph.views import Graph
from nearfar.system.untrusted import read_text

_LARGEST = 2**53  # of any number in the files
EDGES, NODES, CLASSES, NODE_LABELS = "A", "graph_indicator", "graph_labels", "node_labels"


@dataclass(frozen=True)
class Read:
    """What a folder holds; without node labels every node has label 0."""

    graphs: list[Graph]
    has_labels: bool
    labels: np.ndarray | None
    classes: tuple[str, ...]
    paths: tuple[str, ...]


def tu_name(folder: Path) -> tuple[Path, str] | None:
    """The folder with the files and the set's name in them; None if it is no TU folder. torch_geometric keeps them in `raw`."""
    for place in (folder, folder / "raw"):
        for file in sorted(place.glob(f"*_{NODES}.txt")) if place.is_dir() else []:
            name = file.name.removesuffix(f"_{NODES}.txt")
            if (place / f"{name}_{EDGES}.txt").exists():
                return place, name
    return None


def read_tu(folder: Path, spec: str) -> Read:
    """Everything that is read of a TU folder, or one sentence about the first file that does not fit."""
    found = tu_name(folder)
    if found is None:
        raise UserError(
            f"data {spec!r}: no files NAME_{EDGES}.txt and NAME_{NODES}.txt; expected a TU folder of graphs."
        )
    place, name = found
    graph_of = _numbers(place / f"{name}_{NODES}.txt", 1, spec)[:, 0]
    edges = _numbers(place / f"{name}_{EDGES}.txt", 2, spec)
    count = int(graph_of.max(initial=0))
    if not count or (graph_of < 1).any() or (np.diff(graph_of) < 0).any():
        raise UserError(
            f"data {spec!r}: {name}_{NODES}.txt must name a graph from 1 up for each node, in rising order."
        )
    if len(edges) and not (edges.min() >= 1 and edges.max() <= len(graph_of)):
        raise UserError(
            f"data {spec!r}: {name}_{EDGES}.txt names node {edges.max() if edges.min() >= 1 else edges.min()}; there are nodes 1 to {len(graph_of)}."
        )
    if count > len(graph_of):  # a number that large would also be memory for as many graphs
        raise UserError(
            f"data {spec!r}: {name}_{NODES}.txt names graph {count}, but there are {len(graph_of)} nodes; every graph needs one."
        )
    labelled = place / f"{name}_{NODE_LABELS}.txt"
    node = _codes(_numbers(labelled, 1, spec)[:, 0]) if labelled.exists() else np.zeros_like(graph_of)
    if len(node) != len(graph_of):
        raise UserError(
            f"data {spec!r}: {len(node)} node labels for {len(graph_of)} nodes; expected one for each."
        )
    labels, classes = _classes(place / f"{name}_{CLASSES}.txt", count, spec)
    graphs = _split(graph_of - 1, node, edges - 1, count, spec)
    return Read(graphs, labelled.exists(), labels, classes, tuple(f"{name}#{n}" for n in range(count)))


def _split(graph_of: np.ndarray, node: np.ndarray, edges: np.ndarray, count: int, spec: str) -> list[Graph]:
    """The graphs one by one, every edge in both directions and once."""
    if (graph_of[edges[:, 0]] != graph_of[edges[:, 1]]).any():
        wrong = int(np.flatnonzero(graph_of[edges[:, 0]] != graph_of[edges[:, 1]])[0])
        raise UserError(f"data {spec!r}: edge {wrong + 1} joins nodes of two graphs.")
    both = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0)
    first = np.searchsorted(graph_of, np.arange(count + 1))
    at = np.searchsorted(both[:, 0], first)
    if (np.diff(first) == 0).any():
        raise UserError(
            f"data {spec!r}: graph {int(np.flatnonzero(np.diff(first) == 0)[0]) + 1} has no nodes."
        )
    return [Graph(node[first[g] : first[g + 1]], both[at[g] : at[g + 1]] - first[g]) for g in range(count)]


def _classes(file: Path, count: int, spec: str) -> tuple[np.ndarray | None, tuple[str, ...]]:
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
    if any(abs(number) > _LARGEST for row in rows for number in row):
        raise UserError(
            f"data {spec!r}: {file.name} holds a number beyond {_LARGEST}; expected smaller ones."
        )
    return np.array(rows, dtype=np.int64).reshape(-1, columns)
