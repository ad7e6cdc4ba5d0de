"""torch `Dataset`s, and anything else with a length and items, as a source: items are x or (x, label)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from nearfar.data.scan import Item
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Modality
from nearfar.modalities.base import Decoded
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.labels import Labels, class_numbers


def is_items(spec: Any) -> bool:
    return hasattr(spec, "__len__") and hasattr(spec, "__getitem__")


class Items:
    """The items of a `Dataset`, read in order and, where they are too many to hold, again."""

    def __init__(self, dataset: Any, name: str) -> None:
        if not len(dataset):
            raise UserError(f"data {name!r} hold nothing: the data set has no items.")
        self.ignored: Mapping[str, int] = {}
        self.root, self._dataset = name, dataset
        self._labels: dict[int, Any] = {}
        self.modality = _modality(_parts(dataset[0])[0], name)
        first, again = (
            self.modality.reader.convert(_parts(dataset[0])[0], self.modality.reader.options())
            for _ in range(2)
        )
        if first is None or again is None or not np.array_equal(first.content, again.content):
            raise UserError(
                f"data {name!r}: item 0 is another one each time it is asked for; give the data set without random "
                "transforms, views are made by nearfar."
            )

    def names(self) -> list[str]:
        return [f"item {number}" for number in range(len(self._dataset))]

    def mean_bytes(self) -> float:
        return 0.0  # items are read in order, by one thread: a user's data set need not be safe in several

    def items(self) -> Iterator[Item]:
        return (Item(1, self._reading(number)) for number in range(len(self._dataset)))

    def _reading(self, number: int) -> Callable[[], Any]:
        def read() -> Any:
            try:
                content, label = _parts(self._dataset[number])
            except Exception as problem:  # somebody's own code: it may raise anything
                raise Unusable(f"the data set raised {type(problem).__name__}: {problem}") from problem
            self._labels[number] = label
            return content

        return read

    def reader(self, kept: np.ndarray) -> Callable[[int], Any]:
        return lambda place: _parts(self._dataset[int(kept[place])])[0]

    def labels(self, kept: np.ndarray) -> Labels:
        labels = [self._labels.get(int(number)) for number in kept]
        if any(label is None for label in labels):
            return None, ()
        names = getattr(self._dataset, "classes", ())
        sound = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        return class_numbers(np.array(labels), f"data {self.root!r}", tuple(names) if sound else ())

    def groups(self, kept: np.ndarray) -> Mapping[str, np.ndarray]:
        return {}

    def stamp(self) -> str | None:
        return None

    def unlabelled(self) -> str:
        return "the items are no pairs of something and its label"


def decoder(modality: Modality, options: Mapping[str, Any]) -> Callable[[Any], Decoded]:
    def decode(item: Any) -> Decoded:
        found = modality.reader.convert(item, options)
        if found is None:
            raise Unusable(f"an item of type {type(item).__name__}, unlike the first")
        return found

    return decode


def _parts(item: Any) -> tuple[Any, int | str | None]:
    """An item's content and label."""
    if not isinstance(item, (tuple, list)):
        return item, None
    if len(item) < 2:
        return (item[0] if item else None), None
    label = item[1].item() if hasattr(item[1], "item") and getattr(item[1], "size", 1) != 0 else item[1]
    return item[0], label if isinstance(label, (int, str)) and not isinstance(label, bool) else None


def _modality(item: Any, name: str) -> Modality:
    for modality in MODALITIES.values():
        if modality.reader.convert(item, modality.reader.options()) is not None:
            return modality
    raise UserError(
        f"data {name!r}: item 0 is of type {type(item).__name__}; expected images (PIL, an array (h, w, c), a tensor "
        "(c, h, w)) and vectors, each alone or as (item, label)."
    )
