"""How the processes of one run begin alike: from one checkpoint, on the same data."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nearfar.data import Limits, Located
from nearfar.errors import UserError
from nearfar.modalities import DataSet
from nearfar.ranks import Ranks
from nearfar.run.checkpoints import Loaded


def of_first(loaded: Loaded | None, ranks: Ranks) -> Loaded | None:
    """The checkpoint that rank 0 has read: the others need not see its folder."""
    if not ranks.several:
        return loaded
    kinds = loaded and {name: [str(t.dtype)[6:], list(t.shape)] for name, t in loaded.tensors.items()}
    told = ranks.told(loaded and {"path": str(loaded.path), "facts": loaded.facts, "kinds": kinds})
    if told is None:
        return None
    if loaded is None:
        empty = {
            n: torch.empty(shape, dtype=getattr(torch, kind)) for n, (kind, shape) in told["kinds"].items()
        }
        loaded = Loaded(Path(told["path"]), empty, told["facts"])
    ranks.copy_first([loaded.tensors[name] for name in told["kinds"]])
    return loaded


def opened_by_all(located: Located, limits: Limits, options: Mapping[str, Any], ranks: Ranks) -> DataSet:
    """The data, opened by rank 0 first, which keeps the scan that the others then read. All must have found the same."""
    if not ranks.several:
        return located.open(limits, **options)
    if not ranks.first:
        ranks.wait()
        kept = limits.scans if limits.scans is not None and limits.scans.is_dir() else None
        limits = replace(limits, quarantine=None, scans=kept)
    data = located.open(limits, **options)
    if ranks.first:
        ranks.wait()
    if ranks.told(data.fingerprint) != data.fingerprint:
        raise UserError(
            f"{data.name} holds other {data.unit} for rank {ranks.rank} ({len(data)} of them) than for rank 0; every rank must see the "
            "same data"
        )
    return data
