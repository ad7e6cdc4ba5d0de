"""Spoken digits: CPC with three kinds of negatives, beside MFCC features (Liu 2022, sec. 2).

    nearfar study speech train=data/fsdd_train.parquet test=data/fsdd_test.parquet

Negatives are frames of other recordings, those and other times of the same recording, or frames of recordings
by the same speaker. A linear probe classifies digits from means over time, nearest neighbours classify
speakers. Baselines: MFCC means, MFCC means with standard deviations, and the network before training.
`test=validation` holds out a fifth of the training recordings instead: the recipe's settings were chosen
there.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nearfar.config.resolving import resolve
from nearfar.data import open_data
from nearfar.errors import UserError, check_whole
from nearfar.evaluate import knn, linear
from nearfar.modalities import Recordings
from nearfar.modalities.sound.show import mfcc_features
from nearfar.modalities.sound.views import WholeSound
from nearfar.parts.encoders import ConvGRU
from nearfar.run.features import features
from nearfar.run.trained import fresh_method
from nearfar.studies.comparison import Claim, Comparison, compare_cells
from nearfar.studies.frame import StudyResult, Values, Workspace, study
from nearfar.sweeps.engine import Cell
from nearfar.system.hardware import one_thread
from nearfar.train.pretrain import pretrain

NEGATIVES: dict[str, dict[str, Any]] = {
    "other recordings": {},
    "other times": {"encoders": {"others": "times"}},
    "same speaker": {"selection": {"name": "group", "by": "speaker"}},
}
MFCC = ("MFCC means", "MFCC means and deviations")
UNTRAINED = "untrained"
VALIDATION = "validation"
MEASURES = {
    "digit": "digit, linear top-1 in percent",
    "moments": "digit from means and deviations, linear top-1 in percent",
    "speaker": "speaker, kNN top-1 in percent",
}
REMARKS = (
    "no paper here reports this experiment: the papers describe the method, and the baselines are ours.",
    "every speaker is in both parts, so the figures do not describe unknown voices.",
    "window and steps ahead were chosen on a fifth of the training recordings.",
)


@study("speech", "Liu 2022, sec. 2 on spoken digits: CPC with three kinds of negatives beside MFCC")
def run(
    workspace: Workspace,
    train: str = "data/fsdd_train.parquet",
    test: str = "data/fsdd_test.parquet",
    epochs: int = 10,
    seeds: int = 2,
    seed: int = 0,
    jobs: int = 1,
) -> StudyResult:
    check_whole("epochs", epochs, 1)
    prints = [part.fingerprint for part in recordings(train, test)]
    identity = {"train": train, "test": test, "fingerprints": prints, "epochs": epochs}
    arms = dict.fromkeys((*MFCC, UNTRAINED, *NEGATIVES))
    claims = [Claim(arm, UNTRAINED) for arm in NEGATIVES]
    comparison = Comparison("Spoken digits", arms, claims, measures=MEASURES, baselines=(), remarks=REMARKS)
    return compare_cells(workspace, comparison, range(seed, seed + seeds), identity, compute, jobs)


def recordings(train: str, test: str) -> tuple[Recordings, Recordings]:
    """The recordings to train on and to test on; both need digits and speakers."""
    fit = _open_recordings(train)
    return fit.split(0.2, seed=0) if test == VALIDATION else (fit, _open_recordings(test))


def _open_recordings(path: str) -> Recordings:
    data = open_data(path)
    if not isinstance(data, Recordings) or data.labels is None or "speaker" not in data.groups:
        raise UserError(
            f"{path} is not a set of recordings with the columns label and speaker, which this study needs"
        )
    return data


@one_thread()
def compute(cell: Cell, folder: Path) -> Values:
    """Trains an arm, or takes the untrained network or MFCC features, and evaluates."""
    identity = cell.identity
    fit, test = recordings(identity["train"], identity["test"])
    if identity["arm"] in MFCC:
        embed = partial(mfcc_features, moments=identity["arm"] == MFCC[1])
        return accuracies(embed(fit), embed(test), fit, test)
    settings = {
        **NEGATIVES.get(identity["arm"], {}),
        "seed": identity["seed"],
        "probe_every": 0,
        "keep": 1,
        "held_out": 0,
    }
    last_row: Mapping[str, Any] = {}
    if identity["arm"] != UNTRAINED:
        trained = pretrain("cpc", fit, folder / "run", quiet=True, epochs=identity["epochs"], **settings)
        encoder = trained.encoder()
        last_row = [row for row in trained.metrics if row["kind"] == "train"][-1]
    else:
        resolved = resolve("cpc", fit.name, settings)
        encoder = fresh_method(resolved, resolved.modality.reader.describe(fit, None)).encoders.backbone()
    assert isinstance(encoder, ConvGRU)

    def evaluate(pooling: Literal["mean", "moments"]) -> dict[str, float]:
        encoder.pooling = pooling
        fit_features, test_features = (features(encoder, part, WholeSound()) for part in (fit, test))
        return accuracies(fit_features, test_features, fit, test)

    values = {**evaluate("mean"), "moments": evaluate("moments")["digit"]}
    return {**values, **{name: last_row[name] for name in ("nats", "ceiling") if name in last_row}}


def accuracies(
    fit_features: Tensor, test_features: Tensor, fit: Recordings, test: Recordings
) -> dict[str, float]:
    """Top-1 of the digit by a linear probe, and of the speaker by nearest neighbours."""
    assert fit.labels is not None
    assert test.labels is not None
    digits, test_digits = torch.from_numpy(fit.labels), torch.from_numpy(test.labels)
    speakers, test_speakers = (torch.from_numpy(part.groups["speaker"]) for part in (fit, test))
    return {
        "digit": linear(fit_features, digits, test_features, test_digits)["top1"],
        "speaker": knn(fit_features, speakers, test_features, test_speakers)["top1"],
    }
