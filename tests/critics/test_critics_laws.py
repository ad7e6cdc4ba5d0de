"""One suite for every critic: `cross` is `pairs` of every pair, streamed or dense; then each formula."""

from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nearfar as nf
from nearfar.config.resolving import resolve
from nearfar.core.abstract import is_inner_product
from nearfar.core.schedules import START
from nearfar.core.scores import Candidates, Streamed
from nearfar.parts.critics import PARTS
from nearfar.run.trained import fresh_method

NETWORKS = ("bilinear", "separable", "joint", "hybrid")


def make(name: str, dim: int | tuple[int, int]) -> Any:
    critic: Any = PARTS[name](dim=dim) if name in NETWORKS else PARTS[name]()
    return critic.double() if name in NETWORKS else critic


@pytest.mark.parametrize("name", PARTS)
@given(n=st.integers(1, 6), m=st.integers(1, 6), dim=st.integers(1, 5), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_cross_is_pairs_of_every_pair(name: str, n: int, m: int, dim: int, seed: int) -> None:
    torch.manual_seed(seed)
    critic = make(name, dim)
    u = critic.prepare(torch.randn(n, dim, dtype=torch.float64))
    v = critic.prepare(torch.randn(m, dim, dtype=torch.float64))
    one_by_one = torch.stack([critic.pairs(u, v[j : j + 1].expand(n, dim), START) for j in range(m)], dim=1)
    torch.testing.assert_close(critic.cross(u, v, START), one_by_one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_critic_s_own_weights_learn_through_streamed_scores(name: str) -> None:
    torch.manual_seed(0)
    critic = make(name, (3, 4))
    u, v = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)
    index = torch.arange(7)
    candidates = Candidates(v, index)
    gradients = []
    scored = [Streamed(u, index, candidates, tile, lambda a, k: critic.cross(a, k, START)) for tile in (2, 7)]
    if is_inner_product(critic):
        first, right = critic.factors(u, v, START)
        scored.append(Streamed(first, index, Candidates(right, index), 2))
    for streamed in scored:
        value = nf.InfoNCE()(nf.Scores(critic.pairs(u, v, START)[:, None], streamed))
        gradients.append(torch.autograd.grad(value, list(critic.parameters()), allow_unused=True))
    assert any(g is not None and g.abs().sum() > 0 for g in gradients[0])
    for full, *rest in zip(*gradients, strict=True):
        for tiled in rest:
            assert (tiled is None) == (full is None)
            if tiled is not None:
                torch.testing.assert_close(tiled, full)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_zero_initialised_critic_is_constant_and_can_learn(name: str) -> None:
    torch.manual_seed(0)
    critic: Any = PARTS[name](dim=(3, 4), starts_at_zero=True)
    scores = critic.cross(torch.randn(5, 3), torch.randn(5, 4), START)
    assert (scores == 0).all()
    (scores.diagonal() - scores.logsumexp(1)).mean().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in critic.parameters())


def test_distance_of_unit_vectors_is_cosine_up_to_a_constant() -> None:
    """-|u - v|^2 = 2 cos(u, v) - 2."""
    u, v = torch.randn(2, 6, 4, dtype=torch.float64)
    distance, cosine = nf.Distance(0.2), nf.Cosine(0.1)
    u, v = distance.prepare(u), distance.prepare(v)
    torch.testing.assert_close(distance.cross(u, v, START), cosine.cross(u, v, START) - 2 / 0.2)


def test_distance_without_normalisation_is_euclidean() -> None:
    u, v = torch.randn(3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    distance = nf.Distance(unit=False)
    expected = -torch.cdist(distance.prepare(u), distance.prepare(v)).square()
    torch.testing.assert_close(distance.cross(u, v, START), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: nf.Separable(hidden=0, dim=3), "critic.hidden was 0"),
        (lambda: nf.Joint(layers=0, dim=3), "critic.layers was 0"),
        (
            lambda: nf.Separable(activation=cast(Any, "tanh"), dim=3),
            "critic.activation was 'tanh'; expected relu, silu",
        ),
        (
            lambda: nf.Joint(activation=cast(Any, "tanh"), dim=3),
            "critic.activation was 'tanh'; expected relu, silu",
        ),
        (lambda: nf.Distance(temperature=0.0), "temperature was 0;"),
    ],
)
def test_bad_settings_get_a_sentence(build: object, sentence: str) -> None:
    with pytest.raises(nf.UserError, match=sentence.replace(".", r"\.")):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("name", PARTS)
def test_every_critic_works_in_a_recipe_by_name(name: str) -> None:
    """Any part works with any other: simclr with this critic gives a loss and a gradient for its weights."""
    settings = resolve("simclr", "DATA", {}, {"critic": name, "backbone": "resnet8-w16"})
    method: Any = fresh_method(settings, settings.modality.reader.example_description(8))
    torch.manual_seed(0)
    outcome = method(nf.Batch((torch.randn(8, 3, 32, 32), torch.randn(8, 3, 32, 32)), torch.arange(8)))
    outcome.loss.backward()
    assert torch.isfinite(outcome.loss)
    if name in NETWORKS:
        assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in method.critic.parameters())
