"""Each loss returns what the library it stands in for returns, with the same gradient, whole and in tiles."""

from collections.abc import Callable
from typing import Any

import lightly.loss
import open_clip.loss
import pytest
import pytorch_metric_learning.losses as pml
import torch
from sentence_transformers.sentence_transformer.losses import multiple_negatives_ranking as ranking
from torch import Tensor

from nearfar.core import scores
from nearfar.errors import UserError
from nearfar.losses import (
    ClipLoss,
    LabelledNTXentLoss,
    MultipleNegativesRankingLoss,
    NPairsLoss,
    NTXentLoss,
    SigLipLoss,
    SupConLoss,
    TripletMarginLoss,
)

Loss = Callable[..., Tensor]
GTE = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
TWO_DIRECTIONS = ("query_to_doc", "doc_to_query")


def ranked(**options: Any) -> Loss:
    """sentence-transformers' loss on embeddings; its model only encodes sentences."""
    loss = ranking.MultipleNegativesRankingLoss(model=None, **options)
    return lambda *columns: loss.compute_loss_from_embeddings(list(columns), None)


def labelled(loss: Any) -> Loss:
    """(embeddings, other embeddings) with fixed labels, of a batch with itself."""
    return lambda rows: loss(rows, LABELS)


def referred(loss: Any) -> Loss:
    return lambda rows, rest: loss(rows, LABELS, ref_emb=rest, ref_labels=REFERENCE_LABELS)


# 5 occurs once (no positive), -2 and -1 are labels like others
LABELS = torch.tensor([3, 1, 1, -2, 3, 5, -2, 3, -1, 1, -1, 3])
REFERENCE_LABELS = torch.tensor([1, 9, 3, 3, -2, 1, 7, -1, -1, 9, 3, 5])
SCALE, BIAS = torch.tensor(3.7, dtype=torch.float64), torch.tensor(-2.3, dtype=torch.float64)

# name: ours, theirs, how many tensors they take; scale and bias, where learnt, come last
PAIRS: dict[str, tuple[Loss, Loss, int]] = {
    "ntxent": (NTXentLoss(0.2), lightly.loss.NTXentLoss(temperature=0.2), 2),
    "ntxent default": (NTXentLoss(), lightly.loss.NTXentLoss(), 2),
    "clip": (ClipLoss(), open_clip.loss.ClipLoss(), 2),
    "siglip": (SigLipLoss(), open_clip.loss.SigLipLoss(), 2),
    "mnr": (MultipleNegativesRankingLoss(), ranked(), 2),
    "mnr hard": (MultipleNegativesRankingLoss(scale=5.0), ranked(scale=5.0), 4),
    "mnr symmetric": (
        MultipleNegativesRankingLoss(directions=TWO_DIRECTIONS, partition_mode="per_direction"),
        ranked(directions=TWO_DIRECTIONS, partition_mode="per_direction"),
        3,
    ),
    "mnr gte": (MultipleNegativesRankingLoss(directions=GTE), ranked(directions=GTE), 3),
    "supcon": (labelled(SupConLoss(0.2)), labelled(pml.SupConLoss(0.2)), 1),
    "supcon ref": (referred(SupConLoss()), referred(pml.SupConLoss()), 2),
    "labelled ntxent": (labelled(LabelledNTXentLoss(0.2)), labelled(pml.NTXentLoss(0.2)), 1),
    "labelled ntxent ref": (referred(LabelledNTXentLoss()), referred(pml.NTXentLoss()), 2),
    "npairs": (labelled(NPairsLoss()), labelled(pml.NPairsLoss()), 1),
    "triplet": (labelled(TripletMarginLoss(0.3)), labelled(pml.TripletMarginLoss(0.3)), 1),
    "triplet ref": (referred(TripletMarginLoss()), referred(pml.TripletMarginLoss()), 2),
}
LEARNT = {"clip": (SCALE, BIAS), "siglip": (SCALE, BIAS)}


def value_and_gradient(loss: Loss, sampling: list[Tensor]) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in sampling]
    value = loss(*leaves)
    return value.detach(), *torch.autograd.grad(value, leaves)


@pytest.mark.parametrize("tile", ["whole", "tiles"])
@pytest.mark.parametrize("name", PAIRS)
def test_equal_to_the_peer_in_value_and_gradient(
    name: str, tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tile == "tiles":  # five rows at a time, so that the last tile is a shorter one
        monkeypatch.setattr(scores, "MAX_SCORES_CPU", 1)
        monkeypatch.setattr(scores, "MIN_TILE", 5)
    ours, theirs, count = PAIRS[name]
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(count, 12, 6, dtype=torch.float64, generator=generator)
        sampling = [*rows.unbind(), *LEARNT.get(name, ())]
        for got, expected in zip(
            value_and_gradient(ours, sampling), value_and_gradient(theirs, sampling), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["ntxent", "clip", "siglip", "mnr", "supcon", "labelled ntxent", "npairs"])
def test_equal_in_float32_too(name: str) -> None:
    ours, theirs, count = PAIRS[name]
    rows = torch.randn(count, 12, 64, generator=torch.Generator().manual_seed(4))
    sampling = [*rows.unbind(), *(number.float() for number in LEARNT.get(name, ()))]
    for got, expected in zip(
        value_and_gradient(ours, sampling), value_and_gradient(theirs, sampling), strict=True
    ):
        # sums of a dozen terms of size a few, each rounded at 6e-8
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_output_dict_as_in_open_clip(name: str) -> None:
    losses: list[Any] = list(PAIRS[name][:2])
    images, texts = torch.randn(2, 4, 3)
    got, expected = (loss(images, texts, 2.0, 0.5, output_dict=True) for loss in losses)
    assert got.keys() == expected.keys()
    torch.testing.assert_close(got["contrastive_loss"], expected["contrastive_loss"])


def test_batches_without_a_single_pair_give_zero_and_a_gradient() -> None:
    rows, labels = torch.randn(3, 4, requires_grad=True), torch.arange(3)
    for loss in (SupConLoss(), LabelledNTXentLoss(), NPairsLoss(), TripletMarginLoss()):
        value = loss(rows, labels)
        assert float(value.detach()) == 0.0
        assert torch.equal(torch.autograd.grad(value, rows)[0], torch.zeros(3, 4))


@pytest.mark.parametrize("name", ["ntxent", "clip", "siglip", "mnr", "supcon", "labelled ntxent", "npairs"])
def test_second_derivatives_equal_the_peers(name: str) -> None:
    """create_graph, as in gradient penalties and meta-learning."""
    ours, theirs, count = PAIRS[name]
    rows = torch.randn(count, 12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    second = []
    for loss in (ours, theirs):
        leaves = [item.clone().requires_grad_() for item in (*rows.unbind(), *LEARNT.get(name, ()))]
        first = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
        penalty = sum((gradient**2).sum() for gradient in first)
        second.append(torch.autograd.grad(penalty, leaves, allow_unused=True, materialize_grads=True))  # type: ignore[arg-type]
    for got, expected in zip(*second, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


def test_ntxent_takes_its_arguments_in_the_peers_order() -> None:
    rows = torch.randn(2, 5, 3)
    assert torch.equal(NTXentLoss(0.2, 0, False)(*rows), NTXentLoss(0.2)(*rows))
    with pytest.raises(UserError, match="memory_bank_size was 4096; a loss here has no memory"):
        NTXentLoss(0.2, 4096)
