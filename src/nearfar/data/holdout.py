"""The split between training data and held-out data, and the draw of `labels=`."""

import numpy as np
from jaxtyping import Int64

from nearfar.core.splits import draw_rows
from nearfar.errors import UserError, counted
from nearfar.modalities import DataSet

SHARE, MAX_HELD_OUT, MIN_HELD_OUT = 0.05, 2048, 8  # instances that are held out
MIN_INSTANCES = 1000  # smaller sets hold out nothing by default
HELD_OUT_DRAW = 2**31  # in place of an epoch: no epoch of training draws the same


def split_holdout(data: DataSet, share: float | None, seed: int) -> tuple[DataSet, DataSet | None]:
    """(training data, held-out data or None), by the seed alone; the default share is `SHARE`."""
    rows = round(len(data) * (SHARE if share is None else share))
    if share is None:
        rows = min(rows, MAX_HELD_OUT) if len(data) >= MIN_INSTANCES else 0
    if rows < MIN_HELD_OUT:
        if share:
            raise UserError(
                f"held_out was {share:g}: of the {counted(len(data), data.unit)} of {data.name} that is {rows}, too "
                "few to "
                f"contrast with one another; give a share that keeps at least {MIN_HELD_OUT}, or 0 for none"
            )
        return data, None
    held_out = data.sample(seed, HELD_OUT_DRAW, rows)
    train = np.delete(np.arange(len(data)), held_out)
    if data.cut_from is not None:
        shuffled = data.order(seed, HELD_OUT_DRAW)
        parts = _split_by_file(shuffled, data.cut_from, rows)
        train, held_out = (train, held_out) if parts is None else (np.sort(part) for part in parts)
    return data.subset(train), data.subset(held_out)


def _split_by_file(
    shuffled: Int64[np.ndarray, "row"], cut_from: Int64[np.ndarray, "row"], rows: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Parts of one file are no independent draws: complete files are held out, and a single part of each is
    used.

    None where that would leave too few to contrast, or take much more than the share: then single rows are
    held out, and the estimate on them proves nothing (`train/unseen.py`).
    """
    files, first, sizes = np.unique(cut_from[shuffled], return_index=True, return_counts=True)
    ordered = np.argsort(first, kind="stable")  # in the order in which the shuffled rows meet them
    count = int(np.searchsorted(np.cumsum(sizes[ordered]), rows)) + 1
    selected = ordered[: max(count, MIN_HELD_OUT)]
    instances = int(sizes[selected].sum())
    if len(files) == len(cut_from) or instances > 2 * rows or instances == len(cut_from):
        return None
    train = shuffled[~np.isin(cut_from[shuffled], files[selected])]
    return train, shuffled[first[selected]]


def draw_labelled(data: DataSet, share: float | None, seed: int) -> DataSet:
    """The labelled part that the setting `labels` draws; all data without it."""
    if share is None:
        return data
    if data.labels is None:
        reason = f" ({data.unlabelled})" if data.unlabelled else ""
        raise UserError(f"labels was {share:g}, but {data.name} has no labels to draw by{reason}")
    return data.subset(draw_rows(data.labels, share, seed))
