"""An opened run folder: its settings, its metrics and results, and the encoder it trained."""

import copy
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.config.building import NO_OBJECTS, build_method
from nearfar.config.fields import CHOICES
from nearfar.config.objects import (
    CUSTOM,
    METHOD,
    OBJECT_KEYS,
    VIEWS,
    Objects,
    object_changes,
    require_objects,
    required_objects,
    split_objects,
)
from nearfar.config.schema import unknown
from nearfar.config.sections import describe
from nearfar.config.settings import Settings
from nearfar.core.abstract import AbstractViews
from nearfar.core.method import Method
from nearfar.core.notebook import curve_figure, table_html
from nearfar.core.results import Result
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data import Columns, Limits, Located, locate
from nearfar.data.lazy import check_all
from nearfar.data.remote import is_url
from nearfar.data.training import draw_labelled, open_on_all_ranks, split_holdout
from nearfar.errors import UserError, as_sentence
from nearfar.modalities import DataSet, Description, Modality
from nearfar.modalities.base import MakeViews, PlainView
from nearfar.modalities.dataset import ignored_files
from nearfar.modalities.image.views.functions import PictureFunctions
from nearfar.parts.encoders.per_view import ConcatFeatures
from nearfar.parts.encoders.stages import Kind, features_of
from nearfar.run import checkpoints, facts
from nearfar.run.features import features
from nearfar.run.folder import RunFolder
from nearfar.run.metrics import read_metrics
from nearfar.run.results import results_of
from nearfar.run.teachers import TEACHER, attach_teacher
from nearfar.run.weights import shapes_of
from nearfar.system.files import as_path
from nearfar.system.hardware import pick_device
from nearfar.system.untrusted import is_number, read_json

# title of a curve in `Run.plot`: kind of the rows of metrics.jsonl, and the key in them
CURVES = {
    "loss": ("train", "loss"),
    "objective, nats": ("train", "nats"),
    "held-out, nats": ("held-out", "nats"),
    "kNN probe, top-1": ("probe", "knn_top1"),
    "linear probe, top-1": ("probe", "linear_top1"),
}


