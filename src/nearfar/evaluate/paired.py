"""Two classifiers on the same test instances: which is better, by how much, and could it be luck?

Only instances on which they disagree say anything (McNemar 1947): if neither were better, each such instance would fall to either by a fair
coin. What holds for both, such as hard instances, cancels, so that the interval of a difference is far narrower than those of the two
accuracies suggest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool
from scipy.stats import binomtest

from nearfar.core.intervals import CONFIDENCE


@dataclass(frozen=True)
class Paired:
    """The first less the second, in shares; the interval of that; p of no difference."""

    difference: float
    interval: tuple[float, float]
    only_first: int  # instances that the first alone has right
    only_second: int
    samples: int
    p: float


def paired(first: Bool[np.ndarray, "instance"], second: Bool[np.ndarray, "instance"]) -> Paired:
    """McNemar's exact test, and the interval of Bonett and Price 2012: Wald's after adding one instance to each kind of disagreement,
    which covers at small samples too and has a width where they never disagree."""
    if len(first) != len(second) or not len(first):
        raise ValueError(
            f"a paired test needs the same instances on both sides, not {len(first)} and {len(second)}"
        )
    count = len(first)
    b, c = int((first & ~second).sum()), int((~first & second).sum())
    mean, total = (b - c) / (count + 2), (b + c + 2) / (count + 2)
    error = math.sqrt((total - mean**2) / (count + 2))
    half = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * error
    p = float(binomtest(b, b + c, 0.5).pvalue) if b + c else 1.0
    return Paired((b - c) / count, (max(-1.0, mean - half), min(1.0, mean + half)), b, c, count, p)


def holm(p: Sequence[float]) -> list[float]:
    """p of several tests, each as it counts when all of them were looked at (Holm 1979): that any true null is rejected at level a
    has probability at most a."""
    adjusted, highest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda at: p[at])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = highest
    return adjusted
