"""From settings to a trained run: what `nearfar pretrain` and `nf.pretrain` do."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.config.building import NONE
from nearfar.config.objects import Objects, given
from nearfar.config.settings import MAY_CHANGE, Settings
from nearfar.core.method import Method
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data import Columns, Limits, Located, Stream, locate
from nearfar.data.aside import few_labelled, kept_aside
from nearfar.data.together import judged_by_all, opened_by_all
from nearfar.data.unscanned import found_so_far
from nearfar.distributed.strategy import join
from nearfar.errors import UserError
from nearfar.modalities import DataSet, Description, modality_of_views
from nearfar.parts.encoders import parameters_of
from nearfar.run import checkpoints
from nearfar.run.facts import checked
from nearfar.run.features import contents
from nearfar.run.folder import DataNotes, RunFolder, notes_of
from nearfar.run.trained import (
    Run,
    backbone_of,
    check_kind,
    columns_in,
    views_of,
)
from nearfar.system.files import as_path
from nearfar.system.hardware import environment, keep_freed_memory, pick_device, pick_precision
from nearfar.train.defaults import resolve_here
from nearfar.train.init import start_from
from nearfar.train.limits import check_disk, needs
from nearfar.train.logs import Display
from nearfar.train.loop import Looks, train
from nearfar.train.memory import MEASURED, choose_chunk
from nearfar.train.prepare import (
    described,
    embedded,
    prepare,
    prime,
)
from nearfar.train.probes import check_heard, make_probe
from nearfar.train.several import of_first
from nearfar.train.trainer import Trainer
from nearfar.train.unseen import make_estimate, never_trained_on


def pretrain(
    method: str | Method,
    data: Any,
    out: str | Path,
    *,
    labels: Any = None,
    config: Mapping[str, Any] | None = None,
    allow_change: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Trains a method on `data` into the folder `out` and returns the run; called again, it resumes.

    `method` is the name of a recipe or a `Method`. `data` is a path or a name, an array (with `labels`, if there are any), a torch
    `Dataset` of images or (image, label), or a set opened before (see `open_data`). Settings are keyword arguments; dotted ones
    are passed as a mapping: `negatives={"size": 8192}`.

    Objects are welcome for names: `backbone=` a module from a batch of images to (n, d), `bound=`, `selection=`, `critic=`,
    `negatives=` and `encoders=` parts, `views=` one `Augment` for each view or any function of (loaded instances, seed, epoch,
    index). They are copied, so yours stay as they were; the trained ones are in the run. To resume, call it again with the same
    objects: config.yaml describes them (classes, numbers, shapes of tensors), and others are refused with what differs. Initial
    weights of your own modules are those that they have.
    """
    out, told = as_path("out", out), {**(config or {}), **settings}
    columns = Columns(told.get("image_column"), told.get("label_column"))
    located = locate(data, labels, columns)
    asked = given(method, config or {}, settings)
    chosen, said = resolve_here(
        asked.recipe, located.name, out, *asked.layers, modality=located.modality, objects=asked.objects
    )
    return run_pretraining(
        chosen, located, out, allow_change=allow_change, quiet=quiet, said=said, objects=asked.objects
    )


def train_supervised(
    data: Any, out: str | Path, *, labels: Any = None, recipe: str | Method = "supervised", **settings: Any
) -> Run:
    """Trains encoder and classifier on the labels of `data`, by cross-entropy: `pretrain` with the recipe "supervised".

        run = nf.train("photos/", out="runs/labels", init="runs/photos", layer_decay=0.7, labels=0.01)

    `labels` is a number where it is the setting (this share of the labelled data, or so many of each class) and an array where it
    holds the labels of an array of instances; both: the array here, the number as config={"labels": 0.01}.
    """
    if isinstance(labels, (int, float)) and not isinstance(labels, bool):
        settings["config"] = {**(settings.get("config") or {}), "labels": labels}
        labels = None
    return pretrain(recipe, data, out, labels=labels, **settings)


@dataclass(frozen=True)
class Watch:
    """Who looks on: probes ask about `validation`, labelled instances that are not trained on, in place of a part of the data, and
    `told` hears what they found, and may raise to end the run."""

    validation: DataSet | None = None
    told: Callable[[dict[str, Any]], None] | None = None


UNWATCHED = Watch()
FEWEST_ALIKE, ALIKE = 8, 16  # instances of the first batch that are compared with one another


