"""Graphs and nodes without labels: InfoGraph and GraphCL on MUTAG and PROTEINS (Sun et al. 2020, You et al. 2020);
Deep Graph Infomax and GRACE on the nodes of PROTEINS (Veličković et al. 2019, Zhu et al. 2020).

Each seed trains once and makes 10 folds once; the accuracy of a support vector machine on the frozen features
is averaged over folds, then over seeds. Baselines without training: counts of node labels, Weisfeiler-Lehman,
an untrained network.

Nodes are classified by logistic regression on frozen features, fitted to a random tenth of them; splits are
averaged, then seeds. Node labels (in PROTEINS the kind of secondary structure) are the classes, so no network
is shown them. The papers train on citation graphs, so there are no figures beside.

Command: nearfar study graphs data=TUDataset/MUTAG      Cost: MUTAG about 3 minutes, PROTEINS about 15 on one core.
         nearfar study nodes data=TUDataset/PROTEINS    Cost: about 10 minutes of one core.
"""

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.modalities.graph.scores import (
    label_counts,
    network_features,
    node_classes,
    node_features,
    node_inputs,
    node_scores,
    rbf_kernel,
    svm_scores,
    untrained_network,
    wl_kernel,
)
from nearfar.parts.encoders import GraphNetwork
from nearfar.studies.comparison import Claim, Comparison, PaperColumn, compare_cells
from nearfar.studies.frame import StudyResult, Values, Workspace, study
from nearfar.sweeps.engine import Cell
from nearfar.train.pretrain import pretrain

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "infograph (JS)": ("infograph", {}),
    "infograph (NCE)": ("infograph", {"bound": "infonce"}),
    "graphcl": ("graphcl", {}),
    "graphcl-ring": ("graphcl", {"selection": "ring", "selection.lower": 0.5, "selection.upper": 0.95}),
}
UNTRAINED = "untrained GIN"
BASELINES = ("node labels", "Weisfeiler-Lehman", UNTRAINED)
PAPER = {
    "MUTAG": {"infograph (JS)": 89.0, "graphcl": 86.8},
    "PROTEINS": {"infograph (JS)": 74.4, "graphcl": 74.4},
}
SOURCE = "InfoGraph: Sun et al. 2020, Table 1, and (PROTEINS) as You et al. 2020, Table 5 reports it; GraphCL: You et al. 2020, Table 5"


NODE_METHODS = ("dgi", "grace")
UNTRAINED_GCN = "untrained GCN"
NODE_BASELINES = {"inputs": None, UNTRAINED: "gin", UNTRAINED_GCN: "gcn-2"}
NODE_SPLITS = 2  # random splits of the nodes, for each seed


@study("graphs", "Sun et al. 2020 and You et al. 2020: graphs without labels, 10-fold SVM")
def run(
    workspace: Workspace, data: str = "TUDataset/MUTAG", seeds: int = 5, epochs: int = 20, jobs: int = 1
) -> StudyResult:
    identity = {"epochs": epochs, "data": data, "fingerprint": open_data(data).fingerprint}
    comparison = Comparison(
        Path(data).name,
        dict.fromkeys((*BASELINES, *METHODS)),
        [Claim(arm, UNTRAINED) for arm in METHODS],
        {"top1": PaperColumn(PAPER.get(Path(data).name, {}), SOURCE)},
        {"top1": "accuracy in percent"},
        baselines=(),
    )
    return compare_cells(workspace, comparison, range(seeds), identity, compute, jobs)


@study("nodes", "Veličković et al. 2019 and Zhu et al. 2020: nodes without labels, logistic regression")
def run_nodes(
    workspace: Workspace,
    data: str = "TUDataset/PROTEINS",
    inputs: str = "degree+attributes",
    seeds: int = 3,
    epochs: int = 10,
    jobs: int = 1,
) -> StudyResult:
    """`inputs`: what a network is shown of a node, as views.inputs; labels are the classes."""
    graphs = open_data(data, inputs=inputs)
    if node_classes(graphs) is None:
        raise UserError(f"inputs was {inputs!r}; {data} has no node labels beside it to predict")
    identity = {"inputs": inputs, "epochs": epochs, "data": data, "fingerprint": graphs.fingerprint}
    comparison = Comparison(
        Path(data).name,
        dict.fromkeys((*NODE_BASELINES, *NODE_METHODS)),
        [Claim(*pair) for pair in product(NODE_METHODS, NODE_BASELINES)],
        measures={"top1": "accuracy of nodes in percent"},
        baselines=(),
    )
    return compare_cells(workspace, comparison, range(seeds), identity, compute_nodes, jobs)


def compute_nodes(cell: Cell, folder: Path) -> Values:
    arm, seed = cell.identity["arm"], cell.identity["seed"]
    graphs = open_data(cell.identity["data"], inputs=cell.identity["inputs"])
    if arm == "inputs":
        features = node_inputs(untrained_network(graphs, seed), graphs)
    elif arm in NODE_BASELINES:
        features = node_features(untrained_network(graphs, seed, NODE_BASELINES[arm] or ""), graphs)
    else:
        network = _trained_network(cell, graphs, folder, arm, {})
        assert isinstance(network, GraphNetwork)
        features = node_features(network, graphs)
    classes = node_classes(graphs)
    assert classes is not None
    return {"top1": float(node_scores(features, classes, seed, NODE_SPLITS)["top1"])}


def compute(cell: Cell, folder: Path) -> Values:
    arm, seed = cell.identity["arm"], cell.identity["seed"]
    graphs = open_data(cell.identity["data"])
    kernels: dict[str, Callable[[], np.ndarray]] = {
        "node labels": lambda: rbf_kernel(label_counts(graphs).double().numpy()),
        "Weisfeiler-Lehman": lambda: wl_kernel(graphs.load(np.arange(len(graphs)))),
        UNTRAINED: lambda: _kernel(untrained_network(graphs, seed), graphs),
    }
    kernel = (
        kernels[arm]()
        if arm in kernels
        else _kernel(_trained_network(cell, graphs, folder, *METHODS[arm]), graphs)
    )
    return {"top1": float(svm_scores(kernel, graphs.labels, seed, repeats=1)["top1"])}


def _trained_network(
    cell: Cell, graphs: Any, folder: Path, recipe: str, changes: Mapping[str, Any]
) -> torch.nn.Module:
    settings = {
        "seed": cell.identity["seed"],
        "epochs": cell.identity["epochs"],
        "batch_size": min(128, len(graphs)),
        "probe_every": 0,
        "workers": 0,
        **changes,
    }
    return pretrain(recipe, graphs, folder / "run", config=settings, quiet=True).encoder()


def _kernel(network: torch.nn.Module, graphs: Any) -> np.ndarray:
    return rbf_kernel(network_features(network, graphs, network))
