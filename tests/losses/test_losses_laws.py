"""Laws of the losses without a peer: formulas, no n x n matrix, half precision, ranks, messages."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import nearfar as nf
from nearfar.core import kernels, scores
from nearfar.core.kernels import LogSumExp, SummedLogSumExp, SymmetricLogSumExp, TwoWayLogSumExp
from nearfar.core.schedules import START
from nearfar.errors import UserError
from nearfar.losses import (
    BarlowTwinsLoss,
    ClipLoss,
    DCLLoss,
    DCLWLoss,
    LabelledNTXentLoss,
    LeJEPALoss,
    MultipleNegativesRankingLoss,
    NPairsLoss,
    NTXentLoss,
    SigLipLoss,
    SupConLoss,
    TripletMarginLoss,
    VICRegLoss,
)

DIM = 4  # width of embeddings
DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


def with_memory(**options: Any) -> NTXentLoss:
    """A loss whose memory holds keys already."""
    loss = NTXentLoss(0.3, 16, **options)
    assert loss.memory_bank is not None
    keys = torch.linspace(-1, 1, 12 * DIM).sin().view(12, DIM)
    loss.memory_bank.advance({0: keys}, torch.full((12,), -1), START)
    return loss


class OfStackedViews:
    """Two global views and a local one, made of two sets of embeddings."""

    def __init__(self, loss: LeJEPALoss) -> None:
        self.loss = loss.eval()  # the same directions at each call

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return self.loss(local_proj=(a + b)[None], global_proj=torch.stack([a, b]))


class Mined:
    """A loss of the pairs within the rows of one rank, which is what each rank mines."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, rows: Tensor, labels: Tensor) -> Tensor:
        same = labels == labels[:, None]
        rank = torch.arange(len(labels)) // SIZES[0]
        near = rank == rank[:, None]
        positive = same & near & ~torch.eye(len(labels), dtype=torch.bool)
        pairs = *positive.nonzero(as_tuple=True), *(near & ~same).nonzero(as_tuple=True)
        return self.loss(rows, labels, pairs)


PAIRED: dict[str, Callable[..., Callable[[Tensor, Tensor], Tensor]]] = {
    "ntxent": lambda **o: NTXentLoss(0.3, **o),
    "clip": lambda **o: lambda a, k: ClipLoss(**o)(a, k, 4.0),
    "siglip": lambda **o: lambda a, k: SigLipLoss(**o)(a, k, 4.0, -1.0),
    "mnr": lambda **o: MultipleNegativesRankingLoss(scale=6.0, **o),
    "mnr all": lambda **o: MultipleNegativesRankingLoss(scale=6.0, directions=DIRECTIONS, **o),
    "mnr hardened": lambda **o: MultipleNegativesRankingLoss(
        scale=6.0, hardness_mode="in_batch_negatives", hardness_strength=2.0, **o
    ),
    "mnr similarity": lambda **o: MultipleNegativesRankingLoss(
        similarity_fct=lambda a, b: 1 - a.square().sum(1, keepdim=True) + 2 * a @ b.mT - b.square().sum(1),
        scale=0.3,
        directions=DIRECTIONS,
        **o,
    ),
    "dcl": lambda **o: DCLLoss(0.3, **o),
    "dclw": lambda **o: DCLWLoss(0.3, **o),
}
LABELLED: dict[str, Callable[..., Callable[[Tensor, Tensor], Tensor]]] = {
    "supcon": lambda **o: SupConLoss(0.3, **o),
    "supcon in": lambda **o: SupConLoss(0.3, form="in", **o),
    "labelled ntxent": lambda **o: LabelledNTXentLoss(0.3, **o),
    "npairs": lambda **o: NPairsLoss(normalize=False, **o),
    "triplet": lambda **o: TripletMarginLoss(0.3, **o),
}
# these hold a matrix: of all scores where an option asks for single values, of dimensions, or of directions
WHOLE: dict[str, Callable[..., Callable[[Tensor, Tensor], Tensor]]] = {
    "ntxent memory": with_memory,
    "vicreg": lambda **o: VICRegLoss(**o),
    "barlow": lambda **o: BarlowTwinsLoss(0.1, **o),
    "lejepa": lambda **o: OfStackedViews(LeJEPALoss(sigreg_num_vectors=8, **o)),
}
LABELLED_WHOLE: dict[str, Callable[..., Callable[[Tensor, Tensor], Tensor]]] = {
    "supcon distance": lambda **o: SupConLoss(0.3, distance=nf.Distance(), **o),
    "labelled ntxent mined": lambda **o: Mined(LabelledNTXentLoss(0.3, **o)),
    "npairs mined": lambda **o: Mined(NPairsLoss(**o)),
    "triplet mined": lambda **o: Mined(TripletMarginLoss(0.3, **o)),
    "triplet smooth": lambda **o: TripletMarginLoss(0.3, swap=True, smooth_loss=True, **o),
    "supcon regularised": lambda **o: SupConLoss(
        0.3, embedding_regularizer=lambda z: z.square().mean(), embedding_reg_weight=0.7, **o
    ),
}


