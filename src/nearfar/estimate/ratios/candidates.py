"""The candidate ratios by name. Names appear in results (`Estimate.critic`).

A candidate is a family, alone or between transformed sides; its `fit` returns None where it does not apply.
"plain" in a name: fitted to scaled numbers instead of normal ranks. benchmarks/ablation.py decides which ones stay.
"""

from functools import partial

from nearfar.estimate.ratios.densities import LevelDensityRatio
from nearfar.estimate.ratios.forest import ForestRatio
from nearfar.estimate.ratios.gaussian import GaussianRatio, StudentRatio
from nearfar.estimate.ratios.network import NetworkRatio
from nearfar.estimate.ratios.predictions import MultivariateResidualRatio, ResidualRatio
from nearfar.estimate.ratios.sides import Fit, either_way, swapped
from nearfar.estimate.ratios.smooth import MixtureRatio
from nearfar.estimate.ratios.tables import LevelGaussianRatio, TableRatio
from nearfar.estimate.ratios.transforms import fit_leading, fit_scored, fit_unmixed

LEVELS = either_way(partial(LevelGaussianRatio.fit, scaled=False, own_covariance=False))
PREDICTED_SCALED = partial(ResidualRatio.fit, scaled=False, spread_varies=True)
PREDICTED_PLAIN = partial(ResidualRatio.fit, scaled=True, spread_varies=False)

CANDIDATES: dict[str, Fit] = {
    "gaussian": GaussianRatio.fit,
    "gaussian, plain": partial(GaussianRatio.fit, scaled=True),
    "gaussian, crossed": partial(GaussianRatio.fit, crossed=True),
    "gaussian, unmixed": fit_unmixed,
    "student": StudentRatio.fit,
    **{f"mixture of {k}": partial(MixtureRatio.fit, components=k) for k in (2, 4, 8, 16, 32)},
    "local": partial(MixtureRatio.fit_local, neighbours=20),
    "local, plain": partial(MixtureRatio.fit_local, neighbours=8, scaled=True),
    "table of 32": partial(TableRatio.fit, bins=32),
    "counts": partial(TableRatio.fit, bins=0),
    "levels, plain": either_way(partial(LevelGaussianRatio.fit, scaled=True, own_covariance=False)),
    "levels, own spread": either_way(partial(LevelGaussianRatio.fit, scaled=False, own_covariance=True)),
    "densities": either_way(partial(LevelDensityRatio.fit, scaled=True)),
    "y of x, scaled": PREDICTED_SCALED,
    "y of x, plain": PREDICTED_PLAIN,
    "x of y, scaled": swapped(PREDICTED_SCALED),
    "x of y, plain": swapped(PREDICTED_PLAIN),
    "columns of y round x": MultivariateResidualRatio.fit,
    "columns of x round y": swapped(MultivariateResidualRatio.fit),
    "shrunk, gaussian": partial(fit_leading, inner=GaussianRatio.fit),
    "shrunk, levels": partial(fit_leading, inner=LEVELS),
    "scored, mixture of 2": partial(fit_scored, inner=partial(MixtureRatio.fit, components=2)),
    "forest": ForestRatio.fit,
    "network": NetworkRatio.fit,
}

# candidates that are tried only where one of these leads: a network takes many times as long as the others, and does
# not help where a law of few parameters explains the rows
LEADERS: dict[str, tuple[str, ...]] = {
    "network": tuple(name for name in CANDIDATES if name.startswith(("mixture", "local", "shrunk", "forest")))
}

# of all columns together, where blocks of them are found: what needs no few columns
BESIDE_BLOCKS = {
    name: fit
    for name, fit in CANDIDATES.items()
    if name.startswith(("gaussian", "student", "shrunk", "scored", "forest", "network"))
}
