"""From settings to a trained run: what `nearfar pretrain` and `nf.pretrain` do."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nearfar.data import Images, Sequences, Stream, open_data
from nearfar.data.sequences import groups_of
from nearfar.encoders import Predictive, parameters_of
from nearfar.errors import UserError
from nearfar.evaluate.features import features, frozen, plain_views
from nearfar.evaluate.knn import knn_probe
from nearfar.hardware import environment, keep_freed_memory, pick_device, pick_precision
from nearfar.method import Method
from nearfar.randomness import order
from nearfar.selections import Group
from nearfar.settings import MAY_CHANGE, Settings, resolve
from nearfar.train import checkpoints
from nearfar.train.logs import Display
from nearfar.train.loop import Trainer, seed_step, train
from nearfar.train.run import (
    Run,
    backbone_of,
    check_kind,
    fresh_method,
    plain_view,
    read_json,
    reading_of,
    stored_settings,
    training_views,
)
from nearfar.types import Batch
from nearfar.views import statistics

LARGEST = 224  # side of a view when the settings name none and the pictures are larger
SAMPLE = 4096  # images that statistics and probes look at


def pretrain(
    recipe: str,
    data: str | Path | np.ndarray | Images,
    out: str | Path,
    *,
    config: Mapping[str, Any] | None = None,
    allow_change: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Trains `recipe` on `data` into the folder `out` and returns the run; called again, it resumes.

    Settings are keyword arguments; dotted ones are passed as a mapping: `negatives={"size": 8192}`.
    """
    name = str(data) if isinstance(data, (str, Path)) else getattr(data, "name", "array")
    chosen = resolve(recipe, name, config or {}, settings)
    return run_pretraining(chosen, data, Path(out), allow_change=allow_change, quiet=quiet)


def run_pretraining(
    settings: Settings,
    data: str | Path | np.ndarray | Images,
    out: Path,
    *,
    allow_change: bool = False,
    quiet: bool = False,
) -> Run:
    device = pick_device(settings.device)
    precision = pick_precision(settings.precision, device)
    changed = changes_since(settings, out)
    if changed and not allow_change:
        raise UserError(
            f"{out} was begun with other settings ({changed}); go on with those, choose another --out, or add --allow-change"
        )
    with claimed(out):
        found = newest_checkpoint(out / "ckpt")
        restored = checkpoints.load(found) if found else None
        images = open_data(
            data,
            image_size=settings.image_size or LARGEST,
            max_bad_share=settings.max_bad_share,
            quarantine=out / "quarantine.csv",
            reading=reading_of(settings, restored[1]["data"] if restored else None),
        )
        check_kind(settings, images)
        facts = {"data": facts_of(images, settings, restored[1]["data"] if restored else None, allow_change)}
        trainer, stream = prepare(settings, images, facts["data"], device, precision)
        probe = make_probe(images, facts["data"], settings, device) if settings.probe_every else None
        check_heard(settings, images, probe is not None)
        if restored:
            resume(trainer, restored, out)
        write_text(out / "config.yaml", settings.as_yaml())
        began = (read_json(out / "env.json") or {}).get("started") if restored else None
        facts_here = {
            "started": began or f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "precision": str(precision),
        }
        write_text(
            out / "env.json", json.dumps({**environment(), "device": str(device), **facts_here}, indent=1)
        )
        keep_freed_memory()
        display = Display(trainer.steps, trainer.step, settings.epochs, quiet)
        announce(display, settings, images, trainer, precision)
        with torch.random.fork_rng(devices=[]):
            if not restored:
                prime(trainer, images, facts["data"])
            embed_all = lambda: embedded(trainer, images, facts["data"])
            train(trainer, stream.batches, out, facts, display, embed_all, probe, restored is not None)
    return Run.open(out)


