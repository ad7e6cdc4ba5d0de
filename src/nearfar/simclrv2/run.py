"""All stages one after the other, and the table: `nf.semi` and `nearfar semi`."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearfar.evaluate import Labelled, features, scores
from nearfar.evaluate.figures import ranked
from nearfar.evaluate.labels import hit_rates
from nearfar.evaluate.matching import matched
from nearfar.evaluate.splits import facts_of, labels_of
from nearfar.modalities import DataSet
from nearfar.run.trained import Run
from nearfar.simclrv2.labels import labelled, read_labels
from nearfar.simclrv2.stages import OPTIONS, STAGES, Semi, Told
from nearfar.studies.compared import verdict
from nearfar.system.files import as_path, write_atomic

SCRATCH, PROBE, TUNED, DISTILLED = "from scratch", "linear probe", "fine-tuned", "distilled"
FIGURES = ("top1", "top5")


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
                    "top1": _mean(draws, "top1"),
                    "top5": _mean(draws, "top5"),
                    "spread": _spread(draws),
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
        return f"top-1 and top-5 in percent on {self.test['name']} ({self.test['samples']:,}){over}"

    def rows(self) -> list[tuple[str, str, str]]:
        """Each way of using the labels, its top-1 and its top-5 in percent."""
        found = []
        for way, draws in self.figures.items():
            spread = _spread(draws)
            deviation = "" if spread is None else f" ± {100 * spread:.1f}"
            top1, top5 = (100 * _mean(draws, figure) for figure in FIGURES)
            found.append((way, f"{top1:.1f}{deviation}", f"{top5:.1f}"))
        return found

    def __str__(self) -> str:
        head = f"{self.title}: {self.labels:,} labels of {self.instances:,} instances"
        if self.test is None:
            return f"{head}\ntrained: {', '.join(self.runs.values())}\n{self.told()}"
        width = max(map(len, self.figures))
        table = [f"  {way:<{width}}  {top1:>10}   {top5:>5}" for way, top1, top5 in self.rows()]
        return "\n".join([head, self.told(), *table, *self.verdicts])

    def write_page(self, out: Path, data: Any = None) -> Path:
        """One page: the table, then all stages (those of the last draw) side by side and one by one. `data`: what was trained on,
        named again where it is a URL, since URLs in run folders are not opened."""
        from nearfar.report import write_report  # here, since figures need no page
        from nearfar.report.facts import Summary

        about = f"{self.labels:,} labels of {self.instances:,} instances; {self.told()}."
        head = ("", "top-1, %", "top-5, %") if self.figures else ()
        summary = Summary(f"{self.title}, few labels", about, head, tuple(self.rows()), self.verdicts)
        runs = [Run.open(path) for path in self.runs.values()]
        for run in runs:
            run.confirm(data)
        return write_report(runs, out, summary=summary)


def _mean(draws: tuple[Mapping[str, float], ...], figure: str) -> float:
    return math.fsum(draw[figure] for draw in draws) / len(draws)


def _spread(draws: tuple[Mapping[str, float], ...]) -> float | None:
    if len(draws) < 2:
        return None
    mean = _mean(draws, "top1")
    return math.sqrt(math.fsum((draw["top1"] - mean) ** 2 for draw in draws) / (len(draws) - 1))


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
        None if tests is None else facts_of(tests.data),
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
            said.append(f"{better} above {worse} {verdict(differences)}".replace("seed", "draw"))
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
        embedded = features(encoders.backbone(), self.data, run.plain(), device=run.device)
        with torch.no_grad():
            logits = encoders.logits(embedded.to(run.device)).cpu()  # type: ignore[attr-defined]
        return hit_rates(ranked(logits, torch.arange(logits.shape[1])), self._labels(few))

    def _labels(self, few: DataSet) -> Tensor:
        """The test set's, numbered as those of the few."""
        same = matched(labels_of(self.data), self.data, labels_of(few), few, self.same_labels)
        return torch.from_numpy(same.labels)

    def probe(self, few: DataSet) -> dict[str, float]:
        """A linear classifier on the pretrained features of the few."""
        fit = Labelled(self.pretrained.embed(few), torch.from_numpy(labels_of(few)))
        found = scores(fit, Labelled(self._features, self._labels(few)), ["linear"])["linear"]
        return {key: float(found[key]) for key in FIGURES}


def _say(asked: Semi, sentence: str) -> None:
    if not asked.quiet:
        print(f"semi: {sentence}", file=sys.stderr, flush=True)
