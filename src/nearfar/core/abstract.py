"""What each kind of part must implement, what it may declare, and the default of everything it leaves out.

    views --Batch--> encoders --Encoded--> critic --Scores--> selection --Scores--> bound --> nats
                               negatives: candidates for the critic         prior: a loss of Encoded

Parts are abstract or final: a concrete part subclasses one class of this file directly and overrides no
concrete part. A part with weights or buffers is also an `nn.Module`, named first: `class Queue(nn.Module,
AbstractNegatives)`. Everything optional is a class attribute or a method with a default here, so no caller
looks anything up by name. Kinds of parts never import one another.

A class attribute hides an `nn.Module`'s child of the same name: name children and buffers otherwise.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from typing import Any, ClassVar, TypeGuard

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from nearfar.core.kernels import inner
from nearfar.core.networks import backbone_of
from nearfar.core.schedules import START, Learnt, Progress, Schedule
from nearfar.core.scores import Candidates, Scores, at_least_float32
from nearfar.core.types import (
    Batch,
    Certificate,
    Context,
    Coverage,
    Encoded,
    NegativeSampling,
    Pair,
    Remark,
    TeacherOutput,
    view_pairs,
)
from nearfar.errors import UserError


def settable(part: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a part's constructor that are settings: positional ones with a default."""
    parameters = inspect.signature(part).parameters.values()
    return {
        p.name: p
        for p in parameters
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty and p.name != "self"
    }


def _is_plain(setting: Any) -> bool:
    if isinstance(setting, tuple | list):
        return all(map(_is_plain, setting))
    return setting is None or isinstance(setting, bool | int | float | str | Schedule | Learnt)


def _as_argument(setting: Any) -> str:
    return setting.written() if isinstance(setting, Schedule | Learnt) else repr(setting)


