"""SGD, AdamW, LARS and Muon with one shared rule: norms, biases and scalars are neither decayed nor adapted.

The learning rate is a schedule's value, set from outside before each step (`set_lr`). The state of an
optimiser is a flat mapping from "what/parameter name" to a tensor. So a checkpoint needs no pickle, and a
parameter is found by its name, not by its place in a list.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import SGD, AdamW, Optimizer

from nearfar.core.strategy import SINGLE, Strategy
from nearfar.errors import UserError

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
# the state of a parameter in torch's optimisers; any other optimiser has an attribute `state_names`
_STATE = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: steepest at zero
MUON_RMS = 0.2  # of an update, as AdamW's usually have (Liu et al. 2025)
LARGEST_LR = 10.0  # accepted in fine-tuning
MOMENTUM = 0.9  # where none is set
_FUSED_ON = ("cpu", "cuda", "mps", "xpu")
_Kind = TypeVar("_Kind", bound=Optimizer)


def eager(kind: type[_Kind]) -> type[_Kind]:
    """The same optimiser without torch's compiler, which the first call of a method would import: 1.4 CPU
    seconds.

    torch wraps these methods so that its compiler leaves them alone. Here they are without the wrapper, and
    compute the same. A method that has none stays as it is.
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad")}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {"__doc__": kind.__doc__, "step": step, **methods})


class _MomentumOptimizer(Optimizer):
    """An optimiser whose step is `update` of each group of weights that have a gradient."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            if weights:
                self.update(group, weights)
        return loss

    def update(self, group: Mapping[str, Any], weights: list[Tensor]) -> None:
        """Moves the weights of a group."""
        raise NotImplementedError

    def velocities(
        self, group: Mapping[str, Any], updates: list[Tensor], weights: list[Tensor]
    ) -> list[Tensor]:
        """v ← m v + update for each tensor of a group; v is its `momentum_buffer`, zero at first."""
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        velocities = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, updates)
        return velocities


class LARS(_MomentumOptimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017), for very large batches.

        λ = η |w| / (|g| + β |w|)        trust: η = `trust`, β = `weight_decay`
        v ← m v + λ (g + β w)            m = `momentum`
        w ← w - lr v

    A group with `adapt=False` has λ = 1, and so has a tensor whose weights or gradients are all zero. The
    paper keeps lr inside v; outside, as in torch's SGD and BYOL's optimiser, it is the same while lr is
    constant and follows the schedule at once when it is not.
    """

    def __init__(
        self, params: Any, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "adapt": True,
        }
        super().__init__(params, defaults)

    def update(self, group: Mapping[str, Any], weights: list[Tensor]) -> None:
        velocities = self.velocities(group, _scaled_gradients(weights, group), weights)
        torch._foreach_add_(weights, velocities, alpha=-group["lr"])


def _scaled_gradients(weights: list[Tensor], group: Mapping[str, Any]) -> list[Tensor]:
    """λ (g + β w) for each tensor of a group."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    updates = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
    if not group["adapt"]:
        return updates
    w, g = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, gradients))  # (tensor,)
    ratio = group["trust"] * w / (g + group["weight_decay"] * w)
    ratio = torch.where((w > 0) & (g > 0), ratio, 1.0)
    torch._foreach_mul_(updates, ratio.unbind())
    return updates


class Muon(_MomentumOptimizer):
    """Orthogonalised momentum (Jordan et al. 2024) for weights of two and more dimensions.

        v ← m v + g                      m = `momentum`
        u = g + m v                      Nesterov's look ahead
        w ← (1 - lr β) w - 0.2 lr √max(rows, columns) O(u)        β = `weight_decay`

    O replaces the singular values of a matrix by about one (`orthogonalised`); a convolution is the matrix of
    its output channels. The factor gives every update the root mean square that AdamW's usually have, so
    AdamW's rates fit (Liu et al. 2025). Norms, biases and scalars are diagonal matrices here, of which O is
    the sign.
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "adapt": True}
        super().__init__(params, {**defaults, "precision": None})

    def update(self, group: Mapping[str, Any], weights: list[Tensor]) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        velocities = self.velocities(group, gradients, weights)
        updates = list(torch._foreach_add(gradients, velocities, alpha=group["momentum"]))
        updates = [_muon_update(u, group["precision"]) if group["adapt"] else u.sign() for u in updates]
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, updates, alpha=-MUON_RMS * group["lr"])


