"""A run folder, opened: its settings, what it logged, and the encoder it trained."""

import copy
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.config.building import NONE, build_method, describe
from nearfar.config.fields import CHOICES
from nearfar.config.objects import (
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
from nearfar.config.settings import Settings
from nearfar.core.abstract import AbstractViews
from nearfar.core.method import Method
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data import Columns, Limits, Located, locate
from nearfar.data.all_ranks import open_on_all_ranks
from nearfar.data.holdout import draw_labelled, split_holdout
from nearfar.data.lazy import check_all
from nearfar.data.remote import is_url
from nearfar.errors import UserError
from nearfar.modalities import DataSet, Description, Modality
from nearfar.modalities.base import MakeViews, PlainView
from nearfar.modalities.dataset import ignored_files
from nearfar.parts.encoders.stages import Kind, features_of
from nearfar.run import checkpoints, facts
from nearfar.run.features import features
from nearfar.run.folder import RunFolder, read_mapping
from nearfar.run.metrics import read_metrics
from nearfar.run.teachers import TEACHER, attach_teacher
from nearfar.system.files import as_path
from nearfar.system.hardware import pick_device


class Run:
    """What `nearfar pretrain` left in a folder. Nothing is read before it is asked for.

    `objects` are those the run was made with that no file holds: `method`, or a `backbone`, parts by room, `views`. `data` are
    the run's own where they are no file either. `strategy`: of the processes that have all opened the run and share what is asked of it.

    A run may come from a stranger, so a URL in its settings is not opened unless the user names it too (`confirm`) or
    `allow_urls` is set.
    """

    def __init__(
        self,
        path: Path,
        settings: Settings,
        objects: Objects = NONE,
        data: Located | None = None,
        strategy: Strategy = SINGLE,
        allow_urls: bool = False,
    ) -> None:
        self.folder = RunFolder(path)
        self.allow_urls = allow_urls
        self._confirmed: set[str] = set()
        self.settings, self.objects, self.data, self.strategy = settings, objects, data, strategy
        self._sets: dict[tuple[str, int | None], DataSet] = {}
        self._remembered: DataSet | None = None
        self._opened: dict[
            str, DataSet
        ] = {}  # as training sees them, by the fingerprint of what is evaluated

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
        """The run in a folder. One that was made with objects of Python needs them again, as they were given to `pretrain`:
        `Run.open("runs/own", backbone=my_module, data=my_dataset)`, `Run.open("runs/mine", method=my_method)`.

        Where config.yaml names a URL as the run's data, it is opened only with `allow_urls`, or after you name it yourself: as `data`
        here, or as `train` or `data` of `evaluate`.

        Under torchrun every process may open it with `strategy=nf.join()`: they then share the work of opening data, embedding
        and looking for neighbours, so all must ask for the same."""
        folder = RunFolder(as_path("run", path))
        if not folder.config.is_file():
            raise UserError(f"{path} is not a run: it has no config.yaml; make one with nearfar pretrain")
        settings = folder.settings()
        again = _given_again(settings, objects, folder.path)
        located = None if data is None else locate(data, labels)
        return cls(folder.path, settings, again, located, strategy, allow_urls)

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.folder.metrics)

    @property
    def evaluation(self) -> dict[str, Any] | None:
        return read_mapping(self.folder.results)

    @property
    def environment(self) -> dict[str, Any] | None:
        return self.folder.environment()

    @cached_property
    def _loaded(self) -> checkpoints.Loaded:
        """The newest checkpoint that passes its own check."""
        found = checkpoints.load_newest(self.folder.checkpoints)
        if found is None:
            raise UserError(f"{self.path}/ckpt holds no valid checkpoint; run the pretrain command again")
        return facts.checked(found)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of which there are checkpoints, rising."""
        return checkpoints.steps(self.folder.checkpoints)

    def at(self, step: int) -> "Run":
        """The run as its checkpoint of that step holds it."""
        found = checkpoints.load_step(self.folder.checkpoints, step)
        if found is None:
            raise UserError(f"{self.path}/ckpt holds no valid checkpoint of step {step}")
        then = Run(self.path, self.settings, self.objects, self.data, self.strategy, self.allow_urls)
        then._confirmed = self._confirmed
        then._sets, then._opened, then._remembered = self._sets, self._opened, self._remembered
        then.__dict__["_loaded"] = facts.checked(found)
        return then

    @property
    def checkpoint(self) -> Path:
        return self._loaded.path

    @property
    def facts(self) -> dict[str, Any]:
        """The checkpoint's facts: step, the data's shape and statistics."""
        return self._loaded.facts

    @property
    def unfinished(self) -> str:
        """How far the run is, where it is not at its end."""
        steps = self.settings.epochs * (self.description.instances // self.settings.batch_size)
        step = self.facts["step"]
        return f"{self.path} is unfinished: step {step:,} of {steps:,}" if step < steps else ""

    @property
    def device(self) -> torch.device:
        """The device of the settings, or, on a machine that has not got it, the best there is."""
        try:
            return pick_device(
                self.settings.device, self.strategy.local_rank if self.strategy.is_distributed else None
            )
        except UserError:
            return pick_device("auto")

    def method(self, trained: bool = True) -> Method:
        """The whole method as trained, or as it was before the first step."""
        self._check_objects()
        stored = self.weights()
        # first where a network of any size costs nothing: a line of settings can describe one beyond all memory
        with torch.device("meta"):
            own = set(self.objects) - {TEACHER}
            described = None if own else fresh_method(self.settings, self.description)
        if described is not None and not facts.fits(described, stored):
            raise UserError(
                f"the checkpoint in {self.path} holds other tensors than its settings describe; another version of nearfar may have "
                "written it: use that one, or train again"
            )
        method = fresh_method(self.settings, self.description, self.objects)
        if trained:
            try:
                method.load_state_dict(stored)
            except RuntimeError:
                raise UserError(
                    f"the checkpoint in {self.path} holds tensors of other shapes than its settings describe"
                ) from None
        return method.eval()

    def weights(self) -> dict[str, Tensor]:
        """The method's tensors by name, as the checkpoint holds them."""
        return checkpoints.under(self._loaded.tensors, "method/")

    def _check_objects(self) -> None:
        where = f"nearfar.Run.open({str(self.path)!r}, "
        require_objects(self.settings, self.objects, str(self.path), lambda arguments: f"{where}{arguments})")

    def encoder(self, features: Kind = "pooled") -> nn.Module:
        """The trained network without its head: a plain module from a plain view to features. Or ("map") to what it pools, or
        ("head") to what its head makes of them."""
        if self.facts["step"] == 0:
            raise UserError(
                f"{self.path} has taken no step yet: its only checkpoint is the untrained encoder; run the pretrain command again"
            )
        return features_of(self.method().encoders, features).to(self.device).eval()

    def untrained(self, features: Kind = "pooled") -> nn.Module:
        return features_of(self.method(trained=False).encoders, features).to(self.device).eval()

    @property
    def modality(self) -> Modality:
        return self.settings.modality

    @property
    def description(self) -> Description:
        """What the run knows of the data it was trained on."""
        return self.modality.reader.description(self.facts["data"])

    def plain(self, known: Description | None = None) -> PlainView:
        """What evaluation sees of the run's data, or of data described otherwise."""
        return self.modality.views.plain(self.settings.views, known or self.description, self.device)

    def views(self, known: Description | None = None) -> Any:
        if "object" in self.settings.views:
            self._check_objects()
        return views_of(self.settings, known or self.description, self.device, self.objects)

    def images(self, spec: Any = None, size: int | None = None) -> Any:
        """The run's own data, or others that its encoder can be shown; what has a name is opened once. `size`: the side of views to be
        made of them, where that is larger than the run's, so that no picture is held smaller than it is needed."""
        if isinstance(spec, DataSet):
            return spec
        options = self.modality.reader.options_for(
            self.settings.views, self.settings.image_size, self.description
        )
        if size is not None and size > (options.get("image_size") or size):
            options["image_size"] = size
        else:
            size = None
        named = spec is None or isinstance(spec, (str, Path))
        name = self.settings.data if spec is None else str(spec)
        if named and (name, size) in self._sets:
            return self._sets[name, size]
        located = self._own_data() if spec is None else locate_beside(self.settings, spec)
        check_kind(self.settings, located)
        limits = Limits(max_bad_share=self.settings.max_bad_share, scans=self.folder.cache)
        own = self._remembered if spec is None and size is None else None
        opened = open_on_all_ranks(located, limits, options, self.strategy) if own is None else own
        usable = check_all(opened, self.folder.cache, self.settings.workers, self.strategy)
        usable = self.description.convert_channels(usable, str(self.path))
        self._opened[usable.fingerprint] = opened
        if named:
            self._sets[name, size] = usable
        return usable

    def ignored_files(self) -> list[str]:
        """A sentence about each data set opened for the run that has files which are not read."""
        opened = [data for data in self._opened.values() if data.ignored]
        return [f"{data.name}: {ignored_files(data.ignored)}" for data in opened]

    def remember(self, data: DataSet) -> None:
        """Takes the run's own data as they are open already."""
        self._remembered = data

    def confirm(self, *specs: Any) -> None:
        """Notes data that the user named: a URL among them may be opened where settings of a run name it."""
        self._confirmed.update(spec for spec in specs if isinstance(spec, str))

    def may_open(self, spec: str) -> bool:
        """Whether data that settings of this run, or of one it began with, name may be opened: anything but an unconfirmed URL."""
        return not is_url(spec) or self.allow_urls or spec in self._confirmed

    @property
    def unopened_url(self) -> str | None:
        """A sentence about the URL that is not opened, where the run's data are at one; None otherwise."""
        if self.data is not None or self.may_open(self.settings.data):
            return None
        return (
            f"{self.folder.config} names the URL {self.settings.data!r} as the run's data; it was not opened, since a run may come from "
            "anybody. Name it yourself (evaluate: --data URL), or add --allow-urls (Python: nearfar.Run.open(…, allow_urls=True))."
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
                f"{problem} If {self.path} was trained on data from Python, give them again: nearfar.Run.open("
                f"{str(self.path)!r}, data=…)."
            ) from None

    def trained_on(self, images: Any) -> Any:
        """Of the run's data, what it was trained on: instance numbers of banks and clusters count these, also where some turned out
        to be unusable meanwhile."""
        settings = self.settings
        images = self._opened.get(images.fingerprint, images)
        left = split_holdout(images, settings.held_out, settings.seed)[0]
        return draw_labelled(left, settings.labels, settings.labels_seed)

    def embed(self, data: Any) -> Tensor:
        """Features of the frozen encoder, one float32 row per instance, in the data's order."""
        return features(
            self.encoder(),
            self.images(data),
            self.plain(),
            device=self.device,
            workers=self.settings.workers,
            strategy=self.strategy,
        )

    def embed_at(self, step: int, data: Any) -> Tensor:
        """Features of the encoder as it was at one of the run's checkpoints, the untrained one at step 0 among them."""
        then = self.at(step)
        body = backbone_of(then.method()).to(self.device)
        return features(
            body, self.images(data), then.plain(), device=self.device, workers=self.settings.workers
        )

    def choices(self) -> dict[str, str]:
        return describe({room: getattr(self.settings, room) for room in CHOICES})

    def certificate(self) -> dict[str, Any]:
        method = self.method(trained=False)
        return vars(method.certificate(self.settings.batch_size, self.settings.views["count"]))


