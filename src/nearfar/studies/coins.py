"""The mathematics of the `binary` study: CPC and ML-CPC of two equal coins as finite sums (Song & Ermon 2020, App. C.1).

X = Y is 1 with probability p, so I(X; Y) = H(p), and the optimal critic g(x, y) = [x = y] / P(x) is known. A
batch enters the objectives only through how many of its members are ones and how many negatives equal their
anchor; both are binomial, and expectation and variance are finite sums. No sampling, no training. (The paper's
g = [x = y] is the same critic when p = 1/2, and for CPC at any p; ML-CPC ties anchors together and needs 1 / P(x).)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from nearfar.errors import UserError

Negatives = Literal["batch", "independent"]


@dataclass(frozen=True)
class Moments:
    """Mean and variance, over batches, of an objective's value on one batch."""

    mean: float
    variance: float


@dataclass(frozen=True)
class Coins:
    """n pairs of equal coins with m - 1 negatives for each, P(1) = p.

    `negatives="batch"`: the other pairs of the batch, so m = n, as in Song & Ermon 2020, App. C.1.
    `negatives="independent"`: n (m - 1) further draws, as the proof of Song & Ermon 2020, Thm 2 wants them.
    """

    n: int
    m: int
    p: float = 0.5
    negatives: Negatives = "batch"

    def __post_init__(self) -> None:
        # closer to 0 or 1, the chance of a whole batch of the rarer side is below every float
        if self.n < 1 or self.m < 2 or not 1e-9 <= self.p <= 1 - 1e-9:
            raise UserError(
                f"n={self.n}, m={self.m}, p={self.p}; expected n from 1, m from 2 and p from 1e-9 to 1 - 1e-9"
            )
        if self.negatives == "batch" and self.n != self.m:
            raise UserError(
                f"n={self.n}, m={self.m}: negatives from the batch are the n - 1 others, so m is n"
            )

    @property
    def information(self) -> float:
        """I(X; Y) = H(p), in nats."""
        return -self.p * math.log(self.p) - (1 - self.p) * math.log1p(-self.p)

    @property
    def smallest_proven(self) -> float:
        """alpha_{m,n} of Song & Ermon 2020, Cor. 2: from here to 1, J_alpha <= I if negatives are independent."""
        return self.m / (self.n * (self.m - 1) + 1)

    def cpc(self, alpha: float) -> Moments:
        """L_alpha of Song & Ermon 2020, Eq. 4: each anchor tells its positive from its own negatives."""

        def value(same: np.ndarray) -> np.ndarray:
            return np.log(self.m / (alpha + self._beta(alpha) * same))

        if self.negatives == "batch":
            ones, chance = binomial(self.n, self.p)
            zeros = self.n - ones
            # a batch without ones has none to ask about: the count before it is only kept non-negative
            mean = (ones * value(np.maximum(ones - 1, 0)) + zeros * value(np.maximum(zeros - 1, 0))) / self.n
            return _moments(mean, chance)
        anchors = [(self.p, self.p), (1 - self.p, 1 - self.p)]  # (how often, how often a negative is equal)
        draws = [(share, *binomial(self.m - 1, equal)) for share, equal in anchors]
        values = np.concatenate([value(same) for _, same, _ in draws])
        chances = np.concatenate([share * chance for share, _, chance in draws])
        one = _moments(values, chances)
        return Moments(one.mean, one.variance / self.n)  # anchors are independent of one another

    def ml_cpc(self, alpha: float) -> Moments:
        """J_alpha of Song & Ermon 2020, Eq. 6: all positives contrasted with all negatives at once."""
        n, m, beta = self.n, self.m, self._beta(alpha)
        ratio = np.array([1 / (1 - self.p), 1 / self.p])  # g(0, 0) and g(1, 1)
        values, chances = [], []
        for ones, zeros, chance, same_ones, same_zeros in self._counts():
            positive = ones * ratio[1] + zeros * ratio[0]
            negative = same_ones * ratio[1] + same_zeros * ratio[0]
            numerator = (ones * math.log(ratio[1]) + zeros * math.log(ratio[0])) / n
            values.append(numerator - np.log((alpha * positive + beta * negative) / (n * m)))
            chances.append(chance)
        return _moments(np.concatenate(values), np.concatenate(chances))

    def _beta(self, alpha: float) -> float:
        return (self.m - alpha) / (self.m - 1)

    def _counts(self) -> Iterator[tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray]]:
        """(ones, zeros) among the anchors, and with what chance how many negatives equal an anchor of each kind."""
        ones, chance = binomial(self.n, self.p)
        zeros = self.n - ones
        if self.negatives == "batch":
            yield ones, zeros, chance, ones * (ones - 1), zeros * (zeros - 1)
        elif self.p == 0.5:
            # both kinds score alike and are equally often equal: one binomial count, whatever the anchors are
            same, often = binomial(self.n * (self.m - 1), 0.5)
            yield self.n, 0, often, same, 0 * same
        else:
            for t, weight in zip(ones, chance, strict=True):
                same_ones, a = binomial(t * (self.m - 1), self.p)
                same_zeros, b = binomial((self.n - t) * (self.m - 1), 1 - self.p)
                grid = np.broadcast_arrays(same_ones[:, None], same_zeros[None, :])
                yield t, self.n - t, weight * np.outer(a, b).ravel(), grid[0].ravel(), grid[1].ravel()


def binomial(trials: int, p: float) -> tuple[Int[np.ndarray, "count"], Float[np.ndarray, "count"]]:
    """Counts of successes and their probabilities, leaving out those less likely than 1e-18."""
    counts = np.arange(trials + 1)
    steps = np.log(np.arange(1, trials + 1))
    factorials = np.concatenate([[0.0], np.cumsum(steps)])
    choose = factorials[-1] - factorials - factorials[::-1]
    chance = np.exp(choose + counts * math.log(p) + (trials - counts) * math.log1p(-p))
    likely = chance > 1e-18
    # dividing by the sum takes away what rounding in the logarithms of large factorials added
    return counts[likely], chance[likely] / chance[likely].sum()


def _moments(values: Float[np.ndarray, "case"], chances: Float[np.ndarray, "case"]) -> Moments:
    mean = float(values @ chances)
    return Moments(mean, float((values - mean) ** 2 @ chances))
