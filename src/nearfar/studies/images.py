"""What studies on images share: a recipe trained on a small budget, its frozen features judged, baselines beside.

    def run(bench: Bench, setup: Setup) -> Result:
        found = repeated(bench, setup, {"simclr": [setup.recipe("simclr", seed) for seed in setup.numbers]})

The fields of `Setup` are options of each such study, and any other key=value is a setting of every recipe it trains (lr=1e-3,
views.rotate=0.5), unless it is what the study itself varies.

An arm is one training. Its key holds what the recipe declares, the changes to it, the budget, the seed and the
fingerprints of the images, so a finished arm is found again if and only if the same would be computed again. Arms
use one thread each: two on two cores finish sooner than one on both, and their numbers do not depend on `jobs`.

Settings are chosen with on=validation, where a fifth of the training images is set aside and judged; figures to be
told come from on=test.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor, nn

from nearfar.config.recipes import RECIPES
from nearfar.config.resolving import ALIASES, all_keys, resolve
from nearfar.config.schema import settable, unknown
from nearfar.config.settings import Settings
from nearfar.core.layout import keep_contiguous
from nearfar.core.schedules import Progress, cosine
from nearfar.core.statistics import mean_and_spread
from nearfar.core.tables import plus_minus
from nearfar.data import Stream, open_data
from nearfar.errors import UserError
from nearfar.evaluate import LabelledFeatures, features, scores
from nearfar.evaluate.matching import match_labels
from nearfar.modalities import Images
from nearfar.modalities.image import ImageDescription
from nearfar.modalities.image.show import pixels_features
from nearfar.modalities.image.views import Views, pipelines
from nearfar.parts.encoders import parameters_of
from nearfar.run.trained import Run, backbone_of, fresh_method
from nearfar.studies.frame import Bench, arm_name
from nearfar.system.hardware import one_thread
from nearfar.train.pretrain import run_pretraining
from nearfar.train.resuming import describe_data

CIFAR = "cifar10:data"
BACKBONE = "resnet8-w16"
HELD_SHARE = 0.2  # of the training images, judged with on=validation
On = Literal["test", "validation"]
Baseline = Literal["pixels", "untrained", "supervised"]
FIXED = {  # settings that every arm shares, and how a study has them
    "recipe": "it says itself what it trains",
    "batch_size": "write batch=",
    "image_size": "write size=",
    "probe_every": "it probes where it needs to",
    "held_out": "it asks about images of its own",
    "workers": "an arm has one thread",
    "precision": "its figures are those of fp32",
}
Figures = dict[
    str, Any
]  # {"knn": top-1, "linear": top-1, "linear_top5", "seconds", "rate", "parameters", ...}
Arm = dict[str, Any]
Moments = tuple[float, float | None]
Name = TypeVar("Name")
Measure = Callable[[Run, Images], Figures]  # of a finished run, on images it never saw


@dataclass(frozen=True)
class Setup:
    """The data and the budget that all arms of a study share, and how often each is repeated."""

    data: str = CIFAR
    test: str | None = None  # None: the test set that belongs to `data`
    on: On = "test"
    images: int = 5_000
    epochs: int = 10
    size: int = 16
    batch: int = 64
    seed: int = 0
    seeds: int = 2
    jobs: int = 2  # arms at a time
    backbone: str = BACKBONE
    changes: tuple[tuple[str, Any], ...] = field(default=(), kw_only=True)  # to every recipe, by setting

    def __post_init__(self) -> None:
        least_of = {"images": 2, "epochs": 1, "size": 8, "batch": 2, "seeds": 1, "jobs": 1}
        for key, least in least_of.items():
            if getattr(self, key) < least:
                raise UserError(f"{key} was {getattr(self, key)}; expected whole numbers from {least}")
        if self.batch > self.images:
            raise UserError(f"batch was {self.batch}; with images={self.images} expected 2 to {self.images}")
        for key, _ in self.changes:
            if key in FIXED:
                raise UserError(f"{key} is not a setting that a study takes; {FIXED[key]}")
            if key.partition(".")[0] not in {known.partition(".")[0] for known in all_keys()}:
                raise unknown(
                    key, {*settable(Setup), *all_keys()}, "options of studies or settings of recipes"
                )

    @property
    def numbers(self) -> range:
        """The seeds."""
        return range(self.seed, self.seed + self.seeds)

    @property
    def seen(self) -> int:
        """Images that an arm trains on, repetitions counted."""
        return self.epochs * (self.images // self.batch) * self.batch

    def recipe(self, name: str, seed: int, watch: tuple[str, ...] = (), **changes: Any) -> Arm:
        """The arm that trains recipe `name` with `changes` (dots as double underscores: bound__alpha).

        `watch` names what is wanted of metrics.jsonl beside the figures; with it, kNN is probed every epoch.
        """
        layer = {_full(key.replace("__", ".")): value for key, value in changes.items()}
        for key, value in self.changes:
            if _full(key) in layer:
                raise UserError(
                    f"{key} was {value!r}, but the study sets it itself, to {layer[_full(key)]!r}"
                )
            layer[_full(key)] = value
        # a wrong one is said before the work
        resolve(name, self.data, layer, {"epochs": self.epochs, "backbone": self.backbone})
        declared = RECIPES[name].settings(self.epochs)
        return self._arm("recipe", seed, recipe=name, declared=declared, changes=layer, watch=list(watch))

    def baseline(self, kind: Baseline, seed: int) -> Arm:
        return self._arm(kind, seed)

    def _arm(self, kind: str, seed: int, **more: Any) -> Arm:
        train, asked = sets_of(self)
        budget = {"epochs": self.epochs, "size": self.size, "batch": self.batch, "backbone": self.backbone}
        prints = {"train": train.fingerprint, "asked": asked.fingerprint}
        return {"version": 2, "kind": kind, "seed": seed, **budget, **prints, **more}

    def figures(self, bench: Bench, measure: Measure | None = None) -> Callable[[Mapping[str, Any]], Figures]:
        """What computes an arm; `runs/` of the study's folder holds what an interrupted one had reached."""
        return partial(figures_of, setup=self, folder=bench.folder / "runs", measure=measure)

    def settings(
        self, recipe: str, seed: int, changes: Mapping[str, Any], probe_every: float = 0.0
    ) -> Settings:
        budget = {"epochs": self.epochs, "batch_size": self.batch, "image_size": self.size, "seed": seed}
        fixed = {
            "backbone": self.backbone,
            "precision": "fp32",
            "workers": 1,
            "probe_every": probe_every,
            "held_out": 0,
        }
        return resolve(recipe, self.data, changes, {**budget, **fixed})


