"""A critic learned from samples: it begins at a first guess and keeps what helps on data it does not see."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractBound, AbstractCritic
from nearfar.core.schedules import START
from nearfar.core.scores import paired_scores
from nearfar.errors import UserError
from nearfar.parts.critics import Bilinear, Hybrid, Joint, Separable

Beginning = Literal["nothing", "gaussian", "table"]
Net = TypeVar("Net", bound=nn.Module)
Batch = TypeVar("Batch")
Objective = Callable[[Float[Tensor, "n n"]], Float[Tensor, ""]]
CRITICS: dict[str, Callable[[tuple[int, int]], AbstractCritic]] = {
    "separable": lambda dim: Separable(hidden=128, layers=3, activation="silu", dim=dim, silent=True),
    "joint": lambda dim: Joint(hidden=128, activation="silu", dim=dim, silent=True),
    "hybrid": lambda dim: Hybrid(hidden=128, activation="silu", dim=dim, silent=True),
    "bilinear": lambda dim: Bilinear(dim=dim, silent=True),
}


@dataclass(frozen=True)
class Training:
    """How long and how fast a critic learns."""

    batch_size: int = 256
    steps: int = 1500  # at most
    check_every: int = (
        50  # steps, at most: two epochs if that is less, so that few samples are not overlearned
    )
    patience: int = 6  # checks without a better one,
    tolerance: float = 3e-4  # better by at least this many nats
    lr: float = 1e-3
    weight_decay: float = 1e-2
    average: float = 0.02  # weight of the newest in the running mean of the weights, which is what is kept

    def __post_init__(self) -> None:
        least = {"batch_size": 2, "steps": 1, "check_every": 1, "patience": 1}
        for name, number in least.items():
            if not isinstance(getattr(self, name), int) or getattr(self, name) < number:
                raise UserError(
                    f"training's {name} was {getattr(self, name)!r}; it must be a whole number from {number}"
                )
        if not self.lr > 0 or not self.weight_decay >= 0 or not 0 < self.average <= 1:
            raise UserError(
                f"training's lr, weight_decay and average were {self.lr}, {self.weight_decay} and {self.average}; "
                "they must be above 0, at least 0, and in (0, 1]"
            )


LEAST_RATIO = (
    0.02  # of probabilities: what a beginning takes for "never together", so that its log stays finite
)


class InitialisedCritic(nn.Module):
    """f(x, y) = a first guess from the canonical correlations r + what a critic adds.

    `gaussian`: the log ratio if all were Gaussian, for one pair -log(1-r^2)/2 - (r^2 x^2 + r^2 y^2 - 2 r x y) / (2 (1-r^2)).
    `table`: log(1 + sum_k r_k x_k y_k), which is the log ratio itself for two discrete variables (Lancaster's
    expansion: canonical pairs of indicators diagonalise the table). `nothing`: zero.
    """

    r: Tensor

    def __init__(
        self, beginning: Beginning, correlation: Float[Tensor, "pair"], critic: AbstractCritic
    ) -> None:
        super().__init__()
        self.beginning = beginning
        self.register_buffer("r", correlation)
        self.critic = critic

    def _own(self, paired: Float[Tensor, "n pair"]) -> Float[Tensor, "n"]:
        square = self.r.square()
        return -(paired.square() * square / (2 * (1 - square))).sum(dim=1) - torch.log1p(-square).sum() / 4

    def cross(self, x: Float[Tensor, "n dx"], y: Float[Tensor, "m dy"]) -> Float[Tensor, "n m"]:
        added = self.critic.cross(x, y, START)
        x, y = x[:, : len(self.r)], y[:, : len(self.r)]
        if self.beginning == "gaussian":
            product = (x * (self.r / (1 - self.r.square()))) @ y.T
            return product + self._own(x)[:, None] + self._own(y)[None, :] + added
        if self.beginning == "table":
            return (1 + (x * self.r) @ y.T).clamp_min(LEAST_RATIO).log() + added
        return added


class Symmetrised:
    """The bound of x about y and of y about x, averaged: ties the critic's scale across rows and columns."""

    def __init__(self, bound: AbstractBound) -> None:
        self.bound = bound

    def __call__(self, f: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
        return (self.bound(paired_scores(f)) + self.bound(paired_scores(f.T))) / 2

    def advance(self, f: Float[Tensor, "n n"]) -> None:
        """A bound that remembers earlier steps (MINE's running mean) takes this one in."""
        if self.bound.has_memory:
            seen = [self.bound.observe(paired_scores(one)) for one in (f, f.T)]
            self.bound.advance(torch.stack(seen), START)


def symmetrised(bound: AbstractBound) -> Symmetrised:
    return Symmetrised(copy.deepcopy(bound))


def fitted_critic(
    critic: Callable[[tuple[int, int]], AbstractCritic],
    correlation: Float[Tensor, "pair"],
    training: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    objective: Objective,
    how: Training,
    seed: int,
) -> InitialisedCritic:
    """The critic whose validation value was best, among the running means of its weights and its beginning."""
    x, y = training
    dim = (x.shape[1], y.shape[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        learner = critic(dim)
    if not isinstance(learner, nn.Module) or not list(learner.parameters()):
        raise UserError(f"critic was {learner!r}; a critic with weights is needed, for instance nf.Separable")
    begun = [
        InitialisedCritic(beginning, correlation, learner).to(x.device) for beginning in get_args(Beginning)
    ]
    network = max(begun, key=lambda one: value_on(one, objective, validation))
    batch_size = min(how.batch_size, len(x))
    batches = _batches(len(x), batch_size, how.steps, torch.Generator().manual_seed(seed))

    def scores(one: InitialisedCritic, batch: Tensor) -> Tensor:
        batch = batch.to(x.device)
        return one.cross(x[batch], y[batch])

    return learned(
        network,
        batches,
        scores,
        objective,
        lambda one: value_on(one, objective, validation),
        how,
        check_every=min(how.check_every, max(10, 2 * len(x) // batch_size)),
    )


def learned(
    network: Net,
    batches: Iterable[Batch],
    scores: Callable[[Net, Batch], Float[Tensor, "n n"]],
    objective: Objective,
    value: Callable[[Net], float],
    how: Training,
    check_every: int,
) -> Net:
    """The network whose value on unseen rows was best, among the running means of its weights and its beginning."""
    optimiser = torch.optim.AdamW(network.parameters(), how.lr, weight_decay=how.weight_decay, fused=True)
    mean = copy.deepcopy(network)
    best, best_value, waited = copy.deepcopy(network), value(network), 0
    for step, batch in enumerate(batches, start=1):
        f = scores(network, batch)
        loss = -objective(f)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        if isinstance(objective, Symmetrised):
            objective.advance(f.detach())
        with torch.no_grad():
            # early on the mean must forget its beginning quickly
            weight = max(how.average, 1 / (1 + step))
            torch._foreach_lerp_(list(mean.parameters()), list(network.parameters()), weight)
        if step % check_every == 0:
            now = value(mean)
            waited = 0 if now > best_value + how.tolerance else waited + 1
            if now > best_value:
                best, best_value = copy.deepcopy(mean), now
            if waited >= how.patience:
                break
    return best.eval().requires_grad_(False)


@torch.no_grad()
def value_on(
    network: InitialisedCritic, objective: Objective, sample: tuple[Tensor, Tensor], largest: int = 2048
) -> float:
    """The objective on unseen samples, mean over equal blocks of at most `largest`; -inf if it is no number."""
    x, y = sample
    blocks = math.ceil(len(x) / largest)
    values = [objective(network.cross(a, b)) for a, b in zip(x.chunk(blocks), y.chunk(blocks), strict=True)]
    value = float(torch.stack(values).mean())
    return value if math.isfinite(value) else -math.inf


def _batches(samples: int, size: int, steps: int, shuffle: torch.Generator) -> "list[Tensor]":
    """Index batches: epochs in random order, the incomplete last batch of each left out."""
    batches: list[Tensor] = []
    while len(batches) < steps:
        order = torch.randperm(samples, generator=shuffle)
        batches += [b for b in order.split(size) if len(b) == size]
    return batches[:steps]
