"""What is opened: sources of encoded files, rows or Python objects, and the limits of opening them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from nearfar.core.strategy import SINGLE, Strategy
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Modality
from nearfar.modalities.base import Decoded
from nearfar.modalities.dataset import Blocks, Unusable
from nearfar.modalities.files import Labels, class_numbers

Decode = Callable[[Any], Decoded]
ItemReader = Callable[[int], Any]  # bytes, or an object, by number; raises `Unusable` with a reason


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
    """Instances by number, not decoded yet. `read_item` may be called from several threads."""

    root: str  # how messages name it, and the folder of `names`
    ignored: Mapping[str, int]  # files that are not read, by reason

    @abstractmethod
    def names(self) -> Sequence[str]: ...

    @abstractmethod
    def read_item(self, number: int) -> Any:
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
        """Rows that are read together, if `read_item` is much faster in their order."""
        return None

    def by_number(self) -> Iterator[Item]:
        """All instances in order, by `read_item`."""
        count = len(self.names())
        mean = int(min(self.nbytes(), 2**62) / max(1, count))
        return (Item(mean, partial(self.read_item, number)) for number in range(count))

    def in_order(self) -> Iterator[Item]:
        """The same, by a quicker way where there is one."""
        return self.by_number()

    def random_access(self, rows: Int64[np.ndarray, "row"]) -> ItemReader:
        """Reading of these instances in any order, by number."""
        return self.read_item


# -------------------------------------------------------------------------------------- Python objects


def has_items(spec: Any) -> bool:
    return isinstance(spec, Sized) and hasattr(spec, "__getitem__")


class Items(AbstractSource):
    """The items of a `Dataset`, read by one thread first: it need not be thread-safe."""

    ignored: Mapping[str, int] = {}

    def __init__(self, dataset: Any, name: str) -> None:
        if not len(dataset):
            raise UserError(f"data {name!r}: the data set has no items.")
        self.root, self._dataset = name, dataset
        self._labels: dict[int, Any] = {}
        first, second = (_parts(dataset[0])[0] for _ in range(2))
        self.modality = modality_of_item(first, name)
        contents = [_content(self.modality, item) for item in (first, second)]
        if not np.array_equal(*contents):
            raise UserError(
                f"data {name!r}: item 0 is different each time it is read; give the data set without random "
                "transforms, views are made by nearfar."
            )

    def names(self) -> list[str]:
        return [f"item {number}" for number in range(len(self._dataset))]

    def read_item(self, number: int) -> Any:
        try:
            content, label = _parts(self._dataset[number])
        except Exception as problem:  # the user's code may raise anything
            raise Unusable(f"the data set raised {type(problem).__name__}: {problem}") from problem
        self._labels[number] = label
        return content

    def labels(self, rows: np.ndarray) -> Labels:
        for number in rows.tolist():
            if number not in self._labels:  # another rank read this item
                self.read_item(number)
        labels = [self._labels[number] for number in rows.tolist()]
        if any(label is None for label in labels):
            return None, ()
        names = getattr(self._dataset, "classes", ())
        valid = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        return class_numbers(np.array(labels), f"data {self.root!r}", tuple(names) if valid else ())

    def unlabelled(self) -> str:
        return "the items are not pairs of an instance and its label"


def item_decoder(modality: Modality, options: Mapping[str, Any]) -> Callable[[Any], Decoded]:
    """Decodes Python objects."""

    def decode(item: Any) -> Decoded:
        decoded = modality.reader.convert(item, options)
        if decoded is None:
            raise Unusable(f"an item of type {type(item).__name__}, unlike the first")
        return decoded

    return decode


def modality_of_item(item: Any, name: str) -> Modality:
    for modality in MODALITIES.values():
        if modality.reader.convert(item, modality.reader.options()) is not None:
            return modality
    raise UserError(
        f"data {name!r}: item 0 is of type {type(item).__name__}; expected images (PIL, an array (h, w, c), "
        "a tensor (c, h, w)) and vectors, each alone or as (item, label)."
    )


def _content(modality: Modality, item: Any) -> Any:
    decoded = modality.reader.convert(item, modality.reader.options())
    return None if decoded is None else decoded.content


def _parts(item: Any) -> tuple[Any, int | str | None]:
    """An item's content and label."""
    if not isinstance(item, (tuple, list)):
        return item, None
    if len(item) < 2:
        return (item[0] if item else None), None
    label = item[1]
    if isinstance(label, (np.ndarray, np.generic, Tensor)) and math.prod(label.shape) == 1:
        label = label.item()
    return item[0], label if isinstance(label, (int, str)) and not isinstance(label, bool) else None
