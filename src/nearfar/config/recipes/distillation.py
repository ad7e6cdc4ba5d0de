"""Distillation of a teacher into a student: objectives as assignments of parts.

    crd         h(u, v) = e^f / (e^f + N z), negatives of other classes from banks       Tian et al. 2020b
    infonce     L_alpha: log of the teacher's share among its negatives                  Song & Ermon 2020, Eq. 4
    ml-cpc      J_alpha: the same with one sum for the whole batch                       Song & Ermon 2020, Eq. 6
    kd          T^2 KL of class probabilities at temperature T                           Hinton et al. 2015
    cosine      1 - cos of features, the student's mapped to the teacher's width
    relational  distances between rows, over their mean                                  Park et al. 2019

Every sum of them; cross-entropy on the labels is added wherever there are any. Several of the first three are a
sum of bounds over the same scores.
"""

import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from nearfar.config.recipes.recipe import Recipe
from nearfar.config.sections import PARTS_BY_CHOICE, section_of
from nearfar.core.abstract import AbstractBound
from nearfar.core.method import Method
from nearfar.errors import UserError, not_one_of
from nearfar.modalities.image.views import CropFlipViews
from nearfar.parts.bounds import Agreement, AlphaCPC, ConstantNCE, MultiLabelCPC, Sum
from nearfar.parts.critics import Cosine
from nearfar.parts.encoders import Distilled, HeadConfig
from nearfar.parts.joined import JOINED_BY
from nearfar.parts.negatives import Bank, NoNegatives
from nearfar.parts.priors import Distillation
from nearfar.parts.selections import Everyone, Others

CONTRASTS: dict[str, partial[Any]] = {  # of bounds
    "crd": partial(ConstantNCE),
    "infonce": partial(AlphaCPC, 0.1),
    "ml-cpc": partial(MultiLabelCPC, 0.05),
}
PRIOR_WEIGHTS = {"kd": 1.0, "cosine": 1.0, "relational": 25.0}  # Tian et al. 2020b, Park et al. 2019
OBJECTIVES = (*CONTRASTS, *PRIOR_WEIGHTS)
NEGATIVES = 16384  # for each positive (Song & Ermon 2020, App. C.3); all where there are fewer rows
CONTRAST_WEIGHT = 0.8  # Tian et al. 2020b


@cache
def contrast(term: str) -> AbstractBound:
    """The bound of a contrast. It is made once: nothing changes it."""
    bound: AbstractBound = CONTRASTS[term]()
    return bound


def distill(negatives: int = NEGATIVES, weight: float = CONTRAST_WEIGHT) -> Method:
    return Method(
        views=CropFlipViews(count=1),
        encoders=Distilled(HeadConfig("linear"), weight=weight),
        critic=Cosine(0.07),
        negatives=Bank(None, 0.5),
        selection=Others(sample=negatives),
        bound=contrast("crd"),
        prior=Distillation(),
    )


DISTILL = Recipe(
    "A student's embedding of an image is contrasted with a frozen teacher's embeddings of other images. "
    "Cross-entropy and knowledge distillation are added; use `nearfar distill` (Tian et al. 2020b, "
    "Song & Ermon 2020, sec. 5.2).",
    distill,
    command="distill runs/teacher {data}",
)


def terms_of(objective: Any) -> list[str]:
    """The names in `crd+kd` or `crd,kd`."""
    if not isinstance(objective, (str, list, tuple)):
        raise not_one_of("objective", objective, OBJECTIVES, ", or a sum such as crd+kd")
    names = objective if isinstance(objective, str) else "+".join(map(str, objective or ()))
    terms = [term.strip() for term in re.split(r"[+,]", names)]
    for term in terms:
        if term not in OBJECTIVES:
            raise not_one_of("objective", term, OBJECTIVES, ", or a sum such as crd+kd")
    repeated = next((term for term in terms if terms.count(term) > 1), None)
    if repeated is not None:
        raise UserError(f"objective was {names}, which lists {repeated} twice; list each term once")
    return terms


def objective_of(settings: Mapping[str, Any]) -> str | None:
    """The objective of a student's settings; None of other recipes."""
    if settings["recipe"] != "distill":
        return None
    bounds = {
        name: term
        for name, kind in PARTS_BY_CHOICE["bound"].items()
        for term, make in CONTRASTS.items()
        if make.func is kind
    }
    contrasts = [bounds[name] for name in str(settings["bound"]["name"]).split(JOINED_BY) if name in bounds]
    return "+".join([*contrasts, *(term for term in PRIOR_WEIGHTS if settings["prior"].get(term))])


def layer_of(objective: Any) -> dict[str, Any]:
    """An objective as settings over those of `DISTILL`."""
    terms = terms_of(objective)
    contrasts = [contrast(term) for term in terms if term in CONTRASTS]
    weights = {term: weight if term in terms else 0.0 for term, weight in PRIOR_WEIGHTS.items()}
    labels = 1.0
    if terms == ["kd"]:  # its usual weight (Tian et al. 2020b)
        weights["kd"], labels = 0.9, 0.1
    prior = {"name": "distillation", "labels": labels, **weights}
    if contrasts:
        bound = contrasts[0] if len(contrasts) == 1 else Sum(*contrasts)
        return {"bound": section_of("bound", bound), "prior": prior}
    return {
        "encoders": {"weight": 0.0, "head": "none"},
        "critic": section_of("critic", Cosine(1.0)),
        "negatives": section_of("negatives", NoNegatives()),
        "selection": section_of("selection", Everyone()),
        "bound": section_of("bound", Agreement()),
        "prior": prior,
    }
