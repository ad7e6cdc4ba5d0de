"""Graphs: TU folders, named views, networks invariant to node order, and InfoGraph's loss written out."""

import itertools
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nearfar.core.abstract import AbstractBound
from nearfar.core.method import Method
from nearfar.core.types import Batch
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.evaluate.run import evaluate_run
from nearfar.modalities.graph import GRAPH
from nearfar.modalities.graph.data import Graph
from nearfar.modalities.graph.scores import rbf_kernel, svm_scores, weisfeiler_lehman, wl_kernel
from nearfar.modalities.graph.views import CHANGES, Perturb, identity, packed, unpacked
from nearfar.parts.bounds import InfoNCE, JensenShannon
from nearfar.parts.critics import Dot
from nearfar.parts.encoders import HeadConfig, InfoGraph, InputSpec, graph_network
from nearfar.parts.encoders.graphs import flattened
from nearfar.parts.negatives import InBatch
from nearfar.parts.selections import Everyone
from nearfar.system.extras import need
from nearfar.train.pretrain import pretrain

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "TUDataset_MUTAG_PROTEINS.tar.gz"


def ring_of(labels: list[int], chords: tuple[tuple[int, int], ...] = ()) -> Graph:
    count = len(labels)
    one_direction = [(i, (i + 1) % count) for i in range(count)] + list(chords)
    return Graph(np.array(labels), np.array(sorted([*one_direction, *((b, a) for a, b in one_direction)])))


def some(count: int = 24) -> list[Graph]:
    """Rings of two kinds, which differ in their labels and a chord."""
    draw = np.random.default_rng(0)
    return [
        ring_of((draw.integers(0, 2, 5 + n % 4) + n % 2).tolist(), ((0, 2),) if n % 2 else ())
        for n in range(count)
    ]


def write_tu(folder: Path, graphs: list[Graph], labels: list[int], name: str = "TOY") -> Path:
    folder.mkdir()
    first, edges, indicator, nodes = 1, [], [], []
    for number, graph in enumerate(graphs, 1):
        edges += [f"{a + first}, {b + first}" for a, b in graph.edges.tolist()]
        indicator += [str(number)] * len(graph.labels)
        nodes += [str(7 + label) for label in graph.labels]
        first += len(graph.labels)
    files = {"A": edges, "graph_indicator": indicator, "node_labels": nodes, "graph_labels": map(str, labels)}
    for key, lines in files.items():
        (folder / f"{name}_{key}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_a_tu_folder_is_read_as_it_was_written(tmp_path: Path) -> None:
    graphs = some()
    data = open_data(str(write_tu(tmp_path / "toy", graphs, [2 * (n % 2) - 1 for n in range(len(graphs))])))
    assert (data.modality, len(data), data.classes) == ("graph", 24, ("-1", "1"))
    assert data.labels.tolist() == [n % 2 for n in range(24)]
    for ours, theirs in zip(data.load(np.arange(24)), graphs, strict=True):
        assert np.array_equal(ours.labels, theirs.labels)
        assert sorted(map(tuple, ours.edges.tolist())) == sorted(map(tuple, theirs.edges.tolist()))


@pytest.mark.parametrize(
    ("file", "line", "sentence"),
    [
        ("A", "1, 999", "names node 999"),
        ("A", "1, x", "cannot be read"),
        ("A", "1", "must hold 2 whole numbers"),
        ("A", "1, 8", "joins nodes of two graphs"),
        ("graph_labels", "1", "25 graph labels for 24 graphs"),
        ("graph_indicator", "1", "in rising order"),
        (
            "graph_indicator",
            "1000000000000",
            "names graph 1000000000000, but there are",
        ),  # memory for as many
        ("node_labels", "9" * 30, "holds a number beyond"),
        ("node_labels", "1", r"TOY_node_labels.txt has 157 lines for 156 nodes"),
    ],
)
def test_inconsistent_tu_folder_is_refused(tmp_path: Path, file: str, line: str, sentence: str) -> None:
    folder = write_tu(tmp_path / "toy", some(), [n % 2 for n in range(24)])
    path = folder / f"TOY_{file}.txt"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UserError, match=sentence):
        open_data(str(folder))


