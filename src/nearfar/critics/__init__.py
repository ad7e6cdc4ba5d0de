"""How a pair is scored. Temperature lives here: selections by percentile do not see it."""

from nearfar.critics.cosine import Cosine

PARTS = {"cosine": Cosine}

__all__ = ["PARTS", "Cosine"]
