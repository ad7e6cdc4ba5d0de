"""How a pair is scored. Temperature lives here: selections by percentile do not see it."""

from collections.abc import Callable

from nearfar.critics.cosine import Cosine
from nearfar.critics.distance import Distance
from nearfar.critics.dot import Dot
from nearfar.critics.inner import InnerProduct, is_product
from nearfar.critics.learnt import LearntNumber
from nearfar.critics.networks import Bilinear, Hybrid, Joint, Separable
from nearfar.types import Critic

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
