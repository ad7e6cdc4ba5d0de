"""What is said of predicted classes: how often they are right, for which classes, and what they are taken for; and of several
draws, their mean and spread."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nearfar.core.intervals import CONFIDENCE, with_intervals
from nearfar.evaluate.labels import hit_rates
from nearfar.run.answers import packed

MOST_CONFUSED = 50  # classes up to which the whole matrix is kept


def classified(ranked: Int[Tensor, "image rank"], labels: Int[Tensor, "image"]) -> dict[str, Any]:
    """Top-1 and top-5, top-1 of each class, how often each class was taken for which (rows the truth), and the answer for each test
    instance, so that runs can be compared pair by pair."""
    labels = labels.to(ranked.device)
    hits = ranked[:, 0] == labels
    classes = torch.unique(torch.cat([labels, ranked[:, 0]])).tolist()
    there = [number for number in classes if bool((labels == number).any())]
    figures: dict[str, Any] = {
        **hit_rates(ranked, labels),
        "per_class": {str(number): float(hits[labels == number].double().mean()) for number in there},
        **packed(ranked[:, 0], labels),
    }
    if len(classes) <= MOST_CONFUSED:
        place = {number: at for at, number in enumerate(classes)}
        truth = torch.tensor([place[number] for number in labels.tolist()])
        said = torch.tensor([place[number] for number in ranked[:, 0].tolist()])
        pairs = torch.bincount(truth * len(classes) + said, minlength=len(classes) ** 2)
        figures["confusion"] = {
            "classes": [str(number) for number in classes],
            "counts": pairs.view(len(classes), len(classes)).tolist(),
        }
    return figures


def ranked(scores: Float[Tensor, "image class"], classes: Int[Tensor, "class"]) -> Int[Tensor, "image rank"]:
    """The five classes with the highest scores, highest first (all of them if fewer)."""
    return classes.to(scores.device)[scores.topk(min(5, scores.shape[1]), dim=1).indices]


def over_draws(draws: Sequence[Mapping[str, Any]], keys: Sequence[str] = ("top1", "top5")) -> dict[str, Any]:
    """The mean of each figure over draws, the deviation of the first of them (n - 1; None of one draw), and its value in every draw."""
    found: dict[str, Any] = {
        key: math.fsum(draw[key] for draw in draws) / len(draws) for key in keys if key in draws[0]
    }
    first = [float(draw[keys[0]]) for draw in draws]
    mean = math.fsum(first) / len(first)
    squares = math.fsum((value - mean) ** 2 for value in first)
    spread = math.sqrt(squares / (len(first) - 1)) if len(first) > 1 else None
    return {**found, "spread": spread, "draws": first}


def with_all_intervals(figures: Mapping[str, Any], samples: float) -> dict[str, Any]:
    """Wilson's interval beside every accuracy, however deep it stands; one that a protocol knows better is left."""
    if "top1" in figures:
        return dict(figures) if "interval" in figures else with_intervals(figures, samples)
    return {
        key: with_all_intervals(value, samples) if isinstance(value, Mapping) else value
        for key, value in figures.items()
    }


def named(figures: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Figures with classes by their names where they have any."""
    found: dict[str, Any] = {}
    for key, value in figures.items():
        if key == "per_class" and isinstance(value, Mapping):
            found[key] = {names.get(number, number): share for number, share in value.items()}
        elif key == "confusion" and isinstance(value, Mapping):
            found[key] = {**value, "classes": [names.get(number, number) for number in value["classes"]]}
        else:
            found[key] = named(value, names) if isinstance(value, Mapping) else value
    return found


def mean_interval(values: Float[Tensor, "draw"], confidence: float = CONFIDENCE) -> list[float]:
    """Where the mean of such draws lies, by Student's t."""
    from scipy.stats import t as student

    values = values.double()
    half = (
        float(student.ppf(0.5 + confidence / 2, len(values) - 1))
        * float(values.std())
        / math.sqrt(len(values))
    )
    return [max(0.0, float(values.mean()) - half), min(1.0, float(values.mean()) + half)]
