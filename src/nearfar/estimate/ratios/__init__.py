"""Density ratios r(x, y) for p(x, y) / (p(x) p(y)), and their mixture.

sides         a side of a sample as ratios see it
gaussian      Gaussian, Student's t
smooth        mixtures of Gaussians
tables        tables of counts, a Gaussian per level
densities     the density of a number, alone and per level
regressions   splines, additive models
predictions   a prediction and the density of its residual
forest        neighbourhoods learned by random forests, for columns of any kind
network       a pair of small networks, for columns that act together
transforms    ratios between leading directions, independent components, categories as scores
blocks        a product over blocks of columns that depend on each other
candidates    all of them by name
stack         their mixture, weighted by likelihood on unseen rows
"""

from nearfar.estimate.ratios.candidates import CANDIDATES
from nearfar.estimate.ratios.sides import Fit, Ratio, SideMap, SideRows
from nearfar.estimate.ratios.stack import Stack, fit_stack

__all__ = ["CANDIDATES", "Fit", "Ratio", "SideMap", "SideRows", "Stack", "fit_stack"]
