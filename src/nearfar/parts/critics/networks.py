"""Critics that are networks (Song & Ermon 2020, App. C.2).

    Separable   f(u, v) = g(u)^T h(v)     two networks, n + m passes for n x m scores
    Joint       f(u, v) = t([u, v])       one network, n x m passes: sees interactions a product cannot
    Hybrid      f(u, v) = t([g(u), h(v)]) two large networks n + m times, a small one on both n x m times
    Bilinear    f(u, v) = u^T W v         no hidden layer: what is linear in each

`dim` is the width of both sides, or one for each. `starts_at_zero` begins with every score at zero, so that training
moves away from "nothing is known" (and a critic can be added to another without disturbing it).
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractCritic, AbstractInnerProduct, Anchors, Factors, Keys
from nearfar.core.schedules import START, Progress
from nearfar.core.types import Sizes
from nearfar.errors import UserError, check_whole

Dim = int | tuple[int, int]
Activation = Literal["relu", "silu"]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU}


def _sides(dim: Dim) -> tuple[int, int]:
    return dim if isinstance(dim, tuple) else (dim, dim)


def _check_above_zero(**numbers: int) -> None:
    for name, number in numbers.items():
        check_whole(f"critic.{name}", number, 1)


def _check_activation(name: str) -> None:
    if name not in ACTIVATIONS:
        raise UserError(f"critic.activation was {name!r}; expected {', '.join(ACTIVATIONS)}")


def _hidden_layers(width: int, hidden: int, layers: int, activation: Activation) -> list[nn.Module]:
    modules: list[nn.Module] = []
    for depth in range(layers):
        modules += [nn.Linear(width if depth == 0 else hidden, hidden), ACTIVATIONS[activation]()]
    return modules


def _last(width: int, out: int, starts_at_zero: bool, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(width, out, bias=bias)
    if starts_at_zero:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    return layer


class NetworksOfWidth(nn.Module):
    """Networks that are made at once where `dim` is given, else when the method meets its data."""

    def __init__(self, dim: Dim | None, starts_at_zero: bool) -> None:
        super().__init__()
        self.starts_at_zero = starts_at_zero
        if dim is not None:
            self.make(dim)

    def meet(self, sizes: Sizes) -> None:
        self.make(sizes.width(self))

    def make(self, dim: Dim) -> None:
        """Makes the networks for this width of both sides, or of each."""
        raise NotImplementedError


class Separable(NetworksOfWidth, AbstractInnerProduct):
    """f(u, v) = g(u)^T h(v), g and h of `layers` hidden layers (Song & Ermon 2020, App. C.2)."""

    equation = "g(u)^T h(v)"

    def __init__(
        self,
        hidden: int = 256,
        layers: int = 2,
        out: int = 32,
        activation: Activation = "relu",
        *,
        dim: Dim | None = None,
        starts_at_zero: bool = False,
    ) -> None:
        _check_above_zero(hidden=hidden, layers=layers, out=out)
        _check_activation(activation)
        super().__init__(dim, starts_at_zero)

    def make(self, dim: Dim) -> None:
        hidden, layers, out, activation = self.settings.values()
        first, second = _sides(dim)
        # one side of zeros is enough: the other stays random, so that of zeros has a gradient
        self.g = nn.Sequential(
            *_hidden_layers(first, hidden, layers, activation), _last(hidden, out, self.starts_at_zero)
        )
        self.h = nn.Sequential(*_hidden_layers(second, hidden, layers, activation), _last(hidden, out, False))

    def factors(self, anchors: Anchors, keys: Keys, progress: Progress) -> Factors:
        return self.g(anchors), self.h(keys)


class Joint(NetworksOfWidth, AbstractCritic):
    """f(u, v) = t([u, v]), one network of `layers` hidden layers (Song & Ermon 2020, App. C.2)."""

    equation = "t([u, v])"
    normalised = False

    def __init__(
        self,
        hidden: int = 256,
        layers: int = 2,
        activation: Activation = "relu",
        *,
        dim: Dim | None = None,
        starts_at_zero: bool = False,
    ) -> None:
        _check_above_zero(hidden=hidden, layers=layers)
        _check_activation(activation)
        super().__init__(dim, starts_at_zero)

    def make(self, dim: Dim) -> None:
        hidden, layers, activation = self.settings.values()
        self.sides = _sides(dim)
        self.first = nn.Linear(sum(self.sides), hidden)
        self.rest = nn.Sequential(
            ACTIVATIONS[activation](),
            *_hidden_layers(hidden, hidden, layers - 1, activation),
            _last(hidden, 1, self.starts_at_zero),
        )

    def pairs(self, anchors: Anchors, keys: Anchors, progress: Progress = START) -> Float[Tensor, "n"]:
        return self.rest(self.first(torch.cat([anchors, keys], dim=1))).squeeze(1)

    def cross(self, anchors: Anchors, keys: Keys, progress: Progress = START) -> Float[Tensor, "n m"]:
        # the first layer is linear in each side, so it runs n + m times, not n x m
        of_anchor, of_key = self.first.weight.split(self.sides, dim=1)
        anchor_part = anchors @ of_anchor.T + self.first.bias
        hidden = (anchor_part[:, None] + (keys @ of_key.T)[None]).flatten(0, 1)  # (n m, hidden)
        return self.rest(hidden).view(len(anchors), len(keys))


class Hybrid(NetworksOfWidth, AbstractCritic):
    """f(u, v) = t([g(u), h(v)]): each side through a network of its own to `out` numbers, both together
    through one layer of `small`. It sees interactions as `Joint` does, at little more than the cost of
    `Separable`."""

    equation = "t([g(u), h(v)])"
    normalised = False

    def __init__(
        self,
        hidden: int = 256,
        layers: int = 2,
        out: int = 16,
        small: int = 32,
        activation: Activation = "relu",
        *,
        dim: Dim | None = None,
        starts_at_zero: bool = False,
    ) -> None:
        _check_above_zero(hidden=hidden, layers=layers, out=out, small=small)
        _check_activation(activation)
        super().__init__(dim, starts_at_zero)

    def make(self, dim: Dim) -> None:
        hidden, layers, out, small, activation = self.settings.values()
        self.g, self.h = (
            nn.Sequential(*_hidden_layers(side, hidden, layers, activation), _last(hidden, out, False))
            for side in _sides(dim)
        )
        self.t = Joint(small, 1, activation, dim=out, starts_at_zero=self.starts_at_zero)

    def pairs(self, anchors: Anchors, keys: Anchors, progress: Progress = START) -> Float[Tensor, "n"]:
        return self.t.pairs(self.g(anchors), self.h(keys), progress)

    def cross(self, anchors: Anchors, keys: Keys, progress: Progress = START) -> Float[Tensor, "n m"]:
        return self.t.cross(self.g(anchors), self.h(keys), progress)


class Bilinear(NetworksOfWidth, AbstractInnerProduct):
    """f(u, v) = u^T W v (Liu 2022, Eq. 24's log-bilinear score)."""

    equation = "u^T W v"

    def __init__(self, *, dim: Dim | None = None, starts_at_zero: bool = False) -> None:
        super().__init__(dim, starts_at_zero)

    def make(self, dim: Dim) -> None:
        first, second = _sides(dim)
        self.weight = _last(second, first, self.starts_at_zero, bias=False)

    def factors(self, anchors: Anchors, keys: Keys, progress: Progress) -> Factors:
        return anchors, self.weight(keys)
