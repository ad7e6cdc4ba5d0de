"""COCO figures of boxes, masks and keypoints, by faster-coco-eval."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.detect.scenes import Scene
from nearfar.system.extras import need

# boxes, scores, labels (from 1) and masks or keypoints, as torchvision gives them
Detections = dict[str, Tensor]

KINDS = {"boxes": ("bbox",), "masks": ("bbox", "segm"), "keypoints": ("bbox", "keypoints")}
# places in COCO's list of figures; keypoints have no small objects
FIGURES = {"map": 0, "map_50": 1, "map_75": 2, "map_small": 3, "map_medium": 4, "map_large": 5, "mar_100": 8}
KEYPOINT_FIGURES = {"map": 0, "map_50": 1, "map_75": 2, "map_medium": 3, "map_large": 4}
# tolerance of a keypoint as a share of the object size; COCO's sigmas for people are 0.025 to 0.107
OKS = 0.05


def coco_figures(
    task: str, detections_by_scene: Sequence[Detections], scenes: Sequence[Scene]
) -> dict[str, dict[str, float]]:
    """COCO figures by kind (`bbox`, `segm`, `keypoints`), without those that have no object."""
    return {kind: _figures(kind, detections_by_scene, scenes) for kind in KINDS[task]}


def _figures(
    kind: str, detections_by_scene: Sequence[Detections], scenes: Sequence[Scene]
) -> dict[str, float]:
    faster = need("faster_coco_eval")
    detections = coco_detections(kind, detections_by_scene)
    if not detections:
        return {"map": 0.0, "map_50": 0.0, "map_75": 0.0}
    options: dict[str, Any] = {}
    if kind == "keypoints":
        options["kpt_oks_sigmas"] = np.full(scenes[0].keypoints.shape[1], OKS)  # type: ignore[union-attr]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = faster.COCO(coco_annotations(kind, scenes))
        evaluator = faster.COCOeval_faster(truth, truth.loadRes(detections), iouType=kind, **options)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    places = KEYPOINT_FIGURES if kind == "keypoints" else FIGURES
    figures = {name: float(evaluator.stats[place]) for name, place in places.items()}
    return {name: value for name, value in figures.items() if value >= 0}


def coco_annotations(kind: str, scenes: Sequence[Scene]) -> dict[str, Any]:
    """The ground truth as COCO's JSON. The area of an object is that of its box; for masks and keypoints that
    of its mask, or half of the box without one."""
    annotations: list[dict[str, Any]] = []
    for place, scene in enumerate(scenes):
        for row, (box, label) in enumerate(zip(scene.boxes, scene.labels, strict=True)):
            x_min, y_min, x_max, y_max = map(float, box)
            area = (x_max - x_min) * (y_max - y_min)
            if kind != "bbox":
                area = area / 2 if scene.masks is None else float(scene.masks[row].sum())
            annotation = {
                "id": len(annotations) + 1,
                "image_id": place + 1,
                "category_id": int(label) + 1,
                "bbox": [x_min, y_min, x_max - x_min, y_max - y_min],
                "area": area,
                "iscrowd": int(scene.crowd[row]),
            }
            if kind == "segm" and scene.masks is not None:
                annotation["segmentation"] = _run_lengths(scene.masks[row])
            if kind == "keypoints" and scene.keypoints is not None:
                points = scene.keypoints[row]
                annotation["keypoints"] = points.astype(float).ravel().tolist()
                annotation["num_keypoints"] = int((points[:, 2] > 0).sum())
            annotations.append(annotation)
    images = [
        {"id": place + 1, "height": s.pixels.shape[0], "width": s.pixels.shape[1]}
        for place, s in enumerate(scenes)
    ]
    labels = sorted({one["category_id"] for one in annotations})
    categories = [{"id": label, "name": str(label)} for label in labels]
    return {"info": {}, "images": images, "annotations": annotations, "categories": categories}


def coco_detections(kind: str, detections_by_scene: Sequence[Detections]) -> list[dict[str, Any]]:
    return [
        {
            "image_id": place + 1,
            "category_id": int(one["labels"][row]),
            "score": float(one["scores"][row]),
            **_outline(kind, one, row),
        }
        for place, one in enumerate(detections_by_scene)
        for row in range(len(one["labels"]))
    ]


def _outline(kind: str, one: Detections, row: int) -> dict[str, Any]:
    if kind == "segm":
        return {"segmentation": _run_lengths(one["masks"][row, 0].cpu().numpy() > 0.5)}
    if kind == "keypoints":
        return {"keypoints": one["keypoints"][row].cpu().double().ravel().tolist()}
    x_min, y_min, x_max, y_max = one["boxes"][row].tolist()
    return {"bbox": [x_min, y_min, x_max - x_min, y_max - y_min]}


def _run_lengths(mask: np.ndarray) -> dict[str, Any]:
    return dict(need("faster_coco_eval.core.mask").encode(np.asfortranarray(mask.astype(np.uint8))))