def test_a_pipe_in_a_tu_folder_is_refused(tmp_path: Path) -> None:
    folder = write_tu(tmp_path / "toy", some(), [n % 2 for n in range(24)])
    (folder / "TOY_A.txt").unlink()
    os.mkfifo(folder / "TOY_A.txt")
    with pytest.raises(UserError, match=r"TOY_A\.txt cannot be read: is a pipe, a socket or a device"):
        open_data(str(folder))


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_leaves_a_graph_with_both_directions(name: str) -> None:
    for seed, graph in itertools.product(range(5), some(6)):
        changed = CHANGES[name](graph, 0.3, np.random.default_rng(seed))
        edges = {tuple(edge) for edge in changed.edges.tolist()}
        assert 1 <= len(changed.labels) <= len(graph.labels)
        assert all(0 <= a < len(changed.labels) and (b, a) in edges for a, b in edges)
        expected_nodes = len(graph.labels) - int(0.3 * len(graph.labels))
        if name in ("drop", "subgraph"):
            assert len(changed.labels) == expected_nodes
        if name == "mask":
            assert (changed.labels < 0).sum() == len(graph.labels) - expected_nodes
        if name == "identity":
            assert changed is graph


def test_a_subgraph_of_a_connected_graph_is_connected() -> None:
    for seed in range(10):
        subgraph = CHANGES["subgraph"](ring_of([0] * 12), 0.4, np.random.default_rng(seed))
        reached = {0}
        for _ in subgraph.labels:
            reached |= {b for a, b in subgraph.edges.tolist() if a in reached}
        assert len(reached) == len(subgraph.labels) == 8


def test_views_are_a_function_of_seed_epoch_instance_and_view() -> None:
    graphs, make = some(8), Perturb()
    described: Any = GRAPH.reader.example_description(8)
    index = np.arange(8)
    views = make.view(graphs, 3, 1, index, 0, described)
    part = make.view(graphs[2:5], 3, 1, index[2:5], 0, described)
    for a, b in zip(views[2:5], part, strict=True):
        assert np.array_equal(a.labels, b.labels)
        assert np.array_equal(a.edges, b.edges)
    second_views = make.view(graphs, 3, 1, index, 1, described)
    assert any(not np.array_equal(a.edges, b.edges) for a, b in zip(views, second_views, strict=True))


def test_packing_loses_nothing() -> None:
    graphs = some(5)
    for graph, table in zip(graphs, packed(graphs, 60).numpy(), strict=True):
        unpacked_graphs = unpacked(table)
        assert np.array_equal(unpacked_graphs.labels, graph.labels)
        assert np.array_equal(unpacked_graphs.edges, graph.edges)
    labels, edges, of, attributes, _ = flattened(packed(graphs, 60))
    assert attributes.shape == (len(labels), 0)
    assert labels.tolist() == np.concatenate([g.labels for g in graphs]).tolist()
    assert of.tolist() == [n for n, g in enumerate(graphs) for _ in g.labels]
    assert edges.shape[1] == sum(len(g.edges) for g in graphs)


@pytest.mark.parametrize("name", ["gin", "gcn"])
def test_a_network_does_not_see_the_order_of_nodes_nor_the_other_graphs(name: str) -> None:
    torch.manual_seed(0)
    network = graph_network(name, 3).double().eval()
    graphs = some(4)
    order = np.random.default_rng(1).permutation(len(graphs[2].labels))
    turned = [*graphs[:2], graphs[2].subgraph(order), graphs[3]]
    ours, theirs = (network(packed(collection, 60)) for collection in (graphs, turned))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(network(packed(graphs[2:3], 40)), ours[2:3], rtol=1e-10, atol=1e-10)
    hidden = Graph(np.full_like(graphs[0].labels, -1), graphs[0].edges)
    assert not torch.allclose(network(packed([hidden], 60)), ours[:1])


def test_gin_is_its_equation() -> None:
    """Xu et al. 2019, Eq. 4.1 with eps = 0: MLP(x_i + sum over neighbours), then ReLU and batch norm;
    summed."""
    torch.manual_seed(0)
    network = graph_network("gin-small", 3).double().eval()
    (graph,) = some(1)
    x = F.one_hot(torch.from_numpy(graph.labels), 3).double()
    adjacency = torch.zeros(len(x), len(x), dtype=torch.float64)
    adjacency[tuple(torch.from_numpy(graph.edges.T))] = 1
    layer: nn.Module = network.layers[0].nn  # type: ignore[assignment]
    expected = network.norms[0](F.relu(layer(x + adjacency @ x))).sum(dim=0)
    torch.testing.assert_close(network(packed([graph], 40))[0], expected)


