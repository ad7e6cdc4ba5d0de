"""COCO figures: average precision of boxes and masks by torchmetrics, of keypoints by faster-coco-eval."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearfar.detect.scenes import Scene
from nearfar.system.extras import need

# boxes, scores, labels (from 1) and masks or keypoints, as torchvision gives them
Detections = dict[str, Tensor]

FIGURES = ("map", "map_50", "map_75", "map_small", "map_medium", "map_large", "mar_100")
# tolerance of a keypoint as a share of the object size; COCO's sigmas for people are 0.025 to 0.107
OKS = 0.05
_KEYPOINT_FIGURES = ("map", "map_50", "map_75", "map_medium", "map_large")


def coco_figures(
    task: str, detections_by_scene: Sequence[Detections], scenes: Sequence[Scene]
) -> dict[str, dict[str, float]]:
    """COCO figures by kind (`bbox`, `segm`, `keypoints`), without those that have no object."""
    kinds = ("bbox", "segm") if task == "masks" else ("bbox",)
    result = {kind: _by_torchmetrics(kind, detections_by_scene, scenes) for kind in kinds}
    if task == "keypoints":
        result["keypoints"] = _of_keypoints(detections_by_scene, scenes)
    return result


def _by_torchmetrics(
    kind: str, detections_by_scene: Sequence[Detections], scenes: Sequence[Scene]
) -> dict[str, float]:
    need("faster_coco_eval")
    metric = need("torchmetrics.detection").MeanAveragePrecision(
        box_format="xyxy",
        iou_type=kind,
        backend="faster_coco_eval",
        # float64, as in COCO: an overlap of exactly 0.8 counts at threshold 0.8
        iou_thresholds=np.linspace(0.5, 0.95, 10).tolist(),
        rec_thresholds=np.linspace(0, 1, 101).tolist(),
    )
    for one, scene in zip(detections_by_scene, scenes, strict=True):
        predicted = {"scores": one["scores"], "labels": one["labels"], "boxes": one["boxes"]}
        target = {
            "labels": torch.from_numpy(scene.labels) + 1,
            "boxes": torch.from_numpy(scene.boxes),
            "iscrowd": torch.from_numpy(scene.crowd.astype(np.int64)),
        }
        if kind == "segm":
            assert scene.masks is not None
            predicted["masks"] = one["masks"][:, 0] > 0.5
            target["masks"] = torch.from_numpy(scene.masks)
        metric.update([predicted], [target])
    with contextlib.redirect_stdout(io.StringIO()):
        figures = metric.compute()
    return {name: float(figures[name]) for name in FIGURES if float(figures[name]) >= 0}


def keypoint_annotations(scenes: Sequence[Scene]) -> dict[str, Any]:
    """The ground truth as COCO's JSON; an area is that of the mask, or half of the box."""
    annotations: list[dict[str, Any]] = []
    points = 0
    for place, scene in enumerate(scenes):
        assert scene.keypoints is not None
        points = scene.keypoints.shape[1]
        for row, (box, label) in enumerate(zip(scene.boxes, scene.labels, strict=True)):
            left, top, right, bottom = map(float, box)
            area = (
                float(scene.masks[row].sum())
                if scene.masks is not None
                else (right - left) * (bottom - top) / 2
            )
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": place + 1,
                    "category_id": int(label) + 1,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": area,
                    "iscrowd": int(scene.crowd[row]),
                    "keypoints": scene.keypoints[row].astype(float).ravel().tolist(),
                    "num_keypoints": int((scene.keypoints[row, :, 2] > 0).sum()),
                }
            )
    labels = sorted({one["category_id"] for one in annotations})
    images = [
        {"id": place + 1, "height": s.pixels.shape[0], "width": s.pixels.shape[1]}
        for place, s in enumerate(scenes)
    ]
    names = [str(point) for point in range(points)]
    categories = [{"id": label, "name": str(label), "keypoints": names} for label in labels]
    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}


def keypoint_detections(detections_by_scene: Sequence[Detections]) -> list[dict[str, Any]]:
    return [
        {
            "image_id": place + 1,
            "category_id": int(label),
            "keypoints": points.double().ravel().tolist(),
            "score": float(score),
        }
        for place, one in enumerate(detections_by_scene)
        for points, score, label in zip(one["keypoints"].cpu(), one["scores"], one["labels"], strict=True)
    ]


def _of_keypoints(detections_by_scene: Sequence[Detections], scenes: Sequence[Scene]) -> dict[str, float]:
    faster = need("faster_coco_eval")
    detections = keypoint_detections(detections_by_scene)
    if not detections:
        return {"map": 0.0, "map_50": 0.0, "map_75": 0.0}
    points = scenes[0].keypoints.shape[1]  # type: ignore[union-attr]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = faster.COCO(keypoint_annotations(scenes))
        evaluator = faster.COCOeval_faster(
            truth, truth.loadRes(detections), iouType="keypoints", kpt_oks_sigmas=np.full(points, OKS)
        )
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    figures = zip(_KEYPOINT_FIGURES, np.asarray(evaluator.stats)[:5].tolist(), strict=False)
    return {name: float(value) for name, value in figures if value >= 0}
