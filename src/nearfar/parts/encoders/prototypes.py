"""Supervised learning as contrast: a picture is contrasted with the classes it is not of.

    f(x, c) = w_c^T h(x) + b_c        h: the network, w_c and b_c learnt for every class c

Every view is an anchor, and its positive is the vector of its label. The table of all classes goes along for
negatives=dictionary: InfoNCE over it is log C minus the cross-entropy, so what is descended is the cross-entropy itself. The
other parts stay free: critic=cosine is a normalised softmax, a selection keeps the hardest classes.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.schedules import Progress
from nearfar.core.types import Batch, Encoded, Pair
from nearfar.errors import UserError
from nearfar.parts.encoders.config import HeadConfig, InputSpec
from nearfar.parts.encoders.roles import embed_views, kept_of


class Prototypes(nn.Module):
    """Anchors from the network, keys from a learnt vector for each class; `bias` adds a number for each."""

    equation: ClassVar[str] = "u = h(x), v+ = w_c for the label c of x, w a learnt vector for each class"
    whole: ClassVar[bool] = False  # keys are classes, not instances
    vocabulary: ClassVar[bool] = True  # and all of them can be had
    one_view: ClassVar[bool] = True  # the label is no view
    needs_labels: ClassVar[bool] = True
    read_uncalled: ClassVar[tuple[str, ...]] = ("table",)  # its rows are keys, so it is not spread over ranks
    tells: ClassVar[str] = "about the label"  # what an estimate on held-out instances is of
    key_groups: int = 1

    def __init__(self, network: nn.Module, bias: bool = True, *, dim: int, classes: int) -> None:
        super().__init__()
        self.network = network
        self.table = nn.Linear(dim, classes, bias=bias)

    @classmethod
    def from_config(cls, plan: HeadConfig, seen: InputSpec, **settings: Any) -> Self:
        classes = seen.context.get("classes")
        if not classes:
            raise UserError(
                "encoders=prototypes learns a vector for each class, but the data have no labels; use data with class folders, a "
                "label column or a labels array"
            )
        if plan.predictor != "none":
            raise UserError(
                f"encoders.predictor was {plan.predictor} with encoders=prototypes; leave it out: classes are the keys, and no "
                "network makes them"
            )
        network = plan.network(seen)
        return cls(network, **settings, dim=int(network.dim or plan.dim), classes=classes)

    @property
    def symbols(self) -> int:
        """How many classes there are."""
        return self.table.out_features

    @property
    def cloud_width(self) -> int:
        """How wide embeddings are."""
        return self.table.in_features

    @property
    def scored_width(self) -> int:
        """How wide what is scored is: the bias stands behind the vectors."""
        return self.table.in_features + (self.table.bias is not None)

    def group_of(self, key: int) -> int:
        return 0

    def pairs(self, views: int, symmetric: bool) -> tuple[Pair, ...]:
        """Every view with the label, which is the key after the last view."""
        return tuple(Pair(view, views, 1 / views, identity_is_key=True) for view in range(views))

    def backbone(self) -> nn.Module:
        return kept_of(self.network)

    def rows(self) -> Float[Tensor, "class width"]:
        """The vectors of all classes; with a bias, it stands behind them."""
        bias = self.table.bias
        return self.table.weight if bias is None else torch.cat([self.table.weight, bias[:, None]], dim=1)

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        embedded = embed_views(self.network, batch.views, sorted(anchors))
        asked = {view: self._beside_bias(rows) for view, rows in embedded.items()}
        if not keys:
            return Encoded(asked, {}, clouds=embedded)
        labels, table, (label, *_) = self._labels(batch), self.rows(), keys
        return Encoded(
            asked,
            {label: table[labels]},
            {label: labels},
            {label: torch.arange(len(labels), device=labels.device)},
            clouds=embedded,
            vocabulary=table,
        )

    def _beside_bias(self, rows: Float[Tensor, "row dim"]) -> Float[Tensor, "row width"]:
        if self.table.bias is None:
            return rows
        return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)

    def _labels(self, batch: Batch) -> Int[Tensor, "instance"]:
        if batch.labels is None or bool((batch.labels < 0).any()):
            raise UserError("encoders=prototypes needs the label of every instance; some have none")
        return batch.labels

    def classifier(self) -> nn.Module:
        head = getattr(self.network, "head", None)
        return nn.Sequential(*([] if head is None else [head]), self.table)

    def logits(self, features: Float[Tensor, "row dim"]) -> Float[Tensor, "row class"]:
        """Scores of all classes from the backbone's features, under critic=dot."""
        return self.classifier()(features)

    def advance(self, progress: Progress) -> None:
        """Nothing follows slowly here."""
