"""The input of `nearfar pack`: anything that can be opened, as contents by number."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nearfar.core.randomness import order, windowed_order
from nearfar.data.open import Spec, locate
from nearfar.data.source import AbstractSource, Limits
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, DataSet, Modality
from nearfar.modalities.base import Decoded
from nearfar.modalities.dataset import Blocks, Unreadable, Unusable
from nearfar.modalities.labels import Labels


@dataclass(frozen=True)
class PackContents:
    """Instances yet to be packed. The source has bytes, or what else `decode` takes."""

    name: str
    modality: Modality
    source: AbstractSource
    decode: Callable[[Any], Decoded]
    quarantine: tuple[tuple[str, str], ...] = ()  # instances that were unusable when the data were opened

    @cached_property
    def names(self) -> Sequence[str]:
        return self.source.names()

    @cached_property
    def labelled(self) -> Labels:
        return self.source.labels(np.arange(len(self.names)))

    @property
    def mark(self) -> str:
        """Changes with the data."""
        return hashlib.sha256(self.source.marks()).hexdigest()

    def order(self, seed: int) -> np.ndarray:
        """A shuffle; within a window of row groups, where the source is read by those."""
        blocks = self.source.blocks()
        if blocks is None:
            return order(seed, 0, len(self.names))
        block = np.searchsorted(blocks.starts, np.arange(len(self.names)), side="right")
        return windowed_order(seed, 0, block, blocks.window)


def contents_of(data: Spec, labels: Any, options: Mapping[str, Any]) -> PackContents:
    """The contents of `data`: encoded bytes where it has them; arrays, torch `Dataset`s and packed folders
    are opened as for training and converted one by one."""
    located = locate(data, labels)
    modality = located.modality
    if not modality.reader.columns:
        raise UserError(
            f"pack writes {' and '.join(m.plural for m in MODALITIES.values() if m.reader.columns)}; these "
            f"are {modality.plural}"
        )
    checked = modality.reader.options(**options)
    if located.source is not None and located.source.nbytes():
        return PackContents(located.name, modality, located.source, located.decoder(modality, checked))

    def decode(content: Any) -> Decoded:
        decoded = modality.reader.convert(content, checked)
        if decoded is None:
            raise Unusable(f"an instance of type {type(content).__name__} cannot be packed")
        return decoded

    opened = located.open_with(checked, Limits(max_bad_share=1.0))
    source = OpenedSource(opened, modality.reader.first_content)
    return PackContents(located.name, modality, source, decode, opened.quarantine)


class OpenedSource(AbstractSource):
    """The instances of an opened data set."""

    def __init__(self, data: DataSet, first_content: Callable[[Any], Any]) -> None:
        self.root, self.ignored = data.name, data.ignored
        self._data, self._first_content = data, first_content

    def names(self) -> Sequence[str]:
        return self._data.paths

    def read(self, number: int) -> Any:
        try:
            return self._first_content(self._data.store.take(self._data.rows[number : number + 1]))
        except Unreadable as reason:
            raise Unusable(str(reason.__cause__)) from reason

    def labels(self, rows: np.ndarray) -> Labels:
        return None if self._data.labels is None else self._data.labels[rows], self._data.classes

    def unlabelled(self) -> str:
        return self._data.unlabelled

    def marks(self) -> bytes:
        return self._data.fingerprint.encode()

    def blocks(self) -> Blocks | None:
        return self._data.blocks
