"""From settings to a trained run: what `nearfar pretrain` and `nf.pretrain` do."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.config.building import NO_OBJECTS
from nearfar.config.objects import Objects, split_objects
from nearfar.config.resolving import resolve
from nearfar.config.settings import Settings
from nearfar.core.method import Method
from nearfar.core.strategy import Strategy
from nearfar.data import Columns, Limits, Located, locate
from nearfar.data.lazy import with_quarantine
from nearfar.data.training import draw_labelled, open_on_all_ranks, split_holdout
from nearfar.distributed.strategy import join
from nearfar.errors import UserError, counted
from nearfar.modalities import DataSet
from nearfar.parts.encoders import parameters_of
from nearfar.run.checkpoints import Loaded
from nearfar.run.features import content_hashes
from nearfar.run.folder import DataNotes, RunFolder, notes_of
from nearfar.run.trained import Run, check_kind, columns_in, fresh_method
from nearfar.system.files import as_path
from nearfar.system.hardware import environment, keep_freed_memory, pick_device, pick_precision
from nearfar.train.defaults import expectation, resolve_here
from nearfar.train.display import Display
from nearfar.train.held_out import is_holdout_clean, make_estimate
from nearfar.train.hooks import Hook, Metrics, PeriodicEvaluation, as_hooks
from nearfar.train.init import start_from
from nearfar.train.loggers import Logger, as_loggers, open_loggers
from nearfar.train.memory import PROBED_INSTANCES, check_disk, choose_chunk, estimate_needs
from nearfar.train.monitors import CollapseMonitor, GradientMonitor
from nearfar.train.probes import check_probe_schedules, make_probe
from nearfar.train.resuming import check_steps_left, describe_data, find_checkpoint, restore_session
from nearfar.train.saving import Checkpoints
from nearfar.train.session import Session

MIN_COMPARED, MAX_COMPARED = 8, 16  # instances of the first batch that are compared with each other


def pretrain(
    method: str | Method,
    data: Any,
    out: str | Path,
    *,
    labels: Any = None,
    config: Mapping[str, Any] | None = None,
    allow_change: bool = False,
    quiet: bool = False,
    hooks: Sequence[Hook] = (),
    loggers: Sequence[Logger] = (),
    strategy: Strategy | None = None,
    **settings: Any,
) -> Run:
    """Trains a method on `data` into the folder `out` and returns the run; called again, it resumes.

    `method` is the name of a recipe or a `Method`. `data` is a path or a name, an array (with `labels`, if
    there are any), a torch `Dataset` of images or (image, label), or a set opened before (see `open_data`).
    Settings are keyword arguments; dotted ones are passed as a mapping: `negatives={"size": 8192}`.

    Objects are welcome for names. `backbone=` is a module from a batch of images to (n, d). `bound=`,
    `selection=`, `critic=`, `negatives=` and `encoders=` are parts. `views=` is one `Augment` for each view; or a
    function from a picture to a tensor (torchvision's, albumentations' or your own), or a list of one for each
    view; or a function of (instances, seed, epoch, index), where `instances` is what
    `open_data(data).load(index)` returns. They are copied, so yours stay as they were; the
    trained ones are in the run. To resume, call it again with the same objects: config.yaml describes them
    (classes, numbers, shapes of tensors), and others are refused with what differs. Initial weights of your
    own modules are those that they have.

    `hooks` are called around steps (`nf.Hook`), `loggers` get every row of metrics (`nf.Logger`), beside
    those of the setting `logger`. A run that a hook ended with `session.stop` counts as finished;
    `allow_change=True` continues it. `strategy` replaces the one that is chosen by the launcher and the
    setting `sharding` (`nf.Strategy`).
    """
    out, all_settings = as_path("out", out), {**(config or {}), **settings}
    columns = Columns(all_settings.get("image_column"), all_settings.get("label_column"))
    located = locate(data, labels, columns)
    request = split_objects(method, config or {}, settings)
    resolved, note = resolve_here(
        request.recipe, located.name, out, *request.layers, located=located, objects=request.objects
    )
    return run_pretraining(
        resolved,
        located,
        out,
        allow_change=allow_change,
        quiet=quiet,
        note=note,
        objects=request.objects,
        hooks=hooks,
        loggers=loggers,
        strategy=strategy,
    )


def train_supervised(
    data: Any, out: str | Path, *, labels: Any = None, recipe: str | Method = "supervised", **settings: Any
) -> Run:
    """Trains encoder and classifier on labels by cross-entropy: `pretrain` with recipe "supervised".

        run = nf.train("photos/", out="runs/labels", init="runs/photos", layer_decay=0.7, labels=0.01)

    `labels` is a number where it is the setting (this share of the labelled data, or this many of each class)
    and an array where it holds the labels of an array of instances; both: the array here, the number as
    config={"labels": 0.01}.
    """
    if isinstance(labels, (int, float)) and not isinstance(labels, bool):
        settings["config"] = {**(settings.get("config") or {}), "labels": labels}
        labels = None
    return pretrain(recipe, data, out, labels=labels, **settings)


def run_pretraining(
    settings: Settings,
    data: Any,
    out: Path,
    *,
    allow_change: bool = False,
    quiet: bool = False,
    note: str | None = None,
    objects: Objects = NO_OBJECTS,
    validation: DataSet | None = None,
    hooks: Sequence[Hook] = (),
    loggers: Sequence[Logger] = (),
    strategy: Strategy | None = None,
) -> Run:
    """Trains with complete settings. `note` is shown to the user. Probes use `validation`, labelled instances
    that are not trained on, instead of a part of the data."""
    hooks, loggers = as_hooks(hooks), as_loggers(loggers)
    located = data if isinstance(data, Located) else locate(data, columns=columns_in(settings))
    folder = RunFolder(out)
    if strategy is not None and not isinstance(strategy, Strategy):
        raise UserError(f"strategy was {strategy!r}; expected an object of nearfar.Strategy")
    strategy = join(settings.sharding) if strategy is None else strategy
    check_kind(settings, located)
    with folder.claimed() if strategy.is_first else nullcontext():
        restored = find_checkpoint(settings, folder, allow_change, strategy)
        preparation = Preparation(
            settings, located, folder, restored, allow_change, objects, strategy, validation
        )
        session = preparation.session
        if restored is not None:
            check_steps_left(session, restored, settings, folder)
        notes, version_note = preparation.notes(preparation.all_data), None
        if strategy.is_first:
            check_disk(session, out)
            version_note = write_run_files(session, folder, notes)
        keep_freed_memory()
        display = Display(
            session.steps,
            session.step,
            settings.epochs,
            session.data.unit,
            quiet or not strategy.is_first,
            expectation(settings, len(session.data)) if note and session.device.type == "cpu" else None,
        )
        ended = None if restored is None or allow_change else restored.facts.get("ended")
        announce(display, preparation, notes, [note, version_note], quiet)
        if ended is not None:
            position = f"step {session.step} of {session.steps}"
            display.say(f"the run ended at {position}: {ended}; --allow-change continues it")
        elif session.step < session.steps:
            if session.step:
                display.say(f"resuming from step {session.step}")
            train_session(preparation, display, hooks, loggers)
        if strategy.is_first:  # files that were not decoded at opening may have turned out to be unusable
            folder.write_notes(preparation.notes(with_quarantine(preparation.all_data)))
        strategy.barrier()  # until the last checkpoint is written
    run = Run(out, settings, objects, located)
    run.set_open_data(preparation.all_data)
    return run


class Preparation:
    """A run before its next step: opens the data, builds the session, restores a checkpoint."""

    def __init__(
        self,
        settings: Settings,
        located: Located,
        folder: RunFolder,
        restored: Loaded | None,
        allow_change: bool,
        objects: Objects,
        strategy: Strategy,
        validation: DataSet | None = None,
    ) -> None:
        self.settings, self.folder, self.restored = settings, folder, restored
        device = pick_device(settings.device, strategy.local_rank if strategy.is_distributed else None)
        previous = settings.modality.reader.description(restored.facts["data"]) if restored else None
        limits = Limits(
            max_bad_share=settings.max_bad_share, quarantine=folder.quarantine, scans=folder.cache
        )
        options = settings.modality.reader.options_for(settings.views, settings.image_size, previous)
        if restored is None and strategy.is_first:
            folder.begin_quarantine()
        self.all_data = open_on_all_ranks(located, limits, options, strategy)
        data, held_out = split_holdout(self.all_data, settings.held_out, settings.seed)
        data = draw_labelled(data, settings.labels, settings.labels_seed)
        self.held_out_size = 0 if held_out is None else len(held_out)
        description = describe_data(data, settings, previous, allow_change, self.all_data)
        precision = pick_precision(settings.precision, device)
        self.session = session = Session(settings, data, description, device, precision, objects, strategy)
        probe = make_probe(session, validation)
        check_probe_schedules(settings, data, probe is not None, held_out is not None)
        clean = is_holdout_clean(description, self.all_data, settings, restored, objects)
        if restored:
            restore_session(session, restored, folder)
        origin = None
        if settings.init and not restored:
            origin = start_from(session.method, settings.init, settings.encoders.get("cut", 0), settings)
        # a user's modules may start differently on each rank; sharded weights were made equal before
        state = session.method.state_dict().values()
        strategy.broadcast([value for value in state if not strategy.is_sharded(value)])
        stored_chunk = restored.facts.get("encode_chunk") if restored else None
        chunk, chunk_note = choose_chunk(session, session.stream.sample(PROBED_INSTANCES), stored_chunk)
        session.method.encoding = replace(session.method.encoding, chunk=chunk)
        session.facts = {"data": description.as_plain(), "unseen": clean, "encode_chunk": chunk}
        self.remarks = (origin, chunk_note, settings.parts["views"].remark(description))
        self.hooks = [
            GradientMonitor(),
            Metrics(),
            CollapseMonitor(),
            PeriodicEvaluation(probe, make_estimate(session, held_out, clean, objects)),
        ]

    def notes(self, all_data: DataSet) -> DataNotes:
        return notes_of(all_data, self.held_out_size, len(self.session.data), self.settings.batch_size)


def train_session(
    preparation: Preparation, display: Display, hooks: Sequence[Hook], loggers: Sequence[Logger]
) -> None:
    """Trains with the hooks and loggers of every run and the user's."""
    session, restored = preparation.session, preparation.restored
    session.attach(preparation.folder, display, [*preparation.hooks, *hooks, Checkpoints()])
    with torch.random.fork_rng(devices=[]):
        if restored is None:
            session.prefill()
        else:
            session.restore_hooks(restored.tensors, restored.facts)
        if session.strategy.is_first:
            step = -1 if restored is None else session.step
            session.loggers = open_loggers(preparation.folder, preparation.settings, step, loggers)
        session.run()


