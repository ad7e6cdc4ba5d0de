"""Text as blocks of numbered symbols: characters or words of .txt files, or numbers already (an .npz with `tokens`).

Symbol 0 stands for whatever the vocabulary does not have. A vocabulary belongs to a run: text opened for an
evaluation is read with the one that was made from the training text.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image
from torch import Tensor

from nearfar.config.schema import fixed_views, settable
from nearfar.errors import UserError
from nearfar.modalities.base import (
    Arrays,
    Choice,
    Decoded,
    Description,
    Features,
    Found,
    MakeViews,
    Measure,
    Modality,
)
from nearfar.modalities.dataset import DataSet, Unusable
from nearfar.modalities.labels import Labels
from nearfar.modalities.sequences import PADDING, Held, Series
from nearfar.modalities.showing import page_of
from nearfar.modalities.text.symbols import frequency_scores, masked_scores, symbol_frequencies
from nearfar.modalities.text.views import Mask, Masked, WholeText
from nearfar.parts.encoders import InputSpec, TokenTransformer

UNKNOWN_SYMBOL = "�"  # the character that Unicode keeps for what cannot be shown
HIDDEN = "_"  # what a person is shown of a hidden symbol
MOST_SYMBOLS = 2**20
DIM, LAYERS, HEADS, DROPOUT = 128, 2, 4, 0.1  # of the network, where a role does not bring its own


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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Texts(DataSet):
    """An opened set of blocks of symbols: `load` gives `Series` of their numbers."""

    modality: ClassVar[str] = "text"
    unit: ClassVar[str] = "blocks"
    each: ClassVar[tuple[str, ...]] = (*DataSet.each, "lengths")

    symbols: tuple[str, ...]  # what symbol number i stands for
    lengths: Int64[np.ndarray, "item"]  # in symbols


@dataclass(frozen=True)
class TextDescription(Description):
    symbols: tuple[str, ...]
    length: int  # of the longest block


class TextModality(Modality):
    name = "text"
    unit = "blocks"
    files = "text files"
    holds = "text"
    example = "texts/"
    suffixes = (".txt",)
    single = True
    key = "tokens"
    pipelines = ("mask",)
    many_views = False
    default_views = "mask"
    networks = ("transformer",)
    default_network = "transformer"
    smallest_network = "transformer"
    baseline_titles: ClassVar[Mapping[str, str]] = {"frequencies": "frequencies of symbols"}

    def options(self, *, reading: Reading | None = None, **given: Any) -> Mapping[str, Any]:
        return {"reading": reading or Reading(), **super().options(**given)}

    def opening(self, views: Choice, size: int | None, known: Description | None) -> dict[str, Any]:
        vocabulary = known.symbols if isinstance(known, TextDescription) else None
        return {"reading": Reading(views["unit"], views["length"], views["most"], vocabulary)}

    def decode(self, raw: bytes, options: Mapping[str, Any]) -> Decoded:
        """A whole file, which `collect` cuts into blocks once the vocabulary is known."""
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Unusable("not UTF-8 text") from error
        if not text.strip():
            raise Unusable("empty: nothing but white space")
        return Decoded(text, (), 0)  # text is small beside what else is held, so it always is

    def collect(self, found: Found, options: Mapping[str, Any]) -> Texts:
        """The blocks of all files; the last of a file is as long as what is left of it."""
        reading: Reading = options["reading"]
        texts = [found.read(place) for place in range(len(found.paths))] if found.held is None else found.held
        vocabulary = reading.vocabulary_of(texts)
        place = {unit: number for number, unit in enumerate(vocabulary)}
        blocks: list[np.ndarray] = []
        files: list[int] = []
        paths: list[str] = []
        for number, text in enumerate(texts):
            symbols = np.array([place.get(unit, 0) for unit in reading.units(text)], dtype=np.int64)
            for part, start in enumerate(range(0, len(symbols), reading.length)):
                blocks.append(symbols[start : start + reading.length])
                files.append(number)
                paths.append(f"{found.paths[number]}#{part}")
        labels, classes = found.labelled
        labelled = (None if labels is None else labels[files], classes)
        known = found.common()
        kept = {key: known[key] for key in ("quarantine", "ignored", "unlabelled")}
        groups = {name: numbers[files] for name, numbers in found.groups.items()}
        cut_from = np.array(files, dtype=np.int64)
        return _texts(
            found.name, blocks, vocabulary, paths, labelled, groups=groups, cut_from=cut_from, **kept
        )

    def from_array(self, given: Arrays, name: str, options: Mapping[str, Any]) -> Texts:
        """Rows of symbol numbers from 0; a row may end early with -1."""
        array, labelled, paths = given.array, given.labelled, given.paths
        reading: Reading = options["reading"]
        where = f"data {name!r}: tokens"
        if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "iu":
            raise UserError(
                f"{where} are {array.dtype} of shape {array.shape}; expected integers of shape (blocks, length)."
            )
        rows = array.astype(np.int64)
        real = rows != PADDING
        length = real.sum(axis=1)
        known = len(reading.vocabulary) if reading.vocabulary is not None else MOST_SYMBOLS
        ordered = (real == (np.arange(rows.shape[1]) < length[:, None])).all()
        if not ordered or length.min() < 1 or rows.min() < PADDING or rows.max() >= known:
            raise UserError(
                f"{where} range from {rows.min()} to {rows.max()}; expected numbers from 0 to {known - 1}, and -1 only "
                "at the end of a row."
            )
        vocabulary = reading.vocabulary or tuple(str(number) for number in range(int(rows.max()) + 1))
        blocks = [row[:count] for row, count in zip(rows, length, strict=True)]
        names = paths or [f"{name}#{row}" for row in range(len(rows))]
        return _texts(name, blocks, vocabulary, names, labelled)

    def describe(self, data: Texts, size: int | None) -> TextDescription:
        return TextDescription(data.fingerprint, len(data), data.symbols, int(data.lengths.max()))

    def typical(self, instances: int) -> TextDescription:
        return TextDescription("", instances, tuple(str(number) for number in range(100)), 32)

    def description(self, plain: Mapping[str, Any]) -> TextDescription:
        return TextDescription.from_plain(plain)

    def check_alike(self, data: Texts, known: TextDescription, where: str) -> None:
        longest = int(data.lengths.max())
        if longest > known.length:
            raise UserError(
                f"{data.name} has blocks of {longest} symbols but {where} was trained on {known.length}"
            )

    def check_views(self, choice: Choice) -> dict[str, Any]:
        return fixed_views(Mask, choice)

    def views(self, choice: Choice, known: TextDescription, device: torch.device) -> Masked:
        return Mask(**{key: choice[key] for key in settable(Mask)}).views(len(known.symbols))

    def plain(self, choice: Choice, known: TextDescription, device: torch.device) -> WholeText:
        return WholeText()

    def inputs(self, network: str, choice: Choice, known: TextDescription) -> InputSpec:
        context = {
            "instances": known.instances,
            "symbols": len(known.symbols),
            "length": known.length,
            "share": choice["share"],
        }
        body = lambda view: TokenTransformer(
            len(known.symbols), known.length, dim=DIM, layers=LAYERS, heads=HEADS, dropout=DROPOUT
        )
        return InputSpec(body, ((known.length,),) * choice["count"], context)

    def baselines(self, plain: MakeViews) -> dict[str, Features]:
        return {"frequencies": symbol_frequencies}

    def measures(self) -> dict[str, Measure]:
        return {"masked": Measure(masked_scores, {"frequencies": frequency_scores})}

    def pictures(self, loaded: Series, known: TextDescription) -> list[Image.Image]:
        return [
            page_of(_written(row[:length], known))
            for row, length in zip(loaded.data, loaded.length, strict=True)
        ]

    def view_pictures(self, views: Masked, shown: Tensor, known: TextDescription) -> list[Image.Image]:
        return [page_of(_written(row, known)) for row in shown.detach().cpu().numpy()]


def _written(row: np.ndarray, known: TextDescription) -> str:
    """A block as one reads it; what is hidden, or not asked for, as a blank."""
    units = [known.symbols[number] if 0 <= number < len(known.symbols) else HIDDEN for number in row]
    return ("" if all(len(unit) == 1 for unit in known.symbols) else " ").join(units)


def _texts(
    name: str,
    blocks: Sequence[Int64[np.ndarray, "time"]],
    vocabulary: tuple[str, ...],
    paths: Sequence[str],
    labelled: Labels,
    **known: Any,
) -> Texts:
    labels, classes = labelled
    if labels is not None and len(labels) != len(blocks):
        raise UserError(
            f"data {name!r}: {len(labels)} labels for {len(blocks)} blocks; expected one for each."
        )
    digest = hashlib.sha256("\0".join(vocabulary).encode("utf-8", "surrogatepass"))
    for path, block in zip(paths, blocks, strict=True):
        digest.update(path.encode() + b"\0" + block.astype("<i8").tobytes())
    digest.update(b"unlabelled" if labels is None else labels.astype("<i8").tobytes())
    return Texts(
        name=name,
        fingerprint=digest.hexdigest(),
        labels=labels,
        classes=classes,
        paths=tuple(paths),
        store=Held(blocks),
        rows=np.arange(len(blocks)),
        symbols=vocabulary,
        lengths=np.array([len(block) for block in blocks], dtype=np.int64),
        **known,
    )


TEXT = TextModality()
