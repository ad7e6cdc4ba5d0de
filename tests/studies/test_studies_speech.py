"""The study `speech` on generated recordings: arms, baselines and table."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.evaluate.linear import linear
from nearfar.modalities.sound.show import mfcc_features
from nearfar.studies import speech
from nearfar.studies.run import find_study, run_study


def test_every_arm_beside_its_baselines(
    tmp_path: Path, write_recordings: Callable[[Path, int, int], str]
) -> None:
    train, test = (
        write_recordings(tmp_path / "a.parquet", 72, 0),
        write_recordings(tmp_path / "b.parquet", 20, 1),
    )
    words = [f"train={train}", f"test={test}", "epochs=1", "seeds=1"]
    result = run_study(find_study("speech"), tmp_path / "study", words).result
    digit, moments, speaker = (table.ours() for table in result.tables)
    arms = (speech.UNTRAINED, *speech.NEGATIVES)
    assert set(digit) == set(speaker) == {*arms, *speech.MFCC}
    assert set(moments) == set(arms), "moments of MFCC are an arm of their own"
    fit, held_out = open_data(train), open_data(test)
    labels = [torch.as_tensor(part.labels) for part in (fit, held_out)]
    rows = [mfcc_features(part) for part in (fit, held_out)]
    truth = linear(rows[0], labels[0], rows[1], labels[1], seed=0)["top1"]
    assert digit["MFCC means"] == pytest.approx(100 * truth)
    stored = [json.loads(file.read_text()) for file in (tmp_path / "study" / "cells").glob("*/result.json")]
    values = {one["cell"].partition(",")[0]: one["values"] for one in stored}
    assert "nats" not in values[speech.UNTRAINED]
    # three kinds of negatives, three losses
    assert len({values[arm]["nats"] for arm in speech.NEGATIVES}) == 3
    assert values["other times"]["ceiling"] > values["other recordings"]["ceiling"]
    assert (tmp_path / "study" / "figure.svg").exists()


def test_validation_is_a_fifth_of_train(
    tmp_path: Path, write_recordings: Callable[[Path, int, int], str]
) -> None:
    train = write_recordings(tmp_path / "a.parquet", 40, 0)
    fit, held_out = speech.recordings(train, "validation")
    assert (len(fit), len(held_out)) == (32, 8)
    assert not set(fit.paths) & set(held_out.paths)


def test_recordings_without_speakers_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="digits is not a set of recordings with the columns label and speaker"
    ):
        speech.recordings("digits", "validation")
