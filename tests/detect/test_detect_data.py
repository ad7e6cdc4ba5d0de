"""Data of a detector: read as written, classes matched by name, held out, and never guessed."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import nearfar as nf
from nearfar.cli import main
from nearfar.detect.run import detect_run
from nearfar.detect.scenes import Scenes, match_classes, merge_classes, open_scenes, split_holdout
from nearfar.detect.score import coco_figures
from nearfar.detect.table import table
from nearfar.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
BOX = [1.0, 2.0, 5.0, 6.0]


def png(pixels: np.ndarray = PIXELS) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def parquet(path: Path, objects: list[Any], names: list[str] | None = None) -> str:
    table = pa.table({"image": [{"bytes": png(), "path": "a.png"}] * len(objects), "objects": objects})
    if names is not None:
        features = {"objects": {"category": [{"names": names, "_type": "ClassLabel"}]}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path)
    return str(path)


def coco(path: Path, annotations: list[dict[str, Any]], names: list[str], file: str = "a.png") -> str:
    (path.parent / "a.png").write_bytes(png())
    document = {
        "images": [{"id": 1, "file_name": file}],
        "annotations": [{"id": i, "image_id": 1, "bbox": BOX, **one} for i, one in enumerate(annotations)],
        "categories": [{"id": 7 * i + 3, "name": name} for i, name in enumerate(names)],
    }
    path.write_text(json.dumps(document))
    return str(path)


def test_object_formats_are_equivalent(tmp_path: Path) -> None:
    """Lists side by side, a list of mappings, names for numbers: the same boxes and classes."""
    with_names = parquet(tmp_path / "a.parquet", [{"bbox": [BOX, BOX], "category": [1, 0]}], ["ant", "bee"])
    listed = parquet(
        tmp_path / "b.parquet", [[{"bbox": BOX, "category": 1}, {"bbox": BOX, "category": 0}]], ["ant", "bee"]
    )
    by_name = parquet(tmp_path / "c.parquet", [{"bbox": [BOX, BOX], "label": ["bee", "ant"]}])
    written = coco(tmp_path / "d.json", [{"category_id": 10}, {"category_id": 3}], ["ant", "bee"])
    for spec in (with_names, listed, by_name, written):
        scenes = open_scenes(spec)
        assert scenes.classes == ("ant", "bee"), spec
        np.testing.assert_array_equal(scenes.scenes[0].labels, [1, 0])
        np.testing.assert_array_equal(scenes.scenes[0].boxes, [[1, 2, 6, 8]] * 2)
        np.testing.assert_array_equal(scenes.scenes[0].pixels, PIXELS)


def test_parquet_folder_equals_its_files(tmp_path: Path) -> None:
    for shard, category in (("b", 1), ("a", 0)):
        parquet(tmp_path / f"{shard}.parquet", [{"bbox": [BOX], "category": [category]}], ["ant", "bee"])
    scenes = open_scenes(str(tmp_path))
    assert [scene.labels.tolist() for scene in scenes.scenes] == [[0], [1]]
    assert scenes.classes == ("ant", "bee")


def test_classes_match_by_name(tmp_path: Path) -> None:
    """The order in which two files list classes does not matter; a class without training objects may be
    listed."""
    fit = open_scenes(coco(tmp_path / "a.json", [{"category_id": 3}], ["ant", "bee", "cat"]))
    ask = open_scenes(coco(tmp_path / "b.json", [{"category_id": 3}, {"category_id": 10}], ["cat", "ant"]))
    matched, notes = match_classes(fit, ask, same_labels=False)
    np.testing.assert_array_equal(matched.scenes[0].labels, [2, 0])
    assert matched.classes == fit.classes
    assert notes["classes"] == {"ant": {"train": 0, "test": 1}, "cat": {"train": 2, "test": 0}}
    assert notes["not_in_test"] == ["bee"]
    second = open_scenes(coco(tmp_path / "c.json", [{"category_id": 3}], ["dog"]))
    with pytest.raises(UserError, match=r"has the classes dog, which .* does not have"):
        match_classes(fit, second, same_labels=True)


def test_unnamed_classes_are_not_matched(tmp_path: Path) -> None:
    one = parquet(tmp_path / "cars.parquet", [{"bbox": [BOX], "category": [1]}])
    second = parquet(tmp_path / "birds.parquet", [{"bbox": [BOX], "category": [2]}])
    fit, ask = open_scenes(one), open_scenes(second)
    with pytest.raises(UserError, match=r"numbers without names.*same_labels=True"):
        match_classes(fit, ask, same_labels=False)
    with pytest.raises(UserError, match=r"has the labels 2, which no instance of .*cars.parquet has"):
        match_classes(fit, ask, same_labels=True)
    few = open_scenes(parquet(tmp_path / "few.parquet", [{"bbox": [BOX, BOX], "category": [1, 2]}]))
    matched, notes = match_classes(few, ask, same_labels=True)
    np.testing.assert_array_equal(matched.scenes[0].labels, [2])
    assert notes["because"] == "--same-labels"
    assert notes["not_in_test"] == ["1"]
    for split in ("train", "val"):
        parquet(tmp_path / f"set_{split}.parquet", [{"bbox": [BOX], "category": [int(split == "val")]}])
    fit, ask = (open_scenes(str(tmp_path / f"set_{split}.parquet")) for split in ("train", "val"))
    assert match_classes(fit, ask, same_labels=False)[1]["because"] == "splits of one set by their file names"


SENTENCES: dict[str, tuple[Any, str]] = {
    "a box of three": ({"bbox": [[1.0, 2.0, 3.0]], "category": [0]}, "row 0: bbox is invalid"),
    "a box of nothing": ({"bbox": [[1.0, 2.0, float("nan"), 3.0]], "category": [0]}, "bbox is invalid"),
    "a class of a billion": (
        {"bbox": [BOX], "category": [10**9]},
        "expected numbers from 0 to 16383, or names",
    ),
    "a class below 0": ({"bbox": [BOX], "category": [-1]}, "the category -1; expected numbers from 0"),
    "more boxes than classes": ({"bbox": [BOX, BOX], "category": [0]}, "2 bbox, 1 category"),
    "half a point": ({"bbox": [BOX], "category": [0], "keypoints": [[1.0, 2.0]]}, "keypoints is invalid"),
    "half a polygon": (
        {"bbox": [BOX], "category": [0], "segmentation": [[[1.0]]]},
        "invalid segmentation",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_invalid_objects_print_one_sentence(case: str, tmp_path: Path) -> None:
    objects, words = SENTENCES[case]
    with pytest.raises(UserError, match=words):
        open_scenes(parquet(tmp_path / "a.parquet", [objects]))


def test_invalid_coco_json_prints_one_sentence(tmp_path: Path) -> None:
    def assert_refused(annotations: list[dict[str, Any]], names: list[str], words: str, **more: Any) -> None:
        with pytest.raises(UserError, match=words):
            open_scenes(coco(tmp_path / "a.json", annotations, names, **more))

    (tmp_path / "outside.png").write_bytes(png())
    (tmp_path / "in").mkdir()
    assert_refused([{"category_id": 3, "bbox": None}], ["ant"], "bbox is invalid")
    assert_refused([{"category_id": 3, "bbox": [0, 0, 1e30, 1e30]}], ["ant"], "bbox is invalid")
    assert_refused([], ["ant"], "is outside", file="a\0.png")
    assert_refused([{"category_id": 3}], ["ant", "ant"], "several classes one name")
    assert_refused([{"category_id": 9}], ["ant"], "cannot be read as COCO's JSON")
    large = {"counts": [10**12], "size": [10**6, 10**6]}
    assert_refused([{"category_id": 3, "segmentation": large}], ["ant"], "invalid segmentation")
    (tmp_path / "in/a.json").write_text((tmp_path / "a.json").read_text())
    with pytest.raises(UserError, match=r"outside.png, named by .*, is outside"):
        open_scenes(coco(tmp_path / "in/b.json", [], ["ant"], file="../outside.png"))


def test_without_test_data_a_fifth_is_held_out() -> None:
    full = open_scenes("shapes:10")
    rest, holdout = split_holdout(full, 0)
    assert (len(rest), len(holdout)) == (8, 2)
    assert {id(scene) for scene in (*rest.scenes, *holdout.scenes)} == {id(scene) for scene in full.scenes}
    assert holdout.facts() == split_holdout(full, 0)[1].facts() != split_holdout(full, 1)[1].facts()
    with pytest.raises(UserError, match="has one image"):
        split_holdout(open_scenes("shapes:1"), 0)


def test_class_agnostic_detection_ignores_class_names() -> None:
    """Right boxes under wrong classes: nothing by class, everything without."""
    scenes = open_scenes("shapes:6:4")

    def ap(scenes_of: Scenes, wrong: int) -> float:
        detections = [
            {
                "boxes": torch.from_numpy(scene.boxes),
                "labels": torch.from_numpy((scene.labels + wrong) % scenes_of.class_count + 1),
                "scores": torch.ones(len(scene.labels)),
            }
            for scene in scenes_of.scenes
        ]
        return coco_figures("boxes", detections, scenes_of.scenes)["bbox"]["map"]

    assert ap(scenes, 0) == pytest.approx(1)
    assert ap(scenes, 1) == pytest.approx(0)
    assert ap(merge_classes(scenes), 1) == pytest.approx(1)


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> nf.Run:
    pixels = np.stack([scene.pixels[..., :1] for scene in open_scenes("shapes:16:9").scenes])
    settings: dict[str, Any] = {"image_size": 16, "epochs": 1, "batch_size": 8, "device": "cpu", "workers": 0}
    out = tmp_path_factory.mktemp("detect") / "grey"
    return nf.pretrain("simclr", pixels, out, quiet=True, backbone="resnet8-w8", probe_every=0, **settings)


def test_grey_run_gets_luminance(grey: nf.Run, capsys: pytest.CaptureFixture[str]) -> None:
    colour = open_scenes("shapes:2")
    pixels = colour.in_channels(1).scenes[0].pixels
    expected = np.asarray(Image.fromarray(colour.scenes[0].pixels).convert("L"))
    assert np.abs(pixels[..., 0].astype(int) - expected).max() <= 1
    result = detect_run(
        grey, "shapes:6", size=48, epochs=1, batch_size=2, class_agnostic=True, baseline=False
    )
    assert result["settings"]["class_agnostic"]
    assert result["split"] == {"of": "shapes:6", "share": 0.2, "seed": 0}
    assert "class-agnostic" in table(result)
    assert "a held-out 20% of shapes:6" in table(result)
    progress = capsys.readouterr().err.splitlines()
    assert progress[0] == "detect: pretrained, seed 0: 3 steps of 2 images"
    assert progress[-1].startswith("epoch 1.0/1  loss ")
    assert main(["detect", str(grey.path), "--train", "shapes:2", "--seeds", "0"]) == 2
    assert "seeds was 0" in capsys.readouterr().err


def test_pascal_voc_is_read_as_its_coco_form(tmp_path: Path) -> None:
    """Pixels count from 1 and the last is included; difficult objects are ignored; a split is a list of ids."""
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (tmp_path / name).mkdir(parents=True)
    objects = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{x}</xmin><ymin>2</ymin>"
        "<xmax>12</xmax><ymax>20</ymax></bndbox></object>"
        for name, difficult, x in (("dog", 0, 1), ("cat", 1, 5))
    )
    for number in ("000001", "000002"):
        Image.new("RGB", (24, 30), (200, 20, 20)).save(tmp_path / "JPEGImages" / f"{number}.jpg")
        (tmp_path / "Annotations" / f"{number}.xml").write_text(f"<annotation>{objects}</annotation>")
    split = tmp_path / "ImageSets" / "Main" / "test.txt"
    split.write_text("000002\n")
    every, one = open_scenes(str(tmp_path)), open_scenes(str(split))
    assert (len(every), len(one)) == (2, 1)
    assert every.classes == ("cat", "dog")
    scene = one.scenes[0]
    assert scene.boxes.tolist() == [[0, 1, 12, 20], [4, 1, 12, 20]]
    assert scene.labels.tolist() == [1, 0]
    assert scene.crowd.tolist() == [False, True]
    split.write_text("../../../etc/passwd\n")
    with pytest.raises(UserError, match="is outside"):
        open_scenes(str(split))
    (tmp_path / "Annotations" / "000001.xml").write_text(
        '<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>'
    )
    with pytest.raises(UserError, match="cannot be read as an annotation of Pascal VOC"):
        open_scenes(str(tmp_path))
