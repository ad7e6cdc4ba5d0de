"""How a pair is scored. Temperature lives here: selections by percentile do not see it."""

from collections.abc import Callable

from nearfar.core.abstract import AbstractCritic
from nearfar.core.learnt import LearntNumber
from nearfar.parts.critics.cosine import Cosine
from nearfar.parts.critics.distance import Distance
from nearfar.parts.critics.dot import Dot
from nearfar.parts.critics.networks import Bilinear, Hybrid, Joint, Separable

PARTS: dict[str, Callable[..., AbstractCritic]] = {
    "cosine": Cosine,
    "dot": Dot,
    "distance": Distance,
    "bilinear": Bilinear,
    "separable": Separable,
    "joint": Joint,
    "hybrid": Hybrid,
}

__all__ = [
    "PARTS",
    "Bilinear",
    "Cosine",
    "Distance",
    "Dot",
    "Hybrid",
    "Joint",
    "LearntNumber",
    "Separable",
]
