"""Graphs without labels, judged as their field does: InfoGraph and GraphCL on MUTAG and PROTEINS (Sun et al. 2020, You et al. 2020).

Each seed trains once and makes 10 folds once; the accuracy of a support vector machine on the frozen features is averaged over folds, then
over seeds. Beside it what nothing was learned for: counts of node labels, Weisfeiler-Lehman, an untrained network.

Command: nearfar study graphs data=TUDataset/MUTAG      Cost: MUTAG about 3 minutes, PROTEINS about 15 on one core.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nearfar.core.statistics import mean_and_spread
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.modalities.graph.scores import (
    label_counts,
    network_features,
    rbf_kernel,
    svm_scores,
    wl_kernel,
)
from nearfar.parts.encoders import graph_network
from nearfar.run.trained import Run
from nearfar.studies.compared import verdict
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.train.pretrain import pretrain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "infograph (JS)": ("infograph", {}),
    "infograph (NCE)": ("infograph", {"bound": "infonce"}),
    "graphcl": ("graphcl", {}),
    "graphcl-ring": ("graphcl", {"selection": "ring", "selection.lower": 0.5, "selection.upper": 0.95}),
}
BASELINES = ("node labels", "Weisfeiler-Lehman", "untrained GIN")
PAPER = {
    "MUTAG": {"infograph (JS)": 89.0, "graphcl": 86.8},
    "PROTEINS": {"infograph (JS)": 74.4, "graphcl": 74.4},
}
SOURCE = "InfoGraph: Sun et al. 2020, Table 1, and (PROTEINS) as You et al. 2020, Table 5 reports it; GraphCL: You et al. 2020, Table 5"


def run(
    bench: Bench, data: str = "TUDataset/MUTAG", seeds: int = 5, epochs: int = 20, jobs: int = 1
) -> Result:
    name = Path(data).name
    if seeds < 1:
        raise UserError(f"seeds was {seeds}; it must be a whole number from 1")
    arms = (*BASELINES, *METHODS)
    # every arm's first seed before any second one, so that what is interrupted is worth most
    settings = [
        {"data": name, "arm": arm, "seed": s, "epochs": epochs, "version": 1}
        for s in range(seeds)
        for arm in arms
    ]
    values = bench.arms(settings, partial(_accuracy, data, str(bench.folder)), jobs)
    found = {arm: values[place :: len(arms)] for place, arm in enumerate(arms)}
    rows = [Row(arm, PAPER.get(name, {}).get(arm), *_percent(values)) for arm, values in found.items()]
    return Result((Finding(f"{name}, accuracy in percent", tuple(rows), source=SOURCE),), _verdicts(found))


def _percent(values: list[float]) -> tuple[float, float | None]:
    return mean_and_spread([100 * value for value in values])


def _verdicts(found: Mapping[str, list[float]]) -> tuple[str, ...]:
    """Against the untrained network, seed by seed, on the same folds."""
    said = []
    for arm in METHODS:
        differences = [100 * (a - b) for a, b in zip(found[arm], found["untrained GIN"], strict=True)]
        said.append(f"{arm} above the untrained GIN {verdict(differences)}.")
    return tuple(said)


def _accuracy(data: str, folder: str, arm: Mapping[str, Any]) -> float:
    graphs, seed = open_data(data), arm["seed"]
    kernels: dict[str, Callable[[], np.ndarray]] = {
        "node labels": lambda: rbf_kernel(label_counts(graphs).double().numpy()),
        "Weisfeiler-Lehman": lambda: wl_kernel(graphs.load(np.arange(len(graphs)))),
        "untrained GIN": lambda: _untrained(graphs, seed),
    }
    kernel = kernels.get(arm["arm"], lambda: _trained(data, folder, arm))()
    return float(svm_scores(kernel, graphs.labels, seed, repeats=1)["top1"])


def _untrained(graphs: Any, seed: int) -> np.ndarray:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = graph_network("gin", label_counts(graphs).shape[1])
    return _kernel(network, graphs)


def _trained(data: str, folder: str, arm: Mapping[str, Any]) -> np.ndarray:
    recipe, changes = METHODS[arm["arm"]]
    out = Path(folder) / "runs" / f"{arm['data']}-{arm['arm']}-{arm['seed']}".replace(" ", "-")
    graphs = open_data(data)
    batch = min(128, len(graphs))  # the recipes' own, where there are so many
    settings = {
        "seed": arm["seed"],
        "epochs": arm["epochs"],
        "batch_size": batch,
        "probe_every": 0,
        "workers": 0,
    }
    trained: Run = pretrain(recipe, graphs, out, config=settings | changes, quiet=True)
    return _kernel(trained.encoder(), graphs)


def _kernel(network: torch.nn.Module, graphs: Any) -> np.ndarray:
    from nearfar.modalities.graph.views import WholeGraph

    device = torch.device("cpu")
    return rbf_kernel(network_features(network.to(device), graphs, WholeGraph(device), device))


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels

    figure, (axis,) = panels([result.findings[0].name])
    rows = result.findings[0].rows
    places = range(len(rows))
    axis.barh(
        places,
        [float(row.ours or 0) for row in rows],
        xerr=[row.spread or 0 for row in rows],
        color=COLOURS[0],
    )
    for place, row in zip(places, rows, strict=True):
        if row.paper is not None:
            axis.plot([row.paper], [place], "k|", markersize=16)
    axis.set_yticks(list(places), [row.label for row in rows], fontsize=7.5)
    axis.set(xlabel="accuracy, percent; bar: paper", xlim=(50, 100))
    return figure


STUDY = Study("graphs", "Sun et al. 2020 and You et al. 2020: graphs without labels, 10-fold SVM", run, draw)
