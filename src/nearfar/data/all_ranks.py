"""Data that several ranks open as one: they share the full check, and all must open the same."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data.open import Located
from nearfar.data.source import Limits
from nearfar.errors import UserError
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