def _given_again(settings: Settings, arguments: Mapping[str, Any], folder: Path) -> Objects:
    """The objects with which a run is opened, if they are those it was made with."""
    for key in arguments:
        if key not in (*OBJECT_KEYS, TEACHER):
            raise unknown(key, (*OBJECT_KEYS, TEACHER), "objects a run can be opened with")
    if TEACHER in arguments:
        rest = {key: value for key, value in arguments.items() if key != TEACHER}
        return {**_given_again(settings, rest, folder), TEACHER: arguments[TEACHER]}
    rest = {key: value for key, value in arguments.items() if key != METHOD}
    objects = split_objects(arguments.get(METHOD, settings.recipe), rest).objects
    needed = required_objects(settings)
    for key in arguments:
        if key not in needed:
            reason = f"it needs {' and '.join(needed)}" if needed else "its settings describe it completely"
            raise UserError(f"{key} was given, but {folder} was not created with one: {reason}")
    if changed := object_changes(settings, objects):
        raise UserError(
            f"{folder} was created with other objects ({changed}); pass those it was created with"
        )
    return objects


def fresh_method(settings: Settings, data: Description, objects: Objects = NONE) -> Method:
    """The method of a run before its first step: initial weights are a function of the seed alone, or those that the objects
    have. Objects are copied: whoever made them finds them as they were."""
    try:
        own = copy.deepcopy({key: part for key, part in objects.items() if trained(key, part)})
    except Exception as problem:  # anything may happen in somebody's object
        raise UserError(
            f"the objects given cannot be copied ({problem}); each run trains copies of its own"
        ) from None
    if METHOD in own:
        own[METHOD].chunk = settings.chunk
        return own[METHOD]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        method = build_method(
            {room: getattr(settings, room) for room in CHOICES},
            backbone=settings.backbone,
            data=data,
            chunk=settings.chunk,
            objects=own,
        )
    attach_teacher(method.encoders, settings, data, objects.get(TEACHER))
    return method


