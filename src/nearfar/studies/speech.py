"""Spoken digits: what predicting the next frames teaches, beside what speech recognition used before (Liu 2022, sec. 2.2).

    nearfar study speech train=data/fsdd_train.parquet test=data/fsdd_test.parquet

Three kinds of negatives: frames of other recordings, those and other times of the same one, frames of recordings by the
same speaker. A linear probe tells digits from means over time, nearest neighbours tell speakers; beside it MFCC means (and MFCC means with standard
deviations) under the same probe, and the network before training. `test=validation` holds out a fifth of the training
recordings instead: every choice of the recipe was made there.
"""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from nearfar.config.resolving import resolve
from nearfar.core.statistics import mean_and_spread
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.evaluate.protocols import scores
from nearfar.evaluate.sets import LabelledFeatures
from nearfar.modalities import Recordings
from nearfar.modalities.sound.show import mfcc_features
from nearfar.modalities.sound.views import WholeSound
from nearfar.parts.encoders import ConvGRU
from nearfar.run.features import features
from nearfar.run.trained import backbone_of, fresh_method
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.system.hardware import one_thread
from nearfar.train.pretrain import pretrain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: dict[str, dict[str, Any]] = {
    "other recordings": {},
    "other times": {"encoders": {"others": "times"}},
    "same speaker": {"selection": {"name": "group", "by": "speaker"}},
}
BASELINES = ("MFCC means", "MFCC means and deviations")
UNTRAINED = "untrained"
VALIDATION = "validation"

Figures = dict[str, float]


def run(
    bench: Bench,
    train: str = "data/fsdd_train.parquet",
    test: str = "data/fsdd_test.parquet",
    epochs: int = 10,
    seeds: int = 2,
    seed: int = 0,
    jobs: int = 1,
) -> Result:
    if epochs < 1 or seeds < 1 or jobs < 1:
        raise UserError(f"epochs was {epochs}, seeds {seeds} and jobs {jobs}; each must be at least 1")
    heard, asked = parts(train, test)
    data = {"train": train, "test": test, "fingerprints": [heard.fingerprint, asked.fingerprint]}
    baselines = {
        name: bench.arm({"features": name, **data}, partial(baseline, name, heard, asked))
        for name in BASELINES
    }
    arms = [
        {"kind": kind, "epochs": 0 if kind == UNTRAINED else epochs, "seed": s, **data}
        for kind in (UNTRAINED, *KINDS)
        for s in range(seed, seed + seeds)
    ]
    values = bench.arms(arms, trained, jobs)
    found: dict[str, list[Figures]] = {kind: [] for kind in (UNTRAINED, *KINDS)}
    for arm, value in zip(arms, values, strict=True):
        found[str(arm["kind"])].append(value)
    return Result((_finding(baselines, found),), _remarks(baselines, found, test))


def parts(train: str, test: str) -> tuple[Recordings, Recordings]:
    """The recordings to learn from and those to be asked about; both must tell what is said and who says it."""
    heard = _recordings(train)
    if test == VALIDATION:
        rest, held = heard.split(0.2, seed=0)
        return rest, held
    return heard, _recordings(test)


def _recordings(path: str) -> Recordings:
    opened = open_data(path)
    if not isinstance(opened, Recordings) or opened.labels is None or "speaker" not in opened.groups:
        raise UserError(
            f"{path} is not a set of recordings with the columns label and speaker, which this study needs"
        )
    return opened


def baseline(name: str, heard: Recordings, asked: Recordings) -> Figures:
    """What the probe makes of MFCC features."""
    embed = partial(mfcc_features, moments=name == BASELINES[1])
    return told(embed(heard), embed(asked), heard, asked)


