"""Detection: figures equal pycocotools', data are read as written, and a short schedule detects drawn
shapes."""

import contextlib
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
from nearfar.detect.model import Pyramid
from nearfar.detect.run import DetectorSchedule, _calibrate, _training_example, detect_run
from nearfar.detect.scenes import Scene, open_scenes
from nearfar.detect.score import OKS, coco_annotations, coco_detections, coco_figures
from nearfar.errors import UserError
from nearfar.parts.encoders import backbone
from nearfar.parts.encoders.stages import Stages


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> nf.Run:
    pixels = np.stack([scene.pixels for scene in open_scenes("shapes:32:9").scenes])
    out = tmp_path_factory.mktemp("detect") / "run"
    return nf.pretrain(
        "simclr", data=pixels, out=out, quiet=True, backbone="resnet8-w16", image_size=32, epochs=1,
        batch_size=16,
        device="cpu", workers=0,
    )  # fmt: skip


def guessed(scenes: tuple[Scene, ...]) -> list[dict[str, torch.Tensor]]:
    """Detections that are right, nearly right, doubled and made up: every branch of the figures."""
    rng = np.random.default_rng(0)
    detections = []
    for scene in scenes:
        count = len(scene.labels)
        rows = rng.integers(0, count, 2 * count)
        boxes = scene.boxes[rows] + rng.normal(0, 2, (len(rows), 4))
        masks = np.stack([np.roll(scene.masks[row], int(rng.integers(-3, 4)), axis=1) for row in rows])  # type: ignore[index]
        points = scene.keypoints[rows] + rng.normal(0, 1.5, (len(rows), 4, 3)) * (1, 1, 0)  # type: ignore[index]
        wrong = rng.random(len(rows)) < 0.2
        detections.append(
            {
                "boxes": torch.from_numpy(boxes.astype(np.float32)),
                "labels": torch.from_numpy(np.where(wrong, 1 - scene.labels[rows], scene.labels[rows]) + 1),
                "scores": torch.from_numpy(rng.random(len(rows)).astype(np.float32)),
                "masks": torch.from_numpy(masks[:, None].astype(np.float32)),
                "keypoints": torch.from_numpy(points.astype(np.float32)),
            }
        )
    return detections


def by_pycocotools(
    kind: str, predictions: list[dict[str, torch.Tensor]], scenes: tuple[Scene, ...]
) -> list[float]:
    """The reference implementation, on the same truth and detections as COCO's JSON."""
    from pycocotools import mask as runs
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def encoded(mask: np.ndarray) -> dict[str, Any]:
        return dict(runs.encode(np.asfortranarray(mask.astype(np.uint8))))

    annotations = coco_annotations("keypoints", scenes)
    masks = [mask for scene in scenes for mask in scene.masks]  # type: ignore[union-attr]
    for one, mask in zip(annotations["annotations"], masks, strict=True):
        one["segmentation"] = encoded(mask)
        if kind == "bbox":
            one["area"] = one["bbox"][2] * one["bbox"][3]
    detections = coco_detections("keypoints", predictions)
    flat = [
        (box, mask[0]) for one in predictions for box, mask in zip(one["boxes"], one["masks"], strict=True)
    ]
    for one, (box, mask) in zip(detections, flat, strict=True):
        x_min, y_min, x_max, y_max = box.tolist()
        if kind == "bbox":
            one["bbox"] = [x_min, y_min, x_max - x_min, y_max - y_min]
            del one["keypoints"]
        if kind == "segm":
            one["segmentation"] = encoded(mask.numpy() > 0.5)
            del one["keypoints"]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = annotations
        truth.createIndex()
        judge = COCOeval(truth, truth.loadRes(detections), kind)
        if kind == "keypoints":
            judge.params.kpt_oks_sigmas = np.full(4, OKS)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return [float(value) for value in judge.stats]


@pytest.mark.parametrize(("kind", "task"), [("bbox", "boxes"), ("segm", "masks"), ("keypoints", "keypoints")])
def test_figures_equal_pycocotools(kind: str, task: str) -> None:
    scenes = open_scenes("shapes:20:3").scenes
    detections = guessed(scenes)
    ours = coco_figures(task, detections, scenes)[kind]
    theirs = by_pycocotools(kind, detections, scenes)
    assert 0.02 < theirs[0] < 0.98, "neither nothing nor everything is found"
    names = ["map", "map_50", "map_75", "map_medium", "map_large"]  # the order of COCO's list
    if kind != "keypoints":
        names = [*names[:3], "map_small", *names[3:], "mar_1", "mar_10", "mar_100"]
    reference = {name: value for name, value in zip(names, theirs, strict=False) if value >= 0}
    assert ours == pytest.approx({name: reference[name] for name in ours}, abs=1e-6)
    assert set(reference) - set(ours) <= {"mar_1", "mar_10"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["masks", "keypoints"])
