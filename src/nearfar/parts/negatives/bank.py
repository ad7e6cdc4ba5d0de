"""One remembered embedding per instance (Wu et al. 2021, sec. 2; Wu et al. 2020, sec. 5)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nearfar.core.abstract import AbstractNegatives
from nearfar.core.schedules import Progress, Value, at, parse_within
from nearfar.core.scores import EMPTY, Candidates
from nearfar.core.types import NegativeSampling, Sizes
from nearfar.errors import UserError, counted
from nearfar.parts.negatives.batch import WidthOfFirstKeys, filled, rows_of

UNKNOWN_WIDTH = UNKNOWN_SIZE = 0


class Bank(WidthOfFirstKeys, AbstractNegatives):
    """A row for every instance and view: the anchor's own row is its positive, the others its negatives.

    A row moves as M[i] <- prepare(momentum M[i] + (1 - momentum) z_i), where `prepare` is the critic's: unit
    length for cosines, and nothing for a critic that scores vectors as they are. Where an instance has
    several keys in a step (the times of a recording, the places of a map), z_i is their mean. `sample` draws
    that many rows uniformly, with replacement, instead of contrasting with all of them. `size` is the number
    of instances; None: that of the data.
    """

    memory = "rows"
    display_name = "the bank"
    equation = (
        "the rows of all other instances; v+ is the instance's own, M_i <- c M_i + (1 - c) v, c = {momentum}"
    )
    remembers_positives = True  # one view is enough
    remembers_instances = True
    rows: Tensor
    index: Tensor
    # 1 for rows of instances that are known, but not in this view (too short a recording); averages of models
    # subtract buffers, which torch does not do with bool
    missing: Tensor

    def __init__(
        self,
        size: int | None = None,
        momentum: Value = 0.5,
        sample: int | None = None,
        *,
        dim: int | None = None,
        views: int = 1,
        instances: int | None = None,
    ) -> None:
        super().__init__(dim)
        self.momentum = parse_within(momentum, "negatives.momentum", 0, 1, exclude_high=True)
        if size is not None and (not isinstance(size, (int, np.integer)) or size < 1):
            raise UserError(f"Bank(size={size!r}) is not a number of rows; it needs one for each instance")
        if sample is not None and sample < 1:
            raise UserError(f"negatives.sample was {sample}; it must be at least 1, or left out for all rows")
        self.sample = sample
        self.prepare: Callable[[Tensor], Tensor] = partial(F.normalize, dim=1)
        self._make_rows(dim, views, instances)

    def meet(self, sizes: Sizes) -> None:
        self._width_given = sizes.dim is not None
        self._make_rows(sizes.dim, sizes.views, sizes.instances)

    def _make_rows(self, dim: int | None, views: int, instances: int | None) -> None:
        size = self.settings["size"]
        if size is not None and instances is not None and size < instances:
            raise UserError(
                f"negatives.size was {size}; a bank needs a row for each of the {counted(instances, 'instances')}: "
                "leave it out, or raise it"
            )
        size = size or instances or UNKNOWN_SIZE
        self.register_buffer("rows", torch.zeros(views, size, UNKNOWN_WIDTH))
        self.register_buffer("index", filled(EMPTY, size))
        self.register_buffer("missing", filled(0, views, size, dtype=torch.uint8), persistent=False)
        if dim is not None:
            self._widen(dim)

    def _widen(self, dim: int) -> None:
        super()._widen(dim)
        self.missing = self.missing.contiguous()

    def setup(
        self, key_groups: int, group_of: Callable[[int], int], prepare: Callable[[Tensor], Tensor]
    ) -> None:
        self.prepare = prepare

    @property
    def size(self) -> int:
        return len(self.index)

    def prefill_size(self) -> int:
        return self.size

    def instance_rows(self) -> Tensor:
        return self.rows

    def positive(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Tensor:
        self._check_view(key)
        return self._scored(self.rows[key, index], keys.get(key))

    def candidates(self, keys: Mapping[int, Tensor], index: Tensor, key: int) -> Candidates:
        rows, index = self.rows[key], torch.where(self.missing[key].bool(), EMPTY, self.index)
        if self.sample is not None:
            places = torch.randint(self.size, (self.sample,), device=self.index.device)
            rows, index = rows[places], index[places]
        return Candidates(self._scored(rows, keys.get(key)), index)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        stored = state.get(f"{prefix}rows")
        if stored is not None and self.rows.shape[2] == UNKNOWN_WIDTH:
            self._widen(stored.shape[2])
        super()._load_from_state_dict(state, prefix, *rest)
        self.missing = ((self.rows == 0).all(dim=2) & (self.index != EMPTY)).to(torch.uint8)

    @torch.no_grad()
    def advance(self, keys: Mapping[int, Tensor], index: Tensor, progress: Progress) -> None:
        if not self._fits(first_keys := next(iter(keys.values()))):
            self._widen(first_keys.shape[-1])
        momentum = at(self.momentum, progress)
        self._check_rows(index)
        self.missing[:, index] |= self.index[index] == EMPTY  # until a key of that view comes
        for view in sorted(keys):
            self._check_view(view)
            key, who = self._one_each(*rows_of(keys[view].to(self.rows.dtype), index))
            moved = self.prepare(momentum * self.rows[view, who] + (1 - momentum) * key)
            first = self.missing[view, who, None].bool()
            self.rows[view, who] = torch.where(first, key, moved.to(key.dtype))
            self.missing[view, who] = 0
        self.index[index] = index

    def _one_each(self, keys: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Keys of which all of an instance are equal: their mean, as the critic would prepare it. The number of
        instances is not read, so that a GPU need not be waited for."""
        if not len(index):
            return keys, index
        ordered, order = index.sort()
        number = F.pad((ordered[1:] != ordered[:-1]).cumsum(0), (1, 0))
        place = torch.empty_like(order).scatter_(0, order, number)
        count = keys.new_zeros(len(index), 1).index_add_(0, place, keys.new_ones(len(index), 1))[place]
        total = torch.zeros_like(keys).index_add_(0, place, keys)[place]
        return torch.where(count > 1, self.prepare(total / count).to(keys.dtype), keys), index

    def _check_rows(self, index: Tensor) -> None:
        highest = int(index.max()) if index.device.type == "cpu" and len(index) else 0
        if highest >= self.size:
            raise UserError(
                f"Bank(size={self.size}) was given instance {highest}, counted from 0; it needs a row for "
                "each instance of the data"
            )

    def _check_view(self, view: int) -> None:
        if view >= len(self.rows):
            raise UserError(
                f"Bank(views={len(self.rows)}) was given keys of view {view}, counted from 0; it needs "
                f"views={view + 1}"
            )

    def sampling(
        self, batch_size: int, key_views: int, keys_per_instance: int = 1, same_instance_negatives: int = 0
    ) -> NegativeSampling:
        reason = "rows are averages over earlier networks and views, not draws of one key distribution"
        count = self.size - 1 if self.sample is None else self.sample
        return NegativeSampling(batch_size, count, exchangeable=False, reason=reason)
