"""Problems with properties of real tables that no family of problems.py has.

Atoms mixed with continuous values, excess zeros, ties by rounding, counts, ordered answers of a
questionnaire, tails without a mean, near-copies, rare events, three columns of forty, fifty rows. No constant
was set on them before their first run.

Each has its own number of rows, the smallest of practical interest. Truths are closed forms, tables or
quadrature."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from problems import Problem, Rng, Sample, entropy, flip_truth
from scipy.special import i0e, i1e, k0
from scipy.stats import multivariate_normal, nbinom, norm, poisson

Make = Callable[[Rng, int], Sample]


def of_table(p: np.ndarray) -> float:
    p = p / p.sum()
    return entropy(p.sum(axis=1)) + entropy(p.sum(axis=0)) - entropy(p)


def cauchy_sum(rng: Rng, n: int) -> Sample:
    """x and the noise without a mean: log((1 + g) / g) nats for noise of width g."""
    x, e = rng.standard_cauchy((2, n))
    return x, x + e


def lognormal(rng: Rng, n: int) -> Sample:
    z, e = rng.normal(size=(2, n))
    return np.exp(3 * z), np.exp(2 * (0.7 * z + math.sqrt(0.51) * e))


def zero_inflated(rng: Rng, n: int) -> Sample:
    """y a count of mean x, or 0 whatever x, in 15 of 100."""
    x = rng.exponential(size=n)
    return x, np.where(rng.random(n) < 0.15, 0, rng.poisson(x))


def zero_inflated_truth() -> float:
    """H(y) - E H(y | x), by quadrature over x."""
    x = -np.log(1 - (np.arange(20_000) + 0.5) / 20_000)
    conditional = 0.85 * poisson.pmf(np.arange(80)[None, :], x[:, None])
    conditional[:, 0] += 0.15
    return entropy(conditional.mean(axis=0)) - float(np.mean([entropy(row) for row in conditional]))


def atoms_and_line(rng: Rng, n: int) -> Sample:
    """Half of the rows lie on four points (signs agree in 8 of 10), half on a Gaussian; both sides show
    which."""
    z, e = rng.normal(size=(2, n))
    sign = rng.choice([-1.0, 1.0], n)
    partner = np.where(rng.random(n) < 0.8, sign, -sign)
    point = rng.random(n) < 0.5
    return np.where(point, sign, z), np.where(point, partner, 0.9 * z + math.sqrt(0.19) * e)


def zeros_and_amounts(rng: Rng, n: int) -> Sample:
    """What customers spent in two months: most nothing, the others an amount that goes with the first."""
    buys = rng.random(n) < 0.4
    repeats = rng.random(n) < np.where(buys, 0.7, 0.2)
    z, e = rng.normal(size=(2, n))
    second = np.where(buys, 0.8 * z + 0.6 * e, e)
    return np.where(buys, np.exp(z), 0.0), np.where(repeats, np.exp(second), 0.0)


def zeros_and_amounts_truth() -> float:
    """Who buys tells who buys again; amounts tell only where both are there, as a Gaussian of correlation 0.8
    does (second amounts of old and new customers have one distribution)."""
    return of_table(np.array([[0.6 * 0.8, 0.6 * 0.2], [0.4 * 0.3, 0.4 * 0.7]])) - 0.28 * 0.5 * math.log(0.36)


def steps_of(rng: Rng, n: int, step: float, rho: float) -> Sample:
    x, e = rng.normal(size=(2, n))
    y = rho * x + math.sqrt(1 - rho**2) * e
    return np.round(x / step) * step, np.round(y / step) * step


def steps_truth(step: float, rho: float) -> float:
    edges = (np.arange(math.ceil(5 / step) * 2 + 2) - math.ceil(5 / step) - 0.5) * step
    return of_table(_cells(edges, edges, rho))


def _cells(a: np.ndarray, b: np.ndarray, rho: float) -> np.ndarray:
    """Probability of every rectangle between the edges, under a Gaussian."""
    grid = np.stack(np.meshgrid(np.clip(a, -8, 8), np.clip(b, -8, 8), indexing="ij"), axis=-1)
    cumulative = multivariate_normal([0, 0], [[1, rho], [rho, 1]]).cdf(grid)
    return np.maximum(np.diff(np.diff(cumulative, axis=0), axis=1), 0.0)


ANSWERS = np.array([-9.0, -1.2, -0.4, 0.5, 1.3, 9.0])


def questionnaire(rng: Rng, n: int) -> Sample:
    """Two answers from 1 to 5: an opinion and a reported one."""
    x, e = rng.normal(size=(2, n))
    y = 0.6 * x + 0.8 * e
    return np.digitize(x, ANSWERS[1:-1]) + 1, np.digitize(y, ANSWERS[1:-1]) + 1


def rare(rng: Rng, n: int) -> Sample:
    """One in fifty is ill, and then the first of two readings is three spreads higher."""
    ill = rng.random(n) < 0.02
    return rng.normal(size=(n, 2)) + 3 * np.stack([ill, np.zeros(n)], axis=1), ill.astype(int)


def rare_truth() -> float:
    grid = np.linspace(-8, 12, 8001)
    p = 0.98 * norm.pdf(grid) + 0.02 * norm.pdf(grid - 3)
    h = -float(np.trapezoid(p * np.log(p), grid))
    return h - math.log(2 * math.pi * math.e) / 2


def product(rng: Rng, n: int) -> Sample:
    x, e = rng.normal(size=(2, n))
    return x, x * e


def product_truth() -> float:
    """h(x e) - E log|x| - h(e); the product's density is K0(|y|) / pi."""
    y = np.exp(np.linspace(-30, 4, 200_001))  # log spaced: it is unbounded at 0
    p = k0(y) / np.pi
    h = -2 * float(np.trapezoid(p * np.log(np.maximum(p, 1e-300)) * y, np.log(y)))
    return h + (math.log(2) + np.euler_gamma) / 2 - math.log(2 * math.pi * math.e) / 2


