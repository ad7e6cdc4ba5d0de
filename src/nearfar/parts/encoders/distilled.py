"""Distillation of a frozen teacher into a student.

    u = g(h(x)), v = g'(t(x))         h the student, t the teacher, g and g' projections that are learnt
    p = softmax(W h(x) + b)           its classifier, where there are labels or the teacher has classes

CRD, InfoNCE and ML-CPC distillation contrast u with the v of other instances (and v with their u). The losses
of p and of features are a prior (prior=distillation).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nearfar.core.abstract import AbstractOneNetwork
from nearfar.core.networks import embed_views
from nearfar.core.types import Batch, Encoded, Pair, Supervision, TeacherOutput
from nearfar.errors import UserError, check_number
from nearfar.parts.encoders.heads import HeadConfig, InputSpec, Network, planned_config


class Distilled(nn.Module, AbstractOneNetwork):
    """`teacher` names it, `digest` is that of its weights, `width` and `classes` are what it gives (0
    classes: none are used): all that is needed to build the student again without it. `weight` is that of the
    contrast with it, 0 for none; `direction="student"` contrasts the student with teachers alone, `"both"`
    also teachers with students.

    The teacher is not part of the state: `attach_teacher` attaches it frozen, for training.
    """

    equation = (
        "u = g(h(x)), v = g'(t(x)): t a frozen teacher, g and g' learnt; {weight} of the loss, direction: "
        "{direction}"
    )
    remarks = (("weight", 0.0, "nothing is contrasted"),)
    works_with_one_view = True
    gives_supervision = True
    has_teacher = True
    estimate_subject = "about the teacher's features"  # what an estimate on held-out instances is of
    key_groups = 2
    network: Network

    def __init__(
        self,
        network: Network | HeadConfig,
        teacher: str = "",
        digest: str = "",
        width: int = 512,
        classes: int = 0,
        weight: float = 0.8,
        direction: Literal["both", "student"] = "both",
        *,
        projection: nn.Module | None = None,
        table: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        check_number("encoders.weight", weight, 0)
        self.network = network.planned() if isinstance(network, HeadConfig) else network
        self.register_module("projection", projection)
        self.register_module("table", table)
        self.teacher, self.digest, self.teacher_width, self.teacher_classes = teacher, digest, width, classes
        self.weight, self.direction, self.learns_labels = weight, direction, False
        self.guide: Callable[[Any], TeacherOutput] | None = None

    def meet(self, inputs: InputSpec) -> None:
        head, label_classes = planned_config(self.network), inputs.context.get("classes") or 0
        if head.predictor != "none":
            raise UserError(
                f"encoders.predictor was {head.predictor} with encoders=distilled; leave it out: student "
                "and teacher have a projection each"
            )
        contrasted = self.weight > 0
        self.network = network = head.network(inputs)
        features = int(network.backbone_width or 0)
        if not contrasted:
            self.network = Network(
                network.backbone, nn.Identity(), head.dropout, dim=features, backbone_width=features
            )
        self.projection = head.make_head(self.settings["width"]) if contrasted else None
        count = self.teacher_classes or label_classes
        self.table, self.learns_labels = nn.Linear(features, count) if count else None, bool(label_classes)

    @staticmethod
    def conflict(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> str | None:
        if choices["encoders"].get("weight"):
            return None
        for room, idle in (("negatives", "none"), ("selection", "everyone")):
            if choices[room]["name"] != idle:
                return (
                    f"{room} was {choices[room]['name']} with encoders.weight=0, where nothing is "
                    f"contrasted; use {room}={idle}, or an objective with crd, infonce or ml-cpc"
                )
        return None

    def attached_teacher(self) -> Callable[[Any], TeacherOutput] | None:
        return self.guide

    def attach_teacher(self, teacher: Callable[[Any], TeacherOutput] | None) -> None:
        self.guide = teacher

    @property
    def embedding_width(self) -> int:
        """How wide features are, which a prior reads."""
        return int(self.network.backbone_width or 0)

    def group_of(self, key: int) -> int:
        """Keys of the student are even, those of the teacher odd: they are separate groups."""
        return key % 2

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        """The student's embedding of each view with the teacher's, and the reverse."""
        if not self.weight:
            return ()
        to_teacher = [Pair(2 * view, 2 * view + 1, self.weight / views) for view in range(views)]
        back = [Pair(pair.key, pair.anchor, pair.weight) for pair in to_teacher]
        return tuple(to_teacher + (back if self.direction == "both" else []))

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        requested = {*anchors, *keys}
        views = sorted({place // 2 for place in requested}) or list(range(len(batch.views)))
        view_features = embed_views(self.network.backbone, batch.views, views)
        features = [self.network.dropped(view_features[view]) for view in views]
        outputs = [self._teacher_output(batch.views[view]) for view in views]
        embedded: dict[int, Tensor] = {}
        for view, ours, theirs in zip(views, features, outputs, strict=True):
            embedded[2 * view] = self.network.head(ours)
            if self.projection is not None:
                embedded[2 * view + 1] = self.projection(theirs.features)
        return Encoded(
            {place: embedded[place] for place in (anchors or [2 * view for view in views])},
            {place: embedded[place] for place in keys},
            embeddings=dict(zip(views, features, strict=True)),
            supervision=self._supervision(features, outputs, batch),
        )

    def _teacher_output(self, view: Any) -> TeacherOutput:
        if self.guide is None:
            name = f"its teacher {self.teacher}" if self.teacher else "a teacher"
            raise UserError(
                f"encoders=distilled learns from {name}, which is not here; use nearfar distill TEACHER "
                "DATA, or nf.distill(teacher, data)"
            )
        with torch.no_grad():
            return self.guide(view)

    def _supervision(self, features: list[Tensor], outputs: list[TeacherOutput], batch: Batch) -> Supervision:
        rows = torch.cat(features)
        logits = [output.logits for output in outputs if output.logits is not None]
        labels = None if batch.labels is None or self.table is None else batch.labels.repeat(len(features))
        return Supervision(
            rows,
            None if self.table is None else self.table(rows),
            labels,
            torch.cat([output.features for output in outputs]),
            torch.cat(logits) if logits else None,
        )

    def classifier(self) -> nn.Module | None:
        return self.table
