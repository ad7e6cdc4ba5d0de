"""What people have in memory or in a file of numpy: each form is the same data set."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pytest
import torch
from PIL import Image

import nearfar as nf
from nearfar.data.open import open_data
from nearfar.errors import UserError

PICTURES = np.random.default_rng(0).integers(0, 256, (12, 8, 10, 3), dtype=np.uint8)


def loaded(data: Any) -> np.ndarray:
    opened = open_data(data)
    return opened.load(np.arange(len(opened))).data


FORMS: dict[str, Any] = {
    "channels first": PICTURES.transpose(0, 3, 1, 2),
    "floats, channels first": PICTURES.transpose(0, 3, 1, 2) / 255,
    "list of PIL images": [Image.fromarray(picture) for picture in PICTURES],
    "list of arrays": list(PICTURES),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_pictures_is_the_array(name: str) -> None:
    assert np.array_equal(loaded(FORMS[name]), PICTURES)


def encoded(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("cell", [lambda raw: raw, lambda raw: {"bytes": raw, "path": None}])
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_frame_of_encoded_pictures_is_the_array(frame: Any, cell: Any, tmp_path: Path) -> None:
    labels = [f"class {row % 3}" for row in range(12)]
    content = {"image": [cell(encoded(picture)) for picture in PICTURES], "label": labels}
    opened = open_data(frame(content))
    assert np.array_equal(opened.load(np.arange(12)).data, PICTURES)
    assert [opened.classes[number] for number in opened.labels] == labels
    renamed = open_data(frame({"photo": content["image"]}), image_column="photo")
    assert np.array_equal(renamed.load(np.arange(12)).data, PICTURES)


def test_categorical_columns_are_those_of_words() -> None:
    """Both libraries have a type for them, and polars has string views inside."""
    words, numbers = list("xyzxyz") * 2, np.arange(12.0)
    expected = open_data(pd.DataFrame({"a": numbers, "c": words})).fingerprint
    for column in (pd.Categorical(words), pl.Series(words, dtype=pl.Categorical), pl.Series(words)):
        frame = (pl if isinstance(column, pl.Series) else pd).DataFrame({"a": numbers, "c": column})
        assert open_data(frame).fingerprint == expected
    enumerated = pl.DataFrame({"a": numbers, "c": pl.Series(words, dtype=pl.Enum(["x", "y", "z"]))})
    assert open_data(enumerated).fingerprint == expected


def test_a_file_of_one_array_is_the_array(tmp_path: Path) -> None:
    np.save(tmp_path / "pictures.npy", PICTURES)
    assert np.array_equal(loaded(tmp_path / "pictures.npy"), PICTURES)
    vectors = np.random.default_rng(0).normal(size=(9, 4))
    np.save(tmp_path / "vectors.npy", vectors)
    assert open_data(tmp_path / "vectors.npy").fingerprint == open_data(vectors).fingerprint


def test_a_file_with_objects_or_without_an_array_is_refused(tmp_path: Path) -> None:
    """An .npy file of objects is a pickle, which would run code."""
    np.save(tmp_path / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    (tmp_path / "short.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "text.npy").write_bytes(bytes(100))
    header = b"(" * 110 + b"\n"
    (tmp_path / "open.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    reasons = {"objects.npy": "Python objects, which are never loaded", "text.npy": "it is not an array file"}
    for name in (*reasons, "short.npy", "open.npy"):
        with pytest.raises(UserError, match=rf"cannot be read as \.npy: .*{reasons.get(name, '')}") as caught:
            open_data(tmp_path / name)
        assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize("data", [[], [1, 2], ["a.png"]])
def test_other_lists_are_refused(data: list[Any]) -> None:
    with pytest.raises(UserError, match="data of type list cannot be opened"):
        open_data(data)


def test_a_run_can_be_pickled(tmp_path: Path) -> None:
    """To send it to another process: the copy embeds as the run does."""
    run = nf.pretrain(
        "simclr", data=PICTURES, out=tmp_path / "run", epochs=1, batch_size=4, backbone="resnet8-w8"
    )
    copy = pickle.loads(pickle.dumps(run))
    assert torch.equal(copy.embed(PICTURES), run.embed(PICTURES))
