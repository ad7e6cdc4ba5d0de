"""Text as blocks of numbered symbols: characters or words of .txt files, or numbers already (an .npz with `tokens`).

Symbol 0 stands for whatever the vocabulary does not have. A vocabulary belongs to a run: text opened for an
evaluation is read with the one that was made from the training text.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int64

from nearfar.data.containers import Unusable
from nearfar.data.folder import Folder
from nearfar.data.labels import Labels, class_numbers, given_names
from nearfar.data.scan import write_quarantine
from nearfar.data.sequences import PADDING, Held, Sequences
from nearfar.errors import UserError

SUFFIXES = (".txt",)
UNKNOWN_SYMBOL = "�"  # the character that Unicode keeps for what cannot be shown
MOST_SYMBOLS = 2**20


@dataclass(frozen=True)
class Reading:
    """How text becomes symbols: the unit, how many of them make a block, and the vocabulary.

    Without a vocabulary one is made of the `most` frequent units.
    """

    unit: Literal["characters", "words"] = "characters"
    length: int = 128
    most: int = 8192
    vocabulary: tuple[str, ...] | None = None

    def units(self, text: str) -> Sequence[str]:
        return text if self.unit == "characters" else text.split()

    def vocabulary_of(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The unknown symbol, then the units by falling frequency, ties in the order of the alphabet."""
        if self.vocabulary is not None:
            return self.vocabulary
        counted: Counter[str] = Counter()
        for text in texts:
            counted.update(self.units(text))
        counted.pop(UNKNOWN_SYMBOL, None)
        ordered = sorted(counted, key=lambda unit: (-counted[unit], unit))
        return (UNKNOWN_SYMBOL, *ordered[: self.most])


def open_text(
    folder: Folder, name: str, reading: Reading, max_bad_share: float, quarantine: Path | None
) -> Sequences:
    """The blocks of a folder's text files; the last of a file is as long as what is left of it."""
    texts, bad = _texts(folder)
    names = folder.names()
    listed = tuple((os.path.join(folder.root, names[n]), bad[n]) for n in sorted(bad))
    if quarantine is not None:
        write_quarantine(quarantine, listed)
    if not texts or len(bad) > max_bad_share * (len(bad) + len(texts)):
        raise UserError(
            f"data {folder.root!r}: {len(bad)} of {len(bad) + len(texts)} text files cannot be used; "
            f"the first is {listed[0][0]!r}: {listed[0][1]}."
        )
    vocabulary = reading.vocabulary_of(list(texts.values()))
    place = {unit: number for number, unit in enumerate(vocabulary)}
    blocks: list[np.ndarray] = []
    files: list[int] = []
    paths: list[str] = []
    for number, text in texts.items():
        symbols = np.array([place.get(unit, 0) for unit in reading.units(text)], dtype=np.int64)
        for part, start in enumerate(range(0, len(symbols), reading.length)):
            blocks.append(symbols[start : start + reading.length])
            files.append(number)
            paths.append(f"{names[number]}#{part}")
    labelled = folder.labels(np.array(files))
    return _sequences(name, blocks, vocabulary, paths, labelled, listed, folder.ignored)


def _texts(folder: Folder) -> tuple[dict[int, str], dict[int, str]]:
    """The text of each usable file and why the others are not, by number."""
    texts: dict[int, str] = {}
    bad: dict[int, str] = {}
    for number, item in enumerate(folder.items()):
        try:
            text = item.read().decode("utf-8-sig")
        except (Unusable, UnicodeDecodeError) as reason:
            bad[number] = "not UTF-8 text" if isinstance(reason, UnicodeDecodeError) else str(reason)
            continue
        if text.strip():
            texts[number] = text
        else:
            bad[number] = "empty: nothing but white space"
    return texts, bad


def open_tokens(
    tokens: np.ndarray, name: str, reading: Reading, labelled: Labels, paths: Sequence[str]
) -> Sequences:
    """Rows of symbol numbers from 0; a row may end early with -1."""
    where = f"data {name!r}: tokens"
    if tokens.ndim != 2 or 0 in tokens.shape or tokens.dtype.kind not in "iu":
        raise UserError(
            f"{where} are {tokens.dtype} of shape {tokens.shape}; allowed are integers of shape (blocks, length)."
        )
    rows = tokens.astype(np.int64)
    real = rows != PADDING
    length = real.sum(axis=1)
    known = len(reading.vocabulary) if reading.vocabulary is not None else MOST_SYMBOLS
    ordered = (real == (np.arange(rows.shape[1]) < length[:, None])).all()
    if not ordered or length.min() < 1 or rows.min() < PADDING or rows.max() >= known:
        raise UserError(
            f"{where} range from {rows.min()} to {rows.max()}; allowed are numbers from 0 to {known - 1}, and -1 only at "
            "the end of a row."
        )
    vocabulary = reading.vocabulary or tuple(str(number) for number in range(int(rows.max()) + 1))
    blocks = [row[:count] for row, count in zip(rows, length, strict=True)]
    return _sequences(name, blocks, vocabulary, paths, labelled, (), 0)


def tokens_of(arrays: dict[str, np.ndarray], path: Path, name: str, reading: Reading) -> Sequences:
    """The `tokens` of an .npz file, with its `labels` where it has them."""
    labelled: Labels = (None, ())
    if "labels" in arrays:
        where = f"data {name!r}"
        named = given_names(arrays["classes"], where) if "classes" in arrays else ()
        labelled = class_numbers(arrays["labels"], where, named)
    paths = [f"{path.name}#{row}" for row in range(len(np.atleast_1d(arrays["tokens"])))]
    return open_tokens(arrays["tokens"], name, reading, labelled, paths)


def _sequences(
    name: str,
    blocks: Sequence[Int64[np.ndarray, "time"]],
    vocabulary: tuple[str, ...],
    paths: Sequence[str],
    labelled: Labels,
    quarantine: tuple[tuple[str, str], ...],
    ignored: int,
) -> Sequences:
    labels, classes = labelled
    if labels is not None and len(labels) != len(blocks):
        raise UserError(
            f"data {name!r}: {len(labels)} labels for {len(blocks)} blocks; allowed is one for each."
        )
    digest = hashlib.sha256("\0".join(vocabulary).encode("utf-8", "surrogatepass"))
    for path, block in zip(paths, blocks, strict=True):
        digest.update(path.encode() + b"\0" + block.astype("<i8").tobytes())
    digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
    return Sequences(
        name=name,
        fingerprint=digest.hexdigest(),
        channels=len(vocabulary),
        labels=labels,
        classes=classes,
        paths=tuple(paths),
        store=Held(blocks),  # type: ignore[arg-type]
        rows=np.arange(len(blocks)),
        sizes=np.array([(1, len(block)) for block in blocks], dtype=np.int32),
        quarantine=quarantine,
        ignored=ignored,
        symbols=vocabulary,
    )
