"""A modality from nothing and a row-based data format: a file of `examples/extending` and one line each."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import nearfar as nf
from tests.extending.test_extending_parts import QUICK, addition


def moving_squares(count: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """Clips (n, t, h, w, c) of a square that moves to the right or down."""
    labels = np.arange(count) % 2
    clips = np.random.default_rng(0).integers(0, 40, (count, 6, 12, 12, 3), dtype=np.uint8)
    for clip, label in zip(clips, labels, strict=True):
        for time, frame in enumerate(clip):
            place = (4, 2 + time) if label else (2 + time, 4)
            frame[place[0] : place[0] + 3, place[1] : place[1] + 3] = 250
    return clips, labels


def test_video_needs_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.modalities import MODALITIES

    monkeypatch.setitem(MODALITIES, "video", addition("video").VIDEO)
    clips, labels = moving_squares()
    np.savez(tmp_path / "clips.npz", clips=clips, labels=labels)
    opened = nf.open_data(tmp_path / "clips.npz")
    assert opened.modality == nf.open_data(clips).modality == "video"
    assert np.array_equal(opened.load(np.array([3, 1])), clips[[3, 1]])
    run = nf.pretrain("simclr", tmp_path / "clips.npz", tmp_path / "run", **QUICK)
    assert run.settings.views == {"name": "stretch", "frames": 4, "count": 2, "symmetric": True}
    result = nf.evaluate(run, protocols=["knn"], baselines=True)
    assert result["baselines"]["frames"]["knn"]["top1"] > 0.9  # the path of the square is in the mean frame
    assert run.embed(clips).shape == (48, 32)
    nf.write_report([run], tmp_path / "report.html")
    with pytest.raises(nf.UserError, match=r"has clips of shape \(5, 12, 12, 3\) but"):
        run.embed(clips[:, :5])


def test_views_of_clips_are_a_function_of_seed_epoch_and_index() -> None:
    video = addition("video").VIDEO
    clips, _ = moving_squares()
    data = video.reader.from_array(nf.data.Arrays(clips), "clips", {})
    choice = video.views.of({"name": "stretch"})
    views = choice.training(video.reader.describe(data, None), torch.device("cpu"))
    everything = views(clips, 3, 1, np.arange(48))
    for view, part in zip(everything, views(clips[5:9], 3, 1, np.arange(5, 9)), strict=True):
        assert torch.equal(view[5:9], part)
    assert not torch.equal(everything[0], everything[1])


def test_rows_of_json_lines_need_one_file_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nearfar.data.open import FORMATS, RowFormat

    monkeypatch.setitem(FORMATS, ".jsonl", RowFormat(addition("json_lines").JsonLines))
    rows = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    lines = [json.dumps({"x": row.tolist(), "label": "ab"[n % 2]}) for n, row in enumerate(rows)]
    lines[7] = '{"x": [1, 2'
    lines[9] = '{"x": [1, 2], "label": "a"}'
    file = tmp_path / "table.jsonl"
    file.write_text("\n".join(lines) + "\n")
    opened = nf.open_data(file)
    usable = [n for n in range(64) if n not in (7, 9)]
    assert np.array_equal(opened.load(np.arange(62)), rows[usable])
    assert opened.classes == ("a", "b")
    assert opened.labels.tolist() == [n % 2 for n in usable]
    assert [reason.partition(":")[0] for _, reason in opened.quarantine] == [
        "not a JSON object with numbers in `x`",
        "2 numbers, where most have 5",
    ]
    run = nf.pretrain("simclr", file, tmp_path / "run", **QUICK)
    assert run.embed(file).shape[0] == 62
    with pytest.raises(nf.UserError, match="cannot be used and the limit"):
        nf.open_data(file, max_bad_share=0.01)
