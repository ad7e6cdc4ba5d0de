"""What a modality is: everything that depends on what kind of thing an instance is, in one object.

    IMAGE     folders of JPEG and PNG, arrays (n, h, w, c)    crops and colours      ResNets        raw pixels
    SOUND     .wav, .flac, Parquet `audio`                    stretches of time      conv + GRU     MFCC
    TEXT      .txt, arrays of tokens                          hidden symbols         transformer    frequencies
    VECTORS   tables of numbers, arrays (n, width)            noise and dropout      MLP            the numbers
    PAIRS     two columns of a table                          each side's own        each side's    untrained networks
    GRAPH     TU folders, torch_geometric's data sets         nodes, edges, labels   GIN, GCN       counts of labels
    SERIES    rows in the order of time                       neighbouring times     convolutions   the numbers

Everything else asks the modality and never its name: how data are opened (`decode`, `collect`, `from_array`), what they
are like (`describe`), what training and evaluation see (`views`, `plain`), which networks there are (`inputs`), what is
compared with (`baselines`, `measures`), and what a person is shown (`pictures`). A new one is a file like `vectors.py`
and a line in `MODALITIES`.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from nearfar.core.method import Method
from nearfar.errors import UserError
from nearfar.modalities.dataset import Blocks, DataSet, Instances, Unusable
from nearfar.modalities.labels import Labels
from nearfar.parts.encoders import InputSpec
from nearfar.system.untrusted import is_number

Choice = Mapping[str, Any]  # a room's section of the settings: a name and the part's settings
_MOST = 2**40  # of anything that data have: beyond it lie numbers that torch cannot multiply


@dataclass(frozen=True)
class Description:
    """What a run knows of its data, typed; a checkpoint holds it as plain JSON (`as_plain`)."""

    fingerprint: str
    instances: int
    class_count: int | None = field(default=None, kw_only=True)  # where there are labels
    classes: tuple[str, ...] = field(default=(), kw_only=True)  # their names, where they have any

    def as_plain(self) -> dict[str, Any]:
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """What `as_plain` gave; a description of anything else, which a checkpoint from elsewhere may hold, is refused."""
        try:
            known = TypeAdapter(cls).validate_json(json.dumps(plain), strict=True)
        except ValidationError as problem:
            first = problem.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UserError(
                f"the checkpoint's description of its data makes no sense ({where}: {first['msg']})"
            ) from None
        for part in fields(known):
            held = getattr(known, part.name)
            numbers = [value for value in (held if isinstance(held, tuple) else (held,)) if is_number(value)]
            wrong = [value for value in numbers if not math.isfinite(value)]
            if wrong or (isinstance(held, int) and not 1 <= held <= _MOST):
                raise UserError(
                    f"the checkpoint's description of its data makes no sense ({part.name} is {held})"
                )
        if len(getattr(known, "mean", ())) != len(getattr(known, "std", ())):
            raise UserError(
                "the checkpoint's description of its data makes no sense (mean and std have different lengths)"
            )
        return known

    def of(self, data: Instances) -> Self:
        """The same kind of data, but these."""
        return replace(self, fingerprint=data.fingerprint, instances=len(data))

    def labelled(self, count: int | None, names: tuple[str, ...] = ()) -> Self:
        """The same data with so many classes."""
        return replace(self, class_count=count, classes=names)

    def resized(self, size: int | None) -> Self:
        """As the settings ask to see them, where that can be asked."""
        return self


@dataclass(frozen=True)
class Decoded:
    """The content of one file or row, what is known of it without looking again, and the bytes it takes in memory."""

    content: Any
    facts: Any
    weight: int


@dataclass(frozen=True)
class Arrays:
    """An array of instances, what is known of their classes, and their names where they have any."""

    array: np.ndarray
    labelled: Labels = (None, ())
    paths: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Found:
    """What is usable of a source, in its order. `held` is None where it is too much to hold: then `read(place)` decodes one."""

    name: str
    fingerprint: str
    paths: Sequence[str]
    facts: Sequence[Any] | Int[np.ndarray, "instance fact"]
    held: list[Any] | None
    read: Callable[[int], Any]
    labelled: Labels
    groups: Mapping[str, np.ndarray]
    quarantine: tuple[tuple[str, str], ...]
    ignored: Mapping[str, int]  # files that are not read, by reason
    unlabelled: str
    blocks: Blocks | None = None

    def common(self) -> dict[str, Any]:
        """The fields that data sets of every modality have, but for the store."""
        labels, classes = self.labelled
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "labels": labels,
            "classes": classes,
            "paths": self.paths,
            "rows": np.arange(len(self.paths)),
            "groups": self.groups,
            "quarantine": self.quarantine,
            "ignored": self.ignored,
            "unlabelled": self.unlabelled,
            "blocks": self.blocks,
        }


class MakeViews(Protocol):
    """What is seen of loaded instances: a pure function of (seed, epoch, index) and them."""

    def __call__(
        self, loaded: Any, seed: int, epoch: int, index: Int[np.ndarray, "instance"], /
    ) -> tuple[Tensor, ...]: ...


class PlainView(MakeViews, Protocol):
    """The view of evaluation: no randomness; the first of what it gives is what an encoder is shown."""

    def as_views(self, shown: Tensor, count: int, /) -> tuple[Tensor, ...]:
        """A plain view as the training views would show it: what a source of negatives is prefilled with."""


Features = Callable[[Any], Float[Tensor, "instance dim"]]  # of a data set of the modality


class Learned(Protocol):
    """Figures of a trained method on data, without labels."""

    def __call__(
        self, method: Method, test: Any, views: Any, /, *, device: torch.device, seed: int
    ) -> dict[str, Any]: ...


class Unlearned(Protocol):
    """The same figures by what can be said without learning, from the training data."""

    def __call__(self, train: Any, test: Any, views: Any, /, *, seed: int) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Measure:
    """A protocol that needs no labels."""

    learned: Learned
    baselines: Mapping[str, Unlearned]


class Modality(ABC):
    """One kind of data. Stateless: every method is a function of its arguments."""

    name: ClassVar[str]
    unit: ClassVar[str]  # what one counts
    files: ClassVar[str]  # what one counts before they are opened, where a file holds several
    holds: ClassVar[str]  # what such data are said to hold
    example: ClassVar[str]  # of DATA on a command line
    suffixes: ClassVar[tuple[str, ...]] = ()  # of its files, each of them one instance or several
    single: ClassVar[bool] = False  # whether one file alone is a data set
    columns: ClassVar[tuple[str, ...]] = ()  # of Parquet files, any of which holds the encoded instances
    key: ClassVar[str] = ""  # of the array in an .npz file
    axes: ClassVar[tuple[int, ...]] = ()  # numbers of axes of a bare array that is of this modality
    one_shape: ClassVar[bool] = True  # views of every batch have the same shape
    sized: ClassVar[bool] = False  # whether image_size means something
    unscanned: ClassVar[Sequence[int] | None] = (
        None  # facts of one not decoded yet, where a set can be opened without decoding
    )
    encodings: ClassVar[tuple[str, ...]] = ()  # in which `encode` writes, beside bytes as they are
    pipelines: ClassVar[tuple[str, ...]]  # names of training views
    default_views: ClassVar[str]
    many_views: ClassVar[bool] = (
        True  # whether these are several views of one instance, which any role can take
    )
    networks: ClassVar[tuple[str, ...]]
    default_network: ClassVar[str]
    small_network: ClassVar[str | None] = None  # in its place on a CPU, where that one is too slow
    baseline_titles: ClassVar[Mapping[str, str]] = {}  # by name, in words
    smallest_network: ClassVar[str]  # with which settings are tried out

    # ------------------------------------------------------------------------------------------- opening

    def options(self, **given: Any) -> Mapping[str, Any]:
        """Checked options of opening; none, unless a modality has its own."""
        for key in given:
            raise UserError(f"{key} was given, but {self.holds} have no such option.")
        return {}

    def opening(self, views: Choice, size: int | None, known: Description | None) -> dict[str, Any]:
        """The options with which a run with these settings opens data; `known` are those it was trained on."""
        return {}

    def claims(self, spec: str) -> bool:
        """Whether what a user wrote as DATA is for this modality to open as a whole, whatever files it is made of."""
        return False

    def open_whole(self, spec: str, options: Mapping[str, Any]) -> DataSet:
        """The data set that it then is."""
        raise UserError(f"data {spec!r}: {self.holds} are not opened as a whole")

    def decode(self, raw: bytes, options: Mapping[str, Any]) -> Decoded:
        """The content of an encoded file or row, or `Unusable` with a reason; only where `suffixes` or `columns` name such."""
        raise Unusable(f"{self.holds} are not read from files of one instance")

    def convert(self, item: Any, options: Mapping[str, Any]) -> Decoded | None:
        """The content of a Python object (an item of a torch `Dataset`); None if it is of another modality."""
        return None

    def encode(self, content: Any, encoding: str, quality: int) -> bytes:
        """Content as bytes that `decode` takes, in one of `encodings`."""
        raise UserError(f"encoding was {encoding!r}; {self.holds} are packed as they are")

    def instance(self, loaded: Any) -> Any:
        """The content of the first loaded instance."""
        return loaded[0]

    def odd(self, facts: Sequence[Any]) -> dict[int, str]:
        """By place, why some that can be decoded do not go with the others."""
        return {}

    @abstractmethod
    def collect(self, found: Found, options: Mapping[str, Any]) -> DataSet:
        """What was found usable, as a data set."""

    def from_array(self, given: Arrays, name: str, options: Mapping[str, Any]) -> DataSet:
        """An array as a data set; only where `key` or `axes` say that it can be one."""
        raise UserError(f"data {name!r} is an array; {self.holds} are read from files")

    # --------------------------------------------------------------------------------------- description

    @abstractmethod
    def describe(self, data: Any, size: int | None) -> Description:
        """What a run must know of its data; `size` is what the settings ask for."""

    @abstractmethod
    def typical(self, instances: int) -> Description:
        """Small data of this kind that nobody has opened: for trying out settings and for documentation."""

    @abstractmethod
    def description(self, plain: Mapping[str, Any]) -> Description: ...

    @abstractmethod
    def check_alike(self, data: Any, known: Any, where: str) -> None:
        """Stops data that an encoder trained on `known` would misread."""

    def adapted(self, data: Any, known: Any, where: str) -> Any:
        """Data as an encoder trained on `known` can be shown them, or a sentence about why it cannot."""
        self.check_alike(data, known, where)
        return data

    def transferred(self, known: Any, data: Any, size: int | None) -> Any:
        """The description of other data, for an encoder trained on `known`: what it was built for stays, statistics are theirs."""
        return known

    def translated(self, known: Any, theirs: Any, where: str) -> Callable[[Any], Any]:
        """From views of data described as `known` to views as a network trained on `theirs` (`where`) takes them."""
        views = self.check_views({"name": self.default_views})
        ours, asked = (self.inputs(self.smallest_network, views, each).shapes for each in (known, theirs))
        if ours != asked:
            raise UserError(f"{where} takes views of shape {asked[0]}, but those of the data are {ours[0]}")
        return lambda view: view

    def check_method(self, data: Any, method: Method) -> None:
        """Stops data from which a method could learn nothing; there may be none."""
        return

    # --------------------------------------------------------------------------------------------- views

    @abstractmethod
    def check_views(self, choice: Choice) -> dict[str, Any]:
        """The views' section, complete and converted, or a sentence about the first thing that is wrong."""

    @abstractmethod
    def views(self, choice: Choice, known: Any, device: torch.device) -> MakeViews:
        """What training sees."""

    @abstractmethod
    def plain(self, choice: Choice, known: Any, device: torch.device) -> PlainView:
        """What evaluation sees."""

    def conflict(self, choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        """Why its views do not go with the other choices, in a sentence."""
        return None

    # ------------------------------------------------------------------------------------------ networks

    def check_network(self, name: str) -> str:
        """The name, if there is such a network."""
        if name not in self.networks:
            raise UserError(f"backbone was {name!r}; expected for {self.holds} {', '.join(self.networks)}")
        return name

    @abstractmethod
    def inputs(self, network: str, choice: Choice, known: Any) -> InputSpec:
        """What networks are shown, and how a backbone of that name is made for each view."""

    def portable(self, choice: Choice, known: Any) -> tuple[dict[str, Any], str]:
        """How the plain view is made, for people without nearfar: in plain JSON, and as Python source of a function `plain_view`;
        no source where only nearfar makes it."""
        return {"description": known.as_plain()}, ""

    # ------------------------------------------------------------------------------ evaluation and report

    def baselines(self, plain: MakeViews) -> dict[str, Features]:
        """Features that nothing was learned for."""
        return {}

    def measures(self) -> dict[str, Measure]:
        return {}

    @abstractmethod
    def pictures(self, loaded: Any, known: Any) -> list[Image.Image]:
        """Each loaded instance as a person can look at it."""

    @abstractmethod
    def view_pictures(self, views: Any, shown: Tensor, known: Any) -> list[Image.Image]:
        """Each instance of one view, as training sees it, for a person."""

    def view_measures(self, loaded: Any, views: Any, seed: int, index: np.ndarray) -> list[Any]:
        """What views change of instances (`measured.ViewMeasure`), where it is known what to measure."""
        return []

    def caption(self, data: Any, row: int) -> str:
        """What can be said of one instance in a line."""
        return str(data.paths[row])
