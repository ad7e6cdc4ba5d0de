"""Graphs: message passing over nodes, and InfoGraph, where a graph's summary must identify its own nodes.

A graph is seen as a table of records, so that it is one tensor like any view, the instance first:

    (NODE, label, 0, attributes)     its nodes in order; label -1: hidden
    (EDGE, from, to, label)          both directions of every edge
    (NOTHING, 0, 0)                  padding

Attributes are the bits of float32 numbers, so the table is of whole numbers and no precision changes it.

Convolutions are torch_geometric's; it is imported when a network is made.
"""

import itertools
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractOneNetwork
from nearfar.core.types import Batch, Encoded, Pair, view_pairs
from nearfar.errors import UserError
from nearfar.parts.encoders.heads import HeadConfig, InputSpec, Network, mlp_head, planned_config
from nearfar.parts.encoders.roles import predicted
from nearfar.system.extras import need

NOTHING, NODE, EDGE = -1, 0, 1
HIDDEN = -1  # label of a node whose own is not shown
Convolution = Literal["gin", "gcn", "gine"]
# (convolution, layers, width): GIN of 5 layers is InfoGraph's, of 3 GraphCL's; both have 32 units a layer
GRAPH_NETWORKS: dict[str, tuple[Convolution, int, int]] = {
    "gin": ("gin", 3, 32),
    "gin-5": ("gin", 5, 32),
    "gine": ("gine", 3, 32),
    "gcn": ("gcn", 3, 32),
    "gcn-2": ("gcn", 2, 64),
    "gin-small": ("gin", 1, 8),
}


class JoinedGraphs(NamedTuple):
    """All graphs of a view as one."""

    labels: Int[Tensor, "node"]
    edges: Int[Tensor, "2 edge"]
    graph: Int[Tensor, "node"]  # which graph a node is of
    attributes: Float[Tensor, "node column"]  # of the nodes, zeros in the columns that they have not
    edge_labels: Int[Tensor, "edge"]


def flattened(view: Int[Tensor, "graph record column"]) -> JoinedGraphs:
    nodes, edges = view[..., 0] == NODE, view[..., 0] == EDGE
    counts = nodes.sum(dim=1)
    first = counts.cumsum(dim=0) - counts
    graphs = torch.arange(len(view), device=view.device)
    ends = (view[..., 1:3] + first[:, None, None])[edges]
    further = view[..., 3:]
    attributes = further[nodes].to(torch.int32).view(torch.float32)
    edge_labels = further[edges][:, 0] if further.shape[-1] else torch.zeros_like(ends[:, 0])
    return JoinedGraphs(
        view[..., 1][nodes], ends.T, graphs.repeat_interleave(counts), attributes, edge_labels
    )


class GraphNetwork(nn.Module):
    """GIN (Xu et al. 2019), GINE (Hu et al. 2020: a message is ReLU(x_j + W e), e the label of its edge) or GCN
    (Kipf & Welling 2017) over one-hot node labels and node attributes, batch-normalised layer by layer.

    A node's features are the outputs of all layers side by side, a graph's their sums over its nodes (as
    InfoGraph and GraphCL have it).
    """

    def __init__(
        self,
        convolution: Convolution,
        labels: int,
        layers: int,
        width: int,
        *,
        attributes: int = 0,
        edge_labels: int = 1,
    ) -> None:
        super().__init__()
        self.labels, self.attributes, self.dim = labels, attributes, layers * width
        self.edge_labels = edge_labels if convolution == "gine" else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's about its own torch.jit, on import
            kinds = need("torch_geometric.nn")

        def layer(inputs: int, outputs: int) -> nn.Module:
            if convolution == "gcn":
                return kinds.GCNConv(inputs, outputs)
            mlp = nn.Sequential(
                nn.Linear(inputs, outputs), nn.ReLU(inplace=True), nn.Linear(outputs, outputs)
            )
            return kinds.GINEConv(mlp, edge_dim=edge_labels) if convolution == "gine" else kinds.GINConv(mlp)

        sizes = [labels + attributes, *[width] * layers]
        self.layers = nn.ModuleList(layer(*pair) for pair in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))

    def inputs(self, joined: JoinedGraphs) -> Float[Tensor, "node column"]:
        """What the first layer is shown: the label one-hot, then the attributes."""
        label = joined.labels
        visible = (label >= 0) & (label < self.labels)  # one that training never met is as good as hidden
        one_hot = F.one_hot(torch.where(visible, label, 0), self.labels) * visible[:, None]
        columns = torch.cat([one_hot.float(), joined.attributes[:, : self.attributes]], dim=1)
        return columns.to(next(self.parameters()).dtype)

    def nodes(
        self, view: Int[Tensor, "graph record column"]
    ) -> tuple[Float[Tensor, "node dim"], Int[Tensor, "node"]]:
        """Features of every node of every graph, and which graph it is of."""
        joined = flattened(view)
        x = self.inputs(joined)
        messages: tuple[Tensor, ...] = (joined.edges,)
        if self.edge_labels is not None:
            kinds = joined.edge_labels.clamp(max=self.edge_labels - 1)
            messages += (F.one_hot(kinds, self.edge_labels).to(x.dtype),)
        layer_outputs = []
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(F.relu(layer(x, *messages)))
            layer_outputs.append(x)
        return torch.cat(layer_outputs, dim=1), joined.graph

    def pooled(
        self, nodes: Float[Tensor, "node dim"], graph: Int[Tensor, "node"], graphs: int
    ) -> Float[Tensor, "graph dim"]:
        return nodes.new_zeros(graphs, self.dim).index_add(0, graph, nodes)

    def forward(self, view: Int[Tensor, "graph record column"]) -> Float[Tensor, "graph dim"]:
        nodes, graph = self.nodes(view)
        return self.pooled(nodes, graph, len(view))


