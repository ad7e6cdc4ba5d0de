"""The nearest-neighbour vote against a brute-force reference written the slow way, and its laws."""

import math
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from nearfar.errors import UserError
from nearfar.evaluate.knn import NO_CLASS, knn, knn_probe, ranked_classes
from nearfar.evaluate.sets import stratified_split

WEIGHTINGS: tuple[Literal["cosine", "l2"], ...] = ("cosine", "l2")


def reference_ranking(
    train: np.ndarray, labels: np.ndarray, query: np.ndarray, k: int, temperature: float, weighting: str
) -> list[int]:
    """One query at a time in Python floats: sort by (distance, label), vote, sort by (vote, nearest,
    label)."""
    if weighting == "cosine":
        unit = lambda rows: rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
        similarities = unit(train) @ unit(query)
    else:
        similarities = -np.square(train - query).sum(1)
    neighbours = sorted(range(len(train)), key=lambda i: (-similarities[i], labels[i]))[:k]
    votes: dict[int, float] = {}
    nearest: dict[int, float] = {}
    for i in neighbours:
        label = int(labels[i])
        votes[label] = votes.get(label, 0.0) + (
            math.exp(similarities[i] / temperature) if weighting == "cosine" else 1.0
        )
        nearest[label] = max(nearest.get(label, -math.inf), similarities[i])
    return sorted(votes, key=lambda c: (-votes[c], -nearest[c], c))[:5]


