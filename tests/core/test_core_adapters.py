"""Objects without our base classes as parts: their required methods are used and their declarations kept."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nearfar as nf
from nearfar.core.adapters import unwrapped
from nearfar.core.types import Batch


class Wrapping:
    """A part's behaviour without its base class."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __getattr__(self, name: str) -> Any:
        if name == "part":
            raise AttributeError(name)
        return getattr(self.part, name)

    def __call__(self, *arguments: Any) -> Any:
        return self.part(*arguments)


class Weighing(nn.Module):
    """A critic with a weight of its own and no base class."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def prepare(self, embedding: Tensor) -> Tensor:
        return embedding

    def pairs(self, anchors: Tensor, keys: Tensor, progress: nf.Progress) -> Tensor:
        return self.scale * (anchors * keys).sum(dim=1)

    def cross(self, anchors: Tensor, keys: Tensor, progress: nf.Progress) -> Tensor:
        return self.scale * anchors @ keys.T


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch(tuple(torch.randn(2, 8, 5, generator=generator)), torch.arange(8))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 4)


def parts(network: nn.Module) -> dict[str, Any]:
    return {
        "encoders": nf.Momentum(network),
        "critic": nf.Distance(0.5),
        "negatives": nf.Queue(16),
        "selection": nf.Ring(0.2, 0.8),
        "bound": nf.DonskerVaradhan(0.9),
        "prior": nf.VarianceCovariance(),
    }


@pytest.mark.parametrize("kind", ["encoders", "critic", "negatives", "selection", "bound", "prior", "all"])
def test_an_object_without_a_base_class_trains_like_the_part(kind: str) -> None:
    """Two steps, so that the changes of `advance` (slow copies, queue, running mean) are compared too."""
    losses = []
    for wrapped in (False, True):
        choice = parts(network())
        for name in choice if kind == "all" else (kind,):
            choice[name] = Wrapping(choice[name]) if wrapped else choice[name]
        method = nf.Method(**choice)
        for _ in range(3):
            outcome = method(batch())
            method.advance(outcome)
        losses.append(outcome.loss)
        assert method.certificate(8).ceiling == outcome.ceiling
    assert torch.equal(*losses)


def test_weights_of_a_wrapped_object_are_parameters_of_the_method() -> None:
    critic: Any = Weighing()
    method = nf.Method(network(), critic, nf.InBatch(), nf.Everyone(), nf.InfoNCE())
    method(batch()).loss.backward()
    assert any(weight is critic.scale for weight in method.parameters())
    assert critic.scale.grad is not None
    assert unwrapped(method.critic) is critic
    copied = copy.deepcopy(method)
    assert torch.equal(copied(batch()).loss, method(batch()).loss)


def test_a_bare_network_is_shared_by_anchors_and_keys() -> None:
    net = network()
    losses = [
        nf.Method(encoders, nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE())(batch()).loss
        for encoders in (net, nf.Shared(net))
    ]
    assert torch.equal(*losses)


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("encoders", "encode, backbone"),
        ("critic", "prepare, pairs, cross"),
        ("negatives", "candidates, sampling"),
    ],
)
def test_an_object_that_is_no_part_gets_one_sentence(kind: str, missing: str) -> None:
    choice = {**parts(network()), kind: object()}
    with pytest.raises(
        nf.UserError, match=f"{kind} was an object of type object, which has no {missing}; expected"
    ):
        nf.Method(**choice)


class Jitter(nn.Module, nf.AbstractViews):
    """A learned view: the second view is shifted by a learnt vector."""

    symmetric = False

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(5))

    def forward(self, instances: Tensor, seed: int, epoch: int, index: Any) -> tuple[Tensor, ...]:
        return instances, instances

    def transform(self, views: tuple[Any, ...], progress: nf.Progress) -> tuple[Any, ...]:
        return views[0], views[1] + self.shift


def test_a_learned_view_gets_a_gradient_and_sets_which_pairs_count() -> None:
    views = Jitter()
    method = nf.Method(network(), nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE(), views=views)
    assert [(pair.anchor, pair.key) for pair in method.pairs(batch())] == [(0, 1)]
    baseline = nf.Method(
        method.encoders, nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE(), symmetric=False
    )
    assert torch.equal(method(batch()).loss, baseline(batch()).loss)
    method(batch()).loss.backward()
    assert views.shift.grad is not None
    assert views.shift.grad.abs().sum() > 0
