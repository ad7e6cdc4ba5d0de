"""Random problems for calibration: structural equations from roots to an effect.

    python benchmarks/generators/calibration.py [COUNT] [SEED]      lists problems with kind, columns and nats

A problem is one to three independent cores, shown as tables (problem.py). Cores: `mechanism` (up to three
roots of any kind, a random function of them, one or two noisy channels), `factors` (Gaussian embeddings),
`table` (categories), `clouds` (a mixture of Gaussians) and `bars` (pictures of bars). Density of an effect: a
sum over a fine grid of roots.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import expit, gammaln, i0e, log_ndtr, logsumexp, ndtr

from generators.problem import Array, Core, Look, Problem, Rng, joined

GRID = {1: 2000, 2: 300, 3: 56}  # nodes per continuous root, by number of roots
MAX_SCORES = 1000  # values of the score that are told apart in the density of an effect
ROWS_AT_ONCE = 2000


class Root(NamedTuple):
    """A cause. `nodes` and `weights` stand for its distribution in sums; `feature` is what functions read."""

    kind: str
    nodes: Array
    weights: Array
    draw: Callable[[Rng, int], Array]
    feature: Callable[[Array], Array]


def random_root(rng: Rng, nodes: int) -> Root:
    kind = rng.choice(["number", "number", "number", "angle", "count", "category"])
    if kind == "number":
        grid = (np.arange(nodes) - (nodes - 1) / 2) * 16 / nodes
        return Root(
            kind, grid, _normalised(np.exp(-(grid**2) / 2)), lambda r, n: r.normal(size=n), lambda u: u
        )
    if kind == "angle":
        grid, phase = (np.arange(nodes) + 0.5) * 2 * np.pi / nodes, rng.uniform(0, 6)
        return Root(
            kind,
            grid,
            np.full(nodes, 1 / nodes),
            lambda r, n: r.uniform(0, 2 * np.pi, n),
            lambda u: 1.4 * np.cos(u - phase),
        )
    if kind == "count":
        mean = rng.uniform(1, 8)
        grid = np.arange(40.0)
        weights = _normalised(np.exp(grid * np.log(mean) - gammaln(grid + 1)))
        feature = lambda u: (u - mean) / np.sqrt(mean)
    else:
        levels = int(np.exp(rng.uniform(np.log(2), np.log(40))))
        grid, weights = np.arange(float(levels)), rng.dirichlet(np.full(levels, 3.0))
        values = rng.normal(size=levels)
        feature = lambda u: values[np.asarray(u, int)]
    return Root(str(kind), grid, weights, lambda r, n: r.choice(grid, p=weights, size=n), feature)


def _normalised(weights: Array) -> Array:
    return weights / weights.sum()


def random_function(rng: Rng) -> tuple[str, Callable[[list[Array]], Array]]:
    """A function of one to three features."""
    slope, bend, wave, cut = rng.uniform(0.4, 1.5, 3), rng.uniform(0, 1.5), rng.uniform(1.5, 4), rng.normal()
    choices: dict[str, Callable[[list[Array]], Array]] = {
        "smooth": lambda t: sum(a * b for a, b in zip(slope, t, strict=False)) + bend * np.sin(1.5 * t[0]),
        "kinked": lambda t: np.maximum.reduce([np.abs(t[0]), *t[1:]]),
        "periodic": lambda t: np.sin(wave * t[0] + sum(t[1:])),
        "product": lambda t: np.prod(t, axis=0) if len(t) > 1 else t[0] ** 2,
        "parity": lambda t: np.prod([np.sign(b) for b in t], axis=0),
        "threshold": lambda t: np.all([b > cut / len(t) for b in t], axis=0).astype(float),
        "stairs": lambda t: np.floor(1.5 * sum(t)),
    }
    name = str(rng.choice(list(choices)))
    return name, choices[name]


@dataclass(frozen=True)
class Channel:
    """An effect of a score s. `log_density(v, s)` broadcasts v against s."""

    kind: str
    log_density: Callable[[Array, Array], Array]
    draw: Callable[[Rng, Array], Array]


def random_channel(rng: Rng, kinds: tuple[str, ...] = ()) -> Channel:
    makers = {
        "number": number_channel,
        "atoms": censored_channel,
        "rounded": rounded_channel,
        "count": count_channel,
        "ordered": ordered_channel,
        "nominal": nominal_channel,
        "angle": angle_channel,
    }
    names = kinds or ("number",) * 4 + tuple(makers)
    return makers[str(rng.choice(names))](rng)


LOG_NOISE: dict[str, Callable[[Array], Array]] = {
    "normal": lambda e: -0.5 * e**2 - 0.5 * np.log(2 * np.pi),
    "laplace": lambda e: -np.abs(e) - np.log(2),
    "student": lambda e: -2 * np.log1p(e**2 / 3) + np.log(2 / (np.pi * np.sqrt(3))),
    "uniform": lambda e: np.where(np.abs(e) <= 1.5, -np.log(3), -np.inf),
    "gumbel": lambda e: -e - np.exp(-np.clip(e, -500, None)),
}
DRAW_NOISE: dict[str, Callable[[Rng, tuple[int, ...]], Array]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "laplace": lambda rng, shape: rng.laplace(size=shape),
    "student": lambda rng, shape: rng.standard_t(3, size=shape),
    "uniform": lambda rng, shape: rng.uniform(-1.5, 1.5, size=shape),
    "gumbel": lambda rng, shape: rng.gumbel(size=shape),
}


def number_channel(rng: Rng) -> Channel:
    """s + scale(s) noise."""
    noise = str(rng.choice(list(LOG_NOISE)))
    size, slope = np.exp(rng.uniform(np.log(0.1), np.log(2))), rng.choice([0.0, 0.0, 0.7])
    scale = lambda s: size * np.exp(slope * np.tanh(s))
    return Channel(
        "number",
        lambda v, s: LOG_NOISE[noise]((v - s) / scale(s)) - np.log(scale(s)),
        lambda r, s: s + scale(s) * DRAW_NOISE[noise](r, s.shape),
    )


def censored_channel(rng: Rng) -> Channel:
    """max(cut, s + normal noise): an atom at the cut."""
    size, cut = rng.uniform(0.2, 1), rng.uniform(-0.7, 0.3)
    return Channel(
        "atoms",
        lambda v, s: np.where(
            v <= cut, log_ndtr((cut - s) / size), LOG_NOISE["normal"]((v - s) / size) - np.log(size)
        ),
        lambda r, s: np.maximum(cut, s + size * r.normal(size=s.shape)),
    )


def rounded_channel(rng: Rng) -> Channel:
    """s + normal noise, rounded to halves."""
    size = rng.uniform(0.2, 1)

    def log_density(v: Array, s: Array) -> Array:
        high, low = (v + 0.25 - s) / size, (v - 0.25 - s) / size
        flip = low > 0  # differences of small tails, not of numbers near one
        high, low = np.where(flip, -low, high), np.where(flip, -high, low)
        log_high = log_ndtr(high)
        return log_high + np.log1p(-np.exp(log_ndtr(low) - log_high))

    return Channel("number", log_density, lambda r, s: np.round(2 * (s + size * r.normal(size=s.shape))) / 2)


def count_channel(rng: Rng) -> Channel:
    level, slope = rng.uniform(-0.5, 2), rng.uniform(0.3, 1)
    log_mean = lambda s: np.clip(level + slope * s, -6, 6)
    return Channel(
        "count",
        lambda v, s: v * log_mean(s) - np.exp(log_mean(s)) - gammaln(v + 1),
        lambda r, s: r.poisson(np.exp(log_mean(s))).astype(float),
    )


def ordered_channel(rng: Rng) -> Channel:
    """Which interval s + logistic noise falls in."""
    size = np.exp(rng.uniform(np.log(0.05), np.log(0.7)))
    edges = np.r_[-np.inf, np.sort(rng.normal(size=int(rng.integers(1, 6)))), np.inf]

    def log_density(v: Array, s: Array) -> Array:
        code = np.asarray(v, int)
        share = expit((edges[code + 1] - s) / size) - expit((edges[code] - s) / size)
        return np.log(np.maximum(share, 1e-300))

    def draw(r: Rng, s: Array) -> Array:
        return np.digitize(s + size * r.logistic(size=s.shape), edges[1:-1]).astype(float)

    return Channel("category", log_density, draw)


def nominal_channel(rng: Rng) -> Channel:
    """Levels without order: a softmax of random waves of s."""
    levels = int(np.exp(rng.uniform(np.log(3), np.log(25))))
    slope, phase, size = rng.normal(size=levels), rng.uniform(0, 6, levels), rng.uniform(1, 4)

    def log_shares(s: Array) -> Array:
        logits = size * (slope * s[..., None] + np.sin(2 * s[..., None] + phase))
        return logits - logsumexp(logits, axis=-1, keepdims=True)

    def log_density(v: Array, s: Array) -> Array:
        shares, code = log_shares(s), np.asarray(v, int)
        if s.shape[0] == 1:  # all rows read one list of scores
            return shares[0].T[code[:, 0]]
        return np.take_along_axis(shares, code[..., None], axis=-1)[..., 0]

    def draw(r: Rng, s: Array) -> Array:
        return np.argmax(log_shares(s) + r.gumbel(size=(*s.shape, levels)), axis=-1).astype(float)

    return Channel("category", log_density, draw)


def angle_channel(rng: Rng) -> Channel:
    """Von Mises noise round the angle 1.5 s."""
    kappa = np.exp(rng.uniform(np.log(0.7), np.log(20)))
    constant = np.log(2 * np.pi * i0e(kappa))
    return Channel(
        "angle",
        lambda v, s: kappa * (np.cos(v - 1.5 * s) - 1) - constant,
        lambda r, s: np.mod(1.5 * s + r.vonmises(0, kappa, size=s.shape), 2 * np.pi),
    )


def mechanism(rng: Rng, kinds: tuple[str, ...] = ()) -> Core:
    """Roots -> score -> one or two channels (of these kinds; of any if there are none)."""
    count = int(rng.choice([1, 1, 2, 2, 3]))
    roots = [random_root(rng, GRID[count]) for _ in range(count)]
    name, function = random_function(rng)
    mesh = np.meshgrid(*[root.nodes for root in roots], indexing="ij")
    weights = np.prod(np.meshgrid(*[root.weights for root in roots], indexing="ij"), axis=0).ravel()
    raw = function([root.feature(nodes.ravel()) for root, nodes in zip(roots, mesh, strict=True)])
    mean = float(weights @ raw)
    spread = max(float(np.sqrt(weights @ (raw - mean) ** 2)), 1e-3)
    scores, log_weights = _compressed((raw - mean) / spread, weights)
    channels = [random_channel(rng, kinds) for _ in range(int(rng.choice([1, 1, 1, 2])))]

    def score(u: Array) -> Array:
        features = [root.feature(u[:, k]) for k, root in enumerate(roots)]
        return (function(features) - mean) / spread

    def log_conditional(v: Array, s: Array) -> Array:
        return np.sum([channel.log_density(v[:, k, None], s) for k, channel in enumerate(channels)], axis=0)

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        u = np.stack([root.draw(r, n) for root in roots], axis=1)
        return u, np.stack([channel.draw(r, score(u)) for channel in channels], axis=1)

    def log_ratio(u: Array, v: Array) -> Array:
        parts = []
        for rows in np.array_split(np.arange(len(u)), max(1, len(u) // ROWS_AT_ONCE)):
            s = score(u[rows])[:, None]
            own = log_conditional(v[rows], s)[:, 0]
            total = logsumexp(log_conditional(v[rows], scores[None]) + log_weights, axis=1)
            # noise with hard edges may reach v from no node of the grid, though it does from the row's own score
            nearest = log_weights[np.abs(scores - s).argmin(axis=1)]
            total = np.where(np.isneginf(total), own + nearest, total)
            parts.append(np.where(np.isneginf(own), -np.inf, own - np.where(np.isneginf(own), 0.0, total)))
        return np.concatenate(parts)

    columns = tuple(root.kind for root in roots), tuple(channel.kind for channel in channels)
    return Core(draw, log_ratio, columns, f"{name} of {count}")


def _compressed(scores: Array, weights: Array) -> tuple[Array, Array]:
    """At most MAX_SCORES values with their log weights. Bins are finer where most scores are."""
    values, inverse = np.unique(np.round(scores, 9), return_inverse=True)
    if len(values) > MAX_SCORES:
        place = np.arcsinh(2 * scores)
        inverse = ((place - place.min()) / np.ptp(place) * (MAX_SCORES - 1e-6)).astype(int)
        inverse = np.unique(inverse, return_inverse=True)[1]
    total = np.bincount(inverse, weights)
    return np.bincount(inverse, weights * scores) / total, np.log(total)


def factors(rng: Rng) -> Core:
    """Canonical correlations of a Gaussian; mixed with other columns it is a pair of embeddings."""
    count = int(rng.integers(1, 9))
    rho = np.sqrt(rng.beta(2, 2, size=count)) * 0.98

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        u, e = r.normal(size=(2, n, count))
        return u, rho * u + np.sqrt(1 - rho**2) * e

    def log_ratio(u: Array, v: Array) -> Array:
        form = (rho**2 * (u**2 + v**2) - 2 * rho * u * v) / (2 * (1 - rho**2))
        return (-0.5 * np.log1p(-(rho**2)) - form).sum(axis=1)

    kinds = ("number",) * count
    return Core(draw, log_ratio, (kinds, kinds), f"{count} factors", float(-0.5 * np.log1p(-(rho**2)).sum()))


def table(rng: Rng) -> Core:
    """One to three categories that cause one category by a random table."""
    levels = [int(np.exp(rng.uniform(np.log(2), np.log(8 if k else 60)))) for k in range(rng.integers(1, 4))]
    levels = levels[: 1 + (levels[0] < 12) * 2]
    effects = int(np.exp(rng.uniform(np.log(2), np.log(25))))
    marginals = [rng.dirichlet(np.full(level, 2.0)) for level in levels]
    weights = np.prod(np.meshgrid(*marginals, indexing="ij"), axis=0).ravel()
    conditional = rng.dirichlet(np.full(effects, 10 ** rng.uniform(-1, 0.7)), size=len(weights)) + 1e-12
    log_table = np.log(conditional) - np.log(weights @ conditional)

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        cell = r.choice(len(weights), p=weights, size=n)
        effect = (r.random((n, 1)) > np.cumsum(conditional, axis=1)[cell]).sum(axis=1).clip(max=effects - 1)
        return np.stack(np.unravel_index(cell, levels), axis=1).astype(float), effect[:, None].astype(float)

    def log_ratio(u: Array, v: Array) -> Array:
        return log_table[np.ravel_multi_index(tuple(u.astype(int).T), levels), v[:, 0].astype(int)]

    information = float((weights[:, None] * conditional * log_table).sum())
    kinds = ("category",) * len(levels), ("category",)
    return Core(draw, log_ratio, kinds, f"table {levels} to {effects}", information)


def clouds(rng: Rng) -> Core:
    """A mixture of two to five Gaussians over one to three columns a side."""
    sides, parts = rng.integers(1, 4, size=2), int(rng.integers(2, 6))
    d, split = int(sides.sum()), int(sides[0])
    log_weights, means = np.log(rng.dirichlet(np.full(parts, 3.0))), 1.5 * rng.normal(size=(parts, d))
    covariance = np.stack([np.cov(rng.normal(size=(d, d + 3))) for _ in range(parts)])
    roots = np.linalg.cholesky(covariance)

    def log_density(z: Array, columns: slice) -> Array:
        terms = []
        for log_weight, mean, part in zip(log_weights, means, covariance, strict=True):
            root = np.linalg.cholesky(part[columns, columns])
            white = np.linalg.solve(root, (z - mean[columns]).T)
            constant = np.log(np.diag(root)).sum() + 0.5 * len(root) * np.log(2 * np.pi)
            terms.append(log_weight - 0.5 * (white**2).sum(axis=0) - constant)
        return logsumexp(terms, axis=0)

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        k = r.choice(parts, p=np.exp(log_weights), size=n)
        z = means[k] + np.einsum("nij,nj->ni", roots[k], r.normal(size=(n, d)))
        return z[:, :split], z[:, split:]

    def log_ratio(u: Array, v: Array) -> Array:
        one, other = slice(0, split), slice(split, None)
        return log_density(np.hstack([u, v]), slice(None)) - log_density(u, one) - log_density(v, other)

    kinds = ("number",) * split, ("number",) * (d - split)
    return Core(draw, log_ratio, kinds, f"{parts} clouds")


def bars(rng: Rng) -> Core:
    """Pictures of a bar, upright or lying, at any place, with normal noise; a channel reads one of the two
    facts."""
    size = int(rng.choice([6, 8, 12]))
    upright = np.repeat(np.eye(size)[:, None], size, axis=1)  # (place, row, column)
    templates = np.concatenate([upright, upright.transpose(0, 2, 1)]).reshape(2 * size, -1)
    noise = rng.uniform(0.3, 1.2)
    fact = str(rng.choice(["direction", "place", "both"]))
    place, direction = np.tile(np.arange(size), 2), np.repeat([0, 1], size)
    raw = {"direction": direction, "place": place, "both": (place + direction * size // 2) % size}[fact]
    scores = (raw - raw.mean()) / raw.std()
    channel = random_channel(rng, ("number", "ordered", "nominal", "count"))

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        t = r.integers(0, len(templates), n)
        return templates[t] + noise * r.normal(size=(n, size**2)), channel.draw(r, scores[t])[:, None]

    def log_ratio(u: Array, v: Array) -> Array:
        square = (u**2).sum(axis=1)[:, None] - 2 * u @ templates.T + (templates**2).sum(axis=1)
        picture, effect = -square / (2 * noise**2), channel.log_density(v, scores[None])
        both = logsumexp(picture + effect, axis=1)
        return both - logsumexp(picture, axis=1) - logsumexp(effect, axis=1) + np.log(len(templates))

    return Core(draw, log_ratio, (("pixel",) * size**2, (channel.kind,)), f"bars, {fact}")


def show_number(rng: Rng) -> Callable[[Array], Array]:
    """A one-to-one function of a number, and a unit."""
    choices: list[Callable[[Array], Array]] = [
        lambda c: c,
        lambda c: np.sign(c) * np.abs(c) ** 2.5,
        lambda c: np.arcsinh(4 * c),
        lambda c: c + 0.9 * np.sin(c),
        lambda c: np.log1p(np.exp(np.minimum(3 * c, 30))) + np.maximum(3 * c - 30, 0),
        lambda c: ndtr(c / 2) + 1e-3 * c,
    ]
    function, unit = choices[rng.integers(len(choices))], 10 ** rng.uniform(-2, 3)
    return lambda c: unit * function(c)


def show_level(rng: Rng, kind: str) -> Callable[[Array], Array]:
    if kind == "count":
        return lambda c: c
    order, words = rng.permutation(1000), rng.random() < 0.5
    if words:
        return lambda c: np.char.add("level ", order[np.asarray(c, int)].astype(str))
    return lambda c: order[np.asarray(c, int)].astype(float)


def random_look(rng: Rng, kinds: tuple[str, ...], extra: int) -> Look:
    """Core columns and `extra` ones that say nothing more, in random order; sometimes mixed by a rotation."""
    shows = []
    for kind in kinds:
        if kind == "number":
            shows.append(show_number(rng))
        elif kind == "angle":
            start = rng.uniform(0, 6)
            shows.append(partial(lambda c, start: np.mod(c + start, 2 * np.pi), start=start))
        else:
            shows.append(show_level(rng, kind) if kind in ("count", "category") else lambda c: c)
    numeric = all(kind in ("number", "angle", "atoms", "pixel") for kind in kinds)
    discrete = all(kind in ("count", "category") for kind in kinds)
    numbers, levels = ["number", "number", "copy"], ["count", "category"]
    pool = numbers + levels
    if (numeric or discrete) and rng.random() < 0.7:
        pool = numbers if numeric else levels
    extras = [str(rng.choice(pool)) for _ in range(extra)]
    sources = [int(rng.integers(len(kinds))) for _ in extras]
    shown_extras = [show_number(rng) for _ in extras]
    width = len(kinds) + extra
    order = np.arange(width) if "pixel" in kinds else rng.permutation(width)
    plain = width > 1 and set(kinds) == {"number"} and not {"count", "category"} & set(extras)
    rotation = np.linalg.qr(rng.normal(size=(width, width)))[0] if plain and rng.random() < 0.4 else None

    def columns(core: Array, r: Rng) -> list[Array]:
        shown = [show(column) for show, column in zip(shows, core.T, strict=True)]
        for kind, source, show in zip(extras, sources, shown_extras, strict=True):
            noise = r.normal(size=len(core))
            if kind in ("count", "category"):
                shown.append(r.poisson(3.0, size=len(core)).astype(float))
            elif kind == "copy" and kinds[source] == "number":
                shown.append(core[:, source] + noise)
            else:
                shown.append(show(noise))
        if rotation is not None:
            units = np.array([10.0 ** np.round(np.log10(column.std() + 1e-9)) for column in shown])
            return list((np.stack(shown, axis=1) / units @ rotation).T)
        return [shown[k] for k in order]

    shown_kinds = kinds + tuple("number" if kind == "copy" else kind for kind in extras)
    return Look(columns, tuple(shown_kinds[k] for k in order))


def diluted(core: Core, share: float) -> Core:
    """The pair in `share` of the rows, independent draws of both sides in the others: a weak relation."""

    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        u, v = core.draw(r, n)
        return u, np.where(r.random((n, 1)) < share, v, core.draw(r, n)[1])

    def log_ratio(u: Array, v: Array) -> Array:
        return np.logaddexp(np.log(share) + core.log_ratio(u, v), np.log1p(-share))

    return Core(draw, log_ratio, core.kinds, f"{core.label}, diluted to {share:.2f}")


def unrelated(core: Core) -> Core:
    def draw(r: Rng, n: int) -> tuple[Array, Array]:
        return core.draw(r, n)[0], core.draw(r, n)[1]

    return Core(draw, lambda u, v: np.zeros(len(u)), core.kinds, f"{core.label}, unrelated", 0.0)


def random_core(rng: Rng) -> Core:
    makers = [mechanism, mechanism, mechanism, mechanism, factors, table, clouds]
    if rng.random() < 0.1:
        core = bars(rng)
    else:
        core = joined([makers[rng.integers(len(makers))](rng) for _ in range(rng.choice([1, 1, 1, 1, 2, 3]))])
    if rng.random() < 0.5:
        core = core.swapped()
    strength = rng.random()
    if strength < 0.06:
        return unrelated(core)
    return diluted(core, rng.uniform(0.2, 0.9)) if strength < 0.2 else core


def random_problem(seed: int, index: int) -> Problem:
    """Problem `index` of a series: always the same one for a seed."""
    rng = np.random.default_rng([seed, index, 27])
    core = random_core(rng)
    most = [1, 9, 99, 500][rng.choice(4, p=[0.35, 0.3, 0.2, 0.15])]
    looks = []
    for kinds in core.kinds:
        total = int(np.exp(rng.uniform(np.log(max(1, most / 9)), np.log(most)))) * int(rng.random() < 0.7)
        looks.append(random_look(rng, kinds, 0 if "pixel" in kinds else max(0, total - len(kinds))))
    return Problem(f"calibration {seed}.{index}: {core.label}", core, (looks[0], looks[1]))


def main(count: int = 20, seed: int = 0) -> None:
    for index in range(count):
        problem = random_problem(seed, index)
        print(f"{problem.name:<60} {problem.kind:<8} {problem.columns!s:<11} {problem.truth:.3f} nats")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
