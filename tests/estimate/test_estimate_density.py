"""Noise-contrastive density estimation: Liu 2022, Eq. 5-23, maximum likelihood, closed forms, quadrature."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal, Normal, Uniform

import nearfar as nf
from nearfar.estimate.density import fit_density, nce_loss


class Gaussian(nn.Module):
    """log p0 = -precision (u - mean)^2 / 2, with the logarithm of its integral subtracted if `normalised`."""

    def __init__(self, mean: float = 0.0, precision: float = 1.0, normalised: bool = False) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mean, dtype=torch.float64))
        self.log_precision = nn.Parameter(torch.tensor(math.log(precision), dtype=torch.float64))
        self.normalised = normalised

    def log_integral(self) -> Tensor:
        return 0.5 * (math.log(2 * math.pi) - self.log_precision)

    def forward(self, u: Tensor) -> Tensor:
        exponent = -0.5 * self.log_precision.exp() * (u - self.mean) ** 2
        return exponent - self.log_integral() if self.normalised else exponent


def sample(size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 1.5 + 0.7 * torch.randn(size, generator=generator, dtype=torch.float64)


WIDE_NORMAL = Normal(torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.5, dtype=torch.float64))


@given(
    n=st.integers(1, 6),
    k=st.integers(1, 9),
    nu=st.floats(0.1, 50),
    seed=st.integers(0, 1000),
    scale=st.floats(0.1, 8),
)
@settings(max_examples=50, deadline=None)
def test_loss_is_the_cross_entropy_of_the_posterior(
    n: int, k: int, nu: float, seed: int, scale: float
) -> None:
    """Eq. 5, 6 and 10 by exponentials and sums."""
    rng = np.random.default_rng(seed)
    x, y = scale * rng.normal(size=n), scale * rng.normal(size=k)
    expected = -np.log(np.exp(x) / (np.exp(x) + nu)).mean() - nu * np.log(nu / (np.exp(y) + nu)).mean()
    value = nce_loss(torch.from_numpy(x), torch.from_numpy(y), nu)
    assert float(value) == pytest.approx(expected, rel=1e-10)


def test_loss_does_not_overflow() -> None:
    far = torch.tensor([1e4, -1e4], requires_grad=True)
    value = nce_loss(far, far, 10.0)
    (gradient,) = torch.autograd.grad(value, far)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


def test_gradient_approaches_maximum_likelihood_like_one_over_nu() -> None:
    """Eq. 20-23. Points at even quantiles make the means of Eq. 10 the integrals of Eq. 12."""
    quantiles = (np.arange(200_000) + 0.5) / 200_000
    data = torch.from_numpy(scipy.stats.norm.ppf(quantiles, 1.5, 0.7))
    noise = torch.from_numpy(scipy.stats.norm.ppf(quantiles, 1.0, 1.5))
    normalised, unnormalised = (Gaussian(mean=1.2, precision=1.3, normalised=n) for n in (True, False))
    likelihood = torch.autograd.grad(-normalised(data).mean(), list(normalised.parameters()))

    def distance(nu: float, model: Gaussian = normalised) -> float:
        loss = nce_loss(
            model(data) - WIDE_NORMAL.log_prob(data), model(noise) - WIDE_NORMAL.log_prob(noise), nu
        )
        ours = torch.autograd.grad(loss, list(model.parameters()))
        return math.hypot(*(float(a - b) for a, b in zip(ours, likelihood, strict=True)))

    gaps = [distance(nu) for nu in (1.0, 10.0, 100.0, 1000.0)]
    assert gaps[0] > gaps[1] > gaps[2] > gaps[3]
    assert gaps[2] / gaps[3] == pytest.approx(10, rel=0.1)
    assert gaps[3] < 2e-3 * math.hypot(*map(float, likelihood))
    # c = 0 for a model whose integral is not one: the gradient does not become that of maximum likelihood
    assert distance(1000.0, unnormalised) > distance(1.0, unnormalised) > 0.2


def test_the_mean_is_sufficient_for_a_normals_mean_and_the_median_is_not() -> None:
    """Sáez Maldonado 2021, Ex. 3: of a normal with known variance, the likelihood ratio of two means depends on the sample
    through its mean alone, n (a - b) (mean - (a + b) / 2) / variance. Samples of one median have several ratios."""
    a, b, deviation = 0.4, -0.7, 1.3

    def log_ratio(sample: list[float]) -> float:
        density = scipy.stats.norm(0, deviation).logpdf
        return float(sum(density(x - a) - density(x - b) for x in sample))

    for sample in ([0.0, 1.0, 5.0], [2.0, 2.0, 2.0], [-3.0, 1.0, 8.0]):  # one mean, three medians
        assert log_ratio(sample) == pytest.approx(3 * (a - b) * (2 - (a + b) / 2) / deviation**2)
    assert log_ratio([0.0, 1.0, 5.0]) - log_ratio([0.0, 1.0, 2.0]) > 1  # one median, two means


def test_gradient_in_closed_form_by_quadrature() -> None:
    """Eq. 20: integral of (p_d - p) nu p_n / (p + nu p_n) d log p, on a fine grid. Eq. 15, the gradient of the likelihood:
    the same without the weight, with d log p0, whose own integral depends on the precision (Eq. 13-14)."""
    nu, grid = 5.0, np.linspace(-9, 12, 40_001)
    density = scipy.stats.norm.pdf
    p_data, p_noise = density(grid, 1.5, 0.7), density(grid, 1.0, 1.5)
    spread = 1.3**-0.5
    p_model = density(grid, 1.2, spread)
    score = 1.3 * (grid - 1.2)  # d log p / d mean
    weight = nu * p_noise / (p_model + nu * p_noise)
    expected = np.trapezoid((p_data - p_model) * weight * score, grid)

    quantiles = (np.arange(200_000) + 0.5) / 200_000
    data = torch.from_numpy(scipy.stats.norm.ppf(quantiles, 1.5, 0.7))
    noise = torch.from_numpy(scipy.stats.norm.ppf(quantiles, 1.0, 1.5))
    model = Gaussian(mean=1.2, precision=1.3, normalised=True)
    loss = nce_loss(model(data) - WIDE_NORMAL.log_prob(data), model(noise) - WIDE_NORMAL.log_prob(noise), nu)
    (ours,) = torch.autograd.grad(loss, model.mean)
    assert float(-ours) == pytest.approx(expected, abs=1e-4)
    likelihood = torch.autograd.grad(model(data).mean(), [model.mean, model.log_precision])
    slopes = (score, -0.5 * 1.3 * (grid - 1.2) ** 2)  # of log p0, in the mean and in the log precision
    for ours, slope in zip(likelihood, slopes, strict=True):
        assert float(ours) == pytest.approx(np.trapezoid((p_data - p_model) * slope, grid), abs=1e-3)


def test_the_sample_objective_converges_to_its_expectation() -> None:
    """Eq. 10-12: over models theta, the largest distance of the sample objective from the integral of Eq. 12 falls like
    1 / sqrt(N)."""
    nu, grid = 2.0, np.linspace(-9, 12, 20_001)
    density = scipy.stats.norm.pdf
    p_data, p_noise = density(grid, 1.5, 0.7), density(grid, 1.0, 1.5)
    models = [(mean, precision) for mean in (1.0, 1.5, 2.0) for precision in (1.0, 2.0)]

    def largest_distance(count: int, seed: int) -> float:
        data = sample(count, seed)
        generator = torch.Generator().manual_seed(1000 + seed)
        noise = 1.0 + 1.5 * torch.randn(int(nu) * count, generator=generator, dtype=torch.float64)
        distances = []
        for mean, precision in models:
            model = Gaussian(mean, precision, normalised=True)
            p_model = density(grid, mean, precision**-0.5)
            of_data = np.trapezoid(p_data * np.log(p_model / (p_model + nu * p_noise)), grid)
            of_noise = np.trapezoid(p_noise * np.log(nu * p_noise / (p_model + nu * p_noise)), grid)
            loss = nce_loss(
                model(data) - WIDE_NORMAL.log_prob(data), model(noise) - WIDE_NORMAL.log_prob(noise), nu
            )
            distances.append(abs(float(-loss.detach()) - (of_data + nu * of_noise)))
        return max(distances)

    few, many = (np.mean([largest_distance(count, seed) for seed in range(10)]) for count in (100, 10_000))
    assert 5 < few / many < 20
    assert many < 0.03


def test_a_normalised_model_nears_maximum_likelihood_as_nu_grows() -> None:
    def distance(nu: float, seed: int) -> float:
        data = sample(300, seed)
        fitted = fit_density(
            Gaussian(normalised=True), data, WIDE_NORMAL, nu=nu, partition="zero", seed=seed
        ).model
        spread = float(torch.exp(-0.5 * fitted.log_precision.detach()))
        return math.hypot(float(fitted.mean.detach() - data.mean()), spread - float(data.std(correction=0)))

    gaps = [np.mean([distance(nu, seed) for seed in range(5)]) for nu in (1.0, 30.0, 1000.0)]
    assert gaps[0] > 2 * gaps[1] > 4 * gaps[2]
    assert gaps[2] < 0.003


def test_the_partition_of_an_unnormalised_model_is_learned() -> None:
    """Eq. 9: mean 1.5, precision 1 / 0.49 and log Z = log(0.7 sqrt(2 pi)), with no integral computed."""
    data = sample(20_000)
    fitted = fit_density(Gaussian(), data, WIDE_NORMAL, nu=10)
    assert float(fitted.model.mean.detach()) == pytest.approx(1.5, abs=0.02)
    assert float(fitted.model.log_precision.detach().exp()) == pytest.approx(1 / 0.49, rel=0.03)
    assert fitted.log_partition == pytest.approx(math.log(0.7 * math.sqrt(2 * math.pi)), abs=0.02)
    assert fitted.log_partition == pytest.approx(float(fitted.model.log_integral().detach()), abs=0.02)
    assert fitted.mass == pytest.approx(1, abs=0.02)
    points = torch.linspace(0, 3, 7, dtype=torch.float64)
    expected = scipy.stats.norm.logpdf(points.numpy(), 1.5, 0.7)
    np.testing.assert_allclose(fitted.log_prob(points).detach().numpy(), expected, atol=0.1)


class Shifted(Gaussian):
    """A Gaussian that carries its own constant, so that it can normalise itself."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))

    def forward(self, u: Tensor) -> Tensor:
        return super().forward(u) + self.constant


