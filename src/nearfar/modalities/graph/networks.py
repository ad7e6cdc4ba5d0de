"""The backbones of graphs."""

from nearfar.core.method import Method
from nearfar.errors import UserError
from nearfar.modalities.base import AbstractNetworks, Choice
from nearfar.modalities.graph.data import GraphDescription, Graphs
from nearfar.parts.encoders import GRAPH_NETWORKS, GraphNetwork, InputSpec, graph_network


def network_for(name: str, description: GraphDescription) -> GraphNetwork:
    """A network of that name for graphs of this description."""
    return graph_network(
        name,
        description.node_labels,
        attributes=len(description.mean),
        edge_labels=description.edge_labels or 1,
    )


class GraphNetworks(AbstractNetworks):
    names = tuple(GRAPH_NETWORKS)
    default = "gin"
    smallest = "gin-small"

    def inputs(self, network: str, choice: Choice, description: GraphDescription) -> InputSpec:
        columns = 3 + max(len(description.mean), int(description.edge_labels is not None))
        return InputSpec(
            lambda view: network_for(network, description),
            ((description.most_nodes, columns),) * choice["count"],
            {"instances": description.instances, "nodes": description.most_nodes},
        )

    def check_method(self, data: Graphs, method: Method) -> None:
        """One graph is enough where its nodes are contrasted with each other or with corrupted ones."""
        encoders = method.encoders
        if len(data) < 2 and not (encoders.same_rows_in_views or encoders.gives_corrupted_keys):
            raise UserError(f"data {data.name!r}: training needs at least 2 graphs; found {len(data)}.")
