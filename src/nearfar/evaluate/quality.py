"""Quality of features without labels: in plain view, and over several draws of the training views.

    RankMe         exp H(s / sum s), s the singular values of the features           Garrido et al. 2023
    alpha-ReQ      the exponent a of the covariance's eigenvalues, l_j ~ j^-a        Agrawal et al. 2022
    LiDAR          RankMe of what views of one instance have in common               Thilak et al. 2024
    uniformity     log E e^(-2 |z - z'|^2) over pairs of instances, |z| = 1          Wang and Isola 2020
    alignment      E |z - z+|^2 over two views of one instance, |z| = 1              Wang and Isola 2020

Between runs of one family, higher RankMe and LiDAR and an alpha near 1 go with better probes. Uniformity and
alignment are losses: lower is better. None of them depends on classes.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn import functional

from nearfar.core.buffers import frozen
from nearfar.core.randomness import order
from nearfar.core.results import Figure, Measurement
from nearfar.core.types import Batch
from nearfar.data.stream import batch_of
from nearfar.data.training import HELD_OUT_DRAW
from nearfar.evaluate.held_out import HeldOutNats, held_out_estimate
from nearfar.evaluate.options import Options
from nearfar.evaluate.sets import Subject
from nearfar.modalities import DataSet
from nearfar.modalities.base import MakeViews
from nearfar.run.features import features

EPSILON = 1e-7  # added to shares, as both papers do
DELTA = 1e-4  # added to the diagonal within instances (Thilak et al. 2024, App. D)
NEGLIGIBLE = 1e-10  # of the largest eigenvalue: smaller ones are float32 rounding of the features
MAX_ROWS = 4096  # in plain view
MAX_INSTANCES, VIEWS = 512, 8  # in several views
BATCH = 256  # instances contrasted with one another


def rankme(features: Float[Tensor, "row dim"]) -> float:
    """exp of the entropy of the singular values' shares: between 1 and the smaller side."""
    z = features.double()
    gram = z.T @ z if z.shape[1] <= len(z) else z @ z.T  # the same singular values, squared
    return smooth_rank(torch.linalg.eigvalsh(gram).clamp(min=0).sqrt())


def smooth_rank(values: Float64[Tensor, "value"]) -> float:
    share = values / values.sum().clamp(min=1e-300) + EPSILON
    return float(torch.exp(-(share * share.log()).sum()))


def alpha_req(features: Float[Tensor, "row dim"]) -> float:
    """Minus the slope of log eigenvalue over log rank, by least squares."""
    z = features.double() - features.double().mean(0)
    gram = z.T @ z if z.shape[1] <= len(z) else z @ z.T
    values = torch.linalg.eigvalsh(gram).flip(0)
    values = values[values > NEGLIGIBLE * values[0]]
    if len(values) < 2:
        return math.nan
    x, y = torch.arange(1, len(values) + 1).double().log(), values.log()
    x = x - x.mean()
    return float(-(x @ y) / (x @ x))


def lidar(views: Float[Tensor, "instance view dim"]) -> float:
    """The smooth rank of S_w^-1/2 S_b S_w^-1/2, where instances are classes and views their samples."""
    z = views.double()
    means = z.mean(1)
    between = torch.cov(means.T, correction=0)
    inner = (z - means[:, None]).flatten(0, 1)
    within = inner.T @ inner / len(inner) + DELTA * torch.eye(z.shape[2], dtype=torch.float64)
    factor = torch.linalg.cholesky(within)
    # similar to the symmetric form, so with its eigenvalues: L^-1 S_b L^-T, S_w = L L^T
    half = torch.linalg.solve_triangular(factor, between, upper=False)
    similar = torch.linalg.solve_triangular(factor, half.T, upper=False)
    return smooth_rank(torch.linalg.eigvalsh((similar + similar.T) / 2).clamp(min=0))


