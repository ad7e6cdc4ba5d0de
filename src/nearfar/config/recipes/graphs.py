"""Graphs: Deep InfoMax on their nodes, and SimCLR on their views."""

from nearfar.config.recipes.recipe import Recipe

INFOGRAPH = Recipe(
    about="A graph's summary must identify the graph's own nodes among those of other graphs: Deep InfoMax on graphs (Sun et al. 2020; Liu 2022, sec. 3.3). bound=infonce is its NCE form.",
    views={"name": "perturb", "changes": ["identity"], "count": 1},
    encoders={"name": "infograph", "head": "mlp-plain", "hidden": 96, "dim": 96, "nodes": 16},
    critic={"name": "dot"},
    negatives={"name": "in-batch", "views": "one"},
    bound={"name": "js"},
    training={"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.0, "batch_size": 128, "epochs": 20},
)

GRAPHCL = Recipe(
    about="Two views of a graph, each with nodes, edges or labels changed, are contrasted with those of other graphs: SimCLR on graphs (You et al. 2020).",
    views={"name": "perturb"},
    encoders={"name": "shared", "head": "mlp-plain", "hidden": 96, "dim": 96},
    critic={"name": "cosine", "temperature": 0.2},
    negatives={"name": "in-batch", "views": "one"},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.0, "batch_size": 128, "epochs": 20},
)
