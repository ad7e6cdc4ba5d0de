"""Do measures without labels rank methods as probes do? (Garrido et al. 2023, Thilak et al. 2024)

Each recipe is trained on one budget; RankMe, LiDAR, alpha-ReQ and uniformity of its frozen features are set against their kNN and
linear accuracy, over recipes and seeds, by Spearman's rank correlation.

Command: nearfar study quality data=cifar10:ROOT     Cost: about 15 minutes on two cores.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import spearmanr

from nearfar.evaluate import features
from nearfar.evaluate.quality import measures_of
from nearfar.evaluate.unlabelled import view_features
from nearfar.modalities import Images
from nearfar.run.trained import Run
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Figures, Setup, moments, percent, repeated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPES = ("simclr", "moco", "byol", "simsiam", "instdisc", "triplet", "dcl", "vicreg", "la", "dim")
MEASURES = {"rankme": "RankMe", "lidar": "LiDAR", "alpha_req": "alpha-ReQ", "uniformity": "uniformity"}


def run(bench: Bench, setup: Setup, recipes: str = ",".join(RECIPES)) -> Result:
    names = recipes.split(",")
    found = repeated(
        bench, setup, {n: [setup.recipe(n, s) for s in setup.numbers] for n in names}, without_labels
    )
    rows = []
    for name in names:
        rows.append(Row(f"{name}, kNN top-1 in percent", None, *percent(found[name], "knn")))
        rows += [
            Row(f"{name}, {said}", None, *moments([figures[key] for figures in found[name]]))
            for key, said in MEASURES.items()
        ]
    everyone = [figures for name in names for figures in found[name]]
    curves = {key: [figures[key] for figures in everyone] for key in (*MEASURES, "knn", "linear")}
    curves["recipes"] = [name for name in names for _ in found[name]]
    return Result((Finding("Measures without labels, and kNN", tuple(rows), curves),), _remarks(everyone))


def without_labels(run: Run, asked: Images) -> Figures:
    """The measures on images that the run never saw."""
    encoder, sample = run.encoder(), asked.subset(np.arange(min(2048, len(asked))))
    plain = features(encoder, sample, run.plain(), device=run.device, workers=1)
    several = view_features(encoder, sample, run.views(), 0, run.device, plain.shape[1])
    return {**dict.fromkeys(MEASURES, float("nan")), **measures_of(plain, several)}


def _remarks(everyone: Sequence[Figures]) -> tuple[str, ...]:
    said = []
    for key, name in MEASURES.items():
        known = [figures for figures in everyone if np.isfinite(figures[key])]
        for probe in ("knn", "linear"):
            rank, p = spearmanr([f[key] for f in known], [f[probe] for f in known])
            said.append(f"{name} against {probe}: Spearman {rank:+.2f} over {len(known)} runs (p = {p:.2g}).")
    return tuple(said)


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels

    figure, axes = panels([f"{said}: kNN top-1, percent" for said in list(MEASURES.values())[:2]])
    curves = result.findings[0].curves
    names = list(dict.fromkeys(curves["recipes"]))
    for axis, key in zip(axes, MEASURES, strict=False):
        for place, name in enumerate(names):
            rows = [row for row, each in enumerate(curves["recipes"]) if each == name]
            axis.scatter(
                [curves[key][row] for row in rows],
                [100 * curves["knn"][row] for row in rows],
                s=14,
                color=COLOURS[place % len(COLOURS)],
                marker="osD^vP"[place // len(COLOURS) % 6],
                label=name,
            )
        axis.set(xlabel=MEASURES[key])
    axes[0].legend(frameon=False, fontsize=6)
    return figure


STUDY = Study("quality", "RankMe, LiDAR, alpha-ReQ and uniformity against probes, over recipes", run, draw)
