"""Graphs, seen with nodes, edges or labels changed by a graph network.

nearfar pretrain infograph TUDataset/MUTAG --out runs/mutag       a folder with NAME_A.txt, NAME_graph_indicator.txt, …
nearfar evaluate runs/mutag --baselines                           10-fold SVM, with Weisfeiler-Lehman and counts of labels
"""

from nearfar.modalities.base import AbstractNetworks, Choice, Modality, ViewFamily
from nearfar.modalities.graph.data import GraphDescription, GraphReader, Graphs
from nearfar.modalities.graph.show import GraphPresenter
from nearfar.modalities.graph.views import Perturb
from nearfar.parts.encoders import GRAPH_NETWORKS, InputSpec, graph_network


class GraphNetworks(AbstractNetworks):
    names = tuple(GRAPH_NETWORKS)
    default = "gin"
    smallest = "gin-small"

    def inputs(self, network: str, choice: Choice, description: GraphDescription) -> InputSpec:
        return InputSpec(
            lambda view: graph_network(network, description.node_labels),
            ((description.most_nodes, 3),) * choice["count"],
            {"instances": description.instances, "nodes": description.most_nodes},
        )


GRAPH = Modality(
    name="graph",
    unit="graphs",
    plural="graphs",
    example="TUDataset/MUTAG",
    reader=GraphReader(),
    views=ViewFamily({"perturb": Perturb}, one_shape=False),
    networks=GraphNetworks(),
    presenter=GraphPresenter(),
)

__all__ = ["GRAPH", "GraphDescription", "Graphs"]