def _recording(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that first records its settings."""

    @wraps(init)
    def record(self: Any, *arguments: Any, **keywords: Any) -> None:
        if "_settings" not in vars(self):
            bound = inspect.signature(type(self).__init__).bind(self, *arguments, **keywords)
            values = {key: bound.arguments.get(key, p.default) for key, p in settable(type(self)).items()}
            vars(self)["_settings"] = values
        init(self, *arguments, **keywords)

    return record


class AbstractPart:
    """Declarations that every kind of part has, and the settings it was made with."""

    # its line of the method's equation, settings in braces; None: the first line of its docstring
    equation: str | None = None
    # what some values of its settings add to that line
    remarks: tuple[Remark, ...] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]
        if next(base for base in cls.__mro__ if "extra_repr" in vars(base)) is nn.Module:  # it shows nothing
            cls.extra_repr = AbstractPart.extra_repr  # type: ignore[method-assign]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings it was made with: the values of its constructor's parameters, by name."""
        if is_dataclass(self):
            return {key: getattr(self, key) for key in settable(type(self))}
        return dict(vars(self).get("_settings", {}))

    def extra_repr(self) -> str:
        """Its settings as arguments. Objects are left out: their text may differ between processes."""
        return ", ".join(f"{key}={_as_argument(x)}" for key, x in self.settings.items() if _is_plain(x))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def meet(self, data: Any) -> None:
        """Makes what depends on the data: weights and memories. Until then a part is its settings.

        Called once, on a copy, when a method meets its data; random draws follow the run's seed. Encoders
        get what their networks are shown (`parts.encoders.InputSpec`), all others get `core.types.Sizes`.
        Default: nothing depends on the data."""

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        """Why this part does not work with the other choices, as one sentence; None: it does."""
        return None


class AbstractViews(AbstractPart, ABC):
    """Makes the views of each instance. Randomness is a function of (seed, epoch, index, view) alone.

    `__call__` runs where the data are read, without gradient. A view with weights of its own (a learned view)
    is an `nn.Module` that overrides `transform`, which runs inside `Method.forward` on the batch's device;
    its parameters are trained like the encoders'.
    """

    count: int = 2  # views per instance
    # every ordered pair of views is contrasted; otherwise the first with each other one
    symmetric: bool = True
    # this many of the first views are keys, the others (small crops) are anchors only; None: all are keys
    key_views: int | None = None
    thread_safe: bool = True  # False: called only by the thread that trains

    @abstractmethod
    def __call__(
        self, instances: Any, seed: int, epoch: int, index: Int64[np.ndarray, "instance"]
    ) -> tuple[Any, ...]:
        """`count` views of loaded instances `index`, each a tensor (instance, ...) or a tree of such."""

    def transform(self, views: tuple[Any, ...], progress: Progress) -> tuple[Any, ...]:
        """The views as the encoders receive them."""
        return views


class AbstractViewSettings(AbstractPart, ABC):
    """Views as a recipe describes them: plain settings. The views are made when the data are known."""

    count: int = 2  # views per instance
    symmetric: bool = True  # see `AbstractViews`
    key_views: int | None = None  # see `AbstractViews`
    # name of a parameter that is a mapping of further settings, written like the others; empty: none
    further: ClassVar[str] = ""

    @abstractmethod
    def training(self, description: Any, device: torch.device) -> AbstractViews:
        """The views of training, for data of this description."""

    @abstractmethod
    def plain_view(self, description: Any, device: torch.device) -> Any:
        """The view of evaluation: without randomness."""

    def section(self) -> dict[str, Any]:
        """The settings as they are written, by name."""
        further = getattr(self, self.further) if self.further else {}
        return {**self.settings, "count": self.count, "symmetric": self.symmetric, **further}

    def remark(self, description: Any) -> str | None:
        """A sentence about what these views leave out for the described data; None if nothing."""
        return None

    def portable(self, description: Any) -> tuple[dict[str, Any], str]:
        """How the plain view is made, for users without nearfar: as JSON, and as the Python source of
        `plain_view` ("" where only nearfar makes it)."""
        return {"description": description.as_plain()}, ""


class AbstractEncoders(AbstractPart, ABC):
    """Embeds views: `encode` returns embeddings of the requested views, `advance` moves slow copies.

    Keys of different networks are never candidates of one anchor: `group_of` is the group of a key.
    """

    key_groups: int = 1
    origin: Any = None  # backbone and head that settings named, where they described it

    # what the views and the backbone must be
    view_names: tuple[str, ...] = ()  # the views it is made for; empty: any that give several views
    view_count: int | None = None  # how many of them it needs; None: any number
    backbone_names: tuple[str, ...] | None = None  # the backbones it works with; None: those of the data
    built_in_backbone: str | None = None  # name of the network it brings itself; None: it takes a backbone
    works_with_one_view: bool = False
    network_per_view: bool = False  # so views may differ in their channels
    has_prototypes: bool = False  # its head may have prototypes, which `Encoded.vocabulary` holds

    # what its embeddings are
    row_per_instance: bool = True  # False: rows are times, symbols, nodes or classes
    same_rows_in_views: bool = False  # such rows are the same in every view
    gives_corrupted_keys: bool = False  # keys of further views are of corrupted instances
    keys_are_symbols: bool = False  # keys are rows of a vocabulary, which `Encoded.vocabulary` holds
    width_setting: str = "dim"  # the setting that is the width of anchors and keys
    estimate_subject: str = "shared by two views"  # what an estimate of information is about

    # labels and teachers
    needs_labels: bool = False  # of every instance
    learns_labels: bool = False  # where there are some
    gives_supervision: bool = False  # fills `Encoded.supervision`
    has_teacher: bool = False  # learns from a frozen network, see `attach_teacher`
    teacher_width: int | None = None
    teacher_classes: int = 0  # classes whose scores are read from the teacher

    # several processes
    separate_key_network: bool = False  # keys need no gradient, so any process may compute them
    unsharded: tuple[str, ...] = ()  # children whose weights are read without calling them

    @abstractmethod
    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        """Embeddings of the requested anchors and keys."""

    @abstractmethod
    def backbone(self) -> nn.Module:
        """The network that is kept after training: from one plain view to features."""

    def group_of(self, key: int) -> int:
        """The group of a key, from 0 to `key_groups` - 1."""
        return 0

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        """Which anchors are contrasted with which keys, for batches of `views` views, of which the first
        `key_views` are keys (None: all). Default: views with views, equally weighted."""
        pairs = view_pairs(views, symmetric, key_views)
        return tuple(Pair(anchor, key, 1 / len(pairs)) for anchor, key in pairs)

    def advance(self, progress: Progress) -> None:
        """Moves slow copies after a step. Default: there are none."""

    def view_networks(self) -> tuple[nn.Module, ...]:
        """Backbone and head together: one network for all views, or one for each. Default: none."""
        return ()

    @property
    def vocabulary_size(self) -> int | None:
        """Number of symbols or classes where keys are rows of a vocabulary."""
        return None

    @property
    def embedding_width(self) -> int | None:
        """Width of the embeddings a prior reads; None: that of anchors and keys."""
        return None

    @property
    def scored_width(self) -> int | None:
        """Width of anchors and keys; None: that of the networks, or the setting `width_setting`."""
        return None

    def classifier(self) -> nn.Module | None:
        """From the backbone's features to class scores, where the encoders have learnt any."""
        return None

    def attached_teacher(self) -> Callable[[Any], TeacherOutput] | None:
        """The frozen network it learns from, once attached."""
        return None

    def attach_teacher(self, teacher: Callable[[Any], TeacherOutput] | None) -> None:
        """Sets the frozen network to learn from: a function of one view. The state does not include it."""
        raise UserError(f"{type(self).__name__} learns from no teacher")


class AbstractOneNetwork(AbstractEncoders):
    """Encoders around one `network`, whose backbone is kept after training."""

    network: nn.Module

    def backbone(self) -> nn.Module:
        return backbone_of(self.network)

    def view_networks(self) -> tuple[nn.Module, ...]:
        return (self.network,)


Embedding = Float[Tensor, "*row dim"]
Anchors = Float[Tensor, "n dim"]
Keys = Float[Tensor, "m dim"]
Factors = tuple[Float[Tensor, "n width"], Float[Tensor, "m width"]]


class AbstractCritic(AbstractPart, ABC):
    """Scores pairs of embeddings. Scores are log-densities up to a constant of the anchor, f(u, v)."""

    normalised: bool | None = None  # scores are log q(v | u) of a normalised density; None: not known
    bounded_above: bool = False  # scores cannot grow without limit as embeddings do
    unit: bool = False  # scores depend on directions alone, not on lengths
    measure: str = "score"  # name of what `similarity` returns

    def prepare(self, embedding: Embedding) -> Embedding:
        """An embedding in the form that is scored and stored, e.g. unit length. Default: float32 at least."""
        return at_least_float32(embedding)

    @abstractmethod
    def pairs(self, anchors: Anchors, keys: Anchors, progress: Progress = START) -> Float[Tensor, "n"]:
        """Scores of row i of one with row i of the other."""

    @abstractmethod
    def cross(self, anchors: Anchors, keys: Keys, progress: Progress = START) -> Float[Tensor, "n m"]:
        """Scores of every row of one with every row of the other."""

    def lowest_score(self, progress: Progress = START) -> float | Float[Tensor, ""] | None:
        """The lowest possible score; None: no limit."""
        return None

    def similarity(self, scores: Any, progress: Progress) -> Any:
        """Scores in the unit of `measure`, e.g. cosines without temperature and bias."""
        return scores


class AbstractInnerProduct(AbstractCritic):
    """A critic f(u, v) = a(u)^T b(v). Streamed, it needs no graph of its scores (`nearfar.core.kernels`)."""

    normalised = False

    @abstractmethod
    def factors(self, anchors: Anchors, keys: Keys, progress: Progress) -> Factors:
        """a(anchors) and b(keys)."""

    def pairs(self, anchors: Anchors, keys: Anchors, progress: Progress = START) -> Float[Tensor, "n"]:
        anchor_factors, key_factors = self.factors(anchors, keys, progress)
        return (anchor_factors * key_factors).sum(dim=1)

    def cross(self, anchors: Anchors, keys: Keys, progress: Progress = START) -> Float[Tensor, "n m"]:
        return inner(*self.factors(anchors, keys, progress))


def is_inner_product(critic: AbstractCritic) -> TypeGuard[AbstractInnerProduct]:
    """Whether its factors define its scores: a subclass may override `cross`."""
    return isinstance(critic, AbstractInnerProduct) and type(critic).cross is AbstractInnerProduct.cross


class AbstractNegatives(AbstractPart, ABC):
    """Where candidates come from. Only `advance` may change what is remembered."""

    display_name: str = "its source"
    has_candidates: bool = True  # False: nothing is contrasted with
    only_this_batch: bool = False  # candidates are keys of the batch, and nothing is remembered
    remembers_positives: bool = False  # an anchor's positive is remembered, so one view is enough
    remembers_instances: bool = False  # has a row for every instance of the data
    reads_vocabulary: bool = False  # candidates are the symbols of the encoders' vocabulary (`symbols`)
    gives_codes: bool = False  # an anchor's positive is a mean of symbols, weighted by a code (`codes`)

    @abstractmethod
    def candidates(self, keys: Mapping[int, Tensor], index: Int[Tensor, "row"], key: int) -> Candidates:
        """What anchors of key `key` are contrasted with. `keys`: fresh keys of instances `index`."""

    @abstractmethod
    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        """How the negatives of a step are drawn. `key_views`: views of an instance in one group of keys.
        `keys_per_instance`: keys of an instance in one view; `same_instance_negatives` of them are negatives
        of the anchor although they are of its own instance."""

    def setup(
        self, key_groups: int, group_of: Callable[[int], int], prepare: Callable[[Tensor], Tensor]
    ) -> None:
        """Called once by `Method`, with the groups of keys and the critic's `prepare`."""

    def prefill_size(self) -> int:
        """How many instances to show it before the first step."""
        return 0

    def positive(self, keys: Mapping[int, Tensor], index: Int[Tensor, "row"], key: int) -> Tensor:
        """What anchors are pulled towards. Default: the fresh keys of view `key`."""
        return keys[key]

    def symbols(self, vocabulary: Float[Tensor, "symbol dim"] | None) -> Candidates:
        """The candidates of a source that `reads_vocabulary`."""
        raise UserError(f"{type(self).__name__} has no candidates from a vocabulary")

    def codes(
        self, keys: Keys, vocabulary: Float[Tensor, "symbol dim"], key: int, progress: Progress
    ) -> Float[Tensor, "row symbol"]:
        """The code of each key of view `key`, for a source that `gives_codes`: weights of the symbols that
        sum to one. `keys` are those of all ranks, `vocabulary` is of the network that made them."""
        raise UserError(f"{type(self).__name__} gives no codes")

    def advance(self, keys: Mapping[int, Tensor], index: Int[Tensor, "row"], progress: Progress) -> None:
        """Takes in the keys of a step. Default: nothing is remembered."""

    def advance_codes(
        self, keys: Mapping[int, Tensor], vocabulary: Float[Tensor, "symbol dim"], progress: Progress
    ) -> None:
        """Takes in the keys of a step and their vocabulary, for a source that `gives_codes`."""

    def instance_rows(self) -> Float[Tensor, "view instance dim"] | None:
        """The remembered row of every instance, where there is one: saves embedding all of them again."""
        return None


class AbstractSelection(AbstractPart, ABC):
    """Decides which candidates count: a map from scores to scores."""

    keeps_all: bool = False  # no candidate is ever dropped
    ranks_by_score: bool = False
    weights_negatives: bool = False  # must be the last of a chain: weights have mean one over the kept
    remembers_instances: bool = False  # knows something of every instance of the data
    refreshes: bool = False  # has a memory that `refresh` renews
    drop_reason: str = ""  # why candidates are dropped, for the report, if not by similarity
    group_by: str | None = None  # the column of the data by which instances are grouped
    # groups of all instances were assigned; otherwise those of each batch are read (`Context.groups`)
    assigned: bool = False

    @abstractmethod
    def __call__(self, scores: Scores, context: Context | None = None) -> Scores: ...

    @abstractmethod
    def sampling(self, source: NegativeSampling, progress: Progress | None = None) -> NegativeSampling:
        """The sampling after selecting; without progress, for the most it ever keeps."""

    def members(self) -> tuple["AbstractSelection", ...]:
        """The selections it applies in turn. Default: itself."""
        return (self,)

    def due(self, progress: Progress) -> bool:
        """Whether `refresh` should be called now, at the start of an epoch."""
        return False

    def refresh(self, embedding: Float[Tensor, "instance dim"]) -> None:
        """Renews its memory from an embedding of every instance, row i of instance i; zeros: unknown."""

    def assign(self, groups: Int[Tensor, "instance"]) -> None:
        """Sets the group of every instance, once before the first step; below 0: not known."""
        raise UserError(f"{type(self).__name__} takes no groups")

    def cluster_ids(self) -> Int[Tensor, "run instance"] | None:
        """The cluster of every instance in each run of k-means, -1: none yet; None: no clusters are used."""
        return None

    def startup_warning(self) -> str | None:
        """What a user should know before the first step."""
        return None

    def coverage(self, scores: Scores, context: Context | None = None) -> Coverage | None:
        """For which share of anchors Wu et al. 2021, Thm 3.1 covers what it keeps; None: not measurable."""
        return None


class AbstractBound(AbstractPart, ABC):
    """The number that is maximised: an estimate in nats, averaged over anchors.

    Calling and observing change nothing. A bound that `has_memory` of earlier steps (a running mean) gets
    what it observed of each pair of views back in `advance`.
    """

    objective_only: bool = False  # whatever the sampling, the value estimates no information
    distance_scores: bool = False  # scores are minus distances, not logarithms of densities
    needs_bounded_scores: bool = False
    reads_negatives: bool = True
    averages_anchors: bool = False  # the mean over anchors of a function of each anchor's own scores
    # of negatives it reads no more than `logsumexp` and `count`, which needs no rank to have all keys at once
    reads_only_logsumexp: bool = False
    has_memory: bool = False

    @abstractmethod
    def __call__(self, scores: Scores, progress: Progress | None = None) -> Float[Tensor, ""]: ...

    @abstractmethod
    def certificate(self, sampling: NegativeSampling, progress: Progress | None = None) -> Certificate:
        """What the number proves. Without progress: of the whole run, so every value of a schedule counts."""

    def ceiling(self, sampling: NegativeSampling, progress: Progress | None = None) -> float | None:
        """The highest value there can be, in nats; None: no limit. Without progress the highest of the whole
        run. It is computed in every step, so it is cheap."""
        return None

    def is_estimate(self, sampling: NegativeSampling, progress: Progress | None = None) -> bool:
        """Whether the value estimates mutual information, as opposed to being an objective only."""
        return not self.objective_only

    def observe(self, scores: Scores) -> Tensor:
        """What to remember of these scores: small and detached."""
        return scores.positive.new_empty(0)

    def advance(self, observed: Float[Tensor, "pair ..."], progress: Progress) -> None:
        """Takes in what was observed for each pair of views of a step."""


class AbstractPrior(AbstractPart, ABC):
    """A loss of the embeddings as a whole, its weight included, added to the bound's. It changes nothing.

    `encoded` has the rows of all processes, in float32 at least, before the critic prepares them:
    `Encoded.embeddings_per_view`, and `Encoded.supervision` where the encoders give it.
    """

    @abstractmethod
    def __call__(self, encoded: Encoded, progress: Progress = START) -> Float[Tensor, ""]: ...
