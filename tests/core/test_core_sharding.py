"""What FSDP2 would train as something else is refused before it is spread."""

import pytest
import torch
from torch import nn

from nearfar.distributed.sharding import _check, explained
from nearfar.errors import UserError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight


class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("network", "said"),
    [(Tied(), "a.weight and b.weight are one weight"), (Numbered(), "one number, and scale is")],
)
def test_weights_that_cannot_be_spread_are_named(network: nn.Module, said: str) -> None:
    with pytest.raises(UserError, match=said):
        _check(network)
    _check(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def test_a_weight_that_was_not_gathered_is_explained_and_nothing_else_is() -> None:
    with pytest.raises(UserError, match="without calling that part"), explained(sharded=True):
        raise RuntimeError("aten.mm.default: got mixed torch.Tensor and DTensor")
    for sharded, said in ((True, "shapes do not fit"), (False, "mixed torch.Tensor and DTensor")):
        with pytest.raises(RuntimeError, match=said), explained(sharded):
            raise RuntimeError(said)
