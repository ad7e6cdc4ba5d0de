"""What the examples share: scikit-learn's handwritten digits, two views of a batch, a small network, a kNN
probe."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from nearfar.evaluate.knn import knn_probe


def pictures() -> tuple[Tensor, Tensor]:
    """1,797 pictures of 8 x 8 in [0, 1], and which digit each is; training does not look at the latter."""
    data = load_digits()
    return torch.tensor(data.images[:, None] / 16, dtype=torch.float32), torch.tensor(data.target)


def view(images: Tensor) -> Tensor:
    """Turned, scaled and shifted a little, each picture in its own way, with some noise."""
    angle, scale = 0.3 * torch.randn(len(images)), 1 + 0.1 * torch.randn(len(images))
    turn = torch.stack([angle.cos() * scale, -angle.sin(), angle.sin(), angle.cos() * scale], dim=1)
    matrix = torch.cat([turn.view(-1, 2, 2), 0.15 * torch.randn(len(images), 2, 1)], dim=2)
    transformed = F.grid_sample(images, F.affine_grid(matrix, list(images.shape), False), align_corners=False)
    return transformed + 0.05 * torch.randn_like(transformed)


def network(width: int = 64) -> nn.Module:
    """8 x 8 pictures to `width` features."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, width),
    )  # fmt: skip


@torch.no_grad()
def score(encoder: nn.Module) -> float:
    """Share of held-out digits that their nearest neighbours in feature space tell rightly."""
    images, labels = pictures()
    probe = knn_probe(encoder.eval()(images), labels, seed=0)
    encoder.train()
    return probe
