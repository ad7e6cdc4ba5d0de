"""Supervised learning as contrast: a picture is contrasted with the classes it is not of.

    f(x, c) = w_c^T h(x) + b_c        h: the network, w_c and b_c learnt for every class c

Every view is an anchor, and its positive is the vector of its label. The table of all classes goes along for
negatives=dictionary: InfoNCE over it is log C minus the cross-entropy, so what is descended is the
cross-entropy. Other parts stay free: critic=cosine is a normalised softmax, selections also apply.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from nearfar.core.abstract import AbstractOneNetwork
from nearfar.core.networks import embed_views
from nearfar.core.types import Batch, Encoded, Pair
from nearfar.errors import UserError
from nearfar.parts.encoders.heads import HeadConfig, InputSpec, Network, network_or_plan, planned_config


class Prototypes(nn.Module, AbstractOneNetwork):
    """Anchors from the network, keys from a learnt vector for each class; `bias` adds a number for each."""

    equation = "u = h(x), v+ = w_c for the label c of x, w a learnt vector for each class"
    row_per_instance = False  # keys are classes, not instances
    keys_are_symbols = True  # and all of them can be had
    works_with_one_view = True  # the key is the label
    needs_labels = True
    unsharded = ("table",)  # its rows are keys, so it is not spread over ranks
    estimate_subject = "about the label"  # what an estimate on held-out instances is of

    def __init__(
        self, network: nn.Module | HeadConfig, bias: bool = True, *, dim: int = 0, classes: int = 0
    ) -> None:
        super().__init__()
        self.network = network_or_plan(network)
        if not isinstance(network, HeadConfig):
            self.table = nn.Linear(dim, classes, bias=bias)

    def meet(self, inputs: InputSpec) -> None:
        head = planned_config(self.network)
        classes = inputs.context.get("classes")
        if not classes:
            raise UserError(
                "supervised training (encoders=prototypes) needs labels, but the data have none; use data with "
                "class folders, a label column or a labels array"
            )
        if head.predictor != "none":
            raise UserError(
                f"encoders.predictor was {head.predictor} with encoders=prototypes; leave it out: classes "
                "are the keys, and no network makes them"
            )
        self.network = network = head.network(inputs)
        self.table = nn.Linear(int(network.dim or head.dim), classes, bias=self.settings["bias"])

    @property
    def vocabulary_size(self) -> int:
        return self.table.out_features

    @property
    def embedding_width(self) -> int:
        """How wide embeddings are."""
        return self.table.in_features

    @property
    def scored_width(self) -> int:
        """How wide what is scored is: the bias stands behind the vectors."""
        return self.table.in_features + (self.table.bias is not None)

    def pairs(self, views: int, symmetric: bool, key_views: int | None = None) -> tuple[Pair, ...]:
        """Every view with the label, which is the key after the last view."""
        return tuple(Pair(view, views, 1 / views, identity_is_key=True) for view in range(views))

    def rows(self) -> Float[Tensor, "class width"]:
        """The vectors of all classes; with a bias, it stands behind them."""
        bias = self.table.bias
        return self.table.weight if bias is None else torch.cat([self.table.weight, bias[:, None]], dim=1)

    def encode(self, batch: Batch, anchors: Sequence[int], keys: Sequence[int]) -> Encoded:
        embedded = embed_views(self.network, batch.views, sorted(anchors))
        anchor_embeddings = {view: self._beside_bias(rows) for view, rows in embedded.items()}
        if not keys:
            return Encoded(anchor_embeddings, {}, embeddings=embedded)
        labels, table, (label, *_) = self._labels(batch), self.rows(), keys
        return Encoded(
            anchor_embeddings,
            {label: table[labels]},
            {label: labels},
            {label: torch.arange(len(labels), device=labels.device)},
            embeddings=embedded,
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
        head = [self.network.head] if isinstance(self.network, Network) else []
        return nn.Sequential(*head, self.table)
