"""A network that corrects the best other ratio: for many rows of several columns.

    log r = log r_best(x, y) + g(x) . h(y) - level(x)

The last layer starts at zero, so training starts at r_best. The network learns by InfoNCE on rows that r_best
was not
fitted to: each half of the rows is scored by the ratio fitted to the other half. InfoNCE leaves a factor of x
undetermined; `level` sets the mean over training keys to one.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.schedules import START
from nearfar.estimate.fit import CriticTraining, SymmetricObjective, train_network
from nearfar.estimate.ratios.sides import Fit, Ratio, SideRows
from nearfar.estimate.samples import CanonicalMap
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.critics import Separable

MIN_ROWS = 2500  # with fewer a network overfits more than it gains
MIN_COLUMNS = 4  # of both sides; with fewer, mixtures of Gaussians follow any shape
MAX_COLUMNS = 16  # leading canonical columns of either side
BLOCK, MAX_BLOCKS = 256, 40  # rows contrasted with one another; r_best scores every block once
UNSEEN_BLOCKS = 4  # for early stopping
MAX_KEYS = 512  # over which the mean of r is set to one
MIN_GAIN = 0.01  # nats above r_best, on unseen rows
MAX_LOG_RATIO = 50
TRAINING = CriticTraining(steps=400, patience=3, lr=3e-3)

# inputs of both sides, and log r_best of all pairs
ScoredBlock = tuple[Tensor, Tensor, Float[Tensor, "row key"]]


def _inputs(canonical: Tensor) -> Tensor:
    """Leading canonical columns, the root mean square over them, and their signs: tails and quadrants."""
    leading = canonical[:, :MAX_COLUMNS]
    return torch.cat(
        [leading, leading.square().mean(dim=1, keepdim=True).sqrt(), torch.tanh(4 * leading)], dim=1
    )


@dataclass(frozen=True)
class NetworkRatio:
    start: Ratio
    canonical: CanonicalMap
    critic: Separable
    keys: SideRows

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int, start: Fit) -> "NetworkRatio | None":
        """None if it does not apply, or if it gains too little over `start`."""
        if not network_applies(x, y):
            return None
        canonical = CanonicalMap.fit(x.normal, y.normal)
        blocks = np.array_split(
            np.random.default_rng(seed).permutation(len(x))[: BLOCK * (MAX_BLOCKS + UNSEEN_BLOCKS)],
            min(len(x) // BLOCK, MAX_BLOCKS + UNSEEN_BLOCKS),
        )
        scored: list[ScoredBlock] = []
        for half in (0, 1):
            train = np.setdiff1d(np.arange(len(x)), np.concatenate(blocks[half::2]))
            ratio = start(x[train], y[train], seed)
            if ratio is None:
                return None
            scored += [_score_block(ratio, canonical, x[rows], y[rows]) for rows in blocks[half::2]]
        order = np.random.default_rng(seed).permutation(len(scored))
        shuffled = [scored[k] for k in order]
        critic = _train(shuffled[UNSEEN_BLOCKS:], shuffled[:UNSEEN_BLOCKS], seed)
        full_fit = start(x, y, seed)
        if full_fit is None or critic is None:
            return None
        return NetworkRatio(full_fit, canonical, critic, y[np.concatenate(blocks)[:MAX_KEYS]])

    @torch.no_grad()
    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        a, b = _side_inputs(self.canonical, x, y)
        blocks = zip(a.split(BLOCK), b.split(BLOCK), strict=True)
        correction = torch.cat([self.critic.cross(*block, START).diagonal() for block in blocks])
        return self.start.pairs(x, y) + correction.double().numpy() - self._level(x)

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self._unnormalised(x, y) - self._level(x)[:, None]

    @torch.no_grad()
    def _unnormalised(self, x: SideRows, y: SideRows) -> np.ndarray:
        a, b = _side_inputs(self.canonical, x, y)
        return self.start.cross(x, y) + self.critic.cross(a, b, START).double().numpy()

    def _level(self, x: SideRows) -> np.ndarray:
        parts = np.array_split(np.arange(len(x)), math.ceil(len(x) / 2048))
        levels = [torch.from_numpy(self._unnormalised(x[part], self.keys)).logsumexp(dim=1) for part in parts]
        return torch.cat(levels).numpy() - math.log(len(self.keys))


def network_applies(x: SideRows, y: SideRows) -> bool:
    if x.code is not None or y.code is not None or min(x.numbers, y.numbers) == 0:
        return False
    return len(x) >= MIN_ROWS and x.numbers + y.numbers >= MIN_COLUMNS and max(x.numbers, y.numbers) >= 2


def _side_inputs(canonical: CanonicalMap, x: SideRows, y: SideRows) -> tuple[Tensor, Tensor]:
    a, b = canonical(x.normal, y.normal)
    return _inputs(a), _inputs(b)


def _score_block(start: Ratio, canonical: CanonicalMap, x: SideRows, y: SideRows) -> ScoredBlock:
    a, b = _side_inputs(canonical, x, y)
    log_r = np.clip(np.nan_to_num(start.cross(x, y)), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return a, b, torch.from_numpy(log_r).float()


def _train(train: list[ScoredBlock], unseen: list[ScoredBlock], seed: int) -> Separable | None:
    """The correction of the scores; None if it gains less than `MIN_GAIN` on unseen blocks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dim = train[0][0].shape[1], train[0][1].shape[1]
        critic = Separable(hidden=64, layers=2, activation="silu", dim=dim, silent=True)
    objective = SymmetricObjective(InfoNCE())

    def scores(network: Separable, block: ScoredBlock) -> Tensor:
        a, b, start = block
        return start + network.cross(a, b, START)

    @torch.no_grad()
    def unseen_value(network: Separable) -> float:
        return float(torch.stack([objective(scores(network, block)) for block in unseen]).mean())

    rng = np.random.default_rng(seed)
    batches = [
        train[k] for _ in range(math.ceil(TRAINING.steps / len(train))) for k in rng.permutation(len(train))
    ]
    start_value = unseen_value(critic)
    trained = train_network(
        critic, batches[: TRAINING.steps], scores, objective, unseen_value, TRAINING, check_every=50
    )
    return trained if unseen_value(trained) >= start_value + MIN_GAIN else None
