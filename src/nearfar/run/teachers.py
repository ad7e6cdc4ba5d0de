"""Teachers: frozen networks that a student learns from, by name or as modules.

    runs/teacher                    a run of any recipe; one of `nearfar train`, or one distilled with labels, has class scores too
    resnet50:weights.pth            a network by name with weights from a file, with class scores if the file has a classifier
    nf.Teacher(module, classifier)  a module of one's own

A run stores the name of its teacher and a digest of its weights, not the weights. The student is evaluated,
embedded and exported without the teacher; training resumes only with the same one.
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
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
from nearfar.errors import UserError, counted
from nearfar.modalities import MODALITIES, Description, Modality
from nearfar.parts.encoders.backbones import SMALL
from nearfar.parts.encoders.heads import width_of
from nearfar.run.weights import fitted, read_weights

TEACHER = "teacher"  # among objects
PYTHON_PREFIX = "own "  # before the name of a Python module
LARGE = 224  # side for which a network with a large stem was trained
# of ImageNet: with these torchvision and most of timm normalise
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Teacher(nn.Module):
    """A frozen network from views to features.

    `classifier` maps features to class scores; with `logits=True` the outputs of the network are class
    scores, and its features too. It gets the views of the student: unchanged, or resized to `size` and
    normalised with `mean` and `std`.
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
        self.name = name or f"{PYTHON_PREFIX}{type(network).__name__}"
        self.description: Description | None = None  # of the data it was trained on, if known
        self.modality: Modality | None = None
        self.views: Mapping[str, Any] = {}  # their section, of a run
        self.class_names: tuple[str, ...] = ()
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "Teacher":
        """Stays in evaluation mode."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, view: Any) -> TeacherOutput:
        features = self.network(view)
        return TeacherOutput(features, None if self.classifier is None else self.classifier(features))

    @property
    def digest(self) -> str:
        """A digest of its weights, independent of their names."""
        digest = hashlib.sha256()
        for tensor in self.state_dict().values():
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def widths(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The numbers of features and classes for a view of this shape; 0 classes if it has no classifier."""
        width = width_of(self.network, shape)
        if self.classifier is None:
            return width, 0
        try:
            with torch.no_grad():
                scores = self.classifier(torch.zeros(1, width))
        except (RuntimeError, ValueError, TypeError) as problem:
            raise UserError(
                f"the classifier of the teacher {self.name.removeprefix(PYTHON_PREFIX)} does not take "
                f"its {counted(width, 'features')}: {problem}"
            ) from None
        if not isinstance(scores, Tensor) or scores.ndim != 2:
            raise UserError(
                f"the classifier of the teacher {self.name.removeprefix(PYTHON_PREFIX)} must give a "
                "tensor of rows and classes; it gave "
                f"{tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__}"
            )
        return width, scores.shape[1]

    def side(self, image_size: int | None) -> int:
        return (self.description and self.description.side()) or self.size or image_size or 32


def load_teacher(spec: Any) -> Teacher:
    """The teacher for TEACHER on a command line, or for a Python object."""
    if isinstance(spec, Teacher):
        return spec
    if isinstance(spec, nn.Module):
        return Teacher(copy.deepcopy(spec))
    from nearfar.run.trained import Run

    if isinstance(spec, Run):
        return _from_run(spec, str(spec.path))
    if not isinstance(spec, (str, Path)):
        raise UserError(
            f"teacher was of type {type(spec).__name__}; expected a run, NAME:WEIGHTS such as "
            "resnet50:weights.pth, or an nn.Module"
        )
    path = Path(spec)
    if path.is_dir():
        return _from_run(Run.open(path), str(spec))
    name, colon, file = str(spec).partition(":")
    if colon and not path.exists():
        return _from_file(name, Path(file), str(spec))
    problem_text = (
        "which is a file; write the network it is for before it, as in resnet50:weights.pth"
        if path.is_file()
        else "which was not found; expected a run folder, or NAME:WEIGHTS such as resnet50:weights.pth"
    )
    raise UserError(f"teacher was {spec}, {problem_text}")


