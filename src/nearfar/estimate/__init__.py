"""How much one thing tells about another: from samples (`estimate_mi`), from probabilities (`info`), and densities
learned by telling data from noise (`fit_density`)."""

from nearfar.estimate import info
from nearfar.estimate.consistency import check_mi
from nearfar.estimate.density import fit_density
from nearfar.estimate.fit import Training
from nearfar.estimate.mi import estimate_mi
from nearfar.estimate.result import Estimate

__all__ = ["Estimate", "Training", "check_mi", "estimate_mi", "fit_density", "info"]
