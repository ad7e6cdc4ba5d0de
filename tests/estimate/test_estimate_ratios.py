"""Ratios that compete: each against its own law, closed forms and brute force; their mixture; what folds make of them."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, multivariate_t, norm, t

import nearfar as nf
from nearfar.core.scores import paired_scores
from nearfar.estimate.crossfit import _level_change, block_statistics, log_mean_mismatched
from nearfar.estimate.ratios import CANDIDATES, SideMap, SideRows, fit_stack
from nearfar.estimate.ratios.densities import fit_log_density
from nearfar.estimate.ratios.gaussian import StudentRatio
from nearfar.estimate.ratios.predictions import MultivariateResidualRatio, ResidualRatio
from nearfar.estimate.ratios.regressions import SplineBasis
from nearfar.estimate.ratios.sides import Ratio, squeeze, swapped
from nearfar.estimate.ratios.stack import UnseenRows, mixture_weights
from nearfar.estimate.ratios.tables import TableRatio
from nearfar.estimate.samples import CanonicalMap
from nearfar.estimate.settings import FAR

RNG = np.random.default_rng(0)
N = 400


def half(values: np.ndarray, discrete: bool = False) -> SideRows:
    values = values.reshape(len(values), -1).astype(float)
    return SideMap.fit(values, np.full(values.shape[1], discrete))(values)


NUMBER = RNG.normal(size=N)
SAMPLES: dict[str, tuple[SideRows, SideRows]] = {
    "numbers": (half(NUMBER), half(NUMBER + RNG.normal(size=N))),
    "numbers with zeros": (half(np.maximum(NUMBER, 0)), half(np.maximum(NUMBER + RNG.normal(size=N), -0.5))),
    "columns": (half(RNG.normal(size=(N, 3))), half(NUMBER)),
    "columns of both": (
        half(NUMBER[:, None] + RNG.normal(size=(N, 8))),
        half(NUMBER[:, None] + RNG.normal(size=(N, 2))),
    ),
    "category and number": (half(RNG.integers(0, 4, N), True), half(NUMBER)),
    "numbers and category": (half(RNG.normal(size=(N, 2))), half(RNG.integers(0, 3, N), True)),
    "categories": (half(RNG.integers(0, 4, N), True), half(RNG.integers(0, 5, N), True)),
}


BEGUN = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Every test draws the same, whichever ran before it in the same process."""
    RNG.bit_generator.state = BEGUN


@pytest.mark.parametrize("sample", SAMPLES)
def test_cross_and_pairs_agree(sample: str) -> None:
    """cross(x, y)[i, i] = pairs(x, y)[i], and cross(x, y)[i, j] = pairs(x[i], y[j])."""
    x, y = SAMPLES[sample]
    fitted, shift = 0, np.roll(np.arange(50), 7)
    for name, fit in CANDIDATES.items():
        ratio = fit(x, y, 0)
        if ratio is None:
            continue
        fitted += 1
        a, b = x[np.arange(50)], y[np.arange(50)]
        all_pairs = ratio.cross(a, b)
        np.testing.assert_allclose(np.diagonal(all_pairs), ratio.pairs(a, b), atol=2e-3, err_msg=name)
        np.testing.assert_allclose(
            all_pairs[np.arange(50), shift], ratio.pairs(a, b[shift]), atol=2e-3, err_msg=name
        )
    assert fitted


@pytest.mark.parametrize("sample", ["numbers", "numbers with zeros", "category and number", "categories"])
def test_ratios_are_density_ratios(sample: str) -> None:
    """Mean one under independence: over all pairs of the rows they were fitted to, to what smoothing leaves open."""
    x, y = SAMPLES[sample]
    for name, fit in CANDIDATES.items():
        ratio = fit(x, y, 0)
        if ratio is not None:
            assert float(np.exp(ratio.cross(x, y)).mean()) == pytest.approx(1, abs=0.12), name


