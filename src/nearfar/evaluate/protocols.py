"""Evaluation protocols by name.

A new one is a function plus one line: of two labelled sets of features in `PROTOCOLS`, or, where features are
not enough, of the network and the data in `NETWORK_PROTOCOLS`.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from nearfar.core.results import Measurement
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.errors import UserError, not_one_of
from nearfar.evaluate.accuracy import classified
from nearfar.evaluate.finetune import finetune, finetune_fractions, own_classifier
from nearfar.evaluate.knn import ranked_classes
from nearfar.evaluate.linear import fit_by_sgd, linear_probe
from nearfar.evaluate.measures import calibration, clustering, information, retrieval
from nearfar.evaluate.options import Options
from nearfar.evaluate.probes import few_shot, fractions, mlp
from nearfar.evaluate.quality import quality
from nearfar.evaluate.sets import LabelledFeatures, Subject

ProtocolResult = Measurement | Mapping[str, Measurement]  # one, or one for each of several settings
FeatureProtocol = Callable[[LabelledFeatures, LabelledFeatures, Options], ProtocolResult]
NetworkProtocol = Callable[[Subject, Options], ProtocolResult]


def _knn(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> Measurement:
    """The weighted cosine vote of the k nearest (Wu et al. 2018)."""
    ranked = ranked_classes(
        train.features,
        train.labels,
        test.features,
        k=options.k,
        temperature=options.temperature,
        strategy=options.strategy,
    )
    return classified(ranked, test.labels, train.class_count)


def _nearest(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> Measurement:
    """The class of the one nearest by Euclidean distance; it names one class, so top-5 is top-1."""
    ranked = ranked_classes(
        train.features, train.labels, test.features, k=1, weighting="l2", strategy=options.strategy
    )
    return classified(ranked, test.labels, train.class_count)


def _linear(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> Measurement:
    """Penalised logistic regression, solved exactly; the penalty is chosen within train."""
    classifier, penalty = linear_probe(train, options.seed)
    ranked = classifier.ranked_classes(test.features.to(train.features.device))
    return classified(ranked, test.labels, len(classifier.classes), {"penalty": penalty})


def _linear_sgd(train: LabelledFeatures, test: LabelledFeatures, options: Options) -> Measurement:
    """A linear classifier trained by SGD on the features as they are (Wu et al. 2021, sec. 5)."""
    classifier = fit_by_sgd(train.features, train.labels, seed=options.seed)
    ranked = classifier.ranked_classes(test.features.to(train.features.device))
    return classified(ranked, test.labels, len(classifier.classes))


PROTOCOLS: dict[str, FeatureProtocol] = {
    "knn": _knn,
    "nn": _nearest,
    "nearest": _nearest,  # the same by its longer name
    "linear": _linear,
    "linear-sgd": _linear_sgd,
    "mlp": mlp,
    "fractions": fractions,
    "few-shot": few_shot,
    "clustering": clustering,
    "retrieval": retrieval,
    "calibration": calibration,
    "information": information,
}
SHARED = ("knn", "nn", "nearest")  # computed by several ranks together; the others by the first rank alone

# of networks: raw pixels have none
NETWORK_PROTOCOLS: dict[str, NetworkProtocol] = {
    "finetune": finetune,
    "finetune-fractions": finetune_fractions,
    "classifier": own_classifier,
}
# of networks, and labels are not used
UNLABELLED_PROTOCOLS: dict[str, NetworkProtocol] = {"quality": quality}


def scores(
    train: LabelledFeatures,
    test: LabelledFeatures,
    protocols: Sequence[str] = ("knn", "linear"),
    options: Options | None = None,
    **changes: Any,
) -> dict[str, Measurement]:
    """The measurement of every named protocol that needs features only: `scores(…)["knn"]["top1"]`."""
    check_protocols(protocols)
    _check_sets(train, test)
    options = options or Options(**changes)
    measurements: dict[str, Measurement] = {}
    for name in protocols:
        if name in PROTOCOLS:
            compute = partial(PROTOCOLS[name], train, test, options)
            strategy = SINGLE if name in SHARED else options.strategy  # those share the work themselves
            measurements |= from_first_rank(strategy, name, compute)
    return measurements


def network_scores(
    subject: Subject,
    protocols: Sequence[str],
    options: Options,
    available: Mapping[str, NetworkProtocol] = NETWORK_PROTOCOLS,
) -> dict[str, Measurement]:
    """The measurement of every named protocol that needs the network; each gets its own copy."""

    def compute(protocol: NetworkProtocol) -> ProtocolResult:
        return protocol(replace(subject, encoder=copy.deepcopy(subject.encoder)), options)

    measurements: dict[str, Measurement] = {}
    for name, protocol in available.items():
        if name in protocols:
            measurements |= from_first_rank(options.strategy, name, partial(compute, protocol))
    return measurements


def from_first_rank(
    strategy: Strategy, name: str, compute: Callable[[], ProtocolResult]
) -> dict[str, Measurement]:
    """The measurements of the first rank, on every rank, by path; without those that have no figure."""

    def by_path() -> dict[str, Measurement]:
        measured = compute()
        if isinstance(measured, Measurement):
            return {name: measured} if measured.figures else {}
        return {f"{name}/{setting}": measurement for setting, measurement in measured.items()}

    if not strategy.is_distributed:
        return by_path()
    stored = strategy.on_first(
        lambda: {path: measurement.to_json(answers=True) for path, measurement in by_path().items()}
    )
    return {path: Measurement.from_json(stored_measurement) for path, stored_measurement in stored.items()}


def check_protocols(names: Sequence[str]) -> None:
    """Stops at an unknown protocol, before any feature is computed."""
    available = [*PROTOCOLS, *NETWORK_PROTOCOLS, *UNLABELLED_PROTOCOLS]
    if not names:
        raise UserError(f"--protocol was empty; expected {', '.join(available)}, joined by commas")
    for name in names:
        if name not in available:
            raise not_one_of("--protocol", name, available)


def _check_sets(train: LabelledFeatures, test: LabelledFeatures) -> None:
    for role, part in (("train", train), ("test", test)):
        if not len(part):
            raise UserError(
                f"the {role} set was empty; an evaluation needs at least one labelled image in it"
            )
        bad = int((~part.features.isfinite()).any(1).sum())
        if bad:
            raise UserError(
                f"the {role} features were NaN or infinite for {bad} of {len(part)} images; only finite "
                "features can be evaluated"
            )
    unseen = test.labels.unique()[~torch.isin(test.labels.unique(), train.labels.to(test.labels.device))]
    if len(unseen):
        listed = ", ".join(str(int(label)) for label in unseen[:5]) + (", …" if len(unseen) > 5 else "")
        raise UserError(
            f"the test labels had {listed}, which no training image has; expected classes seen in training"
        )