def run_pretraining(
    settings: Settings,
    data: Any,
    out: Path,
    *,
    allow_change: bool = False,
    quiet: bool = False,
    said: str | None = None,
    objects: Objects = NONE,
    watch: Watch = UNWATCHED,
) -> Run:
    located = data if isinstance(data, Located) else locate(data, columns=columns_in(settings))
    folder, strategy = RunFolder(out), join(settings.sharding)
    check_kind(settings, located)
    with folder.claimed() if strategy.is_first else nullcontext():
        restored = where_it_stopped(settings, folder, allow_change, strategy)
        ready = make_ready(settings, located, folder, restored, allow_change, objects, strategy, watch)
        if restored is not None:
            check_left(ready, restored, changes_since(settings, out), out)
        notes = notes_of(ready.everything, ready.aside, len(ready.images), settings.batch_size)
        if strategy.is_first:
            check_disk(ready.trainer, out)
            write_down(settings, folder, ready, notes)
        keep_freed_memory()
        trainer, told = ready.trainer, not quiet
        quiet = quiet or not strategy.is_first
        display = Display(trainer.steps, trainer.step, settings.epochs, ready.images.unit, quiet)
        announce(display, settings, notes, trainer)
        alike = all_alike(ready, settings) if restored is None and not quiet else None
        for sentence in filter(None, (said, *ready.remarks, alike)):
            display.say(sentence)
        if told:  # measured by all ranks, which encode together
            display.say(needs(trainer, ready.stream.few(MEASURED), out).sentence(settings.keep))
        with torch.random.fork_rng(devices=[]):
            if restored is None:
                prime(trainer, ready.images, ready.known)
            chunk = trainer.method.encoding.chunk
            facts = {"data": ready.known.as_plain(), "unseen": ready.unseen, "encode_chunk": chunk}
            train(
                trainer, ready.stream.batches, out, facts, display, ready.looks, resumed=restored is not None
            )
        if strategy.is_first:  # what was not decoded at opening may have turned out to be unusable
            seen = found_so_far(ready.everything)
            folder.write_notes(notes_of(seen, ready.aside, len(ready.images), settings.batch_size))
        strategy.barrier()  # until the last checkpoint is there
    run = Run(out, settings, objects, located)
    run.remember(ready.everything)
    return run


def where_it_stopped(
    settings: Settings, folder: RunFolder, allow_change: bool, strategy: Strategy
) -> checkpoints.Loaded | None:
    """The checkpoint that a run goes on from, as rank 0 finds it; None at its beginning."""
    if not strategy.is_first:
        return of_first(None, strategy)
    fresh = begins_anew(settings, folder, allow_change)
    return of_first(None if fresh else newest_checkpoint(folder), strategy)


def begins_anew(settings: Settings, folder: RunFolder, allow_change: bool) -> bool:
    """Whether what is in the folder is no beginning of this run: before its first step there is nothing in a run that other
    settings could spoil. After it they are refused."""
    changed = changes_since(settings, folder.path)
    begun = checkpoints.last_named(folder.checkpoints) > 0
    if (
        changed
        and begun
        and (before := modality_of_views(folder.stored_settings()["views"])) is not settings.modality
    ):
        raise UserError(
            f"{settings.data} holds {settings.modality.plural}, but {folder.path} was trained on {before.plural}; choose another --out"
        )
    if changed and begun and not allow_change:
        raise UserError(
            f"{folder.path} was begun with other settings ({changed}); resume with those, choose another --out, or add --allow-change"
        )
    return bool(changed) and not begun


@dataclass(frozen=True)
class Ready:
    """A run before its next step."""

    everything: DataSet  # what was opened
    images: DataSet  # of it, what is trained on
    aside: int  # how many are not
    known: Description
    trainer: Trainer
    stream: Stream
    looks: Looks
    unseen: bool | None  # whether what is kept aside was never trained on
    resumed: bool
    remarks: tuple[str | None, ...]  # sentences: weights from elsewhere, encoding in parts


def make_ready(
    settings: Settings,
    located: Located,
    folder: RunFolder,
    restored: checkpoints.Loaded | None,
    allow_change: bool,
    objects: Objects,
    strategy: Strategy = SINGLE,
    watch: Watch = UNWATCHED,
) -> Ready:
    """Opens the data, builds the method and puts it where it stopped, if it did."""
    device = pick_device(settings.device, strategy.local_rank if strategy.is_distributed else None)
    before = settings.modality.reader.description(restored.facts["data"]) if restored else None
    limits = Limits(max_bad_share=settings.max_bad_share, quarantine=folder.quarantine, scans=folder.cache)
    options = settings.modality.reader.options_for(settings.views, settings.image_size, before)
    if restored is None and strategy.is_first:
        folder.begin_quarantine()
    everything = opened_by_all(located, limits, options, strategy)
    images, aside = kept_aside(everything, settings.held_out, settings.seed)
    images = few_labelled(images, settings.labels, settings.labels_seed)
    known = described(images, settings, before, allow_change, everything)
    precision = pick_precision(settings.precision, device)
    trainer, stream = prepare(settings, images, known, device, precision, objects, strategy)
    views = views_of(settings, known, device, objects)
    probe = make_probe(images, known, views, settings, device, watch.validation)
    check_heard(settings, images, probe is not None)
    unseen = never_trained_on(known, everything, settings, restored, objects)
    if restored:
        resume(trainer, restored, folder.path)
    begun_from = None
    if settings.init and not restored:
        begun_from = start_from(trainer.method, settings.init, settings.encoders.get("cut", 0))
    # modules that somebody made began anyhow; those that are spread were made equal before
    held = [value for value in trainer.method.state_dict().values() if not strategy.is_sharded(value)]
    strategy.broadcast(held)
    before_chunk = restored.facts.get("encode_chunk") if restored else None
    chunk, in_parts = choose_chunk(trainer, stream.few(MEASURED), before_chunk)
    trainer.method.encoding = replace(trainer.method.encoding, chunk=chunk)
    looks = Looks(
        lambda: embedded(trainer, images, known),
        probe,
        make_estimate(images, aside, known, settings, device, unseen, objects),
        watch.told,
        lambda: judged_by_all(everything, strategy),
    )
    left_out = 0 if aside is None else len(aside)
    return Ready(
        everything,
        images,
        left_out,
        known,
        trainer,
        stream,
        looks,
        unseen,
        restored is not None,
        (begun_from, in_parts),
    )


