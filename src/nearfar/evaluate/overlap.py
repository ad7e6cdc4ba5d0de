"""Which test instances something was fitted to: found by what is seen of them, exactly alike in plain view."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from nearfar.core.strategy import Strategy
from nearfar.errors import UserError
from nearfar.modalities import Instances
from nearfar.modalities.base import MakeViews
from nearfar.run.features import cached_features, contents, contents_key
from nearfar.run.trained import Run

Mark = Callable[[Instances], Int64[Tensor, "instance 2"]]


def marks(plain: MakeViews, cache: Path, strategy: Strategy) -> Mark:
    """What tells instances apart, kept like features."""
    return lambda images: cached_features(
        cache, contents_key(images, plain), lambda: contents(images, plain, strategy=strategy), strategy
    )


def among(asked: Int64[Tensor, "row 2"], known: Iterable[Int64[Tensor, "other 2"]]) -> Bool[Tensor, "row"]:
    held = {tuple(row) for rows in known for row in rows.tolist()}
    return torch.tensor([tuple(row) in held for row in asked.tolist()], dtype=torch.bool)


def ancestors(run: Run) -> Iterator[Run]:
    """The runs whose weights it began with, or that taught it, and theirs; of weights files nothing is known."""
    waiting, met = _begun_with(run), {run.path.resolve()}
    while waiting:
        path = Path(waiting.pop())
        if path.resolve() in met:
            continue
        met.add(path.resolve())
        try:
            other = Run.open(path)
        except UserError:
            continue
        yield other
        waiting += _begun_with(other)


def _begun_with(run: Run) -> list[str]:
    named = (run.settings.init, run.settings.encoders.get("teacher"))
    return [name for name in named if isinstance(name, str)]
