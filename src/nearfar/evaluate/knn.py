"""Classification by the nearest neighbours of frozen features: no fitting, nothing to tune.

knn(train, train_labels, test, test_labels)                           # weighted cosine vote
knn(train, train_labels, test, test_labels, k=1, weighting="l2")      # the nearest neighbour
knn(all, labels, all, labels, exclude_self=True)                      # leave one out
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from nearfar.core.strategy import SINGLE, Strategy
from nearfar.errors import UserError, check_number, check_whole
from nearfar.evaluate.accuracy import TOP, hit_rates
from nearfar.evaluate.sets import LabelledFeatures, class_codes, stratified_split

Weighting = Literal["cosine", "l2"]
NEIGHBOURS, VOTE_TEMPERATURE = 20, 0.07  # defaults; those of `nearfar evaluate` are also in its help
NO_CLASS = -1  # in a ranking: no further class got a vote
_TILE = 2**24  # entries of the similarity matrix in memory at a time, unless `chunk` is given


def knn(
    train: Float[Tensor, "train dim"],
    train_labels: Int[Tensor, "train"],
    test: Float[Tensor, "test dim"],
    test_labels: Int[Tensor, "test"],
    **options: Any,
) -> dict[str, float]:
    """Top-1 and top-5 of the vote of the k nearest train rows; options as of `ranked_classes`."""
    ranked = ranked_classes(train, train_labels, test, **options)
    return hit_rates(ranked, test_labels.to(ranked.device))


def ranked_classes(
    train: Float[Tensor, "train dim"],
    train_labels: Int[Tensor, "train"],
    test: Float[Tensor, "test dim"],
    *,
    k: int = NEIGHBOURS,
    temperature: float = VOTE_TEMPERATURE,
    weighting: Weighting = "cosine",
    chunk: int | None = None,
    exclude_self: bool = False,
    strategy: Strategy = SINGLE,
) -> Int[Tensor, "test rank"]:
    """Up to five classes per test row, most votes first; `NO_CLASS` where no further class got one.

    "cosine" (Wu et al. 2018, sec. 3.4): neighbour i of class c adds exp(cos_i / temperature) to c's vote.
    "l2": the k nearest by Euclidean distance, one vote each.

    The result depends neither on the order of the train rows nor on `chunk` (except for rounding): of rows
    equally near at the edge of the k, the lower labels are taken; equal votes go to the class with the nearer
    neighbour, then to the lower label. The similarity matrix is built `chunk` test rows at a time. Several
    ranks share these parts, so that each part is computed as by one process, and every rank gets all answers.
    """
    _check(k, temperature, len(train), exclude_self, len(test))
    by_label = torch.argsort(train_labels, stable=True)  # so that "lower position" means "lower label"
    classes, codes = class_codes(train_labels[by_label])
    self_column = torch.argsort(by_label) if exclude_self else None
    k = min(k, len(train) - (1 if exclude_self else 0))
    chunk = chunk or max(1, _TILE // len(train))
    if len(test) <= chunk * (strategy.world - 1):  # fewer parts than ranks: every rank computes all
        strategy = SINGLE
    share = strategy.share(-(-len(test) // chunk))
    rows = slice(share.start * chunk, share.stop * chunk)
    rank = []
    for nearness in _nearness(
        train[by_label], test[rows], weighting, chunk, None if self_column is None else self_column[rows]
    ):
        value, neighbour = _nearest(nearness, k)
        weight = (
            ((value - value[:, :1]) / temperature).exp() if weighting == "cosine" else torch.ones_like(value)
        )
        rank.append(_most_votes(value, weight, codes[neighbour], len(classes)))
    place = strategy.all_gather(torch.cat(rank))
    return torch.where(place == NO_CLASS, NO_CLASS, classes[place.clamp(min=0)])


def knn_probe(
    features: Float[Tensor, "image dim"],
    labels: Int[Tensor, "image"],
    held_share: float = 0.2,
    seed: int = 0,
    k: int = NEIGHBOURS,
    temperature: float = VOTE_TEMPERATURE,
) -> float:
    """Top-1 of the weighted cosine vote on a stratified split of one set; used while training."""
    embedded = LabelledFeatures(features, labels)
    fit, holdout = (embedded.rows(part) for part in stratified_split(labels, held_share, seed))
    if not len(holdout):
        raise UserError(
            f"a kNN probe needs two images of some class; the {len(embedded)} labelled images have one "
            "of each"
        )
    sides = fit.features, fit.labels, holdout.features, holdout.labels
    return knn(*sides, k=k, temperature=temperature)["top1"]


def _check(k: int, temperature: float, train: int, exclude_self: bool, test: int) -> None:
    check_whole("k", k, 1)
    check_number("temperature", temperature, 0, exclude_low=True)
    if exclude_self and train != test:
        raise ValueError(f"exclude_self needs the same rows on both sides, not {train} and {test}")
    if train < (2 if exclude_self else 1) or test < 1:
        raise UserError(
            f"nearest neighbours need at least one image on both sides; found {train} training and "
            f"{test} test images"
        )


def _nearness(
    train: Float[Tensor, "train dim"],
    test: Float[Tensor, "test dim"],
    weighting: Weighting,
    chunk: int,
    self_column: Int[Tensor, "test"] | None,
) -> Iterator[Float[Tensor, "chunk train"]]:
    """How near each train row is, larger is nearer: the cosine, or minus the squared distance."""
    prepare, offset = _cosine_space(train) if weighting == "cosine" else _l2_space(train)
    keys = prepare(train).T
    for start in range(0, len(test), chunk):
        queries = prepare(test[start : start + chunk].to(train.device))
        nearness = queries @ keys if offset is None else torch.addmm(offset, queries, keys, alpha=2.0)
        if self_column is not None:
            nearness.scatter_(1, self_column[start : start + chunk, None], -torch.inf)
        yield nearness


_Space = tuple[Callable[[Tensor], Tensor], Tensor | None]


def _cosine_space(train: Float[Tensor, "train dim"]) -> _Space:
    dtype = _working_dtype(train)
    return lambda rows: functional.normalize(rows.to(dtype), dim=1), None


def _l2_space(train: Float[Tensor, "train dim"]) -> _Space:
    """-|x - y|^2 up to |x|^2, which no ranking of y for a fixed x sees: 2 x.y - |y|^2, around a centre.

    Far from the origin that difference would cancel to noise, so rows are centred; the centre lies on a grid
    as coarse as the features' spread, so features that are whole numbers stay so and equal distances stay
    equal.
    """
    dtype = _working_dtype(train)
    mean, spread = train.to(dtype).mean(0), train.to(dtype).std(0, correction=0).max().clamp(min=1e-30)
    step = torch.exp2(torch.floor(torch.log2(spread)))
    centre = torch.round(mean / step) * step
    prepare = lambda rows: rows.to(dtype) - centre
    return prepare, -prepare(train).square().sum(1)


def _working_dtype(rows: Tensor) -> torch.dtype:
    return torch.float64 if rows.dtype == torch.float64 else torch.float32


def _nearest(
    nearness: Float[Tensor, "row train"], k: int
) -> tuple[Float[Tensor, "row k"], Int[Tensor, "row k"]]:
    """The k largest of each row, nearest first; of equals at the edge, those in the lowest columns."""
    value, column = nearness.topk(min(k + 1, nearness.shape[1]), dim=1)
    if value.shape[1] > k:
        # topk promises nothing about which of several equals it returns, so such rows are redone
        cut = value[:, k] == value[:, k - 1]
        value, column = value[:, :k].clone(), column[:, :k].clone()
        column[cut] = nearness[cut].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return value, column


def _most_votes(
    value: Float[Tensor, "row k"], weight: Float[Tensor, "row k"], code: Int[Tensor, "row k"], classes: int
) -> Int[Tensor, "row rank"]:
    """Classes by falling vote, then by their nearest neighbour, then by code."""
    votes = weight.new_zeros(len(value), classes).scatter_add_(1, code, weight)
    nearest = torch.full_like(votes, -torch.inf).scatter_reduce_(1, code, value, "amax")
    first = nearest.sort(dim=1, descending=True, stable=True).indices
    by_votes = votes.gather(1, first).sort(dim=1, descending=True, stable=True).indices
    ranked = first.gather(1, by_votes)[:, :TOP]
    voted: Bool[Tensor, "row rank"] = nearest.gather(1, ranked) > -torch.inf
    return torch.where(voted, ranked, NO_CLASS)
