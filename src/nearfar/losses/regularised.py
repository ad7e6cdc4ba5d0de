"""Losses that pull two views together without negatives, some with a term on the embeddings as a whole."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from nearfar.core.scores import at_least_float32
from nearfar.distributed.gather import gather_layout
from nearfar.errors import UserError, check_number, check_whole
from nearfar.losses.scoring import check_gather, check_paired, described, positive_number
from nearfar.parts.priors.regularisers import (
    KNOTS,
    REACH,
    VARIANCE_EPS,
    SIGReg,
    correlation_error,
    covariance_energy,
    epps_pulley,
    standardised,
    variance_hinge,
)


class NegativeCosineSimilarity(nn.Module):
    """Minus the mean cosine of x0 and x1 along `dim` (Chen and He 2021, Eq. 1). Detach the target yourself.

    As `lightly.loss.NegativeCosineSimilarity`.
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x0: Float[Tensor, "*shape"], x1: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
        with torch.autocast(x0.device.type, enabled=False):
            x0, x1 = at_least_float32(x0), at_least_float32(x1)
            return -F.cosine_similarity(x0, x1, self.dim, self.eps).mean()


class VICRegLoss(nn.Module):
    """lambda |a - b|^2 / d + mu (v(a) + v(b)) / 2 + nu (c(a) + c(b)), v the hinge on the deviation of each
    dimension and c the sum of squared covariances over d (Bardes et al. 2022, Eq. 1-6). Of inputs (n, ..., dim)
    each place in between is a batch of its own, and v and c are averaged over places.

    As `lightly.loss.VICRegLoss`; the parts are those of `nf.VarianceCovariance`.
    """

    def __init__(
        self,
        lambda_param: float = 25.0,
        mu_param: float = 25.0,
        nu_param: float = 1.0,
        gather_distributed: bool = False,
        eps: float = VARIANCE_EPS,
    ) -> None:
        super().__init__()
        self.lambda_param, self.mu_param, self.nu_param, self.eps = lambda_param, mu_param, nu_param, eps
        self.gather_distributed = check_gather(gather_distributed)

    def forward(
        self, z_a: Float[Tensor, "n *place dim"], z_b: Float[Tensor, "n *place dim"]
    ) -> Float[Tensor, ""]:
        if z_a.shape != z_b.shape or z_a.ndim < 2:
            raise UserError(
                f"z_a was {described(z_a)} and z_b {described(z_b)}; expected one shape (n, ..., dim)"
            )
        with torch.autocast(z_a.device.type, enabled=False):
            a, b = check_paired(z_a=z_a.flatten(1), z_b=z_b.flatten(1))
            rows = gather_layout(len(a), a.device, self.gather_distributed)
            if rows.total < 2:
                raise UserError("z_a has 1 row; a variance needs at least 2")
            invariance = rows.mean((a - b).square().mean(dim=1))
            clouds = [rows.all_gather(view).unflatten(1, (-1, z_a.shape[-1])).unbind(1) for view in (a, b)]
            variance, covariance = torch.zeros_like(invariance), torch.zeros_like(invariance)
            for cloud in (*clouds[0], *clouds[1]):
                variance = variance + variance_hinge(cloud, self.eps) / len(clouds[0])
                covariance = covariance + covariance_energy(cloud) / len(clouds[0])
            return self.lambda_param * invariance + self.mu_param * variance / 2 + self.nu_param * covariance


class BarlowTwinsLoss(nn.Module):
    """sum_i (1 - C_ii)^2 + lambda sum_(i != j) C_ij^2, C the correlations over the batch between the dimensions of
    z_a and of z_b (Zbontar et al. 2021, Eq. 1-2).

    As `lightly.loss.BarlowTwinsLoss`; the parts are those of `nf.CrossCorrelation`. With `gather_distributed`,
    means and deviations are those of the rows of all ranks.
    """

    def __init__(self, lambda_param: float = 5e-3, gather_distributed: bool = False) -> None:
        super().__init__()
        self.lambda_param, self.gather_distributed = lambda_param, check_gather(gather_distributed)

    def forward(self, z_a: Float[Tensor, "n dim"], z_b: Float[Tensor, "n dim"]) -> Float[Tensor, ""]:
        with torch.autocast(z_a.device.type, enabled=False):
            views = check_paired(z_a=z_a, z_b=z_b)
            rows = gather_layout(len(z_a), z_a.device, self.gather_distributed)
            if rows.total < 2:
                raise UserError("z_a has 1 row; a correlation needs at least 2")
            first, second = (standardised(rows.all_gather(view)) for view in views)
            return correlation_error(first, second, self.lambda_param)


