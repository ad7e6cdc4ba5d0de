"""Each loss returns what the library it stands in for returns, with the same gradient, whole and in tiles."""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import lightly.loss
import open_clip.loss
import pytest
import pytorch_metric_learning.losses as pml
import torch
from lightly.loss import lejepa_loss
from pytorch_metric_learning import distances, miners, reducers, regularizers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import cached_multiple_negatives_ranking as cached
from sentence_transformers.sentence_transformer.losses import multiple_negatives_ranking as ranking
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.util import dot_score, euclidean_sim
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor

import nearfar as nf
from nearfar.core import scores
from nearfar.losses import (
    BarlowTwinsLoss,
    CachedMultipleNegativesRankingLoss,
    ClipLoss,
    DCLLoss,
    DCLWLoss,
    LabelledNTXentLoss,
    LeJEPALoss,
    MultipleNegativesRankingLoss,
    NegativeCosineSimilarity,
    NPairsLoss,
    NTXentLoss,
    SigLipLoss,
    SIGRegLoss,
    SupConLoss,
    TripletMarginLoss,
    VICRegLoss,
)
from nearfar.losses import labels as label_losses

Loss = Callable[..., Tensor]
GTE = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
TWO_DIRECTIONS = ("query_to_doc", "doc_to_query")


def ranked(**options: Any) -> Loss:
    """sentence-transformers' loss on embeddings; its model only encodes sentences."""
    loss = ranking.MultipleNegativesRankingLoss(model=None, **options)
    return lambda *columns: loss.compute_loss_from_embeddings(list(columns), None)


def ours_ranked(**options: Any) -> Loss:
    return MultipleNegativesRankingLoss(**options)


def hardened(mode: str) -> dict[str, Any]:
    return {"hardness_mode": mode, "hardness_strength": 3.0, "scale": 5.0}


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
    "dcl": (DCLLoss(0.2), lightly.loss.DCLLoss(0.2), 2),
    "dclw": (DCLWLoss(0.2, sigma=0.3), lightly.loss.DCLWLoss(0.2, sigma=0.3), 2),
    "vicreg": (VICRegLoss(3.0, 2.0, 0.5, eps=1e-3), lightly.loss.VICRegLoss(3.0, 2.0, 0.5, eps=1e-3), 2),
    "barlow": (BarlowTwinsLoss(0.1), lightly.loss.BarlowTwinsLoss(0.1), 2),
    "cosine": (NegativeCosineSimilarity(), lightly.loss.NegativeCosineSimilarity(), 2),
    "mnr dot": (ours_ranked(similarity_fct=dot_score), ranked(similarity_fct=dot_score), 3),
    "mnr distance": (
        ours_ranked(similarity_fct=euclidean_sim, scale=2.0, directions=GTE),
        ranked(similarity_fct=euclidean_sim, scale=2.0, directions=GTE),
        3,
    ),
    "mnr in batch": (
        ours_ranked(**hardened("in_batch_negatives")),
        ranked(**hardened("in_batch_negatives")),
        4,
    ),
    "mnr hard negatives": (
        ours_ranked(**hardened("hard_negatives")),
        ranked(**hardened("hard_negatives")),
        4,
    ),
    "mnr all negatives": (
        ours_ranked(**hardened("all_negatives"), directions=TWO_DIRECTIONS, partition_mode="per_direction"),
        ranked(**hardened("all_negatives"), directions=TWO_DIRECTIONS, partition_mode="per_direction"),
        4,
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


PEERS: dict[str, tuple[type, type]] = {
    **{loss.__name__: (loss, getattr(lightly.loss, loss.__name__)) for loss in (
        NTXentLoss, DCLLoss, DCLWLoss, VICRegLoss, BarlowTwinsLoss, NegativeCosineSimilarity, LeJEPALoss)},
    **{loss.__name__: (loss, getattr(open_clip.loss, loss.__name__)) for loss in (ClipLoss, SigLipLoss)},
    **{loss.__name__: (loss, getattr(pml, loss.__name__)) for loss in (SupConLoss, NPairsLoss, TripletMarginLoss)},
    "LabelledNTXentLoss": (LabelledNTXentLoss, pml.NTXentLoss),
    "SIGRegLoss": (SIGRegLoss, lejepa_loss.SIGReg),
    "MultipleNegativesRankingLoss": (MultipleNegativesRankingLoss, ranking.MultipleNegativesRankingLoss),
    "CachedMultipleNegativesRankingLoss": (
        CachedMultipleNegativesRankingLoss, cached.CachedMultipleNegativesRankingLoss),
}  # fmt: skip


def value_and_gradient(loss: Loss, sampling: list[Tensor]) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in sampling]
    value = loss(*leaves)
    return value.detach(), *torch.autograd.grad(value, leaves)


