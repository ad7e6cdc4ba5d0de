"""Song & Ermon 2020, App. C.1 in closed form equals enumeration of every batch and draw of negatives."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import nearfar as nf
from nearfar.studies.binary import BatchMoments, Coins, NegativeSource, binomial


def enumerated(coins: Coins, alpha: float, multi: bool) -> BatchMoments:
    """Every batch and every choice of negatives, each with its probability: Eq. 4 and 6."""
    n, m, beta = coins.n, coins.m, (coins.m - alpha) / (coins.m - 1)
    chance = {0: 1 - coins.p, 1: coins.p}
    extra = 0 if coins.negatives == "batch" else n * (m - 1)
    values, weights = [], []
    for flips in itertools.product((0, 1), repeat=n + extra):
        batch, draws = flips[:n], flips[n:]
        g = np.array([1 / chance[x] for x in batch])
        if coins.negatives == "batch":
            negatives_of = [[batch[j] for j in range(n) if j != i] for i in range(n)]
        else:
            negatives_of = [list(draws[i * (m - 1) : (i + 1) * (m - 1)]) for i in range(n)]
        negative = np.array([g[i] * sum(y == batch[i] for y in negatives_of[i]) for i in range(n)])
        if multi:
            terms = np.log(n * m * g / (alpha * g.sum() + beta * negative.sum()))
        else:
            terms = np.log(m * g / (alpha * g + beta * negative))
        values.append(terms.mean())
        weights.append(math.prod(chance[x] for x in flips))
    mean = float(np.dot(values, weights))
    return BatchMoments(mean, float(np.dot((np.array(values) - mean) ** 2, weights)))


sizes = st.one_of(
    st.integers(2, 8).map(lambda n: (n, n, "batch")),
    st.sampled_from([(n, m, "independent") for n in range(1, 6) for m in range(2, 6) if n * m <= 12]),
)


@given(size=sizes, alpha=st.floats(0.02, 1.0), p=st.sampled_from([0.5, 0.2, 0.7]), multi=st.booleans())
@settings(max_examples=60, deadline=None)
def test_mean_and_variance_are_those_of_all_batches(
    size: tuple[int, int, NegativeSource], alpha: float, p: float, multi: bool
) -> None:
    n, m, negatives = size
    coins = Coins(n, m, p, negatives)
    moments = coins.ml_cpc(alpha) if multi else coins.cpc(alpha)
    expected = enumerated(coins, alpha, multi)
    assert moments.mean == pytest.approx(expected.mean, abs=1e-12)
    assert moments.variance == pytest.approx(expected.variance, abs=1e-12)


def test_values_of_the_example() -> None:
    """Song & Ermon 2020, Example 1: L_0.5 exceeds the information; exact to 1e-6."""
    three = Coins(3, 3)
    assert three.information == pytest.approx(math.log(2), abs=1e-15)
    assert three.smallest_proven == pytest.approx(3 / 7)
    assert three.cpc(0.5).mean == pytest.approx(0.717438, abs=1e-6)
    assert three.ml_cpc(3 / 7).mean == pytest.approx(0.635473, abs=1e-6)
    assert three.cpc(0.5).mean > math.log(2) > three.cpc(1.0).mean


@pytest.mark.parametrize("negatives", ["batch", "independent"])
def test_ml_cpc_within_its_range_never_exceeds_the_information(negatives: NegativeSource) -> None:
    """Song & Ermon 2020, Cor. 2 for every n = m up to 128; below the range it does exceed it."""
    for n in range(2, 129):
        coins = Coins(n, n, 0.5, negatives)
        edge = coins.smallest_proven
        for alpha in (edge, (edge + 1) / 2, 1.0):
            assert coins.ml_cpc(alpha).mean <= coins.information
    eight = Coins(8, 8, 0.5, negatives)
    assert eight.ml_cpc(0.3 * eight.smallest_proven).mean > eight.information


@pytest.mark.parametrize(("negatives", "share"), [("batch", 0.667), ("independent", 0.557)])
def test_the_edge_of_the_range_is_not_sharp_for_this_coin(negatives: NegativeSource, share: float) -> None:
    """Song & Ermon 2020, Eq. 8 at n = m = 3: exceeded only below a share of the least alpha."""
    three = Coins(3, 3, 0.5, negatives)
    assert three.ml_cpc((share + 0.001) * three.smallest_proven).mean < three.information
    assert three.ml_cpc((share - 0.001) * three.smallest_proven).mean > three.information


@given(p=st.floats(0.05, 0.95), n=st.integers(1, 9), m=st.integers(2, 9))
@settings(max_examples=30, deadline=None)
def test_ml_cpc_with_independent_negatives_is_proven_for_any_coin(p: float, n: int, m: int) -> None:
    coins = Coins(n, m, p, "independent")
    if coins.smallest_proven <= 1:
        assert coins.ml_cpc(coins.smallest_proven).mean <= coins.information + 1e-12


def test_an_unfair_half_agrees_with_the_fair_shortcut() -> None:
    """p = 1/2 goes by one binomial, all other p by two: they meet."""
    fair, nearly = Coins(5, 4, 0.5, "independent"), Coins(5, 4, 0.5 + 1e-9, "independent")
    assert fair.ml_cpc(0.4).mean == pytest.approx(nearly.ml_cpc(0.4).mean, abs=1e-7)
    assert fair.ml_cpc(0.4).variance == pytest.approx(nearly.ml_cpc(0.4).variance, abs=1e-7)


@pytest.mark.parametrize("trials", [0, 1, 7, 16_256])
def test_binomial_is_scipys_and_sums_to_one(trials: int) -> None:
    counts, chance = binomial(trials, 0.3)
    np.testing.assert_allclose(chance, scipy.stats.binom.pmf(counts, trials, 0.3), rtol=1e-9)
    assert chance.sum() == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"n": 0}, "n=0, m=3, p=0.5; expected n from 1"),
        ({"m": 1, "n": 1}, "m from 2"),
        ({"p": 1.0}, "p from 1e-9 to 1 - 1e-9"),
        ({"n": 4}, "n=4, m=3: negatives from the batch are the n - 1 others"),
    ],
)
def test_impossible_coins_are_refused(wrong: dict[str, float], sentence: str) -> None:
    options = {"n": 3, "m": 3, "p": 0.5, **wrong}
    with pytest.raises(nf.UserError, match=sentence):
        Coins(int(options["n"]), int(options["m"]), options["p"])
