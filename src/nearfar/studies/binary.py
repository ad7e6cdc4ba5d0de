"""Two equal coins: CPC and ML-CPC for log 2 nats in closed form (Song & Ermon 2020, Ex. 1, App. C.1).

X = Y is 1 with probability p, so I(X; Y) = H(p), and the optimal critic g(x, y) = [x = y] / P(x) is known. A
batch enters the objectives only through its number of ones and the number of negatives equal to their anchor.
Both are binomial, so expectation and variance are finite sums: no sampling, no training. (The paper's g = [x
= y] is the same critic for p = 1/2, and for CPC at any p; ML-CPC ties anchors together and needs 1 / P(x).)

Command: nearfar study binary     Cost: under a second (p other than 1/2: half a minute).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from nearfar.errors import UserError
from nearfar.studies.frame import REFERENCE, StudyResult, StudyRow, StudyTable, Workspace, study

NegativeSource = Literal["batch", "independent"]


@dataclass(frozen=True)
class BatchMoments:
    """Mean and variance over batches of an objective's value on one batch."""

    mean: float
    variance: float


@dataclass(frozen=True)
class Coins:
    """n pairs of equal coins with m - 1 negatives for each, P(1) = p.

    `negatives="batch"`: the other pairs of the batch, so m = n, as in Song & Ermon 2020, App. C.1.
    `negatives="independent"`: n (m - 1) further draws, m - 1 for each anchor (Song & Ermon 2020, Cor. 2).
    """

    n: int
    m: int
    p: float = 0.5
    negatives: NegativeSource = "batch"

    def __post_init__(self) -> None:
        # closer to 0 or 1, the probability of a batch of the rarer side underflows
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
        """alpha_{m,n} of Song & Ermon 2020, Cor. 2: from here to 1, J_alpha <= I if negatives are
        independent."""
        return self.m / (self.n * (self.m - 1) + 1)

    def cpc(self, alpha: float) -> BatchMoments:
        """L_alpha of Song & Ermon 2020, Eq. 4: each anchor tells its positive from its own negatives."""

        def value(same: np.ndarray) -> np.ndarray:
            return np.log(self.m / (alpha + self._beta(alpha) * same))

        if self.negatives == "batch":
            one_count, chance = binomial(self.n, self.p)
            zero_count = self.n - one_count
            # maximum: a batch without ones has the count -1, times zero
            mean = (
                one_count * value(np.maximum(one_count - 1, 0))
                + zero_count * value(np.maximum(zero_count - 1, 0))
            ) / self.n
            return _moments(mean, chance)
        anchors = [(self.p, self.p), (1 - self.p, 1 - self.p)]  # (how often, how often a negative is equal)
        draws = [(share, *binomial(self.m - 1, equal)) for share, equal in anchors]
        values = np.concatenate([value(same) for _, same, _ in draws])
        chances = np.concatenate([share * chance for share, _, chance in draws])
        one = _moments(values, chances)
        return BatchMoments(one.mean, one.variance / self.n)  # anchors are independent of one another

    def ml_cpc(self, alpha: float) -> BatchMoments:
        """J_alpha of Song & Ermon 2020, Eq. 6: all positives contrasted with all negatives at once."""
        n, m, beta = self.n, self.m, self._beta(alpha)
        ratio = np.array([1 / (1 - self.p), 1 / self.p])  # g(0, 0) and g(1, 1)
        values, chances = [], []
        for one_count, zero_count, chance, same_ones, same_zeros in self._counts():
            positive = one_count * ratio[1] + zero_count * ratio[0]
            negative = same_ones * ratio[1] + same_zeros * ratio[0]
            numerator = (one_count * math.log(ratio[1]) + zero_count * math.log(ratio[0])) / n
            values.append(numerator - np.log((alpha * positive + beta * negative) / (n * m)))
            chances.append(chance)
        return _moments(np.concatenate(values), np.concatenate(chances))

    def _beta(self, alpha: float) -> float:
        return (self.m - alpha) / (self.m - 1)

    def _counts(self) -> Iterator[tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray]]:
        """Numbers of ones and zeros among the anchors, with probabilities of equal negatives of each kind."""
        one_count, chance = binomial(self.n, self.p)
        zero_count = self.n - one_count
        if self.negatives == "batch":
            yield one_count, zero_count, chance, one_count * (one_count - 1), zero_count * (zero_count - 1)
        elif self.p == 0.5:
            # both kinds score alike and are equally often equal: one binomial count, whatever the anchors are
            same, often = binomial(self.n * (self.m - 1), 0.5)
            yield self.n, 0, often, same, 0 * same
        else:
            for t, weight in zip(one_count, chance, strict=True):
                same_ones, a = binomial(t * (self.m - 1), self.p)
                same_zeros, b = binomial((self.n - t) * (self.m - 1), 1 - self.p)
                grid = np.broadcast_arrays(same_ones[:, None], same_zeros[None, :])
                yield t, self.n - t, weight * np.outer(a, b).ravel(), grid[0].ravel(), grid[1].ravel()


