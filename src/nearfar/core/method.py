"""The one algorithm. A method is five choices; these are three of them:

    simclr = Method(Shared(net),                  Cosine(0.2),  InBatch(),     Everyone(), InfoNCE())
    moco   = Method(Momentum(net, 0.99),          Cosine(0.07), Queue(4096),   Everyone(), InfoNCE())
    byol   = Method(Momentum(net, predictor=mlp), Cosine(1.0),  NoNegatives(), Everyone(), Agreement())

The fifth choice, the views, is `views=`, or what the batch brings. `forward` computes and changes nothing;
`advance`, called after the optimiser's step, does every mutation: slow networks, batch-norm statistics,
queue, bank, a bound's memory. Only the memory of a selection (clusters) is renewed apart from steps, by
`refresh` at the start of epochs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.abstract import (
    AbstractBound,
    AbstractCritic,
    AbstractEncoders,
    AbstractNegatives,
    AbstractPart,
    AbstractPrior,
    AbstractSelection,
    AbstractViews,
    AbstractViewSettings,
    is_inner_product,
)
from nearfar.core.adapters import adapt
from nearfar.core.buffers import BufferUpdates, apply, uses_batch_statistics
from nearfar.core.encoding import (
    DEFAULT_ENCODING,
    Encoding,
    Exchange,
    GatheredKeys,
    gather_keys,
    gather_scores,
)
from nearfar.core.learnt import LearntNumber
from nearfar.core.notebook import cards_html
from nearfar.core.rotation import Rotated
from nearfar.core.schedules import START, Progress
from nearfar.core.scores import (
    Candidates,
    Dense,
    Negatives,
    Scores,
    Streamed,
    at_least_float32,
    inner_product_negatives,
)
from nearfar.core.strategy import Rows
from nearfar.core.types import Batch, Certificate, Context, Coverage, Encoded, NegativeSampling, Outcome, Pair
from nearfar.errors import UserError

# key views of one group, keys per instance, negatives of the same instance, whether the identity is the key
SamplingKind = tuple[int, int, int, bool]


def check_exchange(
    exchange: Exchange,
    critic: AbstractCritic,
    negatives: AbstractNegatives,
    selection: AbstractSelection,
    bound: AbstractBound,
) -> None:
    """Raises an error if keys would pass from rank to rank (`ring`) and these parts need them all at once. One
    rank alone is checked too, so that any number of ranks can continue its run."""
    if exchange == "gather":
        return
    needs = {
        "negatives=in-batch": negatives.only_this_batch,
        "critic=cosine, dot or bilinear": is_inner_product(critic),
        "selection=everyone": selection.keeps_all and not selection.weights_negatives,
        "a bound that reads only the log-sum-exp of the negatives (infonce, ml-cpc, alpha-cpc)": (
            bound.reads_only_logsumexp
        ),
    }
    missing = [name for name, fits in needs.items() if not fits]
    if missing:
        raise UserError(f"exchange was ring, which needs {' and '.join(missing)}; use exchange=gather")


class Method(nn.Module):
    """Views → encoders → negatives → selection → bound, with a critic that scores and an optional prior.

    `views` may be left out where batches already hold them. `symmetric`: every ordered pair of views is
    contrasted, otherwise the first with each other one (default: as the views say, else True). `chunk`: score
    that many anchors at a time and never build the matrix of all scores (None: decided by its size).
    `encoding`: in chunks, or as one of several processes, each of which gets its slice of the batch and
    computes the loss of all of it.
    """

    def __init__(
        self,
        encoders: AbstractEncoders | nn.Module,
        critic: AbstractCritic,
        negatives: AbstractNegatives,
        selection: AbstractSelection,
        bound: AbstractBound,
        *,
        views: AbstractViews | AbstractViewSettings | None = None,
        prior: AbstractPrior | None = None,
        symmetric: bool | None = None,
        chunk: int | None = None,
        encoding: Encoding = DEFAULT_ENCODING,
    ) -> None:
        super().__init__()
        self.views: AbstractViews | AbstractViewSettings | None = adapt("views", views)
        self.encoders: AbstractEncoders = adapt("encoders", encoders)
        self.critic: AbstractCritic = adapt("critic", critic)
        self.negatives: AbstractNegatives = adapt("negatives", negatives)
        self.selection: AbstractSelection = adapt("selection", selection)
        self.bound: AbstractBound = adapt("bound", bound)
        self.prior: AbstractPrior | None = adapt("prior", prior)
        if symmetric is None:
            symmetric = True if self.views is None else self.views.symmetric
        self.symmetric, self.chunk, self.encoding = symmetric, chunk, encoding
        self.key_views = None if self.views is None else self.views.key_views
        self.frozen: tuple[nn.Module, ...] = ()  # parts of networks that are not trained
        self.negatives.setup(self.encoders.key_groups, self.encoders.group_of, self.critic.prepare)

    def replace(
        self,
        *,
        views: AbstractViews | AbstractViewSettings | None = None,
        encoders: AbstractEncoders | None = None,
        critic: AbstractCritic | None = None,
        negatives: AbstractNegatives | None = None,
        selection: AbstractSelection | None = None,
        bound: AbstractBound | None = None,
        prior: AbstractPrior | None = None,
    ) -> "Method":
        """The same method with some parts replaced; None: as it is."""
        return Method(
            encoders or self.encoders,
            critic or self.critic,
            negatives or self.negatives,
            selection or self.selection,
            bound or self.bound,
            views=views or self.views,
            prior=prior or self.prior,
            symmetric=self.symmetric if views is None else None,
            chunk=self.chunk,
            encoding=self.encoding,
        )

    def train(self, mode: bool = True) -> "Method":
        """Frozen parts stay in evaluation mode: their batch norms keep their statistics, nothing is dropped."""
        super().train(mode)
        for part in self.frozen:
            part.eval()
        return self

    def freeze(self, weights: Iterable[nn.Parameter], parts: Iterable[nn.Module]) -> None:
        """Trains these weights and parts no more."""
        self.frozen = (*self.frozen, *parts)
        for weight in (*weights, *(weight for part in self.frozen for weight in part.parameters())):
            weight.requires_grad_(False)

    def parts(self) -> dict[str, AbstractPart | None]:
        """The part of each choice."""
        return {
            "views": self.views,
            "encoders": self.encoders,
            "critic": self.critic,
            "negatives": self.negatives,
            "selection": self.selection,
            "bound": self.bound,
            "prior": self.prior,
        }

    def extra_repr(self) -> str:
        """The parts without weights, which torch leaves out, one in each line."""
        parts = self.parts().items()
        return "\n".join(f"{choice}={part!r}" for choice, part in parts if not isinstance(part, nn.Module))

    def _repr_html_(self) -> str:
        """The choices as cards."""
        return cards_html(
            {
                choice: (type(part).__name__, part.settings)
                for choice, part in self.parts().items()
                if part is not None
            }
        )

    def forward(self, batch: Batch, progress: Progress = START) -> Outcome:
        """The loss: the ceiling, if there is one, minus the bound. For InfoNCE that is the cross-entropy."""
        if isinstance(self.views, AbstractViews):
            batch = replace(batch, views=self.views.transform(batch.views, progress))
        pairs = self.pairs(batch)
        raw, buffer_updates = self.encoding.encode(self.encoders, batch, *_anchors_and_keys(pairs))
        # scores are differences of large numbers: float32, whatever precision the encoder ran in
        with torch.autocast(batch.index.device.type, enabled=False):
            prior = self._prior(raw, progress)
            encoded = self._prepare(raw)
            gathered = gather_keys(
                encoded,
                batch.index,
                self.encoding.strategy,
                self._batch_groups(batch),
                batch.total,
                gather_embeddings=not self.encoding.rotates,
            )
            gathered = self._with_codes(gathered, encoded, progress)
            scores = [self._select(encoded, batch.index, pair, progress, gathered) for pair in pairs]
            values = [self.bound(pair_scores, progress) for pair_scores in scores]
            observed = self._observe(scores)
            objectives = [
                value + pair_scores.score_function_term(value, self.bound, progress)
                for value, pair_scores in zip(values, scores, strict=True)
            ]
        samplings = self._samplings(pairs, len(gathered.index), progress)
        ceiling = self._ceiling(pairs, samplings, progress)
        losses = [] if prior is None else [prior]
        weights = [pair.weight for pair in pairs]
        if pairs:
            total = _weighted_sum(weights, objectives)
            losses.insert(0, -total if ceiling is None else sum(weights) * ceiling - total)
        nats = None
        if pairs and all(self.bound.is_estimate(sampling, progress) for sampling in samplings.values()):
            nats = (_weighted_sum(weights, values) / sum(weights)).detach()
        detached = _detach(encoded, gathered)
        return Outcome(
            torch.stack(losses).sum(),
            nats,
            ceiling,
            detached,
            gathered.index,
            observed,
            prior,
            buffer_updates,
        )

    def _prior(self, encoded: Encoded, progress: Progress) -> Float[Tensor, ""] | None:
        if self.prior is None:
            return None

        def gather(rows: Tensor) -> Tensor:
            return at_least_float32(self.encoding.strategy.all_gather(rows))

        gathered = replace(
            encoded,
            embeddings={view: gather(rows) for view, rows in enumerate(encoded.embeddings_per_view())},
            supervision=None if encoded.supervision is None else encoded.supervision.map(gather),
        )
        return self.prior(gathered, progress)

    @property
    def selections(self) -> tuple[AbstractSelection, ...]:
        """The selection, or those it applies in turn."""
        return self.selection.members()

    def learnt(self) -> dict[str, float]:
        """The current values of learnt numbers (a temperature), by the name of their setting."""
        return {name: part().item() for name, part in self.named_modules() if isinstance(part, LearntNumber)}

    def pairs(self, batch: Batch) -> tuple[Pair, ...]:
        """Which anchors of a batch are contrasted with which keys."""
        return self.pairs_of(len(batch.views))

    def pairs_of(self, views: int) -> tuple[Pair, ...]:
        """Which anchors are contrasted with which keys, for this number of views."""
        return self.encoders.pairs(views, self.symmetric, self.key_views)

    def encode_batch(self, batch: Batch) -> tuple[Encoded, BufferUpdates]:
        """Anchors and keys of all pairs."""
        return self.encode(batch, *_anchors_and_keys(self.pairs(batch)))

    def encode(
        self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]
    ) -> tuple[Encoded, BufferUpdates]:
        """Embeddings as they are scored and stored, and the buffer updates of the networks."""
        raw, buffer_updates = self.encoding.encode(self.encoders, batch, anchors, keys)
        with torch.autocast(batch.index.device.type, enabled=False):
            return self._prepare(raw), buffer_updates

    def _prepare(self, raw: Encoded) -> Encoded:
        return replace(
            raw,
            anchors={view: self.critic.prepare(rows) for view, rows in raw.anchors.items()},
            keys={view: self.critic.prepare(rows) for view, rows in raw.keys.items()},
            vocabulary=None if raw.vocabulary is None else self.critic.prepare(raw.vocabulary),
            key_vocabulary=None if raw.key_vocabulary is None else self.critic.prepare(raw.key_vocabulary),
        )

    @torch.no_grad()
    def _observe(self, scores: list[Scores]) -> Tensor | None:
        if not self.bound.has_memory or not scores:
            return None
        return torch.stack([self.bound.observe(s) for s in scores])

    def _select(
        self, encoded: Encoded, index: Tensor, pair: Pair, progress: Progress, gathered: GatheredKeys
    ) -> Scores:
        """The scores of a pair that count, those of all ranks' anchors."""
        local_scores = self.score(encoded, index, pair.anchor, pair.key, progress, gathered)
        return gather_scores(self.selection(*local_scores), gathered.rows(pair.key))

    def score(
        self,
        encoded: Encoded,
        index: Tensor,
        anchor: int,
        key: int,
        progress: Progress,
        gathered: GatheredKeys | None = None,
    ) -> tuple[Scores, Context]:
        """Scores of view `anchor` against view `key` before the selection, and the context of the selection.
        `gathered`: the keys of all ranks; anchors are those of this rank."""
        gathered = gathered or self._with_codes(gather_keys(encoded, index), encoded, progress)
        anchors, rows = encoded.anchors[anchor], encoded.index_of(key, index)
        group_keys = [k for k in encoded.keys if self._same_group(k, key)]
        if self.negatives.gives_codes:
            assert encoded.vocabulary is not None
            # scores are linear in the key: that of a mean of symbols is the mean of theirs
            positive = gathered.codes[key][gathered.rows(key).part] @ encoded.vocabulary
        else:
            positive = self.negatives.positive({k: encoded.keys[k] for k in group_keys}, rows, key)
        if self.negatives.reads_vocabulary:
            candidates = self.negatives.symbols(encoded.vocabulary)
        else:
            key_index = rows if self.encoding.rotates else gathered.index_of(key)
            candidates = self.negatives.candidates({k: gathered.keys[k] for k in group_keys}, key_index, key)
        scores = Scores(
            self._positives(anchors, positive, progress),
            self._negatives(anchors, rows, candidates, progress, gathered.rows(key)),
            lowest=self.critic.lowest_score(progress),
        )
        first, groups = gathered.rows(key).start, gathered.groups_of(key)
        as_mean = self.bound.distance_scores
        return scores, Context(anchors, candidates, rows, progress, as_mean, first, groups)

    @torch.no_grad()
    def _with_codes(self, gathered: GatheredKeys, encoded: Encoded, progress: Progress) -> GatheredKeys:
        """The gathered keys with their codes, where the negatives give codes."""
        if not self.negatives.gives_codes:
            return gathered
        if encoded.vocabulary is None:
            raise UserError(
                f"{type(self.negatives).__name__} gives codes, but the encoders have no prototypes"
            )
        vocabulary = encoded.vocabulary if encoded.key_vocabulary is None else encoded.key_vocabulary
        codes = {
            key: self.negatives.codes(rows, vocabulary, key, progress) for key, rows in gathered.keys.items()
        }
        return replace(gathered, codes=codes)

    def _batch_groups(self, batch: Batch) -> dict[str, Int[Tensor, "instance"]]:
        """The columns that selections go by and that only the batch has."""
        columns = {"self": batch.index, **batch.groups}
        if batch.labels is not None:
            columns |= {"label": batch.labels, "known-label": batch.labels}
        names = {part.group_by for part in self.selections if part.group_by is not None and not part.assigned}
        return {name: columns[name] for name in sorted(names & columns.keys())}

    def _same_group(self, first: int, second: int) -> bool:
        return self.encoders.group_of(first) == self.encoders.group_of(second)

    def _positives(
        self, anchors: Tensor, keys: Tensor, progress: Progress
    ) -> Float[Tensor, "anchor positive"]:
        """Scores of each anchor with its own key, or with each of its own places."""
        places = 1 if keys.ndim == 2 else keys.shape[1]
        repeated = anchors.repeat_interleave(places, dim=0) if places > 1 else anchors
        return self.critic.pairs(repeated, keys.reshape(-1, keys.shape[-1]), progress).view(
            len(anchors), places
        )

    def _negatives(
        self, anchors: Tensor, index: Tensor, candidates: Candidates, progress: Progress, layout: Rows
    ) -> Negatives:
        self.check_exchange()
        if is_inner_product(self.critic):
            anchors, keys = self.critic.factors(anchors, candidates.embedding, progress)
            candidates = Candidates(keys, candidates.index)
            if self.encoding.rotates:
                return Rotated(anchors, index, candidates, layout)
            return inner_product_negatives(anchors, index, candidates, self.chunk)
        if self.chunk is None:
            values = self.critic.cross(anchors, candidates.embedding, progress)
            return Dense(values, candidates.negative_mask(index))
        score = partial(self.critic.cross, progress=progress)
        return Streamed(anchors, index, candidates, self.chunk, score)

    def check_exchange(self) -> None:
        """Raises an error if keys would pass from rank to rank in a method that needs them at once."""
        check_exchange(self.encoding.exchange, self.critic, self.negatives, self.selection, self.bound)

    @torch.no_grad()
    def advance(self, outcome: Outcome, progress: Progress = START) -> None:
        """Every mutation of a step, after the optimiser's: call it once per outcome."""
        self.encoding.strategy.average(
            [value for *_, value in outcome.buffer_updates if value.is_floating_point()]
        )
        apply(outcome.buffer_updates)
        self.encoders.advance(progress)
        self._remember(outcome.encoded, outcome.index, progress)
        if outcome.observed is not None:
            self.bound.advance(outcome.observed, progress)

    @torch.no_grad()
    def prime(self, batch: Batch) -> None:
        """Shows instances to a source that wants to know them before the first step; no network moves."""
        keys = sorted({p.key for p in self.pairs(batch)})
        encoded, _ = self.encode(batch, anchors=(), keys=keys)
        gathered = gather_keys(encoded, batch.index, self.encoding.strategy, total=batch.total)
        gathered = self._with_codes(gathered, encoded, START)
        self._remember(_detach(encoded, gathered), gathered.index, START)

    def _remember(self, encoded: Encoded, index: Tensor, progress: Progress) -> None:
        if self.negatives.gives_codes:
            assert encoded.key_vocabulary is not None
            self.negatives.advance_codes(encoded.keys, encoded.key_vocabulary, progress)
            return
        if not encoded.index:
            self.negatives.advance(encoded.keys, index, progress)
        for key, rows in encoded.index.items():
            self.negatives.advance({key: encoded.keys[key]}, rows, progress)

    @torch.no_grad()
    def embed(self, view: Tensor) -> Float[Tensor, "image dim"]:
        """The key network's embedding of a view, as it is scored and stored: the mean over its places where
        it has several, zeros where it has none. With one network per view, the first."""
        first = self.pairs_of(1)[0].key
        single_view = Batch((view,), torch.arange(len(view), device=view.device))
        encoded, _ = self.encode(single_view, anchors=(), keys=(first,))
        keys = encoded.keys[first]
        if first in encoded.instance:
            return _mean_of_each(keys, encoded.instance[first], len(view))
        return keys.view(len(view), -1, keys.shape[-1]).mean(dim=1)

    @torch.no_grad()
    def refresh(self, embed_all: Callable[[], Float[Tensor, "instance dim"]], progress: Progress) -> bool:
        """Renews the memory of the selection when it is due; returns whether it was.

        From the bank where there is one, its views side by side; otherwise from `embed_all`, which embeds the
        training data in order (see `embed`) and is called only when needed.
        """
        due = [part for part in self.selections if part.due(progress)]
        if not due:
            return False
        rows = self.negatives.instance_rows()
        embedding = embed_all() if rows is None else rows.transpose(0, 1).flatten(1)
        for part in due:
            self.encoding.strategy.on_first(partial(part.refresh, embedding))
            self.encoding.strategy.broadcast_buffers(part)
        return True

    def certificate(
        self,
        batch_size: int,
        views: int = 2,
        progress: Progress | None = None,
        *,
        held_out: bool | None = False,
        coverage: Coverage | None = None,
        dependent: str = "",
    ) -> Certificate:
        """What the method's number proves, for batches of `batch_size` different instances.

        By default it is about the training objective, which is fitted to its own batches and so never proven.
        `held_out=True`: about the same number on instances that nothing was fitted to, with networks in their
        present mode (batch norm in training mode keeps it from being proven). Without progress it is about
        the whole run. `coverage` is what `Ring.coverage` measured. `dependent`: why instances are not
        independent draws, in a clause.
        """
        pairs = self.pairs_of(views)
        if not pairs:
            return Certificate("objective only", "nothing is contrasted: the loss is the prior's alone", None)
        facts: dict[str, Any] = {
            "held_out": held_out,
            "coverage": coverage,
            "dependent": dependent,
            "batch_statistics": uses_batch_statistics(self) or None,  # a critic may have a batch norm too
        }
        samplings = {
            kind: replace(sampling, **facts)
            for kind, sampling in self._samplings(pairs, batch_size, progress).items()
        }
        certificates = [self.bound.certificate(sampling, progress) for sampling in samplings.values()]
        # the weakest; of equally weak ones that with the highest ceiling, so that its sentence holds for all
        weakest = min(certificates, key=lambda c: (_STRENGTH.index(c.status), -(c.ceiling or 0.0)))
        if weakest.status == "proven" and len({frozenset((p.anchor, p.key)) for p in pairs}) > 1:
            weakest = replace(weakest, condition=f"{weakest.condition}; {UNLIKE_PAIRS}")
        return replace(weakest, ceiling=self._ceiling(pairs, samplings, progress))

    def candidate_count(self, batch_size: int, views: int = 2) -> int:
        """How many candidates an anchor is scored with, at most, its own key included."""
        pairs = self.pairs_of(views)
        kinds = {self._sampling_kind(pair, pairs)[:3] for pair in pairs}
        return 1 + max((self.negatives.sampling(batch_size, *kind).negatives for kind in kinds), default=-1)

    def _samplings(
        self, pairs: Sequence[Pair], batch_size: int, progress: Progress | None
    ) -> dict[SamplingKind, NegativeSampling]:
        """How the negatives of each kind of pair are drawn and selected."""
        return {
            kind: self._sampling(kind, batch_size, progress)
            for kind in {self._sampling_kind(pair, pairs) for pair in pairs}
        }

    def _sampling_kind(self, pair: Pair, pairs: Sequence[Pair]) -> SamplingKind:
        key_views = len({candidate.key for candidate in pairs if self._same_group(candidate.key, pair.key)})
        return key_views, pair.keys_per_instance, pair.same_instance_negatives, pair.identity_is_key

    def _sampling(self, kind: SamplingKind, batch_size: int, progress: Progress | None) -> NegativeSampling:
        key_views, keys_per_instance, same_instance_negatives, identity_is_key = kind
        sampling = self.negatives.sampling(batch_size, key_views, keys_per_instance, same_instance_negatives)
        if identity_is_key:
            sampling = sampling.not_exchangeable(EQUAL_KEYS)
        return self.selection.sampling(replace(sampling, normalised=self.critic.normalised), progress)

    def _ceiling(
        self,
        pairs: Sequence[Pair],
        samplings: Mapping[SamplingKind, NegativeSampling],
        progress: Progress | None,
    ) -> float | None:
        """The ceiling of the weighted mean over pairs; None where one of them has none."""
        by_kind = {kind: self.bound.ceiling(sampling, progress) for kind, sampling in samplings.items()}
        ceilings = [by_kind[self._sampling_kind(pair, pairs)] for pair in pairs]
        finite = [ceiling for ceiling in ceilings if ceiling is not None]
        if not pairs or len(finite) < len(pairs):
            return None
        weights = [pair.weight for pair in pairs]
        return sum(w * c for w, c in zip(weights, finite, strict=True)) / sum(weights)


