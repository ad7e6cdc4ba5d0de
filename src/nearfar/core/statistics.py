"""Uncertainty of measured numbers: intervals, mean ± spread, and the one rule for "better".

An interval of an accuracy (Wilson) describes the test set as a sample. It does not include the variation
between training seeds; `mean_and_spread` over seeds does.

"Better" always means the same: a paired difference whose p-value is below 1 - CONFIDENCE. Pairs are test
instances where the answer for each instance exists (`compare_answers`, McNemar's exact test), else seeds
(`compare_draws`, Student's t). Of several comparisons, p is adjusted by Holm's method (`adjust_for_all`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from jaxtyping import Bool

CONFIDENCE = 0.95
EQUAL = 1e-8  # differences closer than this are equal,
MIN_EQUAL_DRAWS = 4  # and fewer equal differences than this say nothing about the spread

Interval = tuple[float, float]
Verdict = Literal["better", "worse", "not distinguishable"]


def wilson(share: float, samples: float) -> Interval:
    """The shares p for which |share - p| is within z standard errors sqrt(p (1 - p) / samples) (Wilson 1927).

    Unlike share ± z se it stays within [0, 1] and has a width where share is 0 or 1.
    """
    z2 = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) ** 2 / samples
    centre, shrink = (share + z2 / 2) / (1 + z2), 1 / (1 + z2)
    half = shrink * math.sqrt(z2) * math.sqrt(share * (1 - share) + z2 / 4)
    # an end that is 0 or 1 by algebra is exactly so in floats
    return (0.0 if share == 0 else centre - half, 1.0 if share == 1 else centre + half)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the sample deviation (n - 1); None for a single value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def student_interval(values: Sequence[float]) -> Interval | None:
    """Student's interval of the mean of independent draws; None for a single draw."""
    mean, spread = mean_and_spread(values)
    if spread is None:
        return None
    from scipy.stats import t as student  # scipy.stats takes a second to load

    half = float(student.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * spread / math.sqrt(len(values))
    return mean - half, mean + half


def clipped_student_interval(shares: Sequence[float]) -> Interval | None:
    """The same for shares: within [0, 1]."""
    interval = student_interval(shares)
    return None if interval is None else (max(0.0, interval[0]), min(1.0, interval[1]))


@dataclass(frozen=True)
class Difference:
    """The first minus the second of paired samples; `interval`, `p`: None where pairs do not determine them."""

    value: float
    interval: Interval | None
    p: float | None  # of no difference
    pairs: int
    only_first: int = 0  # instances that only the first classifies correctly
    only_second: int = 0

    @property
    def verdict(self) -> Verdict:
        """The one rule for "better"."""
        if self.p is None or self.p >= 1 - CONFIDENCE:
            return "not distinguishable"
        return "better" if self.value > 0 else "worse"

    def points(self, unit: str = "seeds") -> str:
        """`+1.2 points, 95% interval +0.4 to +2.0, 3 seeds`, for shares."""
        text = f"{100 * self.value:+.1f} points"
        if self.interval is None:
            reason = "equal differences" if self.pairs > 1 else "a single difference"
            return f"{text}, {self.pairs} {unit if self.pairs > 1 else unit[:-1]} ({reason}: no interval)"
        low, high = (100 * end for end in self.interval)
        return f"{text}, {CONFIDENCE:.0%} interval {low:+.1f} to {high:+.1f}, {self.pairs} {unit}"


def compare_answers(first: Bool[np.ndarray, "instance"], second: Bool[np.ndarray, "instance"]) -> Difference:
    """Two classifiers on the same instances; each array holds which instances were classified correctly.

    Only instances on which the two disagree count (McNemar 1947): if neither were better, each would fall to
    either side like a fair coin. Difficulty that both share cancels, so the interval is far narrower than
    those of the two accuracies suggest. It is that of Bonett and Price 2012: Wald's after adding one instance
    to each kind of disagreement.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(
            f"a paired test needs the same instances on both sides, not {len(first)} and {len(second)}"
        )
    from scipy.stats import binomtest

    count = len(first)
    b, c = int((first & ~second).sum()), int((~first & second).sum())
    mean, total = (b - c) / (count + 2), (b + c + 2) / (count + 2)
    half = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * math.sqrt((total - mean**2) / (count + 2))
    p = float(binomtest(b, b + c, 0.5).pvalue) if b + c else 1.0
    return Difference((b - c) / count, (max(-1.0, mean - half), min(1.0, mean + half)), p, count, b, c)


def compare_draws(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Two figures over the same seeds or draws: Student's paired t-test."""
    return mean_difference([a - b for a, b in zip(first, second, strict=True)])


def mean_difference(differences: Sequence[float]) -> Difference:
    """The mean of differences that were paired by seed or draw, with Student's interval.

    One difference determines no interval. Neither do two or three equal ones: a test set counts whole rows,
    so a few seeds agree exactly by chance.
    """
    mean, spread = mean_and_spread(differences)
    equal = max(differences) - min(differences) < EQUAL
    if spread is None or (equal and len(differences) < MIN_EQUAL_DRAWS):
        return Difference(mean, None, None, len(differences))
    from scipy.stats import t as student

    error = spread / math.sqrt(len(differences))
    if error == 0:
        return Difference(mean, (mean, mean), 0.0 if mean else 1.0, len(differences))
    p = 2 * float(student.sf(abs(mean) / error, len(differences) - 1))
    return Difference(mean, student_interval(differences), p, len(differences))


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm 1979: at level a, any true null is rejected with probability at most a."""
    adjusted, highest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda at: p[at])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = highest
    return adjusted


def adjust_for_all(differences: Sequence[Difference]) -> list[Difference]:
    """The same differences with p adjusted by Holm's method over those that have one."""
    adjusted = iter(holm([difference.p for difference in differences if difference.p is not None]))
    return [
        difference if difference.p is None else replace(difference, p=next(adjusted))
        for difference in differences
    ]