@pytest.mark.parametrize("form", ["out", "in"])
def test_supcon_is_the_sum_its_authors_wrote(form: str) -> None:
    """Khosla et al. 2020, Eq. 2 and 3, by loops over anchors and positives."""
    torch.manual_seed(0)
    z, labels = torch.randn(9, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 0, 3, 1, 1])
    unit = torch.nn.functional.normalize(z, dim=1)
    losses = []
    for i in range(9):
        partners = [p for p in range(9) if p != i and labels[p] == labels[i]]
        if not partners:
            continue
        weights = {a: math.exp(float(unit[i] @ unit[a]) / 0.2) for a in range(9) if a != i}
        shares = [weights[p] / sum(weights.values()) for p in partners]
        outside = -sum(math.log(share) for share in shares) / len(shares)
        losses.append(outside if form == "out" else -math.log(sum(shares) / len(shares)))
    assert float(SupConLoss(0.2, form=form)(z, labels)) == pytest.approx(sum(losses) / len(losses), rel=1e-12)


def test_supcon_without_labels_is_ntxent() -> None:
    """Every instance a class of its own: both of its views are what SimCLR has."""
    z0, z1 = torch.randn(2, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(SupConLoss(0.4)(torch.stack([z0, z1], dim=1)), NTXentLoss(0.4)(z0, z1))


def test_ntxent_is_log_m_less_infonce() -> None:
    z0, z1 = torch.randn(2, 6, 5, dtype=torch.float64)
    method = nf.Method(
        nf.Shared(torch.nn.Identity()), nf.Cosine(0.5), nf.InBatch("both"), nf.Everyone(), nf.InfoNCE()
    )
    outcome = method(nf.Batch((z0, z1), torch.arange(6)))
    assert outcome.nats is not None
    torch.testing.assert_close(NTXentLoss(0.5)(z0, z1), math.log(2 * 6 - 1) - outcome.nats)


@pytest.mark.parametrize("name", LABELLED)
@pytest.mark.parametrize("classes", [[0] * 6, [0, 0, 0, 1, 2, 3]])
def test_gradients_are_finite_where_an_anchor_lacks_positives_or_negatives(
    name: str, classes: list[int]
) -> None:
    rows = torch.randn(6, 4, requires_grad=True)
    value = LABELLED[name]()(rows, torch.tensor(classes))
    (gradient,) = torch.autograd.grad(value, rows)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned."""

    numel = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("name", [*PAIRED, *LABELLED])
def test_a_large_batch_never_holds_the_matrix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward at n = 300 with tiles of 32 rows: nothing larger than a tile of 32 x 2n."""
    monkeypatch.setattr(scores, "MAX_SCORES_CPU", 1)
    monkeypatch.setattr(kernels, "BLOCK_ROWS", 32)
    n, largest = 300, _Largest()
    torch.manual_seed(0)
    a, k = (torch.randn(n, 8, requires_grad=True) for _ in range(2))
    labels = torch.arange(n) // 4
    loss = PAIRED[name]() if name in PAIRED else LABELLED[name]()
    with largest:
        (loss(a, k) if name in PAIRED else loss(a, labels)).backward()
    assert a.grad is not None
    assert torch.isfinite(a.grad).all()
    assert largest.numel <= 32 * 2 * n


@pytest.mark.parametrize("name", PAIRED)
def test_half_precision_is_scored_in_float32(name: str) -> None:
    a, k = torch.randn(2, 8, 6).bfloat16()
    loss = PAIRED[name]()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = loss(a, k)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, loss(a.float(), k.float()))


