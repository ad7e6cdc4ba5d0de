"""A trained run, judged: features of its frozen encoder under the protocols, beside baselines, written down."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.evaluate.labels import Labelled, stratified_split
from nearfar.evaluate.matching import Matching, Unmatched, matched
from nearfar.evaluate.protocols import (
    NETWORK_PROTOCOLS,
    PROTOCOLS,
    LabelledSet,
    Subject,
    check_protocols,
    network_scores,
    scores,
)
from nearfar.intervals import CONFIDENCE, with_intervals
from nearfar.method import Method
from nearfar.modalities import DataSet, Instances, Modality
from nearfar.modalities.base import MakeViews, Measure
from nearfar.run.answers import without_answers
from nearfar.run.features import (
    cached_features,
    encoder_digest,
    features,
    features_key,
)
from nearfar.run.results import record

HELD_SHARE = 0.2

Embed = Callable[[Instances], Float[Tensor, "image dim"]]


class TrainedRun(Protocol):
    """What an evaluation needs of a run (`nearfar.run.trained.Run` is one)."""

    @property
    def path(self) -> Path: ...
    def encoder(self) -> nn.Module: ...
    def untrained(self) -> nn.Module: ...
    @property
    def modality(self) -> Modality: ...
    def plain(self) -> MakeViews: ...
    def images(self, spec: Any = None, /) -> Any: ...  # an Instances


class MethodRun(TrainedRun, Protocol):
    """What a measure without labels needs beside that."""

    def method(self) -> Method: ...
    def views(self) -> MakeViews: ...


def evaluate_run(
    run: TrainedRun,
    data: Any = None,
    protocols: Sequence[str] = ("knn", "linear"),
    baselines: bool = False,
    k: int = 20,
    temperature: float = 0.07,
    *,
    train: Any = None,
    same_labels: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """How good the run's frozen features are; also kept in RUN/evaluation.json, beside what other test sets said.

    Protocols fit on `train` (default: the run's data) and are tested on `data`, each anything that `open_data` takes. Without `data`, or when it is the set
    fitted on again, a stratified fifth of that set is held out from the fit (of its own data the encoder has seen the
    pixels, never the labels), and the result says so under "split". Where the run's data have no labels at all and no
    `train` is given, that is done with `data` instead.

    Classes of two sets are matched by name; `same_labels` says that two sets without names number them alike.

    Where the modality has measures that need no labels (of text, how well hidden symbols are told: "masked"), they are taken too,
    and the protocols are asked only where there are labels.
    """
    check_protocols(protocols)
    measures = run.modality.measures()
    settings = {"k": k, "temperature": temperature, "seed": seed}
    asked = Asked(run, train, data, same_labels)
    result: dict[str, Any] = {}
    if not measures or asked.labelled():
        result = _by_protocols(asked, protocols, baselines, settings)
    for name, measure in measures.items():
        result = _measured(asked, name, measure, baselines, seed, result)
    result |= {"confidence": CONFIDENCE, "settings": settings, "encoder": encoder_digest(asked.encoder)}
    if unfinished := getattr(run, "unfinished", ""):
        result["unfinished"] = unfinished
    record(run.path / "evaluation.json", result)
    return without_answers(result)


@dataclass(frozen=True)
class Asked:
    """Which encoder, fitted on what, tested on what."""

    run: TrainedRun
    train: Any
    data: Any
    same_labels: bool

    @cached_property
    def sets(self) -> tuple[Instances, Instances]:
        """The set to fit on and the set to test on; one and the same where one is given, or none."""
        train: Instances = self.run.images(self.train)
        if self.data is None or _same(self.data, self.train):
            return train, train
        return train, self.run.images(self.data)

    @cached_property
    def encoder(self) -> nn.Module:
        return self.run.encoder()

    def labelled(self) -> bool:
        return all(images.labels is not None for images in self.sets)

    def split(self, seed: int) -> "_HeldOut | _TwoSets":
        train, test = self.sets
        # nothing to fit on in the run's own data, so the labelled set serves for both
        if self.train is None and self.data is not None and train.labels is None:
            train = test
        if test.fingerprint == train.fingerprint:
            return _held_out(train, seed)
        labels = _labels(train)
        try:
            matching = matched(_labels(test), test, labels, train, self.same_labels)
        except Unmatched as problem:
            ways = [
                *([problem.way] if problem.way else []),
                f"give --train a set labelled like {test.name} ({test.name} itself will do: a fifth of it is then held out)",
            ]
            raise UserError(f"{problem}; {', or '.join(ways)}") from None
        return _TwoSets(train, torch.from_numpy(labels), test, matching)


def _same_name(one: Any, other: Any) -> bool:
    return isinstance(one, str) and isinstance(other, str) and one == other


def _by_protocols(
    asked: Asked, protocols: Sequence[str], baselines: bool, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What the protocols say of the learned features, and of the baselines' where they are asked for."""
    run, split = asked.run, asked.split(settings["seed"])
    plain, encoder, cache = run.plain(), asked.encoder, run.path / "cache"
    device = _solving_device(encoder)

    def judged(embed: Embed) -> dict[str, dict[str, Any]]:
        fit, ask = (part.to(device) for part in split.sets(embed))
        found = scores(fit, ask, protocols, **settings)
        return {name: with_intervals(figures, len(ask)) for name, figures in found.items()}

    def tried(network: nn.Module) -> dict[str, dict[str, Any]]:
        """What the features say, and what the network does where a protocol asks for that."""
        by_features = judged(_embedding(network, plain, cache)) if _any(protocols, PROTOCOLS) else {}
        if not _any(protocols, NETWORK_PROTOCOLS):
            return by_features
        fit, ask = split.labelled()
        subject = Subject(network, plain, fit, ask, next(network.parameters()).device)
        found = network_scores(subject, protocols, **settings)
        return by_features | {n: with_intervals(figures, len(ask.labels)) for n, figures in found.items()}

    result: dict[str, Any] = {**tried(encoder), **split.facts()}
    if baselines:
        kinds = run.modality.baselines(plain) if _any(protocols, PROTOCOLS) else {}
        result["baselines"] = {
            **{name: judged(embed) for name, embed in kinds.items()},
            "untrained": tried(run.untrained()),
        }
    return result


def _any(asked: Sequence[str], known: Mapping[str, Any]) -> bool:
    return any(name in known for name in asked)


def _measured(
    asked: Asked, name: str, measure: Measure, baselines: bool, seed: int, result: dict[str, Any]
) -> dict[str, Any]:
    """Adds a measure without labels, taken of `data`, or of the training data themselves where there are none."""
    train, test = asked.sets
    run = cast(MethodRun, asked.run)
    method, views = run.method(), run.views()
    device = next(asked.encoder.parameters()).device
    seen = asked.train is None and train.fingerprint == test.fingerprint
    tested = _facts(test, f"{test.name}, the training {run.modality.holds} itself" if seen else None)
    facts = {"train": _facts(train), "test": tested, "split": None}
    learned = {name: measure.learned(method, test, views, device=device, seed=seed)}
    if (
        result and result["test"] != tested
    ):  # the protocols hold labelled ones out, this asks about all of them
        learned[name]["test"] = tested
    if not baselines:
        return {**facts, **result, **learned}
    both = dict(result.get("baselines", {}))
    for kind, figures in measure.baselines.items():
        both[kind] = {**both.get(kind, {}), name: figures(train, test, views, seed=seed)}
    return {**facts, **result, **learned, "baselines": both}


@dataclass(frozen=True)
class _HeldOut:
    """Fit on part of a set, ask about the rest of it."""

    images: Instances
    labels: Int[Tensor, "image"]
    seed: int

    @property
    def rows(self) -> tuple[Int[Tensor, "rest"], Int[Tensor, "held"]]:
        return stratified_split(self.labels, HELD_SHARE, self.seed)

    def sets(self, embed: Embed) -> tuple[Labelled, Labelled]:
        whole = Labelled(embed(self.images), self.labels)
        rest, held = self.rows
        return whole.rows(rest), whole.rows(held)

    def labelled(self) -> tuple[LabelledSet, LabelledSet]:
        fit, ask = (
            LabelledSet(cast(DataSet, self.images).subset(rows.numpy()), self.labels[rows])
            for rows in self.rows
        )
        return fit, ask

    def facts(self) -> dict[str, Any]:
        rest, held = self.rows
        kept, asked = (
            f"{1 - HELD_SHARE:.0%} of {self.images.name}",
            f"a held-out {HELD_SHARE:.0%} of {self.images.name}",
        )
        return {
            "train": _facts(self.images, kept, rest),
            "test": _facts(self.images, asked, held),
            "split": {
                "of": str(self.images.name),
                "share": HELD_SHARE,
                "seed": self.seed,
                "stratified": True,
            },
        }


@dataclass(frozen=True)
class _TwoSets:
    """Fit on one set, ask about another; both labelled in the first one's numbering."""

    train: Instances
    labels: Int[Tensor, "train"]
    test: Instances
    matching: Matching

    def sets(self, embed: Embed) -> tuple[Labelled, Labelled]:
        known = torch.from_numpy(self.matching.labels)
        return Labelled(embed(self.train), self.labels), Labelled(embed(self.test), known)

    def labelled(self) -> tuple[LabelledSet, LabelledSet]:
        return (
            LabelledSet(self.train, self.labels),
            LabelledSet(self.test, torch.from_numpy(self.matching.labels)),
        )

    def facts(self) -> dict[str, Any]:
        return {
            "train": _facts(self.train),
            "test": _facts(self.test),
            "split": None,
            "labels": self.matching.facts(),
        }


def _same(one: Any, other: Any) -> bool:
    """Whether two specifications are one, without looking: arrays are compared by what they are, not number by number."""
    return one is other or (
        isinstance(one, (str, Path)) and isinstance(other, (str, Path)) and str(one) == str(other)
    )


def _held_out(images: Instances, seed: int) -> _HeldOut:
    exam = _HeldOut(images, torch.from_numpy(_labels(images)), seed)
    if not len(exam.rows[1]):
        raise UserError(
            f"{images.name} has one image of each class, so none can be held out; give labelled test data with --data"
        )
    return exam


def _embedding(encoder: nn.Module, plain: MakeViews, cache: Path) -> Embed:
    device = next((value.device for value in encoder.parameters()), torch.device("cpu"))

    def embed(images: Instances) -> Tensor:
        compute = lambda: features(encoder, images, plain, device=device)
        return cached_features(cache, features_key(encoder, images, plain), compute)

    return embed


def _solving_device(encoder: nn.Module) -> torch.device:
    """Where the encoder is, if float64 exists there (the linear probe needs it); else the CPU."""
    home = next((value.device for value in encoder.parameters()), torch.device("cpu"))
    return home if home.type == "cuda" else torch.device("cpu")


def _labels(images: Instances) -> Int64[np.ndarray, "image"]:
    if images.labels is None or not len(images.labels):
        raise UserError(
            f"{images.name} has no labels; evaluation needs class folders, a label column or a labels array"
        )
    labels = np.array(images.labels, dtype=np.int64)
    unknown = int((labels < 0).sum())
    if unknown:
        raise UserError(
            f"{images.name} has {unknown} images with a label below 0 (unknown); evaluation needs every image labelled"
        )
    return labels


def _facts(
    images: Instances, name: str | None = None, rows: Int[Tensor, "row"] | None = None
) -> dict[str, Any]:
    """A set to be named under a score, or some rows of it, which are then a set of their own."""
    mark = images.fingerprint.encode() + (b"" if rows is None else rows.cpu().numpy().astype("<i8").tobytes())
    return {
        "name": name or str(images.name),
        "samples": len(images) if rows is None else len(rows),
        "fingerprint": images.fingerprint if rows is None else hashlib.sha256(mark).hexdigest(),
        "unit": getattr(images, "unit", "images"),
    }