def test_student_is_the_copula_of_a_multivariate_t() -> None:
    """log t_2(z; R, nu) - log t_1(z_1; nu) - log t_1(z_2; nu), z the t-quantiles of the ranks."""
    rho, nu = 0.6, 3.0
    canonical = CanonicalMap(np.zeros(1), np.zeros(1), np.eye(1), np.eye(1), np.array([rho]))
    u, v = norm.ppf(RNG.random((2, 30)))
    x, y = (SideRows.of_numbers(z[:, None], z[:, None]) for z in (u, v))
    z = t.ppf(norm.cdf(np.stack([u, v], axis=1)), nu)
    joint = multivariate_t(shape=[[1, rho], [rho, 1]], df=nu).logpdf(z)
    expected = joint - t.logpdf(z, nu).sum(axis=1)
    # quantiles are interpolated between places 12 / 8192 apart: off by about the square of that, 2e-6, over eight
    np.testing.assert_allclose(StudentRatio(canonical, nu).pairs(x, y), expected, atol=2e-6)


def test_a_table_of_bins_is_dirichlet_s_posterior_mean_both_ways() -> None:
    """A category and a number in bins of equal frequency, here two."""
    counts = np.array([[8, 2], [1, 9]])
    x, y = (
        np.concatenate([np.full(counts[i, j], (i, j)[side]) for i in (0, 1) for j in (0, 1)])
        for side in (0, 1)
    )
    number = y + np.random.default_rng(0).uniform(0, 0.1, 20)
    result = TableRatio.fit(half(x, True), half(number[:, None]), 0, bins=2)
    assert result is not None
    below = number < np.median(number)
    counts = np.array([[(below[x == level] == side).sum() for side in (True, False)] for level in (0, 1)])
    p, q = counts.sum(1) / 20, counts.sum(0) / 20
    for i, j in itertools.product((0, 1), repeat=2):
        by_row = (counts[i, j] + 2 * q[j]) / (counts[i].sum() + 2) / q[j]
        by_column = (counts[i, j] + 2 * p[i]) / (counts[:, j].sum() + 2) / p[i]
        assert result.log_ratio[i, j] == pytest.approx(math.log((by_row + by_column) / 2))
    assert (result.log_ratio[-1] == 0).all()  # a level that was not seen says nothing


def test_absolute_discounting_is_its_formula() -> None:
    """(n_xy - d + d t_x p(y)) / (n_x p(y)), d = n1 / (n1 + 2 n2) of cells met once and twice (Ney et al. 1994), mean over both ways."""
    counts = np.array([[5, 1, 0], [0, 4, 1], [2, 0, 1]])
    x, y = (np.repeat(levels.ravel(), counts.ravel()) for levels in np.indices(counts.shape))
    table = TableRatio.fit(half(x, True), half(y, True), 0, bins=0)
    assert table is not None
    d = 3 / (3 + 2 * 1)
    expected = np.zeros((3, 3))
    for n, add in ((counts, lambda r: r), (counts.T, np.transpose)):
        ratio = np.empty((3, 3))
        for i, j in itertools.product(range(3), range(3)):
            q = n[:, j].sum() / n.sum()
            ratio[i, j] = (max(n[i, j] - d, 0) + d * (n[i] > 0).sum() * q) / (n[i].sum() * q)
        np.testing.assert_allclose(ratio @ (n.sum(axis=0) / n.sum()), 1)  # a density ratio, row by row
        expected += add(ratio) / 2
    np.testing.assert_allclose(np.exp(table.log_ratio[:3, :3]), expected)


def test_weights_climb_the_likelihood_of_the_mixture() -> None:
    """Expectation maximisation against the best of a fine grid, for three ratios."""
    log_r = np.column_stack([np.zeros(200), RNG.normal(size=200), RNG.normal(size=200) - 0.3])
    ours = mixture_weights(log_r)
    grid = [(a, b, 1 - a - b) for a in np.linspace(0, 1, 51) for b in np.linspace(0, 1, 51) if a + b <= 1]
    value = [np.log(np.exp(log_r) @ np.array(w)).mean() for w in grid]
    assert np.log(np.exp(log_r) @ ours).mean() > max(value) - 1e-3
    assert ours.sum() == pytest.approx(1)


