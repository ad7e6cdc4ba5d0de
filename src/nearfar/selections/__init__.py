"""Which candidates count. A selection maps scores to scores.

    Everyone      all but the anchor itself
    Ball, Ring    by rank in similarity
    Cave          by cluster: negatives from the anchor's own
    Neighbours    by both: negatives near the anchor, positives also in its clusters

The last two remember clusters of all instances; `refresh` renews them, nothing else does.
"""

from collections.abc import Callable

from nearfar.selections.cave import Cave
from nearfar.selections.everyone import Everyone
from nearfar.selections.neighbours import Neighbours
from nearfar.selections.ring import Ball, Ring
from nearfar.types import Selection

PARTS: dict[str, Callable[..., Selection]] = {
    "everyone": Everyone,
    "ball": Ball,
    "ring": Ring,
    "cave": Cave,
    "neighbours": Neighbours,
}

__all__ = ["PARTS", "Ball", "Cave", "Everyone", "Neighbours", "Ring"]
