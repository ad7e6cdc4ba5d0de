"""How far an accuracy on a sample may be from that on all such data: Wilson's interval.

It speaks of the test set alone, as a sample; another seed of training, or another set to fit on, moves the figure too, and
of that it says nothing.
"""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

CONFIDENCE = 0.95


def wilson(share: float, samples: float, confidence: float = CONFIDENCE) -> list[float]:
    """The shares p at which |share - p| is within z standard errors sqrt(p (1 - p) / samples) (Wilson 1927).

    Unlike share ± z se it stays within [0, 1] and has a width where share is 0 or 1.
    """
    z2 = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2 / samples
    centre, shrink = (share + z2 / 2) / (1 + z2), 1 / (1 + z2)
    half = shrink * math.sqrt(z2) * math.sqrt(share * (1 - share) + z2 / 4)
    # an end that is 0 or 1 by algebra is so in floats
    return [0.0 if share == 0 else centre - half, 1.0 if share == 1 else centre + half]


def with_intervals(figures: Mapping[str, Any], samples: float) -> dict[str, Any]:
    """A protocol's figures with the interval of its top-1 and top-5 beside them."""
    return {
        **figures,
        "interval": wilson(figures["top1"], samples),
        **({"interval_top5": wilson(figures["top5"], samples)} if "top5" in figures else {}),
    }
