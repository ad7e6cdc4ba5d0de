"""What is trained on: all of the data, but for a small part that nothing is fitted to, so that a number on it can prove something,
and but for what `labels=` leaves out."""

import numpy as np
from jaxtyping import Int64

from nearfar.core.splits import drawn
from nearfar.errors import UserError
from nearfar.modalities import DataSet

SHARE, MOST, FEWEST = 0.05, 2048, 8  # instances kept aside
ENOUGH = 1000  # instances, from which on some are kept aside unasked
HELD_OUT_DRAW = 2**31  # in place of an epoch: no epoch of training draws the same


def kept_aside(images: DataSet, share: float | None, seed: int) -> tuple[DataSet, DataSet | None]:
    """What is trained on and what is not: a function of the seed alone. No share: `SHARE`, where there is enough."""
    rows = round(len(images) * (SHARE if share is None else share))
    if share is None:
        rows = min(rows, MOST) if len(images) >= ENOUGH else 0
    if rows < FEWEST:
        if share:
            raise UserError(
                f"held_out was {share:g}: of the {len(images)} {images.unit} of {images.name} that is {rows}, too few to "
                f"contrast with one another; give a share that keeps at least {FEWEST}, or 0 for none"
            )
        return images, None
    aside = images.sample(seed, HELD_OUT_DRAW, rows)
    train = np.delete(np.arange(len(images)), aside)
    if images.cut_from is not None:
        shuffled = images.order(seed, HELD_OUT_DRAW)
        found = _by_whole(shuffled, images.cut_from, rows)
        train, aside = (train, aside) if found is None else (np.sort(part) for part in found)
    return images.subset(train), images.subset(aside)


def _by_whole(
    shuffled: Int64[np.ndarray, "row"], cut_from: Int64[np.ndarray, "row"], rows: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Parts of one whole are no independent draws: whole files are kept aside, and of each a single part.

    None where that would leave too few to contrast, or take much more than was asked for: then rows are kept aside as they come, and
    the estimate on them proves nothing (`train/unseen.py`).
    """
    wholes, first, sizes = np.unique(cut_from[shuffled], return_index=True, return_counts=True)
    drawn = np.argsort(first, kind="stable")  # in the order in which the shuffled rows meet them
    enough = int(np.searchsorted(np.cumsum(sizes[drawn]), rows)) + 1
    chosen = drawn[: max(enough, FEWEST)]
    taken = int(sizes[chosen].sum())
    if len(wholes) == len(cut_from) or taken > 2 * rows or taken == len(cut_from):
        return None
    train = shuffled[~np.isin(cut_from[shuffled], wholes[chosen])]
    return train, shuffled[first[chosen]]


def few_labelled(data: DataSet, asked: float | None, seed: int) -> DataSet:
    """The part of the data that `labels=` draws; all of them without it."""
    if asked is None:
        return data
    if data.labels is None:
        why = f" ({data.unlabelled})" if data.unlabelled else ""
        raise UserError(f"labels was {asked:g}, but {data.name} has no labels to draw by{why}")
    return data.subset(drawn(data.labels, asked, seed))
