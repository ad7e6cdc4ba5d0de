"""Losses of the embeddings of a batch as a whole, added to that of the bound.

    VarianceCovariance   every dimension varies, no two vary together        VICReg
    CrossCorrelation     a dimension agrees with itself in another view, and with no other     Barlow Twins
    SIGReg               seen from any direction the cloud is normal         LeJEPA
    Adversarial          a discriminator cannot tell it from draws           Deep InfoMax

    Distillation         labels, a teacher's class scores and features    Hinton et al. 2015, Park et al. 2019

A prior reads embeddings as the networks return them, before predictor and critic, one matrix for each view.
It does not change the certificate.
"""

from collections.abc import Callable

from nearfar.core.abstract import AbstractPrior
from nearfar.parts.priors.distillation import Distillation
from nearfar.parts.priors.regularisers import Adversarial, CrossCorrelation, SIGReg, VarianceCovariance


def no_prior() -> None:
    """Embeddings may lie as they like."""


no_prior.equation, no_prior.remarks = "", ()  # type: ignore[attr-defined]
no_prior.conflict = AbstractPrior.conflict  # type: ignore[attr-defined]
PARTS: dict[str, Callable[..., AbstractPrior | None]] = {
    "none": no_prior,
    "variance-covariance": VarianceCovariance,
    "cross-correlation": CrossCorrelation,
    "sigreg": SIGReg,
    "adversarial": Adversarial,
    "distillation": Distillation,
}
