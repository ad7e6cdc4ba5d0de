"""The ways frozen features are judged, by name. A new one is a function of two labelled sets plus one line."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from nearfar.errors import UserError
from nearfar.evaluate.knn import knn
from nearfar.evaluate.labels import Labelled
from nearfar.evaluate.linear import linear


@dataclass(frozen=True)
class Options:
    """What a protocol may be told."""

    k: int = 20
    temperature: float = 0.07
    seed: int = 0


Protocol = Callable[[Labelled, Labelled, Options], dict[str, float]]


def _knn(train: Labelled, test: Labelled, knobs: Options) -> dict[str, float]:
    """The weighted cosine vote of the k nearest (Wu et al. 2018)."""
    return knn(
        train.features, train.labels, test.features, test.labels, k=knobs.k, temperature=knobs.temperature
    )


def _nearest(train: Labelled, test: Labelled, knobs: Options) -> dict[str, float]:
    """The class of the one nearest by Euclidean distance; it names one class, so top-5 is top-1."""
    return knn(train.features, train.labels, test.features, test.labels, k=1, weighting="l2")


def _linear(train: Labelled, test: Labelled, knobs: Options) -> dict[str, float]:
    """Penalised logistic regression, solved; the penalty chosen within train."""
    return linear(train.features, train.labels, test.features, test.labels, seed=knobs.seed)


PROTOCOLS: Mapping[str, Protocol] = {"knn": _knn, "nearest": _nearest, "linear": _linear}


def scores(
    train: Labelled,
    test: Labelled,
    protocols: Sequence[str] = ("knn", "linear"),
    *,
    k: int = 20,
    temperature: float = 0.07,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Every asked protocol's figures, by its name: `{"knn": {"top1": …, "top5": …}, …}`."""
    check_protocols(protocols)
    _check_sets(train, test)
    knobs = Options(k, temperature, seed)
    return {name: PROTOCOLS[name](train, test, knobs) for name in protocols}


def check_protocols(names: Sequence[str]) -> None:
    """Stop at a protocol that does not exist, before any feature is computed."""
    allowed = ", ".join(PROTOCOLS)
    if not names:
        raise UserError(f"--protocol was empty; expected {allowed}, joined by commas")
    for name in names:
        if name not in PROTOCOLS:
            close = difflib.get_close_matches(name, PROTOCOLS, n=1)
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
