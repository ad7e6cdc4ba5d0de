"""The stages of semi-supervised learning, each a cell: a training in a folder that resumes."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nearfar.config.building import NO_OBJECTS
from nearfar.config.fields import FIELDS
from nearfar.config.objects import Objects
from nearfar.config.resolving import complete, nested, read_words
from nearfar.config.settings import MAY_CHANGE, Settings
from nearfar.data import Limits, Located, locate
from nearfar.errors import UserError, check_whole
from nearfar.modalities import DataSet
from nearfar.run.folder import RunFolder
from nearfar.run.teachers import TEACHER, load_teacher
from nearfar.run.trained import Run, columns_in
from nearfar.simclrv2.labels import LabelChoice
from nearfar.sweeps.engine import Cell
from nearfar.train.defaults import resolve_here
from nearfar.train.distill import RECIPE as STUDENT
from nearfar.train.distill import objective_layer, teacher_section
from nearfar.train.pretrain import run_pretraining

SUPERVISED = "supervised"
PRETRAIN, SCRATCH, FINETUNE, DISTIL = "pretrain", "scratch", "finetune", "distil"
PREFIXES = (FINETUNE, DISTIL)  # of settings: finetune.lr=1e-3
# settings that all stages share; any other without a prefix belongs to the pretraining
SHARED = (
    "seed", "workers", "device", "precision", "memory", "image_size", "image_column", "label_column", "max_bad_share",
)  # fmt: skip
# of fine-tuning's settings, those that training from scratch shares: the same labels for the same number of
# steps
SCRATCH_SHARES = (*SHARED, "epochs", "batch_size", "views")
OPTIONS = ("student", "from_layer")  # of all stages together
# of fine-tuning, as in `nearfar evaluate --protocol finetune`
MIN_EPOCHS, MIN_STEPS, MAX_BATCH = 20, 300, 128
OBJECTIVE = "kd"  # of the student
STUDENT_PRIOR: Mapping[str, Any] = {"temperature": 1.0}  # of student's and teacher's class probabilities
# nothing is held out: there are only a few labels
DEFAULTS: Mapping[str, Any] = {"held_out": 0.0, "probe_every": 0.0}


@dataclass(frozen=True)
class StageSettings:
    """Settings of the pretraining, of the other stages by prefix, and options of all stages together."""

    pretrain: Mapping[str, Any]
    by_stage: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)

    def of(self, stage: str) -> dict[str, Any]:
        """The user's settings of a later stage."""
        if stage == SCRATCH:
            return {key: value for key, value in self.of(FINETUNE).items() if key in SCRATCH_SHARES}
        shared = {key: value for key, value in self.pretrain.items() if key in SHARED}
        return {**shared, **self.by_stage.get(stage, {})}


def read_stage_settings(words: Iterable[str]) -> StageSettings:
    """Reads settings of a stage (`finetune.lr=1e-3`), of all (`student=`, `from_layer=`), of pretraining."""
    by_stage: dict[str, list[str]] = {"": [], **{stage: [] for stage in PREFIXES}}
    options: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        stage, dot, inner_key = key.partition(".")
        if key in OPTIONS:
            options |= read_words([word])
        elif dot and stage in PREFIXES:
            by_stage[stage].append(f"{inner_key}={value}")
        else:
            by_stage[""].append(word)
    settings = {stage: read_words(listed) for stage, listed in by_stage.items()}
    return StageSettings(settings.pop(""), settings, options)


@dataclass(frozen=True)
class Stage:
    """A training to run: its cell, and what `run_pretraining` needs."""

    cell: Cell
    settings: Settings
    data: Any
    objects: Objects = field(default_factory=lambda: NO_OBJECTS)
    quiet: bool = True
    note: str | None = None  # about defaults for this machine

    def train(self, folder: Path) -> Run:
        return run_pretraining(
            self.settings, self.data, folder, quiet=self.quiet, note=self.note, objects=self.objects
        )