EVERY = {**PAIRED, **WHOLE, **LABELLED, **LABELLED_WHOLE}
SIZES = (5, 3)  # ranks with different numbers of rows, as at the end of an epoch


def rows_of(start: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, sum(SIZES), 3, dtype=torch.float64, generator=generator)
    return x[start:end], y[start:end], torch.tensor([0, 1, 0, 2, 1, 0, 1, 2])[start:end]


def through_weights(
    loss: Callable[..., Tensor], name: str, rows: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Value, and gradient of one linear layer that both embeddings went through."""
    weights = torch.linspace(-1, 1, 3 * DIM, dtype=torch.float64).view(3, DIM).requires_grad_()
    x, y, labels = rows
    value = loss(x @ weights, labels if name in (*LABELLED, *LABELLED_WHOLE) else y @ weights)
    return value.detach(), torch.autograd.grad(value, weights)[0]


def one_rank(rank: int, folder: str) -> None:
    store = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=len(SIZES))
    start = sum(SIZES[:rank])
    result = {}
    for name, make in EVERY.items():
        shares = through_weights(make(gather_distributed=True), name, rows_of(start, start + SIZES[rank]))
        for share in shares:  # what DDP does to gradients
            dist.all_reduce(share)
            share /= len(SIZES)
        result[name] = shares
    if rank == 0:
        torch.save(result, os.path.join(folder, "found.pt"))
    dist.destroy_process_group()


def test_two_ranks_equal_one(tmp_path: Path) -> None:
    """The average over ranks of value and gradient is that of one process with all rows. Pairs of a miner are
    those of each rank's own rows."""
    mp.start_processes(one_rank, (str(tmp_path),), nprocs=len(SIZES), start_method="forkserver")
    result = torch.load(tmp_path / "found.pt", weights_only=True)
    for name, make in EVERY.items():
        expected = through_weights(make(), name, rows_of(0, sum(SIZES)))
        for got, expected_values in zip(result[name], expected, strict=True):
            assert torch.allclose(got, expected_values, rtol=1e-12, atol=1e-12), name


SEVEN = torch.randn(7, 3)
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "temperature": (lambda: NTXentLoss(0.0), "temperature was 0.0"),
    "rows": (lambda: NTXentLoss()(SEVEN, SEVEN[:5]), "out1 has 5 rows and out0 has 7"),
    "widths": (lambda: ClipLoss()(SEVEN, SEVEN[:, :2], 1.0), "text_features has 2 dimensions"),
    "shape": (lambda: SigLipLoss()(SEVEN[0], SEVEN, 1.0), "expected floating-point embeddings"),
    "whole": (lambda: NTXentLoss()(SEVEN.long(), SEVEN), "out0 was torch.int64"),
    "empty": (lambda: NTXentLoss()(SEVEN[:0], SEVEN[:0]), "out0 has no rows"),
    "labels": (lambda: SupConLoss()(SEVEN, torch.arange(6)), "expected 7 whole numbers"),
    "float labels": (lambda: SupConLoss()(SEVEN, torch.rand(7)), "labels was torch.float32"),
    "no labels": (lambda: SupConLoss()(SEVEN), "labels were left out"),
    "form": (lambda: SupConLoss(form="mean"), "form was 'mean'"),
    "half a reference": (lambda: TripletMarginLoss()(SEVEN, torch.arange(7), ref_emb=SEVEN), "give both"),
    "npairs reference": (
        lambda: NPairsLoss()(SEVEN, torch.arange(7), ref_emb=SEVEN + 1, ref_labels=torch.arange(7)),
        "leave out ref_emb",
    ),
    "direction": (
        lambda: MultipleNegativesRankingLoss(directions=("doc_to_query",)),
        "expected query_to_doc",
    ),
    "partition": (lambda: MultipleNegativesRankingLoss(partition_mode="each"), "partition_mode was 'each'"),
    "partition alone": (
        lambda: MultipleNegativesRankingLoss(
            directions=("query_to_doc", "doc_to_doc"), partition_mode="per_direction"
        ),
        "doc_to_doc",
    ),
    "scale": (lambda: MultipleNegativesRankingLoss(20.0), "scale by name"),  # type: ignore[arg-type]
    "hardness": (lambda: MultipleNegativesRankingLoss(hardness_mode="most"), "hardness_mode was 'most'"),
    "strength": (lambda: MultipleNegativesRankingLoss(hardness_strength=-1.0), "hardness_strength was -1"),
    "mini-batch": (lambda: MultipleNegativesRankingLoss(mini_batch_size=4), "needs a model"),
    "one column": (lambda: MultipleNegativesRankingLoss()(SEVEN), "got 1 column"),
    "world size": (
        lambda: ClipLoss(world_size=2)(SEVEN, SEVEN, 1.0),
        "in the process group they are 0 and 1",
    ),
    "horovod": (lambda: ClipLoss(use_horovod=True), "use_horovod was True"),
    "exchange": (lambda: SigLipLoss(dist_impl="ring"), "dist_impl was 'ring'"),
    "labels of one loss": (lambda: NTXentLoss()(SEVEN, torch.arange(7)), "LabelledNTXentLoss take labels"),
    "memory": (lambda: NTXentLoss(memory_bank_size=-1), "memory_bank_size was -1"),
    "memory shape": (lambda: NTXentLoss(memory_bank_size=(1, 2, 3)), "expected a number of keys"),
    "dcl alone": (lambda: DCLLoss()(SEVEN[:1], SEVEN[:1]), "needs a second instance"),
    "vicreg alone": (lambda: VICRegLoss()(SEVEN[:1], SEVEN[:1]), "needs at least 2"),
    "barlow alone": (lambda: BarlowTwinsLoss()(SEVEN[:1], SEVEN[:1]), "a correlation needs at least 2"),
    "vicreg shapes": (lambda: VICRegLoss()(SEVEN, SEVEN[:5]), "expected one shape"),
    "lambda": (lambda: LeJEPALoss(lambda_param=2.0), "lambda_param was 2"),
    "views": (lambda: LeJEPALoss()(local_proj=SEVEN, global_proj=SEVEN), "local_proj was torch.float32"),
    "distance": (lambda: SupConLoss(distance=torch.cdist), "expected a distance of pytorch-metric-learning"),
    "reducer": (lambda: SupConLoss(reducer="mean"), "reducer was str"),  # type: ignore[arg-type]
    "triplets": (lambda: TripletMarginLoss(triplets_per_anchor="10"), "a miner that draws triplets"),
    "indices": (lambda: TripletMarginLoss()(SEVEN, torch.arange(7), (SEVEN,)), "indices_tuple was tuple"),
    "mask as indices": (lambda: SupConLoss()(SEVEN, torch.arange(7), torch.eye(7)), "as mask="),
    "row": (
        lambda: TripletMarginLoss()(SEVEN, torch.arange(7), [torch.tensor([7])] * 3),
        "indices_tuple has row 7 of 7",
    ),
    "mask alone": (lambda: SupConLoss()(SEVEN, mask=torch.eye(7)), "mask was given; that needs"),
    "mask shape": (lambda: SupConLoss()(SEVEN[:, None], mask=torch.eye(6)), "expected (7, 7)"),
    "mask and labels": (
        lambda: SupConLoss()(SEVEN[:, None], torch.arange(7), mask=torch.eye(7)),
        "labels and mask were both given",
    ),
    "mode": (lambda: SupConLoss(contrast_mode="some"), "contrast_mode was 'some'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_bad_inputs_of_losses_get_a_sentence(name: str) -> None:
    mistake, message = MISTAKES[name]
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace(")", r"\)")):
        mistake()


@pytest.mark.parametrize("tile", [1, 3, 50])
def test_both_directions_from_one_matrix_are_two_log_sum_exps(tile: int) -> None:
    """Values and gradients of the rows and columns of u v^T for any tile and any incoming gradients."""
    torch.manual_seed(0)
    u, v = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (7, 5))
    factors = torch.randn(7, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    ours = TwoWayLogSumExp(tile)(30 * u, v)
    theirs = (30 * u @ v.T).logsumexp(1), (30 * u @ v.T).logsumexp(0)
    for result in (ours, theirs):
        total = sum((values * factor).sum() for values, factor in zip(result, factors, strict=True))
        assert isinstance(total, torch.Tensor)
        total.backward()
        gradients = u.grad, v.grad
        u.grad = v.grad = None
        if result is ours:
            first = gradients
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(first, gradients)


@pytest.mark.parametrize("side", [3, 7, 64])
def test_a_symmetric_log_sum_exp_is_that_of_the_matrix(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradient of log sum_{j != i} e^(z_i . z_j), by blocks that do not divide the rows and by a
    matrix."""
    monkeypatch.setattr(kernels, "SQUARE", side)
    torch.manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(23, 4, dtype=torch.float64), dim=1) * 5**0.5
    weights = torch.randn(23, dtype=torch.float64)

    def value_and_gradient(function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        z = rows.clone().requires_grad_()
        value = function(z)
        return value.detach(), torch.autograd.grad(value @ weights, z)[0]

    ours = value_and_gradient(lambda z: SymmetricLogSumExp(5.0)(z)[0])
    theirs = value_and_gradient(lambda z: (z @ z.T).fill_diagonal_(-torch.inf).logsumexp(dim=1))
    for one, second in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, second, rtol=1e-12, atol=1e-12)


def test_ntxent_of_many_rows_is_that_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symmetric blocks, one matrix below their size, and the path for temperatures too low for blocks
    agree."""
    torch.manual_seed(0)
    pairs = [torch.randn(40, 6, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    for temperature in (0.1, 0.02):
        results = []
        for full in (2**21, 16):
            monkeypatch.setattr("nearfar.losses.pairs.MAX_SCORES_CPU", full)
            value = NTXentLoss(temperature)(*pairs)
            results.append([value.detach(), *torch.autograd.grad(value, pairs)])
        for one, second in zip(*results, strict=True):
            torch.testing.assert_close(one, second, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("grown", [True, False])
@pytest.mark.parametrize("block", [1, 30, 2**17])
@pytest.mark.parametrize("alone", [False, True])
def test_blocks_of_a_log_sum_exp_are_those_of_the_matrix(
    alone: bool, block: int, grown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Value and gradient equal a matrix with left-out pairs at -inf: uneven blocks, scores of some hundreds,
    empty places, an anchor without candidates, keys with and without gradient."""
    monkeypatch.setattr(kernels, "BLOCK_ROWS", 4)
    monkeypatch.setattr(kernels, "BLOCK_SCORES", block)
    torch.manual_seed(0)
    anchors, keys = 9 * torch.randn(11, 5, dtype=torch.float64), 9 * torch.randn(17, 5, dtype=torch.float64)
    index, key_index = torch.randint(0, 4, (11,)), torch.randint(0, 4, (17,))
    key_index[torch.tensor([3, 16])] = kernels.EMPTY
    if alone:  # an anchor that all keys belong to
        key_index[key_index != kernels.EMPTY] = index[6] = 9
    left_out = (index[:, None] == key_index) | (key_index == kernels.EMPTY)
    assert left_out[6].all() == alone
    weights = torch.randn(11, dtype=torch.float64)
    weights[6] = 0.0

    def value_and_gradients(function: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        leaf_u, leaf_v = anchors.clone().requires_grad_(), keys.clone().requires_grad_(grown)
        value = function(leaf_u, leaf_v)
        total = value.masked_fill(value.isneginf(), 0.0) @ weights
        return [value.detach(), *torch.autograd.grad(total, [leaf_u, leaf_v] if grown else [leaf_u])]

    ours = value_and_gradients(lambda u, v: LogSumExp(index, key_index, 4, None, not grown)(u, v)[0])
    theirs = value_and_gradients(lambda u, v: (u @ v.T).masked_fill(left_out, -torch.inf).logsumexp(dim=1))
    assert bool(ours[0][6].isneginf()) == alone
    for one, second in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, second.nan_to_num(0.0, neginf=-torch.inf), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("tile", [1, 3, 7, 64])
def test_a_sum_of_log_sums_in_one_pass_has_the_right_derivatives(tile: int) -> None:
    """sum_i log sum_j e^(u_i . v_j): value, gradient and second derivative, also for scores of 1,000."""
    torch.manual_seed(0)
    for scale in (1.0, 40.0):
        u, v = ((scale * torch.randn(n, 4, dtype=torch.float64)).requires_grad_() for n in (7, 5))
        baseline = (u @ v.T).logsumexp(dim=1).sum()
        value = SummedLogSumExp(tile)(u, v)[0]
        torch.testing.assert_close(value, baseline)
        for one, second_values in zip(
            torch.autograd.grad(3 * value, (u, v)), torch.autograd.grad(3 * baseline, (u, v)), strict=True
        ):
            torch.testing.assert_close(one, second_values)
    u, v = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 6))
    assert torch.autograd.gradcheck(lambda a, b: SummedLogSumExp(tile)(a, b)[0], (u, v))
    assert torch.autograd.gradgradcheck(lambda a, b: SummedLogSumExp(tile)(a, b)[0], (u, v))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, at the first jvp
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_torch_func_transforms_equal_autograd(
    name: str, tiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tiled:
        monkeypatch.setattr(scores, "MAX_SCORES_CPU", 1)
        monkeypatch.setattr("nearfar.losses.pairs.MAX_SCORES_CPU", 1)
    torch.manual_seed(0)
    rows, rest = torch.randn(2, 40, 4, dtype=torch.float64)
    loss = EVERY[name]()
    second = rest if name in (*PAIRED, *WHOLE) else torch.arange(40) // 4

    def value(z: Tensor) -> Tensor:
        return loss(z, second)

    leaf = rows.clone().requires_grad_()
    # a call of its own, as it stores keys in a memory; transforms store none
    (expected,) = torch.autograd.grad(EVERY[name]()(leaf, second), leaf)
    gradient = torch.func.grad(value)
    torch.testing.assert_close(gradient(rows), expected)
    torch.testing.assert_close(torch.func.jacrev(value)(rows), expected)
    two = torch.stack([rows, rows.flip(0)])
    of_two = torch.func.vmap(gradient)(two)
    torch.testing.assert_close(of_two[0], expected)
    torch.testing.assert_close(of_two[1], gradient(rows.flip(0)))
    torch.testing.assert_close(torch.func.grad(lambda z: torch.func.vmap(value)(z).sum())(two), of_two)
    # forward mode, and twice: a product with the Hessian
    direction = torch.randn_like(rows)
    pushed = torch.func.jvp(value, (rows,), (direction,))[1]
    torch.testing.assert_close(pushed, (expected * direction).sum())
    (first,) = torch.autograd.grad(EVERY[name]()(leaf, second), leaf, create_graph=True)
    (product,) = torch.autograd.grad((first * direction).sum(), leaf)
    torch.testing.assert_close(torch.func.jvp(gradient, (rows,), (direction,))[1], product)
    of_one = torch.func.vmap(lambda v: torch.func.vjp(gradient, rows)[1](v)[0])(direction[None])[0]
    torch.testing.assert_close(of_one, product)
