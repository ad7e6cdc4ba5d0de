"""Batch norm over all ranks, for one rank: values, gradients and statistics are torch's in any layout."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from nearfar.distributed import batch_norm
from nearfar.distributed.batch_norm import synchronised_batch_norm


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def normed(
    x: Tensor, grad_output: Tensor, weights: tuple[Tensor, Tensor] | None, several: bool
) -> tuple[Tensor, ...]:
    x = x.detach().requires_grad_()
    learnt = [] if weights is None else [weight.detach().clone().requires_grad_() for weight in weights]
    kind = torch.float64 if x.dtype is torch.float64 else torch.float32
    running = torch.zeros(x.shape[1], dtype=kind), torch.ones(x.shape[1], dtype=kind)
    with synchronised_batch_norm() if several else nullcontext():
        weight, bias = learnt or (None, None)
        out = F.batch_norm(x, *running, weight, bias, training=True, momentum=0.3)
    return out, *torch.autograd.grad(out, [x, *learnt], grad_output), *running


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(6, 16, 8, 8), (5, 3, 7, 9), (2, 1030, 1, 1), (1, 4, 3, 2)])
@pytest.mark.parametrize("learnt", [True, False])
def test_batch_norm_of_one_rank_equals_torch(
    one_rank: None,
    shape: tuple[int, ...],
    layout: torch.memory_format,
    learnt: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_norm, "BLOCK", 100)  # several blocks, the last of them shorter
    draw = torch.Generator().manual_seed(0)
    x, grad_output = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
    weight, bias = (torch.randn(shape[1], generator=draw, dtype=torch.float64) for _ in range(2))
    x, weights = x.contiguous(memory_format=layout), (weight, bias) if learnt else None
    for ours, theirs in zip(
        normed(x, grad_output, weights, True), normed(x, grad_output, weights, False), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(9, 31), (4, 5, 11)])
def test_batch_norm_of_rows_and_sequences_equals_torch(one_rank: None, shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(1)
    x, grad_output = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
    for view in (x, x.movedim(1, -1).contiguous().movedim(-1, 1)):
        for ours, theirs in zip(
            normed(view, grad_output, None, True), normed(view, grad_output, None, False), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_batch_norm_keeps_half_precision(one_rank: None) -> None:
    """bfloat16 has 8 bits: numbers of order one agree to a few 2^-8."""
    draw = torch.Generator().manual_seed(2)
    x, grad_output = (torch.randn(8, 16, 4, 4, generator=draw).bfloat16() for _ in range(2))
    weights = torch.ones(16), torch.zeros(16)
    for ours, theirs in zip(
        normed(x, grad_output, weights, True), normed(x, grad_output, weights, False), strict=True
    ):
        assert ours.dtype is theirs.dtype
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2**-5, atol=2**-5)


def test_batch_norm_accepts_half_precision_weights(one_rank: None) -> None:
    draw = torch.Generator().manual_seed(3)
    x, grad_output = (torch.randn(8, 16, 4, 4, generator=draw).bfloat16() for _ in range(2))
    half = torch.ones(16).bfloat16(), torch.zeros(16).bfloat16()
    result = normed(x, grad_output, half, True)
    expected = normed(x, grad_output, (torch.ones(16), torch.zeros(16)), True)
    assert result[2].dtype is torch.bfloat16  # the gradient of a weight is of its kind
    torch.testing.assert_close(result[0], expected[0])


def test_a_rank_without_rows_adds_nothing() -> None:
    empty, one = torch.zeros(0, 3, 2, 2), torch.ones(3)
    assert [sums.tolist() for sums in batch_norm._sums(empty, empty, one, one, one, 1e-5)] == [[0.0] * 3] * 2


def test_a_second_derivative_is_refused(one_rank: None) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    with synchronised_batch_norm():
        out = F.batch_norm(x, None, None, training=True)
    (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
