"""Projection heads and predictors, the network of backbone and head, and the settings that describe both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.types import Remark
from nearfar.errors import UserError, check_number, check_whole
from nearfar.parts.encoders.backbones import backbone


def linear_head(inputs: int, outputs: int, norm: bool = False) -> nn.Module:
    """A linear map (instance discrimination, MoCo v1), its output batch-normalised on request."""
    linear = nn.Linear(inputs, outputs, bias=not norm)
    return nn.Sequential(linear, nn.BatchNorm1d(outputs)) if norm else linear


def mlp_head(
    inputs: int, hidden: int, outputs: int, norm: bool = True, layers: int = 2, gelu: bool = False
) -> nn.Sequential:
    """Linear, batch norm, ReLU, linear (SimCLR, BYOL); without the norm it is MoCo v2's head, with three
    linear `layers` SimCLR v2's; with GELU in place of ReLU, three layers and no norm, DINO's."""
    inner: list[nn.Module] = []
    for _ in range(layers - 1):
        inner.append(nn.Linear(inputs, hidden, bias=not norm))
        inner += [nn.BatchNorm1d(hidden)] if norm else []
        inner.append(nn.GELU() if gelu else nn.ReLU(inplace=True))
        inputs = hidden
    return nn.Sequential(*inner, nn.Linear(inputs, outputs))


class Network(nn.Module):
    """Backbone, dropout on its features, head. After training the head is thrown away. `dim` is how wide its
    output is, and `backbone_width` its features, where that is known. `prototypes`: learnt vectors next to the
    head's output, which are read as a table and never called."""

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        dropout: float = 0.0,
        *,
        dim: int | None = None,
        backbone_width: int | None = None,
        prototypes: nn.Embedding | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.head, self.dropout, self.dim = backbone, head, dropout, dim
        self.backbone_width, self.prototypes = backbone_width, prototypes

    def forward(self, x: Tensor) -> Float[Tensor, "image dim"]:
        return self.head(self.dropped(self.backbone(x)))

    def dropped(self, features: Tensor) -> Tensor:
        return F.dropout(features, self.dropout, self.training) if self.dropout else features


def prototypes_of(network: nn.Module) -> Float[Tensor, "prototype dim"] | None:
    """The prototypes of a network; None: it has none."""
    table = network.prototypes if isinstance(network, Network) else None
    return None if table is None else table.weight


Head = Literal["none", "linear", "linear-norm", "mlp", "mlp-plain", "mlp-gelu"]


