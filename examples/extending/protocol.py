"""A protocol that needs the network: this file, and a line in `nearfar/evaluate/protocols.py`:
NETWORK_PROTOCOLS["mirror"] = mirror

    nearfar evaluate runs/a --protocol knn,mirror

How often an image and its mirror image have the same nearest neighbour in the training set. This needs the
network, because the features of mirrored images are not among those of the images."""

from typing import Any

import torch
from torch import Tensor, nn

from nearfar.core.results import Figure, Measurement
from nearfar.evaluate.options import Options
from nearfar.evaluate.sets import Subject
from nearfar.modalities.showing import plain_views


class Mirrored(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.flip(-1))


@torch.no_grad()
def mirror(subject: Subject, options: Options) -> Measurement:
    network = subject.encoder.eval()

    def embed(encoder: nn.Module, instances: Any) -> Tensor:
        views = plain_views(instances, subject.plain_view, 256, 0)
        return nn.functional.normalize(torch.cat([encoder(view.to(subject.device)) for view in views]), dim=1)

    keys = embed(network, subject.train.instances)
    queries, mirrored = (embed(encoder, subject.test.instances) for encoder in (network, Mirrored(network)))
    same = (queries @ keys.T).argmax(dim=1) == (mirrored @ keys.T).argmax(dim=1)
    return Measurement({"top1": Figure.share(float(same.float().mean()), len(same))})
