"""Encoders whose rows are the nodes of graphs: GRACE, and Deep Graph Infomax."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractOneNetwork
from nearfar.core.types import Batch, Encoded, Pair, view_pairs
from nearfar.parts.encoders.graphs import GRAPH_NETWORKS
from nearfar.parts.encoders.heads import HeadConfig, InputSpec, Network, planned_config
from nearfar.parts.encoders.roles import predicted
from nearfar.parts.encoders.sequence import whole_instance_memory


class Nodes(nn.Module, AbstractOneNetwork):
    """A node in one view is contrasted with the nodes of both views (GRACE, Zhu et al. 2020).

    All views have the same nodes in the same order. A node's identity is instance + instances * its number in
    its graph. The certificate assumes the largest graph, so that its ceiling holds.
    """

    equation = "u = g(h_i) of node i in x, v = g(h_i) in x'"
    view_names = ("thin",)
    row_per_instance = False
    same_rows_in_views = True
    backbone_names = tuple(GRAPH_NETWORKS)
    network: Network

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        return whole_instance_memory("encoders was nodes", "nodes of one graph", choices, parts)

    def __init__(self, network: Network | HeadConfig) -> None:
        super().__init__()
        self.network = network.planned() if isinstance(network, HeadConfig) else network
        self.max_nodes, self.instances = 0, 0
        self.register_module("predictor", None)

    def meet(self, inputs: InputSpec) -> None:
        head = planned_config(self.network)
        self.network, self.predictor = head.network(inputs), head.make_predictor()
        self.max_nodes, self.instances = inputs.context["nodes"], inputs.context["instances"]

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        pairs = view_pairs(views, symmetric, key_views)
        return tuple(Pair(a, b, 1 / len(pairs), self.max_nodes, self.max_nodes - 1) for a, b in pairs)

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        embeddings, graph = {}, batch.index
        for view in sorted({*anchors, *keys}):
            features, graph = self.network.backbone.nodes(batch.views[view])  # type: ignore[operator]
            embeddings[view] = self.network.head(self.network.dropped(features))
        identity = batch.index[graph] + self.instances * _place_in_graph(graph)
        return Encoded(
            predicted(self.predictor, {view: embeddings[view] for view in anchors}),
            {view: embeddings[view] for view in keys},
            dict.fromkeys(keys, identity),
            dict.fromkeys(keys, graph),
            {view: embeddings[view] for view in anchors},
        )


class DeepGraphInfomax(nn.Module, AbstractOneNetwork):
    """Contrasts a graph's summary with nodes of corrupted graphs (Veličković et al. 2019).

    A row is a node: its anchor is its graph's summary, s(mean of h_i) with s the logistic function, its key
    h_i. The second view is the corrupted graph; its nodes are further keys, which negatives=corrupted reads.
    """

    equation = "u = s(mean of h_i over the nodes of x), v = h_i"
    view_names = ("shuffle-nodes",)
    view_count = 2
    row_per_instance = False
    gives_corrupted_keys = True
    backbone_names = tuple(GRAPH_NETWORKS)
    network: Network

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        negatives = choices["negatives"]["name"]
        if negatives == "corrupted":
            return None
        return f"negatives was {negatives} with encoders=dgi, whose second view is corrupted; use corrupted"

    def __init__(self, network: Network | HeadConfig) -> None:
        super().__init__()
        self.network = network.planned() if isinstance(network, HeadConfig) else network
        self.max_nodes = 0

    def meet(self, inputs: InputSpec) -> None:
        self.network = planned_config(self.network).network(inputs)
        self.max_nodes = inputs.context["nodes"]

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        return (Pair(0, 0, 1.0, self.max_nodes),)

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        nodes = []
        for view in batch.views:
            features, graph = self.network.backbone.nodes(view)  # type: ignore[operator]
            nodes.append(self.network.head(self.network.dropped(features)))
        sums = nodes[0].new_zeros(len(batch.index), nodes[0].shape[1]).index_add(0, graph, nodes[0])
        summary = torch.sigmoid(sums / torch.bincount(graph, minlength=len(sums))[:, None])
        return Encoded(
            dict.fromkeys(anchors, summary[graph]),
            dict(enumerate(nodes)) if keys else {},
            dict.fromkeys(range(len(nodes)), batch.index[graph]) if keys else {},
            dict.fromkeys(range(len(nodes)), graph) if keys else {},
            dict.fromkeys(anchors, summary),
        )


def _place_in_graph(graph: Int[Tensor, "node"]) -> Int[Tensor, "node"]:
    """The number of each node within its graph; nodes are in the order of their graphs."""
    counts = torch.bincount(graph)
    return torch.arange(len(graph), device=graph.device) - (counts.cumsum(dim=0) - counts)[graph]
