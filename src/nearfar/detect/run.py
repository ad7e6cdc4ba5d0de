"""A run's backbone under a detector, beside the same backbone untrained, both after the same short schedule."""

import copy
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from nearfar.config.settings import LONGEST
from nearfar.core.optimisers import LARGEST_LR
from nearfar.detect.model import detector
from nearfar.detect.scenes import HELD_SHARE, Scene, Scenes, alike, held_out, one_class, open_scenes
from nearfar.detect.score import Found, scored
from nearfar.errors import UserError
from nearfar.parts.encoders.stages import Stages
from nearfar.run.features import encoder_digest
from nearfar.run.trained import Run
from nearfar.system.files import write_whole
from nearfar.system.untrusted import read_json

Task = Literal["boxes", "masks", "keypoints"]
FILE = "detection.json"


@dataclass(frozen=True)
class Schedule:
    """How a detector is trained: AdamW, a tenth of the steps of linear rise, then cosine to 0; the backbone at a fifth of the rate."""

    task: Task = "boxes"
    epochs: int = 8
    batch_size: int = 4
    lr: float = 1e-3
    size: int = 192
    fine_tune: bool = False
    class_agnostic: bool = False  # every object is just an object
    seed: int = 0

    def check(self) -> None:
        if self.task not in get_args(Task):
            raise UserError(f"--task was {self.task!r}; expected {', '.join(get_args(Task))}")
        for name, least in (("epochs", 1), ("batch_size", 1), ("size", 32), ("seed", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{name} was {getattr(self, name)}; expected a whole number from {least}")
        if self.epochs > LONGEST:
            raise UserError(f"epochs was {self.epochs}; expected a whole number from 1 to {LONGEST:,}")
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
    **schedule: Any,
) -> dict[str, Any]:
    """COCO's figures of the run's backbone under a detector fitted on `train` and tested on `data`, and of the untrained backbone; also
    kept in RUN/detection.json. Without `data`, or if they are `train` again, a fifth of the pictures is held out. Several seeds give the
    mean of each figure and the deviation of the first."""
    run = run if isinstance(run, Run) else Run.open(run)
    plan = Schedule(**schedule)
    plan.check()
    if seeds < 1:
        raise UserError(f"seeds was {seeds}; expected a whole number from 1")
    known: Any = run.description
    if getattr(known, "channels", 0) not in (1, 3) or not hasattr(known, "mean"):
        raise UserError(
            f"{run.path} was not trained on pictures, grey or coloured; a detector is shown those"
        )
    fit, ask, facts = _sets(train, data, images, plan, same_labels)
    fit, ask = (one.in_channels(known.channels) for one in (fit, ask))
    bodies = {"pretrained": run.encoder()} | ({"untrained": run.untrained()} if baseline else {})
    result: dict[str, Any] = {
        name: _over_seeds(
            [_tried(body, plan, seed, fit, ask, known) for seed in range(plan.seed, plan.seed + seeds)]
        )
        for name, body in bodies.items()
    }
    told = asdict(plan) | {"seeds": seeds}
    result |= {"settings": told, **facts, "encoder": encoder_digest(bodies["pretrained"])}
    _record(run.path / FILE, result)
    return result


def _sets(
    train: str | Scenes, data: str | Scenes | None, images: Path | None, plan: Schedule, same_labels: bool
) -> tuple[Scenes, Scenes, dict[str, Any]]:
    """What is fitted on and what is asked about, in one numbering, and what is told of them."""
    fit = train if isinstance(train, Scenes) else open_scenes(train, images)
    ask = fit if data is None else data if isinstance(data, Scenes) else open_scenes(data, images)
    facts: dict[str, Any] = {"split": None}
    if ask.fingerprint() == fit.fingerprint():
        facts["split"] = {"of": fit.name, "share": HELD_SHARE, "seed": plan.seed}
        fit, ask = held_out(fit, plan.seed)
    else:
        ask, facts["labels"] = alike(fit, ask, same_labels)
    _check_data(plan, fit, ask)
    if plan.class_agnostic:
        fit, ask = one_class(fit), one_class(ask)
    return fit, ask, {**facts, "train": fit.facts(), "test": ask.facts()}


def _check_data(plan: Schedule, fit: Scenes, ask: Scenes) -> None:
    for scenes in (fit, ask):
        if not any(len(scene.labels) for scene in scenes.scenes):
            raise UserError(f"{scenes.name} has no objects; a detector needs some to learn from and to find")
        for kind in ("masks", "keypoints"):
            if plan.task == kind and any(getattr(s, kind) is None for s in scenes.scenes if len(s.labels)):
                raise UserError(
                    f"--task was {kind}, but {scenes.name} has objects without {kind}; use --task boxes"
                )
    points = [{s.keypoints.shape[1] for s in one.scenes if s.keypoints is not None} for one in (fit, ask)]
    if plan.task == "keypoints" and points[0] != points[1]:
        raise UserError(
            f"objects of {fit.name} have {min(points[0])} keypoints and those of {ask.name} {min(points[1])}; expected as many"
        )


def _tried(
    body: nn.Module, plan: Schedule, seed: int, fit: Scenes, ask: Scenes, known: Any
) -> dict[str, dict[str, float]]:
    device = next(body.parameters()).device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stages = Stages(copy.deepcopy(body).cpu().eval(), known.channels)
        points = next((s.keypoints.shape[1] for s in fit.scenes if s.keypoints is not None), 0)
        model = detector(
            plan.task,
            stages,
            classes=fit.class_count,
            size=plan.size,
            mean=known.mean,
            std=known.std,
            frozen=not plan.fine_tune,
            keypoints=points,
        ).to(device)
        _calibrate(model, fit, device)
        _fit(model, plan, fit, seed, device)
        return scored(plan.task, list(_found(model, ask, device)), ask.scenes)


@torch.no_grad()
def _calibrate(model: nn.Module, fit: Scenes, device: torch.device) -> None:
    """Batch norms of the backbone take the statistics of these pictures, which have another size than those it was trained on: for the pretrained
    backbone and the untrained one alike, which would otherwise have none at all."""
    stages: Any = model.backbone.stages  # type: ignore[union-attr]
    norms = [part for part in stages.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
        norm.train()
    for scene in fit.scenes[:32]:
        batch, _ = model.transform([_picture(scene).to(device)])  # type: ignore[operator]
        stages(batch.tensors)
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
        norm.eval()


def _fit(model: nn.Module, plan: Schedule, fit: Scenes, seed: int, device: torch.device) -> None:
    usable = [place for place, scene in enumerate(fit.scenes) if (~scene.crowd).any()]
    if not usable:
        raise UserError(f"{fit.name} has no objects to learn from")
    own = {id(weight) for weight in model.backbone.stages.parameters()}  # type: ignore[union-attr]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [w for w in weights if id(w) not in own], "lr": plan.lr},
        {"params": [w for w in weights if id(w) in own], "lr": plan.lr / 5},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=1e-4)
    each = math.ceil(len(usable) / plan.batch_size)
    steps = plan.epochs * each
    rise = max(1, steps // 10)

    def share(step: int) -> float:
        return (
            (step + 1) / rise
            if step < rise
            else 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
        )

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    rng = np.random.default_rng([seed, 7])
    model.train()
    for _ in range(plan.epochs):
        for part in np.array_split(rng.permutation(usable), each):
            pictures, targets = zip(
                *(_shown(fit.scenes[place], plan.task, rng, device) for place in part), strict=True
            )
            losses = model(list(pictures), list(targets))
            loss = torch.stack(list(losses.values())).sum()
            if not bool(loss.isfinite()):
                raise UserError(f"the detector's loss was not finite; lower lr (it was {plan.lr:g})")
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 5.0)
            optimizer.step()
            schedule.step()


def _picture(scene: Scene) -> Tensor:
    return torch.from_numpy(scene.pixels.copy()).permute(2, 0, 1).float() / 255


def _shown(
    scene: Scene, task: str, rng: np.random.Generator, device: torch.device
) -> tuple[Tensor, dict[str, Tensor]]:
    """A picture and what is to be found in it; half of them mirrored, but for keypoints, of which left and right have names."""
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
def _found(model: nn.Module, ask: Scenes, device: torch.device) -> Iterator[Found]:
    model.eval()
    for scene in ask.scenes:
        (found,) = model([_picture(scene).to(device)])
        yield {key: value.cpu() for key, value in found.items()}


def _over_seeds(tried: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, Any]]:
    if len(tried) == 1:
        return dict(tried[0])
    return {
        kind: {
            **{name: mean(one[kind].get(name, 0.0) for one in tried) for name in tried[0][kind]},
            "spread": stdev(one[kind]["map"] for one in tried),
            "draws": [one[kind]["map"] for one in tried],
        }
        for kind in tried[0]
    }


def _record(path: Path, result: dict[str, Any]) -> None:
    """Beside results of other data or settings; of other weights nothing is kept."""
    before = read_json(path)
    kept = before.get("results", []) if isinstance(before, dict) else []
    same = lambda one: all(one.get(key) == result[key] for key in ("settings", "train", "test"))
    others = [
        one
        for one in kept
        if isinstance(one, dict) and one.get("encoder") == result["encoder"] and not same(one)
    ]
    try:
        write_whole(path, json.dumps({"results": [*others, result]}, indent=1) + "\n")
    except OSError as problem:
        raise UserError(f"{path} could not be written: {problem.strerror}") from None
