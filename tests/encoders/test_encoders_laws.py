"""Encoders: slow copies follow, every backbone takes any size and channel count."""

import re
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nearfar.core.encoding import Encoding
from nearfar.core.networks import concatenate
from nearfar.core.schedules import START, Progress, linear
from nearfar.core.types import Batch, Pixels
from nearfar.errors import UserError
from nearfar.modalities.image.views import PIPELINES, Views
from nearfar.parts.encoders import HeadConfig, Momentum, Shared, backbone, pictured
from nearfar.parts.encoders.backbones import BACKBONES, parameters_of


def test_resnets_have_the_weights_of_the_thesis() -> None:
    """Sáez Maldonado 2021, Table 5: 23,520,842 with 3 x 3 kernels and stride 1 in the first layer, and a classifier of 10.
    Table 1 prints 11,400,000 for ResNet-18 with a classifier of 1,000, which is 11,689,512."""
    with torch.device("meta"):
        deep, shallow = backbone("resnet50", 3, 32), backbone("resnet18", 3, 224)
        reference = torchvision.models.resnet18()
    assert parameters_of(deep) + 2048 * 10 + 10 == 23_520_842
    entrance = deep.get_submodule("conv1")
    assert isinstance(entrance, nn.Conv2d)
    assert (entrance.kernel_size, entrance.stride) == ((3, 3), (1, 1))
    assert parameters_of(shallow) + 512 * 1000 + 1000 == parameters_of(reference) == 11_689_512


@pytest.mark.parametrize(
    "name",
    [
        *(
            "resnet8-w16",
            "resnet8-w32",
            "resnet6-w32",
            "resnet18",
            "resnet20",
            "resnet8x4",
            "wrn-16-2",
            "vgg8",
        ),
        *("mobilenetv2x0.5", "shufflenetv1", "shufflenetv2x0.5"),
    ],
)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32), (4, 33), (3, 96)])
def test_backbones_take_any_channels_and_size(name: str, channels: int, size: int) -> None:
    net = backbone(name, channels, size).eval()
    features = net(torch.randn(2, channels, size, size))
    assert features.shape == (2, net.dim)
    assert torch.isfinite(features).all()


def test_every_backbone_has_its_documented_weights_and_features() -> None:
    """He et al. 2016, Table 6, counts 0.27, 0.46, 0.66, 0.85 and 1.7 million for resnet20 to resnet110,
    Zagoruyko & Komodakis 2016,
    Table 5, 0.6 and 2.2 for WRN-40-1 and WRN-40-2, Zhang et al. 2018 about 1.9 with a classifier of 1000."""
    for name, about in BACKBONES.items():
        with torch.device("meta"):
            net = backbone(name)
        weights, features = re.match(r"(?:for CIFAR: )?([\d.]+ \w+) weights, (\d+) features", about).groups()  # type: ignore[union-attr]
        number, unit = weights.split()
        count = parameters_of(net) / {"thousand": 1e3, "million": 1e6}[unit]
        assert net.dim == int(features), name
        assert count == pytest.approx(float(number), abs=0.5 * 10 ** -len(number.partition(".")[2])), name


def test_small_images_keep_their_resolution() -> None:
    """The side of the last map for 32 pixels: by the strides that are left."""
    sides = {
        "resnet6-w32": 4,
        "resnet18": 4,
        "resnet20": 8,
        "wrn-16-2": 8,
        "vgg8": 4,
        "mobilenetv2": 4,
        "shufflenetv2": 4,
    }
    for name, side in sides.items():
        net = backbone(name).eval()
        observed: list[int] = []
        last = [m for m in net.modules() if isinstance(m, nn.Conv2d)][-1]
        last.register_forward_hook(lambda _, __, result, sides=observed: sides.append(result.shape[-1]))
        net(torch.zeros(1, 3, 32, 32))
        assert observed == [side], name


def test_a_wider_resnet_is_torchvisions_with_every_layer_wider() -> None:
    baseline, wide_net = backbone("resnet18").state_dict(), backbone("resnet18x2").state_dict()
    assert baseline.keys() == wide_net.keys()
    for name, weight in baseline.items():
        grown = [
            size * (2 if axis < 2 and not (name == "conv1.weight" and axis == 1) else 1)
            for axis, size in enumerate(weight.shape)
        ]
        assert list(wide_net[name].shape) == grown, name


def test_vgg_and_mobile_networks_take_torchvisions_weights() -> None:
    models = torchvision.models
    for name, theirs in (
        ("vgg13", models.vgg13_bn),
        ("mobilenetv2", models.mobilenet_v2),
        ("shufflenetv2", models.shufflenet_v2_x1_0),
    ):
        with torch.device("meta"):
            ours, original = backbone(name, 3, 96).state_dict(), theirs(weights=None).state_dict()
        mask = {
            key: value.shape for key, value in original.items() if not key.startswith(("classifier", "fc"))
        }
        assert {key: value.shape for key, value in ours.items()} == mask


def test_a_head_of_three_layers_has_the_layers_of_simclr_v2() -> None:
    """Linear, norm, ReLU twice, then linear; its middle layer is what comes before the second linear map."""
    net = HeadConfig(hidden=16, dim=8, layers=3).network(pictured("resnet8-w16", (3,), 8))
    kinds = [type(layer).__name__ for layer in net.head.children()]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert net(torch.randn(4, 3, 8, 8)).shape == (4, 8)
    with pytest.raises(UserError, match=r"encoders\.layers was 3 with encoders\.head=linear"):
        HeadConfig(head="linear", layers=3)
    with pytest.raises(UserError, match=r"encoders\.layers was 1"):
        HeadConfig(layers=1)


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