def trained(key: str, part: Any) -> bool:
    """Whether an object is part of the method: views are if they can have weights."""
    return key != TEACHER and (key != VIEWS or isinstance(part, AbstractViews))


def views_of(
    settings: Settings, known: Description, device: torch.device, objects: Objects = NONE
) -> MakeViews:
    """What training sees: as the settings say, or the object that was given."""
    own = objects.get(VIEWS)
    return settings.modality.views.training(settings.views, known, device) if own is None else own


def columns_in(settings: Settings) -> Columns:
    """The columns that settings name."""
    return Columns(settings.image_column, settings.label_column)


def locate_beside(settings: Settings, spec: Any) -> Located:
    """Other data than a run's own: tables by the columns that its settings name, where they have those, else by the usual ones."""
    if columns := columns_in(settings):
        try:
            return locate(spec, columns=columns)
        except UserError:  # no table, or one with other columns
            pass
    return locate(spec)


def check_kind(settings: Settings, located: Located) -> None:
    """Stops a recipe that was given another kind of data than it is made for."""
    if located.modality is not settings.modality:
        raise UserError(
            f"{located.name} holds {located.modality.plural}, but {settings.recipe} is made for {settings.modality.plural}"
        )


def backbone_of(method: Method) -> nn.Module:
    return method.encoders.backbone()


def backbones_of(method: Method) -> list[nn.Module]:
    """The backbone, or those of which it is made."""
    kept = backbone_of(method)
    return list(getattr(kept, "backbones", (kept,)))


def trains_on_labels(method: Method) -> bool:
    """Whether labels are part of what is learned: classes as keys, or positives chosen by them."""
    chosen = any(part.group_by == "label" for part in method.selections)
    return chosen or method.encoders.needs_labels or method.encoders.learns_labels
