"""The settings of each stage, and running them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nearfar.config.resolving import read_words
from nearfar.config.settings import Settings
from nearfar.data import Limits, Located, locate
from nearfar.errors import UserError
from nearfar.modalities import DataSet
from nearfar.run.folder import RunFolder
from nearfar.run.trained import Run, columns_in
from nearfar.simclrv2.labels import Labels
from nearfar.train.defaults import resolve_here
from nearfar.train.distill import RECIPE as STUDENT
from nearfar.train.distill import student_of
from nearfar.train.pretrain import run_pretraining

RECIPE = "supervised"
FINETUNE, DISTIL = "finetune", "distil"
STAGES = (FINETUNE, DISTIL)
# settings that every stage has in common; any other without a prefix is one of the pretraining
SHARED = (
    "seed",
    "workers",
    "device",
    "precision",
    "memory",
    "image_size",
    "image_column",
    "label_column",
    "max_bad_share",
)
OPTIONS = ("student", "from_layer")  # of the whole, not of a stage
EPOCHS, LEAST_STEPS, LARGEST_BATCH = (
    20,
    300,
    128,
)  # of fine-tuning, as `nearfar evaluate --protocol finetune` does it
SOFTNESS: Mapping[str, Any] = {"temperature": 1.0}  # of both sides' class probabilities
# nothing is kept aside: the few labels are all there are
USUAL: Mapping[str, Any] = {"held_out": 0.0, "probe_every": 0.0}


# of fine-tuning's settings, those that from-scratch shares: the same labels for the same number of steps
COMPARED = (*SHARED, "epochs", "batch_size", "views")


@dataclass(frozen=True)
class Told:
    """Settings by stage, and the options of the whole."""

    pretrain: Mapping[str, Any]
    stages: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)

    def shared(self) -> dict[str, Any]:
        return {key: value for key, value in self.pretrain.items() if key in SHARED}

    def of(self, stage: str) -> dict[str, Any]:
        return {**self.shared(), **self.stages.get(stage, {})}


def read_told(words: Iterable[str]) -> Told:
    """`finetune.lr=1e-3` is of that stage, `student=` and `from_layer=` of the whole, all else of the pretraining."""
    by_stage: dict[str, list[str]] = {"": [], **{stage: [] for stage in STAGES}}
    options: dict[str, Any] = {}
    for word in words:
        key, _, rest = word.partition("=")
        stage, dot, inner = key.partition(".")
        if key in OPTIONS:
            options |= read_words([word])
        elif dot and stage in STAGES:
            by_stage[stage].append(f"{inner}={rest}")
        else:
            by_stage[""].append(word)
    read = {stage: read_words(given) for stage, given in by_stage.items()}
    return Told(read.pop(""), read, options)


@dataclass(frozen=True)
class Semi:
    """What was asked for."""

    recipe: str
    data: Any
    labels: Labels
    out: Path
    told: Told
    test: Any = None
    init: Path | None = None
    draws: int = 1
    same_labels: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UserError(f"--draws was {self.draws}; expected a whole number from 1")
        if self.draws > 1 and isinstance(self.labels, Path):
            raise UserError(f"--draws was {self.draws} with --labels {self.labels}; a file is one draw")
        if RunFolder(self.out).config.exists():
            raise UserError(
                f"--out was {self.out}, which is a run itself; name another folder, or go on from it by --init {self.out}"
            )
        own = [key for key in self.told.pretrain if key not in SHARED]
        if self.init is not None and own:
            raise UserError(
                f"{own[0]} was given with --init {self.init}; it would be a setting of the pretraining, which is there: write "
                f"finetune.{own[0]} or distil.{own[0]}"
            )

    def check(self) -> None:
        """Refuses what can be refused before any work: settings of the later stages, layers that the head has not."""
        located = self.located()
        if self.test is not None and locate(self.test).name == located.name:
            raise UserError(
                f"--data was {located.name}, which is also what is trained on, its labels included; give test data of their own"
            )
        if "student" in self.told.options:
            located.modality.check_network(self.told.options["student"])
        for stage, recipe in ((FINETUNE, RECIPE), (DISTIL, STUDENT)):
            own = {key: value for key, value in self.told.of(stage).items() if key != "objective"}
            resolve_here(recipe, located.name, None, own, modality=located.modality)
        if self.init is not None:
            begun = Run.open(self.init)
            if begun.settings.recipe != self.recipe:
                raise UserError(
                    f"RECIPE was {self.recipe}, but --init {self.init} was trained with {begun.settings.recipe}; name that one"
                )
            self.kept_head(begun)

    def located(self) -> Located:
        return locate(self.data)

    def folder(self, stage: str, draw: int) -> Path:
        return (self.out if self.draws == 1 else self.out / f"draw-{draw}") / stage

    def pretrained(self) -> Run:
        """The run of the first stage: trained now, gone on with, or given."""
        if self.init is not None:
            return Run.open(self.init)
        located = self.located()
        out = self.out / "pretrain"
        settings, said = resolve_here(
            self.recipe, located.name, out, self.told.pretrain, modality=located.modality
        )
        return run_pretraining(settings, located, out, quiet=self.quiet, note=said)

    def opened(self, run: Run) -> DataSet:
        """All instances, as the pretrained network sees them."""
        settings = run.settings
        located = locate(self.data, columns=columns_in(settings))
        options = settings.modality.reader.options_for(settings.views, settings.image_size, run.description)
        return located.open(Limits(max_bad_share=settings.max_bad_share), **options)

    def finetuned(self, run: Run, few: DataSet, draw: int) -> Run:
        """From a middle layer of the head on: backbone and those layers go on learning, under a new classifier."""
        start = {"init": str(run.path), "lr": 1e-3, "layer_decay": 0.7}
        return self._supervised(FINETUNE, run, few, draw, {**start, "encoders": self.kept_head(run)})

    def from_scratch(self, run: Run, few: DataSet, draw: int) -> Run:
        """The same network and steps by the few labels alone."""
        return self._supervised("scratch", run, few, draw, {})

    def distilled(self, run: Run, teacher: Run, whole: DataSet, draw: int) -> Run:
        """A student of what the fine-tuned network says of all instances; no label is looked at. One with the same backbone begins where
        fine-tuning did, at the pretrained weights."""
        bare = replace(whole, labels=None, classes=(), unlabelled="a student learns from its teacher alone")
        student = self.told.options.get("student", run.settings.backbone)
        start = {"init": str(run.path)} if student == run.settings.backbone else {}
        usual = {
            **USUAL,
            **start,
            "backbone": student,
            "batch_size": min(run.settings.batch_size, Settings.model_fields["batch_size"].default),
            "image_size": run.settings.image_size,
            "prior": SOFTNESS,
        }
        own = self.told.of(DISTIL)
        objective = own.pop("objective", "kd")
        out = self.folder(DISTIL, draw)
        settings, objects, _ = student_of(
            str(teacher.path), bare.name, out, usual, own, objective=objective, modality=run.modality
        )
        return run_pretraining(settings, bare, out, quiet=self.quiet, objects=objects)

    def _supervised(self, stage: str, run: Run, few: DataSet, draw: int, changes: Mapping[str, Any]) -> Run:
        batch = min(LARGEST_BATCH, len(few))
        epochs = max(EPOCHS, math.ceil(LEAST_STEPS / (len(few) // batch)))
        network = {"backbone": run.settings.backbone, "image_size": run.settings.image_size}
        own = {key: v for key, v in self.told.of(FINETUNE).items() if stage == FINETUNE or key in COMPARED}
        layers = ({**USUAL, **network, "epochs": epochs, "batch_size": batch}, changes, own)
        out = self.folder(stage, draw)
        settings, _ = resolve_here(RECIPE, few.name, out, *layers, modality=run.modality)
        return run_pretraining(settings, few, out, quiet=True)

    def kept_head(self, run: Run) -> dict[str, Any]:
        """The settings of the part of the head that is kept: its first layer, or as many as `from_layer` says; none of a linear head."""
        head = run.settings.encoders
        deep = str(head.get("head", "none")).startswith("mlp")
        asked = self.told.options.get("from_layer", 1 if deep else 0)
        most = int(head.get("layers", 2)) - 1 if deep else 0
        if not isinstance(asked, int) or not 0 <= asked <= most:
            raise UserError(
                f"from_layer was {asked!r}; the head of {run.path} has inner layers 1 to {most}, and 0 is the backbone alone"
                if most
                else f"from_layer was {asked!r}; the head of {run.path} has no inner layer, so it is 0, the backbone alone"
            )
        if not asked:
            return {"head": "none"}
        return {**{key: head[key] for key in ("head", "hidden", "layers") if key in head}, "cut": asked}
