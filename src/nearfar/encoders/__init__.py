"""Who encodes: backbones and heads (networks), and roles (who embeds the anchor, who the key)."""

from collections.abc import Callable

from nearfar.encoders.apart import Apart
from nearfar.encoders.backbones import backbone, check_backbone, parameters_of
from nearfar.encoders.heads import Network, linear_head, mlp_head
from nearfar.encoders.infomax import InfoMax
from nearfar.encoders.norm import commit_statistics, with_pure_norms
from nearfar.encoders.plan import Plan, Seen
from nearfar.encoders.roles import Momentum, Shared
from nearfar.types import Encoders

PARTS: dict[str, Callable[..., Encoders]] = {
    "shared": Shared,
    "momentum": Momentum,
    "apart": Apart,
    "infomax": InfoMax,
}

__all__ = [
    "PARTS",
    "Apart",
    "InfoMax",
    "Momentum",
    "Network",
    "Plan",
    "Seen",
    "Shared",
    "backbone",
    "check_backbone",
    "commit_statistics",
    "linear_head",
    "mlp_head",
    "parameters_of",
    "with_pure_norms",
]