EQUAL_KEYS = "rows with equal keys are not contrasted with each other, so negatives are not draws of p(v)"
UNLIKE_PAIRS = (
    "the number is a weighted mean over pairs of different views or steps, I the same mean of their "
    "informations"
)
_STRENGTH = ("objective only", "not covered", "measured", "proven")


def _anchors_and_keys(pairs: Sequence[Pair]) -> tuple[list[int], list[int]]:
    """The anchors and the keys of these pairs."""
    return sorted({p.anchor for p in pairs}), sorted({p.key for p in pairs})


def _mean_of_each(
    rows: Float[Tensor, "row dim"], instance: Int[Tensor, "row"], count: int
) -> Float[Tensor, "instance dim"]:
    total = rows.new_zeros(count, rows.shape[1]).index_add_(0, instance, rows)
    return total / torch.bincount(instance, minlength=count).clamp_min(1)[:, None]


def _weighted_sum(weights: Sequence[float], values: Sequence[Tensor]) -> Float[Tensor, ""]:
    return torch.stack([weight * value for weight, value in zip(weights, values, strict=True)]).sum()


def _detach(encoded: Encoded, gathered: GatheredKeys) -> Encoded:
    """The anchors of this rank, and the keys of all, which memories take in."""
    vocabulary = encoded.vocabulary if encoded.key_vocabulary is None else encoded.key_vocabulary
    return Encoded(
        {w: z.detach() for w, z in encoded.anchors.items()},
        {w: z.detach() for w, z in gathered.keys.items()},
        gathered.identities,
        # a copy, since a critic may leave the weights as they are, and a step changes them
        key_vocabulary=None if vocabulary is None or not gathered.codes else vocabulary.detach().clone(),
    )
