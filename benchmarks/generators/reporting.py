"""Random problems for reporting: latent graphs, copulas, partitions and sums on a circle.

    python benchmarks/generators/reporting.py [COUNT] [SEED]      lists problems with kind, columns and nats

Nothing here is shared with calibration.py but the frame (problem.py). Cores:

    graph      a tree of hidden states emits columns of any kind on both sides; a sum over all states is exact
    copula     Clayton, Frank, Joe or Plackett, a side possibly cut into levels; closed form
    partition  random boxes in the unit cube (thresholds, parity) decide an effect; volumes are exact
    circle     y = (sum of a_i x_i + noise) mod 1; y is uniform, so the ratio is the density of the noise
    heavy      Student's t with shared size; closed form
    shapes     pictures of a disc, ring, cross or square with Poisson noise
"""

import itertools
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import betaln, gammaln, ive, logsumexp

from generators.problem import Array, Core, Look, Problem, Rng, joined

ROWS_AT_ONCE = 2000
MAX_STATES = 200  # of a graph's hidden nodes together
WRAPS = np.arange(-6, 7)


class Emission(NamedTuple):
    """A column given a hidden state. `log_density(column)` is (row, state); `draw(rng, state)` is (row,)."""

    kind: str
    log_density: Callable[[Array], Array]
    draw: Callable[[Rng, Array], Array]


def random_emission(rng: Rng, values: Array, family: str = "any") -> Emission:
    """`values`: a number per hidden state, spread about 1. `family`: numbers, levels or any."""
    numeric = [gamma_emission, normal_emission, cauchy_emission, zero_emission, turn_emission]
    levels = [shop_emission, level_emission]
    makers = {"numbers": numeric, "levels": levels, "any": numeric + 2 * levels}[family]
    return makers[rng.integers(len(makers))](rng, values)


def normal_emission(rng: Rng, values: Array) -> Emission:
    """Normal with a spread of its own in every state."""
    means, spread = values * rng.uniform(0.5, 2.5), np.exp(0.4 * rng.normal(size=len(values)))
    return Emission(
        "number",
        lambda c: -0.5 * ((c[:, None] - means) / spread) ** 2 - np.log(spread) - 0.5 * np.log(2 * np.pi),
        lambda r, t: means[t] + spread[t] * r.normal(size=len(t)),
    )


def gamma_emission(rng: Rng, values: Array) -> Emission:
    shape, scale = rng.uniform(0.6, 6), np.exp(values * rng.uniform(0.3, 1.2))
    return Emission(
        "number",
        lambda c: (
            (shape - 1) * np.log(c[:, None]) - c[:, None] / scale - shape * np.log(scale) - gammaln(shape)
        ),
        lambda r, t: np.maximum(r.gamma(shape, size=len(t)) * scale[t], 1e-12),
    )


def cauchy_emission(rng: Rng, values: Array) -> Emission:
    means = values * rng.uniform(1, 4)
    return Emission(
        "number",
        lambda c: -np.log(np.pi) - np.log1p((c[:, None] - means) ** 2),
        lambda r, t: means[t] + r.standard_cauchy(len(t)),
    )


def zero_emission(rng: Rng, values: Array) -> Emission:
    """Zero, or an exponential amount; both depend on the state."""
    share, scale = 1 / (1 + np.exp(-1.5 * values)), np.exp(rng.uniform(0, 0.8) * values)

    def log_density(c: Array) -> Array:
        amount = np.log1p(-share) - c[:, None] / scale - np.log(scale)
        return np.where(c[:, None] == 0, np.log(share), amount)

    def draw(r: Rng, t: Array) -> Array:
        return np.where(r.random(len(t)) < share[t], 0.0, r.exponential(size=len(t)) * scale[t])

    return Emission("atoms", log_density, draw)


def shop_emission(rng: Rng, values: Array) -> Emission:
    """A negative binomial count."""
    size, mean = rng.uniform(1, 5), np.exp(rng.uniform(0.5, 2) + rng.uniform(0.3, 1) * values)
    p = size / (size + mean)

    def log_density(c: Array) -> Array:
        k = c[:, None]
        return gammaln(k + size) - gammaln(size) - gammaln(k + 1) + size * np.log(p) + k * np.log1p(-p)

    return Emission("count", log_density, lambda r, t: r.negative_binomial(size, p[t]).astype(float))


