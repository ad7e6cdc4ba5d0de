"""A protocol that needs the network: this file, and a line in `nearfar/evaluate/protocols.py`:  NETWORK_PROTOCOLS["mirror"] = mirror

    nearfar evaluate runs/a --protocol knn,mirror

How often an image and its mirror image have the same nearest neighbour in the training set: features of the images alone do not
say it, the network must be shown others.
"""

import torch
from torch import Tensor, nn

from nearfar.evaluate import Options, Subject
from nearfar.modalities.showing import plain_views


class Mirrored(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.flip(-1))


@torch.no_grad()
def mirror(subject: Subject, options: Options) -> dict[str, float]:
    network = subject.encoder.eval()

    def embedded(through: nn.Module, images: object) -> Tensor:
        views = plain_views(images, subject.plain, 256, 0)  # type: ignore[arg-type]
        return nn.functional.normalize(torch.cat([through(view.to(subject.device)) for view in views]), dim=1)

    known = embedded(network, subject.train.images)
    seen, flipped = (embedded(each, subject.test.images) for each in (network, Mirrored(network)))
    same = (seen @ known.T).argmax(dim=1) == (flipped @ known.T).argmax(dim=1)
    return {"top1": float(same.float().mean())}
