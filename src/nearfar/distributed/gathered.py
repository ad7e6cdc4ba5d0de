"""Scores of the anchors of all ranks, of which each rank has scored its own.

A bound reads a few numbers for each anchor, through reductions. Here each reduction is taken of this rank's anchors and gathered with
gradient, so that every rank computes the bound of the whole batch, also one whose sums run over all anchors (ML-CPC).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from nearfar.core.scores import Divided, Negatives, Rule, Scores
from nearfar.distributed.ranks import Rows


@dataclass(frozen=True)
class Gathered:
    """Negatives of all ranks' anchors; `own` are those of this rank's."""

    own: Negatives
    rows: Rows

    def logsumexp(self) -> Float[Tensor, "anchor"]:
        return self.rows.everyones(self.own.logsumexp())

    def count(self) -> Float[Tensor, "anchor"]:
        return self.rows.everyones(self.own.count())

    def offered(self) -> int:
        return self.own.offered()

    def sum_of(
        self, function: Callable[..., Tensor], *per_anchor: Float[Tensor, "anchor"]
    ) -> Float[Tensor, "anchor"]:
        return self.rows.everyones(self.own.sum_of(function, *self._mine(per_anchor)))

    def mean_of(
        self, function: Callable[..., Tensor], *per_anchor: Float[Tensor, "anchor"]
    ) -> Float[Tensor, "anchor"]:
        return self.rows.everyones(self.own.mean_of(function, *self._mine(per_anchor)))

    def hardest(self) -> Float[Tensor, "anchor"]:
        return self.rows.everyones(self.own.hardest())

    def divide(self, rule: Rule, *, close: bool = False, drawn: bool = False, plain: bool = False) -> Divided:
        raise RuntimeError(
            "selections come before gathering: a rank knows the candidates of its own anchors alone"
        )

    def matrix(self) -> tuple[Tensor, Tensor]:
        raise RuntimeError("no rank has the scores of all anchors")

    def _mine(self, columns: tuple[Tensor, ...]) -> list[Tensor]:
        return [column[self.rows.part] for column in columns]


def of_all_ranks(scores: Scores, rows: Rows) -> Scores:
    """The scores of all ranks' anchors; `rows` says how many each has. Every field that has a row for each anchor is gathered."""
    if len(rows.sizes) == 1:
        return scores
    held = {each.name: _gathered(getattr(scores, each.name), rows) for each in fields(scores)}
    return replace(scores, **held)


def _gathered(value: Any, rows: Rows) -> Any:
    if isinstance(value, Tensor):
        return rows.everyones(value) if value.ndim else value
    if isinstance(value, Scores):
        return of_all_ranks(value, rows)
    return Gathered(value, rows) if hasattr(value, "logsumexp") else value