def changes_since(settings: Settings, out: Path) -> str:
    """What differs from the settings the run was begun with, as `key: before, now after`."""
    config = out / "config.yaml"
    if not config.exists():
        return ""
    before, now = _flat(stored_settings(config).as_plain()), _flat(settings.as_plain())
    # a schedule that follows the probe is another one when it is probed at other times
    free = set(MAY_CHANGE) - ({"probe_every"} if settings.listens_to("score") else set())
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


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """The folder, made if need be, with no other process training in it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as problem:
        raise UserError(f"--out {out} cannot be written: {problem.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"--out {out} is being trained by another process; wait for it or choose another"
            ) from None
        yield


def facts_of(
    images: Images, settings: Settings, before: Mapping[str, Any] | None, allow_change: bool
) -> dict[str, Any]:
    """What the data are like: size of a view, channel statistics, fingerprint. A resumed run keeps its own."""
    if before is not None and before["fingerprint"] != images.fingerprint:
        if not allow_change:
            raise UserError(
                f"{images.name} changed since the run began (it held {before['instances']} images, now {len(images)}); "
                "restore it, choose another --out, or add --allow-change"
            )
        return {**before, "fingerprint": images.fingerprint, "instances": len(images)}
    if before is not None:
        return {**before, "image_size": settings.image_size or before["image_size"]}
    if isinstance(images, Sequences):
        return sequence_facts(images)
    sample = [images.load(rows) for rows in np.array_split(_sample(len(images)), 16) if len(rows)]
    mean, std = statistics(sample)
    side = int(np.median(np.concatenate([pixels.size.min(axis=1) for pixels in sample])))
    return {
        "fingerprint": images.fingerprint,
        "instances": len(images),
        "channels": images.channels,
        "image_size": settings.image_size or max(8, min(LARGEST, side)),
        "mean": list(mean),
        "std": list(std),
    }


def sequence_facts(sequences: Sequences) -> dict[str, Any]:
    """The same of sequences; their `image_size` is the longest of them."""
    return {
        "fingerprint": sequences.fingerprint,
        "instances": len(sequences),
        "channels": sequences.channels,
        "image_size": int(sequences.sizes[:, 1].max()),
        "rate": sequences.rate,
        "symbols": list(sequences.symbols),
    }


def _sample(size: int) -> np.ndarray:
    return np.sort(order(0, 0, size)[:SAMPLE])


def prepare(
    settings: Settings,
    images: Images,
    facts: Mapping[str, Any],
    device: torch.device,
    precision: torch.dtype,
) -> tuple[Trainer, Stream]:
    views = training_views(settings, facts, device)
    stream = Stream(images, views, settings.batch_size, settings.seed, workers=settings.workers)
    method = fresh_method(settings, images.channels, facts["image_size"], facts["instances"])
    if isinstance(method.selection, Group):
        method.selection.assign(torch.from_numpy(groups_of(images, method.selection.by)))
    if isinstance(method.encoders, Predictive):
        check_long_enough(images, method.encoders)
    # a source too small for the batch says so here, before anything is written
    method.certificate(settings.batch_size, settings.views["count"])
    return Trainer(method, settings, stream.steps_per_epoch, device, precision), stream


def check_long_enough(images: Images, role: Predictive) -> None:
    """Stops where most recordings have no frame to predict."""
    least = role.steps * role.listener.hop + 1
    short = int((images.sizes[:, 1] < least).sum())
    if 2 * short > len(images):
        raise UserError(
            f"encoders.steps was {role.steps}: {short} of {len(images)} recordings are shorter than so many frames of "
            f"{role.listener.hop} samples; use fewer encoders.steps or smaller encoders.strides"
        )


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest valid checkpoint; None before the first one. Damaged ones alone are no reason to start over."""
    found = checkpoints.newest(folder)
    there = sorted(folder.glob("step-*"))
    if found is None and there:
        raise UserError(
            f"{there[-1]} cannot be used ({checkpoints.check(there[-1])}) and there is no earlier one; "
            f"restore it, or move {folder} away to start over"
        )
    return found


