"""Contrastive distillation (Song & Ermon 2020, Tables 1 and 2, Fig. 4, in small).

A teacher is trained on the labels, then students of the same and of other types learn from it: from labels alone, with knowledge
distillation (KD, Hinton et al. 2015), contrastive representation distillation (CRD, Tian et al. 2020b), alpha-CPC (L) and alpha-ML-CPC
(J) with memory banks of student and teacher, each with and without KD. Song & Ermon 2020 trains 13 pairs on CIFAR-100 for 240 epochs, three seeds;
here six smaller pairs learn from some thousand small pictures in a few epochs. Every figure is the top-1 of the student's own
classifier at its last epoch. Weights of the terms are those of Tian et al. 2020b and were not tuned.

Command: nearfar study distillation data=cifar10:ROOT     Cost: about 20 minutes on two cores.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nearfar.errors import UserError
from nearfar.evaluate import features
from nearfar.modalities import IMAGE, Images
from nearfar.parts.encoders import check_backbone
from nearfar.run.trained import Run
from nearfar.studies.frame import Bench, Finding, Result, Row, Study, arm_name
from nearfar.studies.images import Arm, Setup, moments, sets_of, written
from nearfar.system.hardware import one_thread
from nearfar.train.defaults import resolve_here
from nearfar.train.distill import student_of
from nearfar.train.pretrain import run_pretraining

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARROW = ">"
# ours, and the pair of the paper that it stands for: (teacher, student, teacher's and student's own top-1, KD, CRD, L_1, L_0.1, J_1, J_0.05)
PAIRS: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "wrn-16-2>wrn-10-1": ("same", "WRN-40-2 to WRN-16-2", (75.61, 73.26, 74.92, 75.48, 75.42, 75.69, 75.39, 75.64)),
    "resnet20>resnet8": ("same", "resnet56 to resnet20", (72.34, 69.06, 70.66, 71.16, 71.32, 71.48, 71.28, 71.33)),
    "resnet8x2>resnet8": ("same", "resnet32x4 to resnet8x4", (79.42, 72.50, 73.33, 75.51, 75.50, 75.41, 75.32, 75.50)),
    "vgg8>mobilenetv2x0.25": ("other", "vgg13 to MobileNetV2", (74.64, 64.60, 67.37, 69.73, 69.24, 69.26, 68.92, 69.25)),
    "resnet8x2>shufflenetv2x0.5": ("other", "resnet32x4 to ShuffleNetV2", (79.42, 71.82, 74.45, 75.65, 75.93, 76.01, 75.88, 76.24)),
    "wrn-16-2>shufflenetv2x0.5": ("other", "WRN-40-2 to ShuffleNetV1", (75.61, 70.50, 74.83, 76.05, 75.72, 76.12, 75.70, 76.03)),
}  # fmt: skip
TABLES = {
    "same": ("Student and teacher of one type", "Song & Ermon 2020, Table 1 (CIFAR-100, 240 epochs, three seeds)"),
    "other": ("Student and teacher of different types", "Song & Ermon 2020, Table 2 (CIFAR-100, 240 epochs, three seeds)"),
    "own": ("Other pairs", ""),
}  # fmt: skip
TEACHER, ALONE = "teacher", "student alone"
PAPER = (TEACHER, ALONE, "KD", "CRD", "L_1", "L_0.1", "J_1", "J_0.05")
CONTRASTS: dict[str, tuple[str, float | None]] = {
    "CRD": ("crd", None),
    "L_1": ("infonce", 1.0),
    "L_0.1": ("infonce", 0.1),
    "J_1": ("ml-cpc", 1.0),
    "J_0.05": ("ml-cpc", 0.05),
}
CLEAR = 1.0  # points above the student alone that are called a clear margin


@dataclass(frozen=True)
class Budget(Setup):
    """What other studies share, smaller: there are some 140 trainings."""

    images: int = 2_000
    epochs: int = 5
    size: int = 12


def run(
    bench: Bench, setup: Budget, pairs: str = ",".join(PAIRS), teacher_epochs: int = 25, lr: float = 2e-3
) -> Result:
    asked = [_pair(pair) for pair in pairs.split(",")]
    teachers = list(dict.fromkeys(teacher for teacher, _ in asked))
    compute = partial(top1_of, setup=setup, folder=bench.folder / "runs")
    arms = {name: _arm(setup, "teacher", setup.seed, name, teacher_epochs, lr) for name in teachers}
    taught = dict(zip(teachers, bench.arms(list(arms.values()), compute, setup.jobs), strict=True))
    wanted: dict[tuple[str, str, int], Arm] = {}
    for seed in setup.numbers:  # every pair's first seed comes first
        for teacher, student in asked:
            pair = f"{teacher}{ARROW}{student}"
            wanted[pair, ALONE, seed] = _arm(setup, "alone", seed, student, setup.epochs, lr)
            for name, (objective, alpha) in objectives().items():
                learnt = {"objective": objective, "alpha": alpha, "teacher": arms[teacher]}
                wanted[pair, name, seed] = _arm(setup, "student", seed, student, setup.epochs, lr, **learnt)
    alike = list({arm_name(arm): arm for arm in wanted.values()}.values())
    by_arm = dict(zip(map(arm_name, alike), bench.arms(alike, compute, setup.jobs), strict=True))
    found = {key: by_arm[arm_name(arm)] for key, arm in wanted.items()}
    names = [f"{teacher}{ARROW}{student}" for teacher, student in asked]
    per_pair = {
        pair: {
            TEACHER: [100 * taught[pair.partition(ARROW)[0]]["top1"]],
            **{
                name: [100 * found[pair, name, seed]["top1"] for seed in setup.numbers]
                for name in (ALONE, *objectives())
            },
        }
        for pair in names
    }
    return Result((*_tables(per_pair), _alphas(per_pair)), _remarks(per_pair))


def objectives() -> dict[str, tuple[str, float | None]]:
    """By its name here: the objective, and alpha where it has one."""
    both = {f"{name} + KD": (f"{objective}+kd", alpha) for name, (objective, alpha) in CONTRASTS.items()}
    return {"KD": ("kd", None), **CONTRASTS, **both}


def _pair(text: str) -> tuple[str, str]:
    teacher, arrow, student = text.strip().partition(ARROW)
    if not arrow or not teacher or not student:
        raise UserError(
            f"pairs has {text!r}; expected TEACHER{ARROW}STUDENT, for instance resnet20{ARROW}resnet8, separated by commas"
        )
    return check_backbone(teacher), check_backbone(student)


def _arm(setup: Setup, kind: str, seed: int, backbone: str, epochs: int, lr: float, **more: Any) -> Arm:
    train, asked = sets_of(setup)
    prints = {"train": train.fingerprint, "asked": asked.fingerprint}
    budget = {"epochs": epochs, "size": setup.size, "batch": setup.batch, "backbone": backbone, "lr": lr}
    return {"version": 1, "kind": kind, "seed": seed, **budget, **prints, **more}


def top1_of(arm: Mapping[str, Any], setup: Setup, folder: Path) -> dict[str, float]:
    """Trains one arm, and asks its classifier about pictures it never saw. A teacher's run is kept."""
    with one_thread():
        run = _trained(arm, setup, folder)
        found = {"top1": accuracy(run, sets_of(setup)[1])}
        if arm["kind"] != "teacher":
            shutil.rmtree(run.path)
        return found


