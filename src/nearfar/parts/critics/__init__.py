"""How a pair is scored. Temperature lives here: selections by percentile do not see it."""

from collections.abc import Callable

from nearfar.core.abstract import AbstractCritic
from nearfar.parts.critics.networks import Bilinear, Hybrid, Joint, Separable
from nearfar.parts.critics.similarities import Cosine, Distance, Dot

PARTS: dict[str, Callable[..., AbstractCritic]] = {
    "cosine": Cosine,
    "dot": Dot,
    "distance": Distance,
    "bilinear": Bilinear,
    "separable": Separable,
    "joint": Joint,
    "hybrid": Hybrid,
}
