"""What a teacher knows, put into a student: objectives as assignments of parts.

    crd        h(u, v) = e^f / (e^f + N z), negatives of other classes from index-keyed banks     Tian et al. 2020b
    infonce    L_alpha: log of the teacher's share among its negatives, alpha re-weighting it      Song & Ermon 2020, Eq. 4
    ml-cpc     J_alpha: the same with one sum for the whole batch                                  Song & Ermon 2020, Eq. 6
    kd         T^2 KL of class probabilities at temperature T                                      Hinton et al. 2015
    cosine     1 - cos of features, the student's mapped to the teacher's width
    relational distances between rows, over their mean                                             Park et al. 2019

Every sum of them; cross-entropy on the labels stands beside wherever there are any. Several of the first three are a sum of bounds over
the same scores.
"""

import re
from typing import Any

from nearfar.config.recipes.recipe import Recipe
from nearfar.errors import UserError, not_one_of
from nearfar.parts.joined import JOINED_BY

CONTRASTS: dict[str, dict[str, Any]] = {
    "crd": {"name": "nce-constant"},
    "infonce": {"name": "alpha-cpc", "alpha": 0.1},
    "ml-cpc": {"name": "ml-cpc", "alpha": 0.05},
}
BESIDE = {"kd": 1.0, "cosine": 1.0, "relational": 25.0}  # weights: Tian et al. 2020b, Park et al. 2019
OBJECTIVES = (*CONTRASTS, *BESIDE)
NEGATIVES = 16384  # for each positive (Song & Ermon 2020, App. C.3); of fewer rows all
WEIGHT = 0.8  # of the contrast (Tian et al. 2020b)

DISTILL = Recipe(
    about="A student's embedding of a picture is contrasted with a frozen teacher's embeddings of others, from memory banks of both, beside "
    "cross-entropy and knowledge distillation; needs a teacher: nearfar distill (Tian et al. 2020b, Song & Ermon 2020, sec. 5.2).",
    views={"name": "crop-flip", "count": 1},
    encoders={"name": "distilled", "head": "linear", "weight": WEIGHT},
    critic={"name": "cosine", "temperature": 0.07},
    negatives={"name": "bank", "momentum": 0.5},
    selection={"name": "others", "sample": NEGATIVES},
    bound=CONTRASTS["crd"],
    prior={"name": "distillation"},
    training={"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4},
    command="distill runs/teacher {data}",
)


def terms_of(objective: Any) -> list[str]:
    """The names in `crd+kd` or `crd,kd`."""
    if not isinstance(objective, (str, list, tuple)):
        raise not_one_of("objective", objective, OBJECTIVES, suffix=", or a sum such as crd+kd")
    asked = objective if isinstance(objective, str) else "+".join(map(str, objective or ()))
    terms = [term.strip() for term in re.split(r"[+,]", asked)]
    for term in terms:
        if term not in OBJECTIVES:
            raise not_one_of("objective", term, OBJECTIVES, suffix=", or a sum such as crd+kd")
    if len({*terms}) < len(terms):
        raise UserError(f"objective was {asked}, which names one of them twice; name each once")
    return terms


def layer_of(objective: Any) -> dict[str, Any]:
    """An objective as settings over those of `DISTILL`."""
    terms = terms_of(objective)
    contrasts = [CONTRASTS[term] for term in terms if term in CONTRASTS]
    weights = {term: weight if term in terms else 0.0 for term, weight in BESIDE.items()}
    labels = 1.0
    if terms == ["kd"]:  # its usual share (Tian et al. 2020b)
        weights["kd"], labels = 0.9, 0.1
    prior = {"name": "distillation", "labels": labels, **weights}
    if contrasts:
        bound: dict[str, Any] = {}
        for contrast in reversed(contrasts):  # a setting that several have is that of the first
            bound |= contrast
        bound["name"] = JOINED_BY.join(contrast["name"] for contrast in contrasts)
        return {"bound": bound, "prior": prior}
    return {
        "encoders": {"weight": 0.0, "head": "none"},
        "critic": {"name": "cosine", "temperature": 1.0},
        "negatives": {"name": "none"},
        "selection": {"name": "everyone"},
        "bound": {"name": "agreement"},
        "prior": prior,
    }
