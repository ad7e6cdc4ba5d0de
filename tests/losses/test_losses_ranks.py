"""`nearfar.testing.assert_ranks_equal` finds planted mistakes of losses under several processes, and passes what is
right: our losses, and a loss written with torch's own gather."""

import importlib.util
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.losses import ClipLoss, NTXentLoss, SupConLoss
from nearfar.testing import LossEvaluation, RankComparison, RankResult, assert_ranks_equal
from tests.helpers import run_python

Gather = Callable[[Tensor], Tensor]


def with_gradient(rows: Tensor) -> Tensor:
    return torch.cat(dist_nn.all_gather(rows)) if dist.is_initialized() else rows


def without_gradient(rows: Tensor) -> Tensor:
    """The common mistake: torch.distributed.all_gather has no gradient."""
    if not dist.is_initialized():
        return rows
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.detach().contiguous())
    parts[dist.get_rank()] = rows
    return torch.cat(parts)


def contrast(anchors: Tensor, keys: Tensor, gather: Gather, misplaced: bool = False) -> Tensor:
    """Cross-entropy of each anchor's key among the keys of all ranks."""
    rank = dist.get_rank() if dist.is_initialized() and not misplaced else 0
    scores = F.normalize(anchors, dim=1) @ F.normalize(gather(keys), dim=1).T / 0.3
    return F.cross_entropy(scores, torch.arange(len(anchors)) + rank * len(anchors))


class Scaled(nn.Module):
    """A loss with a parameter, whose gradient is summed over ranks by mistake if `factor` says so."""

    def __init__(self, by_world: bool) -> None:
        super().__init__()
        self.scale, self.by_world = nn.Parameter(torch.tensor(2.0)), by_world

    def forward(self, anchors: Tensor, keys: Tensor) -> Tensor:
        value = self.scale * contrast(anchors, keys, with_gradient)
        world = dist.get_world_size() if dist.is_initialized() else 1
        return value / world if self.by_world else value


def of_world(gradient_only: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(anchors: Tensor, keys: Tensor) -> Tensor:
        value = contrast(anchors, keys, with_gradient)
        share = value / (dist.get_world_size() if dist.is_initialized() else 1)
        return value.detach() + share - share.detach() if gradient_only else share

    return loss


def peers_clip(images: Tensor, texts: Tensor, scale: Tensor, **options: Any) -> Tensor:
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    # its file alone: a rank need not import all of open_clip
    (folder,) = importlib.util.find_spec("open_clip").submodule_search_locations  # type: ignore[union-attr,misc]
    module = runpy.run_path(f"{folder}/loss.py")
    return module["ClipLoss"](rank=rank, world_size=world, **options)(images, texts, scale)


def pair(rows: int = 8, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, 5, dtype=dtype, generator=generator) for _ in range(2)]


ALONE = "each rank computes the loss of its own rows alone: nothing is gathered"
WRONG: dict[str, tuple[Any, list[str]]] = {
    "missing gradient": (
        lambda a, k: contrast(a, k, without_gradient),
        ["gradient at floating-point input 1 differs", "no gradient flows back through the rows"],
    ),
    "1 / world": (
        of_world(gradient_only=True),
        ["gradient at floating-point input 0 is 0.5 times that of one process: missing factor world size"],
    ),
    "1 / world of the loss": (
        Scaled(by_world=True),
        [
            "loss is 0.5 times that of one process: missing factor",
            "gradient at shared input or parameter 0 is 0.5",
        ],
    ),
    "misplaced target": (
        lambda a, k: contrast(a, k, with_gradient, misplaced=True),
        ["the loss", "targets are misplaced, add the number of the rank's first row"],
    ),
    "nothing gathered": (NTXentLoss(0.3), [ALONE]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_mistake_is_named(name: str) -> None:
    loss, messages = WRONG[name]
    with pytest.raises(AssertionError) as raised:
        assert_ranks_equal(loss, pair())
    for message in messages:
        assert message in str(raised.value)
    if name != "missing gradient":
        assert "no gradient" not in str(raised.value)
    if name != "misplaced target":
        assert "misplaced" not in str(raised.value)


def comparison(one: float, ranks: list[float], alone: list[float], rolled: float) -> RankComparison:
    """What one process and its ranks measured of a loss; every gradient is that of one process."""

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64)

    rows = torch.ones(2, 1, dtype=torch.float64)
    results = [
        RankResult(LossEvaluation(number(value), [rows[:1] * len(ranks)], []), number(of_next), number(0.0))
        for value, of_next in zip(ranks, [*ranks[1:], ranks[0]], strict=True)
    ]
    evaluation = LossEvaluation(number(one), [rows], [])
    return RankComparison(evaluation, number(rolled), [number(value) for value in alone], results, 1e-9)


def test_findings_say_no_more_than_was_measured() -> None:
    assert comparison(2.0, [1.0, 3.0], [0.0, 0.0], 2.0).findings() == []
    # a sum over rows needs no gathering
    half = "the loss is 0.5 times that of one process: missing factor world size"
    assert comparison(4.0, [1.0, 3.0], [1.0, 3.0], 4.0).findings() == [half]
    assert comparison(2.5, [1.0, 3.0], [1.0, 3.0], 2.5).findings()[1:] == [ALONE]
    assert comparison(1.0, [math.nan, 1.0], [0.0, 0.0], 1.0).findings() == ["the loss is not finite"]


def test_open_clip_needs_gather_with_grad() -> None:
    """Its default halves the gradient; local_loss with gather_with_grad is right."""
    inputs = [*(F.normalize(rows, dim=1) for rows in pair()), torch.tensor(4.0, dtype=torch.float64)]
    with pytest.raises(AssertionError, match=r"is 0\.5 times .* no gradient flows back"):
        assert_ranks_equal(peers_clip, inputs)
    assert_ranks_equal(lambda *rows: peers_clip(*rows, local_loss=True, gather_with_grad=True), inputs)
    assert_ranks_equal(ClipLoss(gather_distributed=True), inputs)


def test_three_ranks_labels_float32_and_parameters() -> None:
    assert_ranks_equal(Scaled(by_world=False), pair(6), world=3)
    rows, labels = pair(7, torch.float32)[0], torch.tensor([0, 1, 0, 2, 1, 0, 2])
    assert_ranks_equal(SupConLoss(gather_distributed=True), (rows, labels), world=3)


def test_a_rank_that_fails_is_reported() -> None:
    def loss(rows: Tensor) -> Tensor:
        if dist.is_initialized() and dist.get_rank() == 1:
            raise RuntimeError("out of ideas")
        return with_gradient(rows).sum()

    with pytest.raises(AssertionError, match="rank 1 failed: RuntimeError: out of ideas"):
        assert_ranks_equal(loss, pair()[0])


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Ranks do not run the script that calls the check."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom nearfar.losses import NTXentLoss\nfrom nearfar.testing import assert_ranks_equal\n"
        "loss = NTXentLoss(gather_distributed=True)\n"
        "assert_ranks_equal(lambda a, b: loss(a, b), torch.randn(2, 6, 3).unbind())\nprint('equal')\n"
    )
    assert run_python(str(script), check=True).stdout == "equal\n"


@pytest.mark.parametrize(
    ("inputs", "world"), [(torch.zeros(1, 2), 2), (torch.arange(4), 2), (torch.zeros(4, 2), 1)]
)
def test_bad_inputs_of_the_check_get_a_sentence(inputs: Tensor, world: int) -> None:
    with pytest.raises(UserError, match="Expected at least 2 ranks"):
        assert_ranks_equal(torch.sum, inputs, world)
