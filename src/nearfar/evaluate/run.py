"""A trained run, judged: features of its frozen encoder under the protocols, beside baselines, written down."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.evaluate.features import (
    ImageSet,
    View,
    cached_features,
    encoder_digest,
    features,
    features_key,
    pixels_features,
    write_whole,
)
from nearfar.evaluate.labels import Labelled, stratified_split
from nearfar.evaluate.mfcc import mfcc_features
from nearfar.evaluate.protocols import check_protocols, scores
from nearfar.evaluate.symbols import Hiding, frequency_scores, masked_scores, symbol_frequencies
from nearfar.method import Method
from nearfar.views import WholeSound, WholeText

HELD_SHARE = 0.2

Embed = Callable[[ImageSet], Float[Tensor, "image dim"]]


class TrainedRun(Protocol):
    """What an evaluation needs of a run (`nearfar.train.run.Run` is one)."""

    @property
    def path(self) -> Path: ...
    def encoder(self) -> nn.Module: ...
    def untrained(self) -> nn.Module: ...
    def plain(self) -> View: ...
    def images(self, spec: Any = None, /) -> Any: ...  # an ImageSet


class ReadingRun(TrainedRun, Protocol):
    """What it needs beside that of a run on symbols."""

    def method(self) -> Method: ...
    def views(self) -> Hiding: ...


def evaluate_run(
    run: TrainedRun,
    data: str | None = None,
    protocols: Sequence[str] = ("knn", "linear"),
    baselines: bool = False,
    k: int = 20,
    temperature: float = 0.07,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """How good the run's frozen features are; also merged into RUN/evaluation.json.

    Protocols fit on the training data and are tested on `data`. Without `data`, or when it is the training data
    again, a stratified fifth of the training data is held out from the fit (the encoder has seen its pixels,
    never its labels), and the result says so under "split". Where the training data have no labels at all, that is
    done with `data` instead.

    A run on symbols is judged by how well it tells hidden ones ("masked"), and by the protocols only where there are
    labels.
    """
    check_protocols(protocols)
    reads = isinstance(run.plain(), WholeText)
    settings = {"k": k, "temperature": temperature, "seed": seed}
    result: dict[str, Any] = {}
    if not reads or _labelled(run, data):
        result = _by_protocols(run, data, protocols, baselines, settings)
    if reads:
        result = _with_symbols_told(cast(ReadingRun, run), data, baselines, seed, result)
    result |= {"settings": settings, "encoder": encoder_digest(run.encoder())}
    _record(run.path / "evaluation.json", result)
    return result


def _by_protocols(
    run: TrainedRun, data: str | None, protocols: Sequence[str], baselines: bool, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What the protocols say of the learned features, and of the baselines' where they are asked for."""
    exam = _exam(run, data, settings["seed"])
    plain, encoder, cache = run.plain(), run.encoder(), run.path / "cache"
    device = _solving_device(encoder)

    def judged(embed: Embed) -> dict[str, dict[str, float]]:
        fit, ask = (part.to(device) for part in exam.sets(embed))
        return scores(fit, ask, protocols, **settings)

    result: dict[str, Any] = {**judged(_embedding(encoder, plain, cache)), **exam.facts()}
    if baselines:
        result["baselines"] = {
            **{name: judged(embed) for name, embed in _unlearned(plain).items()},
            "untrained": judged(_embedding(run.untrained(), plain, cache)),
        }
    return result


def _unlearned(plain: View) -> dict[str, Embed]:
    """Features that nothing was learned for, by name: raw pixels, cepstra of sound, frequencies of symbols."""
    if isinstance(plain, WholeSound):
        return {
            "mfcc": lambda sounds: mfcc_features(sounds),
            "mfcc-moments": lambda sounds: mfcc_features(sounds, moments=True),
        }
    if isinstance(plain, WholeText):
        return {"frequencies": symbol_frequencies}
    return {"pixels": lambda images: pixels_features(images, plain)}


def _labelled(run: TrainedRun, data: str | None) -> bool:
    return all(run.images(spec).labels is not None for spec in {None, data})


def _with_symbols_told(
    run: ReadingRun, data: str | None, baselines: bool, seed: int, result: dict[str, Any]
) -> dict[str, Any]:
    """Adds how well hidden symbols of `data` are told, or of the training text itself where there is none."""
    train = run.images()
    test = train if data is None else run.images(data)
    method, hiding = run.method(), run.views()
    device = next(run.encoder().parameters()).device
    facts = {
        "samples": {"train": len(train), "test": len(test)},
        "data": {"train": _facts(train), "test": _facts(test)},
        "split": None,
    }
    told = {"masked": masked_scores(method, test, hiding, device=device, seed=seed)}
    if not baselines:
        return {**facts, **result, **told}
    by_frequency = {"masked": frequency_scores(train, test, hiding, seed=seed)}
    before = result.get("baselines", {})
    both = {**before, "frequencies": {**before.get("frequencies", {}), **by_frequency}}
    return {**facts, **result, **told, "baselines": both}


