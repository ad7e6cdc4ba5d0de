"""Problems of known mutual information: families x dimensions x strengths, each with its truth in nats.

Truths are closed forms, tables, quadrature, or (marked "mean") the mean of the exact log ratio over 400,000
draws, with a standard error below 0.003."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
from scipy.special import gammaln, logsumexp, psi
from scipy.stats import norm

Rng = np.random.Generator
Sample = tuple[np.ndarray, np.ndarray]
DRAWS = 400_000


@dataclass(frozen=True)
class Problem:
    name: str
    family: str
    make: Callable[[Rng, int], Sample]
    truth: float
    options: dict = field(default_factory=dict)  # what a user would tell the estimator


def entropy(p: np.ndarray | list[float]) -> float:
    p = np.asarray(p, float)
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def gaussian(rng: Rng, n: int, d: int, nats: float, related: int | None = None) -> Sample:
    k = related or d
    rho = math.sqrt(1 - math.exp(-2 * nats / k))
    x, y = rng.normal(size=(2, n, d))
    y[:, :k] = rho * x[:, :k] + math.sqrt(1 - rho**2) * y[:, :k]
    return x, y


def dense_gaussian(rng: Rng, n: int, d: int, nats: float) -> Sample:
    """The same information spread over all columns by rotations."""
    x, y = gaussian(rng, n, d, nats, related=2)
    turn = np.random.default_rng(1)
    return x @ np.linalg.qr(turn.normal(size=(d, d)))[0], y @ np.linalg.qr(turn.normal(size=(d, d)))[0]


def mixed_gaussian(rng: Rng, n: int, d: int, nats: float) -> Sample:
    """Each side bent, turned and bent again: one-to-one, so the information stays."""
    turn = np.random.default_rng(2)

    def bend(z: np.ndarray) -> np.ndarray:
        z = np.sign(z) * np.abs(z) ** 1.5 + 0.3 * z
        return np.arcsinh(2 * z @ np.linalg.qr(turn.normal(size=(d, d)))[0])

    x, y = gaussian(rng, n, d, nats)
    return bend(x), bend(y)


def student(rng: Rng, n: int, d: int, nu: float, rho: float = 0.0) -> Sample:
    x, y = rng.normal(size=(2, n, d))
    y = rho * x + math.sqrt(1 - rho**2) * y
    size = np.sqrt(rng.chisquare(nu, size=(n, 1)) / nu)
    return x / size, y / size


def student_truth(d: int, nu: float, rho: float = 0.0) -> float:
    def h(k: int) -> float:
        return (
            gammaln(nu / 2)
            - gammaln((nu + k) / 2)
            + k / 2 * math.log(nu * math.pi)
            + (nu + k) / 2 * (psi((nu + k) / 2) - psi(nu / 2))
        )

    return float(2 * h(d) - h(2 * d) - d / 2 * math.log(1 - rho**2))


def uniform_noise(rng: Rng, n: int, a: float, extra: int = 0) -> Sample:
    x = rng.random((n, 1 + extra))
    return x, x[:, 0] + rng.uniform(-a, a, n)


def curve(rng: Rng, n: int, shape: Callable[[np.ndarray], np.ndarray], noise: str, scale: float) -> Sample:
    x = rng.normal(size=n)
    e = rng.normal(size=n) if noise == "normal" else rng.laplace(size=n)
    return x, shape(x) + scale * e


def curve_truth(shape: Callable[[np.ndarray], np.ndarray], noise: str, scale: float) -> float:
    """h(y) - h(noise): the density of y by quadrature over x."""
    at = shape(norm.ppf((np.arange(4000) + 0.5) / 4000))
    grid = np.linspace(at.min() - 12 * scale, at.max() + 12 * scale, 12_001)
    total = np.zeros(len(grid))
    for part in np.array_split(at, 80):
        z = (grid[:, None] - part[None, :]) / scale
        total += (np.exp(-np.abs(z)) / 2 if noise == "laplace" else norm.pdf(z)).sum(axis=1) / scale
    density = total / len(at)
    h = -np.trapezoid(density * np.log(density + 1e-300), grid)
    noise_entropy = math.log(2 * math.e) if noise == "laplace" else math.log(2 * math.pi * math.e) / 2
    return float(h - noise_entropy - math.log(scale))


def square(x: np.ndarray) -> np.ndarray:
    return x**2


def wave(x: np.ndarray) -> np.ndarray:
    return np.sin(3 * x)


def line(x: np.ndarray) -> np.ndarray:
    return x


def spiral(rng: Rng, n: int, noise: float) -> Sample:
    angle = rng.uniform(0, 4 * np.pi, n)
    return angle, np.stack([angle * np.cos(angle), angle * np.sin(angle)], axis=1) + noise * rng.normal(
        size=(n, 2)
    )


def spiral_truth(noise: float) -> float:
    """mean of log p(y | angle) - log p(y), p(y) by quadrature over the angle"""
    angle, y = spiral(np.random.default_rng(0), 20_000, noise)
    grid = (np.arange(3000) + 0.5) / 3000 * 4 * np.pi
    centre = np.stack([grid * np.cos(grid), grid * np.sin(grid)], axis=1)
    total = []
    for part, a in zip(np.array_split(y, 40), np.array_split(angle, 40), strict=True):
        form = -((part[:, None] - centre[None]) ** 2).sum(axis=2) / (2 * noise**2)
        conditional = -((part - np.stack([a * np.cos(a), a * np.sin(a)], axis=1)) ** 2).sum(axis=1) / (
            2 * noise**2
        )
        total.append(conditional - logsumexp(form, axis=1) + math.log(len(grid)))
    return float(np.concatenate(total).mean())


@dataclass(frozen=True)
class Blobs:
    """A mixture of Gaussians over x and y together."""

    mean: np.ndarray  # (part, 2)
    covariance: np.ndarray  # (part, 2, 2)

    def __call__(self, rng: Rng, n: int) -> Sample:
        k = rng.integers(0, len(self.mean), n)
        root = np.linalg.cholesky(self.covariance)
        z = self.mean[k] + np.einsum("nij,nj->ni", root[k], rng.normal(size=(n, 2)))
        return z[:, 0], z[:, 1]

    def truth(self) -> float:
        """mean of the exact log ratio"""
        x, y = self(np.random.default_rng(0), DRAWS)
        z = np.stack([x, y], axis=1)
        joint = []
        for m, c in zip(self.mean, self.covariance, strict=True):
            white = np.linalg.solve(np.linalg.cholesky(c), (z - m).T)
            joint.append(-0.5 * (white**2).sum(axis=0) - 0.5 * np.linalg.slogdet(2 * np.pi * c)[1])
        sides = [
            logsumexp(
                [
                    norm.logpdf(z[:, s], m[s], math.sqrt(c[s, s]))
                    for m, c in zip(self.mean, self.covariance, strict=True)
                ],
                axis=0,
            )
            for s in (0, 1)
        ]
        log_k = math.log(len(self.mean))
        return float((logsumexp(joint, axis=0) - sides[0] - sides[1] + log_k).mean())


def channel(rng: Rng, n: int, k: int, p: float) -> Sample:
    x = rng.integers(0, k, n)
    return x, np.where(rng.random(n) < p, x, rng.integers(0, k, n))


def channel_truth(k: int, p: float) -> float:
    same = p + (1 - p) / k
    return math.log(k) - entropy(np.r_[same, np.full(k - 1, (1 - p) / k)])


@cache
def code_means(levels: int, spread: float, columns: int) -> np.ndarray:
    return spread * np.random.default_rng(3).normal(size=(levels, columns))


def codes(rng: Rng, n: int, levels: int, spread: float, columns: int = 1) -> Sample:
    c = rng.integers(0, levels, n)
    return c, code_means(levels, spread, columns)[c] + rng.normal(size=(n, columns))


def codes_truth(levels: int, spread: float, columns: int = 1) -> float:
    """mean of log p(y | code) - log p(y)"""
    c, y = codes(np.random.default_rng(0), 40_000, levels, spread, columns)
    means, total = code_means(levels, spread, columns), []
    for part, codes_of_part in zip(np.array_split(y, 80), np.array_split(c, 80), strict=True):
        form = -0.5 * ((part[:, None] - means[None]) ** 2).sum(axis=2)
        total.append(form[np.arange(len(part)), codes_of_part] - logsumexp(form, axis=1) + math.log(levels))
    return float(np.concatenate(total).mean())


def sign_product(rng: Rng, n: int, factors: int, flip: float, extra: int = 0) -> Sample:
    x = rng.normal(size=(n, factors + extra))
    y = np.prod(np.sign(x[:, :factors]), axis=1) * np.where(rng.random(n) < flip, -1, 1)
    return x, y


def xor(rng: Rng, n: int, flip: float) -> Sample:
    x = rng.integers(0, 2, size=(n, 2))
    return x, x[:, 0] ^ x[:, 1] ^ (rng.random(n) < flip)


def flip_truth(flip: float) -> float:
    return math.log(2) - entropy([flip, 1 - flip])


def two_classes(rng: Rng, n: int, shift: float) -> Sample:
    y = rng.integers(0, 2, n)
    return shift * y + rng.random(n), y


def digits_with_bits(rng: Rng, n: int, bits: int, flip: float) -> Sample:
    """8 x 8 digits; the last pixels of the top row say bits of y, each wrong with some probability."""
    from sklearn.datasets import load_digits

    images = load_digits().data[rng.integers(0, 1797, n)] + rng.normal(scale=0.5, size=(n, 64))
    y = rng.integers(0, 2**bits, n)
    for b in range(bits):
        images[:, 7 - b] = 8.0 * ((y >> b & 1) ^ (rng.random(n) < flip)) + rng.normal(scale=0.5, size=n)
    return images, y


def unrelated(rng: Rng, n: int, d: int) -> Sample:
    x, y = rng.normal(size=(2, n, d))
    return x, y


def unrelated_category(rng: Rng, n: int, levels: int) -> Sample:
    return rng.integers(0, levels, n), rng.normal(size=n)


def unrelated_categories(rng: Rng, n: int, levels: int) -> Sample:
    return rng.integers(0, levels, n), rng.integers(0, levels, n)


def problems() -> list[Problem]:
    mixture = Blobs(np.zeros((2, 2)), np.array([[[1, 0.9], [0.9, 1]], [[1, -0.9], [-0.9, 1]]]))
    weaker = Blobs(np.zeros((2, 2)), np.array([[[1, 0.8], [0.8, 1]], [[1, -0.7], [-0.7, 1]]]))
    three = Blobs(np.array([[0, 0], [3, 3], [0, 4.0]]), np.array([np.eye(2)] * 3))
    categories = {"discrete": "all"}
    return [
        *(
            Problem(f"Gaussian 1x1, {t}", "Gaussian", partial(gaussian, d=1, nats=t), t)
            for t in (0.02, 0.1, 0.4, 1.5)
        ),
        *(
            Problem(f"Gaussian {d}x{d}, {t}", "Gaussian", partial(gaussian, d=d, nats=t), t)
            for d, t in ((3, 1.0), (5, 2.0), (10, 5.0))
        ),
        *(
            Problem(f"Gaussian {d}x{d}, 2 pairs", "sparse", partial(gaussian, d=d, nats=1.0, related=2), 1.0)
            for d in (25, 50)
        ),
        *(
            Problem(f"Gaussian {d}x{d}, dense", "dense", partial(dense_gaussian, d=d, nats=1.0), 1.0)
            for d in (5, 25)
        ),
        Problem("Gaussian 4x4, bent", "bent", partial(mixed_gaussian, d=4, nats=1.0), 1.0),
        Problem("Gaussian 10x10, bent", "bent", partial(mixed_gaussian, d=10, nats=3.0), 3.0),
        *(
            Problem(
                f"Student {d}x{d}, {nu} df, {rho}",
                "Student",
                partial(student, d=d, nu=nu, rho=rho),
                student_truth(d, nu, rho),
            )
            for d, nu, rho in ((1, 1, 0.0), (1, 2, 0.6), (1, 5, 0.5), (2, 2, 0.0), (5, 2, 0.0), (5, 3, 0.4))
        ),
        *(
            Problem(f"x + U(±{a})", "uniform noise", partial(uniform_noise, a=a), a - math.log(2 * a))
            for a in (0.05, 0.2)
        ),
        Problem(
            "x1 of 5 + U(±0.1)", "uniform noise", partial(uniform_noise, a=0.1, extra=4), 0.1 - math.log(0.2)
        ),
        *(
            Problem(
                f"{shape.__name__} + {scale} {noise}",
                f"{shape.__name__}, {noise}",
                partial(curve, shape=shape, noise=noise, scale=scale),
                curve_truth(shape, noise, scale),
            )
            for shape, noise, scale in (
                (line, "laplace", 0.3),
                (line, "laplace", 1.0),
                (square, "normal", 0.3),
                (square, "normal", 1.0),
                (wave, "normal", 0.3),
                (wave, "normal", 1.0),
            )
        ),
        *(
            Problem(f"spiral, noise {s}", "spiral", partial(spiral, noise=s), spiral_truth(s))
            for s in (0.5, 1.5)
        ),
        Problem("blobs ±0.9", "mixture", mixture, mixture.truth()),
        Problem("blobs 0.8, -0.7", "mixture", weaker, weaker.truth()),
        Problem("three blobs", "mixture", three, three.truth()),
        Problem("xor of bits", "xor", partial(xor, flip=0.1), flip_truth(0.1)),
        Problem("sign of a product", "xor", partial(sign_product, factors=2, flip=0.02), flip_truth(0.02)),
        Problem(
            "sign of a product, 3 columns more",
            "xor",
            partial(sign_product, factors=2, flip=0.05, extra=3),
            flip_truth(0.05),
        ),
        *(
            Problem(f"channel of {k}", "channel", partial(channel, k=k, p=p), channel_truth(k, p), categories)
            for k, p in ((2, 0.5), (5, 0.3), (10, 0.6), (50, 0.7))
        ),
        Problem(
            "channel of 500", "channel", partial(channel, k=500, p=0.7), channel_truth(500, 0.7), categories
        ),
        *(
            Problem(
                f"{k} codes, {s}, {c} columns",
                "codes",
                partial(codes, levels=k, spread=s, columns=c),
                codes_truth(k, s, c),
                {"discrete": "x"},
            )
            for k, s, c in ((3, 1.5, 1), (10, 1.0, 1), (100, 3.0, 1), (500, 2.0, 1), (5, 1.0, 2))
        ),
        Problem("two classes, overlap", "hard edges", partial(two_classes, shift=0.5), 0.5 * math.log(2)),
        *(
            Problem(
                f"digits, {b} bits",
                "digits",
                partial(digits_with_bits, bits=b, flip=0.05),
                b * flip_truth(0.05),
            )
            for b in (1, 3)
        ),
        Problem("weak Gaussian 5x5", "Gaussian", partial(gaussian, d=5, nats=0.04), 0.04),
        Problem(
            "square + 6 normal",
            "square, normal",
            partial(curve, shape=square, noise="normal", scale=6.0),
            curve_truth(square, "normal", 6.0),
        ),
        Problem(
            "channel of 2, weak", "channel", partial(channel, k=2, p=0.25), channel_truth(2, 0.25), categories
        ),
        Problem(
            "10 codes, 0.15, 1 columns",
            "codes",
            partial(codes, levels=10, spread=0.15),
            codes_truth(10, 0.15),
            {"discrete": "x"},
        ),
        Problem("xor of bits, weak", "xor", partial(xor, flip=0.4), flip_truth(0.4)),
        Problem(
            "two classes, nearly alike", "hard edges", partial(two_classes, shift=0.05), 0.05 * math.log(2)
        ),
        *(Problem(f"unrelated {d}x{d}", "independence", partial(unrelated, d=d), 0.0) for d in (1, 5, 50)),
        Problem("unrelated category and number", "independence", partial(unrelated_category, levels=10), 0.0),
        Problem(
            "unrelated categories", "independence", partial(unrelated_categories, levels=20), 0.0, categories
        ),
    ]
