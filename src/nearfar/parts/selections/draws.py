"""Some of those that a selection kept, drawn for each anchor: selection first, sampling after it (Wu et al. 2021, sec. 4).

Every candidate of an anchor has a number that is a function of (the step's seed, the anchor's place, the candidate's place), and the
`sample` lowest of the kept are drawn. So a draw is uniform and without replacement, tiles draw what the whole matrix would, the
backward pass draws what the forward pass did, and a resumed step draws what it would have drawn.
"""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from nearfar.core.randomness import uniform_grid, words_at
from nearfar.core.types import Context
from nearfar.errors import UserError
from nearfar.parts.selections.ranks import in_threads


def checked_sample(sample: int | None) -> int | None:
    if sample is not None and (isinstance(sample, bool) or sample != int(sample) or sample < 1):
        raise UserError(
            f"selection.sample was {sample}; it must be a whole number from 1, or left out for all of them"
        )
    return None if sample is None else int(sample)


def step_seed() -> int:
    """One number of torch's generator, which a run sets from (seed, step); everything drawn is a function of it."""
    return int(torch.randint(2**62, ()))


def drawn(
    kept: Bool[Tensor, "anchor candidate"], sample: int, seed: int, rows: Int[Tensor, "anchor"]
) -> Bool[Tensor, "anchor candidate"]:
    """`sample` of each anchor's kept candidates, or all of them where there are no more."""
    if kept.shape[1] <= sample:
        return kept
    if kept.device.type == "cpu":
        chosen = torch.zeros_like(kept)
        parts = list(zip(kept.numpy(), rows.tolist(), chosen.numpy(), strict=True))
        in_threads(lambda some: _draw(some, sample, seed), parts, kept.numel())
        return chosen
    number = uniform_grid(seed, rows, kept.shape[1]).masked_fill(~kept, torch.inf)
    lowest = number.topk(sample, dim=1, largest=False).indices
    return torch.zeros_like(kept).scatter_(1, lowest, True) & kept


def _draw(rows: Iterable[tuple[np.ndarray, int, np.ndarray]], sample: int, seed: int) -> None:
    """Only the kept get a number: a ring keeps a tenth, and numbers for everybody would cost more than the ranking."""
    for kept, row, chosen in rows:
        places = np.flatnonzero(kept)
        if len(places) > sample:
            places = places[np.argpartition(words_at(seed, row, places), sample - 1)[:sample]]
        chosen[places] = True


def require_context(selection: object, context: Context | None) -> Context:
    """The context, which a selection that goes by instances cannot do without."""
    if context is None:
        name = type(selection).__name__
        raise UserError(
            f"{name} selects by instance and needs a context; call it as {name}(...)(scores, context), or use it in nf.Method"
        )
    return context
