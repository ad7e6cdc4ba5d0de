"""Teachers: frozen networks that a student learns from, by name or as modules.

    runs/teacher                    a run of any recipe; one of `nearfar train`, or one distilled with labels, has class scores too
    resnet50:weights.pth            a network by name with weights from a file, with class scores if the file has a classifier
    nf.Teacher(module, classifier)  a module of one's own

A run holds the name of its teacher and a digest of its weights, not the weights: the student is evaluated, embedded and exported
without it, and learns on only from the same one.
"""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.config.settings import Settings
from nearfar.core.abstract import AbstractEncoders
from nearfar.core.method import Method
from nearfar.core.schedules import START
from nearfar.core.types import TeacherOutput
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Description, Modality
from nearfar.parts.encoders.backbones import SMALL
from nearfar.parts.encoders.heads import width_of
from nearfar.run.weights import read_weights, renamed, shapes_of

TEACHER = "teacher"  # among objects
OWN = "own "  # before the description of a module of somebody's
LARGE = 224  # side for which a network with a large stem was trained
# of ImageNet: with these torchvision and most of timm normalise
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Teacher(nn.Module):
    """A frozen network from views to features, with what a student must know of it.

    `classifier` maps features to class scores; `logits=True` says that the network gives class scores itself, which are its features too.
    It is shown the student's views: as they are, or, with `size`, `mean` and `std`, resized to that side and normalised by these.
    """

    def __init__(
        self,
        network: nn.Module,
        classifier: nn.Module | None = None,
        *,
        logits: bool = False,
        size: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        name: str = "",
    ) -> None:
        super().__init__()
        if (mean is None) != (std is None):
            raise UserError("a Teacher takes mean and std together; one of them was missing")
        self.network, self.classifier = network, nn.Identity() if logits else classifier
        self.size, self.mean, self.std = size, mean, std
        self.name = name or f"{OWN}{type(network).__name__}"
        self.shown: Description | None = None  # the data it was trained on, where that is known
        self.modality: Modality | None = None
        self.class_names: tuple[str, ...] = ()
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "Teacher":
        """Stays in evaluation mode, whoever asks."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, view: Any) -> TeacherOutput:
        features = self.network(view)
        return TeacherOutput(features, None if self.classifier is None else self.classifier(features))

    @property
    def digest(self) -> str:
        """Of its weights, whatever they are called."""
        found = hashlib.sha256()
        for tensor in self.state_dict().values():
            found.update(str(tuple(tensor.shape)).encode())
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return found.hexdigest()[:16]

    def widths(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """How many features and classes it gives of a view of this shape; 0 classes where it has none."""
        width = width_of(self.network, shape)
        if self.classifier is None:
            return width, 0
        try:
            with torch.no_grad():
                scores = self.classifier(torch.zeros(1, width))
        except (RuntimeError, ValueError, TypeError) as problem:
            raise UserError(
                f"the classifier of the teacher {self.name.removeprefix(OWN)} does not take its {width} features: {problem}"
            ) from None
        if not isinstance(scores, Tensor) or scores.ndim != 2:
            raise UserError(
                f"the classifier of the teacher {self.name.removeprefix(OWN)} must give a tensor of rows and classes; it gave "
                f"{tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__}"
            )
        return width, scores.shape[1]

    def side(self, image_size: int | None) -> int:
        return getattr(self.shown, "size", None) or self.size or image_size or 32


def load_teacher(spec: Any) -> Teacher:
    """The teacher that TEACHER names, or that was given."""
    if isinstance(spec, Teacher):
        return spec
    if isinstance(spec, nn.Module):
        return Teacher(copy.deepcopy(spec))
    if hasattr(spec, "folder") and hasattr(spec, "method"):
        return _from_run(spec, str(spec.path))
    if not isinstance(spec, (str, Path)):
        raise UserError(
            f"teacher was of type {type(spec).__name__}; expected a run, NAME:WEIGHTS such as resnet50:weights.pth, or an nn.Module"
        )
    path = Path(spec)
    if path.is_dir():
        from nearfar.run.trained import Run

        return _from_run(Run.open(path), str(spec))
    name, colon, file = str(spec).partition(":")
    if colon and not path.exists():
        return _from_file(name, Path(file), str(spec))
    what = (
        "which is a file; write the network it is for before it, as in resnet50:weights.pth"
        if path.is_file()
        else "which was not found; expected a run folder, or NAME:WEIGHTS such as resnet50:weights.pth"
    )
    raise UserError(f"teacher was {spec}, {what}")


def _from_run(run: Any, spec: str) -> Teacher:
    if run.facts["step"] == 0:
        raise UserError(f"teacher was {spec}, which has taken no step yet; train it first")
    if run.settings.views.get("colours", "rgb") != "rgb":
        raise UserError(
            f"teacher was {spec}, which sees luminance and colour apart (views.colours={run.settings.views['colours']}); a student's views "
            "are whole pictures: take a teacher of another recipe"
        )
    method = run.method()
    classifier = _class_scores(method)
    teacher = Teacher(method.encoders.backbone(), classifier, name=spec)
    teacher.shown, teacher.modality = run.description, run.modality
    teacher.class_names = () if classifier is None else run.description.classes
    return teacher


def _class_scores(method: Method) -> nn.Module | None:
    """From features to class scores, if the method has learnt any that are plain inner products, or has them beside its contrast."""
    role = method.encoders
    if role.has_teacher:
        return role.classifier()
    rows = torch.eye(2, 4)
    plain = torch.equal(method.critic.cross(*(method.critic.prepare(2 * rows),) * 2, START), 4 * torch.eye(2))
    return role.classifier() if plain else None


def _from_file(name: str, path: Path, spec: str) -> Teacher:
    modality = next(each for each in MODALITIES.values() if each.views.resizable)
    views = modality.views.check({"name": modality.views.default})
    try:
        modality.check_network(name)
    except UserError as problem:
        raise UserError(f"teacher was {spec}: {str(problem).removeprefix('backbone was ')}") from None
    if not path.is_file():
        raise UserError(f"teacher was {spec}, but {path} was not found; name a weights file after the colon")
    weights = read_weights(path, "teacher")
    problems = []
    for side in (SMALL, LARGE):  # which stem the file has, its shapes say
        net = modality.networks.inputs(
            name, views, modality.reader.example_description(1).resized(side)
        ).body(0)
        try:
            found = renamed(weights, shapes_of(net.state_dict()), str(path), "teacher")
        except UserError as problem:
            problems.append(problem)
            continue
        net.load_state_dict({**net.state_dict(), **found})
        teacher = Teacher(net, _classifier(weights, int(net.dim)), name=spec, mean=MEAN, std=STD)  # type: ignore[arg-type]
        teacher.size = LARGE if side == LARGE and problems else None
        teacher.modality = modality
        return teacher
    raise problems[0]


def _classifier(weights: dict[str, Tensor], width: int) -> nn.Linear | None:
    """The one linear map from features to classes that a file has, whatever it is called."""
    found = [
        name.removesuffix(".weight")
        for name, tensor in weights.items()
        if name.endswith(".weight")
        and tensor.ndim == 2
        and tensor.shape[1] == width
        and name.rpartition(".")[0].split(".")[-1] in ("fc", "classifier", "head", "1", "linear")
    ]
    if len(found) != 1:
        return None
    weight, bias = weights[f"{found[0]}.weight"], weights.get(f"{found[0]}.bias")
    table = nn.Linear(width, len(weight), bias=bias is not None)
    table.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return table


# ------------------------------------------------------------------------------------------- beside a student


class Guide:
    """A teacher as a student of some data asks it: loaded when it is first asked, and only if it is the one the run was begun with.

    It goes where the view is; nothing of it is copied, trained or saved with the student.
    """

    def __init__(
        self, settings: Settings, known: Description, teacher: Teacher | nn.Module | None = None
    ) -> None:
        self.spec, self.digest = settings.encoders["teacher"], settings.encoders["digest"]
        self.modality, self.known = settings.modality, known
        self._teacher = None if teacher is None else load_teacher(teacher)
        self._shown: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Guide":
        return self

    def ready(self) -> Teacher:
        """The teacher, or a sentence about why there is none."""
        if self._teacher is None:
            if self.spec.startswith(OWN):
                raise UserError(
                    f"the student learns from a teacher of Python ({self.spec.removeprefix(OWN)}), which no file holds; give it again: "
                    "nf.distill(teacher, …), or nf.Run.open(path, teacher=…)"
                )
            self._teacher = load_teacher(self.spec)
        if self._shown is None:
            if self.digest and self._teacher.digest != self.digest:
                raise UserError(
                    f"the teacher {self.spec} has other weights now (digest {self._teacher.digest}) than when the student began to learn from "
                    f"it ({self.digest}); restore it, or distil into another --out"
                )
            self._shown = self._translation(self._teacher)
        return self._teacher

    def _translation(self, teacher: Teacher) -> Any:
        theirs = teacher.shown
        if teacher.modality is not None and teacher.modality is not self.modality:
            raise UserError(
                f"the teacher {self.spec} is made for {teacher.modality.plural}, but the data hold {self.modality.plural}"
            )
        if theirs is None:
            if teacher.size is None and teacher.mean is None:
                return lambda view: view
            if not self.modality.views.resizable:
                raise UserError(
                    f"a Teacher's size, mean and std are those of pictures; the data hold {self.modality.plural}"
                )
            theirs = self.known.resized(teacher.size)
            if teacher.mean is not None and teacher.std is not None:
                mean, std = (tuple(map(float, numbers)) for numbers in (teacher.mean, teacher.std))
                theirs = replace(theirs, channels=len(mean), mean=mean, std=std)  # type: ignore[call-arg]
        return self.modality.view_converter(self.known, theirs, self.spec)

    def __call__(self, view: Any) -> TeacherOutput:
        teacher = self.ready()
        shown = self._shown(view)
        weight = next(teacher.parameters(), None)
        if isinstance(shown, Tensor) and weight is not None:
            # views are in the precision of the student's weights, also where autocast lowers that of its arithmetic
            teacher.to(shown.device, shown.dtype)
        return teacher(shown)


def attach_teacher(
    encoders: AbstractEncoders, settings: Settings, known: Description, teacher: Any = None
) -> None:
    """Gives a student its teacher; of other encoders nothing is asked."""
    if encoders.has_teacher and settings.encoders.get("teacher"):
        encoders.attach_teacher(Guide(settings, known, teacher))


def check_teacher(encoders: AbstractEncoders, known: Description) -> None:
    """Loads the teacher now, so that what is wrong with it is said before anything is written."""
    if not encoders.has_teacher:
        return
    guide = encoders.attached_teacher()
    if guide is None:
        raise UserError(
            "encoders was distilled, and a student needs a teacher: use nearfar distill TEACHER DATA, or nf.distill(teacher, data)"
        )
    if not isinstance(guide, Guide):
        return
    teacher = guide.ready()
    if encoders.teacher_classes and known.class_count not in (None, encoders.teacher_classes):
        raise UserError(
            f"the teacher {teacher.name} tells {encoders.teacher_classes} classes apart, but the data have {known.class_count}, so their class scores cannot "
            "be compared; distil features: objective=crd, infonce, ml-cpc, cosine or relational"
        )
    if encoders.teacher_classes and known.classes and teacher.class_names not in ((), known.classes):
        wrong = next((a, b) for a, b in zip(teacher.class_names, known.classes, strict=True) if a != b)
        raise UserError(
            f"the teacher {teacher.name} calls a class {wrong[0]!r} that the data call {wrong[1]!r}; class scores can only be compared where classes "
            "have one order: rename them, or distil features: objective=crd, infonce, ml-cpc, cosine or relational"
        )