def test_the_mixture_finds_what_one_ratio_alone_is_right_about() -> None:
    """A sign of a product: no canonical pair, no level has a mean of its own; a forest finds it. Half the rows find less."""
    x = RNG.normal(size=(900, 2))
    y = np.sign(x[:, 0] * x[:, 1]) * np.where(RNG.random(900) < 0.05, -1, 1)
    a, b = half(x), half(y, True)
    learn, unseen = np.arange(600), np.arange(600, 900)
    stack = fit_stack(a[learn], b[learn], 0)
    assert {"forest", "levels, own spread"} & set(stack.names)
    truth = math.log(2) - nf.info.entropy([0.05, 0.95])
    value = stack.pairs(a[unseen], b[unseen]).mean()
    assert value == pytest.approx(truth, abs=0.12)
    assert stack.weights.sum() == pytest.approx(1)
    assert [half_fit.names for half_fit in stack.halves] == [stack.names] * 2
    assert np.mean([half_fit.pairs(a[unseen], b[unseen]).mean() for half_fit in stack.halves]) < value


def test_unrelated_samples_are_left_to_independence() -> None:
    a, b = (half(side) for side in RNG.normal(size=(2, 900, 4)))
    learn, unseen = np.arange(600), np.arange(600, 900)
    assert abs(fit_stack(a[learn], b[learn], 0).pairs(a[unseen], b[unseen]).mean()) < 0.05


@pytest.mark.parametrize("kind", ["uniform", "normal", "laplace"])
def test_a_density_of_one_number(kind: str) -> None:
    """Mean log density of unseen values, against minus the entropy: 0, log sqrt(2 pi e), log 2e."""
    draw = {
        "uniform": lambda: RNG.random(4000),
        "normal": lambda: RNG.normal(size=4000),
        "laplace": lambda: RNG.laplace(size=4000),
    }
    entropy = {
        "uniform": 0.0,
        "normal": 0.5 * math.log(2 * math.pi * math.e),
        "laplace": math.log(2 * math.e),
    }[kind]
    grid, log_density = fit_log_density(draw[kind]())
    assert np.trapezoid(np.exp(log_density), grid) == pytest.approx(1, abs=0.01)
    assert np.interp(draw[kind](), grid, log_density).mean() == pytest.approx(-entropy, abs=0.03)


def test_splines_add_up_to_one_everywhere() -> None:
    basis = SplineBasis(RNG.normal(size=300), 12)(np.linspace(-9, 9, 50))
    np.testing.assert_allclose(basis.sum(axis=1), 1, atol=1e-12)


def test_a_curve_is_the_sum_of_its_splines() -> None:
    spline = SplineBasis(RNG.normal(size=300), 12)
    coefficient, places = RNG.normal(size=len(spline.penalty)), np.linspace(-9, 9, 50)
    np.testing.assert_allclose(spline.curve(places, coefficient), spline(places) @ coefficient, atol=1e-12)


def test_a_line_has_no_spline_penalty() -> None:
    """Coefficients at the means of three knots make the line itself (Greville), and its slope never changes; a parabola's does."""
    z = RNG.exponential(size=300)
    spline = SplineBasis(z, 12)
    place = np.array([spline.knots[k + 1 : k + 4].mean() for k in range(len(spline.penalty))])
    np.testing.assert_allclose(spline(z) @ place, z, atol=1e-12)
    assert place @ spline.penalty @ place < 1e-12 * (place**2 @ spline.penalty @ place**2)


def test_hard_edges_may_be_blurred() -> None:
    """Uniform noise missed by a little: at most 0.02 nats from the closed form, where histograms with sharp edges and kernels alone lose
    more in most draws (0.020 in the mean of ten, up to 0.046)."""
    losses = []
    for seed in range(4):
        rng, blur = np.random.default_rng(seed), 0.05
        fitted, unseen = (rng.uniform(-1, 1, size) + blur * rng.normal(size=size) for size in (800, 5000))
        log_p = np.log((norm.cdf((unseen + 1) / blur) - norm.cdf((unseen - 1) / blur)) / 2)
        losses.append(float((log_p - np.interp(unseen, *fit_log_density(fitted))).mean()))
    assert max(losses) < 0.02


def excess(ratio: Ratio, x: SideRows, y: SideRows) -> float:
    return UnseenRows.of(x, y, np.arange(len(x))).evaluate(ratio)[1]


