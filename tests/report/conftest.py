"""A small real run: handwritten digits, a random convolution, augmentations that move and dim."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from nearfar.core.randomness import order, uniforms
from nearfar.core.results import Result
from nearfar.core.types import Pixels
from nearfar.errors import UserError
from nearfar.evaluate.accuracy import classified
from nearfar.modalities.image import IMAGE
from nearfar.modalities.image.data import ImageDescription
from nearfar.run.results import results_of
from nearfar.run.trained import Run
from nearfar.train.pretrain import pretrain
from tests.browser import browser as browser
from tests.browser import chromium as chromium


class Arrays:
    """Images held as an array."""

    def __init__(
        self, data: np.ndarray, labels: np.ndarray | None, classes: tuple[str, ...], paths: tuple[str, ...]
    ):
        self.data, self.labels, self.classes, self.paths = data, labels, classes, paths
        self.name = self.fingerprint = "arrays"
        self.channels = data.shape[-1]

    def __len__(self) -> int:
        return len(self.data)

    def load(self, index: np.ndarray) -> Pixels:
        size = np.tile(np.array(self.data.shape[1:3], dtype=np.int32), (len(index), 1))
        return Pixels(self.data[index], size)

    def subset(self, index: np.ndarray) -> "Arrays":
        labels = None if self.labels is None else self.labels[index]
        return Arrays(self.data[index], labels, self.classes, tuple(self.paths[i] for i in index))

    def order(self, seed: int, epoch: int) -> np.ndarray:
        return order(seed, epoch, len(self))

    def sample(self, seed: int, draw: int, count: int) -> np.ndarray:
        return np.sort(self.order(seed, draw)[:count])


def digits(count: int, classes: tuple[str, ...] | None = None, labelled: bool = True) -> Arrays:
    bunch = load_digits()
    data = np.clip(bunch.images[:count] * 16, 0, 255).astype(np.uint8)[..., None]
    names = classes or tuple(f"digit {d}" for d in range(10))
    labels = bunch.target[:count].astype(np.int64) if labelled else None
    return Arrays(data, labels, names if labelled else (), tuple(f"digits#{i}" for i in range(count)))


class Dimmed:
    """Two views of each image: rolled by a pixel or two and dimmed, then standardised."""

    def __call__(self, pixels: Pixels, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor, ...]:
        return tuple(self._view(pixels, uniforms(seed, epoch, index, view, 2)) for view in range(2))

    def _view(self, pixels: Pixels, brightness: np.ndarray) -> Tensor:
        images = torch.from_numpy(pixels.data).permute(0, 3, 1, 2).float() / 255
        moved = [
            torch.roll(image, int(5 * move) - 2, dims=-1) * (0.5 + 0.5 * light)
            for image, (move, light) in zip(images, brightness, strict=True)
        ]
        return (torch.stack(moved) - 0.5) / 0.25

    def unnormalise(self, images: Tensor) -> np.ndarray:
        return ((images * 0.25 + 0.5) * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


@dataclass(frozen=True)
class Settings:
    values: dict[str, Any]

    def as_plain(self) -> dict[str, Any]:
        return self.values


CHOICES = {
    "views": "two random crops with flip, colour jitter, greyscale and blur",
    "encoders": "one resnet8-w16 for both views, with an MLP head to 128 dimensions",
    "critic": "cosine / temperature 0.2",
    "negatives": "the 510 other views of the batch",
    "selection": "everyone",
    "bound": "InfoNCE",
}
ENVIRONMENT = {
    "started": "2026-03-01 09:30",
    "precision": "bf16",
    "cpu": "a processor",
    "versions": {"torch": "2.9", "numpy": "2.3"},
}


def evaluated(
    knn: float = 0.581, linear: float | None = 0.616, test: str = "digits:test", **more: Any
) -> dict[str, Any]:
    """A result as `evaluate_run` writes it (a test compares the two shapes), of so much accuracy."""

    def figures(top1: float, top5: float, answers: bool = True) -> dict[str, Any]:
        """2,000 answers with the given numbers of top-1 and top-5 hits."""
        labels = torch.arange(2000) % 10
        ranked = (labels[:, None] + torch.arange(1, 6)) % 10
        ranked[: round(top5 * 2000), 4] = labels[: round(top5 * 2000)]
        ranked[: round(top1 * 2000), 0] = labels[: round(top1 * 2000)]
        return classified(ranked, labels, 10).to_json(answers=answers)

    learned = {"knn": figures(knn, 0.93)} | ({} if linear is None else {"linear": figures(linear, 0.95)})
    pixels = {"knn": figures(0.35, 0.7, False), "linear": figures(0.39, 0.8, False)}
    untrained = {"knn": figures(0.32, 0.66, False), "linear": figures(0.36, 0.78, False)}
    return {
        **learned,
        "train": {"name": "digits:train", "samples": 5000, "fingerprint": "digits:train", "unit": "images"},
        "test": {"name": test, "samples": 2000, "fingerprint": test, "unit": "images"},
        "split": None,
        "labels": {
            "matched_by": "name",
            "because": "names",
            "classes": {"0": {"train": 0, "test": 0}},
            "not_in_test": [],
        },
        "baselines": {"pixels": pixels, "untrained": untrained},
        "confidence": 0.95,
        "settings": {"k": 20, "temperature": 0.07, "seed": 0},
        "encoder": "e",
        **more,
    }


EVALUATION = {"results": [evaluated()]}


def metric_rows(count: int, per_epoch: int = 40, start: float = 6.2) -> list[dict[str, Any]]:
    """What a run of `count` steps logs: a loss that falls noisily, a probe each epoch, one warning."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for step in range(count):
        decay = math.exp(-3 * step / max(count, 1))
        loss = start - 3 * (1 - decay) + 0.15 * rng.standard_normal()
        rows.append(
            {
                "kind": "train", "step": step, "epoch": step / per_epoch, "loss": loss, "nats": 6.23 - loss,
                "ceiling": 6.23, "lr": 0.06 * 0.5 * (1 + math.cos(math.pi * step / max(count, 1))),
                "images_per_s": 800 + 40 * rng.standard_normal(), "grad_norm": 0.4 + decay,
                "deviation": 0.95 - 0.5 * decay, "rank": 40 - 30 * decay, "mean_cosine": 0.05 + 0.6 * decay,
            }
        )  # fmt: skip
        if step and step % per_epoch == 0:
            rows.append(
                {"kind": "probe", "step": step, "epoch": step / per_epoch, "knn_top1": 0.6 - 0.3 * decay}
            )
    if count > 55:
        message = (
            "mean cosine was 0.61 for 50 steps: the embedding may be collapsing; try a higher temperature"
        )
        rows.append({"kind": "event", "step": 55, "message": message})
    return rows