@pytest.mark.parametrize(
    "name", ["resnet9", "wrn-17-2", "resnet20x0", "vgg9", "timm/no_such_model", "os.system", "timm/../x", ""]
)
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


@given(
    views=st.integers(1, 4),
    rows=st.integers(0, 5),
    order=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    channels_last=st.booleans(),
)
def test_adjacent_views_are_not_copied(views: int, rows: int, order: list[int], channels_last: bool) -> None:
    """The result is torch.cat's for any views in any order; views that are adjacent in memory are not
    copied."""
    room = torch.arange(views * rows * 2 * 2 * 3.0).reshape(views, rows, 2, 2, 3)
    parts = [room[view % views] for view in order]
    if channels_last:
        parts = [part.permute(0, 3, 1, 2) for part in parts]
    joined = concatenate(parts)
    assert torch.equal(joined, torch.cat(parts))
    follows = [view % views for view in order] == list(range(order[0] % views, order[0] % views + len(order)))
    if rows:
        assert (joined.data_ptr() == parts[0].data_ptr()) == follows


def test_views_of_a_batch_are_embedded_where_they_were_made() -> None:
    observed: list[Tensor] = []
    pixels = Pixels(np.zeros((4, 8, 8, 3), np.uint8), np.full((4, 2), 8, np.int32))
    built = Views(PIPELINES["simclr"], 8, (0.5,) * 3, (0.5,) * 3)(pixels, 0, 0, np.arange(4))
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    network.register_forward_pre_hook(lambda module, sampling: observed.append(sampling[0]))
    Shared(network).encode(Batch(built, torch.arange(4)), [0], [1])
    assert observed[0].data_ptr() == built[0].data_ptr()
    assert torch.equal(observed[0], torch.cat(built))


class _Writes(nn.Linear):
    mechanism = "in place"

    def forward(self, x: Tensor) -> Tensor:
        match self.mechanism:
            case "in place":
                x.sub_(1.0)
            case "numpy":
                array = x.numpy()
                array -= 1.0
            case "data":
                x.data.sub_(1.0)
        return super().forward(x)


@pytest.mark.parametrize("mechanism", ["in place", "numpy", "data"])
@pytest.mark.parametrize("role", [Shared, Momentum])
@pytest.mark.parametrize(("views", "chunk"), [(1, None), (1, 2), (2, None)])
def test_a_network_that_writes_to_its_input_is_refused(
    role: type[Shared | Momentum], views: int, chunk: int | None, mechanism: str
) -> None:
    """Torch counts what is written in place; what goes by it shows in the first and last instance."""
    network = _Writes(3, 2)
    network.mechanism = mechanism
    batch, requested = Batch(tuple(torch.randn(views, 4, 3)), torch.arange(4)), range(views)
    with pytest.raises(UserError, match="changes its input in place"):
        Encoding(chunk=chunk).encode(role(network), batch, requested, requested)


def test_views_of_different_sizes_are_encoded_separately() -> None:
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
def test_heads_have_the_requested_width(head: str) -> None:
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
def test_bad_head_configs_get_a_sentence(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"encoders\."):
        HeadConfig(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["resnet8-w8", "resnet6-w32", "resnet20", "wrn-16-2", "shufflenetv1"])
@pytest.mark.parametrize("norms", ["group", "group-ws", "none"])
def test_other_norms_leave_instances_alone(name: str, norms: str) -> None:
    """No batch norm is left, and in training mode no embedding depends on the rest of its batch."""
    torch.manual_seed(0)
    net = backbone(f"{name}+{norms}", 3, 16).double().train()
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in net.modules())
    assert any(isinstance(layer, nn.GroupNorm) for layer in net.modules()) == (norms != "none")
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(net(x)[:1], net(x[:1]), rtol=1e-9, atol=1e-12)
    together = backbone(name, 3, 16).double().train()
    assert not torch.allclose(together(x)[:1], together(x[:2])[:1])


def test_standardised_weights_have_mean_zero_and_no_scale() -> None:
    """Qiao et al. 2019, Eq. 2 to 4: the output depends on the kernel's direction around its mean alone."""
    torch.manual_seed(0)
    net = backbone("resnet8-w8+group-ws", 3, 16).double()
    layer: Any = net.conv1
    weight, x = layer.weight.detach().clone(), torch.randn(2, 3, 9, 9, dtype=torch.float64)
    centred = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
    kernel = centred / centred.square().sum(dim=(1, 2, 3), keepdim=True).sqrt()
    torch.testing.assert_close(
        layer(x), torch.nn.functional.conv2d(x, kernel, padding=1), rtol=1e-6, atol=1e-7
    )
    output = layer(x)
    with torch.no_grad():
        layer.weight.copy_(3 * weight + 0.7)
    torch.testing.assert_close(layer(x), output, rtol=1e-6, atol=1e-7)


def test_unknown_norms_are_refused() -> None:
    with pytest.raises(UserError, match=r"backbone was 'resnet18\+layer'"):
        backbone("resnet18+layer")
