"""Trains a network critic on samples, with early stopping on rows that it does not learn from."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.abstract import AbstractBound, AbstractCritic
from nearfar.core.schedules import START
from nearfar.core.scores import paired_scores
from nearfar.errors import UserError
from nearfar.estimate import settings
from nearfar.parts.critics import Bilinear, Hybrid, Joint, Separable

FirstGuess = Literal["nothing", "gaussian", "table"]
MakeCritic = Callable[[tuple[int, int]], AbstractCritic]  # from the widths of x and y
NetworkType = TypeVar("NetworkType", bound=nn.Module)
BatchType = TypeVar("BatchType")
CRITICS: dict[str, MakeCritic] = {
    "separable": lambda dim: Separable(hidden=128, layers=3, activation="silu", dim=dim, starts_at_zero=True),
    "joint": lambda dim: Joint(hidden=128, activation="silu", dim=dim, starts_at_zero=True),
    "hybrid": lambda dim: Hybrid(hidden=128, activation="silu", dim=dim, starts_at_zero=True),
    "bilinear": lambda dim: Bilinear(dim=dim, starts_at_zero=True),
}


@dataclass(frozen=True)
class CriticTraining:
    """How long and how fast a critic learns."""

    batch_size: int = 256
    steps: int = 1500  # at most
    check_every: int = (
        50  # steps, at most; two epochs if that is less, so that few samples are not overfitted
    )
    patience: int = 6  # checks without improvement
    tolerance: float = 3e-4  # nats that count as an improvement
    lr: float = 1e-3
    weight_decay: float = 1e-2
    average: float = 0.02  # weight of the newest weights in their running mean, which is the result

    def __post_init__(self) -> None:
        minimum = {"batch_size": 2, "steps": 1, "check_every": 1, "patience": 1}
        options = asdict(self)
        for name, lowest in minimum.items():
            if not isinstance(options[name], int) or options[name] < lowest:
                raise UserError(
                    f"training's {name} was {options[name]!r}; it must be a whole number from {lowest}"
                )
        if not self.lr > 0 or not self.weight_decay >= 0 or not 0 < self.average <= 1:
            raise UserError(
                f"training's lr, weight_decay and average were {self.lr}, {self.weight_decay} and "
                f"{self.average}; they must be above 0, at least 0, and in (0, 1]"
            )


class InitialisedCritic(nn.Module):
    """f(x, y) = a first guess from the canonical correlations r, plus a critic.

    `gaussian`: the log ratio of Gaussians, per pair -log(1-r^2)/2 - (r^2 x^2 + r^2 y^2 - 2 r x y) / (2
    (1-r^2)). `table`: log(1 + sum_k r_k x_k y_k), the log ratio of two discrete variables (Lancaster's
    expansion: canonical pairs of indicators diagonalise the table). `nothing`: zero.
    """

    r: Tensor

    def __init__(
        self, first_guess: FirstGuess, correlation: Float[Tensor, "pair"], critic: AbstractCritic
    ) -> None:
        super().__init__()
        self.first_guess = first_guess
        self.register_buffer("r", correlation)
        self.critic = critic

    def _side_term(self, paired: Float[Tensor, "n pair"]) -> Float[Tensor, "n"]:
        square = self.r.square()
        return -(paired.square() * square / (2 * (1 - square))).sum(dim=1) - torch.log1p(-square).sum() / 4

    def cross(self, x: Float[Tensor, "n dx"], y: Float[Tensor, "m dy"]) -> Float[Tensor, "n m"]:
        correction = self.critic.cross(x, y, START)
        x, y = x[:, : len(self.r)], y[:, : len(self.r)]
        if self.first_guess == "gaussian":
            product = (x * (self.r / (1 - self.r.square()))) @ y.T
            return product + self._side_term(x)[:, None] + self._side_term(y)[None, :] + correction
        if self.first_guess == "table":
            return (1 + (x * self.r) @ y.T).clamp_min(settings.MIN_FIRST_GUESS).log() + correction
        return correction


class SymmetricObjective:
    """Mean of the bound of x about y and of y about x: ties the scale of the critic across rows and columns."""

    def __init__(self, bound: AbstractBound) -> None:
        self.bound = copy.deepcopy(bound)

    def __call__(self, f: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
        return (self.bound(paired_scores(f)) + self.bound(paired_scores(f.T))) / 2

    def advance(self, f: Float[Tensor, "n n"]) -> None:
        """Updates a bound with memory (MINE's running mean)."""
        if self.bound.has_memory:
            observed = [self.bound.observe(paired_scores(scores)) for scores in (f, f.T)]
            self.bound.advance(torch.stack(observed), START)


def redrawn_critic(critic: AbstractCritic, dim: tuple[int, int]) -> AbstractCritic:
    """A copy of the critic whose layers are drawn anew: weights fitted to these rows would void the bound."""
    copied = copy.deepcopy(critic)
    for layer in copied.modules() if isinstance(copied, nn.Module) else ():
        if callable(reset := getattr(layer, "reset_parameters", None)):
            reset()
    try:
        copied.cross(torch.zeros(2, dim[0]), torch.zeros(2, dim[1]), START)
    except (RuntimeError, ValueError, TypeError) as error:
        raise UserError(
            f"critic was a {type(critic).__name__} that cannot score these samples: after scaling x has {dim[0]} "
            f"columns and y {dim[1]}; give a function, for instance lambda dim: nf.Separable(dim=dim)"
        ) from error
    return copied


def fit_critic(
    make: MakeCritic,
    correlation: Float[Tensor, "pair"],
    training: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    objective: SymmetricObjective,
    options: CriticTraining,
    seed: int,
) -> InitialisedCritic:
    """The best critic on validation rows, among the running means of its weights and its first guess."""
    x, y = training
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        critic = make((x.shape[1], y.shape[1]))
    if not isinstance(critic, nn.Module) or not list(critic.parameters()):
        raise UserError(f"critic was {critic!r}; a critic with weights is needed, for instance nf.Separable")

    def validation_value(network: InitialisedCritic) -> float:
        return value_on(network, objective, validation)

    guesses = [InitialisedCritic(guess, correlation, critic).to(x.device) for guess in get_args(FirstGuess)]
    network = max(guesses, key=validation_value)
    batch_size = min(options.batch_size, len(x))
    batches = _batches(len(x), batch_size, options.steps, torch.Generator().manual_seed(seed))

    def scores(network: InitialisedCritic, batch: Tensor) -> Tensor:
        batch = batch.to(x.device)
        return network.cross(x[batch], y[batch])

    check_every = min(options.check_every, max(10, 2 * len(x) // batch_size))
    return train_network(network, batches, scores, objective, validation_value, options, check_every)


def train_network(
    network: NetworkType,
    batches: Iterable[BatchType],
    scores: Callable[[NetworkType, BatchType], Float[Tensor, "n n"]],
    objective: SymmetricObjective,
    value: Callable[[NetworkType], float],
    options: CriticTraining,
    check_every: int,
) -> NetworkType:
    """The network of the highest `value` on unseen rows, among running means of its weights and its start."""
    optimiser = torch.optim.AdamW(
        network.parameters(), options.lr, weight_decay=options.weight_decay, fused=True
    )
    mean = copy.deepcopy(network)
    best, best_value, checks_without_gain = copy.deepcopy(network), value(network), 0
    for step, batch in enumerate(batches, start=1):
        f = scores(network, batch)
        loss = -objective(f)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        objective.advance(f.detach())
        with torch.no_grad():
            # early on the mean must forget its start quickly
            weight = max(options.average, 1 / (1 + step))
            torch._foreach_lerp_(list(mean.parameters()), list(network.parameters()), weight)
        if step % check_every == 0:
            current = value(mean)
            checks_without_gain = 0 if current > best_value + options.tolerance else checks_without_gain + 1
            if current > best_value:
                best, best_value = copy.deepcopy(mean), current
            if checks_without_gain >= options.patience:
                break
    return best.eval().requires_grad_(False)


@torch.no_grad()
def value_on(
    network: InitialisedCritic, objective: SymmetricObjective, sample: tuple[Tensor, Tensor]
) -> float:
    """The objective on unseen samples, mean over equal blocks; -inf if it is not finite."""
    x, y = sample
    blocks = math.ceil(len(x) / settings.MAX_VALIDATION_BLOCK)
    values = [objective(network.cross(a, b)) for a, b in zip(x.chunk(blocks), y.chunk(blocks), strict=True)]
    value = float(torch.stack(values).mean())
    return value if math.isfinite(value) else -math.inf


def _batches(samples: int, size: int, steps: int, shuffle: torch.Generator) -> list[Tensor]:
    """Index batches of shuffled epochs; the incomplete last batch of an epoch is dropped."""
    batches: list[Tensor] = []
    while len(batches) < steps:
        order = torch.randperm(samples, generator=shuffle)
        batches += [batch for batch in order.split(size) if len(batch) == size]
    return batches[:steps]