@dataclass(frozen=True)
class SemiRequest:
    """A checked request."""

    recipe: str
    data: Any
    labels: LabelChoice
    out: Path
    settings: StageSettings
    test: Any = None
    init: Path | None = None
    draws: int = 1
    same_labels: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        check_whole("--draws", self.draws, 1)
        if self.draws > 1 and isinstance(self.labels, Path):
            raise UserError(f"--draws was {self.draws} with --labels {self.labels}; a file is one draw")
        if RunFolder(self.out).config.exists():
            raise UserError(
                f"--out was {self.out}, which is a run; choose another folder, or start from the run with "
                f"--init {self.out}"
            )
        keys = [key for key in self.settings.pretrain if key not in SHARED]
        if self.init is not None and keys:
            raise UserError(
                f"{keys[0]} was given with --init {self.init}; it is a setting of the pretraining, which "
                f"--init replaces: write finetune.{keys[0]} or distil.{keys[0]}"
            )

    def check(self) -> None:
        """Refuses bad settings of later stages and head layers that do not exist, before any work."""
        located = self.located_data()
        if self.test is not None and locate(self.test).name == located.name:
            raise UserError(
                f"the test data are {located.name}, which is also the training data; give separate test data"
            )
        _ = self.later_stage_settings
        if self.init is not None:
            run = Run.open(self.init)
            if run.settings.recipe != self.recipe:
                raise UserError(
                    f"RECIPE was {self.recipe}, but --init {self.init} was trained with "
                    f"{run.settings.recipe}; use that recipe"
                )
            self.cut_head(run)

    def located_data(self) -> Located:
        return locate(self.data)

    @cached_property
    def later_stage_settings(self) -> dict[str, Settings]:
        """The settings of the later stages, without what earlier stages decide."""
        student = {"backbone": self.settings.options["student"]} if "student" in self.settings.options else {}
        distil = self.settings.of(DISTIL)
        objective = objective_layer(distil.pop("objective", OBJECTIVE), distil)
        layers: dict[str, list[Mapping[str, Any]]] = {
            FINETUNE: [{"lr": 1e-3, "layer_decay": 0.7}, self.settings.of(FINETUNE)],
            SCRATCH: [self.settings.of(SCRATCH)],
            DISTIL: [objective, {"prior": STUDENT_PRIOR, **student}, distil],
        }
        located = self.located_data()

        def settings_of(stage: str) -> Settings:
            recipe = STUDENT if stage == DISTIL else SUPERVISED
            out = self.out / self._folder(stage, 0)
            return resolve_here(recipe, located.name, out, DEFAULTS, *layers[stage], located=located)[0]

        return {stage: settings_of(stage) for stage in layers}

    def _complete(self, stage: str, data: DataSet, values: Mapping[str, Any]) -> Settings:
        """A stage's settings with values that earlier stages decide, where the user set none."""
        words = self.settings.of(stage)
        unset = {key: value for key, value in values.items() if key not in words or key == "encoders"}
        if "encoders" in unset:
            unset["encoders"] = {**unset["encoders"], **nested(words).get("encoders", {})}
        return complete(self.later_stage_settings[stage], data.name, unset)

    def open_data(self, run: Run) -> DataSet:
        """All instances, opened as for the pretrained network."""
        settings = run.settings
        located = locate(self.data, columns=columns_in(settings))
        options = settings.modality.reader.options_for(settings.views, settings.image_size, run.description)
        return located.open(Limits(max_bad_share=settings.max_bad_share), **options)

    # ------------------------------------------------------------------------------------------------------
    # stages

    def pretrain(self) -> Stage:
        located = self.located_data()
        settings, note = resolve_here(
            self.recipe, located.name, self.out / PRETRAIN, self.settings.pretrain, located=located
        )
        return Stage(_cell(PRETRAIN, settings, located.name), settings, located, quiet=self.quiet, note=note)

    def finetune(self, run: Run, labelled: DataSet, draw: int) -> Stage:
        """The backbone and the first layers of the head, trained further under a new classifier."""
        start = {"init": str(run.path), "encoders": self.cut_head(run)}
        return self._supervised(FINETUNE, run, labelled, draw, start)

    def from_scratch(self, run: Run, labelled: DataSet, draw: int) -> Stage:
        """The same network and number of steps with the few labels only."""
        return self._supervised(SCRATCH, run, labelled, draw, {})

    def distil(self, run: Run, teacher: Run, data: DataSet, draw: int) -> Stage:
        """A student of the fine-tuned network's outputs on all instances, without labels. One with the same
        backbone starts from the pretrained weights."""
        unlabelled = replace(data, labels=None, classes=(), unlabelled="a student learns from its teacher")
        student = self.settings.options.get("student", run.settings.backbone)
        start = {"init": str(run.path)} if student == run.settings.backbone else {}
        loaded = load_teacher(teacher.path)
        objective = self.settings.of(DISTIL).get("objective", OBJECTIVE)
        values = {
            **start,
            "backbone": student,
            "batch_size": min(run.settings.batch_size, FIELDS["batch_size"].default),
            "image_size": run.settings.image_size,
            "encoders": teacher_section(loaded, objective),
        }
        settings, folder = self._complete(DISTIL, data, values), self._folder(DISTIL, draw)
        cell = _cell(folder, settings, data.fingerprint)
        return Stage(cell, settings, unlabelled, {TEACHER: loaded}, self.quiet)

    def _supervised(
        self, stage: str, run: Run, labelled: DataSet, draw: int, start: Mapping[str, Any]
    ) -> Stage:
        batch = min(MAX_BATCH, len(labelled))
        epochs = max(MIN_EPOCHS, math.ceil(MIN_STEPS / (len(labelled) // batch)))
        network = {"backbone": run.settings.backbone, "image_size": run.settings.image_size}
        values = {**network, **start, "epochs": epochs, "batch_size": batch}
        settings, folder = self._complete(stage, labelled, values), self._folder(stage, draw)
        return Stage(_cell(folder, settings, labelled.fingerprint), settings, labelled, quiet=self.quiet)

    def _folder(self, stage: str, draw: int) -> str:
        return stage if self.draws == 1 else f"draw-{draw}/{stage}"

    def cut_head(self, run: Run) -> dict[str, Any]:
        """The settings of the kept part of the head: `from_layer` layers, or the first; none if linear."""
        head = run.settings.encoders
        deep = str(head.get("head", "none")).startswith("mlp")
        layers = self.settings.options.get("from_layer", 1 if deep else 0)
        inner_layers = int(head.get("layers", 2)) - 1 if deep else 0
        if not isinstance(layers, int) or not 0 <= layers <= inner_layers:
            raise UserError(
                f"from_layer was {layers!r}; the head of {run.path} has inner layers 1 to {inner_layers}, "
                "and 0 is the backbone alone"
                if inner_layers
                else f"from_layer was {layers!r}; the head of {run.path} has no inner layer, so it is 0, the backbone alone"
            )
        if not layers:
            return {"head": "none"}
        return {**{key: head[key] for key in ("head", "hidden", "layers") if key in head}, "cut": layers}


def _cell(folder: str, settings: Settings, data: str) -> Cell:
    """The cell of a training on `data` (a fingerprint, or a name), in a folder of that name."""
    relevant = {key: value for key, value in settings.as_plain().items() if key not in MAY_CHANGE}
    return Cell(folder, {"settings": relevant, "data": data}, folder)
