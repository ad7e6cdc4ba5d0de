"""Density ratios r(x, y) for p(x, y) / (p(x) p(y)), and their mixture.

sides         a side of a sample as ratios see it
gaussian      Gaussian, Student's t, Gaussian of independent components
smooth        mixtures of Gaussians, kernels
tables        tables of counts, a Gaussian per level, ordered scores
densities     the density of a number, alone and per level
regressions   splines, additive models, boosted trees
predictions   a prediction and the density of its residual
classifiers   boosted trees that classify levels, or pairs
transforms    ratios between transformed sides
network       a network that corrects the best of the others
candidates    all of them by name
stack         their mixture, weighted by likelihood on unseen rows
"""

from nearfar.estimate.ratios.sides import Fit, Ratio, SideMap, SideRows
from nearfar.estimate.ratios.stack import CANDIDATES, Stack, fit_stack, refit_on_half

__all__ = ["CANDIDATES", "Fit", "Ratio", "SideMap", "SideRows", "Stack", "fit_stack", "refit_on_half"]
