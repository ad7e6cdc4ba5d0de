"""Two columns that belong together, each with a network of its own."""

from dataclasses import replace

from nearfar.config.recipes.recipe import Recipe

CLIP = Recipe(
    about="Each of two columns must identify its own row of the other among those of the batch, both ways, the temperature learnt (Radford et al. 2021).",
    views={"name": "both"},
    encoders={"name": "per-view", "keep": "first", "head": "linear"},
    critic={"name": "cosine", "temperature": "learnt(0.07)"},
    negatives={"name": "in-batch", "views": "one"},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 1e-3, "weight_decay": 1e-2},
)

# SigLIP's logit is f - log nu with nu negatives; its bias begins at -10, ours at -10 + log 255 (batches of 256)
SIGLIP = replace(
    CLIP,
    about="CLIP with every pair judged by itself, as one that belongs together or not, temperature and bias learnt (Zhai et al. 2023).",
    critic={"name": "cosine", "temperature": "learnt(0.1)", "bias": "learnt(-4.46)"},
    bound={"name": "nce"},
)