def test_unseen_rows_are_evaluated_as_they_are() -> None:
    """The shifted pairs beside them change nothing: log r of the rows is that of `pairs`."""
    a, b = half(NUMBER), half(NUMBER + RNG.normal(size=N))
    ratio = StudentRatio.fit(a, b, 0)
    assert ratio is not None
    rows = RNG.permutation(N)[: N // 2]
    value = UnseenRows.of(a, b, rows).evaluate(ratio)[0]
    np.testing.assert_allclose(value, ratio.pairs(a[rows], b[rows]), atol=1e-12)


def test_only_a_clear_excess_is_subtracted() -> None:
    """Of the true ratio of a strong dependence few pairs carry the mean, 1, and nothing is taken off; of twice the ratio log 2."""
    rho = 0.99
    x = RNG.normal(size=(2000, 1))
    y = rho * x + math.sqrt(1 - rho**2) * RNG.normal(size=(2000, 1))

    @dataclass(frozen=True)
    class Known:
        times: float

        def pairs(self, a: SideRows, b: SideRows) -> np.ndarray:
            own_terms = rho**2 * (a.normal**2 + b.normal**2)[:, 0]
            f = (2 * rho * a.normal * b.normal)[:, 0] - own_terms
            return f / (2 * (1 - rho**2)) - 0.5 * math.log(1 - rho**2) + math.log(self.times)

        def cross(self, a: SideRows, b: SideRows) -> np.ndarray:
            raise AssertionError

    @dataclass(frozen=True)
    class OnePair(Known):
        """1, but for one pair of 2,000 with 2,000: a mean of 2 that one draw made."""

        def pairs(self, a: SideRows, b: SideRows) -> np.ndarray:
            return np.where(np.arange(len(a)) == len(a) - 1, math.log(2000), 0.0)

    sides = [SideRows.of_numbers(side, side) for side in (x, y)]
    assert excess(OnePair(1.0), *sides) < 0.01
    assert excess(Known(1.0), *sides) < 0.05
    assert 0.4 < excess(Known(2.0), *sides) < 0.8


def test_the_excess_of_two_categories_is_counted_over_all_pairs_of_levels() -> None:
    """By a loop: the mean of r where every level of x meets every level of y as often as their shares say."""
    a, b = SAMPLES["categories"]
    counts = TableRatio.fit(a, b, 0, bins=0)
    assert counts is not None
    doubled = replace(counts, log_ratio=counts.log_ratio + np.log(2))
    mean = np.mean([2 * np.exp(counts.cross(a[np.array([i])], b)) for i in range(N)])
    assert excess(doubled, a, b) == pytest.approx(math.log(mean), abs=1e-9)
    assert excess(replace(counts, log_ratio=counts.log_ratio - 1), a, b) == 0.0


def test_candidates_share_cached_fits() -> None:
    a, b = half(NUMBER), half(NUMBER + RNG.normal(size=N))
    fits = [ResidualRatio.fit(a, b, 0, scaled=True, spread_varies=varies) for varies in (False, True)]
    assert fits[0] is not None
    assert fits[1] is not None
    assert fits[0].density.predict is fits[1].density.predict
    second = ResidualRatio.fit(a, half(NUMBER**2), 0, scaled=True, spread_varies=False)
    assert second is not None
    assert second.density.predict is not fits[0].density.predict


def gaussian_scores(m: int, rho: float = 0.7) -> np.ndarray:
    x = RNG.normal(size=m)
    y = rho * x + math.sqrt(1 - rho**2) * RNG.normal(size=m)
    joint = multivariate_normal([0, 0], [[1, rho], [rho, 1]])
    pairs = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1)
    return joint.logpdf(pairs) - norm.logpdf(x)[:, None] - norm.logpdf(y)[None, :]


def test_a_block_is_infonce_and_its_projection_has_its_spread() -> None:
    """mean of the terms = InfoNCE; their spread over sqrt(m) is that of InfoNCE over samplings."""
    import torch

    f = gaussian_scores(60)
    assert block_statistics(f).bound.mean() == pytest.approx(
        float(nf.InfoNCE()(paired_scores(torch.from_numpy(f))))
    )
    apart = np.exp(f[~np.eye(60, dtype=bool)]).mean()
    assert (
        block_statistics(f).log_mean
        == pytest.approx(math.log(apart))
        == pytest.approx(log_mean_mismatched(f))
    )
    blocks = [block_statistics(gaussian_scores(60)) for _ in range(200)]
    for name in ("bound", "terms"):
        means = [getattr(block, name).mean() for block in blocks]
        errors = [getattr(block, name).std() / math.sqrt(60) for block in blocks]
        assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(means), rel=0.25), name