def graph_network(name: str, labels: int, *, attributes: int = 0, edge_labels: int = 1) -> GraphNetwork:
    convolution, layers, width = GRAPH_NETWORKS[name]
    return GraphNetwork(convolution, labels, layers, width, attributes=attributes, edge_labels=edge_labels)


class InfoGraph(nn.Module, AbstractOneNetwork):
    """Deep InfoMax on graphs (Sun et al. 2020): the summary of a graph is contrasted, at each of its nodes,
    with the nodes of all other graphs. bound=js is the paper's form, bound=infonce the other one.

    A row is a node: its anchor is its graph's summary, its key its own embedding, its identity the graph, so
    that no node of the same graph is a negative. `nodes`: the number of nodes sampled from each graph in
    every step; none: all of them.
    """

    equation = "u = h(x), v = the embedding of a node of x'"
    remarks = (("nodes", ..., "{nodes} nodes drawn from each graph"),)
    works_with_one_view = True
    row_per_instance = False  # rows are nodes
    backbone_names = tuple(GRAPH_NETWORKS)
    network: Network

    def __init__(self, network: Network | HeadConfig, nodes: int | None = None) -> None:
        super().__init__()
        if nodes is not None and nodes < 1:
            raise UserError(f"encoders.nodes was {nodes}; it must be a whole number from 1, or none for all")
        self.network = network.planned() if isinstance(network, HeadConfig) else network
        self.place: nn.Module = nn.Identity()
        self.register_module("predictor", None)
        self.sampled_nodes, self.max_nodes = nodes, 0  # nodes of the largest graph

    def meet(self, inputs: InputSpec) -> None:
        head = planned_config(self.network)
        self.network = network = head.network(inputs)
        self.place = mlp_head(network.backbone.dim, head.hidden, head.dim, norm=head.head == "mlp")  # type: ignore[arg-type]
        self.max_nodes, self.predictor = inputs.context["nodes"], head.make_predictor()

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        """Graphs differ in size: the certificate assumes the largest, so that its ceiling holds."""
        pairs = view_pairs(views, symmetric, key_views)
        nodes = (
            self.max_nodes
            if self.sampled_nodes is None or not self.training
            else min(self.sampled_nodes, self.max_nodes)
        )
        return tuple(Pair(a, b, 1.0 / len(pairs), nodes) for a, b in pairs)

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        graphs = {w: self._features(batch.views[w]) for w in sorted({*anchors, *keys})}
        summaries = {w: self.network.head(self.network.dropped(graphs[w][0])) for w in anchors}
        online = predicted(self.predictor, summaries)
        rows = {w: self._rows(graphs[w][2]) for w in keys}
        graph = {w: graphs[w][2][rows[w]] for w in keys}
        return Encoded(
            # an anchor's rows are those of the key it meets; with one view or two there is but one such
            {a: online[a][graph[self._partner(a, keys)]] for a in anchors},
            {w: self.place(graphs[w][1][rows[w]]) for w in keys},
            index={w: batch.index[graph[w]] for w in keys},
            instance=graph,
            embeddings=summaries,
        )

    @staticmethod
    def _partner(anchor: int, keys: Sequence[int]) -> int:
        partners = [key for key in keys if key != anchor]
        if len(partners) > 1:
            raise UserError("views.count was above 2; encoders=infograph takes one view or two")
        return partners[0] if partners else anchor

    def _features(self, view: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        body: Any = self.network.backbone
        nodes, graph = body.nodes(view)
        return body.pooled(nodes, graph, len(view)), nodes, graph

    def _rows(self, graph: Int[Tensor, "node"]) -> Int[Tensor, "row"]:
        """Positions of the nodes that count: all, or a random sample of each graph."""
        if self.sampled_nodes is None or not self.training:
            return torch.arange(len(graph), device=graph.device)
        order = torch.rand(len(graph), device=graph.device).argsort()
        order = order[graph[order].argsort(stable=True)]  # by graph, within it as drawn
        counts = torch.bincount(graph)
        first = (counts.cumsum(dim=0) - counts)[graph[order]]
        place = torch.arange(len(graph), device=graph.device) - first
        return order[place < self.sampled_nodes].sort().values
