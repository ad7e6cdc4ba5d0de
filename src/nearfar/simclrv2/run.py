"""All stages one after the other, and the table: `nf.semi` and `nearfar semi`."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearfar.core.statistics import mean_and_spread
from nearfar.core.tables import plus_minus, text_table
from nearfar.evaluate import LabelledFeatures, features, scores
from nearfar.evaluate.accuracy import TOP, hit_rates, rank_classes
from nearfar.evaluate.matching import match_labels
from nearfar.evaluate.splits import labels_of, set_facts
from nearfar.modalities import DataSet
from nearfar.run.trained import Run
from nearfar.simclrv2.labels import labelled, read_labels
from nearfar.simclrv2.stages import OPTIONS, STAGES, Semi, Told
from nearfar.studies.compared import verdict
from nearfar.system.files import as_path, write_atomic

SCRATCH, PROBE, TUNED, DISTILLED = "from scratch", "linear probe", "fine-tuned", "distilled"
FIGURES = {"top1": "top-1", "top5": "top-5"}


@dataclass(frozen=True)
class Report:
    """What each way of using the labels gives on the test set, draw by draw; no figures where there is no test set."""

    title: str
    labels: int  # how many are used
    instances: int
    figures: Mapping[str, tuple[Mapping[str, float], ...]]  # top1 and top5 by draw, by way
    test: Mapping[str, Any] | None
    runs: Mapping[str, str]  # of the last draw, by way
    verdicts: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "semi": self.title,
            "labels": self.labels,
            "instances": self.instances,
            "test": self.test,
            "figures": {
                way: {
                    **{figure: _over_draws(draws, figure)[0] for figure in draws[0]},
                    "spread": _over_draws(draws, "top1")[1],
                    "draws": list(draws),
                }
                for way, draws in self.figures.items()
            },
            "verdicts": list(self.verdicts),
            "runs": dict(self.runs),
        }

    def told(self) -> str:
        """Of what the figures are."""
        if self.test is None:
            return "no figures: give test data with --data"
        draws = len(next(iter(self.figures.values())))
        over = f", mean ± deviation over {draws} draws of the labels" if draws > 1 else ""
        names = " and ".join(FIGURES[figure] for figure in self.shown)
        return f"{names} in percent on {self.test['name']} ({self.test['samples']:,}){over}"

    def rows(self) -> list[tuple[str, ...]]:
        """Each way of using the labels, its top-1 and, of more than five classes, its top-5 in percent."""
        rows = []
        for way, draws in self.figures.items():
            mean, spread = _over_draws(draws, "top1")
            top1 = plus_minus(100 * mean, None if spread is None else 100 * spread)
            rest = [f"{100 * _over_draws(draws, figure)[0]:.1f}" for figure in self.shown[1:]]
            rows.append((way, top1, *rest))
        return rows

    @property
    def shown(self) -> tuple[str, ...]:
        """top1, and top5 where there are more than five classes."""
        return tuple(next(iter(self.figures.values()))[0]) if self.figures else ()

    def __str__(self) -> str:
        head = f"{self.title}: {self.labels:,} labels of {self.instances:,} instances"
        if self.test is None:
            return f"{head}\ntrained: {', '.join(self.runs.values())}\n{self.told()}"
        return "\n".join([head, self.told(), *text_table(self.rows(), numbers=True), *self.verdicts])

    def write_page(self, out: Path, data: Any = None) -> Path:
        """One page: the table, then all stages (those of the last draw) side by side and one by one. `data`: what was trained on,
        named again where it is a URL, since URLs in run folders are not opened."""
        from nearfar.report import write_report  # here, since figures need no page
        from nearfar.report.facts import Summary

        about = f"{self.labels:,} labels of {self.instances:,} instances; {self.told()}."
        head = ("", *(f"{FIGURES[figure]}, %" for figure in self.shown)) if self.figures else ()
        summary = Summary(f"{self.title}, few labels", about, head, tuple(self.rows()), self.verdicts)
        runs = [Run.open(path) for path in self.runs.values()]
        for run in runs:
            run.confirm(data)
        return write_report(runs, out, summary=summary)


def _over_draws(draws: tuple[Mapping[str, float], ...], figure: str) -> tuple[float, float | None]:
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
) -> Report:
    """Pretrains on all of `data`, fine-tunes on few labels, distils what came out over all of `data`, and compares (Chen, Kornblith et al. 2020).

        found = nf.semi("simclr", "photos/", labels=0.01, out="runs/few", test="other/", draws=3, student="resnet8-w16", epochs=50)

    `labels`: a share, a number of each class, or a .csv or .parquet file with path (or index) and label. `init`: a pretrained run in place
    of the first stage. Settings are those of the pretraining; `finetune` and `distil` are mappings of the other stages' own; `student` is
    the backbone of the last one, `from_layer` how many layers of the head fine-tuning keeps. Called again, it goes on.
    """
    options = {key: settings.pop(key) for key in OPTIONS if key in settings}
    told = Told(settings, dict(zip(STAGES, (finetune or {}, distil or {}), strict=True)), options)
    start = None if init is None else Path(init)
    return run_semi(
        Semi(
            recipe,
            data,
            read_labels(labels),
            as_path("out", out),
            told,
            test,
            start,
            draws,
            same_labels,
            quiet,
        )
    )


def run_semi(asked: Semi) -> Report:
    asked.check()
    asked.out.mkdir(parents=True, exist_ok=True)
    pretrained = asked.pretrained()
    whole = asked.opened(pretrained)
    tests = None if asked.test is None else Tests(pretrained, asked)
    figures: dict[str, list[dict[str, float]]] = {}
    runs: dict[str, str] = {"pretrained": str(pretrained.path)}
    few = whole
    for draw in range(asked.draws):
        few = labelled(whole, asked.labels, draw)
        _say(asked, f"draw {draw + 1} of {asked.draws}: {len(few):,} labels")
        stages = {SCRATCH: asked.from_scratch, TUNED: asked.finetuned}
        done = {way: stage(pretrained, few, draw) for way, stage in stages.items()}
        done[DISTILLED] = asked.distilled(pretrained, done[TUNED], whole, draw)
        runs |= {way: str(run.path) for way, run in done.items()}
        if tests is None:
            continue
        found = {SCRATCH: tests.classifier(done[SCRATCH], few), PROBE: tests.probe(few)}
        found |= {way: tests.classifier(done[way], few) for way in (TUNED, DISTILLED)}
        for way, told in found.items():
            figures.setdefault(way, []).append(told)
    report = Report(
        f"{asked.recipe} {whole.name}",
        len(few),
        len(whole),
        {way: tuple(told) for way, told in figures.items()},
        None if tests is None else set_facts(tests.data).to_json(),
        runs,
        _verdicts(figures),
    )
    write_atomic(asked.out / "semi.json", json.dumps(report.as_json(), indent=1) + "\n")
    return report


def _verdicts(figures: Mapping[str, list[dict[str, float]]]) -> tuple[str, ...]:
    """What the stages add, paired by draw."""
    said = []
    for better, worse in ((TUNED, SCRATCH), (TUNED, PROBE), (DISTILLED, TUNED)):
        if better in figures and worse in figures:
            pairs = zip(figures[better], figures[worse], strict=True)
            differences = [100 * (one["top1"] - other["top1"]) for one, other in pairs]
            said.append(f"{better} above {worse} {verdict(differences, 'draws')}")
    return tuple(said)


class Tests:
    """The test set, opened once, and how runs do on it."""

    def __init__(self, pretrained: Run, asked: Semi) -> None:
        self.pretrained, self.same_labels = pretrained, asked.same_labels
        self.data: DataSet = pretrained.images(asked.test)
        self._features = pretrained.embed(self.data)

    def classifier(self, run: Run, few: DataSet) -> dict[str, float]:
        """Of the classifier that a run learned, in the numbering of the few."""
        encoders = run.method().to(run.device).encoders
        embedded = features(encoders.backbone(), self.data, run.plain_view(), device=run.device)
        classifier = encoders.classifier()
        assert classifier is not None
        with torch.no_grad():
            logits = classifier(embedded.to(run.device)).cpu()
        classes = torch.arange(logits.shape[1])
        return _shown_rates(hit_rates(rank_classes(logits, classes), self._labels(few)), len(classes))

    def _labels(self, few: DataSet) -> Tensor:
        """The test set's, numbered as those of the few."""
        same = match_labels(labels_of(self.data), self.data, labels_of(few), few, self.same_labels)
        return torch.from_numpy(same.labels)

    def probe(self, few: DataSet) -> dict[str, float]:
        """A linear classifier on the pretrained features of the few."""
        fit = LabelledFeatures(self.pretrained.embed(few), torch.from_numpy(labels_of(few)))
        found = scores(fit, LabelledFeatures(self._features, self._labels(few)), ["linear"])["linear"]
        rates = {key: found.figures[key].value for key in FIGURES}
        return _shown_rates(rates, found.details["classes"])


def _shown_rates(rates: dict[str, float], classes: int) -> dict[str, float]:
    """Without top-5 where there are five classes or fewer."""
    return rates if classes > TOP else {"top1": rates["top1"]}


def _say(asked: Semi, sentence: str) -> None:
    if not asked.quiet:
        print(f"semi: {sentence}", file=sys.stderr, flush=True)
