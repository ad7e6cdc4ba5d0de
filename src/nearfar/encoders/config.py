"""How a network is put together around a backbone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from nearfar.encoders.backbones import backbone
from nearfar.encoders.heads import Network, linear_head, mlp_head
from nearfar.errors import UserError

Head = Literal["linear", "linear-norm", "mlp", "mlp-plain"]


@dataclass(frozen=True)
class InputSpec:
    """What the networks of a run are shown, and with which backbone.

    `channels`: of each view of a picture; for text, the number of symbols. `size`: side of a picture, length of a block of
    text. `instances`: how many there are. `views`: the settings of the views.
    """

    backbone: str
    channels: tuple[int, ...]
    size: int
    instances: int = 1
    views: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HeadConfig:
    """Head and predictor of a network.

    `head`: linear; linear-norm (a linear map, batch-normalised); mlp (with batch norm); mlp-plain (without:
    MoCo v2). `predictor`: the online network's extra MLP (BYOL), or none.
    """

    head: Head = "mlp"
    hidden: int = 512
    dim: int = 128
    dropout: float = 0.0
    predictor: Literal["none", "mlp"] = "none"

    def __post_init__(self) -> None:
        for key in ("hidden", "dim"):
            if not 1 <= getattr(self, key) <= 65536:
                raise UserError(f"encoders.{key} was {getattr(self, key)}; it lies from 1 to 65536")
        if not 0 <= self.dropout < 1:
            raise UserError(f"encoders.dropout was {self.dropout}; it lies in [0, 1)")

    def network(self, seen: InputSpec, view: int = 0) -> Network:
        body = backbone(seen.backbone, seen.channels[view], seen.size)
        return Network(body, self._head(int(body.dim)), self.dropout)  # type: ignore[arg-type]

    def _head(self, inputs: int) -> nn.Module:
        if self.head == "linear":
            return linear_head(inputs, self.dim)
        if self.head == "linear-norm":
            return linear_head(inputs, self.dim, norm=True)
        return mlp_head(inputs, self.hidden, self.dim, norm=self.head == "mlp")

    def make_predictor(self) -> nn.Module | None:
        return None if self.predictor == "none" else mlp_head(self.dim, self.hidden, self.dim)
