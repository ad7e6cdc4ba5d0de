"""The ways features and networks are judged, by name.

A new one is a function plus one line: of two labelled sets of features in `PROTOCOLS`, or, where features do not say enough, of the
network and the data in `NETWORK_PROTOCOLS`.
"""

import copy
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.evaluate.knn import ranked_classes
from nearfar.evaluate.labels import Labelled, hit_rates
from nearfar.evaluate.linear import fit_chosen
from nearfar.modalities import Instances
from nearfar.modalities.base import MakeViews
from nearfar.run.answers import packed


@dataclass(frozen=True)
class Options:
    """What a protocol may be told."""

    k: int = 20
    temperature: float = 0.07
    seed: int = 0


Protocol = Callable[[Labelled, Labelled, Options], dict[str, Any]]


def _answered(ranked: Int[Tensor, "image rank"], test: Labelled) -> dict[str, Any]:
    """Top-1 and top-5, and the answer for each test image, so that runs can be compared pair by pair."""
    labels = test.labels.to(ranked.device)
    return {**hit_rates(ranked, labels), **packed(ranked[:, 0], labels)}


def _knn(train: Labelled, test: Labelled, knobs: Options) -> dict[str, Any]:
    """The weighted cosine vote of the k nearest (Wu et al. 2018)."""
    ranked = ranked_classes(
        train.features, train.labels, test.features, k=knobs.k, temperature=knobs.temperature
    )
    return _answered(ranked, test)


def _nearest(train: Labelled, test: Labelled, knobs: Options) -> dict[str, Any]:
    """The class of the one nearest by Euclidean distance; it names one class, so top-5 is top-1."""
    return _answered(ranked_classes(train.features, train.labels, test.features, k=1, weighting="l2"), test)


def _linear(train: Labelled, test: Labelled, knobs: Options) -> dict[str, Any]:
    """Penalised logistic regression, solved; the penalty chosen within train."""
    classifier, penalty = fit_chosen(train.features, train.labels, seed=knobs.seed)
    return {**_answered(classifier.ranked_classes(test.features), test), "penalty": penalty}


PROTOCOLS: dict[str, Protocol] = {"knn": _knn, "nearest": _nearest, "linear": _linear}


@dataclass(frozen=True)
class LabelledSet:
    """Instances and their classes, all in one numbering."""

    images: Instances
    labels: Int[Tensor, "instance"]


@dataclass(frozen=True)
class Subject:
    """A network to be judged by what it does, not by features alone: `encoder` is a copy, to be trained or changed at will."""

    encoder: nn.Module
    plain: MakeViews
    train: LabelledSet
    test: LabelledSet
    device: torch.device


# asked of networks alone: raw pixels and the like have none
NETWORK_PROTOCOLS: dict[str, Callable[[Subject, Options], dict[str, float]]] = {}


def scores(
    train: Labelled,
    test: Labelled,
    protocols: Sequence[str] = ("knn", "linear"),
    *,
    k: int = 20,
    temperature: float = 0.07,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Every asked protocol's figures, by its name: `{"knn": {"top1": …, "top5": …}, …}`; of those that features can answer."""
    check_protocols(protocols)
    protocols = [name for name in protocols if name in PROTOCOLS]
    _check_sets(train, test)
    knobs = Options(k, temperature, seed)
    return {name: PROTOCOLS[name](train, test, knobs) for name in protocols}


def network_scores(
    subject: Subject, protocols: Sequence[str], *, k: int = 20, temperature: float = 0.07, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Figures of the asked protocols that need the network itself; each has a copy of its own."""
    knobs = Options(k, temperature, seed)
    return {
        name: protocol(replace(subject, encoder=copy.deepcopy(subject.encoder)), knobs)
        for name, protocol in NETWORK_PROTOCOLS.items()
        if name in protocols
    }


def check_protocols(names: Sequence[str]) -> None:
    """Stop at a protocol that does not exist, before any feature is computed."""
    known = [*PROTOCOLS, *NETWORK_PROTOCOLS]
    allowed = ", ".join(known)
    if not names:
        raise UserError(f"--protocol was empty; expected {allowed}, joined by commas")
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise UserError(f"--protocol was {name!r}{hint}; expected {allowed}")


def _check_sets(train: Labelled, test: Labelled) -> None:
    for role, part in (("train", train), ("test", test)):
        if not len(part):
            raise UserError(
                f"the {role} set was empty; an evaluation needs at least one labelled image in it"
            )
        bad = int((~part.features.isfinite()).any(1).sum())
        if bad:
            raise UserError(
                f"the {role} features were NaN or infinite for {bad} of {len(part)} images; only finite features "
                "can be evaluated"
            )
    unseen = test.labels.unique()[~torch.isin(test.labels.unique(), train.labels.to(test.labels.device))]
    if len(unseen):
        shown = ", ".join(str(int(label)) for label in unseen[:5]) + (", …" if len(unseen) > 5 else "")
        raise UserError(
            f"the test labels had {shown}, which no training image has; expected classes seen in training"
        )
