"""Two views of a picture, encoded side by side."""

from nearfar.config.recipes.recipe import Recipe

SIMCLR = Recipe(
    about="Two views of a picture are contrasted with the views of all other pictures in the batch (Sáez Maldonado 2021, ch. 7).",
    views={"name": "simclr"},
    encoders={"name": "shared", "head": "mlp"},
    critic={"name": "cosine", "temperature": 0.2},
    negatives={"name": "in-batch", "views": "both"},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)

END_TO_END = Recipe(
    about="Query and key have networks of their own, both trained: contrast end to end (Liu 2022, Eq. 34).",
    views={"name": "simclr", "symmetric": False},
    encoders={"name": "per-view", "keep": "first", "head": "mlp"},
    critic={"name": "cosine", "temperature": 0.2},
    negatives={"name": "in-batch", "views": "one"},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)

BYOL = Recipe(
    about="The online network predicts what a slow copy of it says of the other view; no negatives (Sáez Maldonado 2021, ch. 8).",
    views={"name": "byol"},
    encoders={"name": "momentum", "momentum": "cosine(0.99,1.0)", "head": "mlp", "predictor": "mlp"},
    critic={"name": "cosine", "temperature": 1.0},
    negatives={"name": "none"},
    bound={"name": "agreement"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)

MOCO_V3 = Recipe(
    about="MoCo without a queue: what a predictor makes of a view is contrasted with what a slow copy makes of the other pictures in the batch (Chen et al. 2021).",
    views={"name": "byol"},
    encoders={"name": "momentum", "momentum": "cosine(0.99,1.0)", "head": "mlp", "predictor": "mlp"},
    critic={"name": "cosine", "temperature": 0.2},
    negatives={"name": "in-batch", "views": "one"},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)

SIMSIAM = Recipe(
    about="BYOL with the network as its own teacher: a predictor and a stopped gradient, no slow copy.",
    views={"name": "simclr"},
    encoders={"name": "shared", "stop_gradient": True, "head": "mlp", "predictor": "mlp"},
    critic={"name": "cosine", "temperature": 1.0},
    negatives={"name": "none"},
    bound={"name": "agreement"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)
