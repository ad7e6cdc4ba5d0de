"""Who encodes: backbones and heads (networks), and roles (who embeds the anchor, who the key)."""

from collections.abc import Callable

from nearfar.core.abstract import AbstractEncoders
from nearfar.parts.encoders.backbones import BACKBONES, backbone, check_backbone, parameters_of
from nearfar.parts.encoders.distilled import Distilled
from nearfar.parts.encoders.graphs import GRAPH_NETWORKS, GraphNetwork, InfoGraph, graph_network
from nearfar.parts.encoders.heads import HeadConfig, InputSpec, Network, linear_head, mlp_head, pictured
from nearfar.parts.encoders.infomax import InfoMax
from nearfar.parts.encoders.masked import MaskedSymbols, TokenTransformer
from nearfar.parts.encoders.nodes import DeepGraphInfomax, Nodes
from nearfar.parts.encoders.per_view import PerView
from nearfar.parts.encoders.prototypes import Prototypes
from nearfar.parts.encoders.roles import Momentum, Shared
from nearfar.parts.encoders.sequence import ConvGRU, Predictive

PARTS: dict[str, Callable[..., AbstractEncoders]] = {
    "shared": Shared,
    "momentum": Momentum,
    "per-view": PerView,
    "infomax": InfoMax,
    "infograph": InfoGraph,
    "nodes": Nodes,
    "dgi": DeepGraphInfomax,
    "predictive": Predictive,
    "masked": MaskedSymbols,
    "prototypes": Prototypes,
    "distilled": Distilled,
}

__all__ = [
    "BACKBONES",
    "GRAPH_NETWORKS",
    "PARTS",
    "ConvGRU",
    "DeepGraphInfomax",
    "Distilled",
    "GraphNetwork",
    "HeadConfig",
    "InfoGraph",
    "InfoMax",
    "InputSpec",
    "MaskedSymbols",
    "Momentum",
    "Network",
    "Nodes",
    "PerView",
    "Predictive",
    "Prototypes",
    "Shared",
    "TokenTransformer",
    "backbone",
    "check_backbone",
    "graph_network",
    "linear_head",
    "mlp_head",
    "parameters_of",
    "pictured",
]
