"""`nf.semi` and `nearfar semi`: runs the stages one after the other and makes the table."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearfar.core.statistics import mean_and_spread
from nearfar.core.tables import plus_minus, text_table
from nearfar.errors import counted
from nearfar.evaluate import LabelledFeatures, features, scores
from nearfar.evaluate.accuracy import TOP, hit_rates, rank_classes
from nearfar.evaluate.matching import match_labels
from nearfar.evaluate.splits import labels_of, set_facts
from nearfar.modalities import DataSet
from nearfar.run.trained import Run
from nearfar.simclrv2.labels import choose_labels, read_labels
from nearfar.simclrv2.stages import OPTIONS, PREFIXES, SemiRequest, Stage, StageSettings
from nearfar.studies.comparison import verdict
from nearfar.sweeps.engine import Cell, CellStore, run_cells
from nearfar.system.files import as_path, write_atomic

FROM_SCRATCH, PROBE, FINE_TUNED, DISTILLED = "from scratch", "linear probe", "fine-tuned", "distilled"
COMPARISONS = ((FINE_TUNED, FROM_SCRATCH), (FINE_TUNED, PROBE), (DISTILLED, FINE_TUNED))
FIGURES = {"top1": "top-1", "top5": "top-5"}

Draws = Sequence[Mapping[str, float]]  # top1, and with more than five classes top5, of each draw


@dataclass(frozen=True)
class SemiResult:
    """The accuracies of each way of using the labels, by draw; no figures without test data."""

    title: str
    labels: int  # that are used
    instances: int
    figures: Mapping[str, Draws]
    test: Mapping[str, Any] | None
    runs: Mapping[str, str]  # of the last draw
    verdicts: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        figures = {}
        for way, draws in self.figures.items():
            means = {figure: _mean(draws, figure)[0] for figure in draws[0]}
            figures[way] = {**means, "spread": _mean(draws, "top1")[1], "draws": list(draws)}
        return {
            "semi": self.title,
            "labels": self.labels,
            "instances": self.instances,
            "test": self.test,
            "figures": figures,
            "verdicts": list(self.verdicts),
            "runs": dict(self.runs),
        }

    def caption(self) -> str:
        """What the figures are."""
        if self.test is None:
            return "no figures: give test data with --data"
        draws = len(next(iter(self.figures.values())))
        repetitions = f", mean ± deviation over {draws} draws of the labels" if draws > 1 else ""
        names = " and ".join(FIGURES[figure] for figure in self.columns)
        return f"{names} in percent on {self.test['name']} ({self.test['samples']:,}){repetitions}"

    @property
    def columns(self) -> tuple[str, ...]:
        """top1, and top5 where there are more than five classes."""
        return tuple(next(iter(self.figures.values()))[0]) if self.figures else ()

    def rows(self) -> list[tuple[str, ...]]:
        """Each way of using the labels with its accuracies in percent."""
        rows = []
        for way, draws in self.figures.items():
            mean, spread = _mean(draws, "top1")
            top1 = plus_minus(100 * mean, None if spread is None else 100 * spread)
            further = [f"{100 * _mean(draws, figure)[0]:.1f}" for figure in self.columns[1:]]
            rows.append((way, top1, *further))
        return rows

    def __str__(self) -> str:
        head = f"{self.title}: {counted(self.labels, 'labels')} of {counted(self.instances, 'instances')}"
        if self.test is None:
            return f"{head}\ntrained: {', '.join(self.runs.values())}\n{self.caption()}"
        table = [f"  {line}" for line in text_table(self.rows(), numbers=True)]
        return "\n".join([head, self.caption(), *table, *self.verdicts])

    def write_page(self, out: Path, data: Any = None) -> Path:
        """Writes one page: the table, then all stages (of the last draw) side by side and one by one. `data`:
        the training data, named again where they are a URL, since URLs in run folders are not opened."""
        from nearfar.report import write_report  # here, since figures need no page
        from nearfar.report.facts import Section

        about = (
            f"{counted(self.labels, 'labels')} of {counted(self.instances, 'instances')}; {self.caption()}."
        )
        head = ("", *(f"{FIGURES[figure]}, %" for figure in self.columns)) if self.figures else ()
        summary = Section(f"{self.title}, few labels", (about,), head, tuple(self.rows()), self.verdicts)
        runs = [Run.open(path) for path in self.runs.values()]
        for run in runs:
            run.allow_url(data)
        return write_report(runs, out, summary=summary)


def _mean(draws: Draws, figure: str) -> tuple[float, float | None]:
    return mean_and_spread([draw[figure] for draw in draws])


def semi(
    recipe: str,
    data: Any,
    labels: Any,
    out: str | Path,
    *,
    test: Any = None,
    init: str | Path | None = None,
    draws: int = 1,
    same_labels: bool = False,
    finetune: Mapping[str, Any] | None = None,
    distil: Mapping[str, Any] | None = None,
    quiet: bool = False,
    **settings: Any,
) -> SemiResult:
    """Pretrains on all of `data`, fine-tunes on few labels, distils the result on all of `data`, and compares
    (Chen, Kornblith et al. 2020).

        result = nf.semi("simclr", "photos/", labels=0.01, out="runs/few", test="other/", draws=3,
        student="resnet8-w16", epochs=50)

    `labels`: a share, a number of each class, or a .csv or .parquet file with path (or index) and label.
    `init`: a pretrained run in place of the first stage. Settings are those of the pretraining; `finetune`
    and `distil` map those of the other stages; `student` is the backbone of the last one, `from_layer` the
    number of head layers that fine-tuning keeps. Call it again to resume.
    """
    options = {key: settings.pop(key) for key in OPTIONS if key in settings}
    by_stage = dict(zip(PREFIXES, (finetune or {}, distil or {}), strict=True))
    stage_settings = StageSettings(settings, by_stage, options)
    start = None if init is None else Path(init)
    folder = as_path("out", out)
    request = SemiRequest(
        recipe, data, read_labels(labels), folder, stage_settings, test, start, draws, same_labels, quiet
    )
    return run_semi(request)


def run_semi(request: SemiRequest) -> SemiResult:
    request.check()
    runner = StageRunner(request)
    pretrained = Run.open(request.init) if request.init is not None else runner.train(request.pretrain())[0]
    data = request.open_data(pretrained)
    test = None if request.test is None else TestSet(pretrained, request)
    figures: dict[str, list[Mapping[str, float]]] = {}
    runs: dict[str, str] = {"pretrained": str(pretrained.path)}
    labelled = data
    for draw in range(request.draws):
        labelled = choose_labels(data, request.labels, draw)
        runner.report(f"draw {draw + 1} of {request.draws}: {counted(len(labelled), 'labels')}")
        scratch, scratch_top = runner.train(request.from_scratch(pretrained, labelled, draw), test, labelled)
        tuned, tuned_top = runner.train(request.finetune(pretrained, labelled, draw), test, labelled)
        student = request.distil(pretrained, tuned, data, draw)
        distilled, distilled_top = runner.train(student, test, labelled)
        runs |= {FROM_SCRATCH: str(scratch.path), FINE_TUNED: str(tuned.path), DISTILLED: str(distilled.path)}
        if test is not None:
            ways = (FROM_SCRATCH, PROBE, FINE_TUNED, DISTILLED)
            tops = (scratch_top, test.probe(labelled), tuned_top, distilled_top)
            for way, top in zip(ways, tops, strict=True):
                figures.setdefault(way, []).append(top)
    result = SemiResult(
        f"{request.recipe} {data.name}",
        len(labelled),
        len(data),
        figures,
        None if test is None else set_facts(test.data).to_json(),
        runs,
        _verdicts(figures),
    )
    write_atomic(request.out / "semi.json", json.dumps(result.as_json(), indent=1) + "\n")
    return result


class StageRunner:
    """Runs stages as cells of the request's folder: claimed, resumed, and their accuracies stored."""

    def __init__(self, request: SemiRequest) -> None:
        self.request, self.store = request, CellStore(request.out)

    def train(
        self, stage: Stage, test: "TestSet | None" = None, labelled: DataSet | None = None
    ) -> tuple[Run, Mapping[str, float]]:
        """The stage's run, and with test data the accuracies of its classifier."""

        def compute(cell: Cell, folder: Path) -> Mapping[str, float]:
            self.report(f"stage {stage.cell.folder}: {stage.settings.recipe}")
            run = stage.train(folder)
            return {} if test is None or labelled is None else test.classifier(run, labelled)

        owner = f"semi {self.request.recipe} {self.request.located_data().name}"
        tested_on = None if test is None else test.data.fingerprint
        cell = replace(stage.cell, identity={**stage.cell.identity, "test": tested_on})
        (outcome,) = run_cells(self.store, [cell], compute, owner=owner)
        assert outcome is not None
        return Run.open(self.store.folder(cell)), outcome.values

    def report(self, sentence: str) -> None:
        if not self.request.quiet:
            print(f"semi: {sentence}", file=sys.stderr, flush=True)


