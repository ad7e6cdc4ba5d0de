"""Which candidates count. A selection maps scores to scores."""

from collections.abc import Callable

from nearfar.selections.everyone import Everyone
from nearfar.selections.ring import Ball, Ring
from nearfar.types import Selection

PARTS: dict[str, Callable[..., Selection]] = {"everyone": Everyone, "ball": Ball, "ring": Ring}

__all__ = ["PARTS", "Ball", "Everyone", "Ring"]
