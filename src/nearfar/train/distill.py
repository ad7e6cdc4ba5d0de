"""From a teacher to a trained student: what `nearfar distill` and `nf.distill` do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearfar.config.objects import Objects, given
from nearfar.config.recipes.distillation import CONTRASTS, layer_of, terms_of
from nearfar.config.settings import Settings
from nearfar.data import Columns, locate
from nearfar.errors import UserError
from nearfar.modalities import Modality
from nearfar.run.teachers import OWN, TEACHER, Teacher, load_teacher
from nearfar.run.trained import Run
from nearfar.system.files import as_path
from nearfar.train.defaults import resolve_here
from nearfar.train.pretrain import run_pretraining

RECIPE = "distill"


def distill(
    teacher: Any,
    data: Any,
    out: str | Path,
    *,
    objective: str | None = None,
    labels: Any = None,
    config: Mapping[str, Any] | None = None,
    allow_change: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Trains a student on what a teacher says of `data`, and returns its run; called again, it resumes.

        run = nf.distill("runs/large", "photos/", out="runs/small", objective="crd+kd", backbone="resnet20")

    `teacher` is a run (a path or a `Run`), a network's name with a weights file ("resnet50:weights.pth"), a `nf.Teacher` or a module from a
    batch of images to features. `objective` is kd, crd, infonce, ml-cpc, cosine, relational or a sum of them; without it crd+kd, or, of a
    teacher without a classifier, crd. Data need no labels; where they have some, cross-entropy on them is part of the loss
    (`prior={"labels": 0}` leaves it out). Everything else is as in `pretrain`.
    """
    out, told = as_path("out", out), {**(config or {}), **settings}
    columns = Columns(told.get("image_column"), told.get("label_column"))
    located = locate(data, labels, columns)
    asked = given(RECIPE, config or {}, settings)
    student = student_of(
        teacher,
        located.name,
        out,
        *asked.layers,
        objective=objective,
        modality=located.modality,
        objects=asked.objects,
    )
    chosen, objects, said = student
    return run_pretraining(
        chosen, located, out, allow_change=allow_change, quiet=quiet, said=said, objects=objects
    )


def student_of(
    teacher: Any,
    data: str,
    out: Path | None,
    *layers: Mapping[str, Any],
    objective: str | None = None,
    modality: Modality | None = None,
    objects: Objects | None = None,
) -> tuple[Settings, Objects, str | None]:
    """Settings of a student of this teacher, the objects it is made with, and a sentence about what was chosen for the machine."""
    for layer in layers:
        if "recipe" in layer:
            raise UserError("recipe was given as a setting; distillation has its own: choose with objective=")
    if objective is not None:
        terms_of(objective)  # a mistake in it comes before loading anything
    loaded = load_teacher(teacher)
    if modality is not None and loaded.modality is not None and modality is not loaded.modality:
        raise UserError(
            f"the teacher {loaded.name} is made for {loaded.modality.plural}, but {data} holds {modality.plural}"
        )
    width, classes = _widths(loaded, layers)
    if objective is None:
        objective = "crd+kd" if classes else "crd"
    terms = terms_of(objective)
    if "kd" in terms and not classes:
        raise UserError(
            f"objective was {objective}, but the teacher {loaded.name} has no classifier, and kd reads class scores; take a run of nearfar train "
            "or a weights file with a classifier, or distil features: objective=crd, infonce, ml-cpc, cosine or relational"
        )
    if not {*terms} & {*CONTRASTS} and any("temperature" in layer for layer in layers):
        raise UserError(
            f"temperature is that of a contrast, and objective={objective} has none; kd's is prior.temperature"
        )
    about = {"teacher": loaded.name, "digest": loaded.digest, "width": width}
    own = {"encoders": {**about, "classes": classes if "kd" in terms else 0}}
    here, said = resolve_here(
        RECIPE, data, out, layer_of(objective), own, *layers, modality=modality, objects=objects or {}
    )
    return here, {**(objects or {}), TEACHER: loaded}, said


def _widths(teacher: Teacher, layers: tuple[Mapping[str, Any], ...]) -> tuple[int, int]:
    """How many features and classes the teacher gives, tried on a view of zeros."""
    if teacher.modality is not None and teacher.shown is not None:
        modality = teacher.modality
        views = modality.views.check({"name": modality.views.default})
        return teacher.widths(
            modality.networks.inputs(modality.networks.smallest, views, teacher.shown).shapes[0]
        )
    sizes = [layer["image_size"] for layer in layers if layer.get("image_size")]
    side = teacher.side(int(sizes[-1]) if sizes else None)
    problem: UserError | None = None
    for channels in (3, 1):
        try:
            return teacher.widths((channels, side, side))
        except UserError as found:
            problem = problem or found
    raise UserError(
        f"the teacher {teacher.name.removeprefix(OWN)} could not be tried on pictures of {side} pixels: {problem}; nf.Teacher(module, size=…) says "
        "what it takes"
    )
