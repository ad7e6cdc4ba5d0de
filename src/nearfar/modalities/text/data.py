"""Text as blocks of numbered symbols: characters or words of .txt files, or an .npz with `tokens`.

Symbol 0 stands for whatever the vocabulary does not have. A vocabulary belongs to a run: text opened for an
evaluation is read with the one that was made from the training text.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int64

from nearfar.errors import UserError
from nearfar.modalities.base import AbstractReader, Arrays, Choice, Collection, Decoded, Description
from nearfar.modalities.dataset import PADDING, DataSet, RowStore, Unusable, padded
from nearfar.modalities.files import Labels, set_fields

UNKNOWN_SYMBOL = "�"  # the character that Unicode keeps for what cannot be shown
MAX_SYMBOLS = 2**20


@dataclass(frozen=True)
class Reading:
    """How text becomes symbols: the unit, the number of units of a block, and the vocabulary.

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
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(self.units(text))
        counts.pop(UNKNOWN_SYMBOL, None)
        ordered = sorted(counts, key=lambda unit: (-counts[unit], unit))
        return (UNKNOWN_SYMBOL, *ordered[: self.most])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Texts(DataSet):
    """An opened set of blocks of symbols: `load` returns `Sequences` of their numbers."""

    modality: ClassVar[str] = "text"
    unit: ClassVar[str] = "blocks"
    per_instance: ClassVar[tuple[str, ...]] = (*DataSet.per_instance, "lengths")

    symbols: tuple[str, ...]  # symbols[i] is written for number i
    lengths: Int64[np.ndarray, "item"]  # in symbols


@dataclass(frozen=True)
class TextDescription(Description):
    symbols: tuple[str, ...]
    length: int  # of the longest block

    def check_alike(self, data: Texts, run_name: str) -> None:
        longest = int(data.lengths.max())
        if longest > self.length:
            raise UserError(
                f"{data.name} has blocks of {longest} symbols but {run_name} was trained on {self.length}"
            )


class TextReader(AbstractReader):
    description_type = TextDescription
    suffixes = (".txt",)
    files = "text files"
    text_columns = ("text", "sentence", "content", "document")
    array_key = "tokens"

    def options(self, *, reading: Reading | None = None, **values: Any) -> Mapping[str, Any]:
        return {"reading": reading or Reading(), **super().options(**values)}

    def options_for(self, views: Choice, size: int | None, description: Any) -> dict[str, Any]:
        vocabulary = description.symbols if isinstance(description, TextDescription) else None
        return {"reading": Reading(views["unit"], views["length"], views["most"], vocabulary)}

    def decode(self, raw: bytes, options: Mapping[str, Any]) -> Decoded:
        """The text of a file; `collect` cuts it into blocks once the vocabulary is known."""
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Unusable("not UTF-8 text") from error
        if not text.strip():
            raise Unusable("empty: nothing but white space")
        return Decoded(text, (), 0)  # text is smaller than its blocks, so it is always kept

    def collect(self, collection: Collection, options: Mapping[str, Any]) -> Texts:
        """The blocks of all files; the last block of a file may be shorter."""
        reading: Reading = options["reading"]
        texts = collection.all_contents()
        vocabulary = reading.vocabulary_of(texts)
        numbers = {unit: number for number, unit in enumerate(vocabulary)}
        blocks: list[np.ndarray] = []
        files: list[int] = []
        paths: list[str] = []
        for file, text in enumerate(texts):
            symbols = np.array([numbers.get(unit, 0) for unit in reading.units(text)], dtype=np.int64)
            for part, start in enumerate(range(0, len(symbols), reading.length)):
                blocks.append(symbols[start : start + reading.length])
                files.append(file)
                paths.append(f"{collection.paths[file]}#{part}")
        labels, classes = collection.labelled
        return _texts(
            collection.name,
            blocks,
            vocabulary,
            paths,
            (None if labels is None else labels[files], classes),
            groups={name: values[files] for name, values in collection.groups.items()},
            cut_from=np.array(files, dtype=np.int64),
            quarantine=collection.quarantine,
            ignored=collection.ignored,
            unlabelled=collection.unlabelled,
        )

    def from_array(self, arrays: Arrays, name: str, options: Mapping[str, Any]) -> Texts:
        """Rows of symbol numbers from 0; a row may end early with -1."""
        array, reading = arrays.array, options["reading"]
        source = f"data {name!r}: tokens"
        if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "iu":
            raise UserError(
                f"{source} are {array.dtype} of shape {array.shape}; expected integers of shape (blocks, "
                "length)."
            )
        rows = array.astype(np.int64)
        present = rows != PADDING
        length = present.sum(axis=1)
        symbols = len(reading.vocabulary) if reading.vocabulary is not None else MAX_SYMBOLS
        padded_at_end = (present == (np.arange(rows.shape[1]) < length[:, None])).all()
        if not padded_at_end or length.min() < 1 or rows.min() < PADDING or rows.max() >= symbols:
            raise UserError(
                f"{source} range from {rows.min()} to {rows.max()}; expected numbers from 0 to "
                f"{symbols - 1}, and -1 only at the end of a row."
            )
        vocabulary = reading.vocabulary or tuple(str(number) for number in range(int(rows.max()) + 1))
        blocks = [row[:count] for row, count in zip(rows, length, strict=True)]
        paths = arrays.paths or [f"{name}#{row}" for row in range(len(rows))]
        return _texts(name, blocks, vocabulary, paths, arrays.labelled)

    def describe(self, data: Texts, size: int | None) -> TextDescription:
        return TextDescription(data.fingerprint, len(data), data.symbols, int(data.lengths.max()))

    def example_description(self, instances: int) -> TextDescription:
        return TextDescription("", instances, tuple(str(number) for number in range(100)), 32)


def _texts(
    name: str,
    blocks: Sequence[Int64[np.ndarray, "time"]],
    vocabulary: tuple[str, ...],
    paths: Sequence[str],
    labelled: Labels,
    unlabelled: str = "",
    **fields: Any,
) -> Texts:
    digest = hashlib.sha256("\0".join(vocabulary).encode("utf-8", "surrogatepass"))
    for path, block in zip(paths, blocks, strict=True):
        digest.update(path.encode() + b"\0" + block.astype("<i8").tobytes())
    return Texts(
        **set_fields(name, Texts.unit, labelled, paths, digest, unlabelled),
        store=RowStore(blocks.__getitem__, padded),
        symbols=vocabulary,
        lengths=np.array([len(block) for block in blocks], dtype=np.int64),
        **fields,
    )
