"""Every image recipe with negatives under every selection: `moco` gives `moco-ring`, `moco-ball`,
`moco-cave`, `moco-neighbours`; and with a memory bank, as Wu et al. 2020 has it, `instdisc-annulus`.

Wu et al. 2021 lets the outer edge of a ring rise linearly, from all candidates to the most similar tenth in
the first 100 of its 300 epochs (App. E); here it is the first third of the run. It does not give its inner
edge, only that there is one (Table 2: without it, worse): 0.99 is ours. Close neighbours are pulled once
that first third is over: what an untrained network calls close means little, and Wu et al. 2020 starts Local
Aggregation from 10 epochs of instance discrimination.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from nearfar.config.recipes.recipe import Recipe, Variant, method_template, share_of
from nearfar.core.abstract import AbstractNegatives, AbstractSelection
from nearfar.core.schedules import Schedule, linear
from nearfar.parts.negatives import Bank, InBatch
from nearfar.parts.selections import Ball, Cave, Chain, Everyone, Neighbours, Ring

NARROWING = 1 / 3  # share of a run in which the outer edge rises
INNER_EDGE = 0.99
# share of a run before close neighbours are pulled: what an untrained network calls close means little
CLOSE_AFTER = 1 / 3


def variants(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """The variants of the recipes, by name. No part is made before one is used."""
    return {
        f"{name}-{suffix}": replace(
            recipe,
            about=f"{variant.about} (on {name}).",
            selection=partial(_selection, recipe, variant),
            variants={},
            on_cpu={},
        )
        for name, recipe in recipes.items()
        for suffix, variant in recipe.variants.items()
    }


def _selection(recipe: Recipe, variant: Variant, epochs: int) -> AbstractSelection:
    """The variant's selection beside the recipe's own: weights come last, positives by label first."""
    method = method_template(recipe.method)
    added = variant.selection(method.negatives, epochs)
    if isinstance(method.selection, Everyone):
        return added
    if method.selection.weights_negatives:
        return Chain(added, method.selection)
    return Chain(method.selection, added)


# ---------------------------------------------------------------------------------------- the selections


def _outer_edge(epochs: int) -> Schedule:
    return linear(0.0, 0.9, share_of(epochs, NARROWING))


def _clusters(negatives: AbstractNegatives) -> int:
    # a batch holds a few hundred images: of a hundred clusters, an anchor would meet one or two of its own
    return 10 if isinstance(negatives, InBatch) else 100


def _ring(negatives: AbstractNegatives, epochs: int) -> Ring:
    return Ring(_outer_edge(epochs), INNER_EDGE)


def _ball(negatives: AbstractNegatives, epochs: int) -> Ball:
    return Ball(_outer_edge(epochs))


def _cave(negatives: AbstractNegatives, epochs: int) -> Cave:
    # a queue of thousands leaves some forty negatives in a cave of a hundred: too few to learn much from
    return Cave(100 if isinstance(negatives, Bank) else 10)


def _neighbours(negatives: AbstractNegatives, epochs: int) -> Neighbours:
    return Neighbours(
        lower=_outer_edge(epochs),
        upper=INNER_EDGE,
        clusters=_clusters(negatives),
        after=share_of(epochs, CLOSE_AFTER),
    )


def _annulus(negatives: AbstractNegatives, epochs: int) -> Neighbours:
    after = share_of(epochs, CLOSE_AFTER)
    return Neighbours(lower=_outer_edge(epochs), clusters=_clusters(negatives), keep="annulus", after=after)


def _close_ball(negatives: AbstractNegatives, epochs: int) -> Neighbours:
    after = share_of(epochs, CLOSE_AFTER)
    return Neighbours(lower=_outer_edge(epochs), clusters=_clusters(negatives), after=after)


def _close_cave(negatives: AbstractNegatives, epochs: int) -> Cave:
    clusters = _clusters(negatives)
    return Cave(clusters // 10, close=clusters, after=share_of(epochs, CLOSE_AFTER))


# ------------------------------------------------------------------------------ the variants of a recipe


# of recipes with negatives
WITH_NEGATIVES = {
    "ring": Variant(
        "Negatives neither too easy nor too close, the ring narrowing in the first third of the run (Wu "
        "et al. 2021, sec. 4)",
        _ring,
    ),
    "ball": Variant(
        "Negatives among the most similar, more so over the first third of the run (Wu et al. 2021, "
        "Table 2, Wu et al. 2020, Def. 5.2)",
        _ball,
    ),
    "cave": Variant(
        "Negatives from the anchor's own k-means cluster, renewed every epoch (Wu et al. 2021, App. F)", _cave
    ),
    "neighbours": Variant(
        "Ring (+C_i): negatives of a ring, and those in the anchor's own k-means clusters as positives "
        "(Wu et al. 2021, App. F)",
        _neighbours,
    ),
}
WITH_BANK = {
    **WITH_NEGATIVES,
    "annulus": Variant(
        "Negatives among the most similar, but for those in the anchor's own k-means clusters: B_i "
        "without C_i (Wu et al. 2020, Def. 5.3)",
        _annulus,
    ),
}
# Local Aggregation is its close neighbours C_i: they stay, and the negatives B_i are what changes
WITH_CLOSE_NEIGHBOURS = {
    **WITH_BANK,
    "ring": WITH_NEGATIVES["neighbours"],
    "ball": Variant(
        "Ball (+C_i): negatives among the most similar, and those in the anchor's own k-means clusters "
        "as positives (Wu et al. 2021, App. F)",
        _close_ball,
    ),
    "cave": Variant(
        "Cave (+C_i): negatives from the anchor's own one of few clusters; those of them in its own "
        "smaller clusters are positives (Wu et al. 2021, App. F)",
        _close_cave,
    ),
}
SUFFIXES = tuple(WITH_BANK)  # of recipes, by their selection