@pytest.mark.parametrize("tile", ["whole", "tiles"])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # lightly's weights
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


def with_rest(loss: Loss, *rest: Any) -> Loss:
    """The loss as a function of its first argument."""
    return lambda rows: loss(rows, *rest)


def compare(losses: Iterable[Loss], *shapes: tuple[int, ...], seed: int = 0, rtol: float = 1e-9) -> None:
    """Values and gradients of two losses at random tensors of these shapes."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes]
    ours, theirs = losses
    for got, expected in zip(
        value_and_gradient(ours, tensors), value_and_gradient(theirs, tensors), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol / 10)


CLASS_WEIGHTS = torch.linspace(0.5, 2.0, 3, dtype=torch.float64)
THREE = torch.tensor([0, 1, 1, 2, 0, 2, 2, 0, 1, 1, 2, 0])
SHARED_OPTIONS: dict[str, dict[str, Any]] = {
    "distance": {"distance": distances.LpDistance(p=1)},
    "power": {"distance": distances.LpDistance(power=2, normalize_embeddings=False)},
    "similarity": {"distance": distances.DotProductSimilarity(normalize_embeddings=False)},
    "mean": {"reducer": reducers.MeanReducer()},
    "sum": {"reducer": reducers.SumReducer()},
    "threshold": {"reducer": reducers.ThresholdReducer(low=0.1, high=3.0)},
    "class weights": {"reducer": reducers.ClassWeightedReducer(CLASS_WEIGHTS)},
    "regularizer": {
        "embedding_regularizer": regularizers.LpRegularizer(p=2, power=2),
        "embedding_reg_weight": 0.3,
    },
}
MINERS: dict[str, Any] = {
    "none": lambda rows, labels: None,
    "triplets": miners.TripletMarginMiner(margin=0.4, type_of_triplets="all"),
    "pairs": miners.MultiSimilarityMiner(epsilon=0.5),
    "batch hard": miners.BatchHardMiner(),
}
METRIC_LOSSES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "supcon": (SupConLoss, pml.SupConLoss, {"temperature": 0.3}),
    "ntxent": (LabelledNTXentLoss, pml.NTXentLoss, {"temperature": 0.3}),
    "npairs": (NPairsLoss, pml.NPairsLoss, {}),
    "triplet": (TripletMarginLoss, pml.TripletMarginLoss, {"margin": 0.3}),
    "triplet swap": (TripletMarginLoss, pml.TripletMarginLoss, {"margin": 0.3, "swap": True}),
    "triplet smooth": (TripletMarginLoss, pml.TripletMarginLoss, {"margin": 0.3, "smooth_loss": True}),
}


@pytest.mark.parametrize("option", SHARED_OPTIONS)
@pytest.mark.parametrize("name", METRIC_LOSSES)
def test_options_of_pytorch_metric_learning(name: str, option: str) -> None:
    ours, theirs, arguments = METRIC_LOSSES[name]
    arguments = arguments | SHARED_OPTIONS[option]
    compare((with_rest(make(**arguments), THREE) for make in (ours, theirs)), (12, 5))


@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("name", METRIC_LOSSES)
def test_pairs_and_triplets_of_a_miner(name: str, miner: str) -> None:
    """`indices_tuple` as the third argument, None included."""
    ours, theirs, arguments = METRIC_LOSSES[name]

    def mined(make: type) -> Loss:
        return lambda z: make(**arguments)(z, THREE, MINERS[miner](z.detach(), THREE))

    compare([mined(ours), mined(theirs)], (12, 5))


@pytest.mark.parametrize("name", [name for name in METRIC_LOSSES if name != "npairs"])
def test_pairs_of_a_miner_without_labels(name: str) -> None:
    ours, theirs, arguments = METRIC_LOSSES[name]
    pairs = MINERS["triplets"](torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), THREE)
    compare((with_rest(make(**arguments), None, pairs) for make in (ours, theirs)), (12, 5))


@pytest.mark.parametrize("name", ["supcon", "ntxent", "triplet"])
def test_wrappers_of_pytorch_metric_learning(name: str) -> None:
    """MultipleLosses, CrossBatchMemory over three batches, SelfSupervisedLoss."""
    ours, theirs, arguments = METRIC_LOSSES[name]
    miner = miners.MultiSimilarityMiner()
    wrapped = [
        [
            pml.MultipleLosses([make(**arguments), make(**arguments)], miners=[miner, None]),
            pml.CrossBatchMemory(make(**arguments), 5, memory_size=24, miner=miner),
            pml.CrossBatchMemory(make(**arguments), 5, memory_size=24),
        ]
        for make in (ours, theirs)
    ]
    for place in range(3):
        for seed in range(3):
            compare((with_rest(losses[place], THREE) for losses in wrapped), (12, 5), seed=seed)
    compare((pml.SelfSupervisedLoss(make(**arguments)) for make in (ours, theirs)), (12, 5), (12, 5))


def test_a_critic_is_a_distance_and_a_function_a_reducer() -> None:
    """SupCon with its cosine, written as a critic and a mean over anchors, is SupCon."""
    as_parts = SupConLoss(0.3, distance=nf.Cosine(1.0), reducer=torch.mean)
    compare([with_rest(as_parts, THREE), with_rest(SupConLoss(0.3), THREE)], (12, 5))


@pytest.mark.parametrize("name", METRIC_LOSSES)
def test_single_values_reduced_are_the_loss_in_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ways to one number: all pairs as `indices_tuple`, and reductions that list none."""
    make, _, arguments = METRIC_LOSSES[name]
    place = torch.arange(12)
    same = THREE[:, None] == THREE
    pairs = *(same & (place != place[:, None])).nonzero(as_tuple=True), *(~same).nonzero(as_tuple=True)
    loss = make(**arguments)
    compare([with_rest(loss, THREE, pairs), with_rest(loss, THREE)], (12, 5))


