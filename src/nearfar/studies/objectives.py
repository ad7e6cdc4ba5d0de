"""Objectives and their settings, compared on images.

    nearfar study vince data=cifar10:ROOT            what negatives and views add: IR, BALL, ANN, LA (Fig. 2a); 6 minutes on two cores
    nearfar study bank-momentum data=cifar10:ROOT    how slowly a bank's rows move (Fig. 2c); 6 minutes on two cores
    nearfar study temperature data=cifar10:ROOT      temperature 0.07 against 1 (sec. 5.3); 6 minutes on two cores
    nearfar study views data=cifar10:ROOT            each augmentation alone (Fig. 2b); 15 minutes on two cores
    nearfar study critics data=cifar10:ROOT          SimCLR with critics of growing power: held-out nats against accuracy; 10 minutes
    nearfar study dim-weights data=cifar10:ROOT      global term, local term, prior (Liu 2022, Eq. 37 and 39); 15 minutes
    nearfar study curricula data=cifar10:ROOT        MoCo-v2 with CPC and ML-CPC: four curricula of alpha; 80 minutes of one core
    nearfar study adaptive-curricula data=cifar10:ROOT    curricula that follow no clock; 20 minutes of one core

The first four are of Wu et al. 2020, instance discrimination as a bound on mutual information. Its figures
are of ImageNet and only drawn, so orders are compared and not numbers.

A more powerful critic can find more nats in worse features, since it does what the encoder need not do
(Tschannen et al. 2020; Wu et al. 2020, sec. 4; Sáez Maldonado 2021, ch. 11).

In curricula (Song & Ermon 2020, Table 3), alpha falls geometrically and crosses 1 half-way: 1 to 1, 2 to 0.5,
5 to 0.2, 10 to 0.1 (sec. 5.3's text has 5 to 2, its tables 5 to 0.2). The paper trains 200, 500 and 1,000
epochs; `epochs` stands for its 200, and the others are in proportion.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nearfar.core.types import Batch
from nearfar.evaluate.held_out import held_out_estimate
from nearfar.modalities import Images
from nearfar.run.trained import Run
from nearfar.studies.comparison import (
    MEASURES,
    UNTRAINED,
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


CURRICULA_BASE = "CPC"
LENGTHS = (200, 500, 1000)  # epochs of the paper
CURRICULA: dict[str, dict[str, Any]] = {
    CURRICULA_BASE: {},
    "ML-CPC 1 to 1": {"bound": "ml-cpc", "bound.alpha": 1.0},
    "ML-CPC 2 to 0.5": {"bound": "ml-cpc", "bound.alpha": "geometric(2,0.5)"},
    "ML-CPC 5 to 0.2": {"bound": "ml-cpc", "bound.alpha": "geometric(5,0.2)"},
    "ML-CPC 10 to 0.1": {"bound": "ml-cpc", "bound.alpha": "geometric(10,0.1)"},
}
CURRICULA_PAPER = dict(
    zip(
        CURRICULA,
        ((83.28, 89.31, 91.20), (83.61, 89.43, 91.48), (84.31, 89.47, 91.43), (85.52, 89.85, 91.50), (86.16, 89.49, 91.86)),
        strict=True,
    )
)  # fmt: skip
CURRICULA_SOURCE = "Song & Ermon 2020, Table 3a: CIFAR-10, MoCo-v2 with ResNet-50, linear top-1"


def epochs_for(paper_epochs: int, epochs: int) -> int:
    """Epochs here for a number of the paper's, where its 200 are `epochs`."""
    return max(1, round(epochs * paper_epochs / LENGTHS[0]))