def test_zero_suits_a_model_that_can_normalise_itself_and_no_other() -> None:
    """Eq. 22: with c = 0 the objective makes the model's own constant the log-partition."""
    data = sample(5000)
    able = fit_density(Shifted(), data, WIDE_NORMAL, partition="zero")
    learned = fit_density(Gaussian(), data, WIDE_NORMAL, partition="learned")
    assert able.log_partition == 0
    assert float(able.model.constant.detach()) == pytest.approx(-learned.log_partition, abs=1e-4)
    assert able.loss == pytest.approx(learned.loss, abs=1e-9)
    assert able.mass == pytest.approx(1, abs=0.03)
    unable = fit_density(Gaussian(), data, WIDE_NORMAL, partition="zero")
    assert unable.loss > learned.loss + 0.01


def test_several_dimensions_recover_a_precision_matrix() -> None:
    class Quadratic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.eye(3, dtype=torch.float64).T)  # not contiguous

        def forward(self, u: Tensor) -> Tensor:
            return -0.5 * (u @ self.factor).square().sum(dim=1)

    covariance = torch.tensor([[1.0, 0.6, 0.0], [0.6, 2.0, -0.3], [0.0, -0.3, 0.5]], dtype=torch.float64)
    torch.manual_seed(1)
    truth = MultivariateNormal(torch.zeros(3, dtype=torch.float64), covariance)
    noise = MultivariateNormal(torch.zeros(3, dtype=torch.float64), 1.5 * torch.diag(covariance.diag()))
    fitted = fit_density(Quadratic(), truth.sample(torch.Size([10_000])), noise)
    factor = fitted.model.factor.detach()
    torch.testing.assert_close(factor @ factor.T, truth.precision_matrix, atol=0.12, rtol=0)
    log_z = 0.5 * float(torch.logdet(2 * math.pi * covariance))
    assert fitted.log_partition == pytest.approx(log_z, abs=0.05)