def identical_instances(session: Session) -> str | None:
    """A warning if the first instances are all equal, so that their views cannot be distinguished."""
    data, settings = session.data, session.settings
    rows = data.subset(np.sort(session.stream.index(0)[1][:MAX_COMPARED]))
    plain_view = settings.parts["views"].plain_view(session.description, session.device)
    if len(rows) < MIN_COMPARED or len(torch.unique(content_hashes(rows, plain_view), dim=0)) > 1:
        return None
    return f"the first {len(rows)} {rows.unit} are identical; if all are, there is nothing to learn: check the data"


def write_run_files(session: Session, folder: RunFolder, notes: DataNotes) -> str | None:
    """Writes the settings, the notes about the data, and the machine. Returns a sentence about versions that
    changed since the run was last trained; `history` of env.json keeps the earlier ones."""
    folder.write_settings(session.settings)
    folder.write_notes(notes)
    previous = (folder.environment() or {}) if session.resumed else {}
    time_now, strategy = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", session.strategy
    current = {
        **environment(),
        "device": str(session.device),
        "started": previous.get("started", time_now),
        "precision": str(session.precision),
        **({"ranks": strategy.world} if strategy.is_distributed else {}),
    }
    changes = version_changes(previous, current)
    history = list(previous.pop("history", ()))
    if changes:
        history.append({**previous, "until": time_now, "step": session.step})
    folder.write_environment({**current, **({"history": history} if history else {})})
    if not changes:
        return None
    return f"versions changed since step {session.step}: {'; '.join(changes)}; weights may differ in their last digits"


