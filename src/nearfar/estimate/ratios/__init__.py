"""Ratios r(x, y) for p(x, y) / (p(x) p(y)) that compete on unseen rows, and their mixture.

elliptic       Gaussian, Student's t
unmixed        Gaussian, of independent components
smooth         mixtures of Gaussians, kernels with nearest-neighbour widths
tables         counts drawn towards independence, rare levels pooled; a Gaussian for every level
ordered        levels as numbers, one of the others between them
association    two categories in an order, by a few products of their scores
atoms          numbers some values of which many rows share, the others between them
conditional    a prediction and how it misses, boosted trees for categories
line           a line through numbers with long tails
around         several numbers predicted, and how they miss
discriminator  boosted trees that tell rows from pairs that do not belong together
compressed     one of the others between the directions of many columns that predict the other side
network        what a network adds to the best of the others, for many rows of several columns
stack          log sum_k w_k r_k, weights by likelihood on rows the r_k were not fitted to
"""

from nearfar.estimate.ratios.halves import Half, HalfMap, Ratio
from nearfar.estimate.ratios.stack import CANDIDATES, Stack, fitted_stack, halved

__all__ = ["CANDIDATES", "Half", "HalfMap", "Ratio", "Stack", "fitted_stack", "halved"]
