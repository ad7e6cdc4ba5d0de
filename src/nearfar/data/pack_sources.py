"""The input of `nearfar pack`: anything that can be opened, and tar files, as contents by number."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.core.randomness import order, windowed_order
from nearfar.data.folder import Entry, Listing, printable
from nearfar.data.open import Located, Spec, locate
from nearfar.data.remote import is_url, list_files
from nearfar.data.source import AbstractSource, Limits
from nearfar.data.tars import SUFFIX, Tars
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Modality
from nearfar.modalities.base import Decoded
from nearfar.modalities.dataset import Blocks, Unreadable, Unusable
from nearfar.modalities.labels import Labels


@dataclass(frozen=True)
class PackContents:
    """Instances yet to be packed, by number. `read` gives bytes, or what else `decode` takes."""

    name: str
    modality: Modality
    names: Sequence[str]
    read: Callable[[int], Any]
    decode: Callable[[Any], Decoded]
    labelled: Labels
    unlabelled: str
    ignored: Mapping[str, int]
    mark: str  # changes with the data
    blocks: Blocks | None = None
    quarantine: tuple[tuple[str, str], ...] = ()  # instances that were unusable when the data were opened

    def order(self, seed: int) -> np.ndarray:
        """A shuffle; within a window of row groups, where the source is read by those."""
        if self.blocks is None:
            return order(seed, 0, len(self.names))
        block = np.searchsorted(self.blocks.starts, np.arange(len(self.names)), side="right")
        return windowed_order(seed, 0, block, self.blocks.window)


def contents_of(data: Spec, labels: Any, options: Mapping[str, Any]) -> PackContents:
    """The contents of `data`: encoded bytes where it has them."""
    tars = _tars(data)
    located = locate(data, labels) if tars is None else None
    modality = tars[1] if tars is not None else located.modality  # type: ignore[union-attr]
    if not modality.reader.columns:
        raise UserError(
            f"pack writes {' and '.join(m.plural for m in MODALITIES.values() if m.reader.columns)}; these "
            f"are {modality.plural}"
        )
    checked = modality.reader.options(**options)
    if tars is not None:
        return _encoded(str(data), modality, tars[0], lambda raw: modality.reader.decode(raw, checked))
    assert located is not None
    if located.source is not None and located.source.nbytes():
        return _encoded(located.name, modality, located.source, located.decoder(modality, checked))
    return _opened(located, checked)


def _encoded(
    name: str, modality: Modality, source: AbstractSource, decode: Callable[[Any], Decoded]
) -> PackContents:
    names = source.names()
    labelled = source.labels(np.arange(len(names)))
    return PackContents(
        name,
        modality,
        names,
        source.read,
        decode,
        labelled,
        "" if labelled[0] is not None else source.unlabelled(),
        source.ignored,
        hashlib.sha256(source.marks()).hexdigest(),
        source.blocks(),
    )


def _opened(located: Located, options: Mapping[str, Any]) -> PackContents:
    """Arrays, torch `Dataset`s and packed folders: opened as for training, and converted one by one."""
    modality = located.modality
    data = located.open_with(options, Limits(max_bad_share=1.0))

    def read(number: int) -> Any:
        try:
            return modality.reader.first_content(data.store.take(data.rows[number : number + 1]))
        except Unreadable as reason:
            raise Unusable(str(reason.__cause__)) from reason

    def decode(content: Any) -> Decoded:
        decoded = modality.reader.convert(content, options)
        if decoded is None:
            raise Unusable(f"an instance of type {type(content).__name__} cannot be packed")
        return decoded

    return PackContents(
        located.name,
        modality,
        data.paths,
        read,
        decode,
        (data.labels, data.classes),
        data.unlabelled,
        data.ignored,
        data.fingerprint,
        data.blocks,
        data.quarantine,
    )


def _tars(data: Spec) -> tuple[Tars, Modality] | None:
    """A tar file or a folder of them and nothing else, with the modality that most of the first one's members
    are of."""
    if not isinstance(data, str | os.PathLike):
        return None
    path = Path(data)
    ignored: Mapping[str, int] = {}
    if is_url(os.fspath(data)):
        files = list_files(os.fspath(data), (SUFFIX, ".parquet"))
        entries = [Entry(file.path, (file.path,), size, file.system) for file, size in files]
        if not entries or not all(entry.path.lower().endswith(SUFFIX) for entry in entries):
            return None
    elif path.is_file() and path.name.lower().endswith(SUFFIX):
        entries = [Entry(str(path), (printable(path.name),), path.stat().st_size)]
    elif path.is_dir():
        every = tuple(suffix for modality in MODALITIES.values() for suffix in modality.reader.suffixes)
        listing = Listing(every)
        listing.add(str(path))
        if listing.entries or listing.parquet or not listing.tars:
            return None
        entries, ignored = listing.tars, listing.unread
    else:
        return None
    for modality in MODALITIES.values():
        if modality.reader.suffixes and modality.reader.columns:
            tars = Tars(os.fspath(data), entries, ignored, modality.reader.suffixes)
            if len(tars.names()):
                return tars, modality
    raise UserError(f"data {os.fspath(data)!r}: the tar files hold no samples that can be packed")
