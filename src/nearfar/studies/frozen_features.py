"""Measures of frozen features: before and after pooling, with and without labels.

nearfar study pooling data=cifar10:ROOT seeds=3    linear evaluation on the last feature map (the protocol of Wu et al. 2021, sec. 5) and
                                                   on its mean over places; 10 minutes on two cores
nearfar study quality data=cifar10:ROOT            RankMe, LiDAR, alpha-ReQ and uniformity against probes over recipes, by Spearman's
                                                   rank correlation (Garrido et al. 2023, Thilak et al. 2024,
                                                   Agrawal et al. 2022); 25 minutes
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from nearfar.evaluate import LabelledFeatures, features, scores
from nearfar.evaluate.quality import measures_of, view_features
from nearfar.modalities import Images
from nearfar.run.trained import Run
from nearfar.studies.comparison import Comparison, Figures, comparison_study, measure_table, verdict
from nearfar.studies.family import base_of, choose_entries
from nearfar.studies.frame import StudyResult
from nearfar.studies.images import ImageSetup, StudyArm

LABEL_FREE = {"rankme": "RankMe", "lidar": "LiDAR", "alpha_req": "alpha-ReQ", "uniformity": "uniformity"}
MAX_SAMPLE = 2048  # images for the label-free measures


def map_probe(run: Run, test: Images) -> dict[str, Any]:
    """The linear probe on the flattened feature map, and its number of dimensions."""
    encoder, plain_view = run.encoder("map"), run.plain_view()

    def labelled(images: Images) -> LabelledFeatures:
        assert images.labels is not None
        rows = features(encoder, images, plain_view, device=run.device, workers=1)
        return LabelledFeatures(rows, torch.from_numpy(images.labels))

    fit = labelled(run.open_data())
    top1 = scores(fit, labelled(test), ["linear"])["linear"]["top1"]
    return {"map": top1, "map_width": fit.features.shape[1]}


def add_map_gains(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    remarks = []
    for name in comparison.arms:
        finished = [values for values in figures[name] if values is not None]
        gain = verdict([values["map"] - values["linear"] for values in finished])
        remarks.append(f"{name}: the map of {finished[0]['map_width']} numbers above pooled {gain}.")
    return replace(result, remarks=tuple(remarks))


def label_free_measures(run: Run, test: Images) -> dict[str, Any]:
    """The label-free measures on images that the run did not train on; None where one does not apply.

    LiDAR needs several views of the encoder's input. CMC's training views are single channels, so it has
    none.
    """
    encoder, sample = run.encoder(), test.subset(np.arange(min(MAX_SAMPLE, len(test))))
    rows = features(encoder, sample, run.plain_view(), device=run.device, workers=1)
    by_view = view_features(encoder, sample, run.views(), 0, run.device, rows.shape[1])
    measures = measures_of(rows, by_view)
    return {key: measures[key] if np.isfinite(measures.get(key, np.nan)) else None for key in LABEL_FREE}


def add_label_free(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    """A table for each label-free measure, and its rank correlations with the probes."""
    runs = [values for name in comparison.arms for values in figures[name] if values is not None]
    tables, remarks = [], []
    for key, title in LABEL_FREE.items():
        tables.append(measure_table(title, figures, comparison.arms, key))
        measured = [one for one in runs if one[key] is not None]
        if len(measured) < 3:
            continue
        for probe in ("knn", "linear"):
            rank, p = spearmanr([one[key] for one in measured], [one[probe] for one in measured])
            remarks.append(
                f"{title} against {probe}: Spearman {rank:+.2f} over {len(measured)} runs (p = {p:.2g})."
            )
    return StudyResult((*result.tables, *tables), tuple(remarks))


@comparison_study(
    "pooling", "Wu et al. 2021, sec. 5: linear evaluation before and after pooling", map_probe, add_map_gains
)
def pooling(setup: ImageSetup, recipes: str = "instdisc,instdisc-ring,cmc") -> Comparison:
    measures = {"linear": "linear top-1 in percent, pooled", "map": "linear top-1 in percent, before pooling"}
    arms = {name: StudyArm(name) for name in recipes.split(",")}
    return Comparison("Pooling", arms, measures=measures, baselines=())


@comparison_study(
    "quality",
    "RankMe, LiDAR, alpha-ReQ and uniformity against probes, over recipes",
    label_free_measures,
    add_label_free,
)
def quality(setup: ImageSetup, recipes: str = "bases") -> Comparison:
    """`recipes`: `bases` (no variants), `all`, or names from `study family`, with commas."""
    entries = choose_entries("all" if recipes == "bases" else recipes)
    arms = {name: arm for name, arm in entries.items() if recipes != "bases" or base_of(name) is None}
    return Comparison("Probes", arms, baselines=())
