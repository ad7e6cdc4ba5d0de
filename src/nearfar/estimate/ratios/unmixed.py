"""A Gaussian ratio of independent components: sides whose columns are mixtures of a few sources, bent one by one.

Each side is turned to the directions in which it is least Gaussian (Hyvärinen 1999) and each direction's ranks are made normal. Both are
one-to-one, so they change no information, and what was mixed after it was bent becomes Gaussian again.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from nearfar.estimate.ratios.elliptic import Gaussian
from nearfar.estimate.ratios.halves import FAR, Half, ranks_to_normal
from nearfar.estimate.samples import Array, whitening

MOST_COLUMNS = 30
ROWS_PER_COLUMN = 30  # directions are known only so well
MOST_LEARNED = 10_000
STEPS, STILL = 60, 1e-4


@dataclass(frozen=True)
class Components:
    """Columns turned to independent components, each to normal ranks."""

    plain: bool  # of columns as they are, or of their ranks
    mean: Float[np.ndarray, "column"]
    turn: Float[np.ndarray, "column component"]
    sorted: Array

    @staticmethod
    def fit(half: Half, seed: int, plain: bool) -> "Components":
        z = half.chosen(plain)
        mean = z.mean(axis=0)
        white = whitening(z - mean)
        turn = white @ _least_gaussian((z - mean)[:MOST_LEARNED] @ white, seed)
        return Components(plain, mean, turn, np.sort((z - mean) @ turn, axis=0))

    def __call__(self, half: Half) -> Half:
        moved = (half.chosen(self.plain) - self.mean) @ self.turn
        normal = np.column_stack(
            [ranks_to_normal(c, known) for c, known in zip(moved.T, self.sorted.T, strict=True)]
        )
        return Half(normal, moved, None, 0)


def _least_gaussian(white: Array, seed: int) -> Float[np.ndarray, "column component"]:
    """Rotation by FastICA with tanh, all components at once."""
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(white.shape[1],) * 2))[0]
    for _ in range(STEPS):
        bent = np.tanh(white @ turn)
        new = white.T @ bent / len(white) - turn * (1 - bent**2).mean(axis=0)
        u, _, vt = np.linalg.svd(new)
        before, turn = turn, u @ vt
        if np.abs(np.abs((before * turn).sum(axis=0)) - 1).max() < STILL:
            break
    return turn


@dataclass(frozen=True)
class Unmixed:
    x: Components
    y: Components
    gaussian: Gaussian

    @staticmethod
    def fit(x: Half, y: Half, seed: int, plain: bool) -> "Unmixed | None":
        widest = max(x.numbers, y.numbers)
        if x.code is not None or y.code is not None or not 2 <= widest <= MOST_COLUMNS:
            return None
        if len(x) < ROWS_PER_COLUMN * widest:
            return None
        if plain and max(np.abs(half.plain).max() for half in (x, y)) > FAR:
            return None
        maps = Components.fit(x, seed, plain), Components.fit(y, seed, plain)
        gaussian = Gaussian.fit(maps[0](x), maps[1](y), seed)
        return None if gaussian is None else Unmixed(*maps, gaussian)

    def pairs(self, x: Half, y: Half) -> np.ndarray:
        return self.gaussian.pairs(self.x(x), self.y(y))

    def cross(self, x: Half, y: Half) -> np.ndarray:
        return self.gaussian.cross(self.x(x), self.y(y))
