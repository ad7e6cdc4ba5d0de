"""Distillation of a teacher into a student: what `nearfar distill` and `nf.distill` do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.config.objects import Objects, split_objects
from nearfar.config.presets import preset_named, presets_of
from nearfar.config.recipes.distillation import CONTRASTS, layer_of, terms_of
from nearfar.config.settings import Settings
from nearfar.core.strategy import Strategy
from nearfar.data import Columns, Located, locate
from nearfar.errors import UserError
from nearfar.run.teachers import PYTHON_PREFIX, TEACHER, Teacher, load_teacher
from nearfar.run.trained import Run
from nearfar.system.files import as_path
from nearfar.train.defaults import resolve_here
from nearfar.train.hooks import Hook
from nearfar.train.loggers import Logger
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
    hooks: Sequence[Hook] = (),
    loggers: Sequence[Logger] = (),
    strategy: Strategy | None = None,
    **settings: Any,
) -> Run:
    """Trains a student on a teacher's outputs for `data`, and returns its run; called again, it resumes.

        run = nf.distill("runs/large", "photos/", out="runs/small", objective="crd+kd", backbone="resnet20")

    `teacher` is a run (a path or a `Run`), a network's name with a weights file ("resnet50:weights.pth"), a
    `nf.Teacher`, or a module from a batch of images to features. `objective` is kd, crd, infonce, ml-cpc,
    cosine, relational or a sum of them. The default is the preset's, else crd+kd, or crd for a teacher without
    a classifier. Data need no labels; if they have some, cross-entropy is part of the loss (`prior={"labels": 0}`
    leaves it out). Everything else is as in `pretrain`.
    """
    out, all_settings = as_path("out", out), {**(config or {}), **settings}
    columns = Columns(all_settings.get("image_column"), all_settings.get("label_column"))
    located = locate(data, labels, columns)
    request = split_objects(RECIPE, config or {}, settings)
    resolved, objects, note = student_of(
        teacher,
        located.name,
        out,
        *request.layers,
        objective=objective,
        located=located,
        objects=request.objects,
    )
    return run_pretraining(
        resolved,
        located,
        out,
        allow_change=allow_change,
        quiet=quiet,
        note=note,
        objects=objects,
        hooks=hooks,
        loggers=loggers,
        strategy=strategy,
    )


def student_of(
    teacher: Any,
    data: str,
    out: Path | None,
    *layers: Mapping[str, Any],
    objective: str | None = None,
    located: Located | None = None,
    objects: Objects | None = None,
) -> tuple[Settings, Objects, str | None]:
    """The settings of a student of this teacher, its objects, and a note about defaults."""
    for layer in layers:
        if "recipe" in layer:
            raise UserError("recipe is not a setting of distillation; choose with objective=")
    preset, presets = preset_named(layers), presets_of(RECIPE)
    if objective is None and isinstance(preset, str) and preset in presets:
        objective = presets[preset].objective
    if objective is not None:
        objective_layer(objective, *layers)  # reports a mistake before loading anything
    loaded = load_teacher(teacher)
    modality = None if located is None else located.modality
    if modality is not None and loaded.modality is not None and modality is not loaded.modality:
        raise UserError(
            f"the teacher {loaded.name} is made for {loaded.modality.plural}, but {data} holds "
            f"{modality.plural}"
        )
    if objective is None:
        objective = "crd+kd" if _teacher_widths(loaded, layers)[1] else "crd"
    of_teacher = {"encoders": teacher_section(loaded, objective, *layers)}
    of_objective = objective_layer(objective, *layers)
    settings, note = resolve_here(
        RECIPE, data, out, of_objective, of_teacher, *layers, located=located, objects=objects or {}
    )
    return settings, {**(objects or {}), TEACHER: loaded}, note


def teacher_section(teacher: Teacher, objective: Any, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a student's encoders that its teacher and its objective determine."""
    width, classes = _teacher_widths(teacher, layers)
    terms = terms_of(objective)
    if "kd" in terms and not classes:
        raise UserError(
            f"objective was {objective}, but the teacher {teacher.name} has no classifier, and kd needs "
            "class scores; use a run of nearfar train or a weights file with a classifier, or distil "
            "features: objective=crd, infonce, ml-cpc, cosine or relational"
        )
    identity = {"teacher": teacher.name, "digest": teacher.digest, "width": width}
    return {**identity, "classes": classes if "kd" in terms else 0}


def objective_layer(objective: Any, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """An objective as settings; stops at a temperature in `layers` that it has no use for."""
    if not {*terms_of(objective)} & {*CONTRASTS} and any("temperature" in layer for layer in layers):
        raise UserError(
            f"temperature belongs to contrastive objectives, and objective={objective} is not one; for kd set "
            "prior.temperature"
        )
    return layer_of(objective)


def _teacher_widths(teacher: Teacher, layers: tuple[Mapping[str, Any], ...]) -> tuple[int, int]:
    """The numbers of the teacher's features and classes, from its outputs for a view of zeros."""
    if teacher.modality is not None and teacher.description is not None:
        networks = teacher.modality.networks
        inputs = networks.inputs(networks.smallest, teacher.views, teacher.description)
        return teacher.widths(inputs.shapes[0])
    sizes = [layer["image_size"] for layer in layers if layer.get("image_size")]
    side = teacher.side(int(sizes[-1]) if sizes else None)
    first_problem: UserError | None = None
    for channels in (3, 1):
        try:
            return teacher.widths((channels, side, side))
        except UserError as problem:
            first_problem = first_problem or problem
    raise UserError(
        f"the teacher {teacher.name.removeprefix(PYTHON_PREFIX)} failed on images of {side} pixels: "
        f"{first_problem}; set the size with nf.Teacher(module, size=…)"
    )
