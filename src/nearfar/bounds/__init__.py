"""What number is climbed. A bound is a function of scores, in nats, always maximised."""

from collections.abc import Callable

from nearfar.bounds.agreement import Agreement
from nearfar.bounds.infonce import InfoNCE
from nearfar.types import Bound

PARTS: dict[str, Callable[..., Bound]] = {"infonce": InfoNCE, "agreement": Agreement}

__all__ = ["PARTS", "Agreement", "InfoNCE"]
