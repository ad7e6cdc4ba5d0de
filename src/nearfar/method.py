"""The one algorithm. A method is five choices, and these are three of them:

    simclr = Method(Shared(net),                  Cosine(0.2),  InBatch(),     Everyone(), InfoNCE())
    moco   = Method(Momentum(net, 0.99),          Cosine(0.07), Queue(4096),   Everyone(), InfoNCE())
    byol   = Method(Momentum(net, predictor=mlp), Cosine(1.0),  NoNegatives(), Everyone(), Agreement())

The fifth, the views, is what the batch brings. `forward` computes and changes nothing; `advance`, called after
the optimiser's step, does every mutation: slow networks, batch-norm statistics, queue, bank, a bound's memory. Only
what a selection knows of all instances is renewed apart from steps, by `refresh`, at the start of epochs.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.schedules import START, Progress
from nearfar.scores import Candidates, Dense, Negatives, Scores, Streamed
from nearfar.types import (
    Batch,
    Bound,
    Certificate,
    Context,
    Critic,
    Encoded,
    Encoders,
    Keyed,
    Outcome,
    Refreshing,
    Remembering,
    Selection,
    Source,
)


def view_pairs(count: int, symmetric: bool) -> tuple[tuple[int, int], ...]:
    """Which view is asked about which: one view about itself, the first about the others, or each about each."""
    if count == 1:
        return ((0, 0),)
    if symmetric:
        return tuple((a, k) for a in range(count) for k in range(count) if a != k)
    return tuple((0, k) for k in range(1, count))


class Method(nn.Module):
    """Views → encoders → negatives → selection → bound, with a critic scoring pairs.

    `symmetric`: every ordered pair of views is contrasted, otherwise the first with each other one. `chunk`: score
    that many anchors at a time and never build the whole matrix (None: build it).
    """

    def __init__(
        self,
        encoders: Encoders,
        critic: Critic,
        negatives: Source,
        selection: Selection,
        bound: Bound,
        *,
        symmetric: bool = True,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        self.encoders, self.critic, self.negatives = encoders, critic, negatives
        self.selection, self.bound = selection, bound
        self.symmetric, self.chunk = symmetric, chunk

    def forward(self, batch: Batch, progress: Progress = START) -> Outcome:
        pairs = view_pairs(len(batch.views), self.symmetric)
        encoded = self.encoders.encode(
            batch.views, anchors=sorted({a for a, _ in pairs}), keys=sorted({k for _, k in pairs})
        )
        # scores are differences of large numbers: float32, whatever the encoder ran in
        with torch.autocast(batch.index.device.type, enabled=False):
            encoded = Encoded(
                {w: self.critic.prepare(z) for w, z in encoded.anchors.items()},
                {w: self.critic.prepare(z) for w, z in encoded.keys.items()},
            )
            scores = [self.score(encoded, batch.index, a, k, progress) for a, k in pairs]
            value = torch.stack([self.bound(s, progress) for s in scores]).mean()
            observed = self._observed(scores)
        certificate = self.certificate(len(batch.index), len(batch.views), progress)
        # how far the estimate is below its ceiling: for InfoNCE this is the cross-entropy people know
        loss = -value if certificate.ceiling is None else certificate.ceiling - value
        nats = None if certificate.status == "objective only" else value.detach()
        return Outcome(loss, nats, certificate.ceiling, _detached(encoded), batch.index, observed)

    @torch.no_grad()
    def _observed(self, scores: list[Scores]) -> Tensor | None:
        if not isinstance(self.bound, Remembering):
            return None
        return torch.stack([self.bound.observe(s) for s in scores])

    def score(self, encoded: Encoded, index: Tensor, anchor: int, key: int, progress: Progress) -> Scores:
        """Scores of view `anchor` against view `key` after selection."""
        anchors = encoded.anchors[anchor]
        positive = self.negatives.positive(encoded.keys, index, key)
        candidates = self.negatives.candidates(encoded.keys, index, key)
        scores = Scores(
            self.critic.pairs(anchors, positive, progress)[:, None],
            self._negatives(anchors, index, candidates, progress),
        )
        return self.selection(scores, Context(anchors, candidates, index, progress))

    def _negatives(
        self, anchors: Tensor, index: Tensor, candidates: Candidates, progress: Progress
    ) -> Negatives:
        if self.chunk is None:
            values = self.critic.cross(anchors, candidates.embedding, progress)
            return Dense(values, candidates.strangers_to(index))
        return Streamed(
            lambda a, k: self.critic.cross(a, k, progress), anchors, index, candidates, self.chunk
        )

    @torch.no_grad()
    def advance(self, outcome: Outcome, progress: Progress = START) -> None:
        """Every mutation of a step, after the optimiser's: call it once per outcome."""
        self.encoders.advance(progress)
        self.negatives.advance(outcome.encoded.keys, outcome.index, progress)
        if isinstance(self.bound, Remembering) and outcome.observed is not None:
            self.bound.advance(outcome.observed, progress)

    @torch.no_grad()
    def prime(self, batch: Batch, progress: Progress = START) -> None:
        """Shows instances to a source that wants to know them before the first step; no network moves."""
        keys = sorted({k for _, k in view_pairs(len(batch.views), self.symmetric)})
        encoded = self.encoders.encode(batch.views, anchors=(), keys=keys)
        with torch.autocast(batch.index.device.type, enabled=False):
            prepared = {w: self.critic.prepare(z) for w, z in encoded.keys.items()}
        self.negatives.advance(prepared, batch.index, progress)

    @torch.no_grad()
    def embed(self, view: Tensor) -> Float[Tensor, "image dim"]:
        """What the key network says of a view, as it is scored and stored; where each view has a network of its
        own, the first."""
        key = self.encoders.encode((view,), anchors=(), keys=(0,)).keys[0]
        with torch.autocast(view.device.type, enabled=False):
            return self.critic.prepare(key)

    @torch.no_grad()
    def refresh(self, embed_all: Callable[[], Float[Tensor, "instance dim"]], progress: Progress) -> bool:
        """Renews what the selection knows of all instances, when it is due; says whether it was.

        From the bank where there is one, its views side by side; otherwise from `embed_all`, which embeds the
        training data in order (see `embed`) and is called only when needed.
        """
        if not isinstance(self.selection, Refreshing) or not self.selection.due(progress):
            return False
        if isinstance(self.negatives, Keyed):
            embedding = self.negatives.rows.transpose(0, 1).flatten(1)
        else:
            embedding = embed_all()
        self.selection.refresh(embedding)
        return True

    def certificate(
        self,
        batch_size: int,
        views: int = 2,
        progress: Progress | None = None,
        covered: float | None = None,
    ) -> Certificate:
        """What the number that training climbs proves, for this batch size and number of views.

        Without progress it speaks for the whole run. `covered` is what `Ring.covered` measured, where it was.
        """
        key_views = len({key for _, key in view_pairs(views, self.symmetric)})
        given = replace(self.negatives.circumstances(batch_size, key_views), covered=covered)
        return self.bound.certificate(self.selection.circumstances(given, progress), progress)


def _detached(encoded: Encoded) -> Encoded:
    return Encoded(
        {w: z.detach() for w, z in encoded.anchors.items()}, {w: z.detach() for w, z in encoded.keys.items()}
    )