@pytest.mark.parametrize("size", [24, (24, 5)])
def test_a_memory_bank_holds_the_last_keys(size: Any) -> None:
    """lightly's bank begins with noise, this one empty: once both are full, values and gradients agree. It is
    part of the state, and a batch without gradient leaves it."""
    ours, theirs = NTXentLoss(0.2, size), lightly.loss.NTXentLoss(0.2, (24, 5))
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        rows = [torch.randn(8, 5, generator=generator) for _ in range(2)]
        got, expected = value_and_gradient(ours, rows), value_and_gradient(theirs, rows)
        if step == 0:
            assert float(got[0]) == 0.0  # no negative yet
            assert torch.isfinite(got[1]).all()
        if step >= 3:
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    before = ours(*rows)
    assert torch.equal(ours(*rows), before)
    again = NTXentLoss(0.2, size)
    again.load_state_dict(ours.state_dict())
    assert torch.equal(again(*rows), before)


def test_a_batch_larger_than_the_memory_leaves_its_last_rows() -> None:
    loss = NTXentLoss(0.5, 3)
    rows = torch.eye(8, requires_grad=True)
    loss(rows, rows)
    assert loss.memory_bank is not None
    assert torch.equal(loss.memory_bank.embedding.sort(dim=0).values, torch.eye(8)[-3:].sort(dim=0).values)


def test_vicreg_of_maps_is_that_of_lightly() -> None:
    compare([VICRegLoss(), lightly.loss.VICRegLoss()], (6, 3, 2, 4), (6, 3, 2, 4))


