"""Information from samples (`estimate_mi` and what follows from it), from probabilities (`info`), and
densities learned by contrasting data with noise (`fit_density`)."""

from nearfar.estimate import info
from nearfar.estimate.chain import Derived, estimate_cmi, pointwise_mi, total_correlation
from nearfar.estimate.density import fit_density
from nearfar.estimate.divergence import Divergence, estimate_kl
from nearfar.estimate.fit import CriticTraining
from nearfar.estimate.laws import check_mi
from nearfar.estimate.matrix import MiMatrix, mi_matrix
from nearfar.estimate.mi import estimate_mi
from nearfar.estimate.result import Estimate
from nearfar.estimate.table import RankedColumn, mi_over_lags, rank_columns

__all__ = [
    "CriticTraining",
    "Derived",
    "Divergence",
    "Estimate",
    "MiMatrix",
    "RankedColumn",
    "check_mi",
    "estimate_cmi",
    "estimate_kl",
    "estimate_mi",
    "fit_density",
    "info",
    "mi_matrix",
    "mi_over_lags",
    "pointwise_mi",
    "rank_columns",
    "total_correlation",
]
