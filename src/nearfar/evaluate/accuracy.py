"""Accuracy of predicted classes, of each class, and what each class is mistaken for."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.core.results import Answers, Figure, Measurement

TOP = 5  # classes named in a top-5 answer
MAX_CONFUSION_CLASSES = 50  # classes up to which the confusion matrix is kept


def classified(
    ranked: Int[Tensor, "instance rank"],
    labels: Int[Tensor, "instance"],
    classes: int,
    details: Mapping[str, Any] | None = None,
) -> Measurement:
    """Top-1 and top-5, top-1 of each class, the confusion matrix (rows are the truth), and the answer for
    each test instance. `ranked`: the likeliest classes of each, likeliest first; `classes`: how many there
    are to choose from."""
    labels, predicted = labels.to(ranked.device), ranked[:, 0]
    figures = {name: Figure.share(share, len(labels)) for name, share in hit_rates(ranked, labels).items()}
    occurring = torch.unique(torch.cat([labels, predicted])).tolist()
    correct = predicted == labels
    per_class = {
        str(number): float(correct[labels == number].double().mean())
        for number in occurring
        if bool((labels == number).any())
    }
    breakdown: dict[str, Any] = {"classes": classes, "per_class": per_class}
    if len(occurring) <= MAX_CONFUSION_CLASSES:
        breakdown["confusion"] = {
            "classes": [str(number) for number in occurring],
            "counts": _confusion(labels, predicted, occurring),
        }
    answers = Answers(predicted.cpu().numpy(), labels.cpu().numpy())
    return Measurement(figures, {**breakdown, **(details or {})}, answers)


def _confusion(
    labels: Int[Tensor, "instance"], predicted: Int[Tensor, "instance"], classes: list[int]
) -> list[list[int]]:
    place = {number: at for at, number in enumerate(classes)}
    rows, columns = (torch.tensor([place[n] for n in side.tolist()]) for side in (labels, predicted))
    pairs = torch.bincount(rows * len(classes) + columns, minlength=len(classes) ** 2)
    return pairs.view(len(classes), len(classes)).tolist()


def hit_rates(ranked: Int[Tensor, "instance rank"], labels: Int[Tensor, "instance"]) -> dict[str, float]:
    """Share of images whose label is the first, and is among the first five, of their ranked classes."""
    hits = ranked[:, :TOP] == labels[:, None]
    return {"top1": hits[:, 0].double().mean().item(), "top5": hits.any(1).double().mean().item()}


def rank_classes(
    scores: Float[Tensor, "instance class"], classes: Int[Tensor, "class"]
) -> Int[Tensor, "instance rank"]:
    """The five classes with the highest scores, highest first (all of them if fewer)."""
    return classes.to(scores.device)[scores.topk(min(TOP, scores.shape[1]), dim=1).indices]


def with_class_names(measurement: Measurement, names: Mapping[str, str]) -> Measurement:
    """The measurement with classes called by their names; `names` are by number."""
    details = dict(measurement.details)
    if "per_class" in details:
        details["per_class"] = {names.get(key, key): share for key, share in details["per_class"].items()}
    if "confusion" in details:
        confusion = details["confusion"]
        details["confusion"] = {**confusion, "classes": [names.get(key, key) for key in confusion["classes"]]}
    return replace(measurement, details=details)
