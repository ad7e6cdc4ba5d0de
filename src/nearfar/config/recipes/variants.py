"""Every image recipe with negatives under every selection: `moco` gives `moco-ring`, `moco-ball`,
`moco-cave`, `moco-neighbours`, by rule; and with a memory bank, as Wu et al. 2020 has it, `instdisc-annulus`.

Wu et al. 2021 lets the outer edge of a ring rise linearly, from all candidates to the most similar tenth in
the first 100 of its 300 epochs (App. E); here it is the first third of the run. It does not give its inner
edge, only that there is one (Table 2: without it, worse): 0.99 is ours. Close neighbours are pulled once
that first third is over: what an untrained network calls close means little, and Wu et al. 2020 starts Local
Aggregation from 10 epochs of instance discrimination.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nearfar.config.recipes.images import CLOSE_AFTER
from nearfar.config.recipes.recipe import Recipe, share_of
from nearfar.core.abstract import AbstractNegatives, AbstractSelection
from nearfar.core.schedules import Schedule, linear
from nearfar.parts.negatives import Bank, InBatch
from nearfar.parts.selections import Annulus, Ball, Cave, Chain, Everyone, Neighbours, Ring

NARROWING = 1 / 3  # share of a run in which the outer edge rises
INNER_EDGE = 0.99
SUFFIXES = ("ring", "ball", "cave", "neighbours", "annulus")  # of recipes, by their selection

Selecting = Callable[[int], AbstractSelection]  # the selection of a run of so many epochs


@dataclass(frozen=True)
class Variant:
    """A selection that recipes can be under."""

    about: str
    selection: Selecting


def variants(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """The recipes with negatives, each under each selection."""
    return {
        f"{name}-{suffix}": replace(
            recipe, about=f"{variant.about} (on {name}).", selection=variant.selection
        )
        for name, recipe in recipes.items()
        if (negatives := recipe.plan(1).negatives).has_candidates and not negatives.gives_codes
        for suffix, variant in _variants_of(recipe).items()
    }


def _variants_of(recipe: Recipe) -> dict[str, Variant]:
    method = recipe.plan(1)
    rules = _rules(method.negatives)
    if isinstance(method.selection, Everyone):
        return rules
    if isinstance(method.selection, Neighbours):
        return {**rules, **_close_rules(method.negatives)}
    return {
        suffix: Variant(rule.about, _joined(rule.selection, lambda epochs: recipe.plan(epochs).selection))
        for suffix, rule in rules.items()
    }


def _joined(added: Selecting, selection: Selecting) -> Selecting:
    """The recipe's selection and another one: weights come last, positives by label first."""

    def chain(epochs: int) -> AbstractSelection:
        first, second = selection(epochs), added(epochs)
        return Chain(second, first) if first.weights_negatives else Chain(first, second)

    return chain


def _outer_edge(epochs: int) -> Schedule:
    return linear(0.0, 0.9, share_of(epochs, NARROWING))


def _clusters(negatives: AbstractNegatives) -> int:
    # a batch holds a few hundred images: of a hundred clusters, an anchor would meet one or two of its own
    return 10 if isinstance(negatives, InBatch) else 100


def _rules(negatives: AbstractNegatives) -> dict[str, Variant]:
    # a queue of thousands leaves some forty negatives in a cave of a hundred: too few to learn much from
    caves, clusters = 100 if isinstance(negatives, Bank) else 10, _clusters(negatives)

    def ring(epochs: int) -> Ring:
        return Ring(_outer_edge(epochs), INNER_EDGE)

    def ball(epochs: int) -> Ball:
        return Ball(_outer_edge(epochs))

    def cave(epochs: int) -> Cave:
        return Cave(caves)

    def neighbours(epochs: int) -> Neighbours:
        start = share_of(epochs, CLOSE_AFTER)
        return Neighbours(lower=_outer_edge(epochs), upper=INNER_EDGE, clusters=clusters, after=start)

    def annulus(epochs: int) -> Annulus:
        return Annulus(lower=_outer_edge(epochs), clusters=clusters, after=share_of(epochs, CLOSE_AFTER))

    rules = {
        "ring": Variant(
            "Negatives neither too easy nor too close, the ring narrowing in the first third of the run (Wu "
            "et al. 2021, sec. 4)",
            ring,
        ),
        "ball": Variant(
            "Negatives among the most similar, more so over the first third of the run (Wu et al. 2021, "
            "Table 2, Wu et al. 2020, Def. 5.2)",
            ball,
        ),
        "cave": Variant(
            "Negatives from the anchor's own k-means cluster, renewed every epoch (Wu et al. 2021, App. F)",
            cave,
        ),
        "neighbours": Variant(
            "Ring (+C_i): negatives of a ring, and those in the anchor's own k-means clusters as positives "
            "(Wu et al. 2021, App. F)",
            neighbours,
        ),
    }
    if isinstance(negatives, Bank):
        rules["annulus"] = Variant(
            "Negatives among the most similar, but for those in the anchor's own k-means clusters: B_i "
            "without C_i (Wu et al. 2020, Def. 5.3)",
            annulus,
        )
    return rules


def _close_rules(negatives: AbstractNegatives) -> dict[str, Variant]:
    """Local Aggregation is its close neighbours C_i: they stay, and the negatives B_i are what changes."""
    clusters = _clusters(negatives)

    def ball(epochs: int) -> Neighbours:
        return Neighbours(lower=_outer_edge(epochs), clusters=clusters, after=share_of(epochs, CLOSE_AFTER))

    def cave(epochs: int) -> Cave:
        return Cave(clusters // 10, close=clusters, after=share_of(epochs, CLOSE_AFTER))

    return {
        "ring": _rules(negatives)["neighbours"],
        "ball": Variant(
            "Ball (+C_i): negatives among the most similar, and those in the anchor's own k-means clusters "
            "as positives (Wu et al. 2021, App. F)",
            ball,
        ),
        "cave": Variant(
            "Cave (+C_i): negatives from the anchor's own one of few clusters; those of them in its own "
            "smaller clusters are positives (Wu et al. 2021, App. F)",
            cave,
        ),
    }