def uniformity(features: Float[Tensor, "row dim"]) -> float:
    """log of the mean of e^(-2 d^2) over all pairs of different rows (Wang and Isola 2020)."""
    z = functional.normalize(features.double(), dim=1)
    squared = (2 - 2 * z @ z.T).clamp(min=0)
    rows = len(z)
    total = torch.exp(-2 * squared).sum() - torch.exp(-2 * squared.diagonal()).sum()
    return float(torch.log(total / (rows * (rows - 1))))


def alignment(first: Float[Tensor, "row dim"], second: Float[Tensor, "row dim"]) -> float:
    first, second = (functional.normalize(side.double(), dim=1) for side in (first, second))
    return float((first - second).square().sum(1).mean())


def measures_of(
    features: Float[Tensor, "row dim"], views: Float[Tensor, "instance view dim"] | None
) -> dict[str, float]:
    """All measures: of features in plain view, and of several views of each instance where there are any."""
    measures = {"rankme": rankme, "alpha_req": alpha_req, "uniformity": uniformity}
    values = {name: measure(features) for name, measure in measures.items()}
    if views is not None and views.shape[1] > 1:
        values |= {"lidar": lidar(views), "alignment": alignment(views[:, 0], views[:, 1])}
    return values


# ------------------------------------------------------------------------------------------- the protocol


def quality(subject: Subject, options: Options) -> Measurement:
    """All measures on the test instances, and the nats that two views of a complete method share."""
    instances: Any = subject.test.instances
    rows = np.sort(order(options.seed, 0, len(instances))[:MAX_ROWS])
    sample = instances.subset(rows) if isinstance(instances, DataSet) else instances
    plain_features = features(subject.encoder, sample, subject.plain_view, device=subject.device)
    several = None
    if subject.views is not None:
        several = view_features(
            subject.encoder, sample, subject.views, options.seed, subject.device, plain_features.shape[1]
        )
    values = measures_of(plain_features, several)
    figures = {name: Figure(value) for name, value in values.items() if math.isfinite(value)}
    details: dict[str, Any] = {"samples": len(sample)}
    estimate = _shared_information(subject, sample, options.seed)
    if estimate is not None:
        figures["nats"] = Figure(estimate.nats)
        certificate = estimate.certificate
        details |= {
            "error": estimate.error,
            "ceiling": certificate.ceiling,
            "certificate": {"status": certificate.status, "condition": certificate.condition},
        }
    return Measurement(figures, details)


@torch.no_grad()
def view_features(
    encoder: nn.Module,
    data: Any,
    views: MakeViews,
    seed: int,
    device: torch.device,
    width: int,
    instances: int = MAX_INSTANCES,
    draws: int = VIEWS,
) -> Float[Tensor, "instance view dim"] | None:
    """Features of several draws of the first training view; None if the encoder takes other views."""
    rows = np.arange(min(instances, len(data)))
    loaded = data.load(rows)
    parts = []
    with frozen(encoder) as network:
        for draw in range(draws):
            view = views(loaded, seed, HELD_OUT_DRAW + 8 + draw, rows)[0]
            try:
                embedded = network(view.to(device)).float().cpu()
            except RuntimeError:  # another number of channels: the encoder is made of one network per view
                return None
            if embedded.shape != (len(rows), width):
                return None
            parts.append(embedded)
    return torch.stack(parts, dim=1)


def _shared_information(subject: Subject, data: DataSet, seed: int) -> HeldOutNats | None:
    """The information that two views of these instances share, by the method's critic."""
    method, views = subject.method, subject.views
    if method is None or views is None or method.encoders.needs_labels:
        return None

    def batches() -> Iterator[Batch]:
        for rows in np.array_split(np.arange(len(data)), math.ceil(len(data) / BATCH)):
            view_tensors = views(data.load(rows), seed, HELD_OUT_DRAW, rows)
            if len(view_tensors) == 1 and not method.encoders.works_with_one_view:
                view_tensors = (*view_tensors, *views(data.load(rows), seed, HELD_OUT_DRAW + 1, rows))
            yield batch_of(data, view_tensors, rows).to(subject.device)

    return held_out_estimate(method, batches(), held_out=subject.unseen)
