"""One suite for every modality: opening, description, views, networks, baselines and pictures."""

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data import locate, open_data
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, DataSet, modality_of, modality_of_views

CPU = torch.device("cpu")


def images(folder: Path) -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 9, 3), dtype=np.uint8)
    np.savez(folder / "i.npz", images=pixels, labels=np.arange(12) % 3)
    return str(folder / "i.npz")


def recordings(folder: Path) -> str:
    for k in range(12):
        place = folder / "w" / "ab"[k % 2] / f"{k}.wav"
        place.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(place), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            tone = np.sin(np.arange(3000 + 10 * k) * (0.1 + 0.1 * (k % 2)))
            file.writeframes((tone * 8000).astype("<i2").tobytes())
    return str(folder / "w")


def text(folder: Path) -> str:
    (folder / "t.txt").write_text("near and far, ring and ball and cave. " * 60, encoding="utf-8")
    return str(folder / "t.txt")


def table(folder: Path) -> str:
    rows = np.random.default_rng(1).normal(size=(12, 4)) * [1, 10, 100, 0] + [0, 5, -50, 7]
    lines = [",".join([*map(str, row), "ab"[n % 2]]) for n, row in enumerate(rows)]
    (folder / "v.csv").write_text("\n".join(["p,q,r,s,label", *lines]), encoding="utf-8")
    return str(folder / "v.csv")


def _graphs(folder: Path) -> str:
    """Twelve rings of five nodes."""
    place = folder / "rings"
    place.mkdir()
    edges = [f"{5 * g + a + 1}, {5 * g + (a + 1) % 5 + 1}" for g in range(12) for a in range(5)]
    files = {
        "A": edges,
        "graph_indicator": [str(g + 1) for g in range(12) for _ in range(5)],
        "node_labels": [str((g + a) % 3) for g in range(12) for a in range(5)],
        "graph_labels": [str(g % 2) for g in range(12)],
    }
    for name, lines in files.items():
        (place / f"RINGS_{name}.txt").write_text("\n".join(lines) + "\n")
    return str(place)


def _pairs(folder: Path) -> str:
    x = np.random.default_rng(0).normal(size=(12, 3))
    np.savez(folder / "both.npz", x=x, y=x[:, :2], labels=np.arange(12) % 2)
    return f"pairs:{folder / 'both.npz'}:x,y"


def _series(folder: Path) -> str:
    rows = np.random.default_rng(0).normal(size=(41, 2))  # twelve windows
    np.savez(folder / "series.npz", x=rows, labels=np.arange(41) % 3)
    return f"series:{folder / 'series.npz'}"


EXAMPLES: dict[str, Callable[[Path], str]] = {
    "image": images,
    "sound": recordings,
    "text": text,
    "vectors": table,
    "graph": _graphs,
    "pairs": _pairs,
    "series": _series,
}


def test_every_modality_has_an_example_here() -> None:
    assert set(EXAMPLES) == set(MODALITIES)


@pytest.fixture(params=list(MODALITIES))
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> DataSet:
    spec = EXAMPLES[request.param](tmp_path)
    assert locate(spec).modality is MODALITIES[request.param]
    return open_data(spec)


def choice_of(data: DataSet) -> dict[str, Any]:
    modality = modality_of(data)
    return modality.views.check({"name": modality.views.default})


def test_description_round_trips_through_json(opened: DataSet) -> None:
    modality = modality_of(opened)
    description = modality.reader.describe(opened, None)
    assert modality.reader.description(description.as_plain()) == description
    assert (description.fingerprint, description.instances) == (opened.fingerprint, len(opened))
    assert description.of(opened.subset(np.arange(5))).instances == 5
    description.check_alike(opened, "run")


