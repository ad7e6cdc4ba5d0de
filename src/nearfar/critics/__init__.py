"""How a pair is scored. Temperature lives here: selections by percentile do not see it."""

from collections.abc import Callable

from nearfar.critics.cosine import Cosine
from nearfar.types import Critic

PARTS: dict[str, Callable[..., Critic]] = {"cosine": Cosine}

__all__ = ["PARTS", "Cosine"]
