"""Graphs without labels: InfoGraph and GraphCL on MUTAG and PROTEINS (Sun et al. 2020, You et al. 2020).

Each seed trains once and makes 10 folds once; the accuracy of a support vector machine on the frozen features
is averaged over folds, then over seeds. Baselines without training: counts of node labels, Weisfeiler-Lehman,
an untrained network.

Command: nearfar study graphs data=TUDataset/MUTAG      Cost: MUTAG about 3 minutes, PROTEINS about 15 on one core.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.modalities.graph.scores import (
    label_counts,
    network_features,
    rbf_kernel,
    svm_scores,
    untrained_network,
    wl_kernel,
)
from nearfar.studies.comparison import paired, verdict
from nearfar.studies.frame import Study, StudyResult, StudyTable, Values, Workspace, mean_row
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


def run(
    workspace: Workspace, data: str = "TUDataset/MUTAG", seeds: int = 5, epochs: int = 20, jobs: int = 1
) -> StudyResult:
    if seeds < 1:
        raise UserError(f"seeds was {seeds}; it must be a whole number from 1")
    arms, prints = (*BASELINES, *METHODS), open_data(data).fingerprint
    cells = [
        Cell(
            f"{arm},seed={s}", {"arm": arm, "seed": s, "epochs": epochs, "data": data, "fingerprint": prints}
        )
        for s in range(seeds)
        for arm in arms
    ]
    values = workspace.run(cells, compute, jobs)
    figures = {arm: values[place :: len(arms)] for place, arm in enumerate(arms)}
    name = Path(data).name
    paper = PAPER.get(name, {})
    rows = [mean_row(arm, [v["top1"] for v in figures[arm]], paper.get(arm), scale=100) for arm in arms]
    verdicts = tuple(
        f"{arm} above the {UNTRAINED} {verdict(paired(figures, arm, UNTRAINED, 'top1'))}." for arm in METHODS
    )
    return StudyResult((StudyTable(f"{name}, accuracy in percent", tuple(rows), SOURCE),), verdicts)


def compute(cell: Cell, folder: Path) -> Values:
    arm, seed = cell.identity["arm"], cell.identity["seed"]
    graphs = open_data(cell.identity["data"])
    kernels: dict[str, Callable[[], np.ndarray]] = {
        "node labels": lambda: rbf_kernel(label_counts(graphs).double().numpy()),
        "Weisfeiler-Lehman": lambda: wl_kernel(graphs.load(np.arange(len(graphs)))),
        UNTRAINED: lambda: _kernel(untrained_network(graphs, seed), graphs),
    }
    kernel = kernels[arm]() if arm in kernels else _kernel(_trained_network(cell, graphs, folder), graphs)
    return {"top1": float(svm_scores(kernel, graphs.labels, seed, repeats=1)["top1"])}


def _trained_network(cell: Cell, graphs: Any, folder: Path) -> torch.nn.Module:
    recipe, changes = METHODS[cell.identity["arm"]]
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


STUDIES = (Study("graphs", "Sun et al. 2020 and You et al. 2020: graphs without labels, 10-fold SVM", run),)
