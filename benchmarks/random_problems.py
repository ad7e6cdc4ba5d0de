"""Problems drawn at random: joint distributions, each with its information in nats.

They separate what constants were set on from what is reported: other draws are other problems. Truths are
tables, or the mean of the exact log ratio over 100,000 draws (standard error below 0.01 of a spread)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from problems import Problem, Rng, Sample
from scipy.special import logsumexp

DRAWS = 100_000


@dataclass(frozen=True)
class Clouds:
    """A mixture of Gaussians over x (the first columns) and y together."""

    log_weight: np.ndarray
    mean: np.ndarray
    root: np.ndarray  # Cholesky factors
    split: int

    def __call__(self, rng: Rng, n: int) -> Sample:
        k = rng.choice(len(self.mean), p=np.exp(self.log_weight), size=n)
        z = self.mean[k] + np.einsum("nij,nj->ni", self.root[k], rng.normal(size=(n, self.mean.shape[1])))
        return z[:, : self.split], z[:, self.split :]

    def log_density(self, z: np.ndarray, columns: slice) -> np.ndarray:
        terms = []
        for w, m, r in zip(self.log_weight, self.mean, self.root, strict=True):
            c = (r @ r.T)[columns, columns]
            white = np.linalg.solve(np.linalg.cholesky(c), (z - m[columns]).T)
            terms.append(w - 0.5 * (white**2).sum(axis=0) - 0.5 * np.linalg.slogdet(2 * np.pi * c)[1])
        return logsumexp(terms, axis=0)

    def truth(self) -> float:
        x, y = self(np.random.default_rng(0), DRAWS)
        joint = self.log_density(np.hstack([x, y]), slice(None))
        sides = self.log_density(x, slice(0, self.split)) + self.log_density(y, slice(self.split, None))
        return float((joint - sides).mean())


def clouds(rng: Rng) -> tuple[Callable[[Rng, int], Sample], float, dict]:
    dx, dy, parts = rng.integers(1, 4), rng.integers(1, 4), rng.integers(1, 6)
    d = int(dx + dy)
    root = np.stack([np.linalg.cholesky(np.cov(rng.normal(size=(d, d + 2)))) for _ in range(parts)])
    mixture = Clouds(
        np.log(rng.dirichlet(np.full(parts, 3.0))),
        rng.uniform(0, 2) * rng.normal(size=(parts, d)),
        root,
        int(dx),
    )
    return mixture, mixture.truth(), {}


def table(rng: Rng) -> tuple[Callable[[Rng, int], Sample], float, dict]:
    levels = int(np.exp(rng.uniform(np.log(2), np.log(60)))), int(np.exp(rng.uniform(np.log(2), np.log(30))))
    p = rng.dirichlet(np.full(levels[0] * levels[1], 10 ** rng.uniform(-1, 0.7))).reshape(levels)
    product = np.outer(p.sum(axis=1), p.sum(axis=0))
    truth = float((p[p > 0] * np.log(p[p > 0] / product[p > 0])).sum())

    def make(draw: Rng, n: int) -> Sample:
        cell = draw.choice(p.size, p=p.ravel(), size=n)
        return cell // levels[1], cell % levels[1]

    return make, truth, {"discrete": "all"}


def levels_and_number(rng: Rng) -> tuple[Callable[[Rng, int], Sample], float, dict]:
    """Levels of unequal frequency, each with its own mean and spread."""
    levels = int(np.exp(rng.uniform(np.log(2), np.log(200))))
    share = rng.dirichlet(np.full(levels, 2.0))
    mean, spread = rng.uniform(0.3, 3) * rng.normal(size=levels), np.exp(0.4 * rng.normal(size=levels))

    def make(draw: Rng, n: int) -> Sample:
        code = draw.choice(levels, p=share, size=n)
        return code, mean[code] + spread[code] * draw.normal(size=n)

    code, y = make(np.random.default_rng(0), 20_000)
    log_q = -0.5 * ((y[:, None] - mean) / spread) ** 2 - np.log(spread)
    truth = log_q[np.arange(len(y)), code] - logsumexp(log_q + np.log(share), axis=1)
    return make, float(truth.mean()), {"discrete": "x"}


def bent_line(rng: Rng) -> tuple[Callable[[Rng, int], Sample], float, dict]:
    """y = g(x) + s(x) e, g a sum of waves, s rising or falling, e normal, Laplace or uniform; extra columns
    of x are independent of y."""
    waves, phase = rng.normal(size=3) / np.arange(1, 4), rng.uniform(0, 6, 3)
    slope, size = rng.uniform(-0.5, 0.5), 10 ** rng.uniform(-1, 0.3)
    kind, extra = rng.integers(0, 3), int(rng.choice([0, 0, 3]))

    def centre(x: np.ndarray) -> np.ndarray:
        return x + (waves * np.sin(np.arange(1, 4) * x[..., None] + phase)).sum(axis=-1)

    def spread(x: np.ndarray) -> np.ndarray:
        return size * np.exp(slope * x)

    def make(draw: Rng, n: int) -> Sample:
        x = draw.normal(size=(n, 1 + extra))
        e = (draw.normal(size=n), draw.laplace(size=n), draw.uniform(-2, 2, n))[kind]
        return x, centre(x[:, 0]) + spread(x[:, 0]) * e

    def log_noise(z: np.ndarray) -> np.ndarray:
        normal = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
        return (normal, -np.abs(z) - math.log(2), np.where(np.abs(z) <= 2, -math.log(4), -1e9))[kind]

    x, y = make(np.random.default_rng(0), 10_000)
    sample = np.random.default_rng(1).normal(size=8000)
    m, s = centre(sample), spread(sample)
    p = [logsumexp(log_noise((part[:, None] - m) / s) - np.log(s), axis=1) for part in np.array_split(y, 20)]
    conditional = log_noise((y - centre(x[:, 0])) / spread(x[:, 0])) - np.log(spread(x[:, 0]))
    # the row's own x is among those averaged over: far out, no other may reach its y
    total = np.logaddexp(np.concatenate(p), conditional) - math.log(len(sample) + 1)
    return make, float((conditional - total).mean()), {}


KINDS = {"clouds": clouds, "table": table, "levels": levels_and_number, "bent line": bent_line}


def random_problems(count: int, seed: int) -> list[Problem]:
    problems = []
    for k in range(count):
        name = list(KINDS)[k % len(KINDS)]
        make, truth, options = KINDS[name](np.random.default_rng([seed, k]))
        problems.append(Problem(f"{name} {seed}.{k}", name, partial(make), truth, options))
    return problems
