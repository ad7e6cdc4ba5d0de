"""Trainings on images that studies share: a recipe on a small budget, evaluated together with baselines.

The fields of `ImageSetup` are options of each such study. Any other key=value is a setting of every recipe it
trains (lr=1e-3, views.rotate=0.5), unless the study itself varies it.

A cell is one training: its identity holds what the recipe declares, the changes to it, the budget, the seed
and the fingerprints of the images. Each uses one thread: two cells on two cores finish sooner than one on
both, and figures do not depend on `jobs`.

Select settings with on=validation, which evaluates on a held-out fifth of the training images; report figures
of on=test.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int64
from torch import Tensor

from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import all_keys, resolve
from nearfar.config.schema import settable, unknown
from nearfar.config.sections import ALIASES
from nearfar.config.settings import Settings
from nearfar.data import open_data
from nearfar.errors import UserError, check_whole
from nearfar.evaluate import LabelledFeatures, features, scores
from nearfar.evaluate.matching import match_labels
from nearfar.modalities import Images
from nearfar.modalities.image import ImageDescription
from nearfar.modalities.image.show import pixels_features
from nearfar.parts.encoders import parameters_of
from nearfar.run.trained import Run, fresh_method
from nearfar.sweeps.engine import Cell
from nearfar.system.hardware import one_thread
from nearfar.train.pretrain import run_pretraining
from nearfar.train.resuming import describe_data

CIFAR = "cifar10:data"
BACKBONE = "resnet8-w16"
VALIDATION_SHARE = 0.2  # of the training images, evaluated with on=validation
ONE_CORE = {"precision": "fp32", "workers": 1}
NOT_TRAINED = ("pixels", "untrained")
BASELINES = (*NOT_TRAINED, "supervised")  # with their own settings, whatever a command changes
MINIMUM = {"images": 2, "epochs": 1, "size": 8, "batch": 2, "seeds": 1, "jobs": 1}
FIXED = {  # settings that a study does not take, and its own word for them
    "recipe": "the study chooses its recipes",
    "batch_size": "write batch=",
    "image_size": "write size=",
    "probe_every": "the study probes where it needs to",
    "held_out": "the study evaluates on separate images",
    "workers": "a cell has one thread",
    "precision": "figures are those of fp32",
}
# further values of a finished run, on images it did not train on
RunMeasure = Callable[[Run, Images], dict[str, Any]]


@dataclass(frozen=True)
class StudyArm:
    """What a comparison trains: a recipe with changed settings, or a baseline. `budget`: fields of the setup
    that differ, and `held_out` as in settings; `watch`: columns of metrics.jsonl to keep, with a kNN probe at
    every epoch."""

    recipe: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=dict)
    watch: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageSetup:
    """The data and the budget that all arms of a study share, and the number of seeds."""

    data: str = CIFAR
    test: str | None = None  # None: the test set that belongs to `data`
    on: Literal["test", "validation"] = "test"
    images: int = 5_000
    epochs: int = 10
    size: int = 16
    batch: int = 64
    seed: int = 0
    seeds: int = 2
    jobs: int = 2  # cells at a time
    backbone: str = BACKBONE
    changes: tuple[tuple[str, Any], ...] = field(default=(), kw_only=True)  # to every recipe, by setting

    def __post_init__(self) -> None:
        for key, minimum in MINIMUM.items():
            check_whole(key, getattr(self, key), minimum)
        if self.batch > self.images:
            raise UserError(f"batch was {self.batch}; with images={self.images} expected 2 to {self.images}")
        for key, _ in self.changes:
            if key in FIXED:
                raise UserError(f"{key} is not an option of a study; {FIXED[key]}")
            if key.partition(".")[0] not in {name.partition(".")[0] for name in all_keys()}:
                raise unknown(
                    key, {*settable(ImageSetup), *all_keys()}, "options of studies or settings of recipes"
                )

    @property
    def numbers(self) -> range:
        """The seeds."""
        return range(self.seed, self.seed + self.seeds)

    @property
    def images_trained_on(self) -> int:
        """Images that a cell trains on, repetitions counted."""
        return self.epochs * (self.images // self.batch) * self.batch

    def with_budget(self, budget: Mapping[str, Any]) -> "ImageSetup":
        return replace(self, **{key: budget[key] for key in ("epochs", "batch", "backbone") if key in budget})

    def cell(self, name: str, arm: StudyArm, seed: int, measure: RunMeasure | None = None) -> Cell:
        """The cell that trains `arm` under a seed. Bad settings are refused here, before any work."""
        setup = self.with_budget(arm.budget)
        train, test = image_sets(setup)
        identity: dict[str, Any] = {
            "version": 3,
            "recipe": arm.recipe,
            "seed": seed,
            "measure": _measure_name(measure),
            "epochs": setup.epochs,
            "size": setup.size,
            "batch": setup.batch,
            "backbone": setup.backbone,
            "train": train.fingerprint,
            "test": test.fingerprint,
            "watch": list(arm.watch),
        }
        if "held_out" in arm.budget:
            identity["held_out"] = arm.budget["held_out"]
        if arm.recipe not in NOT_TRAINED:
            changes = {} if arm.recipe in BASELINES else setup.all_changes(arm.changes)
            resolve(arm.recipe, self.data, changes, {"epochs": setup.epochs, "backbone": setup.backbone})
            identity |= {"declared": RECIPES[arm.recipe].settings(setup.epochs), "changes": changes}
        return Cell(f"{name},seed={seed}", identity)

    def all_changes(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """An arm's changes and the command's, by full name. A command cannot set what the study varies."""
        layer = {_full_name(key): value for key, value in changes.items()}
        for key, value in self.changes:
            if _full_name(key) in layer:
                varied = layer[_full_name(key)]
                raise UserError(f"{key} was {value!r}, but the study sets it itself, to {varied!r}")
            layer[_full_name(key)] = value
        return layer

    def settings(
        self,
        recipe: str,
        seed: int,
        changes: Mapping[str, Any],
        probe_every: float = 0.0,
        held_out: float = 0.0,
    ) -> Settings:
        of_setup = {
            "epochs": self.epochs,
            "batch_size": self.batch,
            "image_size": self.size,
            "backbone": self.backbone,
        }
        fixed = {**of_setup, **ONE_CORE, "seed": seed, "probe_every": probe_every, "held_out": held_out}
        return resolve(recipe, self.data, changes, fixed)


def _full_name(key: str) -> str:
    return ALIASES.get(key, key)


def _measure_name(measure: RunMeasure | None) -> Any:
    if isinstance(measure, partial):
        return [measure.func.__name__, measure.keywords]
    return None if measure is None else measure.__name__


def image_sets(setup: ImageSetup) -> tuple[Images, Images]:
    """The images to train on and those to evaluate on, labelled in one numbering."""
    return _image_sets(ImageSetup(setup.data, setup.test, setup.on, setup.images, size=setup.size, batch=2))


@lru_cache(maxsize=2)  # the same images whatever the batch and the network
def _image_sets(setup: ImageSetup) -> tuple[Images, Images]:
    pool = _labelled_images(setup.data, setup.size)
    if setup.on == "validation":
        pool, test = pool.split(VALIDATION_SHARE, seed=0)
    else:
        test = _labelled_images(setup.test or _test_name(setup.data), setup.size)
        if test.channels != pool.channels:
            raise UserError(
                f"test was {test.name} with {test.channels} channels; {pool.name} has {pool.channels}"
            )
    if setup.images > len(pool):
        raise UserError(f"images was {setup.images}; there are {len(pool)} in {pool.name} to train on")
    train = pool if setup.images == len(pool) else pool.split(setup.images / len(pool), seed=0)[1]
    if setup.on == "validation":
        return train, test
    matching = match_labels(labels_of(test).numpy(), test, labels_of(train).numpy(), train)
    return train, replace(test, labels=matching.labels)


@lru_cache(maxsize=4)
def _labelled_images(name: str, size: int) -> Images:
    images = open_data(name, image_size=size)
    assert isinstance(images, Images)
    if images.labels is None or (images.labels < 0).any():
        raise UserError(f"{name} has images without a label; studies evaluate features by classes")
    return images


def labels_of(images: Images) -> Int64[Tensor, "image"]:
    assert images.labels is not None  # checked by `_labelled_images`
    return torch.from_numpy(images.labels)


def _test_name(data: str) -> str:
    if data.startswith(("cifar10:", "idx:")):
        return f"{data.removesuffix(':train')}:test"
    if data in ("glyphs", "glyphs:train"):
        return "glyphs:test"
    raise UserError(f"test was not given; with data={data}, name a labelled test set, or use on=validation")


def compute_arm(
    cell: Cell, folder: Path, setup: ImageSetup, measure: RunMeasure | None = None
) -> dict[str, Any]:
    """Trains and evaluates one cell on the budget of its identity: knn, linear, seconds, rate, …"""
    identity = cell.identity
    setup = setup.with_budget(identity)
    with one_thread():
        if identity["recipe"] not in NOT_TRAINED:
            return _trained(identity, setup, folder, measure)
        settings = setup.settings("simclr", identity["seed"], {})
        train, _ = image_sets(setup)
        description = describe_data(train, settings, None, False)
        assert isinstance(description, ImageDescription)
        plain_view = settings.parts["views"].plain_view(description, torch.device("cpu"))
        if identity["recipe"] == "pixels":
            accuracies = _accuracies(lambda images: pixels_features(images, plain_view, workers=1), setup)
            return {**accuracies, **_cost(0)}
        net = fresh_method(settings, description).encoders.backbone()
        accuracies = _accuracies(lambda images: features(net, images, plain_view, workers=1), setup)
        return {**accuracies, **_cost(parameters_of(net))}


def _trained(
    identity: Mapping[str, Any], setup: ImageSetup, out: Path, measure: RunMeasure | None
) -> dict[str, Any]:
    train, test = image_sets(setup)
    earlier_steps = Run.open(out).facts["step"] if list(out.glob("ckpt/step-*")) else 0
    probe_every = 1.0 if identity["watch"] else 0.0
    settings = setup.settings(
        identity["recipe"], identity["seed"], identity["changes"], probe_every, identity.get("held_out", 0.0)
    )
    started = time.process_time()
    run = run_pretraining(settings, train, out, quiet=True)
    seconds = time.process_time() - started
    rate = (setup.images_trained_on - earlier_steps * setup.batch) / seconds
    encoder, plain_view = run.encoder(), run.plain_view()
    embed = partial(features, encoder, plain_view=plain_view, device=run.device, workers=1)
    values = {
        **_accuracies(embed, setup),
        **_cost(parameters_of(encoder), rate, setup.images_trained_on),
        **_course(run, identity["watch"]),
        **(measure(run, test) if measure is not None else {}),
    }
    shutil.rmtree(out)  # a run has some megabytes, a study dozens of runs
    return values


def _accuracies(embed: Callable[[Images], Tensor], setup: ImageSetup) -> dict[str, Any]:
    fit, test = (LabelledFeatures(embed(images), labels_of(images)) for images in image_sets(setup))
    result = scores(fit, test)
    top5 = {f"{protocol}_top5": figures["top5"] for protocol, figures in result.items() if "top5" in figures}
    return {**{protocol: figures["top1"] for protocol, figures in result.items()}, **top5}


def _cost(parameters: int, rate: float = 0.0, images: int = 0) -> dict[str, Any]:
    """Weights of the encoder, images per second of one core, and seconds for all images."""
    return {"parameters": parameters, "rate": rate, "seconds": images / rate if rate else 0.0}


def _course(run: Run, watch: list[str]) -> dict[str, Any]:
    """Warnings of the run, and where `watch` names columns, their values and the probes by epoch."""
    rows = run.metrics
    warnings = [row["message"] for row in rows if row["kind"] == "event"]
    if not watch:
        return {"warnings": warnings}
    train_rows = [row for row in rows if row["kind"] == "train"]
    course = {key: [row.get(key) for row in train_rows] for key in ("epoch", *watch)}
    probes = [(row["epoch"], row["knn_top1"]) for row in rows if row["kind"] == "probe"]
    return {"warnings": warnings, "course": course, "probes": probes}