def test_a_seed_reproduces_the_fit_without_side_effects() -> None:
    model, data = Gaussian(), sample(200)
    torch.manual_seed(123)
    previous = torch.random.get_rng_state()
    first, repeated = (fit_density(model, data, WIDE_NORMAL, seed=4) for _ in range(2))
    second = fit_density(model, data, WIDE_NORMAL, seed=5)
    assert first.log_partition == repeated.log_partition
    assert first.log_partition != second.log_partition
    assert torch.equal(torch.random.get_rng_state(), previous)
    assert float(model.mean.detach()) == 0.0


def test_single_precision_works_too() -> None:
    fitted = fit_density(Gaussian().float(), sample(2000).float(), Normal(1.0, 1.5))
    assert fitted.log_partition == pytest.approx(math.log(0.7 * math.sqrt(2 * math.pi)), abs=0.06)


FLAT = torch.zeros(4, 2, dtype=torch.float64)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"data": [1.0, 2.0]}, "data must be a floating-point tensor"),
    ({"data": torch.empty(0)}, "at least one row"),
    ({"data": torch.tensor([1.0, math.nan])}, "data holds NaN"),
    ({"nu": 0}, "nu was 0; expected a number above 0"),
    ({"nu": "ten"}, "nu was 'ten'"),
    ({"partition": "none"}, "partition was 'none'; expected learned or zero"),
    ({"steps": 0}, "steps was 0"),
    ({"noise": Uniform(0.0, 1.0)}, "noise has no density at some points of the data"),
    ({"noise": Independent(Normal(torch.zeros(2), torch.ones(2)), 1)}, "noise must be points like the data"),
    ({"data": FLAT, "noise": Normal(torch.zeros(2), 1.0)}, r"one number per point, \(4,\); it gave \(4, 2\)"),
    (
        {"model": nn.Identity(), "data": FLAT, "noise": Independent(Normal(torch.zeros(2), 1.0), 1)},
        "model must",
    ),
    ({"model": Gaussian(mean=math.nan)}, "model gives NaN"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[b[1][:30] for b in BAD])
