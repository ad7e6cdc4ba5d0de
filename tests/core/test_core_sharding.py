"""Weights that FSDP2 would train differently are refused before they are sharded."""

import pytest
import torch
from torch import nn

from nearfar.core.strategy import SINGLE
from nearfar.distributed.sharding import check_weights, explained_errors
from nearfar.errors import UserError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Tied(), "cannot share one weight between a.weight and b.weight"),
        (Scalar(), "cannot split the scalar weight scale"),
    ],
)
def test_weights_that_cannot_be_sharded_are_named(network: nn.Module, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_weights(network)
    check_weights(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def test_only_the_error_of_a_weight_that_was_not_gathered_is_explained() -> None:
    mixed = "aten.mm.default: got mixed torch.Tensor and DTensor"
    with pytest.raises(UserError, match="uses weights of a submodule without calling it"), explained_errors():
        raise RuntimeError(mixed)
    with pytest.raises(RuntimeError, match="shapes do not fit"), explained_errors():
        raise RuntimeError("shapes do not fit")
    with pytest.raises(RuntimeError, match="mixed"), SINGLE.explained_errors():
        raise RuntimeError(mixed)
