"""Columns as people call them: known names, names as settings, never a guess."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import nearfar as nf
from nearfar.cli import main


def encoded(value: int) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(np.full((12, 12, 3), value, np.uint8)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def written(path: Path, picture: str, **labels: list[Any]) -> str:
    count = len(next(iter(labels.values()))) if labels else 40
    pq.write_table(pa.table({picture: [encoded(3 * row) for row in range(count)], **labels}), path)
    return str(path)


@pytest.mark.parametrize("picture", ["image", "img", "jpg", "png", "webp"])
@pytest.mark.parametrize("label", ["label", "labels", "fine_label", "cls", "class", "target"])
def test_columns_named_as_on_hugging_face_are_read(tmp_path: Path, picture: str, label: str) -> None:
    data = nf.open_data(written(tmp_path / "a.parquet", picture, **{label: [0, 1] * 20}))
    assert len(data) == 40
    assert data.labels.tolist() == [0, 1] * 20


def test_other_names_are_settings(tmp_path: Path) -> None:
    words = ["ship", "cat"] * 20
    path = written(tmp_path / "a.parquet", "photo", label=[7] * 40, kind=words)
    with pytest.raises(nf.UserError, match="photo"):
        nf.open_data(path)
    data = nf.open_data(path, image_column="photo", label_column="kind")
    assert data.classes == ("cat", "ship")
    assert data.labels.tolist() == [1, 0] * 20
    assert nf.open_data(path, image_column="photo").labels.tolist() == [7] * 40


def test_missing_column_error_lists_existing_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", "image", label=[0, 1] * 20)
    with pytest.raises(
        nf.UserError,
        match=r"label_column was 'lable' \(did you mean label\?\); the columns of .* are image, label",
    ):
        nf.open_data(path, label_column="lable")


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ("image_column", "Parquet and Arrow files with encoded images"),
        ("label_column", "Parquet, Arrow and .csv files"),
    ],
)
def test_data_without_columns_refuse_the_name_of_one(setting: str, where: str) -> None:
    message = f"{setting} was 'a', but digits has no columns; {setting} is for {where}"
    options: Any = {setting: "a"}
    with pytest.raises(nf.UserError, match=message):
        nf.open_data("digits", **options)


@pytest.mark.parametrize("label", [None, "kind"])
def test_a_table_of_numbers_has_no_image_column(tmp_path: Path, label: str | None) -> None:
    """The error is about the kind of file, also where the table has a column of that name."""
    (tmp_path / "t.csv").write_text("a,kind\n" + "".join(f"{n},{'xy'[n % 2]}\n" for n in range(20)))
    message = (
        "image_column was 'a', but .*t.csv is a table of numbers; image_column is for Parquet and Arrow files "
        "with encoded images"
    )
    with pytest.raises(nf.UserError, match=message):
        nf.open_data(tmp_path / "t.csv", image_column="a", label_column=label)


def test_a_table_of_numbers_may_call_its_label_anything(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,kind\n" + "".join(f"{n},{n * 2},{'ab'[n % 2]}\n" for n in range(20)))
    data = nf.open_data(tmp_path / "a.csv", label_column="kind")
    assert data.classes == ("a", "b")
    with pytest.raises(nf.UserError, match=r"label_column was 'sort'; the columns of .* are x, y, kind"):
        nf.open_data(tmp_path / "a.csv", label_column="sort")


def test_run_and_evaluation_read_the_named_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", "photo", kind=["dark", "light"] * 30)
    columns = ["image_column=photo", "label_column=kind"]
    words = ["backbone=resnet8-w16", "batch_size=16", "epochs=1", "workers=0", "--quiet"]
    run = str(tmp_path / "run")
    assert main(["train", path, "--out", run, *columns, *words]) == 0
    assert nf.Run.open(run).description.classes == ("dark", "light")
    assert main(["evaluate", run, "--no-baselines", "--protocol", "knn"]) == 0, (
        "its own data, by its own settings"
    )
    second = written(tmp_path / "b.parquet", "shot", sort=["light", "dark"] * 20)
    options = ["--image-column", "shot", "--label-column", "sort"]
    assert main(["evaluate", run, "--no-baselines", "--protocol", "knn", "--data", second, *options]) == 0
    assert nf.Run.open(run).results[-1]["labels"]["matched_by"] == "name"