def turn_emission(rng: Rng, values: Array) -> Emission:
    """An angle: wrapped normal round a place of the state's own."""
    places, spread = np.mod(values * rng.uniform(1, 3), 2 * np.pi), rng.uniform(0.3, 1.2)

    def log_density(c: Array) -> Array:
        gap = (c[:, None, None] - places[:, None] + 2 * np.pi * WRAPS[4:-4]) / spread
        return logsumexp(-0.5 * gap**2, axis=2) - np.log(spread * np.sqrt(2 * np.pi))

    return Emission(
        "angle", log_density, lambda r, t: np.mod(places[t] + spread * r.normal(size=len(t)), 2 * np.pi)
    )


def level_emission(rng: Rng, values: Array) -> Emission:
    """A category whose shares are drawn anew in every state."""
    levels = int(np.exp(rng.uniform(np.log(2), np.log(30))))
    shares = rng.dirichlet(np.full(levels, 10 ** rng.uniform(-0.7, 0.5)), size=len(values)) + 1e-9
    shares /= shares.sum(axis=1, keepdims=True)
    edges = np.cumsum(shares, axis=1)

    def draw(r: Rng, t: Array) -> Array:
        return (r.random((len(t), 1)) > edges[t]).sum(axis=1).clip(max=levels - 1).astype(float)

    return Emission("category", lambda c: np.log(shares).T[c.astype(int)], draw)