def test_short_schedule_detects_synthetic_shapes(task: str, run: nf.Run) -> None:
    """Far above zero: the schedule of a minute, and truth that is exact."""
    kind = "segm" if task == "masks" else "keypoints"
    # masks of simple shapes need fewer steps than the places of keypoints
    plan = {
        "size": 96,
        "epochs": 4 if task == "masks" else 6,
        "batch_size": 2,
        "fine_tune": True,
        "baseline": False,
    }
    result = detect_run(run, "shapes:24", "shapes:8:1", task=task, **plan)  # type: ignore[arg-type]
    assert result["pretrained"][kind]["map_50"] > 0.3
    assert result["pretrained"]["bbox"]["map_50"] > 0.3
    stored = json.loads((run.path / "detection.json").read_text())["results"]
    assert result in stored


def test_frozen_backbone_stays_fixed(run: nf.Run) -> None:
    """Weights and statistics of the encoder do not change, and no weight inside has a gradient."""
    initial = {key: value.clone() for key, value in run.encoder().state_dict().items()}
    detect_run(run, "shapes:4", "shapes:2:1", size=64, epochs=1, baseline=False)
    assert all(torch.equal(value, initial[key]) for key, value in run.encoder().state_dict().items())
    pyramid = Pyramid(Stages(run.encoder(), 3), frozen=True).train()
    assert not any(weight.requires_grad for weight in pyramid.stages.parameters())
    assert not any(part.training for part in pyramid.stages.modules())


@pytest.mark.parametrize(
    ("name", "size", "strides"),
    [("resnet8-w16", 32, [4, 8]), ("resnet18", 32, [4, 8]), ("resnet18", 96, [4, 8, 16, 32])],
)
def test_stages_end_with_the_features(name: str, size: int, strides: list[int]) -> None:
    """The mean of the last map is the pooled features: nothing is skipped."""
    body = backbone(name, 3, size).eval()
    stages = Stages(body, 3)
    assert stages.strides == strides
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        maps = list(stages(x).values())
        torch.testing.assert_close(maps[-1].mean((2, 3)), body(x), rtol=1e-4, atol=1e-5)
    assert [features.shape[1] for features in maps] == stages.channels


def test_c4_head_is_the_fourth_stage() -> None:
    """Wu et al. 2021, App. D, Faster R-CNN R18-C4: proposals on the map of layer3, layer4 over each of them; frozen, only
    layer4 and what stands on it learn."""
    from nearfar.detect.model import detector

    torch.manual_seed(0)
    body = backbone("resnet18", 3, 96).eval()
    model: Any = detector(
        "boxes", Stages(body, 3), head="c4", classes=2, size=64, mean=(0.5,) * 3, std=(0.25,) * 3, frozen=True
    )
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert list(model.backbone(x)["0"].shape) == [1, 256, 4, 4]
        whole = model.roi_heads.box_head(model.backbone(x)["0"])
        torch.testing.assert_close(whole, body(x), rtol=1e-4, atol=1e-5)
    target = {"boxes": torch.tensor([[8.0, 8.0, 40.0, 48.0]]), "labels": torch.tensor([1])}
    torch.stack(list(model.train()([x[0]], [target]).values())).sum().backward()
    learned = {
        name for name, weight in model.backbone.stages.body.named_parameters() if weight.grad is not None
    }
    assert learned
    assert all(name.startswith("layer4.") for name in learned)
    with pytest.raises(UserError, match="expected fpn, or c4 for boxes"):
        DetectorSchedule(task="masks", head="c4")


def test_calibration_sets_mean_statistics(run: nf.Run) -> None:
    """After it, the first batch norm's mean is that of the first convolution's output over the pictures."""
    from nearfar.detect.model import detector

    body = run.encoder()
    description: Any = run.description
    model = detector(
        "boxes", Stages(body, 3), classes=2, size=96, mean=description.mean, std=description.std, frozen=True
    )
    scenes = open_scenes("shapes:5")
    _calibrate(model, scenes, torch.device("cpu"))
    mean, std = (torch.tensor(values)[:, None, None] for values in (description.mean, description.std))
    inputs = [((torch.from_numpy(s.pixels).permute(2, 0, 1) / 255 - mean) / std)[None] for s in scenes.scenes]
    with torch.no_grad():
        expected = torch.stack([body.conv1(x).mean((0, 2, 3)) for x in inputs]).mean(0)  # type: ignore[operator]
    torch.testing.assert_close(body.bn1.running_mean, expected, rtol=1e-3, atol=1e-4)  # type: ignore[union-attr]


