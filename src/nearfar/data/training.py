"""Training data: opened by several ranks as one, with a part held out, and the draw of `labels=`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int64

from nearfar.core.splits import draw_rows
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data.open import Located
from nearfar.data.source import Limits
from nearfar.errors import UserError, counted
from nearfar.modalities import DataSet

CHECK, OPENED = "check", "opened"


def open_on_all_ranks(
    located: Located, limits: Limits, options: Mapping[str, Any], strategy: Strategy
) -> DataSet:
    """The data. Rank 0 begins, so that its caches (remote files, the result of a check) serve the others;
    where it has to check the data, all ranks share that."""
    if not strategy.is_distributed:
        return located.open(limits, **options)
    limits = replace(limits, judged_together=True)
    open_rank = _open_first if strategy.is_first else _open_other
    data = open_rank(located, limits, options, strategy)
    if strategy.broadcast_json(data.fingerprint) != data.fingerprint:
        raise UserError(
            f"{data.name} holds other {data.unit} for rank {strategy.rank} ({len(data)} of them) than for "
            "rank 0; every rank must see the same data"
        )
    return data


def _open_first(located: Located, limits: Limits, options: Mapping[str, Any], strategy: Strategy) -> DataSet:
    events: list[str] = []

    def announce(event: str) -> None:
        if not events:
            events.append(event)
            strategy.broadcast_json({"event": event})

    def join() -> Strategy:
        announce(CHECK)
        return strategy

    try:
        with strategy.keep_alive():
            data = located.open(replace(limits, join=join), **options)
    except UserError as problem:
        if not events:
            strategy.broadcast_json({"problem": str(problem)})
        raise
    announce(OPENED)
    return data


def _open_other(located: Located, limits: Limits, options: Mapping[str, Any], strategy: Strategy) -> DataSet:
    message = strategy.broadcast_json(None)
    if "problem" in message:
        raise UserError(message["problem"])
    check = message["event"] == CHECK
    stored = limits.scans is not None and not check and limits.scans.is_dir()
    limits = replace(
        limits,
        quarantine=None,
        scans=limits.scans if stored else None,
        join=lambda: strategy if check else SINGLE,
    )
    return located.open(limits, **options)


# ------------------------------------------------------------------------- held out and labelled parts


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