def _trained(arm: Mapping[str, Any], setup: Setup, folder: Path) -> Run:
    train, _ = sets_of(setup)
    layer = {
        "epochs": arm["epochs"],
        "batch_size": arm["batch"],
        "image_size": arm["size"],
        "seed": arm["seed"],
        "backbone": arm["backbone"],
        "lr": arm["lr"],
        "precision": "fp32",
        "workers": 1,
        "probe_every": 0.0,
        "held_out": 0,
    }
    out = folder / arm_name(arm)
    if arm["kind"] != "student":
        settings, _ = resolve_here("supervised", setup.data, None, layer, modality=IMAGE)
        return run_pretraining(settings, train, out, quiet=True)
    teacher = _trained(arm["teacher"], setup, folder)  # there already, unless somebody removed it
    alpha = {} if arm["alpha"] is None else {"bound": {"alpha": arm["alpha"]}}
    settings, objects, _ = student_of(
        teacher.path, setup.data, None, layer, alpha, objective=arm["objective"], modality=IMAGE
    )
    return run_pretraining(settings, train, out, quiet=True, objects=objects)


def accuracy(run: Run, asked: Images) -> float:
    """Top-1 of a run's own classifier."""
    seen = features(run.encoder(), asked, run.plain_view(), device=run.device, workers=1)
    method: Any = run.method()
    with torch.no_grad():
        guessed = method.encoders.logits(seen).argmax(dim=1)
    assert asked.labels is not None
    return float((guessed == torch.from_numpy(asked.labels)).double().mean())


# ------------------------------------------------------------------------------------------- what was found

PerPair = Mapping[str, Mapping[str, Sequence[float]]]


