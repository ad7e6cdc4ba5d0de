"""Every image recipe with negatives under every selection: `moco` gives `moco-ring`, `moco-ball`, `moco-cave`,
`moco-neighbours`, by rule; and with a memory bank, as Wu et al. 2020 has it, `instdisc-annulus`.

Wu et al. 2021 lets the outer edge of a ring rise linearly, from all candidates to the most similar tenth in the first 100 of
its 300 epochs (App. E); here it is the first third of however many there are. It does not tell its inner edge, only
that there is one (Table 2: without it, worse): 0.99 is ours. Close neighbours are pulled once that first third is over:
what an untrained network calls close means little, and Wu et al. 2020 starts Local Aggregation from 10 epochs of instance discrimination.
"""

from collections.abc import Mapping
from dataclasses import replace

from nearfar.config.recipes.recipe import CLOSE_AFTER, Choice, Recipe, Rising
from nearfar.parts.joined import JOINED_BY
from nearfar.parts.selections import PARTS

OUTER_EDGE = Rising(0.0, 0.9, share=1 / 3)
INNER_EDGE = 0.99
SUFFIXES = ("ring", "ball", "cave", "neighbours", "annulus")  # of recipes, by the selection they are under


def variants(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """The recipes with negatives, each under each selection."""
    return {
        f"{name}-{selection}": replace(recipe, about=f"{about} (on {name}).", selection=choice)
        for name, recipe in recipes.items()
        if recipe.negatives["name"] != "none"
        for selection, (about, choice) in _selections(recipe).items()
    }


def _joined(choice: Choice, own: Choice) -> Choice:
    """The recipe's own selection and another one: weights come last, positives by label first."""
    last = PARTS[own["name"]].weights_negatives
    names = (choice["name"], own["name"]) if last else (own["name"], choice["name"])
    return {**own, **choice, "name": JOINED_BY.join(names)}


def _selections(recipe: Recipe) -> dict[str, tuple[str, Choice]]:
    # a batch holds a few hundred images: of a hundred clusters, an anchor would meet one or two of its own
    clusters = 10 if recipe.negatives["name"] == "in-batch" else 100
    # a queue of thousands leaves some forty negatives in a cave of a hundred: too few to learn much from
    caves = 100 if recipe.negatives["name"] == "bank" else 10
    close = {"name": "neighbours", "lower": OUTER_EDGE, "clusters": clusters, "after": CLOSE_AFTER}
    found: dict[str, tuple[str, Choice]] = {
        "ring": (
            "Negatives neither too easy nor too close, the ring narrowing in the first third of the run (Wu et al. 2021, sec. 4)",
            {"name": "ring", "lower": OUTER_EDGE, "upper": INNER_EDGE},
        ),
        "ball": (
            "Negatives among the most similar, more so over the first third of the run (Wu et al. 2021, Table 2, Wu et al. 2020, Def. 5.2)",
            {"name": "ball", "lower": OUTER_EDGE},
        ),
        "cave": (
            "Negatives from the anchor's own k-means cluster, renewed every epoch (Wu et al. 2021, App. F)",
            {"name": "cave", "clusters": caves},
        ),
        "neighbours": (
            "Ring (+C_i): negatives of a ring, and those in the anchor's own k-means clusters as positives (Wu et al. 2021, App. F)",
            {**close, "upper": INNER_EDGE},
        ),
    }
    if recipe.negatives["name"] == "bank":
        found["annulus"] = (
            "Negatives among the most similar, but for those in the anchor's own k-means clusters: B_i without C_i (Wu et al. 2020, "
            "Def. 5.3)",
            {**close, "name": "annulus"},
        )
    own = recipe.selection
    if own["name"] not in ("everyone", "neighbours"):
        return {name: (about, _joined(choice, own)) for name, (about, choice) in found.items()}
    if own["name"] == "everyone":
        return found
    # Local Aggregation is its close neighbours C_i: they stay, and the negatives B_i are what changes
    return {
        **found,
        "ring": found["neighbours"],
        "ball": (
            "Ball (+C_i): negatives among the most similar, and those in the anchor's own k-means clusters as positives "
            "(Wu et al. 2021, App. F)",
            close,
        ),
        "cave": (
            "Cave (+C_i): negatives from the anchor's own one of few clusters; those of them in its own smaller clusters "
            "are positives (Wu et al. 2021, App. F)",
            {"name": "cave", "clusters": clusters // 10, "close": clusters, "after": CLOSE_AFTER},
        ),
    }
