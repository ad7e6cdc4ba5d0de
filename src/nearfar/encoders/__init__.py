"""Who encodes: backbones and heads (networks), and roles (who embeds the anchor, who the key)."""

from collections.abc import Callable

from nearfar.encoders.backbones import backbone, check_backbone, parameters_of
from nearfar.encoders.heads import Network, linear_head, mlp_head
from nearfar.encoders.norm import commit_statistics, with_pure_norms
from nearfar.encoders.plan import Plan
from nearfar.encoders.roles import Momentum, Shared
from nearfar.types import Encoders

PARTS: dict[str, Callable[..., Encoders]] = {"shared": Shared, "momentum": Momentum}

__all__ = [
    "PARTS",
    "Momentum",
    "Network",
    "Plan",
    "Shared",
    "backbone",
    "check_backbone",
    "commit_statistics",
    "linear_head",
    "mlp_head",
    "parameters_of",
    "with_pure_norms",
]
