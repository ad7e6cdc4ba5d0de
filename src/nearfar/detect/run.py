"""Trains a detector on a run's backbone and on the untrained backbone, with the same short schedule."""

import copy
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from nearfar.config.fields import MAX_EPOCHS
from nearfar.core.optimisers import LARGEST_LR
from nearfar.core.statistics import mean_and_spread
from nearfar.detect.model import detector
from nearfar.detect.scenes import (
    HOLDOUT_SHARE,
    Scene,
    Scenes,
    match_classes,
    merge_classes,
    open_scenes,
    split_holdout,
)
from nearfar.detect.score import Detections, coco_figures
from nearfar.errors import UserError, check_whole, counted
from nearfar.modalities.image.data import ImageDescription
from nearfar.parts.encoders.stages import Stages
from nearfar.run.features import encoder_digest
from nearfar.run.trained import Run
from nearfar.system.files import write_atomic
from nearfar.system.untrusted import read_json
from nearfar.train.display import Display

Task = Literal["boxes", "masks", "keypoints"]
DetectorHead = Literal["fpn", "c4"]
FILE = "detection.json"


@dataclass(frozen=True)
class DetectorSchedule:
    """Training of a detector: AdamW, linear warm-up over a tenth of the steps, then cosine to 0.

    The backbone, if it is fine-tuned, learns at a fifth of the rate.
    """

    task: Task = "boxes"
    head: DetectorHead = "fpn"
    epochs: int = 8
    batch_size: int = 4
    lr: float = 1e-3
    size: int = 192
    fine_tune: bool = False
    class_agnostic: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task not in get_args(Task):
            raise UserError(f"--task was {self.task!r}; expected {', '.join(get_args(Task))}")
        if self.head not in get_args(DetectorHead) or (self.head == "c4" and self.task != "boxes"):
            raise UserError(
                f"--head was {self.head!r} with --task {self.task}; expected fpn, or c4 for boxes"
            )
        check_whole("epochs", self.epochs, 1, MAX_EPOCHS)
        for name, low in (("batch_size", 1), ("size", 32), ("seed", 0)):
            check_whole(name, getattr(self, name), low)
        if self.seed >= 2**62:
            raise UserError(f"seed was {self.seed}; expected a whole number from 0 and below 2^62")
        if not 0 < self.lr <= LARGEST_LR:
            raise UserError(f"lr was {self.lr}; expected a number above 0 and at most {LARGEST_LR}")