def _full(key: str) -> str:
    """A setting by its whole name, so that two spellings of one are seen to be one."""
    return ALIASES.get(key, key)


def repeated(
    bench: Bench, setup: Setup, arms: Mapping[Name, Sequence[Arm]], measure: Measure | None = None
) -> dict[Name, list[Figures]]:
    """The figures of arms that stand under a name, one of them per seed; every name's first seed comes first.

    `measure` finds out more about what an arm trained than how well it tells classes apart.
    """
    by_seed = list(chain(*zip(*arms.values(), strict=True)))
    found = bench.arms(by_seed, setup.figures(bench, measure), setup.jobs)
    return {name: found[place :: len(arms)] for place, name in enumerate(arms)}


def percent(group: Sequence[Figures], measure: str) -> Moments:
    """Mean and sample deviation over seeds, in percent."""
    return moments([100 * figures[measure] for figures in group])


def moments(values: Sequence[float]) -> Moments:
    """Mean and sample deviation; None for a single value."""
    return mean_and_spread(values)


def written(value: Moments, sign: str = "") -> str:
    """`44.7 ± 0.3`, or `44.7` alone."""
    return plus_minus(*value, sign=sign)


def sets_of(setup: Setup) -> tuple[Images, Images]:
    """The images to train on, and those to be asked about; both labelled in one numbering."""
    return _sets(Setup(setup.data, setup.test, setup.on, setup.images, size=setup.size, batch=2))


@lru_cache(maxsize=2)  # whatever the arms' batches and networks, they see the same images
def _sets(setup: Setup) -> tuple[Images, Images]:
    pool = _labelled(setup.data, setup.size)
    if setup.on == "validation":
        pool, asked = pool.split(HELD_SHARE, seed=0)
    else:
        asked = _labelled(setup.test or _test_of(setup.data), setup.size)
        if asked.channels != pool.channels:
            raise UserError(
                f"test was {asked.name} with {asked.channels} channels; {pool.name} has {pool.channels}"
            )
    if setup.images > len(pool):
        raise UserError(f"images was {setup.images}; there are {len(pool)} in {pool.name} to train on")
    train = pool if setup.images == len(pool) else pool.split(setup.images / len(pool), seed=0)[1]
    if setup.on == "validation":  # a part of the same set, numbered alike
        return train, asked
    same = match_labels(_labels(asked).numpy(), asked, _labels(train).numpy(), train)
    return train, replace(asked, labels=same.labels)


@lru_cache(maxsize=4)  # a study asks for the same sets under several budgets
def _labelled(name: str, size: int) -> Images:
    images = open_data(name, image_size=size)
    assert isinstance(images, Images)
    if images.labels is None or (images.labels < 0).any():
        raise UserError(f"{name} is not labelled throughout; features are judged by their classes")
    return images


def _labels(images: Images) -> Int64[Tensor, "image"]:
    assert images.labels is not None  # `_labelled` has seen to it
    return torch.from_numpy(images.labels)


def _test_of(data: str) -> str:
    if data.startswith(("cifar10:", "idx:")):
        return f"{data.removesuffix(':train')}:test"
    if data in ("glyphs", "glyphs:train"):
        return "glyphs:test"
    raise UserError(
        f"test was not given; beside data={data} name a labelled set to ask about, or on=validation"
    )


