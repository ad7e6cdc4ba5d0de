"""A problem of known information: how to sample it, its exact log ratio, and how its columns look.

A problem has a core (u, v) whose log ratio log p(u, v) / (p(u) p(v)) is known. Each side is then shown as a
table: one-to-one transforms of core columns, columns that say nothing, and noisy copies. These leave the
ratio as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Rng = np.random.Generator
Array = np.ndarray
Table = Array | dict[str, Array]

TRUTH_ROWS = 50_000  # mean log ratio over these; its standard error is `truth_error`
CHUNK = 10_000
WIDTHS = ((1, "1 column"), (9, "2 to 9"), (99, "10 to 99"), (500, "100 to 500"))


@dataclass(frozen=True)
class Core:
    """Two sides that are related, (row, column) each, categories as codes.

    kinds: of each column of u and of v: number, share (uniform on 0 to 1), angle,
        count, category, atoms or pixel.
    """

    draw: Callable[[Rng, int], tuple[Array, Array]]
    log_ratio: Callable[[Array, Array], Array]
    kinds: tuple[tuple[str, ...], tuple[str, ...]]
    label: str
    information: float | None = None  # nats, if there is a closed form

    def swapped(self) -> "Core":
        def draw(rng: Rng, n: int) -> tuple[Array, Array]:
            return self.draw(rng, n)[::-1]

        return Core(draw, lambda u, v: self.log_ratio(v, u), self.kinds[::-1], self.label, self.information)


@dataclass(frozen=True)
class Look:
    """How one side is shown. `columns` maps core columns (row, column) to a list of columns of the table."""

    columns: Callable[[Array, Rng], list[Array]]
    kinds: tuple[str, ...]

    def table(self, core: Array, rng: Rng) -> Table:
        columns = self.columns(core, rng)
        if any(column.dtype.kind == "U" for column in columns):
            return {f"c{k}": column for k, column in enumerate(columns)}
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class Sample:
    """Row i of x belongs to row i of y. The oracle's estimate is the mean of log_ratio."""

    x: Table
    y: Table
    log_ratio: Array


@dataclass(frozen=True)
class Problem:
    """One random problem. `kind` and `width` are labels for groups."""

    name: str
    core: Core
    looks: tuple[Look, Look]

    @property
    def kind(self) -> str:
        kinds = {kind for look in self.looks for kind in look.kinds}
        if "pixel" in kinds:
            return "images"
        discrete = kinds & {"count", "category"}
        if not discrete:
            return "numbers"
        return "levels" if discrete == kinds else "mixed"

    @property
    def columns(self) -> tuple[int, int]:
        return len(self.looks[0].kinds), len(self.looks[1].kinds)

    @property
    def width(self) -> str:
        return next(label for most, label in WIDTHS if max(self.columns) <= most)

    def sample(self, n: int, seed: int) -> Sample:
        rng = np.random.default_rng([seed, n, 1])
        u, v = self.core.draw(rng, n)
        sides = [look.table(core, rng) for look, core in zip(self.looks, (u, v), strict=True)]
        return Sample(sides[0], sides[1], self.core.log_ratio(u, v))

    @cached_property
    def _log_ratios(self) -> Array:
        rng = np.random.default_rng(0)
        chunks = [self.core.log_ratio(*self.core.draw(rng, CHUNK)) for _ in range(TRUTH_ROWS // CHUNK)]
        return np.concatenate(chunks)

    @cached_property
    def truth(self) -> float:
        """Nats: the closed form, or the mean of the exact log ratio over TRUTH_ROWS draws."""
        known = self.core.information
        return float(self._log_ratios.mean()) if known is None else known

    @cached_property
    def truth_error(self) -> float:
        """Standard error of `truth`; 0 for a closed form."""
        if self.core.information is not None:
            return 0.0
        return float(self._log_ratios.std() / np.sqrt(TRUTH_ROWS))


def joined(cores: list[Core]) -> Core:
    """Independent cores side by side: log ratios and information add up."""
    ends = [np.cumsum([len(core.kinds[side]) for core in cores])[:-1] for side in (0, 1)]

    def draw(rng: Rng, n: int) -> tuple[Array, Array]:
        pairs = [core.draw(rng, n) for core in cores]
        return np.hstack([u for u, _ in pairs]), np.hstack([v for _, v in pairs])

    def log_ratio(u: Array, v: Array) -> Array:
        parts = zip(cores, np.split(u, ends[0], axis=1), np.split(v, ends[1], axis=1), strict=True)
        return np.sum([core.log_ratio(a, b) for core, a, b in parts], axis=0)

    kinds = tuple(sum((core.kinds[side] for core in cores), ()) for side in (0, 1))
    closed = [core.information for core in cores if core.information is not None]
    information = float(np.sum(closed)) if len(closed) == len(cores) else None
    return Core(
        draw, log_ratio, (kinds[0], kinds[1]), " and ".join(core.label for core in cores), information
    )


def numbers(side: Table) -> Array:
    """(row, column) of floats, for estimators that take no words: each word becomes its code."""
    columns = list(side.values()) if isinstance(side, dict) else list(np.asarray(side).T)
    return np.stack(
        [np.unique(c, return_inverse=True)[1] if c.dtype.kind == "U" else c for c in columns], axis=1
    ).astype(float)