def detect_run(
    run: Run | str | Path,
    train: str | Scenes,
    data: str | Scenes | None = None,
    *,
    images: Path | None = None,
    baseline: bool = True,
    seeds: int = 1,
    same_labels: bool = False,
    quiet: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Returns COCO figures of a detector on the run's backbone, and on the untrained backbone.

    The detector is trained on `train` and tested on `data`. Without `data`, or if both are the same, a fifth
    of the images is held out. Several seeds give the mean of each figure and the standard deviation of the
    AP. The result is also saved in RUN/detection.json.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    schedule = DetectorSchedule(**options)
    check_whole("seeds", seeds, 1)
    description = run.description
    if not isinstance(description, ImageDescription) or description.channels not in (1, 3):
        raise UserError(f"{run.path} was not trained on grey or colour images, which detection needs")
    train_scenes, test, facts = _sets(train, data, images, schedule, same_labels)
    train_scenes, test = (scenes.in_channels(description.channels) for scenes in (train_scenes, test))
    bodies = {"pretrained": run.encoder()} | ({"untrained": run.untrained()} if baseline else {})
    schedules = [replace(schedule, seed=schedule.seed + number) for number in range(seeds)]
    result: dict[str, Any] = {
        name: _over_seeds(
            [_train_and_score(name, body, one, train_scenes, test, description, quiet) for one in schedules]
        )
        for name, body in bodies.items()
    }
    settings = asdict(schedule) | {"seeds": seeds}
    result |= {"settings": settings, **facts, "encoder": encoder_digest(bodies["pretrained"])}
    _save_result(run.path / FILE, result)
    return result


def _sets(
    train: str | Scenes,
    data: str | Scenes | None,
    images: Path | None,
    schedule: DetectorSchedule,
    same_labels: bool,
) -> tuple[Scenes, Scenes, dict[str, Any]]:
    """Returns training scenes, test scenes with the same class numbers, and facts about both."""
    train_scenes = train if isinstance(train, Scenes) else open_scenes(train, images)
    test = train_scenes if data is None else data if isinstance(data, Scenes) else open_scenes(data, images)
    facts: dict[str, Any] = {"split": None}
    if test.fingerprint() == train_scenes.fingerprint():
        facts["split"] = {"of": train_scenes.name, "share": HOLDOUT_SHARE, "seed": schedule.seed}
        train_scenes, test = split_holdout(train_scenes, schedule.seed)
    else:
        test, facts["labels"] = match_classes(train_scenes, test, same_labels)
    _check_data(schedule, train_scenes, test)
    if schedule.class_agnostic:
        train_scenes, test = merge_classes(train_scenes), merge_classes(test)
    return train_scenes, test, {**facts, "train": train_scenes.facts(), "test": test.facts()}


def _check_data(schedule: DetectorSchedule, train_scenes: Scenes, test: Scenes) -> None:
    sides = train_scenes, test
    for scenes in sides:
        if not any(len(scene.labels) for scene in scenes.scenes):
            raise UserError(f"{scenes.name} has no objects; detection needs at least one")
        for kind in ("masks", "keypoints"):
            if schedule.task == kind and any(
                getattr(s, kind) is None for s in scenes.scenes if len(s.labels)
            ):
                raise UserError(
                    f"--task was {kind}, but {scenes.name} has objects without {kind}; use --task boxes"
                )
    points = [{s.keypoints.shape[1] for s in one.scenes if s.keypoints is not None} for one in sides]
    if schedule.task == "keypoints" and points[0] != points[1]:
        raise UserError(
            f"objects of {train_scenes.name} have {min(points[0])} keypoints and those of {test.name} "
            f"{min(points[1])}; expected the same number"
        )


def _train_and_score(
    title: str,
    body: nn.Module,
    schedule: DetectorSchedule,
    train_scenes: Scenes,
    test: Scenes,
    description: Any,
    quiet: bool,
) -> dict[str, dict[str, float]]:
    device = next(body.parameters()).device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(schedule.seed)
        stages = Stages(copy.deepcopy(body).cpu().eval(), description.channels)
        points = next((s.keypoints.shape[1] for s in train_scenes.scenes if s.keypoints is not None), 0)
        model = detector(
            schedule.task,
            stages,
            head=schedule.head,
            classes=train_scenes.class_count,
            size=schedule.size,
            mean=description.mean,
            std=description.std,
            frozen=not schedule.fine_tune,
            keypoints=points,
        ).to(device)
        _calibrate(model, train_scenes, device)
        _fit(f"{title}, seed {schedule.seed}", model, schedule, train_scenes, device, quiet)
        return coco_figures(schedule.task, list(_detections(model, test, device)), test.scenes)


def _calibrate(model: Any, fit: Scenes, device: torch.device) -> None:
    """Sets the batch norm statistics of the backbone from these images.

    Their size differs from that of the pretraining images, and the untrained backbone has no statistics yet.
    """
    batches = (model.transform([_picture(scene).to(device)])[0].tensors for scene in fit.scenes[:32])
    update_bn(batches, model.backbone.stages.eval())


def _fit(
    title: str, model: nn.Module, schedule: DetectorSchedule, fit: Scenes, device: torch.device, quiet: bool
) -> None:
    usable = [place for place, scene in enumerate(fit.scenes) if (~scene.crowd).any()]
    if not usable:
        raise UserError(f"{fit.name} has no objects to learn from")
    backbone_ids = {id(weight) for weight in model.backbone.stages.parameters()}  # type: ignore[union-attr]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [w for w in weights if id(w) not in backbone_ids], "lr": schedule.lr},
        {"params": [w for w in weights if id(w) in backbone_ids], "lr": schedule.lr / 5},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=1e-4)
    steps_per_epoch = math.ceil(len(usable) / schedule.batch_size)
    steps = schedule.epochs * steps_per_epoch
    rise = max(1, steps // 10)

    def lr_factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))

    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    rng = np.random.default_rng([schedule.seed, 7])
    model.train()
    display, start = Display(steps, 0, schedule.epochs, "images", quiet), time.perf_counter()
    display.say(f"detect: {title}: {counted(steps, 'steps')} of {counted(schedule.batch_size, 'images')}")
    order = (
        part
        for _ in range(schedule.epochs)
        for part in np.array_split(rng.permutation(usable), steps_per_epoch)
    )
    with display:
        for step, part in enumerate(order, start=1):
            pictures, targets = zip(
                *(_training_example(fit.scenes[place], schedule.task, rng, device) for place in part),
                strict=True,
            )
            losses = model(list(pictures), list(targets))
            loss = torch.stack(list(losses.values())).sum()
            if not bool(loss.isfinite()):
                raise UserError(f"the detector's loss was not finite; lower lr (it was {schedule.lr:g})")
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 5.0)
            optimizer.step()
            decay.step()
            rate = step * schedule.batch_size / (time.perf_counter() - start)
            row = {"step": step, "epoch": step / steps_per_epoch, "loss": loss.item(), "nats": None}
            display.show({**row, "images_per_s": rate})


