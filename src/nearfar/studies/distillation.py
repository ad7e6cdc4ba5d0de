"""Contrastive distillation (Song & Ermon 2020, Tables 1 and 2, Fig. 4, in small).

A teacher is trained on the labels, then students of the same and of other types learn from it: from labels
alone, with knowledge distillation (KD, Hinton et al. 2015), contrastive representation distillation (CRD,
Tian et al. 2020b), alpha-CPC (L) and alpha-ML-CPC (J) with memory banks of student and teacher, each with and
without KD. Song & Ermon 2020 trains 13 pairs on CIFAR-100 for 240 epochs, three seeds; here six smaller pairs
learn from some thousand small pictures in a few epochs. Every figure is the top-1 of the student's own
classifier at its last epoch. Weights of the terms are those of Tian et al. 2020b and were not tuned.

Command: nearfar study distillation data=cifar10:ROOT     Cost: about 20 minutes on two cores.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from nearfar.core.statistics import mean_and_spread
from nearfar.core.tables import plus_minus
from nearfar.errors import UserError
from nearfar.evaluate import features
from nearfar.modalities import Images
from nearfar.parts.encoders import check_backbone
from nearfar.run.trained import Run
from nearfar.studies.comparison import verdict
from nearfar.studies.frame import StudyResult, StudyTable, Workspace, mean_row, read_numbers, study
from nearfar.studies.images import ONE_CORE, ImageSetup, image_sets, labels_of
from nearfar.sweeps.engine import Cell, CellStore
from nearfar.system.hardware import one_thread
from nearfar.train.defaults import resolve_here
from nearfar.train.distill import student_of
from nearfar.train.pretrain import run_pretraining

ARROW = ">"
# ours, and the pair of the paper that it stands for, with the paper's top-1 in the order of PAPER
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
TEACHER, STUDENT_ALONE = "teacher", "student alone"
PAPER = (TEACHER, STUDENT_ALONE, "KD", "CRD", "L_1", "L_0.1", "J_1", "J_0.05")
Objectives = dict[str, tuple[str, float | None]]  # by name: the objective, and alpha where it has one
PRINTED: Objectives = {
    "L_1": ("infonce", 1.0),
    "L_0.1": ("infonce", 0.1),
    "J_1": ("ml-cpc", 1.0),
    "J_0.05": ("ml-cpc", 0.05),
}
ALPHAS = "printed, or numbers above 0 such as 0.01,0.1,1"
COMPARED = (("L_0.1", "CRD"), ("J_0.05", "CRD"), ("L_0.1", "L_1"), ("J_0.05", "J_1"), ("CRD + KD", "KD"))

# top-1 shares by pair and objective, one for each seed
PairFigures = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class DistillationSetup(ImageSetup):
    """Smaller than other studies: there are about 140 trainings."""

    images: int = 2_000
    epochs: int = 5
    size: int = 12


@study(
    "distillation",
    "Song & Ermon 2020, Tables 1 and 2 and Fig. 4 in small: teachers and students, KD, CRD, alpha-CPC "
    "and alpha-ML-CPC",
)
def run(
    workspace: Workspace,
    setup: DistillationSetup,
    pairs: str = ",".join(PAIRS),
    teacher_epochs: int = 25,
    lr: float = 2e-3,
    alphas: str = "printed",
) -> StudyResult:
    """`alphas`: those of Tables 1 and 2 (`printed`), or a list for L and J alike, as in Fig. 4."""
    all_objectives = objectives(alphas)
    names = {ARROW.join(pair): pair for pair in map(_read_pair, pairs.split(","))}
    make = partial(_cell, setup, lr=lr)
    compute = partial(compute_top1, setup=setup, store=workspace.store)
    teachers = {
        name: make(f"teacher {name}", "teacher", setup.seed, name, teacher_epochs)
        for name in dict.fromkeys(teacher for teacher, _ in names.values())
    }
    taught = dict(zip(teachers, workspace.run(list(teachers.values()), compute, setup.jobs), strict=True))

    def cell_of(arm: tuple[str, str], seed: int) -> Cell:
        (pair, name), (teacher, student) = arm, names[arm[0]]
        if name == STUDENT_ALONE:
            return make(f"{student} alone,seed={seed}", "alone", seed, student, setup.epochs)
        objective, alpha = all_objectives[name]
        lesson: dict[str, Any] = {
            "objective": objective,
            "alpha": alpha,
            "teacher": dict(teachers[teacher].identity),
        }
        return make(f"{pair} {name},seed={seed}", "student", seed, student, setup.epochs, **lesson)

    arms = list(product(names, (STUDENT_ALONE, *all_objectives)))
    values = workspace.run_arms(arms, setup.numbers, cell_of, compute, setup.jobs)
    figures: dict[str, dict[str, list[float]]] = {
        pair: {TEACHER: [taught[teacher]["top1"]]} for pair, (teacher, _) in names.items()
    }
    for (pair, name), seeds in values.items():
        figures[pair][name] = [one["top1"] for one in seeds]
    return StudyResult((*_pair_tables(figures), _mean_table(figures)), make_remarks(figures))


def objectives(alphas: str = "printed") -> Objectives:
    """KD, the contrasts, and each contrast with KD."""
    contrasts: Objectives = {"CRD": ("crd", None)}
    if alphas == "printed":
        contrasts |= PRINTED
    else:
        for alpha in read_numbers(alphas, "alphas", ALPHAS, lambda values: min(values) > 0):
            contrasts |= {f"L_{alpha:g}": ("infonce", alpha), f"J_{alpha:g}": ("ml-cpc", alpha)}
    with_kd = {f"{name} + KD": (f"{objective}+kd", alpha) for name, (objective, alpha) in contrasts.items()}
    return {"KD": ("kd", None), **contrasts, **with_kd}


def _read_pair(text: str) -> tuple[str, str]:
    teacher, arrow, student = text.strip().partition(ARROW)
    if not arrow or not teacher or not student:
        raise UserError(
            f"pairs has {text!r}; expected TEACHER{ARROW}STUDENT, for instance resnet20{ARROW}resnet8, "
            "separated by commas"
        )
    return check_backbone(teacher), check_backbone(student)


def _cell(
    setup: ImageSetup, label: str, kind: str, seed: int, backbone: str, epochs: int, *, lr: float, **more: Any
) -> Cell:
    train, test = image_sets(setup)
    identity = {
        "version": 2,
        "kind": kind,
        "seed": seed,
        "epochs": epochs,
        "size": setup.size,
        "batch": setup.batch,
        "backbone": backbone,
        "lr": lr,
        "train": train.fingerprint,
        "test": test.fingerprint,
        **more,
    }
    return Cell(label, identity)


def compute_top1(cell: Cell, folder: Path, setup: ImageSetup, store: CellStore) -> dict[str, float]:
    """Trains one cell and evaluates its classifier. A teacher's run is kept for its students."""
    with one_thread():
        run = _trained(cell.identity, folder, setup, store)
        values = {"top1": classifier_accuracy(run, image_sets(setup)[1])}
        if cell.identity["kind"] != "teacher":
            shutil.rmtree(run.path)
        return values


