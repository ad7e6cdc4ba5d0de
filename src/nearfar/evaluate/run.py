"""Evaluation of a run's frozen encoder and of baselines, recorded in evaluation.json."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from nearfar.core.results import Measurement, Result
from nearfar.core.statistics import CONFIDENCE
from nearfar.data import Columns, locate
from nearfar.errors import UserError, check_whole
from nearfar.evaluate.accuracy import with_class_names
from nearfar.evaluate.evaluation import Evaluation, same_spec
from nearfar.evaluate.knn import NEIGHBOURS, VOTE_TEMPERATURE
from nearfar.evaluate.protocols import (
    NETWORK_PROTOCOLS,
    PROTOCOLS,
    UNLABELLED_PROTOCOLS,
    Options,
    check_protocols,
    from_first_rank,
    network_scores,
    scores,
)
from nearfar.evaluate.sets import LabelledInstances
from nearfar.evaluate.splits import Embed, HoldoutSplit, TwoSets, contained_in, hashes, set_facts
from nearfar.modalities import Instances
from nearfar.modalities.base import Measure
from nearfar.modalities.image.views.pipeline import LARGEST
from nearfar.run.features import cached_features, encoder_digest, features, features_key
from nearfar.run.results import record
from nearfar.run.trained import Run

MIN_SIDE = 8  # pixels of a view
Measurements = dict[str, Measurement]


def evaluate_run(
    run: Run | str | Path,
    data: Any = None,
    protocols: Sequence[str] = ("knn", "linear"),
    baselines: bool | Sequence[str] = False,
    k: int = NEIGHBOURS,
    temperature: float = VOTE_TEMPERATURE,
    *,
    train: Any = None,
    same_labels: bool = False,
    seed: int = 0,
    features: str = "pooled",
    image_size: int | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    **options: Any,
) -> Result:
    """Measures the run's frozen features and records the result in RUN/evaluation.json.

    Protocols fit on `train` (default: the run's data) and are tested on `data`; each is anything that
    `open_data` takes. Without `data`, or where it is the set fitted on, a stratified fifth of that set is
    held out from the fit, and the result describes it under "split". (The encoder has seen the pixels of its
    training data, not the labels.) If the run's data have no labels and `train` is not given, a fifth of
    `data` is held out instead.

    Classes of two sets are matched by name; `same_labels`: unnamed numbers agree.

    Data other than the run's may have other channels, sizes and classes: images are converted to grey or
    colour as the encoder needs, and normalised with the statistics of the set fitted on. `image_size`: the
    side of a view (default: the run's). `baselines`: all, none, or the names of some (raw pixels of a large
    set take longest). `features`: "pooled", "map" (before pooling) or "head". `image_column`, `label_column`:
    of `train` and `data`, where they are tables with other column names than usual. Further options are those
    of the protocols (`evaluate.Options`).

    Measures of the modality that need no labels (for text: how well hidden symbols are predicted, "masked")
    are added; the protocols then run only where there are labels.
    """
    run = Run.open(run) if isinstance(run, (str, Path)) else run
    check_protocols(protocols)
    settings = Options(k=k, temperature=temperature, seed=seed, strategy=run.strategy, **options)
    changes = settings.changed(protocols)
    _check_input(run, protocols, features, image_size)
    if isinstance(run, Run):
        run.allow_url(train, data)
    train, data = _with_columns(train, data, Columns(image_column, label_column))
    evaluation = Evaluation(run, train, data, same_labels, features, image_size)
    if settings.strategy.is_distributed:  # all ranks open data together, before one of them works alone
        _ = evaluation.sets, evaluation.trained_on
    result = _measure(evaluation, protocols, baselines, settings)
    changes |= {} if features == "pooled" else {"features": features}
    changes |= {} if image_size is None else {"image_size": image_size}
    result = replace(
        result,
        settings={"k": k, "temperature": temperature, "seed": seed, **changes},
        notes={**result.notes, **_notes(evaluation)},
    )
    if settings.strategy.is_first:
        record(run.path / "evaluation.json", result)
    return result


def _check_input(run: Run, protocols: Sequence[str], features: str, size: int | None) -> None:
    """Stops at features or sizes that the run's network does not have."""
    if "classifier" in protocols and features != "pooled":
        raise UserError(f"features was {features}, but a run's own classifier reads pooled features")
    if size is None:
        return
    if not run.modality.views.resizable:
        raise UserError(f"image_size was {size}, but {run.path} was trained on {run.modality.plural}")
    check_whole("image_size", size, MIN_SIDE, LARGEST)


def _with_columns(train: Any, data: Any, columns: Columns) -> tuple[Any, Any]:
    """Both sets located with the named columns, where there are any."""
    if not columns:
        return train, data
    if train is None and data is None:
        raise UserError(
            f"{next(iter(columns.by_setting))} was given, but no data that have columns; name them by --data"
        )
    fit = None if train is None else locate(train, columns=columns)
    if data is None or same_spec(train, data):
        return fit, fit if data is not None else None
    return fit, locate(data, columns=columns)


def _notes(evaluation: Evaluation) -> dict[str, Any]:
    notes: dict[str, Any] = {"confidence": CONFIDENCE, "encoder": encoder_digest(evaluation.run.encoder())}
    input_facts = evaluation.input_facts()
    if input_facts is not None:
        notes["input"] = input_facts
    if evaluation.run.unfinished:
        notes["unfinished"] = evaluation.run.unfinished
    return notes


def _measure(
    evaluation: Evaluation, protocols: Sequence[str], baselines: bool | Sequence[str], options: Options
) -> Result:
    measures = evaluation.run.modality.presenter.measures()
    result: Result | None = None
    if not set(protocols) & {*PROTOCOLS, *NETWORK_PROTOCOLS}:
        result = _without_labels(evaluation, protocols, baselines, options)
    elif not measures or evaluation.has_labels():
        result = _with_labels(evaluation, protocols, baselines, options)
    for name, measure in measures.items():
        result = _add_measure(evaluation, name, measure, baselines, options, result)
    assert result is not None
    return result


@dataclass(frozen=True)
class _Protocols:
    """The protocols on one split. `copies`: rows equal to rows fitted on; `learned_rows`: trained on."""

    evaluation: Evaluation
    split: HoldoutSplit | TwoSets
    names: Sequence[str]
    options: Options
    copies: Bool[Tensor, "test"]
    learned_rows: Bool[Tensor, "test"]

    @property
    def unseen(self) -> bool | None:
        """Whether the encoder has never seen the test rows; None: unknown."""
        return False if self.evaluation.tests_own_data else None

    def of_features(self, embed: Embed, trained: bool) -> Measurements:
        """Of learned features, or of ones (raw pixels) that were fitted to nothing."""
        device = self.evaluation.device
        # float64, which the linear probe needs, exists on CUDA devices and the CPU
        device = device if device.type == "cuda" else torch.device("cpu")
        fit, test = self.split.features(embed)
        repeated = self.copies | self.learned_rows if trained else self.copies
        options = replace(self.options, unseen=self.unseen if trained else True)
        measured = scores(fit.to(device), replace(test, repeated=repeated).to(device), self.names, options)
        return self._with_names(measured)

    def of_network(self, network: nn.Module, trained: bool) -> Measurements:
        """Of a network: its features, and what protocols do with the network itself."""
        measured: Measurements = {}
        if _includes(self.names, PROTOCOLS):
            measured = self.of_features(_embedding(self.evaluation, network, self.options), trained)
        # from scratch no stage has learned anything, so all learn at one rate
        options = self.options if trained else replace(self.options, layer_decay=1.0)
        unseen = False if self.learned_rows.any() else self.unseen
        for available in (NETWORK_PROTOCOLS, UNLABELLED_PROTOCOLS):
            if _includes(self.names, available):
                fit, test = self.split.labelled()
                subject = self.evaluation.subject(network, fit, test, trained=trained, unseen=unseen)
                measured |= self._with_names(network_scores(subject, self.names, options, available))
        return measured

    def _with_names(self, measured: Measurements) -> Measurements:
        names = {str(number): name for number, name in enumerate(self.evaluation.sets[0].classes)}
        return {path: with_class_names(measurement, names) for path, measurement in measured.items()}

    def warnings(self) -> dict[str, str]:
        notes = {}
        evaluation = self.evaluation
        if evaluation.learned_labels and (evaluation.tests_own_data or self.learned_rows.any()):
            notes["leak"] = (
                f"the encoder was trained on labels of the test rows of {evaluation.sets[1].name}; test "
                "it on other data (--data)"
            )
        if self.copies.any():
            notes["overlap"] = (
                f"{int(self.copies.sum())} of the {len(self.copies)} test rows are identical to rows fitted "
                "on; accuracies include them, proven bounds do not"
            )
        return notes


def _with_labels(
    evaluation: Evaluation, names: Sequence[str], baselines: bool | Sequence[str], options: Options
) -> Result:
    """The protocols on the learned features, and on the requested baselines."""
    split = evaluation.split(options.seed)
    hashed = hashes(evaluation.plain_view, evaluation.cache, options.strategy)
    fit_hashes, test_hashes = (part.features for part in split.features(hashed))
    # the other protocols do not depend on what the encoder learned from
    close = evaluation.learned_labels or {"information", "quality"} & set(names)
    protocols = _Protocols(
        evaluation,
        split,
        names,
        options,
        copies=contained_in(test_hashes, [fit_hashes]),
        learned_rows=contained_in(test_hashes, map(hashed, evaluation.learned_from if close else ())),
    )
    raw = (
        evaluation.run.modality.presenter.baselines(evaluation.plain_view)
        if _includes(names, PROTOCOLS)
        else {}
    )
    available: dict[str, Callable[[], Measurements]] = {
        **{name: partial(protocols.of_features, embed, False) for name, embed in raw.items()},
        "untrained": lambda: protocols.of_network(evaluation.untrained(), False),
    }
    baseline_names = _chosen_baselines(baselines, available)
    learned = protocols.of_network(evaluation.encoder, True)
    notes = {**split.notes(), **protocols.warnings()}
    measured = {name: available[name]() for name in baseline_names}
    return Result(*split.facts(), {}, learned, measured, notes)


def _chosen_baselines(baselines: bool | Sequence[str], available: Collection[str]) -> list[str]:
    """All, none or the named ones, in the order of the table; stops at an unknown name before any work."""
    if isinstance(baselines, bool):
        return list(available) if baselines else []
    for name in baselines:
        if name not in available:
            raise UserError(f"--baselines was {name!r}; expected {', '.join(available)}")
    return [name for name in available if name in baselines]


def _includes(names: Sequence[str], available: Mapping[str, Any]) -> bool:
    return any(name in available for name in names)


def _embedding(evaluation: Evaluation, encoder: nn.Module, options: Options) -> Embed:
    device, view = evaluation.device, evaluation.plain_view

    def embed(images: Instances) -> Tensor:
        compute = partial(features, encoder, images, view, device=device, strategy=options.strategy)
        key = features_key(encoder, images, view)
        return cached_features(evaluation.cache, key, compute, options.strategy)

    return embed


# ---------------------------------------------------------------------------------------- without labels


def _without_labels(
    evaluation: Evaluation, names: Sequence[str], baselines: bool | Sequence[str], options: Options
) -> Result:
    """Protocols that use no labels, on all test instances."""
    train, test = evaluation.sets
    instances = LabelledInstances(test, torch.empty(0, dtype=torch.int64))
    hashed = hashes(evaluation.plain_view, evaluation.cache, options.strategy)
    seen_rows = (
        evaluation.tests_own_data or contained_in(hashed(test), map(hashed, evaluation.learned_from)).any()
    )

    def measured(network: nn.Module, trained: bool) -> Measurements:
        subject = evaluation.subject(
            network, instances, instances, trained=trained, unseen=False if seen_rows else None
        )
        return network_scores(subject, names, options, UNLABELLED_PROTOCOLS)

    learned = measured(evaluation.encoder, True)
    untrained = {"untrained": measured(evaluation.untrained(), False)} if baselines else {}
    return Result(set_facts(train), set_facts(test), {}, learned, untrained, {"split": None})


def _add_measure(
    evaluation: Evaluation,
    name: str,
    measure: Measure,
    baselines: bool | Sequence[str],
    options: Options,
    result: Result | None,
) -> Result:
    """The result with a measure of the modality, taken on `data` or else on the training data."""
    run, (train, test) = evaluation.run, evaluation.sets
    is_own = evaluation.train is None and train.fingerprint == test.fingerprint
    facts = set_facts(test, f"{test.name}, the training {run.modality.plural}" if is_own else None)
    result = result or Result(set_facts(train), facts, notes={"split": None})

    method, views = run.method(), run.views()
    learn = partial(measure.learned, method, test, views, device=evaluation.device, seed=options.seed)
    learned = from_first_rank(options.strategy, name, learn)
    if result.test != facts:  # protocols hold out part of the labelled instances, a measure takes all
        learned = {path: replace(measurement, test=facts) for path, measurement in learned.items()}
    measured_baselines = dict(result.baselines)
    for kind, compute in measure.baselines.items() if baselines else ():
        untrained = partial(compute, train, test, views, seed=options.seed)
        measured = from_first_rank(options.strategy, name, untrained)
        if measured:
            measured_baselines[kind] = {**measured_baselines.get(kind, {}), **measured}
    return replace(result, figures={**result.figures, **learned}, baselines=measured_baselines)