def _picture(scene: Scene) -> Tensor:
    return torch.from_numpy(scene.pixels.copy()).permute(2, 0, 1).float() / 255


def _training_example(
    scene: Scene, task: str, rng: np.random.Generator, device: torch.device
) -> tuple[Tensor, dict[str, Tensor]]:
    """An image and its targets; half are mirrored, but not keypoints, which have a left and a right."""
    single = ~scene.crowd
    picture, boxes = _picture(scene), torch.from_numpy(scene.boxes[single])
    target: dict[str, Tensor] = {"boxes": boxes, "labels": torch.from_numpy(scene.labels[single]) + 1}
    if task == "masks" and scene.masks is not None:
        target["masks"] = torch.from_numpy(scene.masks[single]).to(torch.uint8)
    if task == "keypoints" and scene.keypoints is not None:
        target["keypoints"] = torch.from_numpy(scene.keypoints[single])
    elif rng.random() < 0.5:
        picture = picture.flip(2)
        target["boxes"] = torch.stack(
            [picture.shape[2] - boxes[:, 2], boxes[:, 1], picture.shape[2] - boxes[:, 0], boxes[:, 3]], dim=1
        )
        if "masks" in target:
            target["masks"] = target["masks"].flip(2)
    return picture.to(device), {key: value.to(device) for key, value in target.items()}


@torch.no_grad()
def _detections(model: nn.Module, test: Scenes, device: torch.device) -> Iterator[Detections]:
    model.eval()
    for scene in test.scenes:
        (output,) = model([_picture(scene).to(device)])
        yield {key: value.cpu() for key, value in output.items()}


def _over_seeds(by_seed: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, Any]]:
    if len(by_seed) == 1:
        return dict(by_seed[0])
    result: dict[str, dict[str, Any]] = {}
    for kind, first in by_seed[0].items():
        figures = [one[kind] for one in by_seed]
        draws = [one["map"] for one in figures]
        means = {name: mean_and_spread([one.get(name, 0.0) for one in figures])[0] for name in first}
        result[kind] = {**means, "spread": mean_and_spread(draws)[1], "draws": draws}
    return result


def _save_result(path: Path, result: dict[str, Any]) -> None:
    """Saves a result next to those with other data or settings, and drops results of other weights."""
    previous = read_json(path)
    listed = previous.get("results") if isinstance(previous, dict) else None
    same = lambda one: all(one.get(key) == result[key] for key in ("settings", "train", "test"))
    other_results = [
        one
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict) and one.get("encoder") == result["encoder"] and not same(one)
    ]
    try:
        write_atomic(path, json.dumps({"results": [*other_results, result]}, indent=1) + "\n")
    except OSError as problem:
        raise UserError(f"{path} could not be written: {problem.strerror}") from None
