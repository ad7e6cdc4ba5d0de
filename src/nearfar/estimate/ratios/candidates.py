"""The candidate ratios by name. Names appear in results (`Estimate.critic`).

A candidate is a family, alone or between transformed sides; its `fit` returns None where it does not apply.
"plain" in a name: fitted to scaled numbers instead of normal ranks. benchmarks/ablation.py decides which ones stay.
"""

from functools import partial

from nearfar.estimate.ratios.densities import LevelDensityRatio
from nearfar.estimate.ratios.forest import ForestRatio
from nearfar.estimate.ratios.gaussian import GaussianRatio, StudentRatio, UnmixedRatio
from nearfar.estimate.ratios.predictions import MultivariateResidualRatio, ResidualRatio
from nearfar.estimate.ratios.scores import ScoredRatio
from nearfar.estimate.ratios.sides import Fit
from nearfar.estimate.ratios.smooth import MixtureRatio
from nearfar.estimate.ratios.tables import LevelGaussianRatio, TableRatio
from nearfar.estimate.ratios.transforms import ProjectedRatio

RIDGES = (0.1, 10.0)  # in mean variances of a column

ATOMS: dict[str, Fit] = {  # of the factors of an `AtomRatio`
    "counts": partial(TableRatio.fit, bins=0, strength=1.0),
    "levels": partial(LevelGaussianRatio.fit, scaled=False, own_covariance=False),
    "levels, own spread": partial(LevelGaussianRatio.fit, scaled=False, own_covariance=True),
    "gaussian": GaussianRatio.fit,
    "mixture of 2": partial(MixtureRatio.fit, components=2),
    "y of x": partial(ResidualRatio.fit, swapped=False, scaled=True, spread_varies=False),
}

FAMILIES: dict[str, Fit] = {
    "gaussian": GaussianRatio.fit,
    "gaussian, plain": partial(GaussianRatio.fit, scaled=True),
    "gaussian, crossed": partial(GaussianRatio.fit, crossed=True),
    "gaussian, unmixed": UnmixedRatio.fit,
    "student": StudentRatio.fit,
    **{f"mixture of {k}": partial(MixtureRatio.fit, components=k) for k in (2, 4, 8, 16, 32)},
    "local": partial(MixtureRatio.fit_local, neighbours=20),
    "local, plain": partial(MixtureRatio.fit_local, neighbours=8, scaled=True),
    **{f"table of {b}": partial(TableRatio.fit, bins=b, strength=2.0) for b in (4, 32)},
    "counts": partial(TableRatio.fit, bins=0, strength=1.0),
    "counts, discounted": partial(TableRatio.fit, bins=0, strength=None),
    "levels, plain": partial(LevelGaussianRatio.fit, scaled=True, own_covariance=False),
    "levels, own spread": partial(LevelGaussianRatio.fit, scaled=False, own_covariance=True),
    "densities": partial(LevelDensityRatio.fit, scaled=True),
    **{
        f"{'x of y' if swapped else 'y of x'}, {'plain' if plain else 'scaled'}": partial(
            ResidualRatio.fit, swapped=swapped, scaled=plain, spread_varies=not plain
        )
        for swapped in (False, True)
        for plain in (False, True)
    },
    "columns of y round x": partial(MultivariateResidualRatio.fit, swapped=False),
    "columns of x round y": partial(MultivariateResidualRatio.fit, swapped=True),
    **{
        f"shrunk by {ridge:g}, {name}": partial(ProjectedRatio.fit_ridge, ridge=ridge, inner=inner)
        for ridge in RIDGES
        for name, inner in (
            ("gaussian", GaussianRatio.fit),
            ("levels", partial(LevelGaussianRatio.fit, scaled=False, own_covariance=False)),
        )
    },
    **{
        f"scored, mixture of {k}": partial(ScoredRatio.fit, inner=partial(MixtureRatio.fit, components=k))
        for k in (2, 8)
    },
    "forest": ForestRatio.fit,
}

# of all columns together, where blocks of them are found: what needs no few columns
BESIDE_BLOCKS = {
    name: fit
    for name, fit in FAMILIES.items()
    if name.startswith(("gaussian", "student", "shrunk", "scored", "forest"))
}