def test_permutations_have_the_mean_and_variance_of_hoeffding() -> None:
    """All 120 permutations of five rows."""
    f = RNG.normal(size=(5, 5))
    sums = [sum(f[i, p[i]] for i in range(5)) for p in itertools.permutations(range(5))]
    block = block_statistics(f)
    assert block.excess == pytest.approx(np.trace(f) - np.mean(sums))
    assert block.variance == pytest.approx(np.var(sums))


def test_multivariate_residual_ratio_is_that_of_a_spiral() -> None:
    """log p(y | angle) - log p(y) of unseen rows, p(y) the mean over a fine grid of angles."""
    rng, noise = np.random.default_rng(1), 0.7

    def curve(angle: np.ndarray) -> np.ndarray:
        return np.stack([angle * np.cos(angle), angle * np.sin(angle)], axis=1)

    angle = rng.uniform(0, 4 * np.pi, 900)
    y = curve(angle) + noise * rng.normal(size=(900, 2))
    maps = SideMap.fit(angle[:600, None], np.array([False])), SideMap.fit(y[:600], np.zeros(2, bool))
    learned, unseen = ((maps[0](angle[k, None]), maps[1](y[k])) for k in (slice(600), slice(600, None)))
    result = MultivariateResidualRatio.fit(*learned, 0)
    assert result is not None
    grid = curve((np.arange(2000) + 0.5) / 2000 * 4 * np.pi)
    own_terms = norm.logpdf(y[600:], curve(angle[600:]), noise).sum(axis=1)
    margin = np.log([norm.pdf(row, grid, noise).prod(axis=1).mean() for row in y[600:]])
    assert np.abs(result.pairs(*unseen) - (own_terms - margin)).mean() < 0.3
    other_way = swapped(MultivariateResidualRatio.fit)(*learned[::-1], 0)
    assert other_way is not None
    np.testing.assert_allclose(other_way.pairs(*unseen[::-1]), result.pairs(*unseen))


class Scored:
    """A ratio that is a matrix."""

    def __init__(self, f: np.ndarray) -> None:
        self.f = f

    def pairs(self, x: SideRows, y: SideRows) -> np.ndarray:
        return np.diagonal(self.f)

    def cross(self, x: SideRows, y: SideRows) -> np.ndarray:
        return self.f


def test_step_of_the_learning_curve_is_a_difference_of_infonce() -> None:
    """mean f - mean g - (the levels' difference) = InfoNCE(f) - InfoNCE(g); a key far out, to which g gives e^9 at every row, moves it by no more than
    its row and what it takes from the others; nothing is said of levels where InfoNCE leans on its ceiling."""
    f, g = np.random.default_rng(4).normal(size=(2, 60, 60))
    sides = [SAMPLES["numbers"]]

    def worth(full: np.ndarray, smaller: np.ndarray) -> float:
        rise = _level_change(Scored(smaller), sides, [block_statistics(full)])
        return float(np.diagonal(full).mean() - np.diagonal(smaller).mean()) - rise

    def infonce(f: np.ndarray) -> float:
        return float(nf.InfoNCE()(paired_scores(torch.from_numpy(f))))

    assert worth(f, g) == pytest.approx(infonce(f) - infonce(g))
    far = f.copy()
    far[7, 9] = 12.0  # one row, of which the smaller ratio knows nothing
    assert worth(f, far) == pytest.approx(infonce(f) - infonce(far))
    assert abs(worth(f, far)) < 12 / 60 < log_mean_mismatched(far) - log_mean_mismatched(f)
    sure = f + 20 * np.eye(60)
    assert worth(sure, g) == pytest.approx(float(np.diagonal(sure).mean() - np.diagonal(g).mean()))


