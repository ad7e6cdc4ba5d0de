"""What a protocol is fitted on and what it is tested on: two sets, or two parts of one."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from nearfar.core.results import SetFacts
from nearfar.errors import UserError
from nearfar.evaluate.labels import Labelled, stratified_split
from nearfar.evaluate.matching import Matching
from nearfar.evaluate.subject import LabelledSet
from nearfar.modalities import DataSet, Instances

HELD_SHARE = 0.2
IN_PROPORTION = "the rows asked about were held out class by class, so that their labels are no independent draws; give others with --data"

Embed = Callable[[Instances], Float[Tensor, "image dim"]]


@dataclass(frozen=True)
class HeldOutPart:
    """Fit on part of a set, ask about the rest of it."""

    images: Instances
    labels: Int[Tensor, "image"]
    seed: int

    @property
    def rows(self) -> tuple[Int[Tensor, "rest"], Int[Tensor, "held"]]:
        parts = getattr(self.images, "parts", None)  # a data set of ours knows which of its instances overlap
        if parts is None:
            return stratified_split(self.labels, HELD_SHARE, self.seed)
        rest, held = parts(HELD_SHARE, self.seed)
        return torch.from_numpy(rest), torch.from_numpy(held)

    def sets(self, embed: Embed) -> tuple[Labelled, Labelled]:
        whole = Labelled(embed(self.images), self.labels)
        rest, held = self.rows
        return whole.rows(rest), replace(whole.rows(held), dependent=IN_PROPORTION)

    def labelled(self) -> tuple[LabelledSet, LabelledSet]:
        fit, ask = (
            LabelledSet(cast(DataSet, self.images).subset(rows.numpy()), self.labels[rows])
            for rows in self.rows
        )
        return fit, ask

    def facts(self) -> tuple[SetFacts, SetFacts]:
        rest, held = self.rows
        return (
            set_facts(self.images, f"{1 - HELD_SHARE:.0%} of {self.images.name}", rest),
            set_facts(self.images, f"a held-out {HELD_SHARE:.0%} of {self.images.name}", held),
        )

    def notes(self) -> dict[str, Any]:
        return {
            "split": {
                "of": str(self.images.name),
                "share": HELD_SHARE,
                "seed": self.seed,
                "stratified": getattr(self.images, "stratified", True),
            },
        }


@dataclass(frozen=True)
class TwoSets:
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

    def facts(self) -> tuple[SetFacts, SetFacts]:
        return set_facts(self.train), set_facts(self.test)

    def notes(self) -> dict[str, Any]:
        return {"split": None, "labels": self.matching.facts()}


def held_out_part(images: Instances, seed: int) -> HeldOutPart:
    exam = HeldOutPart(images, torch.from_numpy(labels_of(images)), seed)
    if not len(exam.rows[1]):
        raise UserError(
            f"{images.name} has one image of each class, so none can be held out; give labelled test data with --data"
        )
    return exam


def labels_of(images: Instances) -> Int64[np.ndarray, "image"]:
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


def set_facts(images: Instances, name: str | None = None, rows: Int[Tensor, "row"] | None = None) -> SetFacts:
    """The facts of a set, or of some rows of it, which then have their own fingerprint."""
    mark = images.fingerprint.encode() + (b"" if rows is None else rows.cpu().numpy().astype("<i8").tobytes())
    return SetFacts(
        name or str(images.name),
        len(images) if rows is None else len(rows),
        images.fingerprint if rows is None else hashlib.sha256(mark).hexdigest(),
        getattr(images, "unit", "images"),
    )