def test_synthetic_truth_is_exact_also_when_mirrored() -> None:
    scene = open_scenes("shapes:1:5").scenes[0]
    assert scene.masks is not None
    for mask, box in zip(scene.masks, scene.boxes, strict=True):
        rows, columns = np.nonzero(mask)
        tight = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        np.testing.assert_allclose(tight, box, atol=1.0)  # a pixel counts by its middle

    class Always:
        def random(self) -> float:
            return 0.0

    picture, target = _training_example(scene, "masks", Always(), torch.device("cpu"))  # type: ignore[arg-type]
    for mask, box in zip(target["masks"].numpy(), target["boxes"].numpy(), strict=True):
        rows, columns = np.nonzero(mask)
        np.testing.assert_allclose(
            [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], box, atol=1.0
        )
    np.testing.assert_allclose(picture[0].numpy()[:, ::-1], scene.pixels[..., 0] / 255, atol=1e-6)


def test_parquet_and_json_are_equivalent(tmp_path: Path) -> None:
    scene = open_scenes("shapes:1:2").scenes[0]
    file = io.BytesIO()
    Image.fromarray(scene.pixels).save(file, "PNG")
    (tmp_path / "a.png").write_bytes(file.getvalue())
    boxes = np.concatenate([scene.boxes[:, :2], scene.boxes[:, 2:] - scene.boxes[:, :2]], axis=1).tolist()
    corners = [[x, y, x + w, y, x + w, y + h, x, y + h] for x, y, w, h in boxes]
    points = scene.keypoints.reshape(len(boxes), -1).tolist()  # type: ignore[union-attr]
    objects = {
        "bbox": boxes,
        "category": scene.labels.tolist(),
        "segmentation": [[c] for c in corners],
        "keypoints": points,
    }
    table = pa.table({"image": [{"bytes": file.getvalue(), "path": "a.png"}], "objects": [objects]})
    pq.write_table(table, tmp_path / "a.parquet")
    annotations = [
        {
            "id": i,
            "image_id": 7,
            "category_id": 10 + label,
            "bbox": box,
            "segmentation": [corner],
            "keypoints": point,
            "iscrowd": 0,
        }
        for i, (label, box, corner, point) in enumerate(
            zip(scene.labels.tolist(), boxes, corners, points, strict=True)
        )
    ]
    document = {
        "images": [{"id": 7, "file_name": "a.png"}],
        "annotations": annotations,
        "categories": [{"id": 10, "name": "ellipse"}, {"id": 11, "name": "rectangle"}],
    }
    (tmp_path / "a.json").write_text(json.dumps(document))
    first, second = (open_scenes(str(tmp_path / name)).scenes[0] for name in ("a.parquet", "a.json"))
    for opened in (first, second):
        np.testing.assert_array_equal(opened.pixels, scene.pixels)
        np.testing.assert_allclose(opened.boxes, scene.boxes, atol=1e-4)
        np.testing.assert_array_equal(opened.labels, scene.labels)
        np.testing.assert_allclose(opened.keypoints, scene.keypoints, atol=1e-4)  # type: ignore[arg-type]
    np.testing.assert_array_equal(first.masks, second.masks)
    assert first.masks is not None
    area = (scene.boxes[:, 2] - scene.boxes[:, 0]) * (scene.boxes[:, 3] - scene.boxes[:, 1])
    np.testing.assert_allclose(first.masks.sum((1, 2)), area, rtol=0.15)
    assert open_scenes(str(tmp_path / "a.json")).classes == ("ellipse", "rectangle")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--train", "no.parquet", "--data", "shapes"], "no.parquet cannot be used for detection"),
        (["--train", "shapes:x", "--data", "shapes"], "shapes:IMAGES"),
        (["--train", "shapes:2", "--data", "shapes:2", "--task", "poses"], "--task was 'poses'"),
        (["--train", "shapes:2", "--data", "shapes:2", "--lr", "-1"], "lr was -1.0"),
        (["--train", "bad.json", "--data", "shapes:2"], "cannot be read as COCO's JSON"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str],
    sentence: str,
    run: nf.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text('{"images": 3}')
    assert main(["detect", str(run.path), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_long_training_reports_its_progress(run: nf.Run, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--train",
        "shapes:4",
        "--data",
        "shapes:2:1",
        "--epochs",
        "2",
        "--batch-size",
        "2",
        "--size",
        "32",
    ]
    assert main(["detect", str(run.path), *words, "--no-baselines"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("seed 0: 4 steps of 2 images")
    assert any(line.startswith("epoch 2.0/2  loss ") for line in lines)
    assert main(["detect", str(run.path), *words, "--no-baselines", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
