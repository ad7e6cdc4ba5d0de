"""Optimisers: who is decayed, LARS and Muon against their formulas, and a resumed step equal to one never stopped."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearfar.bench.arms import our_session, pictures
from nearfar.core.optimisers import (
    LARS,
    MUON_RMS,
    build,
    clip,
    eager,
    load_state_tensors,
    orthogonalised,
    set_lr,
    state_tensors,
)
from nearfar.core.strategy import Strategy
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.run import checkpoints

SMALL_MUON: dict[str, Any] = {
    "optimizer": "muon",
    "lr": 0.1,
    "backbone": "resnet8-w8",
    "batch_size": 8,
    "epochs": 1,
}
NAMES = ["sgd", "adamw", "lars", "muon"]


class Net(nn.Module):
    """Every kind of parameter that the rule must tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.batch_norm = nn.BatchNorm2d(8)
        self.layer_norm = nn.LayerNorm((6, 6))  # a norm whose weight is two-dimensional
        self.group_norm = nn.GroupNorm(2, 8)
        self.linear = nn.Linear(8, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.tied = self.linear
        self.temperature = nn.Parameter(torch.tensor(0.1))
        self.bias = nn.Parameter(torch.zeros(2, 4))

    def forward(self, images: Tensor) -> Tensor:
        x = self.group_norm(self.layer_norm(self.batch_norm(self.conv(images)).relu()))
        x = self.frozen(self.linear(x.mean((2, 3)))) / self.temperature
        return (x + self.bias[0]).square().mean()


def net(memory_format: torch.memory_format = torch.contiguous_format) -> Net:
    torch.manual_seed(0)
    return Net().to(memory_format=memory_format)


def take_steps(module: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    for number in numbers:
        torch.manual_seed(number)
        set_lr(optimizer, 0.01 / (1 + number))
        optimizer.zero_grad()
        module(torch.randn(4, 3, 8, 8)).backward()
        optimizer.step()


def parameters(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


# ----------------------------------------------------------------------------------------- the groups


@pytest.mark.parametrize("name", NAMES)
def test_norms_biases_and_scalars_are_not_decayed_and_frozen_ones_not_trained(name: str) -> None:
    decayed, undecayed = build(name, net(), lr=0.1, weight_decay=0.5).param_groups
    assert decayed["param_names"] == ["conv.weight", "linear.weight"]
    assert undecayed["param_names"] == [
        "temperature",
        "bias",
        "conv.bias",
        "batch_norm.weight",
        "batch_norm.bias",
        "layer_norm.weight",
        "layer_norm.bias",
        "group_norm.weight",
        "group_norm.bias",
        "linear.bias",
    ]
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.5, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_without_gradient_only_the_decayed_shrink(name: str) -> None:
    module = net()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn_like(p))
    initial = parameters(module)
    optimizer = build(name, module, lr=0.1, weight_decay=0.5)
    for p in module.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    optimizer.step()
    for key, value in parameters(module).items():
        shrinks = key in ("conv.weight", "linear.weight")
        torch.testing.assert_close(value, initial[key] * (0.95 if shrinks else 1.0))


def test_a_module_of_one_kind_makes_one_group() -> None:
    assert [g["adapt"] for g in build("lars", nn.LayerNorm(4), lr=1.0, weight_decay=0.1).param_groups] == [
        False
    ]
    with pytest.raises(ValueError, match="no trainable parameter"):
        build("sgd", nn.ReLU(), lr=0.1, weight_decay=0.0)


@pytest.mark.parametrize(
    ("key", "given_settings"),
    [
        ("optimizer", {"name": "adam"}),
        ("optimizer", {"name": ""}),
        ("lr", {"lr": -1.0}),
        ("lr", {"lr": float("nan")}),
        ("weight_decay", {"weight_decay": float("inf")}),
        ("momentum", {"momentum": 1.0}),
    ],
)
def test_a_wrong_setting_is_named(key: str, given_settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"^{key} was"):
        build(**{"name": "sgd", "module": net(), "lr": 0.1, "weight_decay": 0.0, **given_settings})


def test_fused_kernels_serve_floats_only() -> None:
    assert all(g["fused"] for g in build("adamw", net(), lr=0.1, weight_decay=0.0).param_groups)
    module = nn.Linear(2, 2, dtype=torch.complex64)
    optimizer = build("adamw", module, lr=0.1, weight_decay=0.0)
    module(torch.ones(1, 2, dtype=torch.complex64)).abs().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_each_name_is_the_optimiser_of_that_name(name: str) -> None:
    ours, theirs = net(), net()
    reference: Callable[..., torch.optim.Optimizer] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[
        name
    ]
    options: dict[str, Any] = {"momentum": 0.8} if name == "sgd" else {"betas": (0.8, 0.999)}
    decayed = [p for key, p in theirs.named_parameters() if key in ("conv.weight", "linear.weight")]
    undecayed = [p for p in theirs.parameters() if p.requires_grad and all(p is not q for q in decayed)]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": undecayed, "weight_decay": 0.0}]
    for module, optimizer in (
        (ours, build(name, ours, lr=0.1, weight_decay=0.1, momentum=0.8)),
        (theirs, reference(groups, lr=0.1, foreach=False, **options)),
    ):
        torch.manual_seed(1)
        for _ in range(5):
            for p in module.parameters():
                p.grad = torch.randn_like(p) if p.requires_grad else None
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_the_rate_set_is_the_rate_used(name: str) -> None:
    module = net()
    optimizer = build(name, module, lr=0.1, weight_decay=0.1)
    initial = parameters(module)
    for lr in (0.0, 0.2):
        set_lr(optimizer, lr)
        module(torch.randn(4, 3, 8, 8)).backward()
        optimizer.step()
        moved = [key for key, p in parameters(module).items() if not p.equal(initial[key])]
        assert bool(moved) == bool(lr)


# ----------------------------------------------------------------------------------------------- LARS


def paper_step(
    w: Tensor, g: Tensor, v: Tensor, lr: float, momentum: float, decay: float, adapt: bool
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 of You et al. 2017: the local rate, then momentum with the global rate inside, then the
    step."""
    weight_norm, gradient_norm = (
        sum(x * x for x in w.flatten()) ** 0.5,
        sum(x * x for x in g.flatten()) ** 0.5,
    )
    local = 0.001 * weight_norm / (gradient_norm + decay * weight_norm) if adapt else 1.0
    v = momentum * v + lr * local * (g + (decay * w if adapt else 0.0))
    return w - v, v


@given(
    st.integers(0, 2**31),
    st.floats(0.01, 10),
    st.floats(0, 0.99),
    st.sampled_from([0.0, 1e-4, 0.3]),
    st.floats(1e-3, 1e3),
)
@settings(deadline=None, max_examples=50)
def test_lars_is_the_papers_formula(
    seed: int, lr: float, momentum: float, decay: float, scale: float
) -> None:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).double()
    optimizer = build("lars", module, lr=lr, weight_decay=decay, momentum=momentum)
    expected = [p.detach().clone() for p in module.parameters()]
    velocity = [torch.zeros_like(p) for p in expected]
    for _ in range(4):
        gradients = [torch.randn_like(p) * scale for p in expected]
        for i, p in enumerate(module.parameters()):
            p.grad = gradients[i].clone()
            expected[i], velocity[i] = paper_step(
                expected[i], gradients[i], velocity[i], lr, momentum, decay, p.ndim == 2
            )
        optimizer.step()
        for p, g in zip(module.parameters(), gradients, strict=True):
            assert p.grad is not None
            assert p.grad.equal(g)  # the gradients are the caller's
    for p, reference in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach(), reference, rtol=1e-9, atol=1e-9)


def test_lars_is_lightlys_under_a_schedule() -> None:
    lars = pytest.importorskip("lightly.utils.lars")
    ours, theirs = net(), net()
    groups = [
        {"params": [dict(theirs.named_parameters())[key] for key in group["param_names"]]}
        | {"weight_decay": group["weight_decay"]}
        for group in build("lars", ours, lr=1.0, weight_decay=0.1).param_groups
    ]
    take_steps(ours, build("lars", ours, lr=1.0, weight_decay=0.1), range(10))
    take_steps(theirs, lars.LARS(groups, lr=1.0, momentum=0.9), range(10))
    assert not ours.conv.weight.equal(net().conv.weight)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_lars_moves_every_layer_by_the_same_share_whatever_the_gradients_size() -> None:
    weights = [nn.Parameter(torch.randn(4, 4) * 10.0**k) for k in range(3)]
    initial = [w.detach().clone() for w in weights]
    for k, w in enumerate(weights):
        w.grad = torch.randn(4, 4) * 1000.0**k
    LARS(weights, lr=1.0).step()
    for w, old in zip(weights, initial, strict=True):
        torch.testing.assert_close((w.detach() - old).norm() / old.norm(), torch.tensor(0.001))


def test_lars_starts_from_zero_weights_and_skips_what_has_no_gradient() -> None:
    zero, still = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    zero.grad = torch.ones(2, 2)
    optimizer = LARS([zero, still], lr=0.5)
    optimizer.step()
    assert zero.eq(-0.5).all()
    assert still.eq(1).all()
    assert optimizer.step(lambda: 3.0) == 3.0


# ----------------------------------------------------------------------------------------------- Muon


def jordans_polynomial(values: Tensor) -> Tensor:
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return values


@given(st.integers(1, 40), st.integers(1, 40), st.floats(-8, 8), st.integers(0, 2**31))
@settings(deadline=None, max_examples=50)
def test_orthogonalising_changes_the_singular_values_alone(
    rows: int, columns: int, exponent: float, seed: int
) -> None:
    """Against a singular value decomposition: U S Vᵀ becomes U p(S / |S|) Vᵀ."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=generator, dtype=torch.float64) * 10**exponent
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    expected = u @ torch.diag(jordans_polynomial(s / s.norm())) @ vt
    torch.testing.assert_close(orthogonalised(matrix), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("precision", "tolerance"), [(None, 0.0), (torch.bfloat16, 0.04)])
def test_orthogonalised_singular_values_are_about_one(
    precision: torch.dtype | None, tolerance: float
) -> None:
    """In float32 and bfloat16 too, where one side of the matrix is small and the other large; singular values near zero
    stay below; a zero matrix stays zero."""
    u, _, vt = torch.linalg.svd(torch.randn(64, 300), full_matrices=False)
    for s in (torch.logspace(-2, 0, 64), torch.ones(64)):
        values = torch.linalg.svdvals(orthogonalised(u @ torch.diag(s) @ vt, precision))
        assert values.min() > 0.68 - tolerance
        assert values.max() < 1.21 + tolerance
    for s in (torch.logspace(-5, 0, 64), torch.eye(64)[0]):
        assert (
            torch.linalg.svdvals(orthogonalised(u @ torch.diag(s) @ vt, precision)).max() < 1.21 + tolerance
        )
    assert orthogonalised(torch.zeros(3, 5), precision).eq(0).all()


def test_muon_is_nesterovs_momentum_orthogonalised() -> None:
    """Three steps of a convolution and its bias against the formula, with an SVD in place of the iteration."""
    torch.manual_seed(0)
    module = nn.Conv2d(3, 8, 3).double().to(memory_format=torch.channels_last)
    optimizer = build("muon", module, lr=0.1, weight_decay=0.5, momentum=0.8)
    expected = [p.detach().clone() for p in module.parameters()]
    velocity = [torch.zeros_like(p) for p in expected]
    for _ in range(3):
        for i, p in enumerate(module.parameters()):
            p.grad = torch.randn_like(p)
            velocity[i] = 0.8 * velocity[i] + p.grad
            direction = p.grad + 0.8 * velocity[i]
            if p.ndim == 1:
                expected[i] = expected[i] - 0.1 * MUON_RMS * direction.sign()
                continue
            u, s, vt = torch.linalg.svd(direction.reshape(8, 27), full_matrices=False)
            update = u @ torch.diag(jordans_polynomial(s / s.norm())) @ vt * 27**0.5
            expected[i] = 0.95 * expected[i] - 0.1 * MUON_RMS * update.reshape(p.shape)
        optimizer.step()
    for p, reference in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach(), reference, rtol=1e-6, atol=1e-6)


def test_muon_moves_every_matrix_by_the_rate_in_root_mean_square() -> None:
    """Whatever its shape and the size of its gradient, as AdamW does."""
    for shape in ((32, 48), (256, 16), (16, 8, 3, 3)):
        module = nn.ParameterDict({"weight": torch.zeros(shape)})
        module["weight"].grad = torch.randn(shape) * 1e3
        build("muon", module, lr=1.0, weight_decay=0.0).step()
        assert 0.68 < module["weight"].detach().square().mean().sqrt() / MUON_RMS < 1.21


def test_a_session_multiplies_muons_matrices_in_its_precision() -> None:
    """A step in bfloat16 is near that in float32, and another one."""
    weights = {}
    for precision in (torch.float32, torch.bfloat16):
        session = our_session("simclr", open_data(pictures(16)), SMALL_MUON, precision)
        for parameter in session.method.parameters():
            parameter.grad = torch.sin(torch.arange(parameter.numel()) ** 1.5).view_as(parameter)
        session.optimizer.step()
        weights[precision] = torch.cat([p.detach().flatten() for p in session.method.parameters()])
    difference = (weights[torch.bfloat16] - weights[torch.float32]).abs().max()
    assert 0 < difference < 0.05 * SMALL_MUON["lr"]


def test_muon_refuses_parts_of_matrices() -> None:
    class Sharding(Strategy):
        def is_sharded(self, tensor: Tensor) -> bool:
            return True

    with pytest.raises(UserError, match="optimizer was muon with sharding=fsdp; it needs whole matrices"):
        build("muon", net(), lr=0.1, weight_decay=0.0, strategy=Sharding())


# --------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_resumed_optimiser_takes_bit_equal_steps(
    name: str, stop: int, memory_format: torch.memory_format, tmp_path_factory: pytest.TempPathFactory
) -> None:
    uninterrupted = net(memory_format)
    optimizer = build(name, uninterrupted, lr=1.0, weight_decay=0.1)
    take_steps(uninterrupted, optimizer, range(stop))
    saved = {f"module/{key}": value for key, value in uninterrupted.state_dict().items()}
    saved |= {f"optimizer/{key}": value for key, value in state_tensors(optimizer, uninterrupted).items()}
    tensors, _ = checkpoints.load(checkpoints.save(tmp_path_factory.mktemp("ckpt"), stop, saved, {}))
    take_steps(uninterrupted, optimizer, range(stop, stop + 4))

    resumed = net(memory_format)
    restored = build(name, resumed, lr=1.0, weight_decay=0.1)
    take_steps(resumed, restored, range(50, 52))  # whatever it was before is replaced
    halves = {
        kind: {k[len(kind) :]: v for k, v in tensors.items() if k.startswith(kind)}
        for kind in ("module/", "optimizer/")
    }
    resumed.load_state_dict(halves["module/"])
    load_state_tensors(restored, resumed, halves["optimizer/"])
    take_steps(resumed, restored, range(stop, stop + 4))

    for a, b in zip(uninterrupted.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert a.equal(b)
    states = state_tensors(optimizer, uninterrupted), state_tensors(restored, resumed)
    assert states[0].keys() == states[1].keys()
    assert all(states[0][key].equal(states[1][key]) for key in states[0])
    assert all(states[0][key].stride() == states[1][key].stride() for key in states[0])


def test_state_is_keyed_by_parameter_name_and_restored_as_a_copy() -> None:
    module = net()
    optimizer = build("adamw", module, lr=0.1, weight_decay=0.1)
    assert state_tensors(optimizer, module) == {}
    take_steps(module, optimizer, range(2))
    tensors = state_tensors(optimizer, module)
    assert tensors["step/conv.weight"] == 2
    assert tensors["exp_avg/linear.weight"].shape == (4, 8)
    assert not any("frozen" in key or "tied" in key for key in tensors)
    copied = copy.deepcopy(tensors)
    load_state_tensors(optimizer, module, copied)
    take_steps(module, optimizer, range(1))
    assert all(copied[key].equal(tensors[key]) for key in copied)
    assert copied["step/conv.weight"] == 2


@pytest.mark.parametrize(
    "tensors",
    [
        {"momentum_buffer/nowhere": torch.zeros(2)},
        {"momentum_buffer/frozen.weight": torch.zeros(4, 4)},
        {"momentum_buffer/conv.weight": torch.zeros(1)},
        {"step/conv.weight": torch.zeros(8, 3, 3, 3)},
        {"nonsense": torch.zeros(())},
    ],
)
def test_state_that_fits_no_parameter_is_refused_and_changes_nothing(tensors: dict[str, Tensor]) -> None:
    module = net()
    optimizer = build("sgd", module, lr=0.1, weight_decay=0.1)
    take_steps(module, optimizer, range(1))
    initial = copy.deepcopy(state_tensors(optimizer, module))
    with pytest.raises(UserError, match=next(iter(tensors))):
        load_state_tensors(optimizer, module, tensors)
    final = state_tensors(optimizer, module)
    assert all(initial[key].equal(final[key]) for key in initial)


# -------------------------------------------------------------------------------------------- clipping


@given(st.integers(0, 1000), st.one_of(st.none(), st.floats(0.01, 100)))
@settings(deadline=None, max_examples=40)
def test_clip_returns_the_norm_and_bounds_it(seed: int, max_norm: float | None) -> None:
    torch.manual_seed(seed)
    parts = [nn.Parameter(torch.zeros(3, k)) for k in (1, 4, 2)]
    for p in parts[:2]:
        p.grad = torch.randn_like(p)
    initial = [p.grad.clone() for p in parts if p.grad is not None]
    norm = torch.cat([g.flatten() for g in initial]).norm()
    assert float(clip(iter(parts), max_norm)) == pytest.approx(float(norm), rel=1e-5)
    factor = 1.0 if max_norm is None else min(1.0, max_norm / float(norm))
    for old, p in zip(initial, parts, strict=False):
        torch.testing.assert_close(p.grad, old * factor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_measuring_leaves_non_finite_gradients_as_they_are(bad: float) -> None:
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([bad, 1.0])
    assert not clip([p], None).isfinite()
    assert p.grad[1] == 1


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "fused": True}),
        (torch.optim.AdamW, {"amsgrad": True, "fused": True}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.LBFGS, {"max_iter": 3}),
    ],
)
def test_eager_optimisers_are_bit_equal_to_torchs(
    kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    results = []
    for make in (kind, eager(kind)):
        module = net()
        optimizer = make([p for p in module.parameters() if p.requires_grad], lr=0.01, **options)  # type: ignore[call-arg]

        def closure(module: Net = module, optimizer: torch.optim.Optimizer = optimizer) -> Any:
            optimizer.zero_grad()
            loss = module(torch.ones(4, 3, 8, 8).cumsum(0) / 4)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        assert torch.is_grad_enabled()
        results.append(parameters(module))
    for name, weight in results[0].items():
        assert torch.equal(weight, results[1][name]), name