@dataclass(frozen=True)
class ReportedRun:
    path: Path
    metrics: list[dict[str, Any]] = field(default_factory=lambda: metric_rows(400))
    evaluation: dict[str, Any] | None = field(default_factory=lambda: EVALUATION)
    data: Arrays | Exception = field(default_factory=lambda: digits(120))
    options: dict[str, Any] = field(default_factory=dict)
    collapsed: bool = False
    diverged: bool = False
    no_checkpoint: bool = False
    certified: str = (
        "InfoNCE is a lower bound on mutual information when negatives are independent of the anchor."
    )

    modality = IMAGE
    description = ImageDescription("digits", 120, 3, 8, (0.5,) * 3, (0.5,) * 3)

    @property
    def results(self) -> list[Result]:
        return results_of(self.evaluation)

    @property
    def settings(self) -> Settings:
        common = {"recipe": "simclr", "epochs": 10, "batch_size": 256, "seed": 3, "backbone": "resnet8-w16"}
        return Settings(
            common
            | {"bound": {"name": "infonce"}, "views": {"flip": 0.5, "scale": (0.2, 1.0)}}
            | self.options
        )

    def choices(self) -> dict[str, str]:
        return CHOICES

    def certificate(self) -> dict[str, Any]:
        if self.no_checkpoint:
            raise UserError("the run holds no valid checkpoint")
        return {"status": "proven", "condition": self.certified, "ceiling": 6.23}

    def open_data(self, spec: Any = None) -> Arrays:
        if isinstance(self.data, Exception):
            raise self.data
        return self.data

    def views(self) -> Dimmed:
        return Dimmed()

    steps = ()

    def method(self) -> Any:
        raise UserError("a small run has an encoder and no method")

    @property
    def facts(self) -> dict[str, Any]:
        raise UserError("a small run has no checkpoint")

    def embed(self, data: Arrays) -> Tensor:
        if self.diverged:
            return torch.full((len(data), 4), math.nan)
        if self.collapsed:
            return torch.ones(len(data), 8)
        generator = torch.Generator().manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(data.channels, 12, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten()
        )
        with torch.no_grad():
            for weight in network.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator))
            return network(torch.from_numpy(data.data).permute(0, 3, 1, 2).float() / 255)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., ReportedRun]:
    """A run folder with env.json, by any of SmallRun's fields."""

    def make(name: str = "digits-simclr", **fields: Any) -> ReportedRun:
        path = tmp_path / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "env.json").write_text(json.dumps(ENVIRONMENT))
        return replace(ReportedRun(path), **fields)

    return make


@pytest.fixture(scope="session")
def ring_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """MoCo-Ring with ML-CPC, trained with real parts. An epoch fills its queue with every digit once."""
    config = {
        "backbone": "resnet8-w16",
        "batch_size": 128,
        "epochs": 2,
        "probe_every": 0,
        "held_out": 0,
        "views": {"flip": 0.0},
        "negatives": {"size": 512},
        "selection": {"upper": 0.95},
        "bound": {"name": "ml-cpc", "alpha": "geometric(2,0.5)"},
    }
    out = tmp_path_factory.mktemp("runs") / "ring"
    return pretrain("moco-ring", "digits", out, quiet=True, config=config)


@pytest.fixture
def make_digits() -> Callable[..., Arrays]:
    return digits


@pytest.fixture
def make_rows() -> Callable[..., list[dict[str, Any]]]:
    return metric_rows


@pytest.fixture
def make_result() -> Callable[..., dict[str, Any]]:
    return evaluated