@comparison_study(
    "curricula", "Song & Ermon 2020, Table 3: MoCo-v2 with CPC and four ML-CPC curricula, over epochs"
)
def curricula(setup: ImageSetup) -> Comparison:
    arms, values, claims, x = {}, {}, [], {}
    for place, length in enumerate(LENGTHS):
        epochs = epochs_for(length, setup.epochs)
        names = {name: f"{name}, {length} epochs (here {epochs})" for name in CURRICULA}
        for name, changes in CURRICULA.items():
            arms[names[name]] = StudyArm("moco", changes, {"epochs": epochs})
            values[names[name]] = CURRICULA_PAPER[name][place]
            x[names[name]] = (name, float(epochs))
        claims += [Claim(names[name], names[CURRICULA_BASE]) for name in CURRICULA if name != CURRICULA_BASE]
    measures = {**MEASURES, "linear_top5": "linear top-5 in percent"}
    remark = "Table 3b is of CIFAR-100: run it with data=FOLDER and test=FOLDER."
    column = PaperColumn(values, CURRICULA_SOURCE)
    paper = {"linear": column}
    return Comparison("Table 3a", arms, claims, paper, measures, (), x, "epochs", remarks=(remark,))


# ------------------------------------------------------------------------------ without a clock

HELD_OUT = 0.1  # of the training images, in every arm, so that all train on the same ones
POLICIES = {  # by what a curriculum follows; {ends} and a schedule over the whole run
    "clock": "{clock}({ends})",
    "held-out bound": "on_bound({ends},{moves})",
    "variance": "on_variance({ends},{moves})",
}


def add_last_values(result: StudyResult, figures: Figures, comparison: Comparison) -> StudyResult:
    """Adds where each curriculum ended."""
    rows = [
        mean_row(name, [one["course"][arm.watch[0]][-1] for one in figures[name] if one])
        for name, arm in comparison.arms.items()
        if arm.watch
    ]
    return result.adding(StudyTable("value at the end", tuple(rows)))


