"""Data that several processes open as one: they share the work of looking at everything, and all must find the same."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nearfar.data.open import Located
from nearfar.data.scan import Limits
from nearfar.data.unscanned import when_asked
from nearfar.distributed.ranks import ALONE, Ranks
from nearfar.errors import UserError
from nearfar.modalities import DataSet

SCANS, OPENED = "scans", "opened"


def opened_by_all(located: Located, limits: Limits, options: Mapping[str, Any], ranks: Ranks) -> DataSet:
    """The data. Rank 0 begins, so that what it keeps (a copy of remote files, a scan) is there for the others; where it has to scan,
    all share that."""
    if not ranks.several:
        return located.open(limits, **options)
    limits = replace(limits, judged_together=True)
    data = _first(located, limits, options, ranks) if ranks.first else _other(located, limits, options, ranks)
    if ranks.told(data.fingerprint) != data.fingerprint:
        raise UserError(
            f"{data.name} holds other {data.unit} for rank {ranks.rank} ({len(data)} of them) than for rank 0; every rank must see the "
            "same data"
        )
    return data


def judged_by_all(data: DataSet, ranks: Ranks) -> None:
    """Stops all ranks alike where what they have found to be unusable is, together, too much; called by all at the same step."""
    asked = when_asked(data)
    if asked is not None and ranks.several:
        asked.meet(ranks)


def _first(located: Located, limits: Limits, options: Mapping[str, Any], ranks: Ranks) -> DataSet:
    called: list[str] = []

    def call(word: str) -> None:
        if not called:
            called.append(word)
            ranks.told({"word": word})

    def meet() -> Ranks:
        call(SCANS)
        return ranks

    try:
        data = located.open(replace(limits, meet=meet), **options)
    except UserError as problem:
        if not called:
            ranks.told({"problem": str(problem)})
        raise
    call(OPENED)
    return data


def _other(located: Located, limits: Limits, options: Mapping[str, Any], ranks: Ranks) -> DataSet:
    said = ranks.told(None)
    if "problem" in said:
        raise UserError(said["problem"])
    scans = said["word"] == SCANS
    kept = limits.scans if not scans and limits.scans is not None and limits.scans.is_dir() else None
    limits = replace(limits, quarantine=None, scans=kept, meet=lambda: ranks if scans else ALONE)
    return located.open(limits, **options)
