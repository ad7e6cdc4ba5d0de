"""Which rows are learned from and which are reported on: every row is unseen once, groups stay on one side."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

LARGEST_BLOCK = 2048  # samples contrasted with one another at a time: 16 MB of scores
MOST_LEARNED = 100_000  # rows: what is missing from a ratio falls like one over them
DRAWS = 8  # of one row from each group of dependent rows, over which a fold is averaged

Rows = Int[np.ndarray, "row"]


@dataclass(frozen=True)
class Split:
    """Rows of one fold: those learned from, those that say when to stop, and draws of unseen ones, one of each unit."""

    train: Rows
    validation: Rows
    draws: list[Rows]
    unseen: Rows

    @property
    def rest(self) -> Rows:
        """All rows the fold may learn from, or so many of them that more would teach no ratio anything."""
        return np.concatenate([self.train, self.validation])[:MOST_LEARNED]


def splits(unit: Int[np.ndarray, "row"], folds: int, seed: int) -> list[Split]:
    """The folds of rows whose units (groups of rows that depend on one another, or single rows) these are."""
    return [_split(unit, *parts, seed=seed + k) for k, parts in enumerate(_parts(unit, folds, seed))]


def _parts(unit: np.ndarray, folds: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and held-out units, every unit held out once."""
    parts = np.array_split(np.random.default_rng(seed).permutation(int(unit.max()) + 1), folds)
    for k, held_out in enumerate(parts):
        yield np.concatenate([part for j, part in enumerate(parts) if j != k]), held_out


def _split(unit: np.ndarray, rest: np.ndarray, held_out: np.ndarray, seed: int) -> Split:
    """The fold's rows from its units; of groups with several rows, one of each is drawn at a time to report on."""
    stop, learn = np.split(rest, [min(len(rest) // 6, LARGEST_BLOCK)])
    if int(unit.max()) + 1 == len(unit):
        return Split(learn, stop, [held_out], held_out)
    rng = np.random.default_rng(seed)
    members = np.split(np.argsort(unit, kind="stable"), np.cumsum(np.bincount(unit))[:-1])
    train, validation, unseen = (
        rng.permutation(np.concatenate([members[u] for u in some])) for some in (learn, stop, held_out)
    )
    draws = [np.array([rng.choice(members[u]) for u in held_out]) for _ in range(DRAWS)]
    return Split(train, validation[:LARGEST_BLOCK], draws, unseen)


def blocks(rows: Rows, largest: int = LARGEST_BLOCK) -> list[Rows]:
    """Rows in equal blocks, each contrasted within itself."""
    return np.array_split(rows, math.ceil(len(rows) / largest))
