"""Learning from labels, as one more assignment: what supervised baselines, fine-tuning and distillation start from."""

from nearfar.config.recipes.recipe import Recipe

# crops are those of SimCLR at small sizes; colours are left alone: labels tell what matters, and jitter would only cost accuracy
SUPERVISED = Recipe(
    about="A picture is contrasted with the classes it is not of: cross-entropy on its label, every class a learnt vector; needs labels.",
    views={"name": "crop-flip", "count": 1},
    encoders={"name": "prototypes", "head": "none"},
    critic={"name": "dot"},
    negatives={"name": "dictionary"},
    bound={"name": "infonce"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)
