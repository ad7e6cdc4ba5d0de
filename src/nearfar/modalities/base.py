"""A modality is one kind of data: everything that depends on what an instance is, in four small objects.

    image     folders of JPEG and PNG, arrays (n, h, w, c)    crops and colours      ResNets        raw pixels
    sound     WAV, FLAC, Parquet `audio`                      stretches of time      conv + GRU     MFCC
    text      .txt, arrays of tokens                          hidden symbols         transformer    frequencies
    vectors   tables of numbers and categories, arrays        noise, other values    MLP            the numbers
    pairs     two columns of a table                          each side's own        each side's    untrained networks
    graph     TU folders, torch_geometric's data sets         nodes, edges, labels   GIN, GCN       counts of labels
    series    rows in the order of time                       neighbouring times     convolutions   the numbers
              reader                                          views                  networks       presenter

No other package compares names of modalities. A new modality is one file that subclasses the four classes
below, and one line in `MODALITIES` (examples/extending/video.py).
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from jaxtyping import Float, Int
from PIL import Image
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from nearfar.config.schema import check_settings, settable
from nearfar.core.abstract import AbstractViewSettings
from nearfar.core.method import Method
from nearfar.core.results import Measurement
from nearfar.errors import UserError
from nearfar.modalities.dataset import Blocks, DataSet, Instances, Unusable, UnusableRows
from nearfar.modalities.files import Labels
from nearfar.parts.encoders import InputSpec
from nearfar.system.untrusted import is_number

Choice = Mapping[str, Any]  # the views' section of the settings: a name and the settings of the views
MAX_COUNT = 2**40  # of anything in a description: larger numbers overflow in torch


# ------------------------------------------------------------------------------------------- description


@dataclass(frozen=True)
class Description:
    """The facts about its data that a run needs; a checkpoint holds them as JSON (`as_plain`)."""

    fingerprint: str
    instances: int
    class_count: int | None = field(default=None, kw_only=True)  # None without labels
    classes: tuple[str, ...] = field(default=(), kw_only=True)  # names of the classes; () without names

    def as_plain(self) -> dict[str, Any]:
        return {key: _lists(value) for key, value in asdict(self).items()}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_plain`. Checkpoints may come from elsewhere, so types and ranges are checked."""
        try:
            description = TypeAdapter(cls).validate_json(json.dumps(values), strict=True)
        except ValidationError as problem:
            first = problem.errors()[0]
            raise _invalid(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        for part in fields(description):
            value = getattr(description, part.name)
            numbers = [
                number for number in (value if isinstance(value, tuple) else (value,)) if is_number(number)
            ]
            if not all(map(math.isfinite, numbers)) or (
                isinstance(value, int) and not 1 <= value <= MAX_COUNT
            ):
                raise _invalid(f"{part.name} is {value}")
        description.check()
        return description

    def check(self) -> None:
        """Stops a description whose fields contradict each other."""
        return

    def of(self, data: Instances) -> Self:
        """The description of other data of the same kind."""
        return replace(self, fingerprint=data.fingerprint, instances=len(data))

    def labelled(self, count: int | None, names: tuple[str, ...] = ()) -> Self:
        """The description of the same data with this number of classes."""
        return replace(self, class_count=count, classes=names)

    def resized(self, size: int | None) -> Self:
        """The description with views of this side length, where views have one."""
        return self

    def with_statistics(self, mean: Sequence[float], std: Sequence[float]) -> Self:
        """The description with this normalisation of views, where they are pictures."""
        raise UserError(f"mean was {list(mean)}; it is for images")

    def side(self) -> int | None:
        """The side of a view in pixels, where views are pictures."""
        return None

    def check_alike(self, data: Any, run_name: str) -> None:
        """Stops data that an encoder trained on the described data (`run_name`) would misread."""
        return

    def convert_channels(self, data: Any, run_name: str) -> Any:
        """Data as an encoder trained on the described data can read them, or an error with the reason."""
        self.check_alike(data, run_name)
        return data

    def with_statistics_of(self, data: Any, size: int | None) -> Self:
        """This description with the statistics of other data. What an encoder was built for stays."""
        return self


def _lists(value: Any) -> Any:
    return [_lists(part) for part in value] if isinstance(value, tuple) else value


def _invalid(reason: str) -> UserError:
    return UserError(f"the checkpoint's description of its data is invalid ({reason})")


@dataclass(frozen=True)
class StandardisedDescription(Description):
    """Data whose channels or features are brought to mean 0 and standard deviation 1."""

    mean: tuple[float, ...]  # of each channel
    std: tuple[float, ...]

    def check(self) -> None:
        if len(self.mean) != len(self.std):
            raise _invalid("mean and std have different lengths")

    def check_width(self, data: Instances, width: int, unit: str, run_name: str) -> None:
        """Stops data with another number of channels or features."""
        if width != len(self.mean):
            raise UserError(f"{data.name} has {width} {unit} but {run_name} was trained on {len(self.mean)}")


# ----------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Decoded:
    """The content of one file or row, facts about it that are kept, and its size in memory in bytes."""

    content: Any
    facts: Any
    nbytes: int


@dataclass(frozen=True)
class Arrays:
    """An array of instances, their labels and names."""

    array: np.ndarray
    labelled: Labels = (None, ())
    paths: tuple[str, ...] | None = None
    # of a table with categories: names of the levels of each column; () for a column of numbers
    levels: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class NamedData:
    """A data set that has a name: arrays that `arrays` reads, or one file."""

    name: str
    arrays: Callable[[], Arrays] | None = None
    file: Path | None = None


_COLLECTED = ("facts", "content_at", "labelled", "contents")  # fields of a collection that data sets have not


@dataclass(frozen=True)
class Collection:
    """The usable instances of a source, in its order; `content_at(place)` returns the content of one."""

    name: str
    fingerprint: str
    paths: Sequence[str]
    facts: Sequence[Any] | Int[np.ndarray, "instance fact"]
    content_at: Callable[[int], Any]
    labelled: Labels = (None, ())
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    quarantine: tuple[tuple[str, str], ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)  # files that are not read, by reason
    unlabelled: str = ""
    blocks: Blocks | None = None
    contents: list[Any] | None = None  # all contents, where they fit in memory
    # where instances may turn out to be unusable when they are read
    unusable_rows: UnusableRows | None = None

    def common(self) -> dict[str, Any]:
        """The fields that the data sets of every modality have, except the store."""
        labels, classes = self.labelled
        computed = {"labels": labels, "classes": classes, "rows": np.arange(len(self.paths))}
        return computed | {name: value for name, value in vars(self).items() if name not in _COLLECTED}

    def all_contents(self) -> list[Any]:
        if self.contents is not None:
            return self.contents
        return [self.content_at(place) for place in range(len(self.paths))]


class AbstractReader(ABC):
    """Bytes, arrays and Python objects -> content -> a data set -> its description."""

    description_type: ClassVar[type[Description]]
    suffixes: ClassVar[tuple[str, ...]] = ()  # of files that this modality reads
    # formats by suffix that are not read although they hold instances, and what to convert them to
    unread: ClassVar[Mapping[str, str]] = {}
    converted_to: ClassVar[str] = ""
    files: ClassVar[str]  # what messages count before files are decoded
    columns: ClassVar[tuple[str, ...]] = ()  # names of Parquet columns that hold encoded instances
    text_columns: ClassVar[tuple[str, ...]] = ()  # names of columns of text that hold instances
    feature: ClassVar[str] = ""  # type of the Hugging Face feature that holds encoded instances
    array_key: ClassVar[str] = ""  # of the array in an .npz file
    array_axes: ClassVar[tuple[int, ...]] = ()  # numbers of axes of an array that is of this modality
    # facts of an instance that was not decoded yet; None: a data set needs the facts of all its instances
    default_facts: ClassVar[tuple[int, ...] | None] = None
    # the values of each fact, which packed data are checked for; () for what cannot be packed
    fact_ranges: ClassVar[tuple[Sequence[int], ...]] = ()
    # that `encode` writes; the bytes of the source are always possible
    encodings: ClassVar[tuple[str, ...]] = ()
    dependence: ClassVar[str] = ""  # why instances are never independent draws, in a clause
    named_examples: ClassVar[tuple[str, ...]] = ()  # of names that `find_named` knows

    def options(self, **values: Any) -> Mapping[str, Any]:
        """Checked options of `decode`, `convert`, `collect` and `from_array`."""
        for key in values:
            raise UserError(f"{key} is not an option of {self.files}")
        return {}

    def options_for(self, views: Choice, size: int | None, description: Any) -> dict[str, Any]:
        """The options of a run with these settings and training data (`description`, if known)."""
        return {}

    def claims(self, spec: str) -> bool:
        """Whether this modality opens a user's DATA argument (`open_spec`), whatever files it names."""
        return False

    def open_spec(self, spec: str, options: Mapping[str, Any]) -> DataSet:
        raise NotImplementedError(f"{type(self).__name__} claims no data")

    def find_named(self, spec: str) -> NamedData | None:
        """The data set of this name (`digits`, `cifar10:FOLDER:test`); None for other names."""
        return None

    def folder_hint(self, folder: str, names: Sequence[str]) -> str:
        """How a folder with files of these names is opened, where it cannot be opened by its path."""
        return ""

    def tensor_array(self, tensor: Tensor) -> np.ndarray:
        """A torch tensor as `from_array` takes it."""
        array: np.ndarray = tensor.detach().cpu().numpy()
        return array

    def decode(self, raw: bytes, options: Mapping[str, Any]) -> Decoded:
        """The content of an encoded file or row; raises `Unusable` with a reason."""
        raise Unusable(f"{self.files} are not read from files of one instance")

    def convert(self, item: Any, options: Mapping[str, Any]) -> Decoded | None:
        """The content of a Python object (an item of a torch `Dataset`); None if of another modality."""
        return None

    def encode(self, content: Any, encoding: str, quality: int) -> bytes:
        """Content as bytes that `decode` takes, in one of `encodings`."""
        raise UserError(f"encoding was {encoding!r}; {self.files} keep their own encoding")

    def first_content(self, loaded: Any) -> Any:
        """The content of the first loaded instance."""
        return loaded[0]

    def outliers(self, facts: Sequence[Any]) -> dict[int, str]:
        """By place, why some instances do not fit the others."""
        return {}

    def collect(self, collection: Collection, options: Mapping[str, Any]) -> DataSet:
        """The data set of a collection; required where `suffixes`, `columns` or `convert` name sources."""
        raise UserError(f"data {collection.name!r}: {self.files} are not read from separate files")

    def from_array(self, arrays: Arrays, name: str, options: Mapping[str, Any]) -> DataSet:
        """The data set of an array; required where `array_key` or `array_axes` are set."""
        raise UserError(f"data {name!r} is an array; {self.files} are read from files")

    @abstractmethod
    def describe(self, data: Any, size: int | None) -> Description:
        """The description of a data set; `size` is the side length of views in the settings."""

    @abstractmethod
    def example_description(self, instances: int) -> Description:
        """The description of small data of this kind, for checking settings and for documentation."""

    def description(self, values: Mapping[str, Any]) -> Any:
        return self.description_type.from_plain(values)


# ------------------------------------------------------------------------------------------------- views


class MakeViews(Protocol):
    """Views of loaded instances: a pure function of (seed, epoch, index) and the instances."""

    def __call__(
        self, loaded: Any, seed: int, epoch: int, index: Int[np.ndarray, "instance"], /
    ) -> tuple[Tensor, ...]: ...


class PlainView(ABC):
    """The view of evaluation: without randomness, and the first (only) view is what an encoder receives."""

    @abstractmethod
    def __call__(
        self, loaded: Any, seed: int, epoch: int, index: Int[np.ndarray, "instance"], /
    ) -> tuple[Tensor, ...]: ...

    def as_views(self, view: Tensor, count: int) -> tuple[Tensor, ...]:
        """The plain view in the form of `count` training views: negatives are prefilled with it."""
        return (view,) * count


@dataclass(frozen=True, eq=False)
class ViewFamily:
    """The views of a modality: the settings of each kind by name, the default first."""

    kinds: Mapping[str, type[AbstractViewSettings]]
    several: bool = True  # several views of one instance, which any encoders take
    one_shape: bool = True  # views of every batch have the same shape
    resizable: bool = False  # the setting image_size is the side length of a view

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.kinds)

    @property
    def default(self) -> str:
        return self.names[0]

    def check(self, choice: Choice) -> dict[str, Any]:
        """The views' section of the settings, complete and converted."""
        return {"name": choice["name"], **self.of(choice).section()}

    @cached_property
    def default_section(self) -> dict[str, Any]:
        """The section of the default views."""
        return self.check({"name": self.default})

    def of(self, choice: Choice) -> AbstractViewSettings:
        """The views of a section; an error names the first wrong setting. Of views that the caller made, the
        default with their number and pairing."""
        if choice["name"] in self.kinds:
            return read_views(self.kinds[choice["name"]], choice)
        kind = self.kinds[self.default]
        return kind(**check_settings(kind, {k: choice[k] for k in settable(kind) if k in choice}, "views"))

    def conflict(self, choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        """Why these views do not go with the other choices of a method; None if they do."""
        return self.kinds.get(choices["views"]["name"], self.kinds[self.default]).conflict(choices, parts)


def read_views(kind: type[AbstractViewSettings], choice: Choice) -> AbstractViewSettings:
    """The settings of views from their section; keys that are no parameters go to `further`."""
    parameters = settable(kind)
    rest = {key: value for key, value in choice.items() if key != "name" and key not in parameters}
    for key in [key for key in ("count", "symmetric") if key in rest]:
        fixed = getattr(kind, key)
        if rest.pop(key) != fixed:
            raise UserError(
                f"views.{key} was {choice[key]!r}; with views={choice['name']} it is {str(fixed).lower()}"
            )
    further = {kind.further: rest} if kind.further else {}
    values = {key: choice[key] for key in parameters if key in choice}
    return kind(**check_settings(kind, values if further else {**values, **rest}, "views"), **further)


# ---------------------------------------------------------------------------------------------- networks


@dataclass(frozen=True)
class Pretrained:
    """Weights that a library has for a network, and how pictures were shown to it, if known."""

    path: Path  # a file; of transformers, a folder
    origin: str  # whose configuration it is, for messages
    size: int | None = None  # side of a view in pixels
    mean: tuple[float, ...] | None = None  # of each channel, in [0, 1]
    std: tuple[float, ...] | None = None

    def settings(self) -> dict[str, Any]:
        """Its configuration as settings of a run."""
        size = {} if self.size is None else {"image_size": self.size}
        if self.mean is None or self.std is None:
            return size
        return {**size, "mean": list(self.mean), "std": list(self.std)}


class AbstractNetworks(ABC):
    """The backbones of a modality by name."""

    names: ClassVar[tuple[str, ...]]
    default: ClassVar[str]
    small: ClassVar[str | None] = None  # the default on a CPU, where `default` is too slow there
    smallest: ClassVar[str]  # for trying out settings

    def check(self, name: str, plural: str) -> str:
        """The name, if there is such a backbone."""
        if name not in self.names:
            raise UserError(f"backbone was {name!r}; expected for {plural} {', '.join(self.names)}")
        return name

    def config(self, name: str, stored: Any = None) -> dict[str, Any] | None:
        """The configuration of a network that its name does not describe: `stored` or a file's; else None."""
        return None

    def pretrained(self, name: str) -> Pretrained:
        """Where on this machine the weights are that a library has for this name."""
        raise UserError(f"init was pretrained, but there are no pretrained weights of backbone={name}")

    def describe_weights(self, file: Path) -> Pretrained:
        """A weights file with the facts in its folder's configuration."""
        return Pretrained(file, str(file))

    def start_settings(self, weights: Pretrained, data: DataSet | None) -> dict[str, Any]:
        """The settings of a run on these data that follow from weights."""
        return weights.settings()

    @abstractmethod
    def inputs(self, network: str, choice: Choice, description: Any) -> InputSpec:
        """What a backbone of that name receives with these views, and how one is made for each view."""

    def view_converter(
        self, views: ViewFamily, description: Any, target: Any, network_name: str
    ) -> Callable[[Tensor], Tensor]:
        """See `Modality.view_converter`; by default views of the same shape are the same."""
        section = views.default_section
        shapes = self.inputs(self.smallest, section, description).shapes
        expected = self.inputs(self.smallest, section, target).shapes
        if shapes != expected:
            raise UserError(
                f"{network_name} takes views of shape {expected[0]}, but those of the data are {shapes[0]}"
            )
        return lambda view: view

    def check_method(self, data: Any, method: Method) -> None:
        """Stops data from which a method can learn nothing."""
        return


# -------------------------------------------------------------------------------- evaluation and reports

Features = Callable[[Any], Float[Tensor, "instance dim"]]  # of a data set of the modality


@dataclass(frozen=True)
class Measure:
    """An evaluation protocol that needs no labels: `learned(method, test, views, device=…, seed=…)` of a
    trained method, and `baselines[name](train, test, views, seed=…)` without one."""

    learned: Callable[..., Measurement]
    baselines: Mapping[str, Callable[..., Measurement]]


class AbstractPresenter(ABC):
    """Pictures for the report, baselines for the evaluation."""

    baseline_titles: ClassVar[Mapping[str, str]] = {}  # of `baselines`, by name

    @abstractmethod
    def pictures(self, loaded: Any, description: Any) -> list[Image.Image]:
        """A picture of each loaded instance."""

    @abstractmethod
    def view_pictures(self, views: Any, view: Tensor, description: Any) -> list[Image.Image]:
        """A picture of each instance in one view, as training shows it."""

    def view_measures(self, loaded: Any, views: Any, seed: int, index: np.ndarray) -> list[Any]:
        """Numbers of the instances before and after views were made (`ViewMeasure`), where there are any."""
        return []

    def baselines(self, plain_view: MakeViews) -> dict[str, Features]:
        """Features that were not learned, by name."""
        return {}

    def measures(self) -> dict[str, Measure]:
        """Evaluation protocols without labels, by name."""
        return {}


# ---------------------------------------------------------------------------------------------- modality


@dataclass(frozen=True)
class Modality:
    """One kind of data. Its four objects have no state: every method is a function of its arguments."""

    name: str
    unit: str  # what is counted, in the plural: "images"
    plural: str  # what the data are called: "pictures"
    example: str  # of the DATA argument on a command line
    reader: AbstractReader
    views: ViewFamily
    networks: AbstractNetworks
    presenter: AbstractPresenter

    def check_network(self, name: str) -> str:
        return self.networks.check(name, self.plural)

    def view_converter(self, description: Any, target: Any, network_name: str) -> Callable[[Tensor], Tensor]:
        """Converts views of data to those that a network trained on `target` receives."""
        return self.networks.view_converter(self.views, description, target, network_name)