def check_left(ready: Ready, restored: checkpoints.Loaded, changed: str, out: Path) -> None:
    """Stops what would write down other settings or data than the weights are of, without a step to train them."""
    step, steps = ready.trainer.step, ready.trainer.steps
    if ready.known.fingerprint != restored.facts["data"].get("fingerprint"):
        changed = changed or "data: others than before"
    if changed and step >= steps:
        raise UserError(
            f"{out} was trained for {step} steps and these settings ask for {steps}: no step is left to train with what changed "
            f"({changed}); raise epochs, or choose another --out"
        )


def all_alike(ready: Ready, settings: Settings) -> str | None:
    """A sentence about data of which the first rows are all one: no view of them tells whose it is."""
    rows = ready.images.subset(np.sort(ready.stream.index(0)[1][:ALIKE]))
    plain = settings.modality.views.plain(settings.views, ready.known, ready.trainer.device)
    if len(rows) < FEWEST_ALIKE or len(torch.unique(contents(rows, plain), dim=0)) > 1:
        return None
    return f"the first {len(rows)} {rows.unit} look exactly alike; if all do, there is nothing to learn: look at the data"


def write_down(settings: Settings, folder: RunFolder, ready: Ready, notes: DataNotes) -> None:
    """Settings, what became of the data, and the machine."""
    folder.write_settings(settings)
    folder.write_notes(notes)
    began = (folder.environment() or {}).get("started") if ready.resumed else None
    facts_here = {
        "started": began or f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "precision": str(ready.trainer.precision),
    }
    several = {"ranks": ready.trainer.strategy.world} if ready.trainer.strategy.is_distributed else {}
    folder.write_environment({**environment(), "device": str(ready.trainer.device), **facts_here, **several})


PROBED = {"probe_every", "probe", "probe_data"}


def changes_since(settings: Settings, out: Path) -> str:
    """What differs from the settings the run was begun with, as `key: before, now after`."""
    folder = RunFolder(out)
    if not folder.config.exists():
        return ""
    before, now = _flat(folder.stored_settings()), _flat(settings.as_plain())
    # a schedule that follows the probe is another one when it is probed at other times
    free = set(MAY_CHANGE) - (PROBED if settings.listens_to("score") else set())
    keys = [k for k in {**before, **now} if before.get(k) != now.get(k) and k not in free]
    return "; ".join(f"{key}: {before.get(key)}, now {now.get(key)}" for key in keys)


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat


def newest_checkpoint(folder: RunFolder) -> checkpoints.Loaded | None:
    """The newest valid checkpoint; None before the first one. Damaged ones alone are no reason to start over."""
    found = checkpoints.load_newest(folder.checkpoints)
    there = sorted(folder.checkpoints.glob("step-*"))
    if found is None and there:
        raise UserError(
            f"{there[-1]} cannot be used ({checkpoints.check(there[-1])}) and there is no earlier one; "
            f"restore it, or move {folder.checkpoints} away to start over"
        )
    return found and checked(found)


def resume(trainer: Trainer, restored: checkpoints.Loaded, out: Path) -> None:
    try:
        trainer.restore(restored.tensors, restored.facts)
    except (RuntimeError, KeyError, ValueError):
        raise UserError(
            f"the checkpoint in {out}/ckpt does not fit these settings: another network or other negatives; choose another --out"
        ) from None


def announce(display: Display, settings: Settings, notes: DataNotes, trainer: Trainer) -> None:
    backbone = backbone_of(trainer.method)
    kind = str(trainer.precision).removeprefix("torch.")
    for line in notes.lines():
        display.say(line)
    display.say(
        f"{settings.recipe} with {settings.backbone} ({parameters_of(backbone):,} weights), {trainer.steps} steps of "
        f"{settings.batch_size} {notes.unit}, {kind} on {trainer.device}{_shared(trainer.strategy)}"
    )
    if trainer.step:
        display.say(f"resuming from step {trainer.step}")


def _shared(strategy: Strategy) -> str:
    return f" by {strategy.world} processes" if strategy.is_distributed else ""