def graph(rng: Rng) -> Core:
    """A tree of two to four hidden nodes; every column reads one node, or the product of two."""
    count = int(rng.integers(2, 5))
    sizes = [int(rng.integers(2, 13)) for _ in range(count)]
    while np.prod(sizes) > MAX_STATES:
        sizes[int(np.argmax(sizes))] -= 1
    states = np.array(list(itertools.product(*[range(size) for size in sizes])))
    log_weights = np.zeros(len(states))
    for node, size in enumerate(sizes):
        parent = int(rng.integers(node)) if node else None
        rows = 1 if parent is None else sizes[parent]
        kernel = np.log(rng.dirichlet(np.full(size, 0.5 if node else 3.0), size=rows) + 1e-9)
        kernel -= logsumexp(kernel, axis=1, keepdims=True)
        log_weights += kernel[0 if parent is None else states[:, parent], states[:, node]]
    weights = np.exp(log_weights - logsumexp(log_weights))
    log_weights = np.log(weights)
    numbers_of = [rng.permutation(np.linspace(-1.5, 1.5, size)) for size in sizes]

    def values() -> Array:
        first, second = rng.integers(count, size=2)
        value = numbers_of[first][states[:, first]]
        return value * numbers_of[second][states[:, second]] if rng.random() < 0.3 else value

    family = str(rng.choice(["any", "numbers", "levels"]))
    sides = [
        [random_emission(rng, values(), family) for _ in range(rng.choice([1, 1, 2, 3, 6, 12]))]
        for _ in range(2)
    ]

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        t = r.choice(len(states), p=weights, size=n)
        u, v = (np.stack([emission.draw(r, t) for emission in side], axis=1) for side in sides)
        return u, v

    def log_ratio(u: Array, v: Array) -> Array:
        parts = []
        for rows in np.array_split(np.arange(len(u)), max(1, len(u) // ROWS_AT_ONCE)):
            a, b = (
                np.sum([emission.log_density(z[rows, k]) for k, emission in enumerate(side)], axis=0)
                for z, side in zip((u, v), sides, strict=True)
            )
            sums = [logsumexp(term + log_weights, axis=1) for term in (a + b, a, b)]
            parts.append(sums[0] - sums[1] - sums[2])
        return np.concatenate(parts)

    kinds = tuple(tuple(emission.kind for emission in side) for side in sides)
    return Core(draw, log_ratio, (kinds[0], kinds[1]), f"graph of {count} hidden nodes")


class Copula(NamedTuple):
    """Log density c(a, b), and P(B <= b | A = a), on the unit square."""

    name: str
    log_density: Callable[[Array, Array], Array]
    conditional: Callable[[Array, Array], Array]


def random_copula(rng: Rng) -> Copula:
    t = float(np.exp(rng.uniform(np.log(0.3), np.log(9))))

    def clayton(a: Array, b: Array) -> Array:
        total = a**-t + b**-t - 1
        return np.log1p(t) - (1 + t) * np.log(a * b) - (2 + 1 / t) * np.log(total)

    def frank(a: Array, b: Array) -> Array:
        x, y, all_ = -np.expm1(-t * a), -np.expm1(-t * b), -np.expm1(-t)
        return np.log(t * all_) - t * (a + b) - 2 * np.log(all_ - x * y)

    def joe(a: Array, b: Array) -> Array:
        k, p, q = 1 + t, (1 - a) ** (1 + t), (1 - b) ** (1 + t)
        s = p + q - p * q
        return (1 / k - 2) * np.log(s) + (k - 1) * np.log((1 - a) * (1 - b)) + np.log(k - 1 + s)

    odds = 1 + 2 * t

    def plackett(a: Array, b: Array) -> Array:
        g = odds - 1
        root = (1 + g * (a + b)) ** 2 - 4 * odds * g * a * b
        return np.log(odds) + np.log1p(g * (a + b - 2 * a * b)) - 1.5 * np.log(root)

    def plackett_conditional(a: Array, b: Array) -> Array:
        g = odds - 1
        root = np.sqrt((1 + g * (a + b)) ** 2 - 4 * odds * g * a * b)
        return 0.5 - (1 + g * (a + b) - 2 * odds * b) / (2 * root)

    choices = [
        Copula("Clayton", clayton, lambda a, b: (1 + a**t * (b**-t - 1)) ** (-1 - 1 / t)),
        Copula(
            "Frank",
            frank,
            lambda a, b: (
                np.exp(-t * a) * np.expm1(-t * b) / (np.expm1(-t) + np.expm1(-t * a) * np.expm1(-t * b))
            ),
        ),
        Copula(
            "Joe",
            joe,
            lambda a, b: (
                ((1 - a) ** (1 + t) + (1 - b) ** (1 + t) - ((1 - a) * (1 - b)) ** (1 + t))
                ** (1 / (1 + t) - 1)
                * (1 - a) ** t
                * (1 - (1 - b) ** (1 + t))
            ),
        ),
        Copula("Plackett", plackett, plackett_conditional),
    ]
    return choices[rng.integers(4)]


def copula(rng: Rng) -> Core:
    """v in full, or cut into levels. Draws of b invert P(B <= b | a) by bisection."""
    rule = random_copula(rng)
    levels = int(rng.integers(2, 12)) if rng.random() < 0.4 else 0
    edges = np.r_[1e-12, np.sort(rng.uniform(0.05, 0.95, max(levels - 1, 0))), 1 - 1e-12]
    log_shares = np.log(np.diff(edges))

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        a, share = r.uniform(1e-9, 1 - 1e-9, size=(2, n))
        low, high = np.full(n, 1e-12), np.full(n, 1 - 1e-12)
        for _ in range(50):
            middle = (low + high) / 2
            below = rule.conditional(a, middle) < share
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        b = (low + high) / 2
        return a[:, None], (np.digitize(b, edges[1:-1]).astype(float) if levels else b)[:, None]

    def log_ratio(u: Array, v: Array) -> Array:
        a = u[:, 0]
        if not levels:
            return rule.log_density(a, v[:, 0])
        code = v[:, 0].astype(int)
        share = rule.conditional(a, edges[code + 1]) - rule.conditional(a, edges[code])
        return np.log(np.maximum(share, 1e-300)) - log_shares[code]

    kinds = ("share",), ("category" if levels else "share",)
    return Core(draw, log_ratio, kinds, f"{rule.name}{f' in {levels} levels' if levels else ''}")


def partition(rng: Rng) -> Core:
    """Columns cut at random places; each box of their product has an effect of its own (or that of its
    parity)."""
    count = int(rng.integers(1, 4))
    edges = [np.r_[0, np.sort(rng.uniform(0.1, 0.9, int(rng.integers(1, 4)))), 1] for _ in range(count)]
    shares = np.prod(np.meshgrid(*[np.diff(edge) for edge in edges], indexing="ij"), axis=0)
    if rng.random() < 0.4:
        group = np.indices(shares.shape).sum(axis=0) % 2
    else:
        group = rng.integers(0, min(8, shares.size), size=shares.shape)
    group = np.unique(group, return_inverse=True)[1].reshape(shares.shape)
    weights = np.bincount(group.ravel(), shares.ravel())
    emission = random_emission(rng, rng.permutation(np.linspace(-1.5, 1.5, len(weights))))

    def group_of(u: Array) -> Array:
        places = [np.digitize(u[:, k], edge[1:-1]) for k, edge in enumerate(edges)]
        return group[tuple(places)]

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        u = r.random((n, count))
        return u, emission.draw(r, group_of(u))[:, None]

    def log_ratio(u: Array, v: Array) -> Array:
        densities = emission.log_density(v[:, 0])
        own = np.take_along_axis(densities, group_of(u)[:, None], axis=1)[:, 0]
        return own - logsumexp(densities + np.log(weights), axis=1)

    return Core(draw, log_ratio, (("share",) * count, (emission.kind,)), f"partition of {count} columns")


def circle(rng: Rng) -> Core:
    count = int(rng.integers(1, 4))
    slopes, spread = rng.integers(1, 4, size=count), np.exp(rng.uniform(np.log(0.02), np.log(0.25)))
    normal = rng.random() < 0.6

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        u = r.random((n, count))
        noise = r.normal(size=n) if normal else r.laplace(size=n)
        return u, np.mod(u @ slopes + spread * noise, 1)[:, None]

    def log_ratio(u: Array, v: Array) -> Array:
        gap = np.mod(v[:, 0] - u @ slopes + 0.5, 1) - 0.5
        turns = (gap[:, None] + WRAPS) / spread
        if normal:
            return logsumexp(-0.5 * turns**2, axis=1) - np.log(spread * np.sqrt(2 * np.pi))
        return logsumexp(-np.abs(turns), axis=1) - np.log(2 * spread)

    return Core(draw, log_ratio, (("share",) * count, ("share",)), f"circle of {count}")


def heavy(rng: Rng) -> Core:
    """Multivariate Student's t: correlated pairs of columns that share their size."""
    count, df = int(rng.integers(1, 7)), float(rng.uniform(1.5, 8))
    rho = rng.uniform(-0.95, 0.95, size=count)

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        u, e = r.normal(size=(2, n, count))
        size = np.sqrt(df / r.chisquare(df, size=(n, 1)))
        return u * size, (rho * u + np.sqrt(1 - rho**2) * e) * size

    def log_density(form: Array, d: int) -> Array:
        constant = gammaln((df + d) / 2) - gammaln(df / 2) - d / 2 * np.log(df * np.pi)
        return constant - (df + d) / 2 * np.log1p(form / df)

    def log_ratio(u: Array, v: Array) -> Array:
        both = ((u**2 + v**2 - 2 * rho * u * v) / (1 - rho**2)).sum(axis=1)
        joint = log_density(both, 2 * count) - 0.5 * np.log1p(-(rho**2)).sum()
        return joint - log_density((u**2).sum(axis=1), count) - log_density((v**2).sum(axis=1), count)

    kinds = ("number",) * count
    return Core(draw, log_ratio, (kinds, kinds), f"heavy, {df:.1f} degrees of freedom")


def shapes(rng: Rng) -> Core:
    """Pictures of four shapes at nine places; counts of light in each pixel; an effect of shape or place."""
    size = int(rng.choice([7, 10]))
    row, column = np.mgrid[:size, :size]
    pictures, shape_of, place_of = [], [], []
    places = list(itertools.product(np.linspace(2, size - 3, 3), repeat=2))
    for place, (y, x) in enumerate(places):
        distance = np.hypot(row - y, column - x)
        across = np.minimum(np.abs(row - y), np.abs(column - x))
        near = np.maximum(np.abs(row - y), np.abs(column - x))
        for shape, mask in enumerate(
            (distance < 1.6, (distance > 1.4) & (distance < 2.5), (across < 0.7) & (near < 2.6), near < 2.1)
        ):
            pictures.append(mask.ravel())
            shape_of.append(shape)
            place_of.append(place)
    light = 0.5 + rng.uniform(0.5, 4) * np.array(pictures)  # (template, pixel)
    values = np.array(shape_of if rng.random() < 0.5 else place_of, float)
    emission = random_emission(rng, (values - values.mean()) / values.std())

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        t = r.integers(0, len(light), n)
        return r.poisson(light[t]).astype(float), emission.draw(r, t)[:, None]

    def log_ratio(u: Array, v: Array) -> Array:
        picture, effect = u @ np.log(light).T - light.sum(axis=1), emission.log_density(v[:, 0])
        both = logsumexp(picture + effect, axis=1)
        return both - logsumexp(picture, axis=1) - logsumexp(effect, axis=1) + np.log(len(light))

    return Core(draw, log_ratio, (("pixel",) * size**2, (emission.kind,)), "shapes")


def beta_core(rng: Rng) -> Core:
    """A hidden share with a beta prior: two counts out of m and k draws (beta-binomial). Weak to moderate."""
    p, q = rng.uniform(0.3, 4, size=2)
    m, k = (int(np.exp(rng.uniform(np.log(2), np.log(200)))) for _ in range(2))

    def log_mass(successes: Array, trials: int) -> Array:
        return betaln(successes + p, trials - successes + q) - betaln(p, q)

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        share = r.beta(p, q, size=n)
        return r.binomial(m, share)[:, None].astype(float), r.binomial(k, share)[:, None].astype(float)

    def log_ratio(u: Array, v: Array) -> Array:
        # binomial coefficients cancel
        return (log_mass(u + v, m + k) - log_mass(u, m) - log_mass(v, k))[:, 0]

    return Core(draw, log_ratio, (("count",), ("count",)), f"counts of {m} and {k} draws")


def bessel_core(rng: Rng) -> Core:
    """A direction in the plane and a second one near it (von Mises); both uniform, shown as two coordinates
    or one angle."""
    kappa = np.exp(rng.uniform(np.log(0.3), np.log(30)))
    constant = np.log(ive(0, kappa))

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        u = r.uniform(0, 2 * np.pi, size=n)
        v = np.mod(u + r.vonmises(0, kappa, size=n), 2 * np.pi)
        radius = r.gamma(3.0, size=n)
        return np.stack([radius * np.cos(u), radius * np.sin(u)], axis=1), v[:, None]

    def log_ratio(u: Array, v: Array) -> Array:
        return kappa * (np.cos(np.arctan2(u[:, 1], u[:, 0]) - v[:, 0]) - 1) - constant

    information = float(kappa * ive(1, kappa) / ive(0, kappa) - kappa - constant)
    return Core(draw, log_ratio, (("number", "number"), ("angle",)), "directions", information)


def random_show(rng: Rng, kind: str) -> Callable[[Array], Array]:
    """Units and one-to-one bends; a uniform column (share) may become Pareto, Weibull or logistic."""
    if kind == "share":
        return share_show(rng)
    unit, shift = 10 ** rng.uniform(-3, 2), rng.normal()
    if kind == "category":
        names = rng.permutation(list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"))
        return (lambda c: names[c.astype(int)]) if rng.random() < 0.5 else (lambda c: c)
    if kind in ("count", "pixel", "angle", "atoms"):
        return lambda c: c
    bends: list[Callable[[Array], Array]] = [
        lambda c: c,
        lambda c: c * np.sqrt(np.abs(c)),
        lambda c: np.sign(c) * np.log1p(np.abs(5 * c)),
        lambda c: np.where(c < 0, 0.3 * c, 2 * c),
    ]
    bend = bends[rng.integers(len(bends))]
    return lambda c: unit * (bend(c) + shift)


def share_show(rng: Rng) -> Callable[[Array], Array]:
    tail = rng.uniform(0.8, 3)
    shows: list[Callable[[Array], Array]] = [
        lambda c: c,
        lambda c: (1 - c + 1e-12) ** (-1 / tail),
        lambda c: (-np.log(1 - c + 1e-12)) ** (1 / tail),
        lambda c: np.log(c + 1e-12) - np.log(1 - c + 1e-12),
    ]
    return shows[rng.integers(len(shows))]


Noise = tuple[str, Callable[[Rng, int], Array]]
NUMBER_NOISE: list[Noise] = [
    ("number", lambda r, n: r.weibull(1.2, size=n)),
    ("number", lambda r, n: r.pareto(2.0, size=n)),
    ("number", lambda r, n: r.triangular(-1, 0.5, 2, size=n)),
]
LEVEL_NOISE: list[Noise] = [
    ("count", lambda r, n: r.geometric(0.3, size=n).astype(float)),
    ("category", lambda r, n: r.integers(0, 5, size=n).astype(float)),
]


def random_look(rng: Rng, kinds: tuple[str, ...], extra: int) -> Look:
    """Core columns and `extra` others: some say nothing, some share a hidden cause of no interest."""
    shows = [random_show(rng, kind) for kind in kinds]
    discrete = {kind in ("count", "category") for kind in kinds}
    pool = LEVEL_NOISE if discrete == {True} else NUMBER_NOISE
    if len(discrete) == 2 or rng.random() < 0.25:
        pool = NUMBER_NOISE + LEVEL_NOISE
    noises = [pool[rng.integers(len(pool))] for _ in range(extra)]
    loads = rng.normal(size=extra) * (rng.random(extra) < 0.5)
    order = np.arange(len(kinds) + extra) if "pixel" in kinds else rng.permutation(len(kinds) + extra)

    def columns(core: Array, r: Rng) -> list[Array]:
        cause = r.normal(size=len(core))
        shown = [show(column) for show, column in zip(shows, core.T, strict=True)]
        for (kind, maker), load in zip(noises, loads, strict=True):
            noise = maker(r, len(core))
            shown.append(noise + load * cause if kind == "number" else noise)
        return [shown[k] for k in order]

    shown_kinds = kinds + tuple(kind for kind, _ in noises)
    return Look(columns, tuple(shown_kinds[k] for k in order))


def random_problem(seed: int, index: int) -> Problem:
    """Problem `index` of a series: always the same one for a seed."""
    rng = np.random.default_rng([seed, index, 72])
    makers = [graph] * 4 + [
        copula,
        partition,
        partition,
        circle,
        heavy,
        shapes,
        shapes,
        beta_core,
        bessel_core,
    ]
    maker = makers[rng.integers(len(makers))]
    core = maker(rng)
    if maker in (copula, beta_core, heavy) and rng.random() < 0.4:
        core = joined([core, maker(rng)])
    if rng.random() < 0.5:
        core = core.swapped()
    if rng.random() < 0.06:
        core = without_relation(core)
    widest = 10 ** rng.choice([0.0, 0.95, 2.0, 2.69], p=[0.4, 0.25, 0.2, 0.15])
    looks = []
    for kinds in core.kinds:
        total = int(widest ** rng.uniform(0.5, 1)) if rng.random() < 0.7 else 0
        looks.append(random_look(rng, kinds, 0 if "pixel" in kinds else max(0, total - len(kinds))))
    return Problem(f"reporting {seed}.{index}: {core.label}", core, (looks[0], looks[1]))


def without_relation(core: Core) -> Core:
    """The same sides, drawn independently."""

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        return core.draw(r, n)[0], core.draw(r, n)[1]

    return Core(draw, lambda u, v: np.zeros(len(u)), core.kinds, f"{core.label}, unrelated", 0.0)


def main(count: int = 20, seed: int = 0) -> None:
    for index in range(count):
        problem = random_problem(seed, index)
        print(f"{problem.name:<60} {problem.kind:<8} {problem.columns!s:<11} {problem.truth:.3f} nats")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
