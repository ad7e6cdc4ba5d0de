"""Random problems of benchmarks/generators: log ratios belong to the draws, and truths are right."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from generators import calibration, reporting
from generators.problem import Core, Problem, Rng, numbers
from scipy.special import expit, gammaln, psi

CHANNELS = ("number", "atoms", "rounded", "count", "ordered", "nominal", "angle")
CORES: list[tuple[Callable[[Rng], Core], int]] = [
    *((partial(calibration.mechanism, kinds=(kind,)), seed) for seed, kind in enumerate(CHANNELS)),
    (calibration.factors, 0),
    (calibration.table, 1),
    (calibration.clouds, 2),
    (calibration.bars, 3),
    (lambda rng: calibration.diluted(calibration.clouds(rng), 0.4), 4),
    (calibration.random_core, 5),
    *((reporting.graph, seed) for seed in range(4)),
    *((reporting.copula, seed) for seed in range(4)),
    *((reporting.partition, seed) for seed in range(3)),
    (reporting.circle, 0),
    (reporting.circle, 1),
    (reporting.heavy, 2),
    (reporting.shapes, 3),
    (reporting.beta_core, 4),
    (reporting.bessel_core, 5),
]
ROWS = 10_000


@pytest.mark.parametrize(("make", "seed"), CORES)
def test_log_ratio_is_that_of_the_draws(make: Callable[[Rng], Core], seed: int) -> None:
    """E_joint[f / (1 + r)] = E_independent[f r / (1 + r)] for every f of the pair, since both are the
    integral of f p q / (p + q). Six standard errors of the difference; both means are of numbers between 0
    and 1."""
    core = make(np.random.default_rng(seed))
    rng = np.random.default_rng([seed, 1])
    u, v = core.draw(rng, ROWS)
    independent_y = core.draw(rng, ROWS)[1]
    joint, independent = core.log_ratio(u, v), core.log_ratio(u, independent_y)
    halves = [u[:, 0] > np.median(u[:, 0]), u.sum(axis=1) > np.median(u.sum(axis=1))]
    for half in (np.ones(ROWS, bool), *halves):
        for high, other_high in (
            (1, 1),
            (v[:, -1] > np.median(v[:, -1]), independent_y[:, -1] > np.median(v[:, -1])),
        ):
            joint_mean, independent_mean = half * high * expit(-joint), half * other_high * expit(independent)
            error = np.sqrt((joint_mean.var() + independent_mean.var()) / ROWS)
            assert abs(joint_mean.mean() - independent_mean.mean()) <= 6 * error + 1e-4


EMISSIONS = [
    reporting.normal_emission,
    reporting.gamma_emission,
    reporting.cauchy_emission,
    reporting.zero_emission,
    reporting.shop_emission,
    reporting.turn_emission,
    reporting.level_emission,
]


@pytest.mark.parametrize("make", EMISSIONS)
def test_emissions_draw_from_their_density(make: Callable[..., reporting.Emission]) -> None:
    """The same law between two hidden states: r = p(column | 0) / p(column | 1)."""
    emission = make(np.random.default_rng(1), np.array([-0.6, 0.9]))
    rng = np.random.default_rng(2)
    means, variances = [], []
    for state, sign in ((0, -1), (1, 1)):
        column = emission.draw(rng, np.full(ROWS, state))
        density = emission.log_density(column)
        share = expit(sign * (density[:, 0] - density[:, 1]))
        means.append(share.mean())
        variances.append(share.var())
    assert abs(means[0] - means[1]) <= 6 * np.sqrt(sum(variances) / ROWS)


@pytest.mark.parametrize(
    "make", [calibration.mechanism, calibration.table, reporting.graph, reporting.copula]
)
def test_mean_ratio_is_one_under_independence(make: Callable[[Rng], Core]) -> None:
    for seed in range(6):
        core = make(np.random.default_rng([seed, 7]))
        rng = np.random.default_rng(seed)
        ratio = np.exp(core.log_ratio(core.draw(rng, ROWS)[0], core.draw(rng, ROWS)[1]))
        if ratio.max() < 0.01 * ROWS:  # else the mean hangs on a few rows
            assert abs(ratio.mean() - 1) <= 6 * ratio.std() / np.sqrt(ROWS) + 1e-4


def mean_log_ratio(core: Core) -> tuple[float, float]:
    log_ratio = core.log_ratio(*core.draw(np.random.default_rng(3), ROWS))
    return float(log_ratio.mean()), 6 * float(log_ratio.std()) / np.sqrt(ROWS) + 1e-4


@pytest.mark.parametrize("make", [calibration.factors, calibration.table, reporting.bessel_core])
def test_closed_forms_equal_the_mean_log_ratio(make: Callable[[Rng], Core]) -> None:
    for seed in range(4):
        core = make(np.random.default_rng(seed))
        mean, tolerance = mean_log_ratio(core)
        assert core.information is not None
        assert abs(core.information - mean) <= tolerance


def test_copulas_against_quadrature() -> None:
    """Gauss-Legendre over the square, nodes drawn towards its edges."""
    node, weight = np.polynomial.legendre.leggauss(300)
    t = (node + 1) / 2
    place, weight = 3 * t**2 - 2 * t**3, weight / 2 * 6 * t * (1 - t)
    for seed in range(12):
        core = reporting.copula(np.random.default_rng(seed))
        if core.kinds[1] == ("category",):
            continue
        a, b = (side.ravel() for side in np.meshgrid(place, place))
        log_density = core.log_ratio(a[:, None], b[:, None])
        measure = np.outer(weight, weight).ravel() * np.exp(log_density)
        mean, tolerance = mean_log_ratio(core)
        assert abs(measure.sum() - 1) < 2e-3  # corners of strong dependence
        assert abs(measure @ log_density - mean) <= tolerance + 2e-3


def test_density_of_an_effect_against_its_closed_form() -> None:
    """A line and normal noise of 0.1: the effect is normal with variance 1.01."""
    rng = np.random.default_rng(0)
    root = next(r for r in iter(lambda: calibration.random_root(rng, 2000), None) if r.kind == "number")
    scores, log_weights = calibration._compressed(root.nodes, root.weights)
    assert np.exp(log_weights).sum() == pytest.approx(1)
    v = rng.normal(size=1000)
    density = (
        np.exp(calibration.LOG_NOISE["normal"]((v[:, None] - scores) / 0.1) + log_weights).sum(axis=1) / 0.1
    )
    exact = np.exp(-(v**2) / 2 / 1.01) / np.sqrt(2 * np.pi * 1.01)
    assert np.abs(density / exact - 1).max() < 2e-3


def test_heavy_tails_against_entropies() -> None:
    """I = 2 h(d) - h(2d) - sum log(1 - rho^2) / 2 of Student's t; one draw of parameters is read from its
    ratio."""
    core = reporting.heavy(np.random.default_rng(2))
    twin = np.random.default_rng(2)
    count, df = int(twin.integers(1, 7)), float(twin.uniform(1.5, 8))
    rho = twin.uniform(-0.95, 0.95, size=count)

    def entropy(d: int) -> float:
        half = (df + d) / 2
        return float(
            gammaln(df / 2) - gammaln(half) + d / 2 * np.log(df * np.pi) + half * (psi(half) - psi(df / 2))
        )

    exact = 2 * entropy(count) - entropy(2 * count) - 0.5 * np.log1p(-(rho**2)).sum()
    mean, tolerance = mean_log_ratio(core)
    assert abs(exact - mean) <= tolerance


@pytest.mark.parametrize("make", [calibration.random_problem, reporting.random_problem])
def test_tables_keep_the_core_and_repeat(make: Callable[[int, int], Problem]) -> None:
    for index in range(40):
        problem = make(11, index)
        sample, repeated = problem.sample(60, 1), make(11, index).sample(60, 1)
        cores = problem.core.draw(np.random.default_rng([1, 60, 1]), 60)
        assert np.array_equal(sample.log_ratio, repeated.log_ratio)
        for side, twin, core, columns in zip(
            (sample.x, sample.y), (repeated.x, repeated.y), cores, problem.columns, strict=True
        ):
            values_of_side = numbers(side)
            assert values_of_side.shape == (60, columns)
            assert np.isfinite(values_of_side).all()
            assert np.array_equal(values_of_side, numbers(twin))
            assert len(np.unique(values_of_side, axis=0)) >= len(np.unique(core, axis=0))


def test_generators_cover_kinds_and_widths() -> None:
    """Every kind and every width, and other problems for another seed."""
    for module in (calibration, reporting):
        problems = [module.random_problem(0, index) for index in range(80)]
        assert {problem.kind for problem in problems} == {"numbers", "levels", "mixed", "images"}
        assert len({problem.width for problem in problems}) == 4
        assert module.random_problem(1, 0).name != problems[0].name


@pytest.mark.parametrize("index", [47, 100])
def test_noise_with_hard_edges_has_a_finite_truth(index: int) -> None:
    """Uniform noise may reach an effect from no node of the grid of causes: then the nearest node counts."""
    assert math.isfinite(calibration.random_problem(9, index).truth)
