"""Which candidates count. A selection maps scores to scores."""

from collections.abc import Callable

from nearfar.selections.everyone import Everyone
from nearfar.types import Selection

PARTS: dict[str, Callable[..., Selection]] = {"everyone": Everyone}

__all__ = ["PARTS", "Everyone"]
