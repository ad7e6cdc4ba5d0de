"""Computing changes nothing: what a network writes to its buffers waits until the step is taken."""

import copy

import pytest
import torch
from torch import Tensor, nn

import nearfar as nf
from nearfar.core.abstract import AbstractEncoders
from nearfar.core.buffers import apply, deferred_buffers
from nearfar.parts.encoders import PerView, Shared


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(initial: dict[str, Tensor], module: nn.Module) -> bool:
    return all(torch.equal(initial[name], tensor) for name, tensor in module.state_dict().items())


class Counting(nn.Module):
    """A user's network with a norm that is not a torch class; it counts its inputs."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.norm = type("TheirNorm", (nn.BatchNorm1d,), {})(5)

    def forward(self, x: Tensor) -> Tensor:
        self.count += len(x)
        return self.norm(x)


NORMS = [nn.BatchNorm1d(5), nn.BatchNorm1d(5, momentum=0.4), nn.BatchNorm1d(5, momentum=None), Counting()]


@pytest.mark.parametrize("theirs", NORMS)
def test_deferred_statistics_equal_torchs(theirs: nn.Module) -> None:
    theirs = copy.deepcopy(theirs)
    ours = copy.deepcopy(theirs)
    for step in range(3):
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(step)) * 3 + 1
        initial = state_of(ours)
        with deferred_buffers(ours) as moved:
            out = ours(x)
        with deferred_buffers(ours):
            ours(x)  # a second look at the same batch must not count
        assert same(initial, ours)
        torch.testing.assert_close(out, theirs(x))
        apply(moved)
        assert same(state_of(theirs), ours)


def test_a_failed_pass_leaves_the_buffers_as_they_were() -> None:
    net = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(4, 2))
    initial, stored = state_of(net), net[0].running_mean
    with pytest.raises(RuntimeError), deferred_buffers(net):
        net(torch.randn(6, 5))
    assert same(initial, net)
    assert net[0].running_mean is stored


def test_buffers_in_eval_mode_do_not_change() -> None:
    net = nn.BatchNorm1d(5).eval()
    with deferred_buffers(net) as moved:
        net(torch.randn(6, 5))
    assert not moved


def convolutional_network(width: int = 6) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(width),
        nn.BatchNorm1d(width),
    )


@pytest.mark.parametrize("kind", ["shared", "momentum", "per-view"])
def test_buffers_of_any_network_change_only_in_advance(kind: str) -> None:
    """`forward` is pure, whatever batch norms the networks have; one step counts as one."""
    views = tuple(torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(v)) for v in (0, 1))
    networks = [convolutional_network(), convolutional_network()]
    for network in networks:
        network(views[0])  # lazy layers become real ones
    kinds: dict[str, AbstractEncoders] = {
        "shared": Shared(networks[0]),
        "momentum": nf.Momentum(networks[0], 0.5),
        "per-view": PerView(networks),
    }
    method = nf.Method(kinds[kind], nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE())
    batch = nf.Batch(views, torch.arange(8))
    initial = state_of(method)
    first, second = method(batch), method(batch)
    method.prime(batch)
    method.embed(views[0])
    assert same(initial, method)
    assert torch.equal(first.loss, second.loss)
    method.advance(first)
    final = method.state_dict()
    counts_values = [name for name in final if name.endswith("num_batches_tracked")]
    assert counts_values
    assert all(final[name] == initial[name] + 1 for name in counts_values)


def test_shared_growing_and_lazy_buffers() -> None:
    tied = nn.ModuleList([nn.BatchNorm1d(5), nn.BatchNorm1d(5)])
    tied[1].running_mean = tied[0].running_mean
    theirs = copy.deepcopy(tied)
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    with deferred_buffers(tied) as moved:
        tied[1](tied[0](x))
    theirs[1](theirs[0](x))
    apply(moved)
    assert same(state_of(theirs), tied)
    assert tied[0].running_mean is tied[1].running_mean

    class Growing(nn.Module):
        memory: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("memory", torch.zeros(0, 5))

        def forward(self, x: Tensor) -> Tensor:
            self.memory = torch.cat([self.memory, x.detach()])
            return x

    net = Growing()
    with deferred_buffers(net) as moved:
        net(x)
    assert len(net.memory) == 0
    apply(moved)
    assert torch.equal(net.memory, x)

    lazy = nn.LazyBatchNorm1d()
    with deferred_buffers(lazy):
        assert lazy(x).shape == x.shape
