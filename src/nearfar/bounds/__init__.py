"""What number is climbed. A bound is a function of scores, in nats, always maximised."""

from nearfar.bounds.agreement import Agreement
from nearfar.bounds.infonce import InfoNCE

PARTS = {"infonce": InfoNCE, "agreement": Agreement}

__all__ = ["PARTS", "Agreement", "InfoNCE"]
