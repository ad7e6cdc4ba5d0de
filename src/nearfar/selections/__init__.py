"""Which candidates count. A selection maps scores to scores.

    Everyone      all but the anchor itself
    Ball, Ring    by rank in similarity
    Cave          by cluster: negatives from the anchor's own
    Group         by what the data know: negatives of the same speaker
    Neighbours    by both: negatives near the anchor, positives also in its clusters
    Accept        by chance: a coin for each candidate, its bias learned

Cave and Neighbours remember clusters of all instances; `refresh` renews them, nothing else does.
"""

from collections.abc import Callable

from nearfar.selections.accept import Accept
from nearfar.selections.cave import Cave
from nearfar.selections.everyone import Everyone
from nearfar.selections.group import Group
from nearfar.selections.neighbours import Neighbours
from nearfar.selections.ring import Ball, Ring
from nearfar.types import Selection

PARTS: dict[str, Callable[..., Selection]] = {
    "everyone": Everyone,
    "ball": Ball,
    "ring": Ring,
    "annulus": Ring,  # Wu et al. 2020's name for it
    "cave": Cave,
    "group": Group,
    "neighbours": Neighbours,
    "accept": Accept,
}

__all__ = ["PARTS", "Accept", "Ball", "Cave", "Everyone", "Group", "Neighbours", "Ring"]
