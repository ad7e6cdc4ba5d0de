"""Places in the order of similarity, found without sorting.

An edge between two places is a score: everything at or above the r-th highest score lies inside. Finding it
is a partial sort, linear in the number of candidates; only anchors whose edge runs through equal scores need
more.
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
    spans = torch.stack([count, first, above_lower, above_upper]).aminmax(dim=1)
    (min_count, _, min_above_lower, min_above_upper) = spans.min.tolist()
    (max_count, max_first, max_above_lower, max_above_upper) = spans.max.tolist()
    none = torch.zeros_like(candidates)
    if max_count == 0:
        return none, none
    ranked = values if min_count == candidates.shape[1] else values.masked_fill(~candidates, -torch.inf)
    reach, close = candidates, none
    if max_first > 0:
        reach = _nearest(ranked, candidates, above_lower, min_above_lower, max_above_lower)
    if max_above_upper > 0:
        close = _nearest(ranked, candidates, above_upper, min_above_upper, max_above_upper)
    return reach, close


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
    """Python's round(share * count), for counts of at most `max_count`: looked up, because not every device has
    float64."""
    return (
        torch.round(share * torch.arange(max_count + 1, dtype=torch.float64)).long().to(count.device)[count]
    )


def _places(
    count: Int[Tensor, "anchor"], max_count: int, lower: float, upper: float
) -> tuple[Int[Tensor, "anchor"], Int[Tensor, "anchor"]]:
    """`places` for every anchor at once."""
    first = torch.minimum(round_share(lower, count, max_count), count - 1).clamp_min(0)
    last = torch.minimum(torch.maximum(round_share(upper, count, max_count), first + 1), count)
    return first, last


def _nearest(
    ranked: Float[Tensor, "anchor candidate"],
    candidates: Bool[Tensor, "anchor candidate"],
    count: Int[Tensor, "anchor"],
    min_count: int,
    max_count: int,
) -> Bool[Tensor, "anchor candidate"]:
    """The `count` most similar candidates of each anchor; ties go to later positions. Counts lie between
    `min_count` and `max_count`."""
    threshold, following = _edge_by_topk(ranked, count, min_count, max_count)
    inside = (ranked >= threshold) & candidates & (count > 0)[:, None]
    cut = ((threshold == following)[:, 0] & (count > 0)).nonzero()[:, 0]
    if len(cut):
        inside[cut] = _among_equals(ranked[cut], candidates[cut], count[cut], threshold[cut])
    return inside


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
    """Writes into the last two of each row which of its candidates lie above the lower edge, and which above
    the upper one."""
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
    """Candidates at or above the threshold; where more than `nearest` are, of those equal to it the later
    positions."""
    np.logical_and(scores >= threshold, candidates, out=mask)
    if (surplus := np.count_nonzero(mask) - nearest) > 0:
        mask[np.flatnonzero(mask & (scores == threshold))[:surplus]] = False


Edge = tuple[Float[Tensor, "anchor 1"], Float[Tensor, "anchor 1"]]


def _edge_by_topk(
    ranked: Float[Tensor, "anchor candidate"], rank: Int[Tensor, "anchor"], min_rank: int, max_rank: int
) -> Edge:
    """The rank-th highest score of each anchor and the one after it (NaN: there is none); for rank 0 the
    highest is given."""
    top = ranked.topk(min(max_rank + 1, ranked.shape[1]), dim=1, sorted=False).values
    # anchors differ little in their number of candidates, so few places are left to put in order
    low = top.topk(top.shape[1] - max(1, min_rank) + 1, dim=1, largest=False, sorted=True).values
    if top.shape[1] == max_rank:
        low = torch.cat([torch.full_like(low[:, :1], torch.nan), low], dim=1)
    place = (max_rank + 1 - rank.clamp_min(1))[:, None]
    return low.gather(1, place), low.gather(1, place - 1)


def _among_equals(
    ranked: Float[Tensor, "anchor candidate"],
    candidates: Bool[Tensor, "anchor candidate"],
    count: Int[Tensor, "anchor"],
    threshold: Float[Tensor, "anchor 1"],
) -> Bool[Tensor, "anchor candidate"]:
    """The `count` most similar where the threshold has equals: of those the later positions, which rank
    higher."""
    higher = ranked > threshold
    equal = (ranked == threshold) & candidates
    missing = (count - higher.count_nonzero(dim=1))[:, None]
    from_the_end = equal.flip(1).cumsum(dim=1, dtype=torch.int32).flip(1)
    return higher | (equal & (from_the_end <= missing))
