"""A summary of a picture and the places of its feature map."""

from nearfar.recipes.recipe import Recipe

DIM = Recipe(
    about="A summary is told from the feature maps of other pictures, whole and place by place; a prior shapes it (000 Eq. 36-39).",
    views={"name": "cmc", "count": 1},
    encoders={"name": "infomax", "head": "mlp"},
    critic={"name": "cosine", "temperature": 0.1},
    negatives={"name": "in-batch", "views": "one"},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)
