"""Nodes of graphs: Deep Graph Infomax and GRACE written out, their views, node attributes, edge labels and
classes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nearfar.config.building import build_method
from nearfar.config.resolving import resolve
from nearfar.core.method import Method
from nearfar.core.types import Batch
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.evaluate.run import evaluate_run
from nearfar.modalities.graph import GRAPH
from nearfar.modalities.graph.data import MAX_DEGREE, Graph
from nearfar.modalities.graph.scores import node_scores
from nearfar.modalities.graph.views import Shuffle, Thin, packed
from nearfar.parts.bounds import InfoNCE, JensenShannon
from nearfar.parts.critics import Bilinear, Cosine
from nearfar.parts.encoders import DeepGraphInfomax, HeadConfig, InputSpec, Nodes, graph_network
from nearfar.parts.encoders.graphs import flattened
from nearfar.parts.negatives import Corrupted, InBatch
from nearfar.parts.selections import Everyone
from nearfar.system.extras import need
from nearfar.train.equality import CASES, compare
from nearfar.train.pretrain import pretrain

LABELS, ATTRIBUTES, EDGE_LABELS, MOST_NODES = 3, 2, 4, 9
WIDE = 200  # records


def random_graph(seed: int, nodes: int | None = None) -> Graph:
    """Every edge in both directions, both with one label."""
    draw = np.random.default_rng(seed)
    count = nodes or int(draw.integers(4, MOST_NODES + 1))
    ends = np.argwhere(np.triu(draw.random((count, count)) < 0.4, 1))
    kinds = draw.integers(0, EDGE_LABELS, len(ends))
    return Graph(
        draw.integers(0, LABELS, count),
        np.concatenate([ends, ends[:, ::-1]]),
        draw.normal(size=(count, ATTRIBUTES)).astype(np.float32),
        np.concatenate([kinds, kinds]),
        draw.integers(0, 2, count),
    )


def graphs(count: int) -> list[Graph]:
    return [random_graph(seed) for seed in range(count)]


def describe(items: list[Graph]) -> Any:
    example: Any = GRAPH.reader.example_description(len(items))
    return replace(
        example, mean=(0.0,) * ATTRIBUTES, std=(1.0,) * ATTRIBUTES, node_labels=LABELS, most_nodes=MOST_NODES
    )


def input_spec(instances: int) -> InputSpec:
    return InputSpec(
        lambda view: graph_network("gcn-2", LABELS, attributes=ATTRIBUTES),
        ((WIDE, 3 + ATTRIBUTES),) * 2,
        {"nodes": MOST_NODES, "instances": instances},
    )


def gcn_by_hand(network: Any, items: list[Graph]) -> list[Tensor]:
    """Features of the nodes of each graph. Kipf & Welling 2017, Eq. 2: D^(-1/2) (A + 1) D^(-1/2) X W + b;
    then ReLU and batch norm with its running statistics."""
    outputs = []
    for graph in items:
        assert graph.attributes is not None
        x = torch.cat(
            [F.one_hot(torch.from_numpy(graph.labels), LABELS), torch.from_numpy(graph.attributes)], 1
        )
        x = x.double()
        adjacency = torch.eye(len(x), dtype=torch.float64)
        adjacency[tuple(torch.from_numpy(graph.edges.T))] += 1
        degree = adjacency.sum(dim=1)
        spread = adjacency / (degree[:, None] * degree[None]).sqrt()
        layers = []
        for layer, norm in zip(network.layers, network.norms, strict=True):
            x = F.relu(spread @ x @ layer.lin.weight.T + layer.bias)
            scale = norm.weight / (norm.running_var + norm.eps).sqrt()
            x = (x - norm.running_mean) * scale + norm.bias
            layers.append(x)
        outputs.append(torch.cat(layers, dim=1))
    return outputs


def gradients(loss: Tensor, method: Method) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(method.parameters())))


def assert_same(ours: Tensor, theirs: Tensor, method: Method) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    for a, b in zip(gradients(ours, method), gradients(theirs, method), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("count", [1, 4])
def test_dgi_equals_its_loss_written_out(count: int) -> None:
    """Veličković et al. 2019, Eq. 1 with as many corrupted nodes as nodes, times 2: of one graph the paper's, of
    several the corrupted nodes of all of them. Eq. 3: s(mean of h); Eq. 4: s(h^T W s)."""
    torch.manual_seed(0)
    items, index = graphs(count), np.arange(count)
    encoders = DeepGraphInfomax(HeadConfig("none"))
    encoders.meet(input_spec(count))
    method = Method(encoders, Bilinear(dim=128), Corrupted(), Everyone(), JensenShannon()).double().eval()
    shuffled = Shuffle().view(items, 0, 0, index, 1, describe(items))
    outcome = method(Batch((packed(items, WIDE), packed(shuffled, WIDE)), torch.arange(count)))
    network = encoders.network.backbone
    nodes, corrupted = gcn_by_hand(network, items), torch.cat(gcn_by_hand(network, shuffled))
    critic: Any = method.critic
    weight = critic.weight.weight
    terms = []
    for own in nodes:
        summary = 1 / (1 + torch.exp(-own.mean(dim=0)))
        chance = torch.sigmoid(own @ weight.T @ summary)
        noise = torch.sigmoid(corrupted @ weight.T @ summary)
        terms.append(chance.log() + (1 - noise).log().mean())
    expected = -torch.cat(terms).mean()
    assert outcome.ceiling is None
    assert outcome.nats is None
    assert_same(outcome.loss, expected, method)


@pytest.mark.parametrize("count", [1, 3])
def test_grace_equals_its_loss_written_out(count: int) -> None:
    """Zhu et al. 2020, Eq. 1 and 2: 1/(2N) sum of l(u_i, v_i) + l(v_i, u_i), with negatives of both views, over
    the nodes of all graphs."""
    torch.manual_seed(0)
    items, index, temperature = graphs(count), np.arange(count), 0.4
    encoders = Nodes(HeadConfig("mlp-plain", hidden=8, dim=6))
    encoders.meet(input_spec(count))
    method = Method(encoders, Cosine(temperature), InBatch("both"), Everyone(), InfoNCE()).double().eval()
    views = [Thin().view(items, 0, 0, index, view, describe(items)) for view in (0, 1)]
    # a hidden label is -1, which `gcn_by_hand` does not know: leave edges out and nothing else
    views = [
        [replace(view, labels=g.labels, attributes=g.attributes) for view, g in zip(one, items, strict=True)]
        for one in views
    ]
    outcome = method(Batch(tuple(packed(view, WIDE) for view in views), torch.arange(count)))
    u, v = (
        F.normalize(encoders.network.head(torch.cat(gcn_by_hand(encoders.network.backbone, view))))
        for view in views
    )
    total = len(u)
    terms = []
    for a, b in ((u, v), (v, u)):
        for i in range(total):
            other = [torch.exp(a[i] @ b[k] / temperature) for k in range(total) if k != i]
            other += [torch.exp(a[i] @ a[k] / temperature) for k in range(total) if k != i]
            positive = torch.exp(a[i] @ b[i] / temperature)
            terms.append(-torch.log(positive / (positive + torch.stack(other).sum())))
    expected = torch.stack(terms).mean()
    # the ceiling is that of the largest graph for all, so the constant log m differs
    value = outcome.loss - (outcome.ceiling - math.log(2 * total - 1))
    assert_same(value, expected, method)


def test_two_processes_compute_what_one_does() -> None:
    """Loss, gradient and weights of three steps, in float64."""
    for name, differences in compare(2, {name: CASES[name] for name in ("dgi", "grace")}, steps=3).items():
        assert max(differences.values()) < 1e-9, (name, differences)


def test_what_the_numbers_of_node_methods_prove() -> None:
    certificates = {}
    for name in ("dgi", "grace"):
        settings = resolve(name, "x")
        described = GRAPH.reader.example_description(32)
        method = build_method(settings, described)
        certificates[name] = method.certificate(32, held_out=True)
    assert certificates["dgi"].status == "objective only"
    assert certificates["grace"].status == "not covered"
    # 2 views of 32 graphs of at most 28 nodes, without the anchor's own two
    assert certificates["grace"].ceiling == pytest.approx(math.log(1 + 2 * (32 * 28 - 1)))


def test_shuffled_nodes_are_the_same_nodes_at_other_places() -> None:
    items = graphs(5)
    first, second = (Shuffle().view(items, 3, 1, np.arange(5), view, describe(items)) for view in (0, 1))
    assert first == items
    moved = 0
    for graph, changed in zip(items, second, strict=True):
        assert graph.attributes is not None
        assert changed.attributes is not None
        assert np.array_equal(graph.edges, changed.edges)
        rows = [tuple(row) for row in np.column_stack([graph.labels, graph.attributes]).tolist()]
        changed_rows = [tuple(row) for row in np.column_stack([changed.labels, changed.attributes]).tolist()]
        assert sorted(rows) == sorted(changed_rows)  # labels and attributes move together
        moved += rows != changed_rows
    assert moved >= 4


def test_thinned_graphs_lose_whole_edges_and_whole_features() -> None:
    items = [random_graph(seed, 40) for seed in range(40)]
    settings = Thin(edges=[0.2, 0.4], features=[0.3, 0.4])
    for view, (edge_chance, feature_chance) in enumerate([(0.2, 0.3), (0.4, 0.4)]):
        changed = settings.view(items, 0, 0, np.arange(40), view, describe(items))
        lost = hidden = total = 0
        for graph, thinned in zip(items, changed, strict=True):
            assert graph.attributes is not None
            assert thinned.attributes is not None
            assert graph.edge_labels is not None
            assert thinned.edge_labels is not None
            kinds = {
                tuple(edge): kind for edge, kind in zip(graph.edges.tolist(), graph.edge_labels, strict=True)
            }
            for edge, kind in zip(thinned.edges.tolist(), thinned.edge_labels, strict=True):
                assert kinds[tuple(edge)] == kind
                assert edge[::-1] in thinned.edges.tolist()
            lost, total = lost + len(graph.edges) - len(thinned.edges), total + len(graph.edges)
            for label in range(LABELS):
                shown = thinned.labels[graph.labels == label]
                assert (shown == label).all() or (shown == -1).all()
                hidden += (shown == -1).all()
            for ours, theirs in zip(thinned.attributes.T, graph.attributes.T, strict=True):
                assert np.array_equal(ours, theirs) or not ours.any()
                hidden += not ours.any()
        features = 40 * (LABELS + ATTRIBUTES)
        # five standard deviations of a binomial share
        assert abs(lost / total - edge_chance) < 5 * math.sqrt(0.25 / (total / 2))
        assert abs(hidden / features - feature_chance) < 5 * math.sqrt(0.25 / features)


def test_packing_keeps_attributes_and_edge_labels() -> None:
    items = graphs(5)
    joined = flattened(packed(items, WIDE))
    assert np.array_equal(joined.attributes.numpy(), np.concatenate([g.attributes for g in items]))
    assert np.array_equal(joined.edge_labels.numpy(), np.concatenate([g.edge_labels for g in items]))


def test_gine_is_its_equation() -> None:
    """Hu et al. 2020: MLP(x_i + sum over neighbours of ReLU(x_j + W e_ij + b)), then ReLU and batch norm."""
    torch.manual_seed(0)
    network = graph_network("gine", LABELS, attributes=ATTRIBUTES, edge_labels=EDGE_LABELS).double().eval()
    (graph,) = graphs(1)
    x = network.inputs(flattened(packed([graph], WIDE)))
    layer: Any = network.layers[0]
    messages = torch.zeros_like(x)
    assert graph.edge_labels is not None
    for (a, b), kind in zip(graph.edges.tolist(), graph.edge_labels.tolist(), strict=True):
        messages[b] += F.relu(x[a] + layer.lin.weight[:, kind] + layer.lin.bias)
    expected = network.norms[0](F.relu(layer.nn(x + messages)))
    torch.testing.assert_close(network.nodes(packed([graph], WIDE))[0][:, :32], expected)


def write_tu(folder: Path, items: list[Graph]) -> Path:
    folder.mkdir()
    names = ("A", "graph_indicator", "node_labels", "node_attributes", "edge_labels")
    lines: dict[str, list[str]] = {name: [] for name in names}
    first = 1
    for number, graph in enumerate(items, 1):
        assert graph.attributes is not None
        assert graph.edge_labels is not None
        lines["A"] += [f"{a + first}, {b + first}" for a, b in graph.edges.tolist()]
        lines["edge_labels"] += [str(5 + kind) for kind in graph.edge_labels]
        lines["graph_indicator"] += [str(number)] * len(graph.labels)
        lines["node_labels"] += [str(7 + label) for label in graph.labels]
        lines["node_attributes"] += [", ".join(map(repr, row)) for row in graph.attributes.tolist()]
        first += len(graph.labels)
    for key, rows in lines.items():
        (folder / f"TOY_{key}.txt").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.parametrize("inputs", ["auto", "labels+attributes", "degree", "attributes"])
def test_a_tu_folder_shows_what_inputs_says(tmp_path: Path, inputs: str) -> None:
    items = graphs(6)
    data = open_data(str(write_tu(tmp_path / "toy", items)), inputs=inputs)
    for ours, theirs in zip(data.load(np.arange(6)), items, strict=True):
        order = np.lexsort(theirs.edges.T[::-1])
        assert np.array_equal(ours.edges, theirs.edges[order])
        assert theirs.edge_labels is not None
        assert np.array_equal(ours.edge_labels, theirs.edge_labels[order])
        assert (ours.attributes is not None) == ("attributes" in inputs)
        if ours.attributes is not None:
            assert theirs.attributes is not None
            assert np.array_equal(ours.attributes, theirs.attributes)
        if inputs in ("auto", "labels+attributes"):
            assert np.array_equal(ours.labels, theirs.labels)
            assert ours.classes is None
        else:
            degree = [
                min(MAX_DEGREE, int((theirs.edges[:, 0] == n).sum())) for n in range(len(theirs.labels))
            ]
            assert ours.labels.tolist() == (degree if inputs == "degree" else [0] * len(degree))
            assert np.array_equal(ours.classes, theirs.labels)  # not shown, so to be predicted
    described: Any = GRAPH.reader.describe(data, None)
    assert described.edge_labels == EDGE_LABELS
    assert len(described.mean) == ("attributes" in inputs) * ATTRIBUTES


@pytest.mark.parametrize(
    ("file", "line", "inputs", "sentence"),
    [
        ("node_attributes", "1", "auto", "must hold 2 numbers"),
        ("node_attributes", "1, nan", "auto", "holds a number beyond"),
        ("node_attributes", "1, x", "auto", "cannot be read"),
        ("edge_labels", "1", "auto", "TOY_edge_labels.txt has .* lines for .* edges"),
        ("edge_labels", "", "colour", "views.inputs was 'colour'; expected one of auto, labels"),
    ],
)
def test_wrong_attributes_are_refused(
    tmp_path: Path, file: str, line: str, inputs: str, sentence: str
) -> None:
    folder = write_tu(tmp_path / "toy", graphs(3))
    path = folder / f"TOY_{file}.txt"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UserError, match=sentence):
        open_data(str(folder), inputs=inputs)


def test_attributes_that_are_not_there_are_named(tmp_path: Path) -> None:
    folder = write_tu(tmp_path / "toy", graphs(3))
    (folder / "TOY_node_attributes.txt").unlink()
    with pytest.raises(UserError, match=r"no node attributes, but views.inputs is degree\+attributes"):
        open_data(str(folder), inputs="degree+attributes")


def test_node_protocol_is_logistic_regression_on_a_tenth() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, KFold

    draw = np.random.default_rng(0)
    classes = draw.integers(0, 3, 400)
    x = draw.normal(size=(400, 4)) + np.eye(3, 4)[classes]
    rows = (x - x.mean(axis=0)) / x.std(axis=0)
    order = np.random.default_rng([5, 0]).permutation(400)
    fit, test = order[:40], order[40:]
    search = GridSearchCV(
        LogisticRegression(max_iter=300, tol=1e-3), {"C": [0.01, 0.1, 1.0, 10.0]}, cv=KFold(3)
    )
    expected = search.fit(rows[fit], classes[fit]).score(rows[test], classes[test])
    assert node_scores(x, classes, seed=5, repeats=1)["top1"] == pytest.approx(expected)


class BlockModel:
    """One graph of three communities, as torch_geometric has it: attributes say little, edges much."""

    def __init__(self, nodes: int = 150) -> None:
        data, draw = need("torch_geometric.data"), np.random.default_rng(0)
        y = draw.integers(0, 3, nodes)
        chance = np.where(y[:, None] == y[None], 0.2, 0.02)
        ends = np.argwhere(np.triu(draw.random((nodes, nodes)) < chance, 1))
        x = draw.normal(size=(nodes, 8)) + 0.7 * draw.normal(size=(3, 8))[y]
        edges = np.concatenate([ends, ends[:, ::-1]]).T.copy()
        self.graph = data.Data(
            x=torch.from_numpy(x).float(), edge_index=torch.from_numpy(edges), y=torch.from_numpy(y)
        )

    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: int) -> Any:
        return self.graph


SMALL = {"backbone": "gcn", "epochs": 4, "workers": 0, "probe_every": 0}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's about its own torch.jit, on import
@pytest.mark.parametrize("recipe", ["dgi", "grace"])
def test_one_graph_trains_resumes_and_its_nodes_are_classified(tmp_path: Path, recipe: str) -> None:
    config = {**SMALL, "batch_size": 1}
    run = pretrain(recipe, BlockModel(), tmp_path / "run", config=config, quiet=True)
    again = pretrain(recipe, BlockModel(), tmp_path / "run", config=config, quiet=True)
    weights = run.encoder().state_dict()
    assert all(torch.equal(weights[key], value) for key, value in again.encoder().state_dict().items())
    result = evaluate_run(run, BlockModel(), protocols=["quality"], baselines=True)
    assert result["nodes"]["top1"] > result["baselines"]["inputs"]["nodes"]["top1"] + 0.1
    assert set(result["baselines"]) >= {"inputs", "untrained"}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("recipe", ["infograph", "graphcl"])
def test_methods_of_whole_graphs_need_two(tmp_path: Path, recipe: str) -> None:
    with pytest.raises(UserError, match=r"batch_size was 1; expected a number of at least 2"):
        pretrain(recipe, BlockModel(), tmp_path / "a", config={**SMALL, "batch_size": 1}, quiet=True)


@pytest.mark.parametrize(
    ("recipe", "words", "sentence"),
    [
        ("dgi", {"negatives": "in-batch"}, "negatives was in-batch with encoders=dgi"),
        ("grace", {"negatives": "bank"}, "nodes of one graph are contrasted with each other"),
        ("graphcl", {"negatives": "corrupted"}, "negatives was corrupted with encoders=shared"),
        ("infograph", {"negatives.views": "both"}, "negatives.views was both with encoders=infograph"),
        ("grace", {"views": "perturb"}, "views"),
        ("grace", {"views.edges": [0.2, 1.0]}, "views.edges was"),
    ],
)
def test_parts_that_do_not_fit_are_refused(recipe: str, words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        resolve(recipe, "x", words)
