"""Sources without a memory: the other instances of the batch, a vocabulary, nothing."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractNegatives
from nearfar.core.scores import EMPTY, Candidates
from nearfar.core.types import NegativeSampling, Sizes
from nearfar.errors import UserError


def rows_of(
    keys: Float[Tensor, "*row dim"], index: Int[Tensor, "item"]
) -> tuple[Float[Tensor, "key dim"], Int[Tensor, "key"]]:
    """Keys one below the other with the identity of each: the places of an instance all have its own."""
    flat = keys.reshape(-1, keys.shape[-1])
    return flat, index if len(index) == len(flat) else index.repeat_interleave(len(flat) // len(index))


def filled(value: int, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
    """A tensor of one value that takes no memory, for a memory that is made when its width is known."""
    return torch.full((1,) * len(shape), value, dtype=dtype).expand(*shape)


class _Copies(weakref.WeakSet["WidthOfFirstKeys"]):
    """The copies of a module, by `copy.deepcopy`. A module that is read from a file has none."""

    def __deepcopy__(self, memo: Any) -> "_Copies":
        return self  # `__setstate__` of the copy adds it here and begins its own

    def __reduce__(self) -> Any:
        return _Copies, ()


class WidthOfFirstKeys(nn.Module):
    """A memory whose rows are as wide as the first keys, where no width was given (0 until then).

    Copies that were made before the first step get the width too: averages of a model
    (`torch.optim.swa_utils.AveragedModel`, callbacks) then keep tensors of the shapes that the model has. What
    a module was copied from stays as it was.
    """

    memory: ClassVar[str]  # name of the buffer
    index: Tensor  # whose each row is

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self._width_given, self._copies = dim is not None, _Copies()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._copies.add(self)
        self._copies = _Copies()

    def _fits(self, keys: Tensor) -> bool:
        """Whether rows are as wide as these keys; an empty memory takes any width unless one was given."""
        width, dim = keys.shape[-1], getattr(self, self.memory).shape[-1]
        if width != dim and (self._width_given or bool((self.index != EMPTY).any())):
            raise UserError(f"{type(self).__name__}(dim={dim}) was given keys of {width} numbers")
        return width == dim

    def _scored(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """Rows of the memory as they are scored with these keys: in their precision, and as wide as they
        are also where none was stored yet."""
        if keys is None:
            return rows
        return rows.to(keys.dtype) if self._fits(keys) else keys.new_zeros(*rows.shape[:-1], keys.shape[-1])

    def _widen(self, dim: int) -> None:
        rows = getattr(self, self.memory)
        setattr(self, self.memory, rows.new_zeros(*rows.shape[:-1], dim))
        self.index = self.index.contiguous()  # see `filled`
        for copy in self._copies:
            if not getattr(copy, copy.memory).shape[-1]:
                copy._widen(dim)


GROUPED = "the negatives include several places of each other instance, which are not independent draws"


@dataclass(frozen=True)
class InBatch(AbstractNegatives):
    """Keys of the other instances in the batch.

    `views="both"` takes every view of the others, 2N - 2 negatives for two views (SimCLR, Sáez Maldonado
    2021, Eq. 23); `views="one"` only the view the positive is of, N - 1 negatives (CLIP-style, and the form
    that is proven to bound mutual information).
    """

    display_name = "the batch"
    equation = "the other instances of the batch, views: {views}"
    only_this_batch = True
    views: Literal["one", "both"] = "both"

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        encoders = parts["encoders"]
        if choices["negatives"]["views"] == "one" or encoders.row_per_instance or encoders.same_rows_in_views:
            return None
        role = choices["encoders"]["name"]
        return (
            f"negatives.views was both with encoders={role}, whose rows are times or symbols of one view; "
            "use negatives.views=one"
        )

    def __post_init__(self) -> None:
        if self.views not in ("one", "both"):
            raise UserError(f"negatives.views was {self.views!r}; expected one or both")

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Candidates:
        if self.views == "one" or len(keys) == 1:
            return Candidates(*rows_of(keys[key], index))
        embedding, ids = zip(*(rows_of(keys[view], index) for view in sorted(keys)), strict=True)
        return Candidates(torch.cat(embedding), torch.cat(ids))

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        negatives = (batch_size - 1) * keys_per_instance + same_instance_negatives
        if self.views == "one" or key_views == 1:
            if keys_per_instance == 1:
                return NegativeSampling(batch_size, negatives, positive_is_key=True)
            return NegativeSampling(
                batch_size, negatives, exchangeable=False, reason=GROUPED, positive_is_key=True
            )
        reason = (
            f"the negatives include {key_views} views of each other instance, which are not independent draws"
        )
        return NegativeSampling(
            batch_size, key_views * negatives, exchangeable=False, reason=reason, positive_is_key=True
        )


class Corrupted(AbstractNegatives):
    """Keys of corrupted instances, all of the batch, the anchor's own included (Veličković et al. 2019)."""

    display_name = "corrupted instances"
    equation = "the nodes of the corrupted graphs of the batch"

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if parts["encoders"].gives_corrupted_keys:
            return None
        role = choices["encoders"]["name"]
        return f"negatives was corrupted with encoders={role}, which corrupt nothing; use encoders=dgi"

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Candidates:
        corrupted = [keys[view] for view in sorted(keys) if view != key]
        identity = EMPTY - 1 - index  # below zero: no instance
        return Candidates(torch.cat(corrupted), identity.repeat(len(corrupted)))

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        reason = "negatives are nodes of corrupted graphs, not draws of p(v)"
        return NegativeSampling(
            batch_size,
            batch_size * keys_per_instance,
            exchangeable=False,
            reason=reason,
            positive_is_key=True,
        )


