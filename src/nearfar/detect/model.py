"""torchvision's detectors on a pyramid of a backbone's stages, with heads small enough for a CPU."""

from typing import Any

import numpy as np
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, KeypointRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from nearfar.errors import UserError
from nearfar.parts.encoders.stages import Stages

WIDTH = 64  # channels of the pyramid and of the heads on masks and keypoints
HIDDEN = 256  # of the head on boxes
MIN_ANCHOR, MAX_ANCHOR = 0.04, 0.64  # sides of anchors as shares of the picture's
MIN_SCORE = 1e-3  # average precision needs the full ranking, and scores are low after a short schedule


class Pyramid(nn.Module):
    """Stages of a backbone with a feature pyramid on top.

    Batch norms of the backbone keep their statistics. With `frozen`, its weights stay fixed too.
    """

    def __init__(self, stages: Stages, frozen: bool) -> None:
        super().__init__()
        self.stages, self.frozen = stages, frozen
        self.fpn = FeaturePyramidNetwork(stages.channels, WIDTH, extra_blocks=LastLevelMaxPool())
        self.out_channels = WIDTH
        if frozen:
            stages.requires_grad_(False)

    def train(self, mode: bool = True) -> "Pyramid":
        super().train(mode)
        self.stages.eval()
        return self

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return self.fpn(self.stages(x))


class FourthStage(nn.Module):
    """The map of a ResNet's last stage but one, which a C4 detector stands on (Ren et al. 2015). Its last stage
    is the head on boxes (`FifthStage`) and is trained there, also with `frozen`."""

    def __init__(self, stages: Stages, frozen: bool) -> None:
        super().__init__()
        self.stages = stages
        if not hasattr(stages.body, "layer4"):
            raise UserError("head was c4, which needs a backbone of resnet18 to resnet152; use head fpn")
        stages.requires_grad_(not frozen)
        stages.body.layer4.requires_grad_(True)
        self.out_channels = int(stages.channels[-2])

    def train(self, mode: bool = True) -> "FourthStage":
        super().train(mode)
        self.stages.eval()
        return self

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        body: Any = self.stages.body
        x = body.maxpool(body.relu(body.bn1(body.conv1(x))))
        return {"0": body.layer3(body.layer2(body.layer1(x)))}


class FifthStage(nn.Module):
    """A ResNet's last stage over the places of each proposal, averaged; batch norms keep their statistics."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.last = last

    def train(self, mode: bool = True) -> "FifthStage":
        super().train(mode)
        self.last.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x).mean(dim=(2, 3))


def _anchors(levels: int, size: int) -> AnchorGenerator:
    """Anchors of three shapes at every level, whose sides grow geometrically over the levels."""
    per_level = 5 if levels == 1 else 1 if levels >= 5 else 2
    sides = (size * np.geomspace(MIN_ANCHOR, MAX_ANCHOR, levels * per_level)).reshape(levels, per_level)
    return AnchorGenerator(tuple(tuple(map(float, row)) for row in sides), ((0.5, 1.0, 2.0),) * levels)


def detector(
    task: str,
    stages: Stages,
    *,
    head: str = "fpn",
    classes: int,
    size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    frozen: bool,
    keypoints: int = 0,
) -> nn.Module:
    """`boxes`: Faster R-CNN, `masks`: Mask R-CNN, `keypoints`: Keypoint R-CNN; class 0 is the background.
    `head`: `fpn`, a pyramid of all stages, or `c4`, boxes alone."""
    names = ["0"] if head == "c4" else [str(level) for level in range(len(stages.channels))]
    common: dict[str, Any] = {
        "min_size": size,
        "max_size": 2 * size,
        "image_mean": list(mean),
        "image_std": list(std),
        "rpn_anchor_generator": _anchors(1 if head == "c4" else len(names) + 1, size),
        "box_score_thresh": MIN_SCORE,
        "rpn_pre_nms_top_n_train": 1000,
        "rpn_post_nms_top_n_train": 500,
        "rpn_pre_nms_top_n_test": 500,
        "rpn_post_nms_top_n_test": 300,
        "box_batch_size_per_image": 128,
    }
    if head == "c4":
        common |= {
            "box_roi_pool": MultiScaleRoIAlign(names, 14, 2),
            "box_head": FifthStage(stages.body.layer4),  # type: ignore[arg-type]
            "box_predictor": FastRCNNPredictor(stages.channels[-1], classes + 1),
        }
        return FasterRCNN(FourthStage(stages, frozen), **common)
    common |= {
        "box_roi_pool": MultiScaleRoIAlign(names, 7, 2),
        "box_head": TwoMLPHead(WIDTH * 49, HIDDEN),
        "box_predictor": FastRCNNPredictor(HIDDEN, classes + 1),
    }
    pyramid = Pyramid(stages, frozen)
    if task == "masks":
        return MaskRCNN(
            pyramid,
            mask_roi_pool=MultiScaleRoIAlign(names, 14, 2),
            mask_head=MaskRCNNHeads(WIDTH, (WIDTH, WIDTH), 1),
            mask_predictor=MaskRCNNPredictor(WIDTH, WIDTH, classes + 1),
            **common,
        )
    if task == "keypoints":
        return KeypointRCNN(
            pyramid,
            keypoint_roi_pool=MultiScaleRoIAlign(names, 14, 2),
            keypoint_head=KeypointRCNNHeads(WIDTH, (WIDTH,) * 3),
            keypoint_predictor=KeypointRCNNPredictor(WIDTH, keypoints),
            **common,
        )
    return FasterRCNN(pyramid, **common)