def _trained(identity: Mapping[str, Any], folder: Path, setup: ImageSetup, store: CellStore) -> Run:
    train, _ = image_sets(setup)
    layer = {
        **{key: identity[key] for key in ("epochs", "seed", "backbone", "lr")},
        **ONE_CORE,
        "batch_size": identity["batch"],
        "image_size": identity["size"],
        "probe_every": 0.0,
        "held_out": 0,
    }
    if identity["kind"] != "student":
        settings, _ = resolve_here("supervised", setup.data, None, layer)
        return run_pretraining(settings, train, folder, quiet=True)
    teacher = identity["teacher"]
    teacher_folder = store.folder(Cell(f"teacher {teacher['backbone']}", teacher))
    trained_teacher = _trained(teacher, teacher_folder, setup, store)  # finished, unless it was removed
    alpha = {} if identity["alpha"] is None else {"bound": {"alpha": identity["alpha"]}}
    settings, objects, _ = student_of(
        trained_teacher.path, setup.data, None, layer, alpha, objective=identity["objective"]
    )
    return run_pretraining(settings, train, folder, quiet=True, objects=objects)


def classifier_accuracy(run: Run, test: Images) -> float:
    """Top-1 of a run's own classifier."""
    rows = features(run.encoder(), test, run.plain_view(), device=run.device, workers=1)
    classifier = run.method().encoders.classifier()
    assert classifier is not None
    with torch.no_grad():
        predicted = classifier(rows).argmax(dim=1)
    return float((predicted == labels_of(test)).double().mean())