def resume(trainer: Trainer, restored: tuple[dict[str, torch.Tensor], dict[str, Any]], out: Path) -> None:
    try:
        trainer.restore(*restored)
    except (RuntimeError, KeyError, ValueError):
        raise UserError(
            f"the checkpoint in {out}/ckpt does not fit these settings: another network or other negatives; choose another --out"
        ) from None


def announce(
    display: Display, settings: Settings, images: Images, trainer: Trainer, precision: torch.dtype
) -> None:
    backbone = backbone_of(trainer.method)
    kind = str(precision).removeprefix("torch.")
    labels = f", {len(images.classes)} classes" if images.labels is not None else ", no labels"
    things = images.things if isinstance(images, Sequences) else "images"
    display.say(f"{images.name}: {len(images)} {things}{labels}")
    display.say(
        f"{settings.recipe} with {settings.backbone} ({parameters_of(backbone):,} weights), {trainer.steps} steps of "
        f"{settings.batch_size} {things}, {kind} on {trainer.device}"
    )
    if trainer.step:
        display.say(f"going on from step {trainer.step}")


@torch.no_grad()
def prime(trainer: Trainer, images: Images, facts: Mapping[str, Any]) -> None:
    """Shows the source the instances it wants to know before the first step, in plain view."""
    wanted = min(trainer.method.negatives.wanted(), len(images))
    if not wanted:
        return
    plain = plain_view(trainer.settings, facts, trainer.device)
    rows = np.sort(order(trainer.settings.seed, 0, len(images))[:wanted])
    trainer.method.train()
    seed_step(trainer.settings.seed, 2**40)
    # parts of almost equal size: a last part of one image would have no batch statistics
    for part in np.array_split(rows, max(1, wanted // trainer.settings.batch_size)):
        shown = plain(images.load(part), 0, 0, part)  # type: ignore[arg-type]
        # sound comes with whose it is
        views = shown if len(shown) > 1 else plain.as_views(shown[0], trainer.settings.views["count"])
        trainer.method.prime(Batch(views, torch.from_numpy(part)).to(trainer.device))


@torch.no_grad()
def embedded(trainer: Trainer, images: Images, facts: Mapping[str, Any]) -> torch.Tensor:
    """What the key network says of every image in plain view, in order; no network moves."""
    plain = plain_view(trainer.settings, facts, trainer.device)
    with frozen(trainer.method):
        parts = [
            trainer.method.embed(plain.as_views(view, 1)[0].to(trainer.device)).cpu()
            for view in plain_views(images, plain, trainer.settings.batch_size, trainer.settings.workers)
        ]
    return torch.cat(parts)


def check_heard(settings: Settings, images: Images, probed: bool) -> None:
    """Stops a run whose schedule waits for a score that nobody will take."""
    waiting = settings.listens_to("score")
    if waiting and not probed:
        why = "probe_every is 0" if not settings.probe_every else f"{images.name} has no labels to probe with"
        raise UserError(f"{waiting} follows the kNN probe but {why}; use on_loss, which follows the loss")


def make_probe(
    images: Images, facts: Mapping[str, Any], settings: Settings, device: torch.device
) -> Callable[[nn.Module], float] | None:
    """kNN accuracy within a sample of the training data, a fifth of it held out; None without labels."""
    if images.labels is None:
        return None
    sample = images.subset(_sample(len(images)))
    _, sizes = np.unique(np.asarray(sample.labels), return_counts=True)
    if len(sample) < 50 or len(sizes) < 2 or sizes.max() < 2:  # nothing that a held-out fifth could tell
        return None
    plain = plain_view(settings, facts, device)
    labels = torch.from_numpy(np.asarray(sample.labels))

    def probe(method: Method) -> float:
        embedded = features(backbone_of(method), sample, plain, device=device, workers=settings.workers)
        return knn_probe(embedded, labels, seed=settings.seed)

    return probe  # type: ignore[return-value]


def write_text(path: Path, text: str) -> None:
    """Writes a small file so that a kill leaves the old one or the new one."""
    fresh = path.with_name(f".{path.name}.writing")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
