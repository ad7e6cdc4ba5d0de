"""Losses as arms: forward and backward at embeddings of 128 numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nearfar.bench.peers import Step, peer

DIM = 128


def differentiated(loss: Callable[[Tensor, Tensor], Tensor], n: int) -> Step:
    anchors, keys = (torch.randn(n, DIM, requires_grad=True) for _ in range(2))

    def step() -> None:
        anchors.grad = keys.grad = None
        loss(anchors, keys).backward()

    return step


def scaled(loss: Any) -> Callable[[Tensor, Tensor], Tensor]:
    unit, scale = functional.normalize, torch.tensor(10.0)
    return lambda anchors, keys: loss(unit(anchors), unit(keys), scale)


def ranking_step(n: int) -> Step:
    module = peer("sentence_transformers.sentence_transformer.losses.multiple_negatives_ranking")
    ranking = module.MultipleNegativesRankingLoss(model=None)
    return differentiated(lambda a, k: ranking.compute_loss_from_embeddings([a, k], None), n)