# ------------------------------------------------------------------------------------------------ tables


def _pair_tables(figures: PairFigures) -> list[StudyTable]:
    tables = []
    for kind, (title, source) in TABLES.items():
        rows = []
        for pair, by_name in figures.items():
            pair_kind, paper_pair, numbers = PAIRS.get(pair, ("own", "", ()))
            if pair_kind != kind:
                continue
            paper = dict(zip(PAPER, numbers, strict=False))
            paper_note = f" (paper: {paper_pair})" if paper_pair else ""
            rows += [
                mean_row(
                    f"{pair.replace(ARROW, ' to ')}{paper_note}, {name}", values, paper.get(name), scale=100
                )
                for name, values in by_name.items()
            ]
        if rows:
            tables.append(StudyTable(f"{title}: top-1 in percent", tuple(rows), source))
    return tables


def _mean_table(figures: PairFigures) -> StudyTable:
    """Fig. 4: the mean over pairs by objective; only drawn there, with words."""
    words = {"L_1": "below CRD", "L_0.1": "above CRD", "J_1": "below CRD", "J_0.05": "above CRD"}
    rows = [
        mean_row(
            name, [mean_and_spread(pair[name])[0] for pair in figures.values()], words.get(name), scale=100
        )
        for name in next(iter(figures.values()))
        if name != TEACHER
    ]
    source = "Song & Ermon 2020, Fig. 4 and sec. 5.2, in words: only drawn there (spread here: over pairs)"
    return StudyTable("Mean over pairs: top-1 in percent", tuple(rows), source)


def gains(figures: PairFigures, name: str, base: str = STUDENT_ALONE) -> dict[str, list[float]]:
    """One objective minus another, by pair and seed."""
    return {
        pair: [a - b for a, b in zip(by_name[name], by_name[base], strict=True)]
        for pair, by_name in figures.items()
    }


def make_remarks(figures: PairFigures) -> tuple[str, ...]:
    remarks = []
    for pair, by_name in figures.items():
        teacher_gains = [by_name[TEACHER][0] - top1 for top1 in by_name[STUDENT_ALONE]]
        remarks.append(f"{pair}: the teacher above its student alone {verdict(teacher_gains)}.")
    compared = [name for name in next(iter(figures.values())) if name not in (TEACHER, STUDENT_ALONE)]
    for name in compared:
        by_pair = gains(figures, name)
        points = [mean_and_spread([100 * gain for gain in values]) for values in by_pair.values()]
        listed = ", ".join(plus_minus(*pair, sign="+") for pair in points)
        remarks.append(f"{name} above the student alone {_over_pairs(by_pair)} ({listed}).")
    for name, base in COMPARED:
        if name not in compared or base not in compared:
            continue
        remarks.append(f"{name} above {base} {_over_pairs(gains(figures, name, base))}.")
    return tuple(remarks)


def _over_pairs(by_pair: Mapping[str, Sequence[float]]) -> str:
    """The verdict over the means of several pairs, or over the seeds of one."""
    if len(by_pair) == 1:
        return verdict(next(iter(by_pair.values())))
    return verdict([mean_and_spread(values)[0] for values in by_pair.values()], "pairs")
