"""Data that several processes open as one: they share the work of looking at everything, and all must find the same."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data.open import Located
from nearfar.data.scan import Limits
from nearfar.data.unscanned import when_asked
from nearfar.errors import UserError
from nearfar.modalities import DataSet

SCANS, OPENED = "scans", "opened"


def opened_by_all(
    located: Located, limits: Limits, options: Mapping[str, Any], strategy: Strategy
) -> DataSet:
    """The data. Rank 0 begins, so that what it keeps (a copy of remote files, a scan) is there for the others; where it has to scan,
    all share that."""
    if not strategy.is_distributed:
        return located.open(limits, **options)
    limits = replace(limits, judged_together=True)
    data = (
        _first(located, limits, options, strategy)
        if strategy.is_first
        else _other(located, limits, options, strategy)
    )
    if strategy.broadcast_json(data.fingerprint) != data.fingerprint:
        raise UserError(
            f"{data.name} holds other {data.unit} for rank {strategy.rank} ({len(data)} of them) than for rank 0; every rank must see the "
            "same data"
        )
    return data


def judged_by_all(data: DataSet, strategy: Strategy) -> None:
    """Stops all ranks alike where what they have found to be unusable is, together, too much; called by all at the same step."""
    asked = when_asked(data)
    if asked is not None and strategy.is_distributed:
        asked.meet(strategy)


def _first(located: Located, limits: Limits, options: Mapping[str, Any], strategy: Strategy) -> DataSet:
    called: list[str] = []

    def call(word: str) -> None:
        if not called:
            called.append(word)
            strategy.broadcast_json({"word": word})

    def meet() -> Strategy:
        call(SCANS)
        return strategy

    try:
        data = located.open(replace(limits, meet=meet), **options)
    except UserError as problem:
        if not called:
            strategy.broadcast_json({"problem": str(problem)})
        raise
    call(OPENED)
    return data


def _other(located: Located, limits: Limits, options: Mapping[str, Any], strategy: Strategy) -> DataSet:
    said = strategy.broadcast_json(None)
    if "problem" in said:
        raise UserError(said["problem"])
    scans = said["word"] == SCANS
    kept = limits.scans if not scans and limits.scans is not None and limits.scans.is_dir() else None
    limits = replace(limits, quarantine=None, scans=kept, meet=lambda: strategy if scans else SINGLE)
    return located.open(limits, **options)
