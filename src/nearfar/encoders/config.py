"""How a network is put together around a backbone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import nn

from nearfar.encoders.backbones import backbone
from nearfar.encoders.heads import Network, linear_head, mlp_head
from nearfar.errors import UserError
from nearfar.types import Remark

Head = Literal["linear", "linear-norm", "mlp", "mlp-plain"]


@dataclass(frozen=True)
class InputSpec:
    """What the networks of a run are shown.

    `body(v)` makes a backbone for view v, with `dim`; `shapes[v]` is the shape of one instance in view v; `context` is what
    data and views know by name that a role may ask for (`instances`, `samples`, `symbols`, …).
    """

    body: Callable[[int], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    context: Mapping[str, Any] = field(default_factory=dict)


def pictured(
    name: str, channels: Sequence[int], size: int, context: Mapping[str, Any] | None = None
) -> InputSpec:
    """Square pictures of `size` pixels a side, so many channels in each view, seen by the named backbone."""
    return InputSpec(
        lambda view: backbone(name, channels[view], size),
        tuple((count, size, size) for count in channels),
        context or {},
    )


@dataclass(frozen=True)
class HeadConfig:
    """Head and predictor of a network.

    `head`: linear; linear-norm (a linear map, batch-normalised); mlp (with batch norm); mlp-plain (without:
    MoCo v2). `predictor`: the online network's extra MLP (BYOL), or none.
    """

    remarks: ClassVar[tuple[Remark, ...]] = (("predictor", "mlp", "u goes through a predictor"),)

    head: Head = "mlp"
    hidden: int = 512
    dim: int = 128
    dropout: float = 0.0
    predictor: Literal["none", "mlp"] = "none"

    def __post_init__(self) -> None:
        for key in ("hidden", "dim"):
            if not 1 <= getattr(self, key) <= 65536:
                raise UserError(f"encoders.{key} was {getattr(self, key)}; it must be from 1 to 65536")
        if not 0 <= self.dropout < 1:
            raise UserError(f"encoders.dropout was {self.dropout}; it must lie in [0, 1)")

    def network(self, seen: InputSpec, view: int = 0) -> Network:
        body = seen.body(view)
        return Network(body, self._head(int(body.dim)), self.dropout)  # type: ignore[arg-type]

    def _head(self, inputs: int) -> nn.Module:
        if self.head == "linear":
            return linear_head(inputs, self.dim)
        if self.head == "linear-norm":
            return linear_head(inputs, self.dim, norm=True)
        return mlp_head(inputs, self.hidden, self.dim, norm=self.head == "mlp")

    def make_predictor(self) -> nn.Module | None:
        return None if self.predictor == "none" else mlp_head(self.dim, self.hidden, self.dim)
