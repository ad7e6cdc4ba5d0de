"""Critics that are networks (Song & Ermon 2020, App. C.2).

    Separable   f(u, v) = g(u)^T h(v)     two networks, n + m passes for n x m scores
    Joint       f(u, v) = t([u, v])       one network, n x m passes: sees interactions a product cannot
    Hybrid      f(u, v) = t([g(u), h(v)]) two large networks n + m times, a small one on both n x m times
    Bilinear    f(u, v) = u^T W v         no hidden layer: what is linear in each

`dim` is the width of both sides, or one for each. `silent` begins with every score at zero, so that training
moves away from "nothing is known" (and a critic can be added to another without disturbing it).
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractCritic, AbstractInnerProduct, Anchors, Factors, Keys
from nearfar.core.schedules import START, Progress
from nearfar.errors import UserError

Dim = int | tuple[int, int]
Activation = Literal["relu", "silu"]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU}


def _sides(dim: Dim) -> tuple[int, int]:
    return dim if isinstance(dim, tuple) else (dim, dim)


def _check_above_zero(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise UserError(f"critic.{name} was {number!r}; it must be a whole number from 1")


def _hidden_layers(width: int, hidden: int, layers: int, activation: Activation) -> list[nn.Module]:
    modules: list[nn.Module] = []
    for depth in range(layers):
        modules += [nn.Linear(width if depth == 0 else hidden, hidden), _activation(activation)]
    return modules


def _activation(name: Activation) -> nn.Module:
    if name not in ACTIVATIONS:
        raise UserError(f"critic.activation was {name!r}; expected {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]()


def _last(width: int, out: int, silent: bool, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(width, out, bias=bias)
    if silent:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    return layer


class Separable(nn.Module, AbstractInnerProduct):
    """f(u, v) = g(u)^T h(v), g and h networks of `layers` hidden layers (Song & Ermon 2020, App. C.2: 2 of
    256, out 32)."""

    equation = "g(u)^T h(v)"

    def __init__(
        self,
        hidden: int = 256,
        layers: int = 2,
        out: int = 32,
        activation: Activation = "relu",
        *,
        dim: Dim,
        silent: bool = False,
    ) -> None:
        super().__init__()
        _check_above_zero(hidden=hidden, layers=layers, out=out)
        first, second = _sides(dim)
        # one silent side is enough: the other stays random, so the silent one has a gradient
        self.g = nn.Sequential(*_hidden_layers(first, hidden, layers, activation), _last(hidden, out, silent))
        self.h = nn.Sequential(*_hidden_layers(second, hidden, layers, activation), _last(hidden, out, False))

    def factors(self, anchors: Anchors, keys: Keys, progress: Progress) -> Factors:
        return self.g(anchors), self.h(keys)


class Joint(nn.Module, AbstractCritic):
    """f(u, v) = t([u, v]), one network of `layers` hidden layers on both together (Song & Ermon 2020, App.
    C.2: 2 of 256)."""

    equation = "t([u, v])"
    normalised = False

    def __init__(
        self,
        hidden: int = 256,
        layers: int = 2,
        activation: Activation = "relu",
        *,
        dim: Dim,
        silent: bool = False,
    ) -> None:
        super().__init__()
        _check_above_zero(hidden=hidden, layers=layers)
        self.sides = _sides(dim)
        self.first = nn.Linear(sum(self.sides), hidden)
        self.rest = nn.Sequential(
            _activation(activation),
            *_hidden_layers(hidden, hidden, layers - 1, activation),
            _last(hidden, 1, silent),
        )

    def pairs(self, anchors: Anchors, keys: Anchors, progress: Progress = START) -> Float[Tensor, "n"]:
        return self.rest(self.first(torch.cat([anchors, keys], dim=1))).squeeze(1)

    def cross(self, anchors: Anchors, keys: Keys, progress: Progress = START) -> Float[Tensor, "n m"]:
        # the first layer is linear in each side, so it runs n + m times, not n x m
        of_anchor, of_key = self.first.weight.split(self.sides, dim=1)
        anchor_part = anchors @ of_anchor.T + self.first.bias
        hidden = (anchor_part[:, None] + (keys @ of_key.T)[None]).flatten(0, 1)  # (n m, hidden)
        return self.rest(hidden).view(len(anchors), len(keys))


class Hybrid(nn.Module, AbstractCritic):
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
        dim: Dim,
        silent: bool = False,
    ) -> None:
        super().__init__()
        _check_above_zero(hidden=hidden, layers=layers, out=out, small=small)
        self.g, self.h = (
            nn.Sequential(*_hidden_layers(side, hidden, layers, activation), _last(hidden, out, False))
            for side in _sides(dim)
        )
        self.t = Joint(small, 1, activation, dim=out, silent=silent)

    def pairs(self, anchors: Anchors, keys: Anchors, progress: Progress = START) -> Float[Tensor, "n"]:
        return self.t.pairs(self.g(anchors), self.h(keys), progress)

    def cross(self, anchors: Anchors, keys: Keys, progress: Progress = START) -> Float[Tensor, "n m"]:
        return self.t.cross(self.g(anchors), self.h(keys), progress)


class Bilinear(nn.Module, AbstractInnerProduct):
    """f(u, v) = u^T W v (Liu 2022, Eq. 24's log-bilinear score)."""

    equation = "u^T W v"

    def __init__(self, *, dim: Dim, silent: bool = False) -> None:
        super().__init__()
        first, second = _sides(dim)
        self.weight = _last(second, first, silent, bias=False)

    def factors(self, anchors: Anchors, keys: Keys, progress: Progress) -> Factors:
        return anchors, self.weight(keys)
