"""How good features are, without a label.

    RankMe         exp H(s / sum s), s the singular values of the features           Garrido et al. 2023
    alpha-ReQ      the exponent a of the covariance's eigenvalues, l_j ~ j^-a        Agrawal et al. 2022
    LiDAR          RankMe of what views of one instance have in common               Thilak et al. 2024
    uniformity     log E e^(-2 |z - z'|^2) over pairs of instances, |z| = 1          Wang and Isola 2020
    alignment      E |z - z+|^2 over two views of one instance, |z| = 1              Wang and Isola 2020

Higher RankMe and LiDAR, and an alpha near 1, go with better probes between runs of one family; uniformity and alignment are losses: lower
is better. None of them says anything of a class.
"""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-7  # added to shares, as both papers do
DELTA = 1e-4  # added to the diagonal within instances (Thilak et al. 2024, App. D)
NEGLIGIBLE = 1e-10  # of the largest eigenvalue: smaller ones are float32 rounding of the features


def rankme(features: Float[Tensor, "row dim"]) -> float:
    """exp of the entropy of the singular values' shares: between 1 and the smaller side."""
    z = features.double()
    gram = z.T @ z if z.shape[1] <= len(z) else z @ z.T  # the same singular values, squared
    return smooth_rank(torch.linalg.eigvalsh(gram).clamp(min=0).sqrt())


def smooth_rank(values: Float64[Tensor, "value"]) -> float:
    share = values / values.sum().clamp(min=1e-300) + EPSILON
    return float(torch.exp(-(share * share.log()).sum()))


def alpha_req(features: Float[Tensor, "row dim"]) -> float:
    """Minus the slope of log eigenvalue over log rank, by least squares over all eigenvalues that are not rounding."""
    z = features.double() - features.double().mean(0)
    gram = z.T @ z if z.shape[1] <= len(z) else z @ z.T
    values = torch.linalg.eigvalsh(gram).flip(0)
    values = values[values > NEGLIGIBLE * values[0]]
    if len(values) < 2:
        return math.nan
    x, y = torch.arange(1, len(values) + 1).double().log(), values.log()
    x = x - x.mean()
    return float(-(x @ y) / (x @ x))


def lidar(views: Float[Tensor, "instance view dim"], delta: float = DELTA) -> float:
    """The smooth rank of S_w^-1/2 S_b S_w^-1/2: instances are the classes of a linear discriminant analysis, views their samples."""
    z = views.double()
    means = z.mean(1)
    between = torch.cov(means.T, correction=0)
    inner = (z - means[:, None]).flatten(0, 1)
    within = inner.T @ inner / len(inner) + delta * torch.eye(z.shape[2], dtype=torch.float64)
    factor = torch.linalg.cholesky(within)
    # similar to the symmetric form, so with its eigenvalues: L^-1 S_b L^-T, S_w = L L^T
    half = torch.linalg.solve_triangular(factor, between, upper=False)
    whole = torch.linalg.solve_triangular(factor, half.T, upper=False)
    return smooth_rank(torch.linalg.eigvalsh((whole + whole.T) / 2).clamp(min=0))


def uniformity(features: Float[Tensor, "row dim"], t: float = 2.0) -> float:
    """Over all pairs of different rows."""
    z = functional.normalize(features.double(), dim=1)
    squared = (2 - 2 * z @ z.T).clamp(min=0)
    rows = len(z)
    total = torch.exp(-t * squared).sum() - torch.exp(-t * squared.diagonal()).sum()
    return float(torch.log(total / (rows * (rows - 1))))


def alignment(first: Float[Tensor, "row dim"], second: Float[Tensor, "row dim"]) -> float:
    one, other = (functional.normalize(side.double(), dim=1) for side in (first, second))
    return float((one - other).square().sum(1).mean())


def measures_of(
    features: Float[Tensor, "row dim"], views: Float[Tensor, "instance view dim"] | None
) -> dict[str, float]:
    """All of them: of features in plain view, and of several views of each instance where there are any."""
    found = {"rankme": rankme(features), "alpha_req": alpha_req(features), "uniformity": uniformity(features)}
    if views is not None and views.shape[1] > 1:
        found |= {"lidar": lidar(views), "alignment": alignment(views[:, 0], views[:, 1])}
    return found
