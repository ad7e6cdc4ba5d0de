"""The papers' methods by name: functions that return a `Method` of parts, and nothing but defaults."""

from nearfar.config.recipes.distillation import DISTILL
from nearfar.config.recipes.images import IMAGES, SUPERVISED
from nearfar.config.recipes.other_data import GRAPHS, PAIRS, SEQUENCES
from nearfar.config.recipes.recipe import Recipe, Training, variants

BASE: dict[str, Recipe] = {
    **IMAGES,
    **SEQUENCES,
    **GRAPHS,
    **PAIRS,
    "supervised": SUPERVISED,
    "distill": DISTILL,
}
RECIPES: dict[str, Recipe] = {**BASE, **variants(IMAGES)}

__all__ = ["BASE", "RECIPES", "Recipe", "Training"]
