"""Scores: dense and streamed forms give the same numbers as a loop over pairs."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import nearfar as nf
from nearfar.core.kernels import inner, matches
from nearfar.core.scores import EMPTY, UNKNOWN, Candidates, Dense, Negatives, Streamed
from nearfar.errors import UserError

REDUCTIONS: dict[str, Callable[[Dense | Streamed], Tensor]] = {
    "logsumexp": lambda n: n.logsumexp(),
    "count": lambda n: n.count(),
    "mean_of": lambda n: n.mean_of(lambda s: s.square() + s),
    "hardest": lambda n: n.hardest(),
}


# inner products have a written-out backward pass; other critics use checkpoints
CRITICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"inner": inner, "any": lambda a, k: a @ k.T}


def brute_force(name: str, values: list[float]) -> float:
    """Each reduction over the kept scores of one anchor, by plain arithmetic."""
    if name == "count":
        return len(values)
    if name == "mean_of":
        return sum(v * v + v for v in values) / len(values) if values else 0.0
    if not values:
        return -math.inf
    if name == "hardest":
        return max(values)
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Candidates]:
    anchors, keys, dim = draw(st.integers(1, 9)), draw(st.integers(0, 12)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    ids = draw(st.lists(st.integers(EMPTY, 5), min_size=keys, max_size=keys))
    a = torch.randn(anchors, dim, generator=generator, dtype=torch.float64)
    k = torch.randn(keys, dim, generator=generator, dtype=torch.float64)
    own_ids = torch.randint(0, 5, (anchors,), generator=generator)
    return a, k, own_ids, Candidates(k, torch.tensor(ids, dtype=torch.long))


@pytest.mark.parametrize("name", REDUCTIONS)
@given(problem=problems(), tile=st.integers(1, 10))
@settings(max_examples=60, deadline=None)
def test_reductions_equal_a_loop_over_pairs(
    name: str, problem: tuple[Tensor, Tensor, Tensor, Candidates], tile: int
) -> None:
    anchors, keys, own_ids, candidates = problem
    dense = Dense(anchors @ keys.T, candidates.negative_mask(own_ids))
    forms: list[Dense | Streamed] = [dense]
    forms += [Streamed(anchors, own_ids, candidates, tile, score) for score in CRITICS.values()]
    expected = []
    for i in range(len(anchors)):
        stranger = [
            j for j, second in enumerate(candidates.index.tolist()) if second not in (own_ids[i], EMPTY)
        ]
        expected.append(brute_force(name, [float(anchors[i] @ keys[j]) for j in stranger]))
    for negatives in forms:
        got = REDUCTIONS[name](negatives).double()
        torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["logsumexp", "mean_of", "hardest"])
@pytest.mark.parametrize("tile", [1, 3, 100])
@pytest.mark.parametrize("critic", CRITICS)
def test_streamed_gradients_equal_dense_ones(name: str, tile: int, critic: str) -> None:
    torch.manual_seed(0)
    own_ids = torch.arange(7)
    ids = torch.tensor([0, 1, 2, EMPTY, UNKNOWN, 5, 9, 6])
    gradients = []
    for streamed in (False, True):
        a = torch.randn(
            7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        ).requires_grad_()
        k = torch.randn(
            8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
        ).requires_grad_()
        candidates = Candidates(k, ids)
        negatives = (
            Streamed(a, own_ids, candidates, tile, CRITICS[critic])
            if streamed
            else Dense(a @ k.T, candidates.negative_mask(own_ids))
        )
        weights = torch.arange(1.0, 8.0, dtype=torch.float64)
        gradients.append(torch.autograd.grad((REDUCTIONS[name](negatives) * weights).sum(), (a, k)))
    for dense, second in zip(*gradients, strict=True):
        torch.testing.assert_close(second, dense, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tile", [1, 3, 100])
@pytest.mark.parametrize("critic", CRITICS)
def test_mean_of_reads_columns_per_anchor(tile: int, critic: str) -> None:
    """Numbers per anchor are passed with its scores and get their gradient, dense and streamed alike."""
    own_ids, ids = torch.arange(7), torch.tensor([0, 1, 2, EMPTY, UNKNOWN, 5, 9, 6])
    results = []
    for streamed in (False, True):
        a, k = (
            torch.randn(
                n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n)
            ).requires_grad_()
            for n in (7, 8)
        )
        column = torch.linspace(-1, 1, 7, dtype=torch.float64).requires_grad_()
        second = torch.arange(1.0, 8.0, dtype=torch.float64)
        candidates = Candidates(k, ids)
        negatives = (
            Streamed(a, own_ids, candidates, tile, CRITICS[critic])
            if streamed
            else Dense(a @ k.T, candidates.negative_mask(own_ids))
        )
        means = negatives.mean_of(lambda s, c, w: w * (s - c).square(), column, second)
        results.append((means, *torch.autograd.grad(means.sum(), (a, k, column))))
    scores, mask = Dense(a @ k.T, candidates.negative_mask(own_ids)).matrix()
    for i in range(7):
        choice = scores[i][mask[i]]
        torch.testing.assert_close(results[0][0][i], (second[i] * (choice - column[i]) ** 2).mean())
        torch.testing.assert_close(results[0][3][i], (-2 * second[i] * (choice - column[i])).mean())
    for dense, tiled in zip(*results, strict=True):
        torch.testing.assert_close(tiled, dense, rtol=1e-12, atol=1e-12)


@given(problem=problems(), tile=st.integers(1, 10))
@settings(max_examples=60, deadline=None)
def test_written_out_gradients_are_those_of_autograd(
    problem: tuple[Tensor, Tensor, Tensor, Candidates], tile: int
) -> None:
    """d lse / d u = sum_k p_k v_k and d lse / d v_k = p_k u, p the softmax over the mask; 0 without any."""
    anchors, keys, own_ids, candidates = problem
    a, k = anchors.requires_grad_(), keys.requires_grad_()
    dense = Dense(a @ k.T, candidates.negative_mask(own_ids)).logsumexp()
    streamed = Streamed(a, own_ids, Candidates(k, candidates.index), tile).logsumexp()
    weights = torch.linspace(-1, 2, len(a), dtype=torch.float64)
    result, expected = (
        torch.autograd.grad((torch.logaddexp(value, torch.zeros_like(value)) * weights).sum(), (a, k))
        for value in (streamed, dense)
    )
    for one, second in zip(result, expected, strict=True):
        torch.testing.assert_close(one, second.nan_to_num(0.0), rtol=1e-10, atol=1e-12)


def test_written_out_gradients_pass_gradcheck_and_reach_only_inputs_that_need_them() -> None:
    own_ids, ids = torch.arange(5), torch.tensor([3, EMPTY, 0, UNKNOWN, 0, 9])
    a, k = (torch.randn(n, 3, dtype=torch.float64).requires_grad_() for n in (5, 6))
    assert torch.autograd.gradcheck(
        lambda u, v: Streamed(u, own_ids, Candidates(v, ids), 2).logsumexp(), (a, k)
    )
    Streamed(a, own_ids, Candidates(k.detach(), ids), 2).logsumexp().sum().backward()  # as for a queue
    assert a.grad is not None
    assert k.grad is None
    Streamed(a.detach(), own_ids, Candidates(k, ids), 2).logsumexp().sum().backward()
    assert k.grad is not None


@pytest.mark.parametrize("selected", [False, True])
@pytest.mark.parametrize("learned_keys", [False, True])
def test_the_second_derivative_of_streamed_scores_is_that_of_dense_ones(
    learned_keys: bool, selected: bool
) -> None:
    """Also of an anchor without negatives (the last one) and of an empty slot."""
    torch.manual_seed(0)
    own_ids, ids = torch.tensor([0, 1, 7]), torch.tensor([0, 5, EMPTY, 7, 7, 8])
    anchors, keys = torch.randn(3, 2, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    results = []
    for streamed in (False, True):
        u, v = anchors.clone().requires_grad_(), keys.clone().requires_grad_(learned_keys)
        candidates = Candidates(v, ids)
        negatives: Negatives = (
            Streamed(u, own_ids, candidates, 2)
            if streamed
            else Dense(u @ v.T, candidates.negative_mask(own_ids))
        )
        if selected:
            negatives = nf.Ring(0.3, 0.8)(nf.Scores(torch.zeros(3, 1), negatives)).negative
        leaves = [u, v] if learned_keys else [u]
        first = torch.autograd.grad(negatives.logsumexp().square().sum(), leaves, create_graph=True)
        penalty = torch.stack([gradient.square().sum() for gradient in first]).sum()
        results.append([*first, *torch.autograd.grad(penalty, leaves)])
    for one, second in zip(*results, strict=True):
        torch.testing.assert_close(one, second)


def test_keys_of_another_precision_use_the_general_path() -> None:
    a, k = torch.randn(5, 3).bfloat16(), torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        streamed, dense = (
            nf.InfoNCE()(scores(a, k, 0.5)) for scores in (nf.streamed_scores, nf.dense_scores)
        )
    torch.testing.assert_close(streamed.float(), dense.float(), atol=0.02, rtol=0.02)


@given(firsts=st.lists(st.integers(0, 6), max_size=9), seconds=st.lists(st.integers(-2, 6), max_size=9))
def test_matches_are_the_pairs_that_are_equal(firsts: list[int], seconds: list[int]) -> None:
    rows, columns = matches(torch.tensor(firsts, dtype=torch.long), torch.tensor(seconds, dtype=torch.long))
    pairs = [(i, j) for i, a in enumerate(firsts) for j, b in enumerate(seconds) if a == b]
    assert sorted(zip(rows.tolist(), columns.tolist(), strict=True)) == pairs
    assert rows.tolist() == sorted(rows.tolist())


def test_large_scores_do_not_overflow_when_written_out() -> None:
    a = torch.tensor([[300.0], [-300.0]], requires_grad=True)
    value = Streamed(
        a, torch.arange(2), Candidates(torch.tensor([[1.0], [0.5], [2.0]]), torch.tensor([7, 8, 9]))
    ).logsumexp()
    torch.testing.assert_close(value, torch.tensor([600.0, -150.0]))
    (gradient,) = torch.autograd.grad(value.sum(), a)
    torch.testing.assert_close(gradient, torch.tensor([[2.0], [0.5]]))


def test_an_anchor_without_negatives_has_finite_gradients() -> None:
    values = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, False, False], [True, False, True]])
    negatives = Dense(values, mask)
    total = torch.logaddexp(torch.zeros(2, dtype=torch.float64), negatives.logsumexp()).sum()
    (gradient,) = torch.autograd.grad(total + negatives.mean_of(torch.exp).sum(), values)
    assert torch.isfinite(gradient).all()
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] > 0).all()


def test_mean_of_does_not_let_dropped_scores_overflow_into_the_gradient() -> None:
    values = torch.tensor([[1.0, 1e4]], requires_grad=True)
    mean = Dense(values, torch.tensor([[True, False]])).mean_of(torch.exp)
    (gradient,) = torch.autograd.grad(mean.sum(), values)
    torch.testing.assert_close(gradient, torch.tensor([[math.e, 0.0]]))


@given(n=st.integers(1, 20), dim=st.integers(1, 8), tile=st.integers(1, 25), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_in_batch_scores_dense_and_streamed_agree(n: int, dim: int, tile: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, k = torch.randn(2, n, dim, generator=generator, dtype=torch.float64)
    dense = nf.dense_scores(a, k, temperature=0.1)
    streamed = nf.streamed_scores(a, k, temperature=0.1, tile=tile)
    cosine = torch.nn.functional.cosine_similarity(a[:, None], k[None], dim=2) / 0.1
    torch.testing.assert_close(dense.positive[:, 0], cosine.diagonal())
    torch.testing.assert_close(streamed.positive, dense.positive)
    torch.testing.assert_close(streamed.negative.logsumexp(), dense.negative.logsumexp())
    assert (dense.negative.count() == n - 1).all()


@pytest.mark.parametrize("scores", [nf.dense_scores, nf.streamed_scores])
@pytest.mark.parametrize("temperature", [0, -0.1, float("nan")])
def test_in_batch_scores_refuse_a_temperature_that_is_not_positive(scores: Any, temperature: float) -> None:
    with pytest.raises(UserError, match=r"temperature was (0|-0\.1|nan); it must be above 0"):
        scores(torch.ones(2, 2), torch.ones(2, 2), temperature)


def test_a_learned_temperature_gets_its_gradient_either_way() -> None:
    a, k = torch.randn(2, 6, 3, dtype=torch.float64)
    gradients = []
    for scores in (nf.dense_scores, nf.streamed_scores):
        temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        gradients.append(torch.autograd.grad(nf.InfoNCE()(scores(a, k, temperature)), temperature)[0])
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0] != 0


@pytest.mark.parametrize(
    ("positive", "negative", "mask"),
    [
        (torch.zeros(3), torch.zeros(4, 2), None),
        (torch.zeros(3), torch.zeros(3), None),
        (torch.zeros(3, 1, 1), torch.zeros(3, 2), None),
        (torch.zeros(3), torch.zeros(3, 2), torch.ones(3, 1, dtype=torch.bool)),
        (torch.zeros(3), torch.zeros(3, 2), torch.ones(3, 2)),
    ],
)
def test_scores_that_do_not_fit_get_a_sentence(
    positive: Tensor, negative: Tensor, mask: Tensor | None
) -> None:
    with pytest.raises(UserError, match=r"scores need|kept must"):
        nf.Scores.of(positive, negative, mask)
