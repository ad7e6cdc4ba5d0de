"""The study of graphs on two kinds of rings that differ only in their node labels."""

from pathlib import Path

import pytest

from nearfar.errors import UserError
from nearfar.studies.graphs import BASELINES, METHODS, NODE_BASELINES, NODE_METHODS
from nearfar.studies.run import find_study, run_study


def rings(folder: Path, count: int = 8, size: int = 4) -> Path:
    """A TU folder of `count` rings; those of class 1 have nodes of label 1."""
    folder.mkdir()
    nodes = [(graph, graph * size + place) for graph in range(count) for place in range(size)]
    edges = [(node, graph * size + (node + step) % size) for graph, node in nodes for step in (1, size - 1)]
    files = {
        "A": [f"{a + 1}, {b + 1}" for a, b in edges],
        "graph_indicator": [str(graph + 1) for graph, _ in nodes],
        "node_labels": [str(graph % 2) for graph, _ in nodes],
        "graph_labels": [str(graph % 2) for graph in range(count)],
    }
    for key, lines in files.items():
        (folder / f"{folder.name}_{key}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_every_way_is_judged_by_the_same_folds(tmp_path: Path) -> None:
    data = rings(tmp_path / "RINGS")
    words = [f"data={data}", "seeds=1", "epochs=1"]
    record = run_study(find_study("graphs"), tmp_path / "out", words)
    accuracy = {row.label: row.ours for row in record.result.tables[0].rows}
    assert list(accuracy) == [*BASELINES, *METHODS]
    # label counts are (4, 0) or (0, 4): any kernel of them, and Weisfeiler-Lehman's, separates the classes
    assert accuracy["node labels"] == accuracy["Weisfeiler-Lehman"] == 100.0
    assert all(0.0 <= float(value or 0.0) <= 100.0 for value in accuracy.values())
    assert len(record.result.remarks) == len(METHODS)
    assert all("1 seed (a single difference: no interval)" in remark for remark in record.result.remarks)
    second = run_study(find_study("graphs"), tmp_path / "out", words)
    assert second.result.tables == record.result.tables


def test_nodes_are_classified_by_what_the_network_is_not_shown(tmp_path: Path) -> None:
    data = rings(tmp_path / "RINGS", count=24)
    words = [f"data={data}", "seeds=1", "epochs=1", "inputs=degree"]
    record = run_study(find_study("nodes"), tmp_path / "out", words)
    accuracy = {row.label: float(row.ours or 0.0) for row in record.result.tables[0].rows}
    assert list(accuracy) == [*NODE_BASELINES, *NODE_METHODS]
    # every node has degree 2, so nothing that sees the degree alone can tell the two classes apart
    assert all(0.0 < value < 65.0 for value in accuracy.values())
    assert len(record.result.remarks) == len(NODE_METHODS) * len(NODE_BASELINES)
    with pytest.raises(UserError, match=r"inputs was 'labels'; .* has no node labels beside it to predict"):
        run_study(find_study("nodes"), tmp_path / "shown", [*words[:-1], "inputs=labels"])