@dataclass(frozen=True)
class InputSpec:
    """What the networks of a run are shown.

    `body(v)` makes a backbone for view v, with `dim`; `shapes[v]` is the shape of one instance in view v;
    `context`: facts about data and views that encoders may need (`instances`, `samples`, `symbols`, …).
    """

    body: Callable[[int], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    context: Mapping[str, Any] = field(default_factory=dict)
    measure_width: bool = False  # measure the width of its features: the network is the user's


def width_of(body: nn.Module, shape: tuple[int, ...]) -> int:
    """How many features a network gives of one instance, by a pass over zeros without gradient."""
    weight = next(body.parameters(), None)
    zeros = torch.zeros(2, *shape, device=None if weight is None else weight.device)
    training = body.training
    try:
        with torch.no_grad():
            output = body.eval()(zeros)
    except Exception as problem:  # a user's network may raise anything
        raise UserError(
            f"backbone {type(body).__name__} could not take a batch of shape {tuple(zeros.shape)}: {problem}"
        ) from problem
    finally:
        body.train(training)
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != 2:
        description = (
            f"a tensor of shape {tuple(output.shape)}"
            if isinstance(output, Tensor)
            else type(output).__name__
        )
        raise UserError(
            f"backbone {type(body).__name__} gave {description} of a batch of shape {tuple(zeros.shape)}; "
            "expected features (2, d), one row for each instance: pool or flatten what comes before"
        )
    return output.shape[1]


def pictured(
    name: str,
    channels: Sequence[int],
    size: int,
    context: Mapping[str, Any] | None = None,
    sizes: Sequence[int] = (),
    config: Callable[[], Mapping[str, Any] | None] = lambda: None,
) -> InputSpec:
    """Inputs of square pictures, with the given channels in each view, for the named backbone, which is made
    for `size` pixels. `sizes`: the side of each view; empty: `size`. `config`: returns that of a network whose
    name does not describe it."""
    return InputSpec(
        lambda view: backbone(name, channels[view], size, sizes, config()),
        tuple(
            (count, side, side) for count, side in zip(channels, sizes or [size] * len(channels), strict=True)
        ),
        context or {},
    )


@dataclass(frozen=True)
class HeadConfig:
    """Head and predictor of a network.

    `head`: none (features as they are); linear; linear-norm (a linear map, batch-normalised); mlp (with batch
    norm); mlp-plain (without: MoCo v2); mlp-gelu (without, and GELU: DINO). `layers`: linear maps in an mlp head (SimCLR v2 has 3). `cut`: keep
    that many of them, each with its norm and ReLU, as SimCLR v2 does for fine-tuning (0: the whole head).
    `predictor`: the online network's extra MLP (BYOL), or none. `prototypes`: how many learnt vectors there
    there are next to the head's output, which negatives=sinkhorn and negatives=centred assign views to.
    """

    remarks: ClassVar[tuple[Remark, ...]] = (("predictor", "mlp", "u goes through a predictor"),)

    head: Head = "mlp"
    hidden: int = 512
    dim: int = 128
    dropout: float = 0.0
    predictor: Literal["none", "mlp"] = "none"
    layers: int = 2
    cut: int = 0
    prototypes: int = 0

    def __post_init__(self) -> None:
        for key in ("hidden", "dim"):
            check_whole(f"encoders.{key}", getattr(self, key), 1, 65536)
        if self.head == "none" and self.predictor != "none":
            raise UserError("encoders.predictor was mlp with encoders.head=none; a predictor follows a head")
        check_whole("encoders.layers", self.layers, 2, 16)
        if self.layers != 2 and not self.head.startswith("mlp"):
            raise UserError(
                f"encoders.layers was {self.layers} with encoders.head={self.head}; only mlp, mlp-plain and "
                "mlp-gelu have several layers"
            )
        if self.cut and not (self.head.startswith("mlp") and 0 < self.cut < self.layers):
            raise UserError(
                f"encoders.cut was {self.cut} with encoders.head={self.head} and "
                f"encoders.layers={self.layers}; of an mlp head "
                "the first 1 to layers - 1 can be kept, or 0 for the whole"
            )
        if self.prototypes == 1 or not 0 <= self.prototypes <= 2**20:
            raise UserError(
                f"encoders.prototypes was {self.prototypes}; it must be from 2 to {2**20}, or 0 for none"
            )
        check_number("encoders.dropout", self.dropout, 0, 1, exclude_high=True)

    def planned(self) -> "PlannedNetwork":
        """A stand-in for the network until the method meets its data."""
        return PlannedNetwork(self)

    def network(self, inputs: InputSpec, view: int = 0) -> Network:
        body = inputs.body(view)
        width = width_of(body, inputs.shapes[view]) if inputs.measure_width else int(body.dim)  # type: ignore[arg-type]
        dim = width if self.head == "none" else self.hidden if self.cut else self.dim
        head = self.make_head(width)
        prototypes = nn.Embedding(self.prototypes, dim) if self.prototypes else None
        return Network(body, head, self.dropout, dim=dim, backbone_width=width, prototypes=prototypes)

    def make_head(self, inputs: int) -> nn.Module:
        if self.head == "none":
            return nn.Identity()
        if self.head == "linear":
            return linear_head(inputs, self.dim)
        if self.head == "linear-norm":
            return linear_head(inputs, self.dim, norm=True)
        norm, gelu = self.head == "mlp", self.head == "mlp-gelu"
        layers = mlp_head(inputs, self.hidden, self.dim, norm=norm, layers=self.layers, gelu=gelu)
        # a linear map, its norm, its ReLU; the last map stands alone
        layer_parts = (len(layers) - 1) // (self.layers - 1)
        return layers[: layer_parts * self.cut] if self.cut else layers

    def make_predictor(self) -> nn.Module | None:
        """The predictor, batch-normalised unless the head is an mlp without norm."""
        if self.predictor == "none":
            return None
        return mlp_head(self.dim, self.hidden, self.dim, norm=self.head != "mlp-plain")


class PlannedNetwork(Network):
    """Stands for a network that is made in `meet`, when backbone and inputs are known."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(nn.Identity(), nn.Identity())
        self.config = config

    def forward(self, x: Tensor) -> Tensor:
        raise UserError("the network is made when the method meets its data; train it with nearfar.pretrain")


def network_or_plan(network: nn.Module | HeadConfig) -> nn.Module:
    return network.planned() if isinstance(network, HeadConfig) else network


def planned_config(network: nn.Module) -> HeadConfig:
    """The configuration of a network that is not made yet."""
    assert isinstance(network, PlannedNetwork), f"{type(network).__name__} is made already"
    return network.config


def planned_head(encoders: object) -> HeadConfig | None:
    """The head of encoders whose network is not made yet; None: their network is made or needs no head."""
    modules = encoders.modules() if isinstance(encoders, nn.Module) else ()
    return next((module.config for module in modules if isinstance(module, PlannedNetwork)), None)
