"""Discrete information: the laws of Sáez Maldonado 2021, ch. 3, scipy, scikit-learn, and invalid inputs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score

import nearfar as nf

info = nf.info
laws = settings(max_examples=60, deadline=None)


@st.composite
def distributions(draw: st.DrawFn, *shape: int) -> np.ndarray:
    """Counts over their sum: zeros, near-certainties and ties all occur."""
    size = math.prod(shape)
    counts = np.array(draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 5, 1000]), min_size=size, max_size=size)))
    if counts.sum() == 0:
        counts[draw(st.integers(0, size - 1))] = 1
    return (counts / counts.sum()).reshape(shape)


def joints() -> st.SearchStrategy[np.ndarray]:
    return st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(lambda shape: distributions(*shape))


def lists() -> st.SearchStrategy[np.ndarray]:
    return st.integers(1, 8).flatmap(distributions)


pairs = st.integers(1, 8).flatmap(lambda n: st.tuples(distributions(n), distributions(n)))


@laws
@given(p=lists())
def test_entropy_lies_between_zero_and_log_n(p: np.ndarray) -> None:
    """Sáez Maldonado 2021, Prop. 2."""
    assert 0 <= info.entropy(p) <= math.log(len(p)) + 1e-12
    assert info.entropy(np.full(len(p), 1 / len(p))) == pytest.approx(math.log(len(p)), abs=1e-12)
    assert info.entropy(np.eye(len(p))[0]) == 0


@laws
@given(pair=pairs)
def test_values_are_scipys(pair: tuple[np.ndarray, np.ndarray]) -> None:
    p, q = pair
    assert info.entropy(p) == pytest.approx(scipy.stats.entropy(p), abs=1e-12)
    assert info.entropy(p, base=2) == pytest.approx(scipy.stats.entropy(p, base=2), abs=1e-12)
    assert info.kl(p, q) == pytest.approx(scipy.stats.entropy(p, q), abs=1e-12)


@laws
@given(pair=pairs)
def test_kl_is_zero_only_between_equals_and_completes_cross_entropy(
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    p, q = pair
    assert info.kl(p, p) == pytest.approx(0, abs=1e-15)
    # Pinsker: KL >= |p - q|_1^2 / 2, which is zero only if p = q
    assert info.kl(p, q) >= np.abs(p - q).sum() ** 2 / 2 - 1e-12
    assert info.cross_entropy(p, q) == pytest.approx(info.entropy(p) + info.kl(p, q), abs=1e-12)
    assert math.isinf(info.kl(p, q)) == bool(((q == 0) & (p > 0)).any())


@laws
@given(joint=joints())
def test_chain_rule(joint: np.ndarray) -> None:
    """H(X, Y) = H(X) + H(Y | X) = H(Y) + H(X | Y)."""
    x, y = joint.sum(axis=1), joint.sum(axis=0)
    full = info.entropy(joint)
    assert full == pytest.approx(info.entropy(x) + info.conditional_entropy(joint, given="x"), abs=1e-12)
    assert full == pytest.approx(info.entropy(y) + info.conditional_entropy(joint), abs=1e-12)


@laws
@given(joint=joints())
def test_conditional_entropy_is_the_mean_over_the_condition(joint: np.ndarray) -> None:
    """Sáez Maldonado 2021, Def. 3.1.2, by its first line: sum_y p(y) H(X | Y = y)."""
    columns = [(column.sum(), column / column.sum()) for column in joint.T if column.sum() > 0]
    expected = sum(weight * scipy.stats.entropy(column) for weight, column in columns)
    assert info.conditional_entropy(joint) == pytest.approx(expected, abs=1e-12)
    x, y = joint.sum(axis=1), joint.sum(axis=0)
    assert 0 <= info.conditional_entropy(joint) <= info.entropy(x) + 1e-12  # Prop. 3
    # 0 where y determines x, the entropy of x under independence: the thesis has independence for both
    assert info.conditional_entropy(np.diag(x)) == pytest.approx(0, abs=1e-12)
    assert info.conditional_entropy(np.outer(x, y)) == pytest.approx(info.entropy(x), abs=1e-12)


@laws
@given(joint=joints())
def test_mutual_information_is_uncertainty_removed(joint: np.ndarray) -> None:
    """Sáez Maldonado 2021, Def. 3.1, Eq. 4 and Cor. 1 (iii)."""
    x, y = joint.sum(axis=1), joint.sum(axis=0)
    value = info.mutual_information(joint)
    assert value >= 0
    assert value == pytest.approx(info.entropy(x) - info.conditional_entropy(joint), abs=1e-12)
    assert value == pytest.approx(info.kl(joint, np.outer(x, y)), abs=1e-12)
    assert value == pytest.approx(info.mutual_information(joint.T), abs=1e-12)


@laws
@given(joint=joints())
def test_mutual_information_is_zero_only_under_independence(joint: np.ndarray) -> None:
    """Sáez Maldonado 2021, Cor. 1 (ii), with Pinsker's inequality for the way back."""
    independent = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    assert info.mutual_information(independent) == pytest.approx(0, abs=1e-12)
    assert info.mutual_information(joint) >= np.abs(joint - independent).sum() ** 2 / 2 - 1e-12


