"""Graph networks (`parts.encoders.graphs`) by name."""

from nearfar.modalities.base import AbstractNetworks, Choice
from nearfar.modalities.graph.data import GraphDescription
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