class Run:
    """A run folder. Settings are read once, when it is opened; everything else on first use.

    `objects`: the Python objects that the run was created with (`method`, or a `backbone`, parts by room,
    `views`); files do not hold them. `data`: the run's data where they are Python objects too. `strategy`: of
    the processes that have opened the run together and share the work.

    A run may come from a stranger, so a URL in its settings is not opened unless the user names it too
    (`allow_url`) or `allow_urls` is set.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        objects: Objects = NO_OBJECTS,
        data: Located | None = None,
        strategy: Strategy = SINGLE,
        allow_urls: bool = False,
    ) -> None:
        self.folder = RunFolder(path)
        self.allow_urls = allow_urls
        self._allowed_urls: set[str] = set()
        self.settings, self.objects, self.data, self.strategy = settings, objects, data, strategy
        self._sets: dict[tuple[str, int | None], DataSet] = {}
        self._open_data: DataSet | None = None
        # as training sees them, by the fingerprint of what is evaluated
        self._opened: dict[str, DataSet] = {}

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        data: Any = None,
        labels: Any = None,
        strategy: Strategy = SINGLE,
        allow_urls: bool = False,
        **objects: Any,
    ) -> "Run":
        """Opens the run in a folder. A run that was created with Python objects needs them again, as they
        were passed to `pretrain`: `Run.open("runs/own", backbone=my_module, data=my_dataset)`,
        `Run.open("runs/mine", method=my_method)`.

        If config.yaml names a URL as the run's data, it is opened only with `allow_urls`, or after you name
        it yourself: as `data` here, or as `train` or `data` of `evaluate`.

        Under torchrun every process may open it with `strategy=nf.join()`. The processes then share the work
        of opening data, embedding and finding neighbours, so all of them must make the same calls."""
        folder = RunFolder(as_path("run", path))
        if not folder.config.is_file():
            raise UserError(f"{path} is not a run: it has no config.yaml; make one with nearfar pretrain")
        settings = folder.settings()
        checked = _check_same_objects(settings, objects, folder.path)
        located = None if data is None else locate(data, labels)
        return cls(folder.path, settings, checked, located, strategy, allow_urls)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled run is its folder, settings and objects. Data that were Python objects stay behind."""
        return Run, (self.path.absolute(), self.settings, self.objects, None, SINGLE, self.allow_urls)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, recipe={self.settings.recipe!r}, data={self.settings.data!r})"

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.folder.metrics)

    @property
    def results(self) -> list[Result]:
        """The evaluations in evaluation.json, oldest first."""
        return results_of(read_json(self.folder.results))

    @property
    def environment(self) -> dict[str, Any] | None:
        return self.folder.environment()

    @cached_property
    def _loaded(self) -> checkpoints.Loaded:
        """The newest valid checkpoint."""
        newest = checkpoints.load_newest(self.folder.checkpoints)
        if newest is None:
            damage = checkpoints.damage(self.folder.checkpoints)
            raise UserError(
                f"{self.path}/ckpt holds no valid checkpoint{damage}; run the pretrain command again"
            )
        return facts.checked(newest)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that have checkpoints, rising."""
        return checkpoints.steps(self.folder.checkpoints)

    def at(self, step: int) -> "Run":
        """The run as of its checkpoint of that step."""
        loaded = checkpoints.load_step(self.folder.checkpoints, step)
        if loaded is None:
            raise UserError(f"{self.path}/ckpt holds no valid checkpoint of step {step}")
        earlier = copy.copy(self)  # shares the opened data and the method before its first step
        earlier.__dict__.pop("_trained", None)
        earlier.__dict__["_loaded"] = facts.checked(loaded)
        return earlier

    @property
    def checkpoint(self) -> Path:
        return self._loaded.path

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the checkpoint: step, shape and statistics of the data, states of hooks."""
        return self._loaded.facts

    @property
    def unfinished(self) -> str:
        """A sentence about how far an unfinished run is; empty for one that finished or that a hook ended."""
        if self.facts.get("ended") is not None:
            return ""
        steps = self.settings.epochs * (self.description.instances // self.settings.batch_size)
        step = self.facts["step"]
        return f"{self.path} is unfinished: step {step:,} of {steps:,}" if step < steps else ""

    @property
    def device(self) -> torch.device:
        """The device of the settings; on a machine without it, the best available one."""
        local_rank = self.strategy.local_rank if self.strategy.is_distributed else None
        try:
            return pick_device(self.settings.device, local_rank)
        except UserError:
            return pick_device("auto", local_rank)

    def method(self, trained: bool = True) -> Method:
        """A copy of the trained method, or of the method before its first step. Each is built once."""
        return copy.deepcopy(self._trained if trained else self._untrained)

    @cached_property
    def _trained(self) -> Method:
        self._check_objects(network=True)
        stored = self.weights()
        try:
            if not set(self.objects) - {TEACHER}:
                # on the meta device, since settings can describe a network that no memory holds
                with torch.device("meta"):
                    method = fresh_method(self.settings, self.description, self.objects)
                if not facts.fits(method, stored):
                    raise UserError(
                        f"the checkpoint in {self.path} does not hold the tensors that its settings describe; "
                        f"{self._remedy()}"
                    )
                method.load_state_dict(stored, assign=True)
                if not any(t.is_meta for t in (*method.parameters(), *method.buffers())):
                    return method.eval()
            method = fresh_method(self.settings, self.description, self.objects)
            method.load_state_dict(stored)
        except RuntimeError:
            raise UserError(
                f"the tensors of the checkpoint in {self.path} do not have the shapes that its settings describe"
            ) from None
        return method.eval()

    @cached_property
    def _untrained(self) -> Method:
        _ = (
            self._trained
        )  # refuses settings that describe more than the checkpoint holds, before they are built
        return fresh_method(self.settings, self.description, self.objects).eval()

    def _remedy(self) -> str:
        """What to do about a checkpoint that does not fit."""
        if self.settings.recipe == CUSTOM:
            call = f"nearfar.Run.open({str(self.path)!r}, method=…)"
            return f"the run was created with a Method of other sizes: pass it again, {call}"
        return "another version of nearfar may have written it: use that version, or train again"

    def weights(self) -> dict[str, Tensor]:
        """The tensors of the method by name."""
        return checkpoints.under(self._loaded.tensors, "method/")

    def _check_objects(self, network: bool = False) -> None:
        """Stops if an object is missing; `network`: of those that the method consists of."""
        call = f"nearfar.Run.open({str(self.path)!r}, "
        require_objects(
            self.settings, self.objects, str(self.path), lambda arguments: f"{call}{arguments})", network
        )

    def encoder(self, features: Kind = "pooled") -> nn.Module:
        """The trained network from a plain view to features: those of the backbone ("pooled"), the map before
        pooling ("map"), or the output of the head ("head")."""
        if self.facts["step"] == 0:
            raise UserError(f"{self.path} has no trained checkpoint yet; run the pretrain command again")
        return copy.deepcopy(features_of(self._trained.encoders, features)).to(self.device).eval()

    def untrained(self, features: Kind = "pooled") -> nn.Module:
        return copy.deepcopy(features_of(self._untrained.encoders, features)).to(self.device).eval()

    @property
    def modality(self) -> Modality:
        return self.settings.modality

    @property
    def description(self) -> Description:
        """The description of the training data: sizes, channels, statistics, classes."""
        return self.modality.reader.description(self.facts["data"])

    def plain_view(self, description: Description | None = None) -> PlainView:
        """The view of evaluation, of the run's data or of data with another description."""
        view: PlainView = self.settings.parts[VIEWS].plain_view(description or self.description, self.device)
        return view

    def views(self, description: Description | None = None) -> Any:
        """The views of training."""
        if "object" in self.settings.views:
            self._check_objects()
        return views_of(self.settings, description or self.description, self.device, self.objects)

    def open_data(self, spec: Any = None, size: int | None = None) -> Any:
        """The run's data, or other data for its encoder; paths are opened once. `size`: the side of views to
        be made, where that is larger than the run's, so that images are stored large enough."""
        if isinstance(spec, DataSet):
            return spec
        options = self.modality.reader.options_for(
            self.settings.views, self.settings.image_size, self.description
        )
        if size is not None and size > (options.get("image_size") or size):
            options["image_size"] = size
        else:
            size = None
        has_name = spec is None or isinstance(spec, (str, Path))
        name = self.settings.data if spec is None else str(spec)
        if has_name and (name, size) in self._sets:
            return self._sets[name, size]
        located = self._own_data() if spec is None else locate_beside(self.settings, spec)
        check_kind(self.settings, located)
        limits = Limits(max_bad_share=self.settings.max_bad_share, scans=self.folder.cache)
        opened = self._open_data if spec is None and size is None else None
        if opened is None:
            opened = open_on_all_ranks(located, limits, options, self.strategy)
        usable = check_all(opened, self.folder.cache, self.settings.workers, self.strategy)
        usable = self.description.convert_channels(usable, str(self.path))
        self._opened[usable.fingerprint] = opened
        if has_name:
            self._sets[name, size] = usable
        return usable

    def ignored_files(self) -> list[str]:
        """A sentence about each data set opened for the run that has files which are not read."""
        opened = [data for data in self._opened.values() if data.ignored]
        return [f"{data.name}: {ignored_files(data.ignored)}" for data in opened]

    def set_open_data(self, data: DataSet) -> None:
        """Uses data that are already open as the run's data."""
        self._open_data = data

    def allow_url(self, *specs: Any) -> None:
        """Notes data that the user named: a URL among them may be opened where settings of a run name it."""
        self._allowed_urls.update(spec for spec in specs if isinstance(spec, str))

    def may_open(self, spec: str) -> bool:
        """Whether data that its settings name may be opened: anything but an unconfirmed URL."""
        return not is_url(spec) or self.allow_urls or spec in self._allowed_urls

    @property
    def unopened_url(self) -> str | None:
        """A sentence about the URL that is not opened, where the run's data are at one; None otherwise."""
        if self.data is not None or self.may_open(self.settings.data):
            return None
        return (
            f"{self.folder.config} names the URL {self.settings.data!r} as the run's data; it was not "
            "opened, since a run may come from anybody. Name it yourself (evaluate: --data URL), or add "
            "--allow-urls (Python: nearfar.Run.open(…, allow_urls=True))."
        )

    def _own_data(self) -> Located:
        if self.data is not None:
            return self.data
        if self.unopened_url is not None:
            raise UserError(self.unopened_url)
        try:
            return locate(self.settings.data, columns=columns_in(self.settings))
        except UserError as problem:
            raise UserError(
                f"{as_sentence(problem)} If {self.path} was trained on data from Python, give them again: "
                f"nearfar.Run.open({str(self.path)!r}, data=…)."
            ) from None

    def trained_on(self, images: Any) -> Any:
        """The part of the run's data that it was trained on. Instance numbers of banks and clusters refer to
        it, even if some instances became unreadable later."""
        settings = self.settings
        images = self._opened.get(images.fingerprint, images)
        training_part = split_holdout(images, settings.held_out, settings.seed)[0]
        return draw_labelled(training_part, settings.labels, settings.labels_seed)

    def embed(self, data: Any) -> Tensor:
        """Features of the frozen encoder, one float32 row per instance, in the order of the data."""
        return features(
            self.encoder(),
            self.open_data(data),
            self.plain_view(),
            device=self.device,
            workers=self.settings.workers,
            strategy=self.strategy,
        )

    def embed_at(self, step: int, data: Any) -> Tensor:
        """Features of the encoder at one of the run's checkpoints; step 0 is the untrained encoder."""
        earlier = self.at(step)
        backbone = earlier.method().encoders.backbone().to(self.device)
        view, workers = earlier.plain_view(), self.settings.workers
        return features(backbone, self.open_data(data), view, device=self.device, workers=workers)

    def choices(self) -> dict[str, str]:
        return describe({room: getattr(self.settings, room) for room in CHOICES})

    def _repr_html_(self) -> str:
        facts = [
            ["run", str(self.path)],
            ["recipe", str(self.settings.recipe)],
            ["data", str(self.settings.data)],
        ]
        results = "".join(result._repr_html_() for result in self.results[-1:])
        return table_html([*facts, *([choice, part] for choice, part in self.choices().items())]) + results

    def plot(self) -> Any:
        """A matplotlib figure of loss, objective, held-out estimate and probes over the steps."""
        rows = self.metrics
        curves = {
            title: [
                (row["step"], row[key]) for row in rows if row.get("kind") == kind and is_number(row.get(key))
            ]
            for title, (kind, key) in CURVES.items()
        }
        curves = {title: points for title, points in curves.items() if points}
        if not curves:
            raise UserError(f"{self.path} has no metrics to plot")
        return curve_figure(curves)

    def certificate(self) -> dict[str, Any]:
        method = self.method(trained=False)
        return vars(method.certificate(self.settings.batch_size, self.settings.views["count"]))


def _check_same_objects(settings: Settings, arguments: Mapping[str, Any], folder: Path) -> Objects:
    """The objects with which a run is opened; stops if they are not those it was created with."""
    for key in arguments:
        if key not in (*OBJECT_KEYS, TEACHER):
            raise unknown(key, (*OBJECT_KEYS, TEACHER), "objects a run can be opened with")
    if TEACHER in arguments:
        rest = {key: value for key, value in arguments.items() if key != TEACHER}
        return {**_check_same_objects(settings, rest, folder), TEACHER: arguments[TEACHER]}
    rest = {key: value for key, value in arguments.items() if key != METHOD}
    objects = split_objects(arguments.get(METHOD, settings.recipe), rest).objects
    needed = required_objects(settings)
    for key in arguments:
        if key not in needed and not (key == METHOD and settings.recipe == CUSTOM):
            reason = f"it needs {' and '.join(needed)}" if needed else "its settings describe it completely"
            raise UserError(f"{key} was given, but {folder} was not created with one: {reason}")
    if changed := object_changes(settings, objects):
        raise UserError(
            f"{folder} was created with other objects ({changed}); pass those it was created with"
        )
    return objects


def fresh_method(settings: Settings, data: Description, objects: Objects = NO_OBJECTS) -> Method:
    """The method of a run before its first step. Initial weights are a function of the seed alone, or those
    of the objects, which are copied and stay unchanged."""
    try:
        parts = copy.deepcopy({key: part for key, part in objects.items() if trained(key, part)})
    except Exception as problem:  # a user's object may raise anything
        raise UserError(f"the objects cannot be copied ({problem}); a run trains copies") from None
    if METHOD in parts:
        parts[METHOD].chunk = settings.chunk
        return parts[METHOD]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        method = build_method(settings, data, parts)
    attach_teacher(method.encoders, settings, data, objects.get(TEACHER))
    return method


def trained(key: str, part: Any) -> bool:
    """Whether an object is part of the method: views are if they can have weights."""
    return key != TEACHER and (key != VIEWS or isinstance(part, AbstractViews))


def views_of(
    settings: Settings, description: Description, device: torch.device, objects: Objects = NO_OBJECTS
) -> MakeViews:
    """The views of training: those of the settings, or the object that was passed."""
    views = objects.get(VIEWS)
    if views is None:
        return settings.parts[VIEWS].training(description, device)
    if isinstance(views, PictureFunctions):
        return views.training(settings.views["count"], description, device)
    return views


def columns_in(settings: Settings) -> Columns:
    """The table columns that the settings name."""
    return Columns(settings.image_column, settings.label_column)


def locate_beside(settings: Settings, spec: Any) -> Located:
    """Data other than the run's: tables by the columns of its settings if there, else the usual ones."""
    if columns := columns_in(settings):
        try:
            return locate(spec, columns=columns)
        except UserError:  # not a table, or one with other columns
            pass
    return locate(spec)


def check_kind(settings: Settings, located: Located) -> None:
    """Stops if the data are of another modality than the recipe's."""
    if located.modality is not settings.modality:
        raise UserError(
            f"{located.name} holds {located.modality.plural}, but {settings.recipe} is made for "
            f"{settings.modality.plural}"
        )


def backbones_of(method: Method) -> list[nn.Module]:
    """The backbone, or the networks it consists of."""
    backbone = method.encoders.backbone()
    return list(backbone.backbones) if isinstance(backbone, ConcatFeatures) else [backbone]


def copies_of(method: Method, backbone: nn.Module) -> list[nn.Module]:
    """A backbone, and every module of the method's encoders that is like it: those of slow networks."""
    shapes = shapes_of(backbone.state_dict())
    inside = method.encoders.modules() if isinstance(method.encoders, nn.Module) else ()
    copies = [m for m in inside if type(m) is type(backbone) and shapes_of(m.state_dict()) == shapes]
    return list({id(module): module for module in (backbone, *copies)}.values())


def trains_on_labels(method: Method) -> bool:
    """Whether the method learns from labels: classes as keys, or positives chosen by label."""
    by_label = any(part.group_by == "label" for part in method.selections)
    return by_label or method.encoders.needs_labels or method.encoders.learns_labels
