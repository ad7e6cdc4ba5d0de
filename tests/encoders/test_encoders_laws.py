"""Encoders: slow copies follow, every backbone takes any size and channel count."""

import pytest
import torch
import torchvision
from torch import Tensor, nn

from nearfar.encoders import HeadConfig, Momentum, Shared, backbone, pictured
from nearfar.encoders.backbones import BACKBONES
from nearfar.errors import UserError
from nearfar.schedules import START, Progress, linear
from nearfar.types import Batch


@pytest.mark.parametrize("name", ["resnet8-w16", "resnet8-w32", "resnet18"])
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32), (4, 33), (3, 96)])
def test_backbones_take_any_channels_and_size(name: str, channels: int, size: int) -> None:
    net = backbone(name, channels, size).eval()
    features = net(torch.randn(2, channels, size, size))
    assert features.shape == (2, net.dim)
    assert torch.isfinite(features).all()


def test_every_named_backbone_is_built_with_its_width() -> None:
    widths = {name: backbone(name).dim for name in BACKBONES}
    assert widths == {
        "resnet8-w8": 64,
        "resnet8-w16": 128,
        "resnet8-w32": 256,
        "resnet18": 512,
        "resnet34": 512,
        "resnet50": 2048,
    }


def test_small_inputs_get_a_small_stem_and_large_ones_torchvisions_own_weights_fit() -> None:
    assert backbone("resnet18", 3, 32).state_dict()["conv1.weight"].shape == (64, 3, 3, 3)
    large = backbone("resnet18", 3, 224)
    theirs = torchvision.models.resnet18(weights=None)
    missing, unexpected = large.load_state_dict(theirs.state_dict(), strict=False)
    assert missing == []
    assert unexpected == ["fc.weight", "fc.bias"]
    theirs.fc = nn.Identity()
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(large.eval()(x), theirs.eval()(x))


def test_timm_models_by_name() -> None:
    pytest.importorskip("timm")
    net = backbone("timm/resnet10t", 1, 32).eval()
    assert net(torch.randn(2, 1, 32, 32)).shape == (2, net.dim)
    mobile = backbone("timm/mobilenetv3_small_050", 3, 32).eval()
    assert mobile(torch.randn(2, 3, 32, 32)).shape == (2, mobile.dim)
    vit = backbone("timm/test_vit", 3, 48).eval()
    assert vit(torch.randn(2, 3, 48, 48)).shape == (2, vit.dim)


@pytest.mark.parametrize("name", ["resnet9", "timm/no_such_model", "os.system", "timm/../x", ""])
def test_unknown_backbones_get_a_sentence(name: str) -> None:
    with pytest.raises(UserError, match="backbone was"):
        backbone(name)


def batch_of(*views: Tensor) -> Batch:
    return Batch(views, torch.arange(len(views[0])))


class Affine(nn.Module):
    """x -> w x, so that embeddings can be written down."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def test_momentum_follows_slowly_and_only_in_advance() -> None:
    """theta' <- m theta' + (1 - m) theta (Liu 2022, sec. 3.2.2)."""
    network = Affine(1.0)
    role = Momentum(network, 0.9)
    with torch.no_grad():
        network.weight.fill_(2.0)
    encoded = role.encode(batch_of(torch.ones(1, 1)), [0], [0])
    assert (encoded.anchors[0].item(), encoded.keys[0].item()) == (2.0, 1.0)
    role.advance(START)
    assert role.slow.state_dict()["weight"].item() == pytest.approx(0.9 * 1.0 + 0.1 * 2.0)
    assert not encoded.keys[0].requires_grad
    assert not any(p.requires_grad for p in role.slow.parameters())


def test_momentum_schedule() -> None:
    network = Affine(0.0)
    role = Momentum(network, linear(0.0, 1.0))
    with torch.no_grad():
        network.weight.fill_(8.0)
    role.advance(Progress(step=1, steps=2))
    assert role.slow.state_dict()["weight"].item() == 4.0


@pytest.mark.parametrize("stop", [True, False])
def test_stop_gradient(stop: bool) -> None:
    role = Shared(Affine(3.0), stop_gradient=stop)
    encoded = role.encode(batch_of(torch.ones(2, 1), torch.ones(2, 1)), [0], [1])
    assert encoded.keys[1].requires_grad is not stop


def test_one_forward_pass_for_all_views_gives_each_view_its_rows() -> None:
    torch.manual_seed(0)
    views = [torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)]
    encoded = Shared(Affine(2.0)).encode(batch_of(*views), [0, 1], [1, 2])
    for view, z in {**encoded.anchors, **encoded.keys}.items():
        torch.testing.assert_close(z, 2.0 * views[view])


def test_views_of_different_sizes_are_encoded_apart() -> None:
    net = HeadConfig(dim=8).network(pictured("resnet8-w16", (3,), 32)).eval()
    encoded = Shared(net).encode(
        batch_of(torch.randn(2, 3, 32, 32), torch.randn(2, 3, 16, 16)), [0, 1], [0, 1]
    )
    assert [encoded.anchors[v].shape for v in (0, 1)] == [(2, 8), (2, 8)]


def test_only_the_anchor_goes_through_the_predictor() -> None:
    role = Shared(Affine(2.0), predictor=Affine(5.0))
    encoded = role.encode(batch_of(torch.ones(1, 1)), [0], [0])
    assert (encoded.anchors[0].item(), encoded.keys[0].item()) == (10.0, 2.0)


@pytest.mark.parametrize("head", ["linear", "linear-norm", "mlp", "mlp-plain"])
def test_heads_have_the_width_asked_for(head: str) -> None:
    net = HeadConfig(head=head, hidden=32, dim=16).network(pictured("resnet8-w16", (3,), 32))  # type: ignore[arg-type]
    assert net(torch.randn(4, 3, 32, 32)).shape == (4, 16)
    norms = sum(isinstance(m, nn.BatchNorm1d) for m in net.head.modules())
    assert norms == (1 if head in ("linear-norm", "mlp") else 0)


def test_dropout_acts_in_training_only() -> None:
    net = HeadConfig(dropout=0.5).network(pictured("resnet8-w16", (3,), 32))
    x = torch.randn(4, 3, 32, 32)
    assert not torch.equal(net(x), net(x))
    net.eval()
    torch.testing.assert_close(net(x), net(x))


@pytest.mark.parametrize("bad", [{"dim": 0}, {"hidden": -1}, {"dropout": 1.0}])
def test_plans_that_cannot_be(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"encoders\."):
        HeadConfig(**bad)  # type: ignore[arg-type]