def infograph(nodes: int | None = None) -> InfoGraph:
    torch.manual_seed(0)
    input_spec = InputSpec(lambda view: graph_network("gin-small", 3), ((8, 3),), {"nodes": 8})
    plan = HeadConfig(head="mlp-plain", hidden=8, dim=6)
    encoders = InfoGraph(plan, nodes)
    encoders.meet(input_spec)
    return encoders.double()


@pytest.mark.parametrize(("form", "bound"), [("js", JensenShannon()), ("nce", InfoNCE())])
def test_infograph_equals_its_loss_written_out(form: str, bound: AbstractBound) -> None:
    """Sun et al. 2020, Eq. 4: every node with its graph's summary, against the nodes of all other graphs."""
    role, graphs = infograph(), some(5)
    view = packed(graphs, 60)
    outcome = Method(role, Dot(), InBatch("one"), Everyone(), bound)(Batch((view,), torch.arange(5)))
    features, of = role.network.backbone.nodes(view)  # type: ignore[operator]
    summary = role.network.head(role.network.backbone(view))
    score = summary @ role.place(features).T  # (graph, node)
    terms = []
    for node, graph in enumerate(of.tolist()):
        positive_score, negative_scores = score[graph, node], score[graph][of != graph]
        if form == "js":
            terms.append(-F.softplus(-positive_score) - F.softplus(negative_scores).mean())
        else:
            all_scores = torch.cat([positive_score[None], negative_scores])
            terms.append(positive_score - all_scores.logsumexp(0) + math.log(len(all_scores)))
    expected = torch.stack(terms).mean()
    value = (outcome.ceiling or 0.0) - outcome.loss
    torch.testing.assert_close(value, expected)
    assert outcome.ceiling is None or float(expected.detach()) <= outcome.ceiling


def test_drawn_nodes_are_the_same_number_per_graph() -> None:
    role, graphs = infograph(nodes=3), some(6)
    torch.manual_seed(1)
    encoded = role.encode(Batch((packed(graphs, 60),), torch.arange(6)), (0,), (0,))
    assert Counter(encoded.instance[0].tolist()) == dict.fromkeys(range(6), 3)
    assert encoded.anchors[0].shape == encoded.keys[0].shape
    repeated = role.eval().encode(Batch((packed(graphs, 60),), torch.arange(6)), (0,), (0,))
    assert len(repeated.keys[0]) == sum(len(graph.labels) for graph in graphs)


def slow_wl(graph: Graph, iterations: int) -> Counter[str]:
    """Labels as words that say their whole history."""
    label = {node: str(value) for node, value in enumerate(graph.labels.tolist())}
    counts = Counter(f"0 {value}" for value in label.values())
    for round_ in range(1, 1 + iterations):
        neighbour_labels = {n: sorted(label[b] for a, b in graph.edges.tolist() if a == n) for n in label}
        label = {n: f"({label[n]}|{','.join(neighbour_labels[n])})" for n in label}
        counts.update(f"{round_} {value}" for value in label.values())
    return counts


def test_weisfeiler_lehman_counts_as_words_do() -> None:
    graphs = some(6)
    ours, theirs = weisfeiler_lehman(graphs, 2), [slow_wl(graph, 2) for graph in graphs]
    for a, b in itertools.combinations_with_replacement(range(6), 2):
        inner = sum(ours[a][key] * ours[b][key] for key in ours[a])
        assert inner == sum(theirs[a][key] * theirs[b][key] for key in theirs[a])
    kernel = wl_kernel(graphs)
    np.testing.assert_allclose(kernel.diagonal(), 1.0)
    assert np.linalg.eigvalsh(kernel).min() > -1e-9


def test_svm_protocol_of_graph_features() -> None:
    """One repeat, written out with scikit-learn's own RBF kernel."""
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.svm import SVC

    draw = np.random.default_rng(0)
    labels = np.arange(40) % 2
    x = draw.normal(size=(40, 3)) + labels[:, None]
    gamma = 1 / (3 * x.var())
    right = []
    for fit, test in StratifiedKFold(10, shuffle=True, random_state=4).split(x, labels):
        search = GridSearchCV(SVC(gamma=gamma), {"C": [10.0**p for p in range(-3, 4)]}, cv=5)
        search.fit(x[fit], labels[fit])
        right.append(search.score(x[test], labels[test]))
    result = svm_scores(rbf_kernel(x), labels, seed=4, repeats=1)
    assert result["top1"] == pytest.approx(float(np.mean(right)))


