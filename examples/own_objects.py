"""Your own network, torch Dataset and parts: pretrain, resume, evaluate, embed, report.

    python examples/own_objects.py runs/own            about 15 seconds on one core

Kill it and run it again: it resumes from the last checkpoint, on CPUs bit for bit. The custom objects are `Blobs`
(data), `Tiny` (a network), `Contrast` (a bound) and `Hardest` (a selection). They need no registration."""

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import nearfar as nf


class Blobs(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Pictures of a coloured blob on noise; its class is its colour."""

    classes = ("red", "green", "blue")

    def __init__(self, count: int = 192, size: int = 16, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 3, count)
        self.images = rng.random((count, 3, size, size), dtype=np.float32) * 0.3
        for image, label, (top, column) in zip(
            self.images, self.labels, rng.integers(2, size - 8, (count, 2)), strict=True
        ):
            image[label, top : top + 6, column : column + 6] += 0.6

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.images[place]), int(self.labels[place])


class Tiny(nn.Module):
    """A batch of images -> (n, d). There are no other requirements."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@dataclass(frozen=True)
class Contrast(nf.AbstractBound):
    """E[ f(u, v+) - log mean_k e^f(u, v_k) ]: the positive against the mean over its negatives."""

    weight: float = 1.0

    def __call__(self, scores: nf.Scores, progress: nf.Progress | None = None) -> Tensor:
        log_mean_negative = scores.negative.logsumexp() - scores.negative.count().log()
        return scores.over_positives(lambda f, log_mean: f - self.weight * log_mean, log_mean_negative)

    def certificate(
        self, sampling: nf.NegativeSampling, progress: nf.Progress | None = None
    ) -> nf.Certificate:
        return nf.Certificate("objective only", "an example without a proof", None)


@dataclass(frozen=True)
class Hardest(nf.AbstractSelection):
    """The `count` most similar candidates of each anchor."""

    count: int = 8

    def __call__(self, scores: nf.Scores, context: nf.Context | None = None) -> nf.Scores:
        def rule(values: Tensor, offered: Tensor, rows: Tensor) -> nf.Membership:
            ranked = values.detach().masked_fill(~offered, -math.inf)
            edge = ranked.topk(min(self.count, values.shape[1]), dim=1).values[:, -1:]
            return nf.Membership(offered & (ranked >= edge))

        return replace(scores, negative=scores.negative.divide(rule).negatives)

    def sampling(
        self, sampling: nf.NegativeSampling, progress: nf.Progress | None = None
    ) -> nf.NegativeSampling:
        return replace(sampling, negatives=min(self.count, sampling.negatives), cut="below")


def method() -> nf.Method:
    torch.manual_seed(0)  # initial weights are yours, so their seed is too
    return nf.Method(
        encoders=nf.Momentum(nf.Network(Tiny(), nn.Linear(32, 16)), 0.99),
        critic=nf.Cosine(0.2),
        negatives=nf.Queue(64),
        selection=Hardest(16),
        bound=Contrast(),
    )


def main(out: Path, epochs: int = 4) -> nf.Run:
    run = nf.pretrain(
        method(),
        data=Blobs(),
        out=out,
        views=(nf.Augment(crop_scale=(0.4, 1.0), hue=0.0, saturation=0.2, greyscale=0.0, blur=0.0),) * 2,
        epochs=epochs,
        batch_size=16,
        checkpoint_every=1,
        workers=0,
        quiet=True,
    )
    # from here on as with any run; in another process: nf.Run.open(out, method=method(), data=Blobs())
    result = nf.evaluate(run, protocols=["knn", "linear"], baselines=True)
    test_set = Blobs(64, seed=1)
    features = run.embed(test_set)
    nf.write_report([run], out / "report.html")
    print(f"kNN {result['knn']['top1']:.2f}, untrained {result['baselines']['untrained']['knn']['top1']:.2f}")
    print(f"{len(features)} features of {features.shape[1]} numbers from {type(run.encoder()).__name__}")
    print(f"report: {out / 'report.html'}")
    return run


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/own"))