def version_changes(previous: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """What differs between two environments in ways that can change results, as `torch 2.14, now 2.15`."""
    if not previous:
        return []
    previous, current = (
        {
            "python": env.get("python"),
            "cpu": env.get("cpu"),
            "device": env.get("device"),
            **(env.get("packages") or {}),
        }
        for env in (previous, current)
    )
    return [
        f"{key} {previous.get(key)}, now {current[key]}"
        for key in current
        if previous.get(key) != current[key]
    ]


def announce(
    display: Display, preparation: Preparation, notes: DataNotes, remarks: Sequence[str | None], quiet: bool
) -> None:
    """Shows the data, the method, remarks and what the run needs, before the first step."""
    session, settings = preparation.session, preparation.settings
    backbone = session.method.encoders.backbone()
    dtype = str(session.precision).removeprefix("torch.")
    processes = f" by {session.strategy.world} processes" if session.strategy.is_distributed else ""
    for line in notes.lines():
        display.say(line)
    display.say(
        f"{settings.recipe} with {settings.backbone} ({parameters_of(backbone):,} weights), "
        f"{counted(session.steps, 'steps')} of {settings.batch_size} {notes.unit}, {dtype} on {session.device}{processes}"
    )
    is_new = preparation.restored is None and not quiet and session.strategy.is_first
    identical = identical_instances(session) if is_new else None
    for sentence in filter(None, (*remarks, *preparation.remarks, identical)):
        display.say(sentence)
    if not quiet:  # measured by all ranks, which encode together
        needs = estimate_needs(session, session.stream.sample(PROBED_INSTANCES), preparation.folder.path)
        display.say(needs.sentence(settings.keep))


INSTANCES, CLASSES = 1024, 10


def recipe(
    name: str, data: Any = None, *, instances: int = INSTANCES, classes: int = CLASSES, **settings: Any
) -> Method:
    """The untrained method of a recipe: what `pretrain` would train with these settings and objects.

        method = nf.recipe("moco", data=images, backbone=my_module, negatives={"size": 512})
        outcome = method(nf.Batch((view, other), index), progress)    then outcome.loss.backward(), and after the optimiser's step
        method.advance(outcome, progress)

    `data` are anything `open_data` takes, and say what networks are shown; without them, it is small colour
    pictures (`image_size` or 32 pixels a side) or what else the recipe is written for, `instances` of them in
    `classes` classes. Initial weights are a function of `seed`.
    """
    located = None if data is None else locate(data)
    request = split_objects(name, settings)
    modality = None if located is None else located.modality
    resolved = resolve(request.recipe, "data", *request.layers, modality=modality, objects=request.objects)
    if located is None:
        description = (
            resolved.modality.reader.example_description(instances)
            .resized(resolved.image_size)
            .labelled(classes)
        )
    else:
        options = resolved.modality.reader.options_for(resolved.views, resolved.image_size, None)
        data_set = located.open(Limits(), **options)
        description = resolved.modality.reader.describe(data_set, resolved.image_size).labelled(
            *data_set.label_range
        )
    with torch.random.fork_rng(devices=[]):
        return fresh_method(resolved, description, request.objects)