SMALL = {
    "backbone": "gin-small",
    "batch_size": 8,
    "epochs": 2,
    "workers": 0,
    "encoders.hidden": 8,
    "encoders.dim": 8,
}


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("infograph", {"encoders.nodes": 3}),
        ("infograph", {"bound": "infonce", "selection": "ring", "selection.lower": 0.2}),
        ("graphcl", {"bound": "ml-cpc", "selection": "ring", "selection.sample": 3}),
        ("graphcl", {"negatives": "queue", "negatives.size": 16, "chunk": 4}),
        ("simclr", {}),
    ],
)
def test_graph_run_trains_resumes_and_is_evaluated(
    tmp_path: Path, recipe: str, changes: dict[str, object]
) -> None:
    folder = write_tu(tmp_path / "toy", some(), [n % 2 for n in range(24)])
    run = pretrain(recipe, str(folder), tmp_path / "run", config={**SMALL, **changes}, quiet=True)
    resumed = pretrain(recipe, str(folder), tmp_path / "run", config={**SMALL, **changes}, quiet=True)
    view = packed(some(4), 60)
    assert torch.equal(run.encoder().eval()(view), resumed.encoder().eval()(view))
    if recipe == "graphcl":
        result = evaluate_run(run, protocols=["knn"], baselines=True)
        assert set(result["baselines"]) == {"labels", "weisfeiler-lehman", "untrained"}
        assert result["baselines"]["weisfeiler-lehman"]["svm"]["top1"] > 0.8  # a chord is seen in two steps


def test_graphs_are_drawn() -> None:
    description = GRAPH.reader.example_description(4)
    pictures = GRAPH.presenter.pictures(some(4), description)
    drawings = GRAPH.presenter.view_pictures(None, packed(some(4), 60), description)
    for one, two in zip(pictures, drawings, strict=True):
        assert one.size == (96, 96)
        assert len(one.getcolors(10_000) or []) > 3
        assert np.array_equal(np.asarray(one), np.asarray(two))


class GraphItems:
    """torch_geometric's kind of data set."""

    def __init__(self, graphs: list[Graph]) -> None:
        data = need("torch_geometric.data")
        self.graphs = [
            data.Data(
                x=F.one_hot(torch.from_numpy(g.labels), 3).float(),
                edge_index=torch.from_numpy(g.edges.T.copy()),
                y=n,
            )
            for n, g in enumerate(graphs)
        ]

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, place: int) -> object:
        return self.graphs[place]


def test_torch_geometric_s_data_are_graphs() -> None:
    graphs = some(6)
    data = open_data(GraphItems(graphs))
    assert data.modality == "graph"
    for ours, theirs in zip(data.load(np.arange(6)), graphs, strict=True):
        assert np.array_equal(ours.labels, theirs.labels)
        assert np.array_equal(ours.edges, theirs.edges)


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not here")
def test_mutag_has_its_published_statistics(tmp_path: Path) -> None:
    """188 graphs of 17.93 nodes and 19.79 edges on average, 7 node labels, 125 of class 1 (Morris et al.
    2020)."""
    import tarfile

    with tarfile.open(SHARED) as archive:
        archive.extractall(tmp_path, filter="data")
    data = open_data(str(tmp_path / "TUDataset" / "MUTAG"))
    graphs = data.load(np.arange(len(data)))
    assert (len(data), int(data.labels.sum())) == (188, 125)
    assert np.mean([len(g.labels) for g in graphs]) == pytest.approx(17.93, abs=0.005)
    assert np.mean([len(g.edges) / 2 for g in graphs]) == pytest.approx(19.79, abs=0.005)
    described: Any = GRAPH.reader.describe(data, None)
    assert described.node_labels == 7


def test_identity_views_change_no_graph() -> None:
    (graph,) = some(1)
    assert identity(graph, 0.5, np.random.default_rng(0)) is graph
    with pytest.raises(UserError, match=r"views.changes was \['cut'\]; expected some of drop"):
        Perturb(["cut"])