def on_a_circle(rng: Rng, n: int) -> Sample:
    """A direction as cosine and sine, and a noisy reading of its angle, cut open at pi."""
    angle = rng.uniform(-np.pi, np.pi, n)
    reading = angle + rng.vonmises(0, 4, n)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1), (reading + np.pi) % (2 * np.pi) - np.pi


def on_a_circle_truth() -> float:
    return -math.log(i0e(4)) - 4 + 4 * i1e(4) / i0e(4)


def near_copies(rng: Rng, n: int) -> Sample:
    x, e = rng.normal(size=(2, n))
    return x, x + 0.01 * e


def three_of_forty(rng: Rng, n: int) -> Sample:
    x = rng.normal(size=(n, 40))
    return x, np.sign(x[:, 3]) + np.abs(x[:, 17]) + 0.8 * x[:, 30] + 0.5 * rng.normal(size=n)


def three_of_forty_truth() -> float:
    """h(y) - h(noise); y is a sign, the size of a Gaussian, and a Gaussian of variance 0.64 + 0.25."""
    grid = np.linspace(-9, 11, 10_001)
    size = norm.ppf(0.5 + (np.arange(2000) + 0.5) / 4000)
    p = np.zeros(len(grid))
    for part in np.array_split(size, 20):
        for sign in (-1, 1):
            p += norm.pdf((grid[:, None] - part - sign) / math.sqrt(0.89)).sum(axis=1)
    p /= np.trapezoid(p, grid)
    h = -float(np.trapezoid(p * np.log(p + 1e-300), grid))
    return h - math.log(2 * math.pi * math.e * 0.25) / 2


def counts(rng: Rng, n: int) -> Sample:
    """Two counts of the same cause, whose strength follows a gamma distribution."""
    rate = rng.gamma(1.5, 3.0, n)
    return rng.poisson(rate), rng.poisson(rate)


def counts_truth() -> float:
    """p(a, b): a + b is negative binomial, and a given a + b binomial."""
    from scipy.stats import binom

    a, b = np.meshgrid(np.arange(120), np.arange(120), indexing="ij")
    return of_table(nbinom.pmf(a + b, 1.5, 1 / 7) * binom.pmf(a, a + b, 0.5))


def words(rng: Rng, n: int) -> Sample:
    """30 towns of very unequal size in three regions; the answer is the region, wrong in one of ten."""
    share = 1 / np.arange(1, 31)
    town = rng.choice(30, p=share / share.sum(), size=n)
    region = np.where(rng.random(n) < 0.1, rng.integers(0, 3, n), town % 3)
    return np.array([f"town {t}" for t in town]), np.array(["north", "middle", "south"])[region]