def _from_run(run: Any, spec: str) -> Teacher:
    if run.facts["step"] == 0:
        raise UserError(f"teacher was {spec}, which has no trained checkpoint yet; train it first")
    if run.settings.views.get("colours", "rgb") != "rgb":
        raise UserError(
            f"teacher was {spec}, which sees luminance and colour separately "
            f"(views.colours={run.settings.views['colours']}); a student's views "
            "are whole pictures: take a teacher of another recipe"
        )
    method = run.method()
    classifier = _class_scores(method)
    teacher = Teacher(method.encoders.backbone(), classifier, name=spec)
    teacher.description, teacher.modality, teacher.views = run.description, run.modality, run.settings.views
    teacher.class_names = () if classifier is None else run.description.classes
    return teacher


def _class_scores(method: Method) -> nn.Module | None:
    """The map from features to class scores, if scores are inner products or there is a teacher."""
    role = method.encoders
    if role.has_teacher:
        return role.classifier()
    rows = torch.eye(2, 4)
    is_inner_product = torch.equal(
        method.critic.cross(*(method.critic.prepare(2 * rows),) * 2, START), 4 * torch.eye(2)
    )
    return role.classifier() if is_inner_product else None


def _from_file(name: str, path: Path, spec: str) -> Teacher:
    modality = next(candidate for candidate in MODALITIES.values() if candidate.views.resizable)
    views = modality.views.default_section
    try:
        modality.check_network(name)
    except UserError as problem:
        raise UserError(f"teacher was {spec}: {str(problem).removeprefix('backbone was ')}") from None
    if not path.is_file():
        raise UserError(f"teacher was {spec}, but {path} was not found; name a weights file after the colon")
    weights = read_weights(path, "teacher")
    problems = []
    for side in (SMALL, LARGE):  # the shapes tell which stem the file has
        net = modality.networks.inputs(
            name, views, modality.reader.example_description(1).resized(side)
        ).body(0)
        try:
            matches = fitted(weights, net, str(path), "teacher")
        except UserError as problem:
            problems.append(problem)
            continue
        net.load_state_dict({**net.state_dict(), **matches})
        teacher = Teacher(net, _classifier(weights, int(net.dim), spec), name=spec, mean=MEAN, std=STD)  # type: ignore[arg-type]
        teacher.size = LARGE if side == LARGE and problems else None
        teacher.modality = modality
        return teacher
    raise problems[0]


def _classifier(weights: dict[str, Tensor], width: int, spec: str) -> nn.Linear | None:
    """The linear map from features to classes in a weights file, if there is exactly one."""
    matches = [
        name.removesuffix(".weight")
        for name, tensor in weights.items()
        if name.endswith(".weight")
        and tensor.ndim == 2
        and tensor.shape[1] == width
        and len(tensor)
        and name.rpartition(".")[0].split(".")[-1] in ("fc", "classifier", "head", "1", "linear")
    ]
    if len(matches) != 1:
        return None
    weight, bias = weights[f"{matches[0]}.weight"], weights.get(f"{matches[0]}.bias")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise UserError(
            f"teacher was {spec}, whose {matches[0]}.weight is {[*weight.shape]} and {matches[0]}.bias "
            f"{[*bias.shape]}; they do not belong together"
        )
    table = nn.Linear(width, len(weight), bias=bias is not None)
    table.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return table


# ----------------------------------------------------------------------------------- teacher of a student


