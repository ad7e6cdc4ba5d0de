"""torch `Dataset`s, and anything else with a length and items, as a source: items are x or (x, label)."""

import math
from collections.abc import Callable, Mapping, Sized
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.data.source import AbstractSource
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Modality
from nearfar.modalities.base import Decoded
from nearfar.modalities.dataset import Unusable
from nearfar.modalities.labels import Labels, class_numbers


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

    def read(self, number: int) -> Any:
        try:
            content, label = _parts(self._dataset[number])
        except Exception as problem:  # the user's code may raise anything
            raise Unusable(f"the data set raised {type(problem).__name__}: {problem}") from problem
        self._labels[number] = label
        return content

    def labels(self, rows: np.ndarray) -> Labels:
        for number in rows.tolist():
            if number not in self._labels:  # another rank read this item
                self.read(number)
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