def test_bad_input_gets_one_sentence(change: dict[str, Any], sentence: str) -> None:
    full: dict[str, Any] = {"model": Gaussian(), "data": sample(50), "noise": WIDE_NORMAL, **change}
    with pytest.raises(nf.UserError, match=sentence) as problem:
        fit_density(**full)
    assert "\n" not in str(problem.value)


def test_a_diverging_fit_is_reported() -> None:
    class Runaway(Gaussian):
        def forward(self, u: Tensor) -> Tensor:
            return (self.mean * 1e200).exp() * u.square() * 1e300 + super().forward(u) * self.mean.log()

    with pytest.raises(nf.UserError, match="the fit diverged"):
        fit_density(Runaway(mean=1e-201), sample(50), WIDE_NORMAL)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": "a"}, "seed was 'a'"),
        ({"nu": 1e18}, "more noise than memory can hold"),
        ({"noise": None}, "noise NoneType; a torch module and something with sample"),
        ({"model": torch.sin}, "model was builtin_function_or_method"),
    ],
)
def test_unsuitable_models_are_reported(changes: dict[str, Any], sentence: str) -> None:
    normal = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(1), torch.ones(1)), 1)
    arguments = {"model": torch.nn.Linear(1, 1), "data": torch.randn(20, 1), "noise": normal, **changes}
    with pytest.raises(nf.UserError, match=sentence):
        nf.fit_density(**arguments)