class Guide:
    """The teacher of a student: loaded when first used, and only if it is the one that the run started with.

    It moves to the device of the view; it is never copied, trained or saved with the student.
    """

    def __init__(
        self, settings: Settings, description: Description, teacher: Teacher | nn.Module | None = None
    ) -> None:
        self.spec, self.digest = settings.encoders["teacher"], settings.encoders["digest"]
        self.modality, self.description = settings.modality, description
        self._teacher = None if teacher is None else load_teacher(teacher)
        self._convert: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Guide":
        return self

    def ready(self) -> Teacher:
        """The loaded teacher; stops if it is not available or has other weights."""
        if self._teacher is None:
            if self.spec.startswith(PYTHON_PREFIX):
                raise UserError(
                    f"the student learns from a Python module ({self.spec.removeprefix(PYTHON_PREFIX)}); "
                    "pass it again: nf.distill(teacher, …), or nf.Run.open(path, teacher=…)"
                )
            self._teacher = load_teacher(self.spec)
        if self._convert is None:
            if self.digest and self._teacher.digest != self.digest:
                raise UserError(
                    f"the teacher {self.spec} has other weights (digest {self._teacher.digest}) than at the "
                    f"start of the run ({self.digest}); restore it, or distil into another --out"
                )
            self._convert = self._translation(self._teacher)
        return self._teacher

    def _translation(self, teacher: Teacher) -> Any:
        teacher_description = teacher.description
        if teacher.modality is not None and teacher.modality is not self.modality:
            raise UserError(
                f"the teacher {self.spec} is made for {teacher.modality.plural}, but the data hold "
                f"{self.modality.plural}"
            )
        if teacher_description is None:
            if teacher.size is None and teacher.mean is None:
                return lambda view: view
            if not self.modality.views.resizable:
                raise UserError(
                    "a Teacher's size, mean and std are those of pictures; the data hold "
                    f"{self.modality.plural}"
                )
            teacher_description = self.description.resized(teacher.size)
            if teacher.mean is not None and teacher.std is not None:
                mean, std = (tuple(map(float, numbers)) for numbers in (teacher.mean, teacher.std))
                teacher_description = replace(teacher_description, channels=len(mean), mean=mean, std=std)  # type: ignore[call-arg]
        return self.modality.view_converter(self.description, teacher_description, self.spec)

    def __call__(self, view: Any) -> TeacherOutput:
        teacher = self.ready()
        converted = self._convert(view)
        weight = next(teacher.parameters(), None)
        if isinstance(converted, Tensor) and weight is not None:
            # views have the precision of the student's weights, also where autocast lowers its arithmetic
            teacher.to(converted.device, converted.dtype)
        return teacher(converted)


def attach_teacher(
    encoders: AbstractEncoders, settings: Settings, description: Description, teacher: Any = None
) -> None:
    """Attaches the teacher to the encoders of a student; does nothing for other encoders."""
    if encoders.has_teacher and settings.encoders.get("teacher"):
        encoders.attach_teacher(Guide(settings, description, teacher))


def check_teacher(encoders: AbstractEncoders, description: Description) -> None:
    """Loads the teacher, so that its problems are reported before anything is written."""
    if not encoders.has_teacher:
        return
    guide = encoders.attached_teacher()
    if guide is None:
        raise UserError(
            "encoders was distilled, and a student needs a teacher: use nearfar distill TEACHER DATA, or "
            "nf.distill(teacher, data)"
        )
    if not isinstance(guide, Guide):
        return
    teacher = guide.ready()
    if encoders.teacher_classes and description.class_count not in (None, encoders.teacher_classes):
        raise UserError(
            f"the teacher {teacher.name} has {counted(encoders.teacher_classes, 'classes')}, but the data "
            f"have {description.class_count}, so class scores cannot "
            "be compared; distil features: objective=crd, infonce, ml-cpc, cosine or relational"
        )
    if (
        encoders.teacher_classes
        and description.classes
        and teacher.class_names not in ((), description.classes)
    ):
        wrong = next((a, b) for a, b in zip(teacher.class_names, description.classes, strict=True) if a != b)
        raise UserError(
            f"the teacher {teacher.name} calls a class {wrong[0]!r} that the data call {wrong[1]!r}; class "
            "scores can only be compared where classes have one order: rename them, or distil features: "
            "objective=crd, infonce, ml-cpc, cosine or relational"
        )
