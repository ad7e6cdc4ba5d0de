"""Who encodes: backbones and heads (networks), and roles (who embeds the anchor, who the key)."""

from collections.abc import Callable

from nearfar.encoders.backbones import BACKBONES, backbone, check_backbone, parameters_of
from nearfar.encoders.config import HeadConfig, InputSpec, pictured
from nearfar.encoders.distilled import Distilled
from nearfar.encoders.graphs import GRAPH_NETWORKS, GraphNetwork, InfoGraph, graph_network
from nearfar.encoders.heads import Network, linear_head, mlp_head
from nearfar.encoders.infomax import InfoMax
from nearfar.encoders.masked import MaskedSymbols, TokenTransformer
from nearfar.encoders.per_view import PerView
from nearfar.encoders.prototypes import Prototypes
from nearfar.encoders.roles import Momentum, Shared, as_encoders
from nearfar.encoders.sequence import ConvGRU, Predictive
from nearfar.types import Encoders

PARTS: dict[str, Callable[..., Encoders]] = {
    "shared": Shared,
    "momentum": Momentum,
    "per-view": PerView,
    "infomax": InfoMax,
    "infograph": InfoGraph,
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
    "Distilled",
    "GraphNetwork",
    "HeadConfig",
    "InfoGraph",
    "InfoMax",
    "InputSpec",
    "MaskedSymbols",
    "Momentum",
    "Network",
    "PerView",
    "Predictive",
    "Prototypes",
    "Shared",
    "TokenTransformer",
    "as_encoders",
    "backbone",
    "check_backbone",
    "graph_network",
    "linear_head",
    "mlp_head",
    "parameters_of",
    "pictured",
]