def figures_of(arm: Mapping[str, Any], setup: Setup, folder: Path, measure: Measure | None = None) -> Figures:
    """Trains and judges one arm, on the budget that it names."""
    setup = replace(setup, epochs=arm["epochs"], batch=arm["batch"], backbone=arm["backbone"])
    with one_thread():
        if arm["kind"] == "recipe":
            return _trained(arm, setup, folder / arm_name(arm), measure)
        settings = setup.settings("simclr", arm["seed"], {})
        train, _ = sets_of(setup)
        known = describe_data(train, settings, None, False)
        assert isinstance(known, ImageDescription)
        plain = settings.modality.views.plain_view(settings.views, known, torch.device("cpu"))
        if arm["kind"] == "pixels":
            return {**_judged(lambda images: pixels_features(images, plain, workers=1), setup), **_cost(0)}
        net = backbone_of(fresh_method(settings, known))
        rate = _supervised(net, setup, arm["seed"], known) if arm["kind"] == "supervised" else 0.0
        embed = lambda images: features(net, images, plain, workers=1)
        return {**_judged(embed, setup), **_cost(parameters_of(net), rate, setup.seen)}


def _trained(arm: Mapping[str, Any], setup: Setup, out: Path, measure: Measure | None) -> Figures:
    train, asked = sets_of(setup)
    before = Run.open(out).facts["step"] if list(out.glob("ckpt/step-*")) else 0
    settings = setup.settings(arm["recipe"], arm["seed"], arm["changes"], 1.0 if arm["watch"] else 0.0)
    started = time.process_time()
    run = run_pretraining(settings, train, out, quiet=True)
    rate = (setup.seen - before * setup.batch) / (time.process_time() - started)
    encoder, plain = run.encoder(), run.plain_view()
    embed = lambda images: features(encoder, images, plain, device=run.device, workers=1)
    cost = _cost(parameters_of(encoder), rate, setup.seen)
    found = {**_judged(embed, setup), **cost, **_course(run, arm["watch"])}
    if measure is not None:
        found |= measure(run, asked)
    shutil.rmtree(out)  # a run is some megabytes, a study has dozens of them
    return found


def _judged(embed: Callable[[Images], Tensor], setup: Setup) -> Figures:
    train, asked = sets_of(setup)
    fit, ask = (LabelledFeatures(embed(images), _labels(images)) for images in (train, asked))
    found = scores(fit, ask)
    top5 = {f"{protocol}_top5": values["top5"] for protocol, values in found.items() if "top5" in values}
    return {**{protocol: values["top1"] for protocol, values in found.items()}, **top5}


def _cost(parameters: int, rate: float = 0.0, seen: int = 0) -> Figures:
    """Weights of what is kept; images in a second of one core, and seconds for all, whatever else the machine did."""
    return {"parameters": parameters, "rate": rate, "seconds": seen / rate if rate else 0.0}


def _course(run: Run, watch: list[str]) -> Figures:
    """How what was asked for moved, the probes, and what the monitors said."""
    rows = run.metrics
    said = [row["message"] for row in rows if row["kind"] == "event"]
    if not watch:
        return {"warnings": said}
    trained = [row for row in rows if row["kind"] == "train"]
    course = {key: [row.get(key) for row in trained] for key in ("epoch", *watch)}
    probes = [(row["epoch"], row["knn_top1"]) for row in rows if row["kind"] == "probe"]
    return {"warnings": said, "course": course, "probes": probes}


def _supervised(net: nn.Module, setup: Setup, seed: int, known: ImageDescription) -> float:
    """Trains the backbone on the labels, by cross-entropy, with every other arm's budget; images per core second."""
    train, _ = sets_of(setup)
    labels = _labels(train)
    # colours are left alone: labels tell what matters, and jitter would only cost accuracy
    view = pipelines("simclr", setup.size, {"jitter": 0.0, "greyscale": 0.0, "blur": 0.0})[0]
    views = Views([view], known.size, known.mean, known.std)
    stream = Stream(train, views, setup.batch, seed, workers=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(int(net.dim), int(labels.max()) + 1)  # type: ignore[arg-type]
    optimiser = torch.optim.AdamW([*net.parameters(), *head.parameters()], weight_decay=1e-4)
    rate = cosine(2e-3, 0.0, warmup=min(1.0, setup.epochs / 2))
    steps = setup.epochs * stream.steps_per_epoch
    keep_contiguous(net)  # views are channels-last
    started = time.process_time()
    net.train()
    for step, batch in enumerate(stream.batches(0, steps)):
        optimiser.param_groups[0]["lr"] = rate(Progress(step, steps, stream.steps_per_epoch))
        loss = F.cross_entropy(head(net(batch.views[0])), labels[batch.index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    net.eval()
    return setup.seen / (time.process_time() - started)
