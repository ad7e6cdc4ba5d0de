"""Losses of metric learning, with the other pairs of the batch as negatives (Sáez Maldonado 2021, sec. 6)."""

from dataclasses import replace

from nearfar.config.recipes.recipe import Recipe
from nearfar.config.recipes.siamese import SIMCLR

NPAIR = replace(
    SIMCLR,
    about="Each view is contrasted with the same view of the other pictures: multi-class N-pair (Sáez Maldonado 2021, Eq. 20).",
    negatives={"name": "in-batch", "views": "one"},
    bound={"name": "npair"},
)

TUPLE = replace(
    SIMCLR,
    about="A view is contrasted with all views of the other pictures in one tuple (Sáez Maldonado 2021, Eq. 19).",
    bound={"name": "tuple"},
)

TRIPLET = Recipe(
    about="A view is nearer to its own picture's other view, by a margin, than to any other's (Sáez Maldonado 2021, Eq. 17-18).",
    views={"name": "simclr"},
    encoders={"name": "shared", "head": "mlp"},
    critic={"name": "distance"},
    negatives={"name": "in-batch", "views": "one"},
    bound={"name": "triplet", "margin": 1.0},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)
