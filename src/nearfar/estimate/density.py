"""Densities learned by classifying data against noise (Liu 2022, sec. 1, Sáez Maldonado 2021, ch. 4).

    fit_density(gaussian, data, noise)                       log p(u) = log p0(u; alpha) + c, c learned: -log Z
    fit_density(network, data, noise, partition="zero")      c = 0: the model is normalised, or becomes so
    fit_density(gaussian, data, noise, nu=100)               closer to maximum likelihood, more expensive

A model gives log p0(u; alpha) and need not integrate to one. Logistic regression of N data points against nu
N points of noise with a known density is optimal where the model is the density of the data, scale included.
So no integral is computed.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.estimate import settings

Partition = Literal["learned", "zero"]
Model = TypeVar("Model", bound=nn.Module)


@runtime_checkable
class NoiseDistribution(Protocol):
    """What data are contrasted with, such as a `torch.distributions.Distribution`."""

    def sample(self, sample_shape: torch.Size) -> Tensor: ...

    def log_prob(self, value: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Density(Generic[Model]):
    """A fitted model: log p(u) = model(u) - log_partition."""

    model: Model
    log_partition: float
    loss: float  # minus the objective of Liu 2022, Eq. 10, at the optimum found
    mass: float  # integral of p by importance weights of the noise; far from 1, p is not a density yet

    def log_prob(self, u: Float[Tensor, "point ..."]) -> Float[Tensor, "point"]:
        return self.model(u) - self.log_partition


def nce_loss(
    data: Float[Tensor, "point"], noise: Float[Tensor, "noise_point"], nu: float
) -> Float[Tensor, ""]:
    """Minus Liu 2022, Eq. 10: -mean log h(x) - nu mean log(1 - h(y)), h = p / (p + nu p_n) (Eq. 5, 6).

    `data` and `noise` are log-ratios G = log p - log p_n of the model to the noise (Sáez Maldonado 2021, Eq.
    8) at points of either kind; h = sigmoid(G - log nu).
    """
    shift = torch.as_tensor(nu, dtype=data.dtype, device=data.device).log()
    return F.softplus(shift - data).mean() + nu * F.softplus(noise - shift).mean()


def fit_density(
    model: Model,
    data: Float[Tensor, "point ..."],
    noise: NoiseDistribution,
    nu: float = 10.0,
    partition: Partition = "learned",
    *,
    steps: int = 500,
    seed: int = 0,
) -> Density[Model]:
    """Fits a copy of `model`, whose call gives log p0(u; alpha) for each point, to `data`.

    `nu`: points of noise per point of data (Liu 2022, Eq. 5); as it grows the gradient approaches that of
    maximum likelihood (Eq. 20-23). `partition`: whether c = -log Z is a parameter (Eq. 9) or zero (Eq. 22),
    which suits models that are normalised or flexible enough to become so. Full-batch L-BFGS for up to
    `steps` iterations. The same `seed` gives the same noise and the same fit.
    """
    _check(data, nu, partition, steps, seed)
    if not isinstance(model, nn.Module) or not isinstance(noise, NoiseDistribution):
        raise UserError(
            f"model was {type(model).__name__} and noise {type(noise).__name__}; a torch module and "
            "something with sample and log_prob, such as a torch distribution, are needed"
        )
    with torch.random.fork_rng(devices=[data.device] if data.is_cuda else []):
        torch.manual_seed(seed)
        contrast = noise.sample(torch.Size([max(1, round(nu * len(data)))])).to(data)
    if contrast.shape[1:] != data.shape[1:]:
        raise UserError(
            f"noise must be points like the data, of shape {tuple(data.shape[1:])}; they were "
            f"{tuple(contrast.shape[1:])}"
        )
    ratio = len(contrast) / len(data)  # nu after rounding
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()  # torch's L-BFGS takes no other layout
    scale = torch.zeros((), dtype=data.dtype, device=data.device, requires_grad=partition == "learned")
    log_noise_data = _log_noise(noise, data, "the data")
    log_noise_contrast = _log_noise(noise, contrast, "its own sample")

    def loss() -> Tensor:
        data_ratio = model(data) + scale - log_noise_data
        return nce_loss(data_ratio, model(contrast) + scale - log_noise_contrast, ratio)

    _check_model(model(data), data)
    parameters = [p for p in (*model.parameters(), scale) if p.requires_grad]
    final = _minimise(loss, parameters, steps) if parameters else float(loss().detach())
    with torch.no_grad():
        mass = float((model(contrast) + scale - log_noise_contrast).exp().mean())
    return Density(model, float(-scale.detach()), final, mass)


def _minimise(loss: Callable[[], Tensor], parameters: list[Tensor], steps: int) -> float:
    optimiser = torch.optim.LBFGS(
        parameters,
        max_iter=steps,
        max_eval=2 * steps,
        history_size=20,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)
    with torch.no_grad():
        final = float(loss())
    if not final < float("inf"):
        raise UserError(
            f"the fit diverged (its loss is {final}); start the model nearer to the data or use noise more "
            "like them"
        )
    return final


def _check(data: Tensor, nu: float, partition: str, steps: int, seed: int) -> None:
    if not isinstance(data, Tensor) or not data.is_floating_point() or data.ndim == 0 or len(data) == 0:
        raise UserError("data must be a floating-point tensor with one point per row and at least one row")
    if not torch.isfinite(data).all():
        raise UserError("data holds NaN or infinite numbers; leave such rows out")
    if isinstance(nu, bool) or not isinstance(nu, (int, float)) or not 0 < nu < float("inf"):
        raise UserError(f"nu was {nu!r}; expected a number above 0: points of noise per point of data")
    if nu * data.numel() > settings.MAX_NOISE:
        raise UserError(f"nu was {nu!r}; with {len(data)} points that is more noise than memory can hold")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UserError(f"seed was {seed!r}; expected a whole number")
    if partition not in ("learned", "zero"):
        raise UserError(f"partition was {partition!r}; expected learned or zero")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise UserError(f"steps was {steps!r}; expected a whole number from 1")


def _check_model(values: Tensor, data: Tensor) -> None:
    if values.shape != data.shape[:1]:
        raise UserError(
            f"model must give one log-density per point, {tuple(data.shape[:1])}; it gave "
            f"{tuple(values.shape)}"
        )
    if not torch.isfinite(values).all():
        raise UserError(
            "model gives NaN or infinite log-densities of the data before the fit; start it elsewhere"
        )


def _log_noise(noise: NoiseDistribution, points: Tensor, points_name: str) -> Float[Tensor, "point"]:
    """log p_n, which must be finite wherever there are data (Sáez Maldonado 2021, Thm 4.1)."""
    try:
        with torch.no_grad():
            values = noise.log_prob(points)
    except ValueError:  # torch.distributions: a point is outside the support
        values = points.new_full(points.shape[:1], -torch.inf)
    if values.shape != points.shape[:1]:
        raise UserError(
            f"noise.log_prob must give one number per point, {tuple(points.shape[:1])}; it gave "
            f"{tuple(values.shape)} (torch.distributions.Independent joins dimensions)"
        )
    if not torch.isfinite(values).all():
        raise UserError(
            f"noise has no density at some points of {points_name}; use noise that covers all the data"
        )
    return values.to(points.dtype)