@one_thread()
def trained(arm: Mapping[str, Any]) -> Figures:
    """Trains one arm and asks the probe; no epochs at all is the network before training."""
    heard, asked = parts(arm["train"], arm["test"])
    settings = {**KINDS.get(arm["kind"], {}), "seed": arm["seed"], "probe_every": 0, "keep": 1, "held_out": 0}
    last: dict[str, Any] = {}
    if arm["epochs"]:
        with tempfile.TemporaryDirectory(prefix="nearfar-speech-") as folder:
            done = pretrain("cpc", heard, Path(folder), quiet=True, epochs=arm["epochs"], **settings)
            encoder = done.encoder()
            last = [row for row in done.metrics if row["kind"] == "train"][-1]
    else:
        chosen = resolve("cpc", heard.name, settings)
        encoder = backbone_of(fresh_method(chosen, chosen.modality.reader.describe(heard, None)))
    assert isinstance(encoder, ConvGRU)

    def found(pooling: Literal["mean", "moments"]) -> Figures:
        encoder.pooling = pooling
        fit, ask = (features(encoder, part, WholeSound()) for part in (heard, asked))
        return told(fit, ask, heard, asked)

    figures = found("mean") | {"moments": found("moments")["digit"]}
    return figures | {name: last[name] for name in ("nats", "ceiling") if name in last}


def told(fit: Tensor, ask: Tensor, heard: Recordings, asked: Recordings) -> Figures:
    """How often these features are right about the digit, by a linear probe, and about the speaker, by their nearest
    neighbours."""
    assert heard.labels is not None
    assert asked.labels is not None
    return {
        "digit": judged(fit, ask, heard.labels, asked.labels, "linear"),
        "speaker": judged(fit, ask, heard.groups["speaker"], asked.groups["speaker"], "knn"),
    }


def judged(fit: Tensor, ask: Tensor, known: np.ndarray, true: np.ndarray, protocol: str) -> float:
    sets = LabelledFeatures(fit, torch.from_numpy(known)), LabelledFeatures(ask, torch.from_numpy(true))
    return scores(*sets, (protocol,))[protocol]["top1"]


def _finding(baselines: Mapping[str, Figures], found: Mapping[str, Sequence[Figures]]) -> Finding:
    rows = [Row(f"{name}: digit", None, values["digit"]) for name, values in baselines.items()]
    for kind, values in found.items():
        rows.append(_row(f"{kind}: digit", [value["digit"] for value in values]))
        rows.append(_row(f"{kind}: digit, means and deviations", [value["moments"] for value in values]))
    rows += [Row(f"{name}: speaker", None, values["speaker"]) for name, values in baselines.items()]
    rows += [
        _row(f"{kind}: speaker", [value["speaker"] for value in values]) for kind, values in found.items()
    ]
    curves = {
        "baselines": {name: values["digit"] for name, values in baselines.items()},
        "found": {kind: list(values) for kind, values in found.items()},
    }
    return Finding("Spoken digits: what features tell", tuple(rows), curves)


def _row(label: str, values: Sequence[float]) -> Row:
    return Row(label, None, *mean_and_spread(values))


def _remarks(
    baselines: Mapping[str, Figures], found: Mapping[str, Sequence[Figures]], test: str
) -> tuple[str, ...]:
    means = {kind: statistics.mean(value["digit"] for value in values) for kind, values in found.items()}
    best = max(KINDS, key=lambda kind: means[kind])
    line = baselines[BASELINES[0]]["digit"]
    verdict = "above" if means[best] > line else "not above"
    return (
        "no paper here reports this experiment: the papers describe the method, and the baselines are ours.",
        f"best by digit is {best}, {100 * means[best]:.1f} %, {verdict} MFCC means at {100 * line:.1f} %.",
        "every speaker is in both parts, so nothing here tells how an unknown voice would fare.",
        f"asked on {test}; window and steps ahead were chosen on a fifth of the training recordings.",
    )


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels

    curves = result.findings[0].curves
    figure, axes = panels(["Digits told by a linear probe", "Speakers told by nearest neighbours"])
    for axis, what in zip(axes, ("digit", "speaker"), strict=True):
        for place, values in enumerate(curves["found"].values()):
            axis.plot(
                [place] * len(values),
                [value[what] for value in values],
                "o",
                color=COLOURS[place],
                markersize=4,
            )
        axis.set(xticks=range(len(curves["found"])), ylim=(0, 1.02))
        axis.set_xticklabels([kind.replace(" ", "\n") for kind in curves["found"]], fontsize=7)
    for (name, value), style in zip(curves["baselines"].items(), ("--", ":"), strict=True):
        axes[0].axhline(value, color="0.4", linestyle=style, linewidth=1, label=name)
    axes[0].legend(frameon=False, fontsize=7, loc="lower right")
    return figure


STUDY = Study(
    "speech",
    "Liu 2022, sec. 2.2 on spoken digits: CPC with three kinds of negatives beside MFCC",
    run,
    draw,
)