@laws
@given(joint=joints(), seed=st.integers(0, 1000))
def test_a_channel_adds_no_information(joint: np.ndarray, seed: int) -> None:
    """Data processing: X - Y - Z gives I(X, Z) <= I(X, Y)."""
    channel = np.random.default_rng(seed).dirichlet(np.full(4, 0.3), size=joint.shape[1])
    assert info.mutual_information(joint @ channel) <= info.mutual_information(joint) + 1e-12


@laws
@given(joint=joints(), seed=st.integers(0, 1000))
def test_names_of_outcomes_do_not_matter(joint: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    renamed = rng.permutation(rng.permutation(joint, axis=0), axis=1)
    for quantity in (info.entropy, info.mutual_information, info.conditional_entropy):
        assert quantity(renamed) == pytest.approx(quantity(joint), abs=1e-12)


@laws
@given(p=st.integers(3, 8).flatmap(distributions))
def test_grouping(p: np.ndarray) -> None:
    """Shannon's third axiom: H(p) = H(p1 + p2, p3, ...) + (p1 + p2) H(p1, p2 given either)."""
    share = p[0] + p[1]
    inside = info.entropy(p[:2] / share) if share > 0 else 0.0
    assert info.entropy(p) == pytest.approx(info.entropy([share, *p[2:]]) + share * inside, abs=1e-12)


@laws
@given(seed=st.integers(0, 1000), size=st.integers(1, 60))
def test_mutual_information_of_counts_is_scikit_learns(seed: int, size: int) -> None:
    x, y = np.random.default_rng(seed).integers(0, 4, (2, size))
    counts = np.zeros((4, 4))
    np.add.at(counts, (x, y), 1)
    assert info.mutual_information(counts / size) == pytest.approx(mutual_info_score(x, y), abs=1e-12)


def test_units_and_kinds_of_input() -> None:
    coin = [0.5, 0.5]
    assert info.entropy(coin, base=2) == pytest.approx(1)
    same = [[0.5, 0.0], [0.0, 0.5]]
    for kind in (np.array, torch.tensor, lambda p: torch.tensor(p, dtype=torch.bfloat16, requires_grad=True)):
        value = info.mutual_information(kind(same), base=2)
        assert type(value) is float
        assert value == pytest.approx(1)
    single = np.full(1000, 0.001, dtype=np.float32)  # sums to one within rounding only
    assert info.entropy(single) <= math.log(1000) + 1e-12


def test_tiny_marginals_do_not_underflow() -> None:
    joint = [[1e-200, 0.0], [0.0, 1.0]]
    assert 0 <= info.mutual_information(joint) < 1e-190


BAD: list[tuple[Callable[..., float], tuple[Any, ...], str]] = [
    (info.entropy, ([-0.5, 1.5],), "p holds -0.5; probabilities are never negative"),
    (info.entropy, ([math.nan, 1.0],), "p holds nan; probabilities are finite"),
    (info.entropy, ([0.5, 0.6],), "p sums to 1.1; probabilities sum to 1"),
    (info.entropy, ([3, 5],), "p sums to 8"),
    (info.entropy, ([],), "p was empty"),
    (info.entropy, (1.0,), "p was a single number"),
    (info.entropy, ("half and half",), "p was 'half and half'; it must be an array of numbers"),
    (info.entropy, (["0.5", "0.5"],), "it must be an array of numbers"),
    (info.entropy, ([[0.5], [0.25, 0.25]],), "it must be an array of numbers"),
    (info.entropy, (None,), "p was None"),
    (info.entropy, ([1e308, 1e308],), "p sums to inf"),
    (info.entropy, (["several", ["lines\n"]] * 9,), "it must be an array of numbers"),
    (info.entropy, (torch.tensor([0.5, 0.5]).to_sparse(),), "it must be an array of numbers"),
    (info.kl, ([0.5, 0.5], [1.0]), r"same outcomes; their shapes were \(2,\) and \(1,\)"),
    (info.kl, ([0.5, 0.5], [0.5, math.inf]), "q holds inf"),
    (info.mutual_information, ([0.5, 0.5],), r"joint must be a matrix p\(x, y\); its shape was \(2,\)"),
    (info.conditional_entropy, ([[0.5, 0.5]], "z"), "given was 'z'; expected x"),
    (info.entropy, ([1.0], 1), "base was 1; expected a number above 1"),
    (info.entropy, ([1.0], "bits"), "base was 'bits'"),
]


@pytest.mark.parametrize(("function", "arguments", "sentence"), BAD, ids=[b[2][:30] for b in BAD])
def test_bad_input_gets_one_sentence(
    function: Callable[..., float], arguments: tuple[Any, ...], sentence: str
) -> None:
    with pytest.raises(nf.UserError, match=sentence) as problem:
        function(*arguments)
    assert "\n" not in str(problem.value)


def test_zero_has_no_minus_sign() -> None:
    assert [str(info.entropy([1, 0])), str(info.kl([1, 0], [1, 0]))] == ["0.0", "0.0"]