def words_truth() -> float:
    share = 1 / np.arange(1, 31)
    conditional = np.full((30, 3), 0.1 / 3)
    conditional[np.arange(30), np.arange(30) % 3] += 0.9
    return of_table(conditional * (share / share.sum())[:, None])


def few_rows(rng: Rng, n: int, nats: float) -> Sample:
    rho = math.sqrt(1 - math.exp(-2 * nats))
    x, e = rng.normal(size=(2, n))
    return x, rho * x + math.sqrt(1 - rho**2) * e


def either_of_two(rng: Rng, n: int) -> Sample:
    """y follows x1 where x3 is above zero and x2 where it is not."""
    x = rng.normal(size=(n, 3))
    return x, np.where(x[:, 2] > 0, x[:, 0], x[:, 1]) + 0.5 * rng.normal(size=n)


def noisy_class(rng: Rng, n: int) -> Sample:
    """Ten columns, two classes, of which every column tells a little and one in ten labels is wrong."""
    y = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 10)) + 0.8 * (2 * y - 1)[:, None] * (np.arange(10) < 5)
    return x, np.where(rng.random(n) < 0.1, 1 - y, y)


def noisy_class_truth() -> float:
    """The sum of the five is all that counts: two Gaussians 2 * 5 * 0.8 / sqrt(5) apart."""
    grid, distance = np.linspace(-9, 9, 6001), 0.8 * math.sqrt(5)
    first, second = norm.pdf(grid - distance), norm.pdf(grid + distance)
    p = np.stack([0.9 * first + 0.1 * second, 0.1 * first + 0.9 * second]) / 2
    marginal = p.sum(axis=0)
    log_ratio = np.log(np.maximum(p, 1e-300) / np.maximum(marginal, 1e-300) * 2)
    return float(np.trapezoid((p * log_ratio).sum(axis=0), grid))


def hard_problems() -> list[tuple[Problem, int]]:
    """Problems and the number of rows of each."""
    gauss = -0.5 * math.log(0.19)

    def hard(name: str, n: int, make: Make, truth: float) -> tuple[Problem, int]:
        return Problem(name, "hard", make, truth), n

    return [
        hard("Cauchy + Cauchy", 300, cauchy_sum, math.log(2)),
        hard("log-normal", 300, lognormal, -0.5 * math.log(0.51)),
        hard("count with zeros in excess", 300, zero_inflated, zero_inflated_truth()),
        hard(
            "atoms and a line",
            400,
            atoms_and_line,
            math.log(2) + 0.5 * gauss + 0.5 * flip_truth(0.2),
        ),
        hard("zeros and amounts", 400, zeros_and_amounts, zeros_and_amounts_truth()),
        hard("rounded to whole spreads", 200, partial(steps_of, step=1.0, rho=0.6), steps_truth(1.0, 0.6)),
        hard("rounded to tenths", 300, partial(steps_of, step=0.1, rho=0.6), steps_truth(0.1, 0.6)),
        hard(
            "answers from 1 to 5",
            200,
            questionnaire,
            of_table(_cells(ANSWERS, ANSWERS, 0.6)),
        ),
        hard("rare event", 400, rare, rare_truth()),
        hard("product with noise", 300, product, product_truth()),
        hard("angle on a circle", 300, on_a_circle, on_a_circle_truth()),
        hard("near-copies", 300, near_copies, 0.5 * math.log(1 + 1e4)),
        hard("three of forty columns", 500, three_of_forty, three_of_forty_truth()),
        hard("two counts of one cause", 300, counts, counts_truth()),
        hard("thirty towns, three regions", 300, words, words_truth()),
        hard("fifty rows, 0.5 nats", 50, partial(few_rows, nats=0.5), 0.5),
        hard("fifty rows, 1.5 nats", 50, partial(few_rows, nats=1.5), 1.5),
        hard("fifty rows of nothing", 50, partial(few_rows, nats=0.0), 0.0),
        hard("either of two columns", 500, either_of_two, either_truth()),
        hard("ten columns, noisy classes", 300, noisy_class, noisy_class_truth()),
    ]


def either_truth() -> float:
    """h(y) - h(noise): whichever column is followed, y is Gaussian with variance 1.25."""
    return 0.5 * math.log(1.25 / 0.25)
