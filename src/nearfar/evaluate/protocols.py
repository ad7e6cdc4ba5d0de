"""The ways features and networks are judged, by name.

A new one is a function plus one line: of two labelled sets of features in `PROTOCOLS`, or, where features do not say enough, of the
network and the data in `NETWORK_PROTOCOLS`.
"""

import copy
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from nearfar.errors import UserError
from nearfar.evaluate.few import few_shot, fractions
from nearfar.evaluate.figures import classified
from nearfar.evaluate.finetune import finetune, finetune_fractions, own_classifier
from nearfar.evaluate.knn import ranked_classes
from nearfar.evaluate.labels import Labelled
from nearfar.evaluate.mlp import mlp
from nearfar.evaluate.options import Options
from nearfar.evaluate.probabilities import calibration, information, linear_probe
from nearfar.evaluate.structure import clustering, retrieval
from nearfar.evaluate.subject import LabelledSet, Subject
from nearfar.evaluate.unlabelled import quality

__all__ = ["NETWORK_PROTOCOLS", "PROTOCOLS", "UNLABELLED_PROTOCOLS", "LabelledSet", "Options", "Subject"]

Protocol = Callable[[Labelled, Labelled, Options], dict[str, Any]]


def _knn(train: Labelled, test: Labelled, options: Options) -> dict[str, Any]:
    """The weighted cosine vote of the k nearest (Wu et al. 2018)."""
    found = ranked_classes(
        train.features,
        train.labels,
        test.features,
        k=options.k,
        temperature=options.temperature,
        strategy=options.strategy,
    )
    return classified(found, test.labels)


def _nearest(train: Labelled, test: Labelled, options: Options) -> dict[str, Any]:
    """The class of the one nearest by Euclidean distance; it names one class, so top-5 is top-1."""
    found = ranked_classes(
        train.features, train.labels, test.features, k=1, weighting="l2", strategy=options.strategy
    )
    return classified(found, test.labels)


def _linear(train: Labelled, test: Labelled, options: Options) -> dict[str, Any]:
    """Penalised logistic regression, solved; the penalty chosen within train."""
    classifier, penalty = linear_probe(train, options.seed)
    found = classifier.ranked_classes(test.features.to(train.features.device))
    return {**classified(found, test.labels), "penalty": penalty}


PROTOCOLS: dict[str, Protocol] = {
    "knn": _knn,
    "nn": _nearest,
    "nearest": _nearest,  # the same, as it was called first
    "linear": _linear,
    "mlp": mlp,
    "fractions": fractions,
    "few-shot": few_shot,
    "clustering": clustering,
    "retrieval": retrieval,
    "calibration": calibration,
    "information": information,
}

SHARED = ("knn", "nn", "nearest")  # by several ranks; of all others the first finds the answer, and tells it

NetworkProtocol = Callable[[Subject, Options], dict[str, Any]]
# asked of networks alone: raw pixels and the like have none
NETWORK_PROTOCOLS: dict[str, NetworkProtocol] = {
    "finetune": finetune,
    "finetune-fractions": finetune_fractions,
    "classifier": own_classifier,
}
# asked of networks, and no label is looked at
UNLABELLED_PROTOCOLS: dict[str, NetworkProtocol] = {"quality": quality}


def scores(
    train: Labelled,
    test: Labelled,
    protocols: Sequence[str] = ("knn", "linear"),
    options: Options | None = None,
    **told: Any,
) -> dict[str, dict[str, Any]]:
    """Every asked protocol's figures, by its name: `{"knn": {"top1": …, "top5": …}, …}`; of those that features can answer."""
    check_protocols(protocols)
    protocols = [name for name in protocols if name in PROTOCOLS]
    _check_sets(train, test)
    options = options or Options(**told)

    def asked(name: str) -> dict[str, Any]:
        answer = partial(PROTOCOLS[name], train, test, options)
        return answer() if name in SHARED else options.strategy.on_first(answer)

    return {name: asked(name) for name in protocols}


def network_scores(
    subject: Subject,
    protocols: Sequence[str],
    options: Options,
    known: Mapping[str, NetworkProtocol] = NETWORK_PROTOCOLS,
) -> dict[str, dict[str, Any]]:
    """Figures of the asked protocols that need the network itself; each has a copy of its own."""

    def asked(protocol: NetworkProtocol) -> dict[str, Any]:
        return protocol(replace(subject, encoder=copy.deepcopy(subject.encoder)), options)

    return {
        name: options.strategy.on_first(partial(asked, protocol))
        for name, protocol in known.items()
        if name in protocols
    }


def check_protocols(names: Sequence[str]) -> None:
    """Stop at a protocol that does not exist, before any feature is computed."""
    known = [*PROTOCOLS, *NETWORK_PROTOCOLS, *UNLABELLED_PROTOCOLS]
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
