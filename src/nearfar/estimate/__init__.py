"""How much one thing tells about another: discrete information, and densities learned by telling data from noise."""

from nearfar.estimate import info

__all__ = ["info"]