def problem(seed: int, rows: int, dim: int, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    make = lambda n: torch.randn(n, dim, generator=generator, dtype=torch.float64)
    label = lambda n: torch.randint(0, classes, (n,), generator=generator)
    return make(rows), label(rows), make(13), label(13)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**20),
    st.integers(1, 60),
    st.integers(1, 8),
    st.integers(1, 9),
    st.integers(1, 30),
    st.sampled_from(WEIGHTINGS),
)
def test_ranking_equals_brute_force(
    seed: int, rows: int, dim: int, classes: int, k: int, weighting: Literal["cosine", "l2"]
) -> None:
    train, labels, test, _ = problem(seed, rows, dim + 1, classes)
    ranked = ranked_classes(train, labels, test, k=k, temperature=0.2, weighting=weighting)
    for row, query in zip(ranked.tolist(), test.numpy(), strict=True):
        expected = reference_ranking(train.numpy(), labels.numpy(), query, k, 0.2, weighting)
        assert [label for label in row if label != NO_CLASS] == expected


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**20), st.integers(1, 40), st.integers(1, 6), st.integers(1, 12))
def test_ties_of_whole_numbers_are_broken_by_nearest_then_label(
    seed: int, rows: int, classes: int, k: int
) -> None:
    """Points on a tiny grid are full of equal distances and duplicates, all exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    train = torch.randint(0, 3, (rows, 2), generator=generator).float() + 1000
    labels = torch.randint(0, classes, (rows,), generator=generator)
    test = torch.randint(0, 3, (20, 2), generator=generator).float() + 1000
    ranked = ranked_classes(train, labels, test, k=k, weighting="l2")
    for row, query in zip(ranked.tolist(), test.double().numpy(), strict=True):
        expected = reference_ranking(train.double().numpy(), labels.numpy(), query, k, 1.0, "l2")
        assert [label for label in row if label != NO_CLASS] == expected


def assert_chunks_and_order_do_not_matter(
    train: Tensor, labels: Tensor, test: Tensor, weighting: Literal["cosine", "l2"], chunk: int
) -> None:
    full = ranked_classes(train, labels, test, k=9, weighting=weighting)
    assert torch.equal(full, ranked_classes(train, labels, test, k=9, weighting=weighting, chunk=chunk))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(chunk))
    assert torch.equal(full, ranked_classes(train[order], labels[order], test, k=9, weighting=weighting))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**20), st.sampled_from(WEIGHTINGS), st.integers(1, 14))
def test_chunks_and_order_of_train_rows_do_not_matter(
    seed: int, weighting: Literal["cosine", "l2"], chunk: int
) -> None:
    train, labels, test, _ = problem(seed, 50, 3, 6)
    assert_chunks_and_order_do_not_matter(train, labels, test, weighting, chunk)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**20), st.integers(1, 14))
def test_chunks_and_order_do_not_matter_among_duplicates_with_other_labels(seed: int, chunk: int) -> None:
    train, labels, test, _ = problem(seed, 50, 3, 6)
    twice = torch.cat([train, train[:25]]).mul(2).round()
    assert_chunks_and_order_do_not_matter(
        twice, torch.cat([labels, labels[:25].roll(7)]), test.mul(2).round(), "l2", chunk
    )


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_float32_agrees_with_float64(weighting: Literal["cosine", "l2"]) -> None:
    """Far from the origin too, where the expanded square of a distance would cancel to noise."""
    train, labels, test, _ = problem(3, 400, 16, 10)
    offset = 0.0 if weighting == "cosine" else 3000.0
    exact = ranked_classes(train, labels, test, weighting=weighting)[:, 0]
    shifted = (train + offset).float(), (test + offset).float()
    assert torch.equal(ranked_classes(shifted[0], labels, shifted[1], weighting=weighting)[:, 0], exact)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**20), st.integers(1, 40), st.integers(1, 12), st.sampled_from(WEIGHTINGS))
def test_top5_is_at_least_top1(seed: int, k: int, classes: int, weighting: Literal["cosine", "l2"]) -> None:
    figures = knn(*problem(seed, 40, 4, classes), k=k, weighting=weighting)
    assert 0 <= figures["top1"] <= figures["top5"] <= 1
    if k == 1:
        assert figures["top5"] == figures["top1"]  # one neighbour names one class


def test_a_class_without_a_vote_is_never_a_hit() -> None:
    """Three classes fit in five places, yet only those among the neighbours may be named."""
    train = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0]])
    figures = knn(train, torch.tensor([0, 1, 2]), torch.tensor([[1.0, 0.0]]), torch.tensor([2]), k=2)
    assert figures == {"top1": 0.0, "top5": 0.0}
    assert (
        knn(train, torch.tensor([0, 1, 2]), torch.tensor([[1.0, 0.0]]), torch.tensor([2]), k=3)["top5"] == 1
    )


def test_labels_may_be_any_whole_numbers() -> None:
    train, labels, test, _ = problem(0, 60, 3, 4)
    names = torch.tensor([7, 40, 41, 1000])
    assert torch.equal(
        ranked_classes(train, names[labels], test, k=60), names[ranked_classes(train, labels, test, k=60)]
    )


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**20), st.integers(1, 8), st.sampled_from(WEIGHTINGS))
def test_leaving_oneself_out_equals_removing_the_row(
    seed: int, k: int, weighting: Literal["cosine", "l2"]
) -> None:
    rows, labels, _, _ = problem(seed, 12, 3, 4)
    ranked = ranked_classes(rows, labels, rows, k=k, weighting=weighting, exclude_self=True, chunk=5)
    for i in range(len(rows)):
        rest = torch.arange(len(rows)) != i
        single = ranked_classes(rows[rest], labels[rest], rows[i : i + 1], k=k, weighting=weighting)[0]
        assert [c for c in ranked[i].tolist() if c >= 0] == [c for c in single.tolist() if c >= 0]


def test_votes_too_large_for_a_float_still_count() -> None:
    """exp(1 / 0.005) overflows float32; three neighbours at cosine 0.999 still outvote one at 1: 3 exp(-0.2)
    > 1."""
    pair = [0.999, (1 - 0.999**2) ** 0.5]
    train, labels = torch.tensor([[1.0, 0.0], pair, pair, pair]), torch.tensor([0, 1, 1, 1])
    assert ranked_classes(train, labels, train[:1], temperature=0.005).tolist() == [[1, 0]]
    assert ranked_classes(train, labels, train[:1], temperature=0.0005).tolist() == [[0, 1]]


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, classes = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float(), torch.from_numpy(classes).long()
    rest, holdout = stratified_split(y, 0.3, 0)
    return x[rest], y[rest], x[holdout], y[holdout]


def test_digits_agree_with_sklearn() -> None:
    train, labels, test, truth = digits()
    classifier = KNeighborsClassifier(1, algorithm="brute").fit(train.numpy(), labels.numpy())
    assert knn(train, labels, test, truth, k=1, weighting="l2")["top1"] == classifier.score(
        test.numpy(), truth.numpy()
    )
    votes: Any = lambda distance: np.exp((1 - distance) / 0.07)
    weighted = KNeighborsClassifier(20, metric="cosine", weights=votes, algorithm="brute")
    expected = weighted.fit(train.numpy(), labels.numpy()).score(test.numpy(), truth.numpy())
    assert knn(train, labels, test, truth)["top1"] == expected


def test_probe_is_knn_on_its_split() -> None:
    train, labels, _, _ = digits()
    rest, holdout = stratified_split(labels, 0.25, 5)
    expected = knn(train[rest], labels[rest], train[holdout], labels[holdout], k=3, temperature=0.1)["top1"]
    assert knn_probe(train, labels, 0.25, seed=5, k=3, temperature=0.1) == expected
    assert expected > 0.9


@pytest.mark.parametrize(
    ("knobs", "message"), [({"k": 0}, "k was 0"), ({"temperature": 0.0}, "temperature was 0")]
)
def test_impossible_settings_are_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        knn(*problem(0, 10, 3, 2), **knobs)


def test_a_probe_needs_a_class_of_two() -> None:
    with pytest.raises(UserError, match="two images of some class"):
        knn_probe(torch.eye(4), torch.arange(4))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=80), st.floats(0.05, 0.9), st.integers(0, 2**40))
def test_split_is_stratified_and_whole(raw: list[int], share: float, seed: int) -> None:
    labels = torch.tensor(raw)
    rest, holdout = stratified_split(labels, share, seed)
    assert sorted([*rest.tolist(), *holdout.tolist()]) == list(range(len(raw)))
    assert all(a < b for part in (rest, holdout) for a, b in pairwise(part.tolist()))
    for label in set(raw):
        count, out = raw.count(label), int((labels[holdout] == label).sum())
        assert (out == 0) if count == 1 else 1 <= out < count
        assert count == 1 or abs(out - share * count) <= 1
    assert all(map(torch.equal, stratified_split(labels, share, seed), (rest, holdout)))


def test_split_depends_on_the_seed() -> None:
    labels = torch.arange(200) % 4
    assert not torch.equal(stratified_split(labels, 0.2, 0)[1], stratified_split(labels, 0.2, 1)[1])
