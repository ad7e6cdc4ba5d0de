"""A network's ratio, the last competitor: for many rows of several columns, where the others may all be of the wrong shape.

It begins at the Gaussian ratio of canonical pairs (the leading ones where columns are many: a function of x tells no more than x) and learns what to
add to it by InfoNCE. InfoNCE leaves open a factor that depends on x: the mean over training keys is made one, so that r is a density ratio.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfar.bounds import InfoNCE
from nearfar.critics import Separable
from nearfar.estimate.fit import InitialisedCritic, Training, fitted_critic, symmetrised, value_on
from nearfar.estimate.ratios.halves import Half
from nearfar.estimate.samples import Canonical
from nearfar.types import Critic

FEWEST_ROWS = 2500  # with fewer a network gains less than it overlearns
FEWEST_COLUMNS = 4  # of both sides: in fewer, mixtures of Gaussians follow any shape
MOST_COLUMNS = 16  # of either side, the leading canonical ones
MOST_LEARNED = 50_000
MOST_KEYS = 1024  # over which the mean of r is made one
BLOCK = 256
LEAST_GAIN = 0.01  # nats above its beginning, on rows it did not learn from
TRAINING = Training(steps=400, patience=3, lr=3e-3)


def _critic(dim: tuple[int, int]) -> Critic:
    return Separable(hidden=64, layers=2, activation="silu", dim=dim, silent=True)


def _inputs(canonical: Tensor) -> Tensor:
    """The leading canonical columns, how far out the row lies in all of them, and their signs: tails and quadrants at once."""
    leading = canonical[:, :MOST_COLUMNS]
    return torch.cat(
        [leading, leading.square().mean(dim=1, keepdim=True).sqrt(), torch.tanh(4 * leading)], dim=1
    )


@dataclass(frozen=True)
class Network:
    canonical: Canonical
    critic: InitialisedCritic
    keys: Tensor

    @staticmethod
    def fit(x: Half, y: Half, seed: int) -> "Network | None":
        """None where it would not be tried, or found nothing beyond its beginning."""
        if x.code is not None or y.code is not None or min(x.numbers, y.numbers) == 0:
            return None
        if len(x) < FEWEST_ROWS or x.numbers + y.numbers < FEWEST_COLUMNS or max(x.numbers, y.numbers) < 2:
            return None
        canonical = Canonical.fit(x.normal, y.normal)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x))[:MOST_LEARNED])
        a, b = (_inputs(side[order]) for side in canonical(x.normal, y.normal))
        stop = min(len(a) // 6, 2048)
        correlation = torch.from_numpy(canonical.correlation[:MOST_COLUMNS]).float()
        objective, unseen = symmetrised(InfoNCE()), (a[:stop], b[:stop])
        found = fitted_critic(_critic, correlation, (a[stop:], b[stop:]), unseen, objective, TRAINING, seed)
        first = InitialisedCritic(found.beginning, correlation, _critic((a.shape[1], b.shape[1])))
        if value_on(found, objective, unseen) < value_on(first, objective, unseen) + LEAST_GAIN:
            return None
        return Network(canonical, found, b[stop:][:MOST_KEYS])

    @torch.no_grad()
    def pairs(self, x: Half, y: Half) -> np.ndarray:
        a, b = self._sides(x, y)
        blocks = zip(a.split(BLOCK), b.split(BLOCK), strict=True)
        return (
            torch.cat([self.critic.cross(*one).diagonal() - self._level(one[0]) for one in blocks])
            .double()
            .numpy()
        )

    @torch.no_grad()
    def cross(self, x: Half, y: Half) -> np.ndarray:
        a, b = self._sides(x, y)
        return (self.critic.cross(a, b) - self._level(a)[:, None]).double().numpy()

    def _sides(self, x: Half, y: Half) -> tuple[Tensor, Tensor]:
        a, b = self.canonical(x.normal, y.normal)
        return _inputs(a), _inputs(b)

    def _level(self, a: Tensor) -> Tensor:
        return self.critic.cross(a, self.keys).logsumexp(dim=1) - math.log(len(self.keys))
