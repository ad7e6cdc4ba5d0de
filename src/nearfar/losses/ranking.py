"""The ranking loss of sentence-transformers: queries, their documents, and hard negatives."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nearfar.core.scores import UNKNOWN
from nearfar.core.strategy import Rows as Layout
from nearfar.distributed.gather import gather_layout
from nearfar.errors import UserError, check_number
from nearfar.losses.scoring import (
    EmbeddingRows,
    by_tiles,
    check_gather,
    check_paired,
    negatives,
    positive_number,
    summed_logsumexp,
    unit,
)

DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
HARDNESS_MODES = ("in_batch_negatives", "hard_negatives", "all_negatives")
Similarity = Callable[[EmbeddingRows, Float[Tensor, "m dim"]], Float[Tensor, "n m"]]
SentenceFeatures = Mapping[str, Any]  # of a batch of sentences, as a tokenizer returns them


class MultipleNegativesRankingLoss(nn.Module):
    """log( sum_j e^f(q_i, d_j) ) - f(q_i, d_i), f = scale * cosine, averaged over queries (Henderson et al.
    2017): every query's own document against all documents and hard negatives of the batch.

        loss = MultipleNegativesRankingLoss(scale=20.0)
        loss(queries, documents)                        pairs of embeddings
        loss(queries, documents, negatives)             triplets; more hard negatives as further columns

        loss = MultipleNegativesRankingLoss(model)      as sentence-transformers has it
        loss(sentence_features, labels)                 embeddings are model(features)["sentence_embedding"]

    As `sentence_transformers.losses.MultipleNegativesRankingLoss`. `directions` adds terms to the sum:
    `doc_to_query` with `partition_mode="per_direction"` is the symmetric loss, all four in one sum are GTE's
    (Li et al. 2023). `similarity_fct(a, b)` returns another matrix of similarities; `normalize=False` scores
    by inner product (then a scale of 1 is usual). `hardness_mode` adds `hardness_strength` times the
    similarity, without gradient, to the scores of those negatives (Lan et al. 2025, Eq. 5).

    `mini_batch_size` encodes that many sentences at a time and encodes them again in the backward pass: memory
    is that of one mini-batch, the gradient that of the batch. `mini_batch_num_tokens` limits the tokens of a
    mini-batch instead, counted in `attention_mask`, and cuts off columns of padding alone.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        scale: float = 20.0,
        similarity_fct: Similarity | None = None,
        gather_across_devices: bool = False,
        directions: Sequence[str] = ("query_to_doc",),
        partition_mode: str = "joint",
        hardness_mode: str | None = None,
        hardness_strength: float = 0.0,
        *,
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
        normalize: bool = True,
        gather_distributed: bool = False,
    ) -> None:
        super().__init__()
        if model is not None and not isinstance(model, nn.Module):
            raise UserError(f"model was {model!r}; expected a module or None, and scale by name: scale=20.0")
        self.model = model
        self.mini_batch_size, self.mini_batch_num_tokens = mini_batch_size, mini_batch_num_tokens
        self.scale, self.normalize = positive_number("scale", scale), normalize
        self.similarity_fct = similarity_fct
        self.directions, self.partition_mode = tuple(directions), partition_mode
        self.hardness_mode, self.hardness_strength = hardness_mode, hardness_strength
        self.gather_distributed = check_gather(gather_distributed or gather_across_devices)
        self._check()

    def _check(self) -> None:
        unknown = [direction for direction in self.directions if direction not in DIRECTIONS]
        if unknown or "query_to_doc" not in self.directions:
            raise UserError(
                f"directions were {', '.join(self.directions) or 'none'}; expected query_to_doc and any of "
                f"{', '.join(DIRECTIONS[1:])}"
            )
        if self.partition_mode not in ("joint", "per_direction"):
            raise UserError(f"partition_mode was {self.partition_mode!r}; expected joint or per_direction")
        without_positive = {"query_to_query", "doc_to_doc"} & set(self.directions)
        if self.partition_mode == "per_direction" and without_positive:
            raise UserError(
                f"partition_mode was 'per_direction' with {min(without_positive)}, a sum that holds no "
                "positive; use joint"
            )
        if self.hardness_mode is not None and self.hardness_mode not in HARDNESS_MODES:
            raise UserError(
                f"hardness_mode was {self.hardness_mode!r}; expected {', '.join(HARDNESS_MODES)} or None"
            )
        check_number("hardness_strength", self.hardness_strength, 0)
        for name in ("mini_batch_size", "mini_batch_num_tokens"):
            limit = getattr(self, name)
            if limit is not None and (self.model is None or limit < 1):
                raise UserError(f"{name} was {limit}; it needs a model to encode with, and at least 1")

    def forward(self, sentence_features: Any, labels: Any = None, *negatives: Tensor) -> Float[Tensor, ""]:
        """Without a model the arguments are columns of embeddings: queries, documents and hard negatives."""
        if self.model is None:
            columns = () if labels is None else (labels, *negatives)
            return self.compute_loss_from_embeddings((sentence_features, *columns))
        return self.compute_loss_from_embeddings([self._encode(self.model, one) for one in sentence_features])

    def _encode(self, model: nn.Module, features: SentenceFeatures) -> EmbeddingRows:
        has_limit = self.mini_batch_size is not None or self.mini_batch_num_tokens is not None
        if not has_limit or not torch.is_grad_enabled():
            return model(features)["sentence_embedding"]
        counts = {len(value) for value in features.values() if isinstance(value, Tensor) and value.ndim}
        if len(counts) != 1:
            raise UserError(
                f"mini_batch_size was {self.mini_batch_size}; the model's features are not one row for each "
                "sentence; leave it out"
            )
        embeddings = []
        for rows in self._mini_batches(features, max(counts)):
            part = self._part(features, rows)
            embeddings.append(
                checkpoint(lambda one: model(one)["sentence_embedding"], part, use_reentrant=False)
            )
        return torch.cat(embeddings)

    def _mini_batches(self, features: SentenceFeatures, count: int) -> Iterator[slice]:
        """The sentences of each mini-batch: as many as fit, at least one."""
        if self.mini_batch_num_tokens is None:
            size = self.mini_batch_size or count
            yield from (slice(start, start + size) for start in range(0, count, size))
            return
        mask = features.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            raise UserError(
                f"mini_batch_num_tokens was {self.mini_batch_num_tokens}; the model's features have no "
                "attention_mask of shape (sentence, token) to count; give mini_batch_size instead"
            )
        start = total = 0
        for place, tokens in enumerate(mask.sum(dim=1).tolist()):
            if place > start and total + tokens > self.mini_batch_num_tokens:
                yield slice(start, place)
                start, total = place, 0
            total += tokens
        yield slice(start, count)

    def _part(self, features: SentenceFeatures, rows: slice) -> SentenceFeatures:
        """The features of these sentences; with a limit of tokens, without the last columns if all are padding."""
        part = {
            key: value[rows] if isinstance(value, Tensor) and value.ndim else value
            for key, value in features.items()
        }
        if self.mini_batch_num_tokens is None:
            return part
        mask = part["attention_mask"]
        used = mask.any(dim=0).nonzero()
        width = int(used.max()) + 1 if len(used) else 1
        return {
            key: value[:, :width]
            if isinstance(value, Tensor) and value.shape[1:2] == mask.shape[1:]
            else value
            for key, value in part.items()
        }

    def compute_loss_from_embeddings(
        self, embeddings: Iterable[Tensor], labels: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """The loss of queries, documents and columns of hard negatives. `labels` are not read."""
        queries, *columns = embeddings
        if not columns:
            raise UserError("got 1 column of embeddings; expected queries, documents and any hard negatives")
        with torch.autocast(queries.device.type, enabled=False):
            hard_columns = {f"hard_negatives[{i}]": column for i, column in enumerate(columns[1:])}
            queries, *columns = check_paired(queries=queries, documents=columns[0], **hard_columns)
            if self.normalize and self.similarity_fct is None:
                queries, *columns = map(unit, (queries, *columns))
            rows = gather_layout(len(queries), queries.device, self.gather_distributed)
            hardened = self.hardness_mode is not None and self.hardness_strength > 0
            if self.similarity_fct is not None or hardened:
                return self._of_similarities(queries, columns, rows)
            positive = self.scale * (queries * columns[0]).sum(dim=1)
            if self.partition_mode == "per_direction" or len(self.directions) == 1:
                sums = []
                for direction in self.directions:
                    anchors, keys = self._sides(direction, queries, columns, rows)
                    sums.append(summed_logsumexp(self.scale * anchors, keys))
                return rows.mean_weight * torch.stack(sums).mean() - rows.mean(positive)
            log_sums = torch.stack([self._log_sum(d, queries, columns, rows) for d in self.directions])
            return rows.mean(log_sums.logsumexp(dim=0) - positive)

    def _sides(
        self, direction: str, queries: Tensor, columns: Sequence[Tensor], rows: Layout
    ) -> tuple[EmbeddingRows, Float[Tensor, "key dim"]]:
        """Own queries or documents, and everybody's documents or queries."""
        source, target = direction.split("_to_")
        anchors = queries if source == "query" else columns[0]
        sets = [queries] if target == "query" else columns
        return anchors, torch.cat([rows.all_gather(column) for column in sets])

    def _log_sum(
        self, direction: str, queries: Tensor, columns: Sequence[Tensor], rows: Layout
    ) -> Float[Tensor, "n"]:
        """log of the sum of e^f between them."""
        anchors, keys = self._sides(direction, queries, columns, rows)
        source, target = direction.split("_to_")
        key_ids = torch.arange(rows.total, device=queries.device).repeat(len(keys) // rows.total)
        if source != target:  # the positive is part of the sum
            key_ids = torch.full_like(key_ids, UNKNOWN)
        return negatives(self.scale * anchors, keys, rows.numbers(queries.device), key_ids).logsumexp()

    # --------------------------------------------------------- other similarities, and weighted negatives

    def _of_similarities(self, queries: Tensor, columns: Sequence[Tensor], rows: Layout) -> Tensor:
        numbers = rows.numbers(queries.device)
        sums, positive = [], queries.new_zeros(())
        for direction in self.directions:
            anchors, keys = self._sides(direction, queries, columns, rows)
            block = self._block(direction, rows.total)
            log_sums, positive_scores = by_tiles(block, keys, anchors, numbers).unbind(dim=1)
            sums.append(log_sums)
            positive = positive_scores if direction == "query_to_doc" else positive
        stacked = torch.stack(sums)
        joint = self.partition_mode == "joint"
        return rows.mean((stacked.logsumexp(dim=0) if joint else stacked.mean(dim=0)) - positive)

    def _block(self, direction: str, total: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """A function of keys, anchors and the anchors' numbers that returns the log-sum-exp of each anchor's
        scores and the score of its own key."""
        source, target = direction.split("_to_")

        def block(keys: Tensor, anchors: Tensor, numbers: Int[Tensor, "n"]) -> Float[Tensor, "n 2"]:
            similarity = self._similarity(anchors, keys, transposed=source == "doc")
            place = torch.arange(len(keys), device=keys.device)
            is_own = place % total == numbers[:, None]  # the key, or a hard negative of it
            scores = self.scale * similarity
            if direction == "query_to_doc" and self.hardness_mode is not None:
                hard = _hardened(self.hardness_mode, is_own, place >= total)
                scores = scores + self.hardness_strength * similarity.detach() * hard
            positive = scores.gather(1, numbers[:, None])[:, 0]
            if source == target:
                scores = scores.masked_fill(is_own, -torch.inf)
            return torch.stack([scores.logsumexp(dim=1), positive], dim=1)

        return block

    def _similarity(self, anchors: Tensor, keys: Tensor, transposed: bool) -> Float[Tensor, "n m"]:
        if self.similarity_fct is None:
            return anchors @ keys.T
        return self.similarity_fct(keys, anchors).T if transposed else self.similarity_fct(anchors, keys)


class CachedMultipleNegativesRankingLoss(MultipleNegativesRankingLoss):
    """`MultipleNegativesRankingLoss` in mini-batches, with the arguments of
    `sentence_transformers.losses.CachedMultipleNegativesRankingLoss` in their order. `show_progress_bar`
    changes nothing."""

    def __init__(
        self,
        model: nn.Module,
        scale: float = 20.0,
        similarity_fct: Similarity | None = None,
        mini_batch_size: int = 32,
        mini_batch_num_tokens: int | None = None,
        gather_across_devices: bool = False,
        directions: Sequence[str] = ("query_to_doc",),
        partition_mode: str = "joint",
        show_progress_bar: bool = False,
        hardness_mode: str | None = None,
        hardness_strength: float = 0.0,
    ) -> None:
        super().__init__(
            model,
            scale,
            similarity_fct,
            gather_across_devices,
            directions,
            partition_mode,
            hardness_mode,
            hardness_strength,
            mini_batch_size=mini_batch_size,
            mini_batch_num_tokens=mini_batch_num_tokens,
        )


def _hardened(mode: str, is_own: Tensor, is_hard_negative: Tensor) -> Tensor:
    """Which scores `hardness_mode` raises. `is_own` includes a query's own document and its hard negatives."""
    if mode == "in_batch_negatives":
        return ~is_own
    return is_own & is_hard_negative if mode == "hard_negatives" else ~is_own | is_hard_negative
