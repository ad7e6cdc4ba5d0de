"""A linear classifier that is trained along with the method, on the features of its own steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.train.hooks import Hook, finite_or_none, logs_step

if TYPE_CHECKING:
    from nearfar.train.session import Session
    from nearfar.train.step import StepOutcome

Sums = dict[str, float]


class OnlineHead(Hook):
    """Trains a linear classifier on the backbone's features of every step, without a gradient to the backbone, and
    logs the curves of Sáez Maldonado 2021, Fig. 26-34: contrastive, supervised and total loss, top-1 and top-5.

        nf.pretrain("simclr", "photos/", "runs/photos", hooks=[nf.OnlineHead()])

    Rows of metrics.jsonl have kind "online" and are means over the steps since the last row. A step's figures are
    those before the classifier learns from it: of augmented training views, not of a test set. The method is
    trained bit for bit as without it. One process; `lr` and `momentum` are those of its SGD.
    """

    def __init__(self, lr: float = 0.1, momentum: float = 0.9) -> None:
        self.lr, self.momentum = lr, momentum
        self.head: nn.Linear | None = None
        self.velocity: list[Tensor] = []
        self._stored: dict[str, Any] = {}
        self._features: list[Tensor] = []
        self._sums: Sums = {}
        self._steps = self._rows = 0

    def on_start(self, session: "Session") -> None:
        labels = session.data.labels
        if labels is None:
            raise UserError(f"OnlineHead needs labels, and {session.data.name} has none")
        if session.strategy.world > 1 or not session.method.encoders.row_per_instance:
            raise UserError("OnlineHead needs one process, and encoders with a row for each instance")
        self.labels = torch.as_tensor(labels)
        self.classes = int(self.labels.max()) + 1
        backbone = session.method.encoders.backbone()
        backbone.register_forward_hook(lambda _, __, output: self._keep(output))
        if self._stored:
            self._build(self._stored["head"][0].shape[1], session.device)

    def _keep(self, output: Any) -> None:
        if torch.is_grad_enabled() and isinstance(output, Tensor):  # not those of probes and slow copies
            self._features.append(output.detach().float())

    def _build(self, width: int, device: torch.device) -> None:
        self.head = nn.Linear(width, self.classes, device=device)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)  # no draw of the run's random numbers changes
        self.velocity = [torch.zeros_like(parameter) for parameter in self.head.parameters()]
        if self._stored:
            tensors = [*self.head.parameters(), *self.velocity]
            with torch.no_grad():
                for tensor, stored in zip(
                    tensors, [*self._stored["head"], *self._stored["velocity"]], strict=True
                ):
                    tensor.copy_(stored)
            self._stored = {}

    def on_step(self, session: "Session", outcome: "StepOutcome") -> None:
        index = outcome.computed.index.cpu()
        features, self._features = torch.cat([f.flatten(1) for f in self._features]), []
        self._rows = self._rows or len(features)
        features = features[-self._rows :]  # before a checkpoint the last batch was computed once more
        labels = self.labels[index].repeat(len(features) // len(index)).to(features.device)
        if len(labels) != len(features):
            raise UserError(f"OnlineHead got {len(features)} rows of features for {len(index)} instances")
        is_labelled = labels >= 0
        if self.head is None:
            self._build(features.shape[1], features.device)
        assert self.head is not None
        with torch.enable_grad():
            logits = self.head(features[is_labelled])
            loss = F.cross_entropy(logits, labels[is_labelled])
            gradients = torch.autograd.grad(loss, list(self.head.parameters()))
        self._learn(gradients)
        self._add(
            float(outcome.computed.loss.detach()), float(loss.detach()), logits.detach(), labels[is_labelled]
        )
        if logs_step(session):
            means = {name: total / self._steps for name, total in self._sums.items()}
            session.log({"kind": "online", **finite_or_none(means)})
            self._sums, self._steps = {}, 0

    def _learn(self, gradients: tuple[Tensor, ...]) -> None:
        assert self.head is not None
        with torch.no_grad():
            for parameter, velocity, gradient in zip(
                self.head.parameters(), self.velocity, gradients, strict=True
            ):
                velocity.mul_(self.momentum).add_(gradient)
                parameter.sub_(velocity, alpha=self.lr)

    def _add(self, contrastive: float, supervised: float, logits: Tensor, labels: Tensor) -> None:
        # on the CPU: not every device has float64
        ranked = (logits.topk(min(5, self.classes), dim=1).indices == labels[:, None]).cpu()
        values = {
            "contrastive": contrastive,
            "supervised": supervised,
            "total": contrastive + supervised,
            "top1": float(ranked[:, 0].double().mean()),
            "top5": float(ranked.any(dim=1).double().mean()),
        }
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._steps += 1

    def state(self) -> Mapping[str, Any]:
        if self.head is None:
            return {}
        head = [parameter.detach() for parameter in self.head.parameters()]
        return {"head": head, "velocity": self.velocity, "sums": self._sums, "steps": self._steps}

    def restore(self, state: dict[str, Any]) -> None:
        if state:
            self._stored, self._sums, self._steps = state, dict(state["sums"]), state["steps"]
