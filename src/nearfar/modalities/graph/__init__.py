"""Graphs, seen with nodes, edges or labels changed by a graph network.

nearfar pretrain infograph TUDataset/MUTAG --out runs/mutag       a folder with NAME_A.txt, NAME_graph_indicator.txt, …
nearfar evaluate runs/mutag                                       10-fold SVM, with Weisfeiler-Lehman and counts of labels
nearfar pretrain grace TUDataset/PROTEINS --out runs/nodes views.inputs=degree+attributes     features of nodes; evaluate predicts node labels
"""

from nearfar.modalities.base import Modality, ViewFamily
from nearfar.modalities.graph.data import GraphDescription, GraphReader, Graphs
from nearfar.modalities.graph.show import GraphPresenter
from nearfar.modalities.graph.views import GraphNetworks, Perturb, Shuffle, Thin

GRAPH = Modality(
    name="graph",
    unit="graphs",
    plural="graphs",
    example="TUDataset/MUTAG",
    reader=GraphReader(),
    views=ViewFamily({"perturb": Perturb, "shuffle-nodes": Shuffle, "thin": Thin}, one_shape=False),
    networks=GraphNetworks(),
    presenter=GraphPresenter(),
)

__all__ = ["GRAPH", "GraphDescription", "Graphs"]
