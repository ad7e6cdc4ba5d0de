"""What the objective's own parts do to features: the critic's architecture, and the weights of Deep InfoMax.

    nearfar study critics data=cifar10:ROOT        SimCLR with critics of growing power: held-out nats against accuracy; 10 minutes
    nearfar study dim-weights data=cifar10:ROOT    global term, local term, prior (Liu 2022, Eq. 37 and 39); 15 minutes

A more powerful critic can find more nats in worse features, since it does what the encoder need not do
(Tschannen et al. 2020; Wu et al. 2020, sec. 4; Sáez Maldonado 2021, ch. 11).
"""

from typing import Any

import numpy as np
import torch

from nearfar.core.types import Batch
from nearfar.evaluate.held_out import held_out_estimate
from nearfar.modalities import Images
from nearfar.run.trained import Run
from nearfar.studies.comparison import (
    Claim,
    Comparison,
    Figures,
    PaperColumn,
    comparison_study,
    measure_table,
    values_of,
)
from nearfar.studies.frame import StudyResult, StudyTable, mean_row
from nearfar.studies.images import ImageSetup, StudyArm

CRITICS = ("cosine", "bilinear", "separable", "joint")
MAX_SAMPLE = 1024  # test images of the held-out estimate


def held_out_nats(run: Run, test: Images) -> dict[str, Any]:
    """The run's own bound between two views of test images, in the form that is proven."""
    rows = np.arange(min(MAX_SAMPLE, len(test)))
    views = run.views()(test.load(rows), 1, 0, rows)
    method = run.method().to(run.device).eval()
    estimate = held_out_estimate(method, [Batch(tuple(views), torch.from_numpy(rows)).to(run.device)])
    return {"nats": None if estimate is None else estimate.nats}


def add_nats(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    """Adds nats by arm, and linear accuracy over them."""
    rows = []
    for name in comparison.arms:
        nats = values_of(figures, name, "nats")
        mean = float(np.mean(nats)) if nats else None
        accuracies = [one["linear"] for one in figures[name] if one and one["nats"] is not None]
        rows.append(mean_row(name, accuracies, scale=100, x=mean, series=name))
    return result.adding(
        measure_table("held-out nats", figures, comparison.arms, "nats"),
        StudyTable("linear top-1 over held-out nats", tuple(rows), x_label="held-out nats"),
    )


@comparison_study(
    "dim-weights", "Liu 2022, Eq. 37-39: Deep InfoMax with its global and local term and its prior"
)
def dim_weights(setup: ImageSetup) -> Comparison:
    weights = {"global": (1.0, 0.0), "local": (0.0, 1.0), "both": (0.5, 1.0)}
    arms = {}
    for name, (global_weight, local_weight) in weights.items():
        changes = {"encoders.global_weight": global_weight, "encoders.local_weight": local_weight}
        arms[name] = StudyArm("dim", changes)
        arms[f"{name}, no prior"] = StudyArm("dim", {**changes, "prior": "none"})
    claims = [Claim("local", "global"), Claim("both", "local"), Claim("both", "both, no prior")]
    return Comparison("Weights of Deep InfoMax", arms, claims)


@comparison_study(
    "critics",
    "Wu et al. 2020, sec. 4, Sáez Maldonado 2021, ch. 11: critics of growing power, held-out nats "
    "against accuracy",
    held_out_nats,
    add_nats,
)
def critics(setup: ImageSetup) -> Comparison:
    arms = {name: StudyArm("simclr", {} if name == "cosine" else {"critic": name}) for name in CRITICS}
    claims = [Claim("cosine", name) for name in CRITICS[1:]]
    column = PaperColumn(
        {"joint": "no better features"}, "Wu et al. 2020, sec. 4 and Sáez Maldonado 2021, ch. 11, in words"
    )
    return Comparison("Critics", arms, claims, {"linear": column, "knn": column})