def _muon_update(direction: Tensor, precision: torch.dtype | None) -> Tensor:
    """O(u) √max(rows, columns), whose root mean square is about one. Channels come last, as in the memory of a
    convolution on CPUs; O commutes with the order of columns."""
    channels_last = direction.movedim(1, -1)
    matrix = channels_last.flatten(1)
    update = orthogonalised(matrix, precision) * math.sqrt(max(matrix.shape))
    return update.view(channels_last.shape).movedim(-1, 1)


def orthogonalised(
    matrix: Float[Tensor, "row column"], precision: torch.dtype | None = None
) -> Float[Tensor, "row column"]:
    """U p(S / |S|) Vᵀ of the matrix U S Vᵀ, where p is `NEWTON_SCHULZ`, an odd polynomial, applied
    five times: between 0.68 and 1.21 for every singular value above 1/500 of the norm.

    `precision` bfloat16: products in bfloat16, twice as fast where the hardware computes in it, and values between
    0.64 and 1.25. Rounding makes small eigenvalues of x xᵀ negative, which more than three
    iterations would blow up; then x xᵀ is computed again.
    """
    short_side_first = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    short_side_first = short_side_first / short_side_first.norm().clamp(min=torch.finfo(matrix.dtype).tiny)
    is_half = precision is torch.bfloat16
    x = short_side_first.bfloat16() if is_half else short_side_first
    for iterations in (3, 2) if is_half else (5,):
        x = _newton_schulz(x @ x.T, iterations) @ x
    result = x.to(matrix.dtype)
    return result if matrix.shape[0] <= matrix.shape[1] else result.T


def _newton_schulz(gram: Float[Tensor, "row row"], iterations: int) -> Float[Tensor, "row row"]:
    """The product q(x xᵀ) of all iterations x ← a x + b (x xᵀ) x + c (x xᵀ)² x, by which x is multiplied in the
    end. Products of the smaller side are cheaper than those of the full matrix."""
    a, b, c = NEWTON_SCHULZ
    product = None
    for remaining in reversed(range(iterations)):
        factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal().add_(a)
        product = factor if product is None else factor @ product
        if remaining:
            gram = factor @ gram @ factor
    assert product is not None
    return product


def build(
    name: str,
    module: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    momentum: float | None = None,
    options: Mapping[str, Any] | None = None,
    scales: Mapping[str, float] | None = None,
    strategy: Strategy = SINGLE,
    precision: torch.dtype | None = None,
) -> Optimizer:
    """The optimiser `name` over the trainable parameters of `module`. `momentum` is 0.9 if not given, and
    AdamW's β₁; `options` are the builder's own parameters: for SGD `nesterov` and `dampening`, for AdamW
    `betas`, `eps` and `amsgrad`, for LARS `trust`. `scales`: parameters, by name, that learn at a multiple of
    the rate (`layer_scales`). `precision`: bfloat16 for Muon's matrix products in it (`orthogonalised`)."""
    if name not in OPTIMISERS:
        raise UserError(f"optimizer was {name!r}; expected one of {', '.join(OPTIMISERS)}")
    for key, value in (("lr", lr), ("weight_decay", weight_decay)):
        if not (math.isfinite(value) and value >= 0):
            raise UserError(f"{key} was {value}; it must be a finite number, at least 0")
    if momentum is not None and not 0 <= momentum < 1:
        raise UserError(f"momentum was {momentum}; it must be at least 0 and below 1")
    groups = _groups(module, weight_decay, scales or {}, strategy)
    for group in groups:
        group["precision"] = precision
    try:
        return OPTIMISERS[name](groups, lr, momentum, **(options or {}))
    except UserError:
        raise
    except ValueError as problem:  # torch names the option and its value
        settings = ", ".join(f"optimizer.{key}={value}" for key, value in (options or {}).items())
        raise UserError(
            f"optimizer={name} cannot take {settings or f'momentum={momentum}'}: {problem}"
        ) from None


