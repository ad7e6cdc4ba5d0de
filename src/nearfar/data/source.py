"""What is opened: sources of encoded files, rows or Python objects, and the limits of opening them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from nearfar.core.strategy import SINGLE, Strategy
from nearfar.modalities.base import Decoded
from nearfar.modalities.dataset import Blocks
from nearfar.modalities.labels import Labels

Decode = Callable[[Any], Decoded]
Read = Callable[[int], Any]  # bytes, or an object, by number; raises `Unusable` with a reason


@dataclass(frozen=True)
class Limits:
    """Limits of memory, of the check at opening and of unusable rows, and where their list goes."""

    cache_bytes: int = 2**31  # of decoded contents
    max_bad_share: float = 0.05
    quarantine: Path | None = None
    scans: Path | None = None  # folder in which the results of full checks are stored
    judged_together: bool = False  # several ranks judge the share of unusable rows when they `sync`
    scan_bytes: int = 2**31  # a source with more encoded bytes is not checked when it is opened
    join: Callable[[], Strategy] = lambda: SINGLE  # called when a full check begins: the ranks that share it


@dataclass(frozen=True)
class Item:
    """Something to be read; `nbytes` is about its size."""

    nbytes: int
    read: Callable[[], Any]


class AbstractSource(ABC):
    """Instances by number, not decoded yet. `read` may be called from several threads."""

    root: str  # how messages name it, and the folder of `names`
    ignored: Mapping[str, int]  # files that are not read, by reason

    @abstractmethod
    def names(self) -> Sequence[str]: ...

    @abstractmethod
    def read(self, number: int) -> Any:
        """The bytes, or the object, of one instance; raises `Unusable` with a reason."""

    @abstractmethod
    def labels(self, rows: Int64[np.ndarray, "row"]) -> Labels:
        """The labels of these instances."""

    def groups(self, rows: Int64[np.ndarray, "row"]) -> Mapping[str, np.ndarray]:
        """Numbered values of further columns, by name."""
        return {}

    def unlabelled(self) -> str:
        """Why there are no labels, where there are none."""
        return "there are no labels"

    def nbytes(self) -> float:
        """Encoded bytes of all instances; 0 where they are Python objects."""
        return 0.0

    def marks(self) -> bytes:
        """Changes with names, sizes and whatever else is known without reading all contents."""
        return b""

    def stamp(self) -> str | None:
        """Changes when one of the files may have; None where that is unknown."""
        return None

    def blocks(self) -> Blocks | None:
        """Rows that are read together, if `read` is much faster in their order."""
        return None

    def by_number(self) -> Iterator[Item]:
        """All instances in order, by `read`."""
        count = len(self.names())
        mean = int(min(self.nbytes(), 2**62) / max(1, count))
        return (Item(mean, partial(self.read, number)) for number in range(count))

    def in_order(self) -> Iterator[Item]:
        """The same, by a quicker way where there is one."""
        return self.by_number()

    def random_access(self, rows: Int64[np.ndarray, "row"]) -> Read:
        """Reading of these instances in any order, by number."""
        return self.read
