"""Sequences: what comes next, what is missing, and what is near in time."""

from nearfar.config.recipes.recipe import Recipe

CPC = Recipe(
    about="A recording's past predicts its next frames, contrasted with frames of other recordings (Liu 2022, sec. 2.2, Eq. 28).",
    views={"name": "window", "samples": 2560},
    encoders={"name": "predictive"},
    critic={"name": "dot"},
    negatives={"name": "in-batch", "views": "one"},
    bound={"name": "infonce"},
    training={
        "backbone": "conv-gru",
        "batch_size": 64,
        "optimizer": "adamw",
        "lr": 2e-3,
        "weight_decay": 1e-4,
    },
)

MASKED = Recipe(
    about="The hidden symbols of a block are predicted, contrasted with the whole vocabulary (Wu et al. 2020, sec. 5.1).",
    views={"name": "mask"},
    encoders={"name": "masked"},
    critic={"name": "dot"},
    negatives={"name": "dictionary"},
    bound={"name": "infonce"},
    training={
        "backbone": "transformer",
        "batch_size": 64,
        "optimizer": "adamw",
        "lr": 1e-3,
        "weight_decay": 1e-2,
        "clip": 1.0,
    },
)

CEBRA = Recipe(
    about="A time must identify a neighbouring time among times drawn from all of the recording: contrast in time (CEBRA-Time, Schneider et al. 2023).",
    views={"name": "neighbouring"},
    encoders={"name": "shared", "head": "linear", "dim": 32},
    critic={"name": "cosine", "temperature": 0.1},
    negatives={"name": "in-batch", "views": "one"},
    bound={"name": "infonce"},
    training={"batch_size": 512, "optimizer": "adamw", "lr": 1e-3, "weight_decay": 1e-4},
)
