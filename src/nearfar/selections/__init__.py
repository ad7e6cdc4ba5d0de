"""Which candidates count. A selection maps scores to scores."""

from nearfar.selections.everyone import Everyone

PARTS = {"everyone": Everyone}

__all__ = ["PARTS", "Everyone"]