@pytest.mark.parametrize("options", [{}, {"knots": 9, "t_max": 2.0}])
def test_sigreg_and_lejepa_with_the_directions_of_lightly(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directions differ by design, so both get the same ones."""
    fixed = torch.nn.functional.normalize(torch.randn(4, 16, dtype=torch.float64), dim=0)
    monkeypatch.setattr(lejepa_loss.SIGReg, "_generate_unit_vectors", lambda *_: fixed)
    monkeypatch.setattr(nf.SIGReg, "sketch", lambda *_: fixed)
    theirs = lejepa_loss.SIGReg(**options, num_vectors=16)
    # the peer's grid of frequencies is rounded to float32
    compare([SIGRegLoss(**options, num_vectors=16), theirs], (2, 9, 4), rtol=1e-5)
    named = {f"sigreg_{key}": value for key, value in options.items()}
    stacked = [of_views(make(0.2, **named)) for make in (LeJEPALoss, lejepa_loss.LeJEPALoss)]
    compare(stacked, (3, 9, 4), (2, 9, 4), rtol=1e-5)


def of_views(loss: Any) -> Loss:
    return lambda local, whole: loss(local_proj=local, global_proj=whole)


def test_directions_of_sigreg_change_in_training_and_resume() -> None:
    rows, loss = torch.randn(20, 4), SIGRegLoss(num_vectors=8)
    first, second = loss(rows), loss(rows)
    assert not torch.equal(first, second)
    again = SIGRegLoss(num_vectors=8)
    again(rows)
    resumed = SIGRegLoss(num_vectors=8)
    resumed.load_state_dict(again.state_dict())
    assert torch.equal(resumed(rows), second)
    assert torch.equal(resumed.eval()(rows), resumed(rows))


def supcontrast(rows: Tensor, mask: Tensor, temperature: float, base: float, first_views: bool) -> Tensor:
    """Khosla et al. 2020, Eq. 2, by loops, with weighted positives: rows (instance, view, dim)."""
    n, views = rows.shape[:2]
    unit = torch.nn.functional.normalize(rows, dim=2)
    places = [(i, v) for i in range(n) for v in range(views)]
    losses = []
    for i, v in places:
        if first_views and v:
            continue
        score = {place: unit[i, v] @ unit[place] / temperature for place in places if place != (i, v)}
        log_total = torch.stack(list(score.values())).logsumexp(dim=0)
        weights = {place: mask[i, place[0]] for place in score}
        log_shares = [weights[place] * (score[place] - log_total) for place in score]
        losses.append(-torch.stack(log_shares).sum() / sum(weights.values()))
    return temperature / base * torch.stack(losses).mean()


@pytest.mark.parametrize("mode", ["all", "one"])
@pytest.mark.parametrize("positives", ["instances", "labels", "mask"])
def test_options_of_the_authors_of_supcon(mode: str, positives: str) -> None:
    labels = torch.tensor([0, 1, 0, 2])
    weights = torch.rand(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    masks = {"instances": torch.eye(4), "labels": (labels == labels[:, None]).double(), "mask": weights}
    arguments = {"instances": {}, "labels": {"labels": labels}, "mask": {"mask": weights}}[positives]
    loss = SupConLoss(0.2, mode, 0.07)
    baseline = lambda z: supcontrast(z.flatten(2), masks[positives], 0.2, 0.07, mode == "one")
    compare([lambda z: loss(z, **arguments), baseline], (4, 3, 2, 5))
    factor = SupConLoss(0.2, mode, 0.07, reducer=torch.mean)
    if positives != "mask":  # single values have the factor too
        compare([lambda z: factor(z, **arguments), lambda z: loss(z, **arguments)], (4, 3, 5))


def test_arguments_are_taken_in_the_peers_order() -> None:
    rows = torch.randn(2, 5, 3)
    assert torch.equal(NTXentLoss(0.2, 0, False)(*rows), NTXentLoss(0.2)(*rows))
    assert torch.equal(NTXentLoss(gather_distributed=True)(*rows), NTXentLoss()(*rows))
    for ours, theirs, arguments in (
        (ClipLoss, open_clip.loss.ClipLoss, (True, True, True, 0, 1, False)),
        (SigLipLoss, open_clip.loss.SigLipLoss, (True, 0, 1, "gather")),
    ):
        got, expected = (make(*arguments)(*rows, 2.0, 0.5) for make in (ours, theirs))
        torch.testing.assert_close(got, expected)
    got, expected = (
        make(0.2, True, True, "all")(rows[0], torch.tensor([0, 0, 1, 1, 2]))
        for make in (TripletMarginLoss, pml.TripletMarginLoss)
    )
    torch.testing.assert_close(got, expected)
    with pytest.raises(ValueError, match="temperature was 0"):  # peers raise ValueError
        NTXentLoss(0)


@pytest.mark.parametrize("name", PEERS)
def test_arguments_have_the_peers_names(name: str) -> None:
    """In the same places, so that calls by position and by name both work. `**kwargs` are options."""
    ours, theirs = PEERS[name]
    for method in ("__init__", "forward"):
        names, expected = (
            [argument.name for argument in signature(getattr(loss, method)).parameters.values()
             if argument.kind is not argument.VAR_KEYWORD]
            for loss in (ours, theirs)
        )  # fmt: skip
        assert names[: len(expected)] == expected


def sentence_model() -> SentenceTransformer:
    words = {word: number for number, word in enumerate(["[UNK]", *"abcdefgh"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    torch.manual_seed(0)
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=6)], device="cpu").double()


class Encoder(torch.nn.Sequential):
    """A network that is called as sentence-transformers calls one; dropout shows whether a second pass draws
    the same. Values of several tokens are averaged over those of the mask. `shapes`: of the mini-batches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        values = features["values"]
        self.shapes.append(tuple(values.shape))
        if "attention_mask" in features:
            mask = features["attention_mask"][..., None]
            values = (values * mask).sum(dim=1) / mask.sum(dim=1)
        return {"sentence_embedding": super().forward(values)}


def test_ranking_loss_with_a_model_as_in_sentence_transformers() -> None:
    model = sentence_model()
    columns = [["a b", "c d e", "f"], ["b a", "e d", "g h"], ["h", "a", "c c"]]
    features = [model.preprocess(column) for column in columns]
    results = []
    for make in (MultipleNegativesRankingLoss, ranking.MultipleNegativesRankingLoss):
        model.zero_grad()
        value = make(model, 5.0)(features, None)
        value.backward()
        results.append((value.detach(), *(parameter.grad for parameter in model.parameters())))
        assert torch.equal(make(model, 5.0)(sentence_features=features, labels=None), value)
    torch.testing.assert_close(results[0], results[1])


def tokens(lengths: tuple[int, ...]) -> dict[str, Any]:
    """Sentences of these lengths, padded."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"values": torch.randn(*mask.shape, 4), "attention_mask": mask.long(), "task": "text"}


TOKENS = [
    tokens(lengths) for lengths in ((5, 1, 2, 9, 3, 3, 1), (2, 2, 2, 2, 2, 2, 7), (1, 8, 1, 1, 1, 1, 1))
]
VALUES = [{"values": torch.randn(7, 4), "task": "text"} for _ in range(3)]
BOTH = ("query_to_doc", "doc_to_query")


@pytest.mark.parametrize(
    ("features", "arguments", "options"),
    [
        (VALUES, (), {"mini_batch_size": 3}),
        (VALUES, (20.0, dot_score, 3), {}),
        (
            VALUES,
            (5.0, euclidean_sim, 2, None, False, BOTH, "per_direction", False, "all_negatives", 2.0),
            {},
        ),
        (TOKENS, (20.0, dot_score, 32, 6), {}),
    ],
)
def test_mini_batches_have_the_gradient_of_the_batch(
    features: list[dict[str, Any]], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """They are encoded again in the backward pass, with the dropout of the first."""
    model = Encoder()
    results, shapes = [], []
    for make in (CachedMultipleNegativesRankingLoss, cached.CachedMultipleNegativesRankingLoss):
        model.zero_grad()
        model.shapes.clear()
        torch.manual_seed(1)
        value = make(model, *arguments, **options)([dict(one) for one in features], None)
        shapes.append([*model.shapes])
        value.backward()
        results.append([value.detach(), *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(*results)
    assert shapes[0] == shapes[1]
    assert len(shapes[0]) > len(features)


def test_mini_batches_need_rows_and_masks() -> None:
    static = sentence_model()
    with pytest.raises(ValueError, match="not one row for each sentence"):
        MultipleNegativesRankingLoss(static, mini_batch_size=2)([static.preprocess(["a b", "c"])] * 2, None)
    with pytest.raises(ValueError, match=r"mini_batch_num_tokens was 6; .* no attention_mask"):
        CachedMultipleNegativesRankingLoss(Encoder(), mini_batch_num_tokens=6)(VALUES, None)
    with pytest.raises(ValueError, match="mini_batch_num_tokens was 0"):
        CachedMultipleNegativesRankingLoss(Encoder(), mini_batch_num_tokens=0)


def test_wrappers_know_the_name_of_the_class() -> None:
    assert label_losses.LabelledNTXentLoss.__name__ in pml.CrossBatchMemory.supported_losses()
