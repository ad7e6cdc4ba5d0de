"""No negatives: two views agree, and a prior on the embeddings keeps them from being all alike.

The agreement is Barber-Agakov with a normal q(v | u) about u, whose missing term, the entropy of v, the prior keeps up.
"""

from nearfar.config.recipes.recipe import Recipe

VICREG = Recipe(
    about="Two views agree while every dimension varies and no two vary together; no negatives (Bardes et al. 2022).",
    views={"name": "simclr"},
    encoders={"name": "shared", "head": "mlp"},
    critic={"name": "distance", "temperature": 0.04, "unit": False, "mean": True},  # 25 times the mean square
    negatives={"name": "none"},
    bound={"name": "barber-agakov"},
    prior={"name": "variance-covariance"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)

SIGREG = Recipe(
    about="Two views agree while embeddings are normal seen from any direction; no negatives (LeJEPA, Balestriero & LeCun 2025).",
    views={"name": "simclr"},
    encoders={"name": "shared", "head": "mlp"},
    # a quarter of the mean square between two views is that from their mean
    critic={"name": "distance", "temperature": 4.0, "unit": False, "mean": True},
    negatives={"name": "none"},
    bound={"name": "barber-agakov"},
    prior={"name": "sigreg"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
)