def set_lr(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)


def layer_scales(module: nn.Module, backbones: Iterable[nn.Module], decay: float) -> dict[str, float]:
    """The multiple of the rate at which each parameter of the backbones learns, by its name in `module`:
    decay for the last stage of a backbone, decay^2 for the one before, and so on; what stands above them
    learns at the rate itself."""
    if decay == 1:
        return {}
    scale: dict[int, float] = {}
    for backbone in backbones:
        stages = _stages(backbone)
        for place, stage in enumerate(stages):
            scale |= {id(parameter): decay ** (len(stages) - place) for parameter in stage}
    return {name: scale[id(p)] for name, p in _trainable(module) if id(p) in scale}


def _stages(backbone: nn.Module) -> list[list[nn.Parameter]]:
    """Its parameters in the order they stand in it: a stage for each of its parts (the four of a ResNet, the
    stem before them). Where one list holds all blocks, as in a transformer, each block is a stage. Norms and
    loose parameters go with what they follow."""
    inside = list(backbone.children())
    if len(inside) == 1 and next(backbone.parameters(recurse=False), None) is None:  # a wrapper
        return _stages(inside[0])
    lists = [
        name
        for name, part in backbone.named_children()
        if isinstance(part, (nn.Sequential, nn.ModuleList)) and any(True for m in part for _ in m.children())
    ]
    stages: dict[str, list[nn.Parameter]] = {}
    last = ""
    for name, parameter in backbone.named_parameters():
        first, _, rest = name.partition(".")
        part = getattr(backbone, first)
        within = f"{first}.{rest.partition('.')[0]}"
        key = within if lists == [first] else first
        loose = isinstance(part, (nn.Parameter, *_NORMS))
        last = last if loose and last else key
        stages.setdefault(last, []).append(parameter)
    return list(stages.values())


def clip(parameters: Iterable[Tensor], max_norm: float | None, strategy: Strategy = SINGLE) -> Tensor:
    """The norm of all gradients together, which are scaled down to `max_norm` if they exceed it (None:
    never). It stays on its device, so that nothing waits for it here."""
    parameters = list(parameters)
    total = strategy.total_norm(p.grad for p in parameters if p.grad is not None)
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_([p for p in parameters if not strategy.is_sharded(p)], max_norm, total)
        for p in parameters:
            if strategy.is_sharded(p) and p.grad is not None:
                strategy.local_tensor(p.grad).mul_((max_norm / (total + 1e-6)).clamp(max=1.0))
    return total


