"""What a network adds to the best of the other ratios, the last competitor: for many rows of several columns, where the others may all be of the wrong shape.

    log r = log r_best(x, y) + g(x) . h(y) - a level of x        the network's last layer begins at nought, so it begins at r_best

It learns by InfoNCE, on rows that r_best is scored at without having seen them: each half of the rows by the ratio fitted to the other. InfoNCE leaves open a
factor that depends on x: the mean over training keys is made one, so that r is a density ratio.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nearfar.core.schedules import START
from nearfar.estimate.fit import Training, learned, symmetrised
from nearfar.estimate.ratios.halves import Half, Ratio
from nearfar.estimate.samples import Canonical
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.critics import Separable

FEWEST_ROWS = 2500  # with fewer a network gains less than it overlearns
FEWEST_COLUMNS = 4  # of both sides: in fewer, mixtures of Gaussians follow any shape
MOST_COLUMNS = 16  # of either side, the leading canonical ones
BLOCK, MOST_BLOCKS = (
    256,
    40,
)  # rows contrasted with one another, scored once by the ratio it begins at and used again and again
UNSEEN_BLOCKS = 4  # that say when to stop
MOST_KEYS = 512  # over which the mean of r is made one
LEAST_GAIN = 0.01  # nats above its beginning, on rows it did not learn from
TRAINING = Training(steps=400, patience=3, lr=3e-3)

Scored = tuple[Tensor, Tensor, Float[Tensor, "row key"]]  # inputs of both sides, and log r_best of all pairs


def _inputs(canonical: Tensor) -> Tensor:
    """The leading canonical columns, how far out the row lies in all of them, and their signs: tails and quadrants at once."""
    leading = canonical[:, :MOST_COLUMNS]
    return torch.cat(
        [leading, leading.square().mean(dim=1, keepdim=True).sqrt(), torch.tanh(4 * leading)], dim=1
    )


@dataclass(frozen=True)
class Network:
    start: Ratio
    canonical: Canonical
    critic: Separable
    keys: Half

    @staticmethod
    def fit(
        x: Half, y: Half, seed: int, start: Callable[[Half, Half, int], Ratio | None]
    ) -> "Network | None":
        """None where it would not be tried, or found nothing beyond its beginning."""
        if not worth_a_network(x, y):
            return None
        canonical = Canonical.fit(x.normal, y.normal)
        blocks = np.array_split(
            np.random.default_rng(seed).permutation(len(x))[: BLOCK * (MOST_BLOCKS + UNSEEN_BLOCKS)],
            min(len(x) // BLOCK, MOST_BLOCKS + UNSEEN_BLOCKS),
        )
        scored: list[Scored] = []
        for own in (0, 1):
            others = np.setdiff1d(np.arange(len(x)), np.concatenate(blocks[own::2]))
            other = start(x[others], y[others], seed)
            if other is None:
                return None
            scored += [_scored(other, canonical, x[rows], y[rows]) for rows in blocks[own::2]]
        order = np.random.default_rng(seed).permutation(len(scored))
        shuffled = [scored[k] for k in order]
        critic, whole = _learned(shuffled[UNSEEN_BLOCKS:], shuffled[:UNSEEN_BLOCKS], seed), start(x, y, seed)
        if whole is None or critic is None:
            return None
        return Network(whole, canonical, critic, y[np.concatenate(blocks)[:MOST_KEYS]])

    @torch.no_grad()
    def pairs(self, x: Half, y: Half) -> np.ndarray:
        a, b = _sides(self.canonical, x, y)
        blocks = zip(a.split(BLOCK), b.split(BLOCK), strict=True)
        added = torch.cat([self.critic.cross(*one, START).diagonal() for one in blocks])
        return self.start.pairs(x, y) + added.double().numpy() - self._level(x)

    def cross(self, x: Half, y: Half) -> np.ndarray:
        return self._raw(x, y) - self._level(x)[:, None]

    @torch.no_grad()
    def _raw(self, x: Half, y: Half) -> np.ndarray:
        a, b = _sides(self.canonical, x, y)
        return self.start.cross(x, y) + self.critic.cross(a, b, START).double().numpy()

    def _level(self, x: Half) -> np.ndarray:
        parts = np.array_split(np.arange(len(x)), math.ceil(len(x) / 2048))
        found = [torch.from_numpy(self._raw(x[part], self.keys)).logsumexp(dim=1) for part in parts]
        return torch.cat(found).numpy() - math.log(len(self.keys))


def worth_a_network(x: Half, y: Half) -> bool:
    if x.code is not None or y.code is not None or min(x.numbers, y.numbers) == 0:
        return False
    return (
        len(x) >= FEWEST_ROWS and x.numbers + y.numbers >= FEWEST_COLUMNS and max(x.numbers, y.numbers) >= 2
    )


def _sides(canonical: Canonical, x: Half, y: Half) -> tuple[Tensor, Tensor]:
    a, b = canonical(x.normal, y.normal)
    return _inputs(a), _inputs(b)


def _scored(start: Ratio, canonical: Canonical, x: Half, y: Half) -> Scored:
    a, b = _sides(canonical, x, y)
    return a, b, torch.from_numpy(np.clip(np.nan_to_num(start.cross(x, y)), -50, 50)).float()


def _learned(known: list[Scored], unseen: list[Scored], seed: int) -> Separable | None:
    """What to add to the scores; None if that is next to nothing on blocks it did not learn from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        dim = known[0][0].shape[1], known[0][1].shape[1]
        critic = Separable(hidden=64, layers=2, activation="silu", dim=dim, silent=True)
    objective = symmetrised(InfoNCE())

    def scores(one: Separable, block: Scored) -> Tensor:
        a, b, begun = block
        return begun + one.cross(a, b, START)

    @torch.no_grad()
    def value(one: Separable) -> float:
        return float(torch.stack([objective(scores(one, block)) for block in unseen]).mean())

    order = np.random.default_rng(seed)
    batches = [
        known[k] for _ in range(math.ceil(TRAINING.steps / len(known))) for k in order.permutation(len(known))
    ]
    before = value(critic)
    found = learned(critic, batches[: TRAINING.steps], scores, objective, value, TRAINING, check_every=50)
    return found if value(found) >= before + LEAST_GAIN else None