def test_scaled_gaussian_resolves_more_than_ranks() -> None:
    """y = x + e / 100, 4.6 nats: -log(1 - rho^2) / 2 - (rho^2 (x^2 + y^2) - 2 rho x y) / (2 (1 - rho^2)) of unseen rows."""
    x, e = np.random.default_rng(7).normal(size=(2, 600))
    y = x + 0.01 * e
    maps = [SideMap.fit(z[:400, None], np.array([False])) for z in (x, y)]
    learned, unseen = ((maps[0](x[k, None]), maps[1](y[k, None])) for k in (slice(400), slice(400, None)))
    unscaled, ranks = (CANDIDATES[name](*learned, 0) for name in ("gaussian, plain", "gaussian"))
    assert unscaled is not None
    assert ranks is not None
    truth = multivariate_normal([0, 0], [[1, 1], [1, 1.0001]]).logpdf(np.column_stack([x, y])[400:])
    truth = truth - norm.logpdf(x[400:]) - norm.logpdf(y[400:], scale=math.sqrt(1.0001))
    assert np.abs(unscaled.pairs(*unseen) - truth).mean() < 0.25
    assert unscaled.pairs(*unseen).mean() == pytest.approx(truth.mean(), abs=0.1)
    assert ranks.pairs(*unseen).mean() < truth.mean() - 0.5


def test_long_tails_are_squeezed_one_to_one() -> None:
    z = np.array([-1e9, -30.0, -2.0, 0.3, 2.0, 3.0, 1e5])
    result = squeeze(z)
    np.testing.assert_allclose(result[2:6], [-2.0, 0.3, 2.0, 2 + math.log(2)])
    assert (np.diff(result) > 0).all()
    assert np.abs(result).max() < FAR


def turned(z: np.ndarray) -> np.ndarray:
    """Points of the plane turned by an angle of their squared length: one-to-one, and no sum of functions of columns."""
    a, b = z.T
    angle = (z**2).sum(axis=1)
    return np.stack([np.cos(angle) * a - np.sin(angle) * b, np.sin(angle) * a + np.cos(angle) * b], axis=1)


def test_a_network_learns_what_columns_tell_together() -> None:
    """The log ratio of two Gaussians does not change when either side is transformed one-to-one; a Gaussian ratio of
    the transformed sides loses it. Cross and pairs agree, and the mean over pairs under independence is about one."""
    rho, train, test = 0.9, np.arange(4000), np.arange(4000, 6000)
    z = RNG.normal(size=(6000, 2))
    y = rho * z + math.sqrt(1 - rho**2) * RNG.normal(size=z.shape)
    sides = turned(z), y
    maps = [SideMap.fit(side[train], np.zeros(2, bool)) for side in sides]
    learned, unseen = ([m(side[rows]) for m, side in zip(maps, sides, strict=True)] for rows in (train, test))
    x_rows, y_rows = learned
    ratio, gaussian = (CANDIDATES[name](x_rows, y_rows, 0) for name in ("network", "gaussian"))
    assert ratio is not None
    assert gaussian is not None
    truth = -math.log(1 - rho**2)
    assert float(gaussian.pairs(*unseen).mean()) < truth / 2 < float(ratio.pairs(*unseen).mean()) < truth
    f = ratio.cross(*unseen)
    np.testing.assert_allclose(np.diagonal(f), ratio.pairs(*unseen), atol=1e-4)
    # -log of the mean is an error of the level in nats
    assert abs(log_mean_mismatched(f)) < 0.2


def test_a_network_needs_rows_and_columns_that_can_act_together() -> None:
    few, many = (half(RNG.normal(size=(rows, 2))) for rows in (1499, 1500))
    number = half(RNG.normal(size=1500))
    assert CANDIDATES["network"](few, few, 0) is None
    assert CANDIDATES["network"](number, number, 0) is None
    assert CANDIDATES["network"](many, number, 0) is not None


def test_a_network_is_tried_where_a_flexible_family_leads() -> None:
    """Of Gaussians the Gaussian leads and no network is fitted; of turned sides a mixture leads, and then the network."""
    z = RNG.normal(size=(4000, 2))
    y = half(0.9 * z + math.sqrt(0.19) * RNG.normal(size=z.shape))
    fits = {name: CANDIDATES[name] for name in ("gaussian", "mixture of 8", "network")}
    of_gaussians = fit_stack(half(z), y, 0, candidates=fits)
    of_turned = fit_stack(half(turned(z)), y, 0, candidates=fits)
    assert (of_gaussians.candidates, of_turned.candidates) == (2, 3)
    assert "network" in of_turned.names