def _tables(found: PerPair) -> list[Finding]:
    findings = []
    for kind, (title, source) in TABLES.items():
        pairs = [pair for pair in found if PAIRS.get(pair, ("own", "", ()))[0] == kind]
        rows = []
        for pair in pairs:
            theirs, figures = PAIRS.get(pair, ("own", "", ()))[1:]
            paper = dict(zip(PAPER, figures, strict=False))
            beside = f" (paper: {theirs})" if theirs else ""
            rows += [
                Row(f"{pair.replace(ARROW, ' to ')}{beside}, {name}", paper.get(name), *moments(values))
                for name, values in found[pair].items()
            ]
        if rows:
            findings.append(Finding(f"{title}: top-1 in percent", tuple(rows), source=source))
    return findings


def _alphas(found: PerPair) -> Finding:
    """Fig. 4: the mean over pairs by alpha; drawn there, and told in words."""
    said = {"L_1": "below CRD", "L_0.1": "above CRD", "J_1": "below CRD", "J_0.05": "above CRD"}
    rows = [
        Row(name, said.get(name), *moments([_mean(pair[name]) for pair in found.values()]))
        for name in (ALONE, *objectives())
    ]
    curves = {pair: {name: list(values) for name, values in each.items()} for pair, each in found.items()}
    source = "Song & Ermon 2020, Fig. 4 and sec. 5.2, in words: only drawn there (spread here: over pairs)"
    return Finding("Mean over pairs: top-1 in percent", tuple(rows), curves, source)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def gains(found: PerPair, name: str, over: str = ALONE) -> dict[str, list[float]]:
    """Points by which an objective is above another, pair by pair and seed by seed."""
    return {
        pair: [a - b for a, b in zip(each[name], each[over], strict=True)] for pair, each in found.items()
    }


def _remarks(found: PerPair) -> tuple[str, ...]:
    weaker = [pair for pair, each in found.items() if each[TEACHER][0] <= _mean(each[ALONE])]
    remarks = [
        f"the teacher is no better than its student alone in {', '.join(weaker)}: such a pair says nothing."
        if weaker
        else "every teacher is better than its student alone, by "
        + ", ".join(f"{each[TEACHER][0] - _mean(each[ALONE]):.1f}" for each in found.values())
        + " points."
    ]
    for name in objectives():
        points = {pair: moments(values) for pair, values in gains(found, name).items()}
        clear = sum(mean > max(CLEAR, 2 * (spread or 0.0)) for mean, spread in points.values())
        told = ", ".join(written(value, "+") for value in points.values())
        remarks.append(
            f"{name}, points above the student alone, paired by seed, pair by pair: {told}; clear (above {CLEAR:g} and twice its spread) in "
            f"{clear} of {len(points)}."
        )
    for one, other in (
        ("L_0.1", "CRD"),
        ("J_0.05", "CRD"),
        ("L_0.1", "L_1"),
        ("J_0.05", "J_1"),
        ("CRD + KD", "KD"),
    ):
        above = [_mean(values) for values in gains(found, one, other).values()]
        remarks.append(
            f"{one} is above {other} in {sum(value > 0 for value in above)} of {len(above)} pairs, by {_mean(above):+.1f} points on average."
        )
    return tuple(remarks)


def draw(result: Result) -> "Figure":
    from nearfar.studies.drawing import COLOURS, panels

    mean = result.finding("Mean over pairs: top-1 in percent")
    figure, axes = panels(["Points above the student alone", "Mean over pairs by alpha (Fig. 4)"], width=5.0)
    names = [name for name in objectives() if "+" not in name]
    for place, (pair, each) in enumerate(mean.curves.items()):
        points = [_mean(gains({pair: each}, name)[pair]) for name in names]
        axes[0].plot(points, range(len(names)), "o", color=COLOURS[place % len(COLOURS)], label=pair)
    axes[0].axvline(0.0, color="#1c1c1c", linewidth=0.8)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].legend(frameon=False, fontsize=6)
    ours = {row.label: float(row.ours or 0.0) for row in mean.rows}
    for letter, places, colour in (("L", (1.0, 0.1), COLOURS[0]), ("J", (1.0, 0.05), COLOURS[1])):
        axes[1].plot(
            places, [ours[f"{letter}_{place:g}"] for place in places], "o-", color=colour, label=letter
        )
    axes[1].axhline(ours["CRD"], color=COLOURS[2], label="CRD")
    axes[1].axhline(ours[ALONE], color="#1c1c1c", linestyle="--", label=ALONE)
    axes[1].set(xscale="log", xlabel="alpha")
    axes[1].legend(frameon=False, fontsize=7)
    return figure


STUDY = Study(
    "distillation",
    "Song & Ermon 2020, Tables 1 and 2 and Fig. 4 in small: teachers and students, KD, CRD, alpha-CPC and alpha-ML-CPC",
    run,
    draw,
)
