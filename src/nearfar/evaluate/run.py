"""A trained run, judged: features of its frozen encoder under the protocols, beside baselines, written down."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.core.intervals import CONFIDENCE
from nearfar.core.strategy import SINGLE, Strategy
from nearfar.data import Columns, locate
from nearfar.errors import UserError
from nearfar.evaluate.figures import named, with_all_intervals
from nearfar.evaluate.matching import Unmatched, matched
from nearfar.evaluate.overlap import among, ancestors, marks
from nearfar.evaluate.protocols import (
    NETWORK_PROTOCOLS,
    PROTOCOLS,
    UNLABELLED_PROTOCOLS,
    LabelledSet,
    Options,
    Subject,
    check_protocols,
    network_scores,
    scores,
)
from nearfar.evaluate.splits import Embed, HeldOutPart, TwoSets, facts_of, held_out_part, labels_of
from nearfar.modalities import Instances
from nearfar.modalities.base import MakeViews, Measure
from nearfar.modalities.image.views.pipeline import LARGEST
from nearfar.run.answers import without_answers
from nearfar.run.features import (
    cached_features,
    encoder_digest,
    features,
    features_key,
)
from nearfar.run.results import record
from nearfar.run.trained import Run, trains_on_labels

LEAST_SIDE = 8  # pixels of a view


def evaluate_run(
    run: Run,
    data: Any = None,
    protocols: Sequence[str] = ("knn", "linear"),
    baselines: bool | Sequence[str] = False,
    k: int = 20,
    temperature: float = 0.07,
    *,
    train: Any = None,
    same_labels: bool = False,
    seed: int = 0,
    features: str = "pooled",
    image_size: int | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """How good the run's frozen features are; also kept in RUN/evaluation.json, beside what other test sets said.

    Protocols fit on `train` (default: the run's data) and are tested on `data`, each anything that `open_data` takes. Without `data`, or when it is the set
    fitted on again, a stratified fifth of that set is held out from the fit (of its own data the encoder has seen the
    pixels, never the labels), and the result says so under "split". Where the run's data have no labels at all and no
    `train` is given, that is done with `data` instead.

    Classes of two sets are matched by name; `same_labels` says that two sets without names number them alike.

    Other data than the run's may have other channels, sizes and classes: pictures are made grey or coloured as the encoder needs, and
    fitted on another set, its own mean and deviation are taken. `image_size`: the side of a view, if not that of the run.
    `baselines`: all, none, or the names of some (raw pixels of a large set take longest).
    `features`: "pooled", "map" (before pooling) or "head". `image_column`, `label_column`: of `train` and `data`, where they are tables
    with other names than usual. Further options are those of the protocols (`evaluate.Options`).

    Where the modality has measures that need no labels (of text, how well hidden symbols are told: "masked"), they are taken too,
    and the protocols are asked only where there are labels.
    """
    check_protocols(protocols)
    told = Options(
        k=k, temperature=temperature, seed=seed, strategy=getattr(run, "strategy", SINGLE), **options
    )
    other = told.changed(protocols)
    other |= {"features": features} if features != "pooled" else {}
    other |= {"image_size": image_size} if image_size is not None else {}
    _check_shown(run, protocols, features, image_size)
    if isinstance(run, Run):
        run.confirm(train, data)
    if columns := Columns(image_column, label_column):
        if train is None and data is None:
            raise UserError(f"{columns.key} was given, but no data that have columns; name them by --data")
        same = _same(train, data)
        train = None if train is None else locate(train, columns=columns)
        data = None if data is None else train if same else locate(data, columns=columns)
    measures = run.modality.presenter.measures()
    strategy = told.strategy
    asked = Asked(run, train, data, same_labels, features, image_size)
    if (
        strategy.is_distributed
    ):  # opening data takes all of them, so it is done before anything is done by one
        _ = asked.sets, asked.trained_on
    result: dict[str, Any] = {}
    if not set(protocols) & {*PROTOCOLS, *NETWORK_PROTOCOLS}:
        result = _without_labels(asked, protocols, baselines, told)
    elif not measures or asked.labelled():
        result = _by_protocols(asked, protocols, baselines, told)
    for name, measure in measures.items():
        result = _measured(asked, name, measure, baselines, seed, result)
    settings = {"k": k, "temperature": temperature, "seed": seed, **other}
    result |= {"confidence": CONFIDENCE, "settings": settings, "encoder": encoder_digest(run.encoder())}
    if asked.known is not asked.described:
        result["input"] = _input(asked)
    if unfinished := getattr(run, "unfinished", ""):
        result["unfinished"] = unfinished
    if strategy.is_first:
        record(run.path / "evaluation.json", result)
    return without_answers(result)


def _check_shown(run: Run, protocols: Sequence[str], features: str, size: int | None) -> None:
    """Stops what the run's network cannot be shown or asked."""
    if "classifier" in protocols and features != "pooled":
        raise UserError(f"features was {features}, but a run's own classifier reads pooled features")
    if size is None:
        return
    if not run.modality.views.resizable:
        raise UserError(f"image_size was {size}, but {run.path} was trained on {run.modality.plural}")
    if not LEAST_SIDE <= size <= LARGEST:
        raise UserError(f"image_size was {size}; expected a whole number from {LEAST_SIDE} to {LARGEST}")


@dataclass(frozen=True)
class Asked:
    """Which encoder, fitted on what, tested on what, and how the data are shown to it."""

    run: Run
    train: Any
    data: Any
    same_labels: bool
    features: str = "pooled"
    image_size: int | None = None

    @cached_property
    def sets(self) -> tuple[Instances, Instances]:
        """The set to fit on and the set to test on; one and the same where one is given, or none."""
        train: Instances = self._opened(self.train)
        if self.data is None or _same(self.data, self.train):
            return train, train
        test: Instances = self._opened(self.data)
        # nothing to fit on in the run's own data, so the labelled set serves for both
        return (test, test) if self.train is None and train.labels is None else (train, test)

    def _opened(self, spec: Any) -> Any:
        """Held at a size from which views can be made as they are asked for."""
        return self.run.images(spec) if self.image_size is None else self.run.images(spec, self.image_size)

    @cached_property
    def encoder(self) -> nn.Module:
        return self._network(self.run.encoder)

    def untrained(self) -> nn.Module:
        return self._network(self.run.untrained)

    def _network(self, made: Any) -> nn.Module:
        return made() if self.features == "pooled" else made(self.features)

    @property
    def own(self) -> bool:
        """Whether what is fitted on are the run's own data."""
        train, test = self.sets
        return train is self.trained_on or (self.train is None and train is not test)

    @cached_property
    def trained_on(self) -> Instances | None:
        """The run's own data; None where they are not at hand (moved, or given from Python)."""
        try:
            return self._opened(None)
        except UserError:
            return None

    @cached_property
    def described(self) -> Any:
        return getattr(self.run, "description", None)

    @cached_property
    def known(self) -> Any:
        """What the data are like that are shown to the encoder: the run's, or with the statistics of those fitted on."""
        if self.described is None or (self.own and self.image_size is None):
            return self.described
        if self.own:
            return self.described.resized(self.image_size)
        return self.described.with_statistics_of(self.sets[0], self.image_size)

    @cached_property
    def plain(self) -> MakeViews:
        return self.run.plain() if self.known is self.described else self.run.plain(self.known)

    @property
    def own_test(self) -> bool:
        """That what is asked about are the run's own data."""
        own = self.trained_on
        return own is not None and self.sets[1].fingerprint == own.fingerprint

    @property
    def learned_from(self) -> Iterator[Instances]:
        """The data that the encoder learned from, directly or through other runs, as far as they are at hand."""
        if self.trained_on is not None:
            yield self.trained_on
        for other in ancestors(self.run) if isinstance(self.run, Run) else ():
            if not self.run.may_open(other.settings.data):
                continue
            with suppress(UserError):
                yield self._opened(other.settings.data)

    @cached_property
    def learned_labels(self) -> bool:
        """That labels were part of what the encoder learned, directly or through other runs."""
        runs = [self.run, *(ancestors(self.run) if isinstance(self.run, Run) else ())]
        return any(trains_on_labels(run.method()) for run in runs if hasattr(run, "method"))

    def labelled(self) -> bool:
        return all(images.labels is not None for images in self.sets)

    def split(self, seed: int) -> HeldOutPart | TwoSets:
        train, test = self.sets
        if test.fingerprint == train.fingerprint:
            return held_out_part(train, seed)
        labels = labels_of(train)
        try:
            matching = matched(labels_of(test), test, labels, train, self.same_labels)
        except Unmatched as problem:
            ways = [
                *([problem.way] if problem.way else []),
                f"give --train a set labelled like {test.name} ({test.name} itself will do: a fifth of it is then held out)",
            ]
            raise UserError(f"{problem}; {', or '.join(ways)}") from None
        return TwoSets(train, torch.from_numpy(labels), test, matching)

    def subject(self, network: nn.Module, fit: LabelledSet, ask: LabelledSet, trained: bool) -> Subject:
        """The network as protocols that change it get it; the run's own method and views where there are any."""
        first = next(network.parameters(), None)
        device = torch.device("cpu") if first is None else first.device
        whole = hasattr(self.run, "method")
        return Subject(
            network,
            self.plain,
            fit,
            ask,
            device,
            self.run.modality,
            self.known,
            self.run.method(trained).to(device) if whole else None,
            self.run.views(self.known) if whole else None,
            self.own,
            trained,
        )


def _by_protocols(
    asked: Asked, protocols: Sequence[str], baselines: bool | Sequence[str], options: Options
) -> dict[str, Any]:
    """What the protocols say of the learned features, and of the baselines' where they are asked for."""
    run, split = asked.run, asked.split(options.seed)
    encoder, cache = asked.encoder, run.path / "cache"
    device = _solving_device(encoder)
    names = {str(number): name for number, name in enumerate(asked.sets[0].classes)}

    def said(found: Mapping[str, Mapping[str, Any]], samples: int) -> dict[str, dict[str, Any]]:
        return {name: named(with_all_intervals(figures, samples), names) for name, figures in found.items()}

    mark = marks(asked.plain, cache, options.strategy)
    fit_marks, ask_marks = (part.features for part in split.sets(mark))
    # claims and warnings about the encoder are the only ones to depend on all that it learned from
    close = asked.learned_labels or {"information", "quality"} & set(protocols)
    shown = among(ask_marks, map(mark, asked.learned_from if close else ()))
    copies = among(ask_marks, [fit_marks])
    unseen = False if asked.own_test else None

    def judged(embed: Embed, trained: bool) -> dict[str, dict[str, Any]]:
        fit, ask = split.sets(embed)
        known, told = (copies | shown, unseen) if trained else (copies, True)
        fit, ask = fit.to(device), replace(ask, repeated=known).to(device)
        return said(scores(fit, ask, protocols, replace(options, unseen=told)), len(ask))

    def tried(network: nn.Module, trained: bool) -> dict[str, dict[str, Any]]:
        """What the features say, and what the network does where a protocol asks for that."""
        found: dict[str, dict[str, Any]] = {}
        if _any(protocols, PROTOCOLS):
            embed = _embedding(network, asked.plain, cache, options.strategy)
            found = judged(embed, trained)
        for known in (NETWORK_PROTOCOLS, UNLABELLED_PROTOCOLS):
            if _any(protocols, known):
                fit, ask = split.labelled()
                subject = replace(
                    asked.subject(network, fit, ask, trained), unseen=False if shown.any() else unseen
                )
                # from scratch no stage has anything to keep, so all learn at one rate
                told = options if trained else replace(options, layer_decay=1.0)
                found |= said(network_scores(subject, protocols, told, known), len(ask.labels))
        return found

    kinds = run.modality.presenter.baselines(asked.plain) if _any(protocols, PROTOCOLS) else {}
    beside: dict[str, Any] = {  # of raw features, nothing was fitted to anything
        **{name: lambda embed=embed: judged(embed, False) for name, embed in kinds.items()},
        "untrained": lambda: tried(asked.untrained(), False),
    }
    wanted = _wanted_baselines(baselines, beside)
    result: dict[str, Any] = {**tried(encoder, True), **split.facts()}
    if asked.learned_labels and (asked.own_test or shown.any()):
        result["leak"] = (
            f"the encoder was trained on labels of rows of {asked.sets[1].name} that it is tested on: judge it on other data (--data)"
        )
    if copies.any():
        result["overlap"] = (
            f"{int(copies.sum())} of the {len(copies)} rows tested on look exactly like rows fitted on: accuracies count them, what is proven "
            "does not"
        )
    if wanted:
        result["baselines"] = {name: beside[name]() for name in wanted}
    return result


def _wanted_baselines(asked: bool | Sequence[str], known: Collection[str]) -> list[str]:
    """All, none or the named ones, in the order of the table; a wrong name is told before any work."""
    if isinstance(asked, bool):
        return list(known) if asked else []
    for name in asked:
        if name not in known:
            raise UserError(f"--baselines was {name!r}; expected {', '.join(known)}")
    return [name for name in known if name in asked]


def _without_labels(
    asked: Asked, protocols: Sequence[str], baselines: bool | Sequence[str], options: Options
) -> dict[str, Any]:
    """Protocols that look at no label, on the test instances as they are."""
    train, test = asked.sets
    nobody = LabelledSet(test, torch.empty(0, dtype=torch.int64))
    mark = marks(asked.plain, asked.run.path / "cache", options.strategy)
    unseen = False if asked.own_test or among(mark(test), map(mark, asked.learned_from)).any() else None

    def tried(network: nn.Module, trained: bool) -> dict[str, Any]:
        subject = replace(asked.subject(network, nobody, nobody, trained), unseen=unseen)
        return network_scores(subject, protocols, options, UNLABELLED_PROTOCOLS)

    facts = {"train": facts_of(train), "test": facts_of(test), "split": None}
    result = {**tried(asked.encoder, True), **facts}
    return {**result, "baselines": {"untrained": tried(asked.untrained(), False)}} if baselines else result


def _input(asked: Asked) -> dict[str, Any]:
    """How the data were shown, where that is not as the run's own were."""
    plain = asked.known.as_plain()
    shown = {key: plain[key] for key in ("size", "mean", "std") if key in plain}
    return {**shown, "statistics": "the run's data" if asked.own else str(asked.sets[0].name)}


def _any(asked: Sequence[str], known: Mapping[str, Any]) -> bool:
    return any(name in known for name in asked)


def _measured(
    asked: Asked,
    name: str,
    measure: Measure,
    baselines: bool | Sequence[str],
    seed: int,
    result: dict[str, Any],
) -> dict[str, Any]:
    """Adds a measure without labels, taken of `data`, or of the training data themselves where there are none."""
    train, test = asked.sets
    run = asked.run
    method, views = run.method(), run.views()
    device = next(asked.encoder.parameters()).device
    seen = asked.train is None and train.fingerprint == test.fingerprint
    tested = facts_of(test, f"{test.name}, the training {run.modality.plural} itself" if seen else None)
    facts = {"train": facts_of(train), "test": tested, "split": None}
    strategy: Strategy = getattr(run, "strategy", SINGLE)
    learn = partial(measure.learned, method, test, views, device=device, seed=seed)
    learned = {name: strategy.on_first(learn)}
    if (
        result and result["test"] != tested
    ):  # the protocols hold labelled ones out, this asks about all of them
        learned[name]["test"] = tested
    if not baselines:
        return {**facts, **result, **learned}
    both = dict(result.get("baselines", {}))
    for kind, figures in measure.baselines.items():
        ask = partial(figures, train, test, views, seed=seed)
        both[kind] = {**both.get(kind, {}), name: strategy.on_first(ask)}
    return {**facts, **result, **learned, "baselines": both}


def _same(one: Any, other: Any) -> bool:
    """Whether two specifications are one, without looking: arrays are compared by what they are, not number by number."""
    return one is other or (
        isinstance(one, (str, Path)) and isinstance(other, (str, Path)) and str(one) == str(other)
    )


def _embedding(encoder: nn.Module, plain: MakeViews, cache: Path, strategy: Strategy) -> Embed:
    device = next((value.device for value in encoder.parameters()), torch.device("cpu"))

    def embed(images: Instances) -> Tensor:
        compute = lambda: features(encoder, images, plain, device=device, strategy=strategy)
        return cached_features(cache, features_key(encoder, images, plain), compute, strategy)

    return embed


def _solving_device(encoder: nn.Module) -> torch.device:
    """Where the encoder is, if float64 exists there (the linear probe needs it); else the CPU."""
    home = next((value.device for value in encoder.parameters()), torch.device("cpu"))
    return home if home.type == "cuda" else torch.device("cpu")
