"""What is evaluated: an encoder, the data it is fitted and tested on, and how these are shown to it."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearfar.errors import UserError
from nearfar.evaluate.matching import UnmatchedClasses, match_labels
from nearfar.evaluate.sets import LabelledInstances, Subject
from nearfar.evaluate.splits import HoldoutSplit, TwoSets, ancestors, holdout_split, labels_of
from nearfar.modalities import Instances
from nearfar.modalities.base import MakeViews
from nearfar.run.trained import Run, trains_on_labels


@dataclass(frozen=True)
class Evaluation:
    """A run to be evaluated: fitted on `train`, tested on `data` (see `evaluate_run`)."""

    run: Run
    train: Any
    data: Any
    same_labels: bool
    features: str = "pooled"
    image_size: int | None = None

    @cached_property
    def sets(self) -> tuple[Instances, Instances]:
        """The set to fit on and the set to test on; the same one twice where one is given, or none."""
        train: Instances = self._open(self.train)
        if self.data is None or same_spec(self.data, self.train):
            return train, train
        test: Instances = self._open(self.data)
        # the run's data have no labels to fit on, so the labelled set serves for both
        return (test, test) if self.train is None and train.labels is None else (train, test)

    def _open(self, spec: Any) -> Any:
        """The data, stored at a size from which views of `image_size` can be made."""
        return (
            self.run.open_data(spec) if self.image_size is None else self.run.open_data(spec, self.image_size)
        )

    @cached_property
    def encoder(self) -> nn.Module:
        return self.run.encoder() if self.features == "pooled" else self.run.encoder(self.features)  # type: ignore[arg-type]

    def untrained(self) -> nn.Module:
        return self.run.untrained() if self.features == "pooled" else self.run.untrained(self.features)  # type: ignore[arg-type]

    @cached_property
    def device(self) -> torch.device:
        return next((value.device for value in self.encoder.parameters()), torch.device("cpu"))

    @property
    def cache(self) -> Path:
        return self.run.path / "cache"

    @property
    def fits_own_data(self) -> bool:
        """Whether the set fitted on is the run's training data."""
        train, test = self.sets
        return train is self.trained_on or (self.train is None and train is not test)

    @property
    def tests_own_data(self) -> bool:
        """Whether the set tested on is the run's training data."""
        return self.trained_on is not None and self.sets[1].fingerprint == self.trained_on.fingerprint

    @cached_property
    def trained_on(self) -> Instances | None:
        """The run's training data; None where they are not available (moved, or passed from Python)."""
        try:
            return self._open(None)
        except UserError:
            return None

    @cached_property
    def own_description(self) -> Any:
        return self.run.description

    @cached_property
    def description(self) -> Any:
        """The data as the encoder sees them: with the statistics of the set fitted on."""
        if self.own_description is None or (self.fits_own_data and self.image_size is None):
            return self.own_description
        if self.fits_own_data or self._has_fixed_statistics:
            return self.own_description.resized(self.image_size)
        return self.own_description.with_statistics_of(self.sets[0], self.image_size)

    @property
    def _has_fixed_statistics(self) -> bool:
        """Whether the run's settings say how views are normalised, whatever the data."""
        return isinstance(self.run, Run) and self.run.settings.mean is not None

    @cached_property
    def plain_view(self) -> MakeViews:
        if self.description is self.own_description:
            return self.run.plain_view()
        return self.run.plain_view(self.description)

    def input_facts(self) -> dict[str, Any] | None:
        """How the data were shown, where that differs from the run's training data."""
        if self.description is self.own_description:
            return None
        fields = self.description.as_plain()
        kept_fields = {key: fields[key] for key in ("size", "mean", "std") if key in fields}
        return {
            **kept_fields,
            "statistics": "the run's settings"
            if self._has_fixed_statistics
            else "the run's data"
            if self.fits_own_data
            else str(self.sets[0].name),
        }

    @property
    def learned_from(self) -> Iterator[Instances]:
        """The available data that the encoder, or a run it started from, learned from."""
        if self.trained_on is not None:
            yield self.trained_on
        for run in ancestors(self.run) if isinstance(self.run, Run) else ():
            if not self.run.may_open(run.settings.data):
                continue
            with suppress(UserError):
                yield self._open(run.settings.data)

    @cached_property
    def learned_labels(self) -> bool:
        """Whether the encoder learned from labels, directly or through the runs it started from."""
        runs = [self.run, *ancestors(self.run)] if isinstance(self.run, Run) else []
        return any(trains_on_labels(run.method()) for run in runs)

    def has_labels(self) -> bool:
        return all(images.labels is not None for images in self.sets)

    def split(self, seed: int) -> HoldoutSplit | TwoSets:
        train, test = self.sets
        labels = labels_of(train)
        if len(set(labels.tolist())) < 2:
            raise UserError(f"{train.name} has one class; evaluation needs at least 2 to tell apart")
        if test.fingerprint == train.fingerprint:
            return holdout_split(train, seed)
        try:
            matching = match_labels(labels_of(test), test, labels, train, self.same_labels)
        except UnmatchedClasses as problem:
            remedies = [
                *([problem.remedy] if problem.remedy else []),
                f"give --train a set labelled like {test.name} (for example {test.name}, of which a "
                "fifth is then held out)",
            ]
            raise UserError(f"{problem}; {', or '.join(remedies)}") from None
        return TwoSets(train, torch.from_numpy(labels), test, matching)

    def subject(
        self,
        network: nn.Module,
        train: LabelledInstances,
        test: LabelledInstances,
        *,
        trained: bool,
        unseen: bool | None,
    ) -> Subject:
        """The network for protocols that change it, with the run's method and views where it has them."""
        parameter = next(network.parameters(), None)
        device = torch.device("cpu") if parameter is None else parameter.device
        complete = isinstance(self.run, Run)
        return Subject(
            network,
            self.plain_view,
            train,
            test,
            device,
            self.run.modality,
            self.description,
            self.run.method(trained).to(device) if complete else None,
            self.run.views(self.description) if complete else None,
            self.fits_own_data,
            trained,
            unseen,
        )


def same_spec(first: Any, second: Any) -> bool:
    """Whether two data specifications are the same path or the same object."""
    if isinstance(first, (str, Path)) and isinstance(second, (str, Path)):
        return str(first) == str(second)
    return first is second