def binomial(trials: int, p: float) -> tuple[Int[np.ndarray, "count"], Float[np.ndarray, "count"]]:
    """Counts of successes and their probabilities, without those below 1e-18."""
    counts = np.arange(trials + 1)
    steps = np.log(np.arange(1, trials + 1))
    factorials = np.concatenate([[0.0], np.cumsum(steps)])
    choose = factorials[-1] - factorials - factorials[::-1]
    chance = np.exp(choose + counts * math.log(p) + (trials - counts) * math.log1p(-p))
    likely = chance > 1e-18
    # normalised, against rounding in the logarithms of large factorials
    return counts[likely], chance[likely] / chance[likely].sum()


def _moments(values: Float[np.ndarray, "case"], chances: Float[np.ndarray, "case"]) -> BatchMoments:
    mean = float(values @ chances)
    return BatchMoments(mean, float((values - mean) ** 2 @ chances))


KINDS: tuple[NegativeSource, ...] = ("batch", "independent")
SIZES = (2, 3, 4, 8, 16, 32, 64, 128)
DRAWN_SIZES = (3, 8, 32)
CLAIMS = {
    "bias": "significantly less",
    "variance": "slightly more",
}  # of the paper, for negatives from the batch


@study("binary", "Song & Ermon 2020, Fig. 1, 2: CPC and ML-CPC of two equal coins, in closed form")
def run(workspace: Workspace, p: float = 0.5) -> StudyResult:
    """Figures 1 and 2 with n = m, negatives from the batch (the paper) and independent (its theorem)."""
    remark = (
        "Song & Ermon 2020, Cor. 2 assumes independent negatives, but Fig. 1 and 2 take them from the batch: "
        "it does not apply there, and J stays below I for these coins without it."
    )
    return StudyResult((_figure_one(p), *_figure_two(p)), (remark,))


def _figure_one(p: float) -> StudyTable:
    three, independent = Coins(3, 3, p), Coins(3, 3, p, "independent")
    fair, never = p == 0.5, "never above I"
    excess = "highest of ML-CPC - I, proven alpha"
    rows = (
        StudyRow("I(X; Y)", 0.69 if fair else None, three.information, series=REFERENCE),
        StudyRow("CPC alpha=0.5, n=m=3", 0.72 if fair else None, three.cpc(0.5).mean),
        StudyRow("CPC alpha=1, n=m=3", None, three.cpc(1.0).mean),
        StudyRow("ML-CPC alpha=3/7, n=m=3, negatives from the batch", None, three.ml_cpc(3 / 7).mean),
        StudyRow("ML-CPC alpha=3/7, n=m=3, independent negatives", None, independent.ml_cpc(3 / 7).mean),
        StudyRow(f"{excess}, batch, 8 sizes to 128", never, highest_excess(p, "batch")),
        StudyRow(f"{excess}, independent, 8 sizes to 128", never, highest_excess(p, "independent")),
    )
    alphas = np.geomspace(0.02, 1.0, 40).tolist()
    lines = {}
    for size in DRAWN_SIZES:
        coins = Coins(size, size, p)
        lines[f"CPC, n=m={size}"] = (alphas, [coins.cpc(alpha).mean for alpha in alphas])
        lines[f"ML-CPC, n=m={size}"] = (alphas, [coins.ml_cpc(alpha).mean for alpha in alphas])
    source = "Song & Ermon 2020, Example 1, printed to two digits, and Cor. 2"
    return StudyTable("Figure 1", rows, source, lines, "alpha", "x")


def highest_excess(p: float, negatives: NegativeSource) -> float:
    """The largest J_alpha - I over proven alpha and sizes."""
    values = []
    for size in SIZES:
        coins = Coins(size, size, p, negatives)
        alphas = np.geomspace(coins.smallest_proven, 1.0, 5)
        values += [coins.ml_cpc(float(alpha)).mean - coins.information for alpha in alphas]
    return max(values)


def _figure_two(p: float) -> list[StudyTable]:
    """Bias and variance against m = n, of CPC and of ML-CPC at the smallest proven alpha."""
    tables = []
    for quantity, claim in CLAIMS.items():
        rows, lines = [], {}
        for negatives in KINDS:
            coins = [Coins(size, size, p, negatives) for size in SIZES]
            by_name = {
                "CPC": [c.cpc(1.0) for c in coins],
                "ML-CPC": [c.ml_cpc(c.smallest_proven) for c in coins],
            }
            values = {
                name: [
                    c.information - m.mean if quantity == "bias" else m.variance
                    for c, m in zip(coins, moments, strict=True)
                ]
                for name, moments in by_name.items()
            }
            ratio = np.array(values["ML-CPC"]) / np.array(values["CPC"])
            label = f"{quantity}, ML-CPC over CPC, m from 2 to 128, {negatives}"
            paper = claim if negatives == "batch" else None
            rows.append(StudyRow(label, paper, f"{ratio.min():.3g} to {ratio.max():.3g} times"))
            for name, column in values.items():
                label = f"{quantity} of {name}, n=m=8, {negatives}"
                rows.append(StudyRow(label, None, column[SIZES.index(8)]))
                lines[f"{name}, {negatives}"] = (SIZES, column)
        source = "Song & Ermon 2020, Fig. 2, in the words beside it: only drawn there"
        tables.append(StudyTable(f"Figure 2, {quantity}", tuple(rows), source, lines, "m = n", "xy"))
    return tables