class SIGRegLoss(nn.Module):
    """The distance of embeddings (..., n, dim) from a standard normal distribution, seen from `num_vectors`
    random directions and averaged over leading dimensions: the statistic of `nf.SIGReg`, integrated over
    |t| <= t_max at `knots` values (Balestriero and LeCun 2025).

    As `lightly.loss.lejepa_loss.SIGReg`. Directions are a function of the number of calls in training, which
    is part of the state_dict, so they are equal on all ranks and after resuming; in evaluation they stay.
    """

    step: Tensor

    def __init__(
        self,
        *,
        knots: int = KNOTS,
        t_max: float = REACH,
        num_vectors: int = 1024,
        gather_distributed: bool = False,
    ) -> None:
        super().__init__()
        check_whole("knots", knots, 2)
        self.knots, self.t_max = knots, positive_number("t_max", t_max)
        self.num_vectors = int(positive_number("num_vectors", num_vectors))
        self.gather_distributed = check_gather(gather_distributed)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, proj: Float[Tensor, "*view n dim"]) -> Float[Tensor, ""]:
        if not isinstance(proj, Tensor) or proj.ndim < 2:
            raise UserError(f"proj was {described(proj)}; expected embeddings of shape (..., n, dim)")
        with torch.autocast(proj.device.type, enabled=False):
            by_row = at_least_float32(proj).movedim(-2, 0)
            rows = gather_layout(len(by_row), proj.device, self.gather_distributed)
            clouds = rows.all_gather(by_row).movedim(0, -2).reshape(-1, rows.total, proj.shape[-1])
            directions = SIGReg(directions=self.num_vectors).sketch(proj.shape[-1], int(self.step)).to(clouds)
            statistics = [epps_pulley(cloud, directions, self.knots, self.t_max) for cloud in clouds]
            if self.training:
                self.step += 1
            return torch.stack(statistics).mean()


class LeJEPALoss(nn.Module):
    """lambda SIGReg(all views) + (1 - lambda) |z - mean of the global views|^2 / dim, the second averaged over
    all views of all instances (Balestriero and LeCun 2025). Views are of shape (views, n, dim).

    As `lightly.loss.LeJEPALoss`.
    """

    def __init__(
        self,
        lambda_param: float = 0.05,
        gather_distributed: bool = False,
        sigreg_knots: int = KNOTS,
        sigreg_t_max: float = REACH,
        sigreg_num_vectors: int = 1024,
    ) -> None:
        super().__init__()
        check_number("lambda_param", lambda_param, 0, 1)
        self.lambda_param, self.gather_distributed = lambda_param, check_gather(gather_distributed)
        self.sigreg = SIGRegLoss(
            knots=sigreg_knots,
            t_max=sigreg_t_max,
            num_vectors=sigreg_num_vectors,
            gather_distributed=gather_distributed,
        )

    def forward(
        self, *, local_proj: Float[Tensor, "local n dim"], global_proj: Float[Tensor, "global n dim"]
    ) -> Float[Tensor, ""]:
        for name, views in (("local_proj", local_proj), ("global_proj", global_proj)):
            if views.ndim != 3 or not len(views) or views.shape[1:] != local_proj.shape[1:]:
                raise UserError(
                    f"{name} was {described(views)}; expected (views, n, dim), n and dim as in local_proj"
                )
        with torch.autocast(local_proj.device.type, enabled=False):
            views = at_least_float32(torch.cat([global_proj, local_proj]))
            centre = views[: len(global_proj)].mean(dim=0)
            rows = gather_layout(views.shape[1], views.device, self.gather_distributed)
            invariance = rows.mean((views - centre).square().mean(dim=(0, 2)))
            return self.lambda_param * self.sigreg(views) + (1 - self.lambda_param) * invariance
