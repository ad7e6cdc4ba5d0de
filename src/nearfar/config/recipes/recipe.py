"""What a named method is: a function that returns a `Method` of parts, and how it is usually trained."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Literal

from nearfar.config.fields import FIELDS
from nearfar.config.schema import plain
from nearfar.config.sections import sections_of
from nearfar.core.abstract import AbstractNegatives, AbstractSelection
from nearfar.core.method import Method
from nearfar.core.schedules import Schedule, Value, linear
from nearfar.parts.negatives import Bank, InBatch
from nearfar.parts.selections import Ball, Cave, Chain, Everyone, Neighbours, Ring

OptimizerName = Literal["adamw", "sgd", "lars", "muon"]


@dataclass(frozen=True)
class Training:
    """Defaults of the training loop; None: those of every run."""

    optimizer: OptimizerName = "adamw"
    lr: Value = 2e-3
    weight_decay: float = 1e-4
    batch_size: int | None = None
    epochs: int | None = None
    backbone: str | None = None
    clip: float | None = None

    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


@cache
def method_template(method: Callable[..., Method]) -> Method:
    """The method that a recipe's function returns, made once: runs copy its parts."""
    return method()


@dataclass(frozen=True)
class Variant:
    """A selection that a recipe also exists under; `selection(negatives, epochs)` makes it."""

    about: str
    selection: Callable[[AbstractNegatives, int], AbstractSelection]


@dataclass(frozen=True)
class Recipe:
    """A named method. `method` is called without arguments; its parts have settings, but no weights yet.

    `selection`: the selection of a run of a number of epochs, in place of the method's, where one of its
    settings lasts a share of the run. `variants`: by the suffix of their names. `on_cpu`: settings that were
    measured together, for small images on a CPU (`train.defaults`).
    """

    about: str
    method: Callable[..., Method]
    training: Training = Training()
    selection: Callable[[int], AbstractSelection] | None = None
    command: str = "pretrain {name} {data}"  # that trains it
    variants: Mapping[str, Variant] = field(default_factory=dict)
    on_cpu: Mapping[str, Any] = field(default_factory=dict)

    def template(self, epochs: int) -> Method:
        """The method, for a run of this many epochs."""
        method = method_template(self.method)
        return method if self.selection is None else method.replace(selection=self.selection(epochs))

    def settings(self, epochs: int) -> dict[str, Any]:
        """The recipe as plain settings of a run of this many epochs."""
        return {**self.training.settings(), **plain(sections_of(self.template(epochs)))}

    @cached_property
    def choices(self) -> dict[str, dict[str, Any]]:
        """The parts as settings, by choice, for a run of the default length."""
        return plain(sections_of(self.template(FIELDS["epochs"].default)))


def share_of(epochs: int, share: float) -> float:
    """A share of the run in epochs, rounded to four digits."""
    return float(f"{share * epochs:.4g}")


# --------------------------------------------------------------- variants of a method by its selection

# `moco` gives `moco-ring`, `moco-ball`, `moco-cave` and `moco-neighbours`; with a memory bank, as Wu et al. 2020
# has it, `instdisc-annulus`. Wu et al. 2021 lets the outer edge of a ring rise linearly, from all candidates to
# the most similar tenth in the first 100 of its 300 epochs (App. E); here it is the first third of the run. It
# does not give its inner edge, only that there is one (Table 2: without it, worse): 0.99 is ours. Close
# neighbours are pulled once that first third is over; Wu et al. 2020 starts Local Aggregation from 10 epochs of
# instance discrimination.
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
    """The variant's selection joined with the recipe's own: weights come last, positives by label first."""
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
    start = share_of(epochs, CLOSE_AFTER)
    return Neighbours(lower=_outer_edge(epochs), clusters=_clusters(negatives), keep="annulus", after=start)


def _close_ball(negatives: AbstractNegatives, epochs: int) -> Neighbours:
    start = share_of(epochs, CLOSE_AFTER)
    return Neighbours(lower=_outer_edge(epochs), clusters=_clusters(negatives), after=start)


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