def _verdicts(figures: Mapping[str, Draws]) -> tuple[str, ...]:
    """What each stage adds, paired by draw."""
    sentences = []
    for better, worse in COMPARISONS:
        if better in figures and worse in figures:
            pairs = zip(figures[better], figures[worse], strict=True)
            differences = [first["top1"] - second["top1"] for first, second in pairs]
            sentences.append(f"{better} above {worse} {verdict(differences, 'draws')}")
    return tuple(sentences)


class TestSet:
    """The test data, opened once, and the accuracies of runs on them."""

    __test__ = False  # not a test of pytest

    def __init__(self, pretrained: Run, request: SemiRequest) -> None:
        self.pretrained, self.same_labels = pretrained, request.same_labels
        self.data: DataSet = pretrained.open_data(request.test)
        self._features = pretrained.embed(self.data)

    def classifier(self, run: Run, labelled: DataSet) -> dict[str, float]:
        """Accuracies of a run's own classifier."""
        encoders = run.method().to(run.device).encoders
        rows = features(encoders.backbone(), self.data, run.plain_view(), device=run.device)
        classifier = encoders.classifier()
        assert classifier is not None  # stages are supervised or learn class probabilities
        with torch.no_grad():
            logits = classifier(rows.to(run.device)).cpu()
        classes = torch.arange(logits.shape[1])
        return _informative(hit_rates(rank_classes(logits, classes), self._labels(labelled)), len(classes))

    def _labels(self, labelled: DataSet) -> Tensor:
        """The labels of the test data in the numbering of the labelled instances."""
        matching = match_labels(
            labels_of(self.data), self.data, labels_of(labelled), labelled, self.same_labels
        )
        return torch.from_numpy(matching.labels)

    def probe(self, labelled: DataSet) -> dict[str, float]:
        """Accuracies of a linear classifier on the pretrained features of the labelled instances."""
        fit = LabelledFeatures(self.pretrained.embed(labelled), torch.from_numpy(labels_of(labelled)))
        result = scores(fit, LabelledFeatures(self._features, self._labels(labelled)), ["linear"])["linear"]
        return _informative({key: result.figures[key].value for key in FIGURES}, result.details["classes"])


def _informative(rates: dict[str, float], classes: int) -> dict[str, float]:
    """The rates without top-5 where there are five classes or fewer."""
    return rates if classes > TOP else {"top1": rates["top1"]}
