"""Which class of a test set is which class of the set a protocol was fitted on: never guessed.

Numbers alone say nothing: 3 is a cat in one set and a coat in another, and scoring one against the other gives a figure
that looks like a bad encoder. So

- with names on both sides (class folders, strings, a ClassLabel feature, `classes` in an .npz), names decide, and every
  class of the test set must have its namesake;
- without, the numbering is taken to be the same where the two are splits of one set by the Hugging Face convention for
  file names (`fsdd_train.parquet` beside `fsdd_test.parquet`, `set/train/` beside `set/test/`) and the same numbers occur in
  both;
- else only the user can know, and says so (`--same-labels`); the test set's numbers must then occur among the others.
  Equal ranges alone are no evidence: ten classes numbered 0 to 9 are the commonest set there is.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int64

from nearfar.errors import UserError

_SHOWN = 5  # classes named in a sentence
# the words that mark a split in the Hugging Face convention (and in MNIST's files), no letter on either side, and the number of a shard
_SPLIT = re.compile(
    r"(?<![a-z])(train(ing)?|validation|valid|val|dev|test(ing)?|eval(uation)?|t10k)(?![a-z])", re.IGNORECASE
)
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.)")

Numbers = Int64[np.ndarray, "image"]


class Classed(Protocol):
    """A set whose classes may have names."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...


class Unmatched(UserError):
    """Two sets whose classes are not known to be the same; `way` is one more way on, for whom it is open."""

    def __init__(self, reason: str, way: str = "") -> None:
        super().__init__(reason)
        self.way = way


@dataclass(frozen=True)
class Matching:
    """The test set's labels in the training set's numbering, and how they came there."""

    labels: Numbers
    by: str  # "name" or "number"
    why: str  # the evidence
    pairs: Mapping[str, tuple[int, int]]  # class: its number in train, its number in test
    unasked: tuple[str, ...]  # classes of the training set that the test set has not

    def facts(self) -> dict[str, Any]:
        return {
            "matched_by": self.by,
            "because": self.why,
            "classes": {name: {"train": a, "test": b} for name, (a, b) in self.pairs.items()},
            "not_in_test": list(self.unasked),
        }


def matched(
    labels: Numbers, test: Classed, train_labels: Numbers, train: Classed, same_labels: bool = False
) -> Matching:
    """The test set's labels as the training set numbers them, or a sentence about what does not match."""
    if test.classes and train.classes:
        return _by_name(labels, test, train_labels, train)
    known, asked = set(train_labels.tolist()), set(labels.tolist())
    if not same_labels and not (known == asked and splits_of_one_set(train.name, test.name)):
        bare = [str(images.name) for images in (train, test) if not images.classes]
        raise Unmatched(
            f"the labels of {' and '.join(bare)} are numbers without names, so nothing says that class 0 of {train.name} is class "
            f"0 of {test.name}; name the classes (class folders, strings, or `classes` in an .npz)",
            "say --same-labels if both are numbered alike",
        )
    why = "--same-labels" if same_labels else "splits of one set by their file names"
    return _by_number(labels, test, train_labels, train, why)


def splits_of_one_set(one: str, other: str) -> bool:
    """Whether two paths differ in nothing but the words for splits."""
    family = [_SHARD.sub("", _SPLIT.sub("*", os.path.abspath(name))) for name in (one, other)]
    return one != other and family[0] == family[1]


def _by_name(labels: Numbers, test: Classed, train_labels: Numbers, train: Classed) -> Matching:
    place = {train.classes[number]: int(number) for number in np.unique(train_labels)}
    asked = {test.classes[number]: int(number) for number in np.unique(labels)}
    missing = [name for name in asked if name not in place]
    if missing:
        found = [name for name in asked if name in place]
        raise Unmatched(
            f"{test.name} has the classes {_some(missing)}, which {train.name} has not ({len(found)} of {len(asked)} match by name"
            f"{': ' + _some(found) if found else ''})"
        )
    renumbered = np.full(max(asked.values()) + 1, -1, dtype=np.int64)
    renumbered[list(asked.values())] = [place[name] for name in asked]
    pairs = {name: (place[name], number) for name, number in asked.items()}
    return Matching(
        renumbered[labels], "name", "names", pairs, tuple(name for name in place if name not in asked)
    )


def _by_number(labels: Numbers, test: Classed, train_labels: Numbers, train: Classed, why: str) -> Matching:
    names = train.classes or test.classes
    called = lambda number: names[number] if number < len(names) else str(number)
    known, asked = np.unique(train_labels).tolist(), np.unique(labels).tolist()
    strange = [str(number) for number in asked if number not in known]
    if strange:
        raise Unmatched(
            f"--same-labels was given, but {test.name} has the labels {_some(strange)}, which no instance of {train.name} has; its "
            f"labels are {_some([str(number) for number in known])}"
        )
    pairs = {called(number): (number, number) for number in asked}
    unasked = tuple(called(number) for number in known if number not in asked)
    return Matching(labels, "number", why, pairs, unasked)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
