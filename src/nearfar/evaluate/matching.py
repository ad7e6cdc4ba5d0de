"""Matches the classes of a test set with those of the set that a protocol was fitted on, without guessing.

Numbers alone do not identify classes: 3 is a cat in one set and a coat in another, and scoring one against
the other gives a figure that looks like a bad encoder. So

- if both sets have names (class folders, strings, a ClassLabel feature, `classes` in an .npz), classes are
  matched by name, and every class of the test set must have its namesake;
- without names, the numbers are taken to be the same if the two sets are splits of one set and the same numbers
  occur in both; splits are known by the Hugging Face convention for file names (`fsdd_train.parquet` beside
  `fsdd_test.parquet`, `set/train/` beside `set/test/`);
- otherwise the user must state it (`--same-labels`); the numbers of the test set must then occur in the
  other. Equal ranges alone are no evidence: many sets have ten classes numbered 0 to 9."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int64

from nearfar.errors import UserError

MAX_NAMED = 5  # classes listed in a message
# words that mark a split in the Hugging Face convention, no letter on either side, and a shard's number
_SPLIT = re.compile(
    r"(?<![a-z])(train(ing)?|validation|valid|val|dev|test(ing)?|eval(uation)?|t10k)(?![a-z])", re.IGNORECASE
)
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.)")

Numbers = Int64[np.ndarray, "instance"]


class Classed(Protocol):
    """A set whose classes may have names."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...


class UnmatchedClasses(UserError):
    """The classes of two sets cannot be matched; `remedy` is an option that helps, where there is one."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True)
class Matching:
    """The labels of the test set in the numbers of the training set, and how they were matched."""

    labels: Numbers
    by: str  # "name" or "number"
    evidence: str
    pairs: Mapping[str, tuple[int, int]]  # class: its number in train, its number in test
    missing: tuple[str, ...]  # classes of the training set that the test set does not have

    def facts(self) -> dict[str, Any]:
        return {
            "matched_by": self.by,
            "because": self.evidence,
            "classes": {name: {"train": a, "test": b} for name, (a, b) in self.pairs.items()},
            "not_in_test": list(self.missing),
        }


def match_labels(
    labels: Numbers, test: Classed, train_labels: Numbers, train: Classed, same_labels: bool = False
) -> Matching:
    """The labels of the test set in the numbers of the training set; stops where classes do not match."""
    if test.classes and train.classes:
        return _by_name(labels, test, train_labels, train)
    same_numbers = set(train_labels.tolist()) == set(labels.tolist())
    if not same_labels and not (same_numbers and splits_of_one_set(train.name, test.name)):
        unnamed = [str(images.name) for images in (train, test) if not images.classes]
        raise UnmatchedClasses(
            f"the labels of {' and '.join(unnamed)} are numbers without names, so class 0 of "
            f"{train.name} may not be class 0 of "
            f"{test.name}; name the classes (class folders, strings, or `classes` in an .npz)",
            "use --same-labels if both use the same numbers",
        )
    evidence = "--same-labels" if same_labels else "splits of one set by their file names"
    return _by_number(labels, test, train_labels, train, evidence)


def splits_of_one_set(first: str, second: str) -> bool:
    """Whether two paths differ only in the words for splits."""
    family = [_SHARD.sub("", _SPLIT.sub("*", os.path.abspath(name))) for name in (first, second)]
    return first != second and family[0] == family[1]


def _by_name(labels: Numbers, test: Classed, train_labels: Numbers, train: Classed) -> Matching:
    place = {train.classes[number]: int(number) for number in np.unique(train_labels)}
    test_classes = {test.classes[number]: int(number) for number in np.unique(labels)}
    unknown = [name for name in test_classes if name not in place]
    if unknown:
        matches = [name for name in test_classes if name in place]
        raise UnmatchedClasses(
            f"{test.name} has the classes {_listed(unknown)}, which {train.name} does not have "
            f"({len(matches)} of {len(test_classes)} match by name"
            f"{': ' + _listed(matches) if matches else ''})"
        )
    renumbered = np.full(max(test_classes.values()) + 1, -1, dtype=np.int64)
    renumbered[list(test_classes.values())] = [place[name] for name in test_classes]
    pairs = {name: (place[name], number) for name, number in test_classes.items()}
    return Matching(
        renumbered[labels], "name", "names", pairs, tuple(name for name in place if name not in test_classes)
    )


def _by_number(
    labels: Numbers, test: Classed, train_labels: Numbers, train: Classed, evidence: str
) -> Matching:
    names = train.classes or test.classes
    name_of = lambda number: names[number] if number < len(names) else str(number)
    train_numbers, test_numbers = np.unique(train_labels).tolist(), np.unique(labels).tolist()
    unknown = [str(number) for number in test_numbers if number not in train_numbers]
    if unknown:
        raise UnmatchedClasses(
            f"--same-labels was given, but {test.name} has the labels {_listed(unknown)}, which no instance "
            f"of {train.name} has; its labels are {_listed([str(number) for number in train_numbers])}"
        )
    pairs = {name_of(number): (number, number) for number in test_numbers}
    missing = tuple(name_of(number) for number in train_numbers if number not in test_numbers)
    return Matching(labels, "number", evidence, pairs, missing)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