@dataclass(frozen=True)
class _HeldOut:
    """Fit on part of a set, ask about the rest of it."""

    images: ImageSet
    labels: Int[Tensor, "image"]
    seed: int

    @property
    def rows(self) -> tuple[Int[Tensor, "rest"], Int[Tensor, "held"]]:
        return stratified_split(self.labels, HELD_SHARE, self.seed)

    def sets(self, embed: Embed) -> tuple[Labelled, Labelled]:
        whole = Labelled(embed(self.images), self.labels)
        rest, held = self.rows
        return whole.rows(rest), whole.rows(held)

    def facts(self) -> dict[str, Any]:
        rest, held = self.rows
        return {
            "samples": {"train": len(rest), "test": len(held)},
            "data": {"train": _facts(self.images), "test": _facts(self.images)},
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

    train: ImageSet
    labels: Int[Tensor, "train"]
    test: ImageSet
    test_labels: Int[Tensor, "test"]

    def sets(self, embed: Embed) -> tuple[Labelled, Labelled]:
        return Labelled(embed(self.train), self.labels), Labelled(embed(self.test), self.test_labels)

    def facts(self) -> dict[str, Any]:
        return {
            "samples": {"train": len(self.labels), "test": len(self.test_labels)},
            "data": {"train": _facts(self.train), "test": _facts(self.test)},
            "split": None,
        }


def _exam(run: TrainedRun, data: str | None, seed: int) -> _HeldOut | _TwoSets:
    train: ImageSet = run.images()
    test: ImageSet = train if data is None else run.images(data)
    if (
        data is not None and train.labels is None
    ):  # nothing to fit on there, so the labelled set serves for both
        return _held_out(test, seed)
    if test.fingerprint == train.fingerprint:
        return _held_out(train, seed)
    labels = _labels(train)
    known = aligned_labels(_labels(test), test, train)
    return _TwoSets(train, torch.from_numpy(labels), test, torch.from_numpy(known))


def _held_out(images: ImageSet, seed: int) -> _HeldOut:
    exam = _HeldOut(images, torch.from_numpy(_labels(images)), seed)
    if not len(exam.rows[1]):
        raise UserError(
            f"{images.name} has one image of each class, so none can be held out; give labelled test data by --data"
        )
    return exam


def _embedding(encoder: nn.Module, plain: View, cache: Path) -> Embed:
    device = next((value.device for value in encoder.parameters()), torch.device("cpu"))

    def embed(images: ImageSet) -> Tensor:
        compute = lambda: features(encoder, images, plain, device=device)
        return cached_features(cache, features_key(encoder, images, plain), compute)

    return embed


def _solving_device(encoder: nn.Module) -> torch.device:
    """Where the encoder is, if float64 exists there (the linear probe needs it); else the CPU."""
    home = next((value.device for value in encoder.parameters()), torch.device("cpu"))
    return home if home.type == "cuda" else torch.device("cpu")


def _labels(images: ImageSet) -> Int64[np.ndarray, "image"]:
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


def aligned_labels(
    labels: Int64[np.ndarray, "image"], test: ImageSet, train: ImageSet
) -> Int64[np.ndarray, "image"]:
    """The test set's labels in the training set's numbering.

    Two folders number their class folders apart: 1 may be "dog" here and "cat" there, so names decide. Without
    names on both sides the numbers are all there is.
    """
    if not test.classes or not train.classes:
        return labels
    place = {name: number for number, name in enumerate(train.classes)}
    missing = [test.classes[label] for label in np.unique(labels) if test.classes[label] not in place]
    if missing:
        shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise UserError(
            f"--data {test.name} has the classes {shown}, which {train.name} has not; "
            "allowed are classes seen in training"
        )
    return np.array([place.get(name, -1) for name in test.classes], dtype=np.int64)[labels]


def _facts(images: ImageSet) -> dict[str, Any]:
    unit = getattr(images, "unit", "images")
    return {
        "name": str(images.name),
        "fingerprint": images.fingerprint,
        "unit": unit,
        "images": len(images),
    }


def _record(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result, keeping earlier protocols and baselines of the same encoder, data and settings."""
    earlier = _comparable(path, result)
    before, now = earlier.get("baselines", {}), result.get("baselines", {})
    baselines = {name: {**before.get(name, {}), **now.get(name, {})} for name in {**before, **now}}
    merged = {**earlier, **result, **({"baselines": baselines} if baselines else {})}
    try:
        write_whole(path, (json.dumps(merged, indent=2) + "\n").encode())
    except OSError as problem:
        raise UserError(
            f"{path} could not be written ({problem.strerror}); the figures were computed but not saved"
        ) from None


def _comparable(path: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """What the file holds, if it judges the same features of the same data in the same way; else nothing."""
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    same = ("data", "split", "settings", "encoder")
    alike = isinstance(earlier, dict) and all(earlier.get(key, "") == result[key] for key in same)
    return earlier if alike else {}
