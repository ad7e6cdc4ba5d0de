"""Samples of what a selection kept, for each anchor (Wu et al. 2021, sec. 4).

Every candidate of an anchor has a number that is a function of (the step's seed, the anchor's place, the
candidate's place), and the `sample` lowest of the kept are drawn. So a draw is uniform and without
replacement, tiles draw what the whole matrix would, the backward pass draws what the forward pass did, and a
resumed step draws what it would have drawn.
"""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from nearfar.core.randomness import word_grid, words_at
from nearfar.core.types import Context
from nearfar.errors import UserError
from nearfar.parts.selections.ranks import in_threads


def checked_number(number: int | None, key: str) -> int | None:
    """How many to keep or draw; None: all of them."""
    if number is not None and (isinstance(number, bool) or number != int(number) or number < 1):
        raise UserError(
            f"selection.{key} was {number}; it must be a whole number from 1, or left out for all of them"
        )
    return None if number is None else int(number)


def step_seed() -> int:
    """One number of torch's generator, which a run sets from (seed, step), for all draws."""
    return int(torch.randint(2**62, ()))


def sample_candidates(
    candidates: Bool[Tensor, "anchor candidate"], sample: int, seed: int, rows: Int[Tensor, "anchor"]
) -> Bool[Tensor, "anchor candidate"]:
    """`sample` of each anchor's kept candidates, or all of them where there are no more."""
    if candidates.shape[1] <= sample:
        return candidates
    if candidates.device.type == "cpu":
        sampled = torch.zeros_like(candidates)
        parts = list(zip(candidates.numpy(), rows.tolist(), sampled.numpy(), strict=True))
        in_threads(lambda some: _draw(some, sample, seed), parts, candidates.numel())
        return sampled
    words = word_grid(seed, rows, candidates.shape[1]).masked_fill(~candidates, 2**53)
    lowest = words.topk(sample, dim=1, largest=False).indices
    return torch.zeros_like(candidates).scatter_(1, lowest, True) & candidates


def _draw(rows: Iterable[tuple[np.ndarray, int, np.ndarray]], sample: int, seed: int) -> None:
    """Only the kept get a number: a ring keeps a tenth, and more would cost more than the ranking."""
    for candidates, row, sampled in rows:
        places = np.flatnonzero(candidates)
        if len(places) > sample:
            places = places[np.argpartition(words_at(seed, row, places), sample - 1)[:sample]]
        sampled[places] = True


def require_context(selection: object, context: Context | None) -> Context:
    """The context, which a selection that goes by instances cannot do without."""
    if context is None:
        name = type(selection).__name__
        raise UserError(
            f"{name} selects by instance and needs a context; call it as {name}(...)(scores, context), or "
            "use it in nf.Method"
        )
    return context