def state_tensors(optimizer: Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state by parameter name, as "momentum_buffer/backbone.conv1.weight": live, not
    copied."""
    return {
        f"{key}/{name}": value
        for name, parameter in _trainable(module)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_state_tensors(
    optimizer: Optimizer, module: nn.Module, tensors: Mapping[str, Tensor], strategy: Strategy = SINGLE
) -> None:
    """Replace the optimiser's state by what `state_tensors` gave; the next step is then bit-equal.

    Call it when the module is on its device and in its memory format: fused kernels walk the memory of a
    weight and of its state side by side, so both must be laid out alike.
    """
    state_names = getattr(optimizer, "state_names", _STATE)
    parameters = dict(_trainable(module))
    fused = {p for group in optimizer.param_groups if group.get("fused") for p in group["params"]}
    state: dict[Tensor, dict[str, Tensor]] = {}
    for label, value in tensors.items():
        key, _, name = label.partition("/")
        parameter = parameters.get(name)
        shape = () if key == "step" or parameter is None else parameter.shape
        expected = torch.float32 if key == "step" or parameter is None else parameter.dtype
        if parameter is None or value.shape != shape or value.dtype is not expected or key not in state_names:
            raise UserError(
                f"The saved optimiser state {label!r} of shape {list(value.shape)} fits no parameter."
            )
        if key == "step":
            restored = value.to(parameter.device if parameter in fused else "cpu", copy=True)
        else:
            restored = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
            restored.copy_(strategy.shard_like(parameter, value))
        state.setdefault(parameter, {})[key] = restored
    if len({frozenset(names) for names in state.values()}) > 1:
        raise UserError(
            "The saved optimiser state is not complete: some parameters have more of it than others."
        )
    optimizer.state.clear()
    optimizer.state.update(state)


def _trainable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in module.named_parameters() if p.requires_grad)


def _groups(
    module: nn.Module, weight_decay: float, scales: Mapping[str, float], strategy: Strategy
) -> list[dict[str, Any]]:
    """Decayed parameters, then the others, of each multiple of the rate, each in the module's own order, with
    their names."""
    in_norms = {
        p for part in module.modules() if isinstance(part, _NORMS) for p in part.parameters(recurse=False)
    }
    # one kernel cannot update sharded and full weights together, so they are in separate groups
    kinds = [
        (decayed, scale, sharded)
        for scale in sorted({1.0, *scales.values()})
        for decayed in (True, False)
        for sharded in (False, True)
    ]
    groups: dict[tuple[bool, float, bool], list[tuple[str, nn.Parameter]]] = {kind: [] for kind in kinds}
    for name, parameter in _trainable(module):
        is_bias = name.rpartition(".")[2] == "bias"
        decayed = parameter.ndim >= 2 and not is_bias and parameter not in in_norms
        groups[decayed, scales.get(name, 1.0), strategy.is_sharded(parameter)].append((name, parameter))
    if not any(groups.values()):
        raise ValueError(f"{type(module).__name__} has no trainable parameter.")
    return [
        {
            "params": members,
            "weight_decay": weight_decay if decayed else 0.0,
            "adapt": decayed,
            "scale": scale,
            "sharded": sharded,
        }
        for (decayed, scale, sharded), members in groups.items()
        if members
    ]


# A builder's parameters after the first three are the options a user may set (`nearfar.config.schema`).


def _sgd(
    groups: list[dict[str, Any]],
    lr: float,
    momentum: float | None,
    nesterov: bool = False,
    dampening: float = 0.0,
) -> Optimizer:
    decay = MOMENTUM if momentum is None else momentum
    return eager(SGD)(
        groups, lr=lr, momentum=decay, nesterov=nesterov, dampening=dampening, fused=_can_fuse(groups)
    )


def _adamw(
    groups: list[dict[str, Any]],
    lr: float,
    momentum: float | None,
    betas: tuple[float, float] | None = None,
    eps: float = 1e-8,
    amsgrad: bool = False,
) -> Optimizer:
    if betas is not None and momentum is not None and momentum != betas[0]:
        raise ValueError(f"momentum={momentum} is its first beta, which is {betas[0]}")
    decays = betas or (MOMENTUM if momentum is None else momentum, 0.999)
    return eager(AdamW)(groups, lr=lr, betas=decays, eps=eps, amsgrad=amsgrad, fused=_can_fuse(groups))


def _lars(groups: list[dict[str, Any]], lr: float, momentum: float | None, trust: float = 0.001) -> Optimizer:
    if not (math.isfinite(trust) and trust > 0):
        raise ValueError(f"trust must be above 0, not {trust}")
    return eager(LARS)(groups, lr=lr, momentum=MOMENTUM if momentum is None else momentum, trust=trust)


def _muon(groups: list[dict[str, Any]], lr: float, momentum: float | None) -> Optimizer:
    if any(group["sharded"] for group in groups):
        raise UserError(
            "optimizer was muon with sharding=fsdp; it needs whole matrices, so use adamw or lars"
        )
    return eager(Muon)(groups, lr=lr, momentum=MOMENTUM if momentum is None else momentum)


def _can_fuse(groups: list[dict[str, Any]]) -> bool:
    """Checked here because torch raises only at the first step."""
    parameters = [p for group in groups for _, p in group["params"]]
    sharded = any(group["sharded"] for group in groups)
    return not sharded and all(p.is_floating_point() and p.device.type in _FUSED_ON for p in parameters)


OPTIMISERS: dict[str, Callable[..., Optimizer]] = {"sgd": _sgd, "adamw": _adamw, "lars": _lars, "muon": _muon}
