"""What a protocol is fitted and tested on: two sets or two parts of one; and which rows overlap."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from nearfar.core.results import SetFacts
from nearfar.core.strategy import Strategy
from nearfar.errors import UserError, counted
from nearfar.evaluate.matching import Matching
from nearfar.evaluate.sets import LabelledFeatures, LabelledInstances, stratified_split
from nearfar.modalities import DataSet, Instances
from nearfar.modalities.base import MakeViews
from nearfar.run.features import cached_features, content_hashes, contents_key
from nearfar.run.trained import Run
from nearfar.run.weights import PRETRAINED

HOLDOUT_SHARE = 0.2
STRATIFIED = (
    "test rows were held out class by class, so their labels are not independent draws; give other test data "
    "with --data"
)

Embed = Callable[[Instances], Float[Tensor, "instance dim"]]
Hashes = Callable[[Instances], Int64[Tensor, "instance 2"]]


@dataclass(frozen=True)
class HoldoutSplit:
    """Fit on part of a set, test on the rest of it."""

    instances: Instances
    labels: Int[Tensor, "instance"]
    seed: int

    @property
    def rows(self) -> tuple[Int[Tensor, "fit"], Int[Tensor, "holdout"]]:
        if not isinstance(self.instances, DataSet):
            return stratified_split(self.labels, HOLDOUT_SHARE, self.seed)
        fit, holdout = self.instances.parts(HOLDOUT_SHARE, self.seed)  # keeps overlapping instances together
        return torch.from_numpy(fit), torch.from_numpy(holdout)

    def features(self, embed: Embed) -> tuple[LabelledFeatures, LabelledFeatures]:
        embedded = LabelledFeatures(embed(self.instances), self.labels)
        fit, holdout = self.rows
        return embedded.rows(fit), replace(embedded.rows(holdout), dependence=STRATIFIED)

    def labelled(self) -> tuple[LabelledInstances, LabelledInstances]:
        labelled = LabelledInstances(self.instances, self.labels)
        fit, holdout = self.rows
        return labelled.rows(fit), labelled.rows(holdout)

    def facts(self) -> tuple[SetFacts, SetFacts]:
        fit, holdout = self.rows
        name = self.instances.name
        return (
            set_facts(self.instances, f"{1 - HOLDOUT_SHARE:.0%} of {name}", fit),
            set_facts(self.instances, f"a held-out {HOLDOUT_SHARE:.0%} of {name}", holdout),
        )

    def notes(self) -> dict[str, Any]:
        stratified = not isinstance(self.instances, DataSet) or self.instances.stratified
        return {
            "split": {
                "of": str(self.instances.name),
                "share": HOLDOUT_SHARE,
                "seed": self.seed,
                "stratified": stratified,
            }
        }


@dataclass(frozen=True)
class TwoSets:
    """Fit on one set, test on another; the labels of both use the numbers of the first."""

    train: Instances
    labels: Int[Tensor, "train"]
    test: Instances
    matching: Matching

    def features(self, embed: Embed) -> tuple[LabelledFeatures, LabelledFeatures]:
        test_labels = torch.from_numpy(self.matching.labels)
        return LabelledFeatures(embed(self.train), self.labels), LabelledFeatures(
            embed(self.test), test_labels
        )

    def labelled(self) -> tuple[LabelledInstances, LabelledInstances]:
        test_labels = torch.from_numpy(self.matching.labels)
        return LabelledInstances(self.train, self.labels), LabelledInstances(self.test, test_labels)

    def facts(self) -> tuple[SetFacts, SetFacts]:
        return set_facts(self.train), set_facts(self.test)

    def notes(self) -> dict[str, Any]:
        return {"split": None, "labels": self.matching.facts()}


def holdout_split(instances: Instances, seed: int) -> HoldoutSplit:
    split = HoldoutSplit(instances, torch.from_numpy(labels_of(instances)), seed)
    if not len(split.rows[1]):
        raise UserError(
            f"{instances.name} has one image per class, so none can be held out; give labelled test data "
            "with --data"
        )
    return split


def labels_of(instances: Instances) -> Int64[np.ndarray, "instance"]:
    if instances.labels is None or not len(instances.labels):
        raise UserError(
            f"{instances.name} has no labels (class folders, a label column or a labels array); name "
            "labelled data, or use a protocol that needs none: quality"
        )
    labels = np.array(instances.labels, dtype=np.int64)
    unknown = int((labels < 0).sum())
    if unknown:
        raise UserError(
            f"{instances.name} has {counted(unknown, 'images')} with a label below 0 (unknown); evaluation needs "
            "every image labelled"
        )
    return labels


def set_facts(
    instances: Instances, name: str | None = None, rows: Int[Tensor, "row"] | None = None
) -> SetFacts:
    """The facts of a set, or of some rows of it, which then have their own fingerprint."""
    fingerprint = instances.fingerprint
    if rows is not None:
        content = fingerprint.encode() + rows.cpu().numpy().astype("<i8").tobytes()
        fingerprint = hashlib.sha256(content).hexdigest()
    count = len(instances) if rows is None else len(rows)
    unit = instances.unit if isinstance(instances, DataSet) else "images"
    return SetFacts(name or str(instances.name), count, fingerprint, unit)


# ------------------------------------------------------------------------------------------- overlap


def hashes(plain_view: MakeViews, cache: Path, strategy: Strategy) -> Hashes:
    """A function from instances to hashes of their plain views, cached like features."""
    return lambda instances: cached_features(
        cache,
        contents_key(instances, plain_view),
        lambda: content_hashes(instances, plain_view, strategy=strategy),
        strategy,
    )


def contained_in(
    rows: Int64[Tensor, "row 2"], sets: Iterable[Int64[Tensor, "other 2"]]
) -> Bool[Tensor, "row"]:
    """Which rows occur in any of the sets, by hash."""
    members = {tuple(row) for part in sets for row in part.tolist()}
    return torch.tensor([tuple(row) in members for row in rows.tolist()], dtype=torch.bool)


def ancestors(run: Run) -> Iterator[Run]:
    """The runs whose weights it started from, or that taught it, and theirs; weights files have none."""
    waiting, visited = _parents(run), {run.path.resolve()}
    while waiting:
        path = Path(waiting.pop())
        if path.resolve() in visited:
            continue
        visited.add(path.resolve())
        try:
            parent = Run.open(path)
        except UserError:
            continue
        yield parent
        waiting += _parents(parent)


def _parents(run: Run) -> list[str]:
    names = (run.settings.init, run.settings.encoders.get("teacher"))
    return [name for name in names if isinstance(name, str) and name != PRETRAINED]