def test_views_are_functions_of_seed_epoch_and_index(opened: DataSet) -> None:
    modality, choice = modality_of(opened), choice_of(opened)
    views = modality.views.of(choice).training(modality.reader.describe(opened, None), CPU)
    rows = np.array([7, 2, 5])
    full, repeated = (views(opened.load(rows), 3, 1, rows) for _ in range(2))
    assert len(full) == choice["count"]
    for first, second in zip(full, repeated, strict=True):
        assert torch.equal(first, second)
    next_epoch = views(opened.load(rows), 3, 2, rows)
    assert not all(torch.equal(a, b) for a, b in zip(full, next_epoch, strict=True))
    part = views(opened.load(rows[1:]), 3, 1, rows[1:])
    for first, second in zip(full, part, strict=True):
        assert torch.equal(first[1:, ..., : second.shape[-1]], second)


def test_networks_embed_the_plain_view(opened: DataSet) -> None:
    modality, choice = modality_of(opened), choice_of(opened)
    description = modality.reader.describe(opened, None)
    rows = np.arange(len(opened))
    show = modality.views.of(choice).plain_view(description, CPU)
    (inputs,) = show(opened.load(rows), 0, 0, rows)
    assert all(len(view) == len(rows) for view in show.as_views(inputs, choice["count"]))
    assert " at 0x" not in repr(show)
    for name in {modality.networks.smallest, modality.networks.default}:
        body = modality.networks.inputs(modality.check_network(name), choice, description).body(0).eval()
        assert body(inputs).shape == (len(rows), body.dim)
    with pytest.raises(UserError, match="backbone was 'resnet9'"):
        modality.check_network("resnet9")


def test_baselines_and_pictures_exist_for_each_instance(opened: DataSet) -> None:
    modality, choice = modality_of(opened), choice_of(opened)
    description = modality.reader.describe(opened, None)
    rows = np.arange(4)
    baselines = modality.presenter.baselines(modality.views.of(choice).plain_view(description, CPU))
    measured = {name for measure in modality.presenter.measures().values() for name in measure.baselines}
    titles = set(modality.presenter.baseline_titles)
    assert set(baselines) <= titles <= set(baselines) | measured
    for features in baselines.values():
        baseline = features(opened)
        assert len(baseline) == len(opened)
        assert baseline.isfinite().all()
    drawings = modality.presenter.pictures(opened.load(rows), description)
    views = modality.views.of(choice).training(description, CPU)
    view_pictures = modality.presenter.view_pictures(
        views, views(opened.load(rows), 0, 0, rows)[0], description
    )
    for pictures in (drawings, view_pictures):
        assert [type(picture) for picture in pictures] == [Image.Image] * 4
        assert all(picture.mode == "RGB" for picture in pictures)


def test_example_descriptions_build_every_network() -> None:
    for modality in MODALITIES.values():
        choice = modality.views.check({"name": modality.views.default})
        with torch.device("meta"):
            input_spec = modality.networks.inputs(
                modality.networks.smallest, choice, modality.reader.example_description(5)
            )
            assert input_spec.body(0).dim
        assert len(input_spec.shapes) == choice["count"]
        assert input_spec.context["instances"] == 5


def test_names_of_views_belong_to_one_modality() -> None:
    names = [name for modality in MODALITIES.values() for name in modality.views.names]
    assert len(names) == len(set(names))
    for modality in MODALITIES.values():
        assert all(modality_of_views(name) is modality for name in modality.views.names)
    with pytest.raises(UserError, match=r"views was 'smell' .*; expected simclr"):
        modality_of_views("smell")


def test_data_an_encoder_would_misread_are_refused(tmp_path: Path) -> None:
    description = MODALITIES["vectors"].reader.describe(open_data(np.zeros((5, 3))), None)
    with pytest.raises(UserError, match="has 4 features but RUN was trained on 3"):
        description.check_alike(open_data(np.zeros((5, 4))), "RUN")
    with pytest.raises(UserError, match="image_size is not an option of recordings"):
        open_data(recordings(tmp_path), image_size=8)
