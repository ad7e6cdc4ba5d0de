"""A ratio from a pair of small networks, for columns that act together: rotations, products, pictures.

    log r(x, y) = g(x)^T h(y) - c

g and h learn InfoNCE in both directions, whose optimum is log r up to a constant (van den Oord et al. 2018), with early
stopping on rows left out. c makes the mean of r over pairs that do not belong together about one. Smaller families
learn faster; with enough rows a network learns what they cannot express.
"""

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from nearfar.core.abstract import AbstractInnerProduct
from nearfar.core.schedules import START
from nearfar.estimate import settings
from nearfar.estimate.fit import CRITICS, CriticTraining, SymmetricObjective, fit_critic
from nearfar.estimate.ratios.sides import SideRows
from nearfar.estimate.rows import blocks
from nearfar.parts.bounds import InfoNCE


@dataclass(frozen=True)
class NetworkRatio:
    critic: AbstractInnerProduct
    level: float  # c
    highest: float  # log r that the rows can show

    @staticmethod
    def fit(x: SideRows, y: SideRows, seed: int) -> "NetworkRatio | None":
        if len(x) < settings.MIN_NETWORK_ROWS or x.features == y.features == 1:
            return None
        rows = min(len(x), settings.MAX_NETWORK_ROWS)
        first, second = (_tensor(side[np.arange(rows)]) for side in (x, y))
        widths = first.shape[1], second.shape[1]
        if not 0 < min(widths) <= max(widths) <= settings.MAX_NETWORK_COLUMNS:
            return None
        validation = slice(0, round(settings.NETWORK_VALIDATION * rows))
        training = slice(validation.stop, rows)
        fitted = fit_critic(
            CRITICS["separable"],
            torch.zeros(0),
            (first[training], second[training]),
            (first[validation], second[validation]),
            SymmetricObjective(InfoNCE()),
            CriticTraining(),
            seed,
        )
        critic = cast(AbstractInnerProduct, fitted.critic)
        ratio = NetworkRatio(critic, 0.0, math.inf)
        part = np.arange(min(rows, settings.MAX_BLOCK))
        f = ratio.cross(x[part], y[part])
        # of rows, so that one pair does not decide
        level = float((logsumexp(f, axis=1) - math.log(len(part))).mean())
        return NetworkRatio(critic, level, math.log(rows))

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return np.concatenate(
            [
                self._log_ratio((first * second).sum(dim=1))
                for first, second in map(self._factors, *(_parts(side) for side in (x, y)))
            ]
        )

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        first, second = self._factors(x, y)
        return self._log_ratio(first @ second.T)

    def _factors(self, x: SideRows, y: SideRows) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return self.critic.factors(_tensor(x), _tensor(y), START)

    def _log_ratio(self, f: Tensor) -> np.ndarray:
        return np.minimum(f.numpy().astype(float) - self.level, self.highest)


def _tensor(side: SideRows) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(side.columns(), dtype=np.float32))


def _parts(side: SideRows) -> list[SideRows]:
    return [side[rows] for rows in blocks(np.arange(len(side)), settings.SCORED_CHUNK)]