@comparison_study(
    "adaptive-curricula",
    "ours: curricula of alpha and of a ring's edge that follow the held-out bound or the variance, not a "
    "clock",
    finish=add_last_values,
)
def adaptive_curricula(setup: ImageSetup) -> Comparison:
    """ML-CPC's alpha from 10 to 0.1, and a ring's lower edge from 0 to 0.9, by a clock and by what stalls.

    A move needs two probes, so a third of the epochs, if all stall, are enough to arrive."""
    moves = max(1, setup.epochs // 3)
    arms = {"CPC": StudyArm("moco", {}, {"held_out": HELD_OUT})}
    claims = []
    for policy, written in POLICIES.items():
        alpha = written.format(clock="geometric", ends="10,0.1", moves=moves)
        edge = written.format(clock="linear", ends="0,0.9", moves=moves)
        changes = {
            f"alpha by {policy}": StudyArm("moco", {"bound": "ml-cpc", "bound.alpha": alpha}),
            f"edge by {policy}": StudyArm("instdisc-ring", {"selection.lower": edge}),
        }
        for name, arm in changes.items():
            watch = tuple(key for key in arm.changes if key in ("bound.alpha", "selection.lower"))
            arms[name] = replace(arm, budget={"held_out": HELD_OUT}, watch=watch)
            if policy != "clock":
                claims.append(Claim(name, f"{name.split()[0]} by clock"))
    return Comparison("Curricula", arms, claims)


BOTH_MEASURES = ("knn", "linear")


@comparison_study(
    "vince", "Wu et al. 2020, Fig. 2a: instance discrimination, ball, annulus and Local Aggregation"
)
def vince(setup: ImageSetup, background: float = 0.1) -> Comparison:
    """`background`: the share of the bank that B_i holds, one for all arms and constant, as in App. D."""
    nearest = {"selection.lower": 1 - background}
    close = {"selection.lower": 0.0, "selection.background": background}
    arms = {
        "IR": StudyArm("instdisc"),
        "BALL": StudyArm("instdisc-ball", nearest),
        "ANN": StudyArm("instdisc-annulus", close),
        "LA": StudyArm("la", close),
    }
    claims = (Claim("BALL", "IR"), Claim("ANN", "IR"), Claim("ANN", "BALL"), Claim("LA", "ANN"))
    column = PaperColumn(
        {"BALL": "above IR", "ANN": "slightly above BALL", "LA": "above ANN by as much as ANN above IR"},
        "Wu et al. 2020, Fig. 2a and sec. 5.3, in words: of ImageNet, and only drawn there",
    )
    return Comparison("Figure 2a", arms, claims, dict.fromkeys(BOTH_MEASURES, column))


MOMENTA = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
DEFAULT_MOMENTUM = 0.5


@comparison_study(
    "bank-momentum", "Wu et al. 2020, Fig. 2c: instance discrimination against its bank's update momentum"
)
def bank_momentum(setup: ImageSetup) -> Comparison:
    """M[i] <- normalise(m M[i] + (1 - m) z_i): at m = 0 a row is the view of the last epoch."""
    arms = {f"m={m:g}": StudyArm("instdisc", {"negatives.momentum": m}) for m in MOMENTA}
    default = f"m={DEFAULT_MOMENTUM:g}"
    column = PaperColumn(
        {"m=0": "as good as 0.5", "m=0.99": "worse"},
        "Wu et al. 2020, Fig. 2c, in words: of ImageNet, and only drawn there",
    )
    x = {f"m={m:g}": ("instdisc", m) for m in MOMENTA}
    claims = (Claim("m=0", default), Claim(default, "m=0.99"))
    label = "m: the bank's update momentum"
    return Comparison("Figure 2c", arms, claims, dict.fromkeys(BOTH_MEASURES, column), x=x, x_label=label)


TEMPERATURES = (0.07, 1.0)


@comparison_study(
    "temperature", "Wu et al. 2020, sec. 5.3: temperature 0.07 against 1, said to be negligible"
)
def temperature(setup: ImageSetup, recipes: str = "instdisc,simclr") -> Comparison:
    """The paper: "negligible", 0.07 and 1 perform as well. So each is claimed to be above the other, and the
    paper is right where neither holds."""
    names = recipes.split(",")
    arms = {f"{name}, T={t:g}": StudyArm(name, {"temperature": t}) for name in names for t in TEMPERATURES}
    claims = [Claim(f"{name}, T={TEMPERATURES[0]:g}", f"{name}, T={TEMPERATURES[1]:g}") for name in names]
    column = PaperColumn(
        dict.fromkeys((name for name in arms if name.startswith("instdisc")), "the same at 0.07 and 1"),
        "Wu et al. 2020, sec. 5.3, in words, of ImageNet",
    )
    return Comparison("Temperature", arms, claims, dict.fromkeys(BOTH_MEASURES, column))


AUGMENTATIONS = ("crop", "flip", "jitter", "greyscale")
VIEW_KINDS = ("none", "flip", "greyscale", "jitter", "crop", "all")
VIEWS_PAPER = {
    "none": "plateaus at 2 percent on ImageNet",
    "flip": "does not improve",
    "crop": "much more of an effect",
}
VIEWS_SOURCE = "Wu et al. 2020, Fig. 2b, in its words, of instance discrimination on ImageNet: the figures are only drawn there"


def only_augmentation(kind: str) -> dict[str, Any]:
    """Settings that leave `kind` of a recipe's augmentations, at its strength there."""
    if kind == "all":
        return {}
    return {f"views.{name}": 0.0 for name in (*AUGMENTATIONS, "blur") if name != kind}


@comparison_study(
    "views", "Wu et al. 2020, Fig. 2b: SimCLR and instance discrimination with each augmentation alone"
)
def views(setup: ImageSetup, recipes: str = "simclr,instdisc") -> Comparison:
    names = recipes.split(",")
    arms = {
        f"{name}, {kind}": StudyArm(name, only_augmentation(kind)) for name in names for kind in VIEW_KINDS
    }
    claims = [
        Claim(f"{name}, {better}", f"{name}, {worse}")
        for name in names
        for better, worse in (("crop", "none"), ("all", "crop"), ("flip", "none"))
    ]
    values = {f"instdisc, {kind}": text for kind, text in VIEWS_PAPER.items()} if "instdisc" in names else {}
    column = PaperColumn(values, VIEWS_SOURCE if values else "")
    return Comparison("Figure 2b", arms, claims, dict.fromkeys(BOTH_MEASURES, column), baselines=(UNTRAINED,))
