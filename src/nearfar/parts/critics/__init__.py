"""How a pair is scored. Temperature lives here: selections by percentile do not see it."""

from collections.abc import Callable

from nearfar.core.types import Critic
from nearfar.parts.critics.cosine import Cosine
from nearfar.parts.critics.distance import Distance
from nearfar.parts.critics.dot import Dot
from nearfar.parts.critics.inner import InnerProduct, is_product
from nearfar.parts.critics.learnt import LearntNumber
from nearfar.parts.critics.networks import Bilinear, Hybrid, Joint, Separable

PARTS: dict[str, Callable[..., Critic]] = {
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
    "InnerProduct",
    "Joint",
    "LearntNumber",
    "Separable",
    "is_product",
]
