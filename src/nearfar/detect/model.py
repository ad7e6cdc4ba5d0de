"""torchvision's detectors on a pyramid of a backbone's stages, with heads small enough for a CPU."""

import numpy as np
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, KeypointRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads, KeypointRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

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


def detector(
    task: str,
    stages: Stages,
    *,
    classes: int,
    size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    frozen: bool,
    keypoints: int = 0,
) -> nn.Module:
    """`boxes`: Faster R-CNN, `masks`: Mask R-CNN, `keypoints`: Keypoint R-CNN; class 0 is the background."""
    names, levels = [str(level) for level in range(len(stages.channels))], len(stages.channels) + 1
    sizes_per_level = 1 if levels >= 5 else 2
    sides = (size * np.geomspace(MIN_ANCHOR, MAX_ANCHOR, levels * sizes_per_level)).reshape(
        levels, sizes_per_level
    )
    common = {
        "min_size": size,
        "max_size": 2 * size,
        "image_mean": list(mean),
        "image_std": list(std),
        "rpn_anchor_generator": AnchorGenerator(
            tuple(tuple(map(float, row)) for row in sides), ((0.5, 1.0, 2.0),) * levels
        ),
        "box_roi_pool": MultiScaleRoIAlign(names, 7, 2),
        "box_head": TwoMLPHead(WIDTH * 49, HIDDEN),
        "box_predictor": FastRCNNPredictor(HIDDEN, classes + 1),
        "rpn_pre_nms_top_n_train": 1000,
        "rpn_post_nms_top_n_train": 500,
        "rpn_pre_nms_top_n_test": 500,
        "rpn_post_nms_top_n_test": 300,
        "box_batch_size_per_image": 128,
        "box_score_thresh": MIN_SCORE,
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
