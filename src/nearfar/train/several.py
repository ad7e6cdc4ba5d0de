"""How the processes of one run begin alike: from one checkpoint."""

from pathlib import Path

import torch

from nearfar.core.strategy import Strategy
from nearfar.run.checkpoints import Loaded


def of_first(loaded: Loaded | None, strategy: Strategy) -> Loaded | None:
    """The checkpoint that rank 0 has read: the others need not see its folder."""
    if not strategy.is_distributed:
        return loaded
    kinds = loaded and {name: [str(t.dtype)[6:], list(t.shape)] for name, t in loaded.tensors.items()}
    told = strategy.broadcast_json(
        loaded and {"path": str(loaded.path), "facts": loaded.facts, "kinds": kinds}
    )
    if told is None:
        return None
    if loaded is None:
        empty = {
            n: torch.empty(shape, dtype=getattr(torch, kind)) for n, (kind, shape) in told["kinds"].items()
        }
        loaded = Loaded(Path(told["path"]), empty, told["facts"])
    strategy.broadcast([loaded.tensors[name] for name in told["kinds"]])
    return loaded
