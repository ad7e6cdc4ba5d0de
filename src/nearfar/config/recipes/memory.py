"""Negatives that are remembered from earlier steps."""

from dataclasses import replace

from nearfar.config.recipes.recipe import CLOSE_AFTER, Recipe

MOCO = Recipe(
    about="A view is contrasted with a queue of keys embedded by a slow copy of the network (Liu 2022, sec. 3.2.2; v2 head).",
    views={"name": "simclr", "symmetric": False},
    encoders={"name": "momentum", "momentum": 0.99, "head": "mlp-plain"},
    critic={"name": "cosine", "temperature": 0.1},
    negatives={"name": "queue", "size": 4096},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)

MOCO_V1 = replace(
    MOCO,
    about="MoCo as first published: a linear head and no blur (Liu 2022, Eq. 35).",
    views={"name": "instdisc", "symmetric": False},
    encoders={"name": "momentum", "momentum": 0.99, "head": "linear"},
    critic={"name": "cosine", "temperature": 0.07},
)

NNCLR = Recipe(
    about="A view is contrasted with the nearest of earlier keys to the other view, instead of that view itself (Dwibedi et al. 2021).",
    views={"name": "simclr"},
    encoders={"name": "shared", "stop_gradient": True, "head": "mlp", "predictor": "mlp"},
    critic={"name": "cosine", "temperature": 0.1},
    negatives={"name": "support", "size": 4096},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)

INSTDISC = Recipe(
    about="A view must identify its own row in a memory bank with one row per picture (Wu et al. 2021, sec. 2, Wu et al. 2020, sec. 5).",
    views={"name": "instdisc", "count": 1},
    encoders={"name": "shared", "head": "linear-norm"},
    critic={"name": "cosine", "temperature": 0.07},
    negatives={"name": "bank", "momentum": 0.5},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)

CMC = Recipe(
    about="A picture's luminance must identify its colours in a memory bank, and its colours its luminance; two networks, twice the weights; the mean of both directions, where the paper has their sum (Wu et al. 2021, sec. 2).",
    views={"name": "cmc", "colours": "lab", "aligned": True},
    encoders={"name": "per-view", "keep": "all", "head": "linear-norm"},
    critic={"name": "cosine", "temperature": 0.07},
    negatives={"name": "bank", "momentum": 0.5},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)

# B_i is a share: the papers' 4,096 rows are 0.3 % of ImageNet and would be 82 % of 5,000 pictures
LOCAL_AGGREGATION = replace(
    INSTDISC,
    about="Local Aggregation: a view is contrasted with its nearest rows in a memory bank and pulled towards those in its own clusters (Wu et al. 2020, sec. 5.3).",
    selection={"name": "neighbours", "background": 0.1, "lower": 0.0, "after": CLOSE_AFTER},
    bound={"name": "tuple"},  # its value is the paper's log p(C_i and B_i) - log p(B_i), without a log m
)
