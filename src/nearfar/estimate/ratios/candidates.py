"""The candidate ratios by name. Names appear in results (`Estimate.critic`).

"plain" in a name: fitted to scaled numbers instead of normal ranks.
"""

from functools import partial

from nearfar.estimate.ratios.classifiers import ClassifierRatio, DiscriminatorRatio
from nearfar.estimate.ratios.densities import LevelDensityRatio
from nearfar.estimate.ratios.gaussian import GaussianRatio, StudentRatio, UnmixedRatio
from nearfar.estimate.ratios.predictions import LineRatio, MultivariateResidualRatio, ResidualRatio
from nearfar.estimate.ratios.sides import Fit
from nearfar.estimate.ratios.smooth import KernelRatio, MixtureRatio
from nearfar.estimate.ratios.tables import AssociationRatio, LevelGaussianRatio, TableRatio
from nearfar.estimate.ratios.transforms import OrderedRatio, ProjectedRatio

NETWORK = "network on "  # prefix of the name of the ratio that the network corrects
DISCRIMINATOR = "trees of pairs"
EXPENSIVE = (NETWORK, DISCRIMINATOR)  # to fit and to evaluate

PROJECTED: dict[str, Fit] = {  # between leading directions of many columns
    "mixture of 8": partial(MixtureRatio.fit, components=8),
    "levels": partial(LevelGaussianRatio.fit, scaled=True, own_covariance=True),
    "y of x": partial(ResidualRatio.fit, swapped=False, scaled=True, spread_varies=False),
    "x of y": partial(ResidualRatio.fit, swapped=True, scaled=True, spread_varies=False),
}

RIDGE_PROJECTED: dict[str, Fit] = {  # between directions of any number of columns
    "gaussian": GaussianRatio.fit,
    "levels": partial(LevelGaussianRatio.fit, scaled=False, own_covariance=False),
}
RIDGES = (0.1, 1.0, 10.0)  # in mean variances of a column

ORDERED: dict[str, Fit] = {  # between levels as numbers
    "gaussian": GaussianRatio.fit,
    "mixture of 3": partial(MixtureRatio.fit, components=3),
    "levels": partial(LevelGaussianRatio.fit, scaled=False, own_covariance=True),
}

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
    "gaussian, screened": partial(GaussianRatio.fit, screened=True),
    "student": StudentRatio.fit,
    "gaussian, unmixed": partial(UnmixedRatio.fit, scaled=False),
    "gaussian, unmixed, plain": partial(UnmixedRatio.fit, scaled=True),
    **{f"mixture of {k}": partial(MixtureRatio.fit, components=k) for k in (2, 4, 8, 16, 32, 64)},
    **{f"mixture of {k}, plain": partial(MixtureRatio.fit, components=k, scaled=True) for k in (3, 8, 24)},
    **{f"local {k}": partial(MixtureRatio.fit_local, neighbours=k) for k in (8, 20)},
    **{f"local {k}, plain": partial(MixtureRatio.fit_local, neighbours=k, scaled=True) for k in (8, 20)},
    "kernels of 4": partial(KernelRatio.fit, neighbours=4, factor=0.7),
    "kernels of 12": partial(KernelRatio.fit, neighbours=12, factor=0.7),
    "kernels of 8, plain": partial(KernelRatio.fit, neighbours=8, factor=0.35, scaled=True),
    **{f"table of {b}": partial(TableRatio.fit, bins=b, strength=2.0) for b in (4, 8, 16, 32)},
    **{f"counts, {s:g}": partial(TableRatio.fit, bins=0, strength=s) for s in (0.3, 1.0, 5.0, 25.0)},
    "counts, discounted": partial(TableRatio.fit, bins=0, strength=None),
    "counts, rare ones pooled": partial(TableRatio.fit, bins=0, strength=1.0, rare=5),
    "table of 8, rare ones pooled": partial(TableRatio.fit, bins=8, strength=2.0, rare=5),
    **{
        f"levels{', plain' * scaled}{', own spread' * own_covariance}": partial(
            LevelGaussianRatio.fit, scaled=scaled, own_covariance=own_covariance
        )
        for scaled in (False, True)
        for own_covariance in (False, True)
    },
    "densities": partial(LevelDensityRatio.fit, scaled=False),
    "densities, plain": partial(LevelDensityRatio.fit, scaled=True),
    **{
        f"{'x of y' if swapped else 'y of x'}{', plain' * scaled}{', scaled' * varies}": partial(
            ResidualRatio.fit, swapped=swapped, scaled=scaled, spread_varies=varies
        )
        for swapped in (False, True)
        for scaled in (False, True)
        for varies in (False, True)
    },
    "line, y of x": partial(LineRatio.fit, swapped=False),
    "line, x of y": partial(LineRatio.fit, swapped=True),
    "columns of y round x": partial(MultivariateResidualRatio.fit, swapped=False),
    "columns of x round y": partial(MultivariateResidualRatio.fit, swapped=True),
    **{
        f"trees, {'x of y' if swapped else 'y of x'}": partial(
            ResidualRatio.fit, swapped=swapped, scaled=True, spread_varies=False, boosted=True
        )
        for swapped in (False, True)
    },
    "classes of y": partial(ClassifierRatio.fit, swapped=False),
    "classes of x": partial(ClassifierRatio.fit, swapped=True),
    DISCRIMINATOR: DiscriminatorRatio.fit,
    **{f"compressed, {name}": partial(ProjectedRatio.fit, inner=fit) for name, fit in PROJECTED.items()},
    **{
        f"shrunk by {ridge:g}, {name}": partial(ProjectedRatio.fit_ridge, ridge=ridge, inner=fit)
        for ridge in RIDGES
        for name, fit in RIDGE_PROJECTED.items()
    },
    **{f"ordered, {name}": partial(OrderedRatio.fit, inner=fit) for name, fit in ORDERED.items()},
    **{f"products of {k} scores": partial(AssociationRatio.fit, powers=k) for k in (1, 2, 3)},
}
