"""Places in the order of similarity.

An edge between two places is a score: everything at or above the r-th highest score lies inside. On CPUs it is
found by a partial sort, linear in the number of candidates; only anchors whose edge runs through equal scores
need more. Elsewhere rows are sorted.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

WORTH_A_THREAD = 2**19  # scores: about a millisecond, ten times what starting a thread costs


def places(count: int, lower: float, upper: float) -> tuple[int, int]:
    """First place kept and the one after the last, of `count` candidates."""
    first = max(0, min(round(lower * count), count - 1))
    return first, min(count, max(round(upper * count), first + 1))


def beyond_edges(
    values: Float[Tensor, "anchor candidate"],
    candidates: Bool[Tensor, "anchor candidate"],
    lower: float,
    upper: float,
    nearest: Int[Tensor, "anchor"] | int | None = None,
) -> tuple[Bool[Tensor, "anchor candidate"], Bool[Tensor, "anchor candidate"]]:
    """Which candidates lie above the lower edge, and which of those also above the upper one (too similar).

    Places are those of `places`. `nearest` raises the lower edge until at most that many lie between the
    edges (one number per anchor, or one for all).
    """
    values = values.detach()
    if candidates.numel() == 0:
        return candidates, candidates
    count = candidates.sum(dim=1, dtype=torch.int32).long()
    first, last = _places(count, candidates.shape[1], lower, upper)
    if nearest is not None:
        first = torch.maximum(first, last - nearest)
    above_lower, above_upper = count - first, count - last  # how many lie above the lower and the upper edge
    if values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64):
        return _beyond_by_partition(values, candidates, count, above_lower, above_upper)
    # no number is read here, so that a GPU need not be waited for; NaN ranks after every score
    order = values.masked_fill(~candidates, torch.nan).sort(dim=1, stable=True).indices
    place = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    return candidates & (place >= first[:, None]), candidates & (place >= last[:, None])


def between_edges(
    values: Float[Tensor, "anchor candidate"],
    candidates: Bool[Tensor, "anchor candidate"],
    lower: float,
    upper: float,
) -> Bool[Tensor, "anchor candidate"]:
    """Which kept candidates are at the places `lower` to `upper` of their anchor."""
    reach, close = beyond_edges(values, candidates, lower, upper)
    return reach > close


def round_share(share: float, count: Int[Tensor, "anchor"], max_count: int) -> Int[Tensor, "anchor"]:
    """Python's round(share * count) for counts of at most `max_count`, by table: devices may lack float64."""
    rounded = torch.round(share * torch.arange(max_count + 1, dtype=torch.float64)).long()
    return rounded.to(count.device, non_blocking=True)[count]


def _places(
    count: Int[Tensor, "anchor"], max_count: int, lower: float, upper: float
) -> tuple[Int[Tensor, "anchor"], Int[Tensor, "anchor"]]:
    """`places` for every anchor at once."""
    first = torch.minimum(round_share(lower, count, max_count), count - 1).clamp_min(0)
    last = torch.minimum(torch.maximum(round_share(upper, count, max_count), first + 1), count)
    return first, last


Row = tuple[np.ndarray, np.ndarray, int, int, int, np.ndarray, np.ndarray]


def _beyond_by_partition(
    values: Float[Tensor, "anchor candidate"],
    candidates: Bool[Tensor, "anchor candidate"],
    count: Int[Tensor, "anchor"],
    above_lower: Int[Tensor, "anchor"],
    above_upper: Int[Tensor, "anchor"],
) -> tuple[Bool[Tensor, "anchor candidate"], Bool[Tensor, "anchor candidate"]]:
    """Both edges of a row at once and row by row, so that a row stays in the processor's cache. numpy's
    partition uses its vector units and lets other threads work."""
    reach, close = torch.empty_like(candidates), torch.zeros_like(candidates)
    counts = (count.tolist(), above_lower.tolist(), above_upper.tolist())
    rows = list(zip(values.numpy(), candidates.numpy(), *counts, reach.numpy(), close.numpy(), strict=True))
    in_threads(_choose, rows, candidates.numel())
    return reach, close


def in_threads(work: Callable[[list[Any]], None], rows: list[Any], scores: int) -> None:
    """Works on independent rows, with as many threads as the number of scores is worth."""
    threads = min(torch.get_num_threads(), len(rows), scores // WORTH_A_THREAD)
    if threads < 2:
        work(rows)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, (rows[part::threads] for part in range(threads))))


def _choose(rows: Iterable[Row]) -> None:
    """Marks in the last two which candidates of each row lie above the lower and the upper edge."""
    for scores, candidates, count, above_lower, above_upper, reach, close in rows:
        # `partition` copies; after the first edge only what lies beyond it is left to part
        ranked = scores if count == len(scores) else np.where(candidates, scores, scores.dtype.type(-np.inf))
        for nearest, mask in ((above_lower, reach), (above_upper, close)):
            if nearest == count:
                mask[:] = candidates
            elif nearest:
                ranked = np.partition(ranked, -nearest)[-nearest:]
                _mark(scores, candidates, ranked[0], nearest, mask)


def _mark(
    scores: np.ndarray, candidates: np.ndarray, threshold: np.floating, nearest: int, mask: np.ndarray
) -> None:
    """Candidates at or above the threshold; at most `nearest`, and of ties the later positions."""
    np.logical_and(scores >= threshold, candidates, out=mask)
    if (surplus := np.count_nonzero(mask) - nearest) > 0:
        mask[np.flatnonzero(mask & (scores == threshold))[:surplus]] = False
