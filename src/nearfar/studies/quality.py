"""Do measures without labels rank methods as probes do? (Garrido et al. 2023, Thilak et al. 2024, Agrawal et al. 2022)

The recipes of `study family` are each trained on one budget; RankMe, LiDAR, alpha-ReQ and uniformity of their frozen features are set against
kNN and linear accuracy, over recipes and seeds, by Spearman's rank correlation. LiDAR needs several views of what the encoder
sees; CMC's training views are channels of it, so of CMC it is not told.

Command: nearfar study quality data=cifar10:ROOT     Cost: about 25 minutes on two cores.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import spearmanr

from nearfar.evaluate import features
from nearfar.evaluate.quality import measures_of, view_features
from nearfar.modalities import Images
from nearfar.run.trained import Run
from nearfar.studies.family import base_of, chosen
from nearfar.studies.frame import Bench, Finding, Result, Row, Study
from nearfar.studies.images import Figures, Setup, moments, percent, repeated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {"rankme": "RankMe", "lidar": "LiDAR", "alpha_req": "alpha-ReQ", "uniformity": "uniformity"}
BASES = "bases"  # the recipes that are no variant of another


def run(bench: Bench, setup: Setup, recipes: str = BASES) -> Result:
    """`recipes`: `bases`, `all`, or names from `study family`, with commas."""
    wanted = chosen("all" if recipes == BASES else recipes)
    arms = {
        name: [setup.recipe(recipe, s, **changes) for s in setup.numbers]
        for name, (recipe, changes) in wanted.items()
        if recipes != BASES or base_of(name) is None
    }
    found = repeated(bench, setup, arms, without_labels)
    rows = []
    for name in arms:
        rows.append(Row(f"{name}, kNN top-1 in percent", None, *percent(found[name], "knn")))
        for key, said in MEASURES.items():
            known = [figures[key] for figures in found[name] if figures[key] is not None]
            rows += [Row(f"{name}, {said}", None, *moments(known))] if known else []
    everyone = [figures for name in arms for figures in found[name]]
    curves = {key: [figures[key] for figures in everyone] for key in (*MEASURES, "knn", "linear")}
    curves["recipes"] = [name for name in arms for _ in found[name]]
    return Result((Finding("Measures without labels, and kNN", tuple(rows), curves),), _remarks(everyone))


def without_labels(run: Run, asked: Images) -> Figures:
    """The measures on images that the run never saw; None for what does not apply to it."""
    encoder, sample = run.encoder(), asked.subset(np.arange(min(2048, len(asked))))
    plain = features(encoder, sample, run.plain_view(), device=run.device, workers=1)
    several = view_features(encoder, sample, run.views(), 0, run.device, plain.shape[1])
    found = measures_of(plain, several)
    return {key: found[key] if np.isfinite(found.get(key, np.nan)) else None for key in MEASURES}


def _remarks(everyone: Sequence[Figures]) -> tuple[str, ...]:
    said = []
    for key, name in MEASURES.items():
        known = [figures for figures in everyone if figures[key] is not None]
        if len(known) < 3:
            continue
        for probe in ("knn", "linear"):
            rank, p = spearmanr([f[key] for f in known], [f[probe] for f in known])
            said.append(f"{name} against {probe}: Spearman {rank:+.2f} over {len(known)} runs (p = {p:.2g}).")
    return tuple(said)


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels

    shown = list(MEASURES)[:3]
    figure, axes = panels([f"kNN top-1 over {MEASURES[key]}" for key in shown], 4.6, 4.2)
    curves = result.findings[0].curves
    places = {name: place for place, name in enumerate(dict.fromkeys(curves["recipes"]))}
    for axis, key in zip(axes, shown, strict=True):
        for name, measure, knn in zip(curves["recipes"], curves[key], curves["knn"], strict=True):
            if measure is None:
                continue
            colour = COLOURS[places[name] % len(COLOURS)]
            axis.plot(measure, 100 * knn, "o", color=colour, markersize=4)
            axis.annotate(
                name, (measure, 100 * knn), (3, 2), textcoords="offset points", fontsize=6, color=colour
            )
        axis.set(xlabel=MEASURES[key], ylabel="kNN top-1, percent")
        axis.margins(x=0.12)
    return figure


STUDY = Study("quality", "RankMe, LiDAR, alpha-ReQ and uniformity against probes, over recipes", run, draw)