class Dictionary(AbstractNegatives):
    """All `symbols` of the vocabulary, or all classes, each once, as the encoders embed them: InfoNCE over
    them is log-softmax + log V, the cross-entropy of a masked language model or of a classifier up to a
    constant."""

    reads_vocabulary = True
    equation = "every other symbol of the vocabulary, or every other class, once"

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if parts["encoders"].keys_are_symbols:
            return None
        role = choices["encoders"]["name"]
        return (
            f"negatives was dictionary with encoders={role}; only encoders=masked and encoders=prototypes "
            "have a vocabulary"
        )

    def __init__(self, *, symbols: int = 0) -> None:
        self.size = symbols

    def meet(self, sizes: Sizes) -> None:
        self.size = sizes.symbols

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Candidates:
        return self.symbols(None)

    def symbols(self, vocabulary: Float[Tensor, "symbol dim"] | None) -> Candidates:
        if vocabulary is None or len(vocabulary) != self.size:
            raise UserError(
                f"negatives was dictionary, but the encoders bring no vocabulary of {self.size} symbols; "
                "use encoders=masked or encoders=prototypes, or other negatives"
            )
        return Candidates(vocabulary, torch.arange(self.size, device=vocabulary.device))

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        reason = (
            "each symbol (or class) is a negative once, not as often as it occurs; the value can exceed the "
            "information by log V minus the symbols' entropy (Wu et al. 2020, sec. 5.1)"
        )
        return NegativeSampling(
            batch_size, self.size - 1, exchangeable=False, reason=reason, positive_is_key=True
        )


@dataclass(frozen=True)
class NoNegatives(AbstractNegatives):
    """No negatives at all: BYOL, and the case that shows what negatives are for."""

    equation = "none"
    has_candidates = False

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        bound = choices["bound"]["name"]
        if not parts["bound"].reads_negatives:
            return None
        return (
            f"bound was {bound} with negatives=none: it compares positive scores with those of negatives, "
            "and there are none; use bound=agreement, which reads positives alone, or negatives=in-batch, "
            "which leaves networks and predictor as they are"
        )

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Candidates:
        flat, ids = rows_of(keys[key], index)
        return Candidates(flat[:0], ids[:0])

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        return NegativeSampling(batch_size, 0, positive_is_key=True)
