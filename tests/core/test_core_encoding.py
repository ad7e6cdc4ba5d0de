"""Encoding in chunks gives the loss and gradient of autograd (Gao et al. 2021), with the same dropout in both
passes and one update of the buffers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import nearfar as nf
from nearfar.core.encoding import Encoding, chunks
from nearfar.core.networks import blocks_of
from nearfar.distributed.strategy import join
from nearfar.parts.encoders import backbone
from nearfar.parts.priors import SIGReg, VarianceCovariance
from nearfar.train.equality import start
from nearfar.train.memory import saved_storages

ROWS, WIDTH, CHUNK = 10, 6, 3


def network(*, dropout: float = 0.0, norm: bool = False) -> nn.Module:
    torch.manual_seed(3)
    middle: nn.Module = nn.BatchNorm1d(8) if norm else nn.LayerNorm(8)
    return nn.Sequential(
        nn.Linear(WIDTH, 8), middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 4)
    ).double()


def batch(views: int = 2) -> nf.Batch:
    generator = torch.Generator().manual_seed(5)
    example = torch.randn(views, ROWS, WIDTH, dtype=torch.float64, generator=generator)
    return nf.Batch(tuple(example), torch.arange(ROWS))


METHODS: dict[str, Callable[[], nf.Method]] = {
    "simclr": lambda: nf.Method(
        nf.Shared(network()), nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE()
    ),
    "learnt temperature": lambda: nf.Method(
        nf.Shared(network()), nf.Cosine(nf.learnt(0.2)), nf.InBatch(), nf.Everyone(), nf.InfoNCE()
    ).double(),
    "ring, ml-cpc": lambda: nf.Method(
        nf.Shared(network()), nf.Cosine(0.2), nf.InBatch(), nf.Ring(0.2, 0.9), nf.MultiLabelCPC(0.5)
    ),
    "moco": lambda: nf.Method(
        nf.Momentum(network(), 0.9), nf.Cosine(0.2), nf.Queue(32, dim=4), nf.Everyone(), nf.InfoNCE()
    ).double(),
    "byol": lambda: nf.Method(
        nf.Momentum(network(), 0.9, predictor=nn.Linear(4, 4).double()),
        nf.Cosine(1.0),
        nf.NoNegatives(),
        nf.Everyone(),
        nf.Agreement(),
    ),
    "per view": lambda: nf.Method(
        nf.PerView([network(), network()]), nf.Cosine(0.2), nf.InBatch("one"), nf.Everyone(), nf.InfoNCE()
    ),
    "vicreg": lambda: nf.Method(
        nf.Shared(network()),
        nf.Distance(),
        nf.NoNegatives(),
        nf.Everyone(),
        nf.BarberAgakov(),
        prior=VarianceCovariance(),
    ),
    "sigreg": lambda: nf.Method(
        nf.Shared(network()), nf.Cosine(1.0), nf.InBatch(), nf.Everyone(), nf.InfoNCE(), prior=SIGReg()
    ),
}


def differentiated(method: nf.Method, views: nf.Batch) -> tuple[Tensor, dict[str, Tensor]]:
    outcome = method(views)
    outcome.loss.backward()
    return outcome.loss.detach(), {
        name: weight.grad for name, weight in method.named_parameters() if weight.grad is not None
    }


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("chunk", [1, CHUNK, ROWS, 100])
def test_chunks_give_the_gradient_of_the_whole(name: str, chunk: int) -> None:
    baseline, cached = METHODS[name](), METHODS[name]()
    cached.load_state_dict(baseline.state_dict())
    cached.encoding = Encoding(chunk=chunk)
    loss, expected_values = differentiated(baseline, batch())
    value, result = differentiated(cached, batch())
    assert torch.allclose(value, loss, rtol=1e-12, atol=1e-12)
    assert result.keys() == expected_values.keys()
    for weight, gradient in expected_values.items():
        assert torch.allclose(result[weight], gradient, rtol=1e-10, atol=1e-12), weight


def test_dropout_is_the_same_in_both_passes() -> None:
    """The loss of what the first pass drew, differentiated by plain autograd through the same draws."""
    views = batch()
    method = nf.Method(
        nf.Shared(network(dropout=0.5)),
        nf.Cosine(0.2),
        nf.InBatch("one"),
        nf.Everyone(),
        nf.InfoNCE(),
        encoding=Encoding(chunk=CHUNK),
    )
    torch.manual_seed(7)
    value, result = differentiated(method, views)
    reference = network(dropout=0.5)
    torch.manual_seed(7)
    parts = [reference(torch.cat(part.views)).chunk(2) for part in chunks(views, CHUNK)]
    first, second = (F.normalize(torch.cat(view), dim=1) for view in zip(*parts, strict=True))
    scores = first @ second.T / 0.2
    own_ids = torch.arange(ROWS)
    loss = (F.cross_entropy(scores, own_ids) + F.cross_entropy(scores.T, own_ids)) / 2
    loss.backward()
    assert torch.allclose(value, loss, rtol=1e-12)
    for (name, weight), gradient in zip(reference.named_parameters(), result.values(), strict=True):
        assert weight.grad is not None
        assert torch.allclose(gradient, weight.grad, rtol=1e-10, atol=1e-12), name


def test_running_statistics_move_once() -> None:
    """Chunks count equally. Neither forward nor backward, which encodes again, writes to a buffer."""
    net = network(norm=True)
    method = nf.Method(
        nf.Shared(net),
        nf.Cosine(0.2),
        nf.InBatch(),
        nf.Everyone(),
        nf.InfoNCE(),
        encoding=Encoding(chunk=CHUNK),
    )
    initial = {name: stored.clone() for name, stored in net.named_buffers()}
    outcome = method(batch())
    outcome.loss.backward()
    assert all(torch.equal(stored, initial[name]) for name, stored in net.named_buffers())
    method.advance(outcome)
    linear, norm = net[0], net[1]  # type: ignore[index]
    means = torch.stack([linear(torch.cat(part.views)).mean(dim=0) for part in chunks(batch(), CHUNK)])
    assert torch.allclose(norm.running_mean, 0.1 * means.mean(dim=0), rtol=1e-12)
    assert int(norm.num_batches_tracked) == 1


def test_only_embeddings_of_a_chunk_are_saved() -> None:
    """What autograd saves grows with the network's width without chunks, and does not grow with chunks."""

    def saved_elements(chunk: int | None) -> int:
        stored = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal stored
            stored += tensor.numel() * (tensor.grad_fn is not None)  # no weights, no inputs
            return tensor

        wide_net = nn.Sequential(nn.Linear(WIDTH, 4096), nn.Tanh(), nn.Linear(4096, 4)).double()
        method = nf.Method(
            nf.Shared(wide_net),
            nf.Cosine(0.2),
            nf.InBatch(),
            nf.Everyone(),
            nf.InfoNCE(),
            encoding=Encoding(chunk=chunk),
        )
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            method(batch())
        return stored

    assert saved_elements(None) > 2 * ROWS * 4096
    assert saved_elements(CHUNK) < 4096


def by_norm(norm: bool, encoding: Encoding) -> nf.Method:
    return nf.Method(
        nf.Shared(network(norm=norm)),
        nf.Cosine(0.2),
        nf.InBatch(),
        nf.Everyone(),
        nf.MultiLabelCPC(0.5),
        encoding=encoding,
    )


def one_rank(rank: int, folder: str) -> None:
    """A step of two ranks: in chunks without batch norm, and with batch norm of each rank's rows."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    strategy = join()
    own_ids = batch().rows(slice(rank * ROWS // 2, (rank + 1) * ROWS // 2))
    result = {}
    for name, method in {
        "chunks": by_norm(False, Encoding(strategy, chunk=2)),
        "per-rank": by_norm(True, Encoding(strategy, "per-rank")),
    }.items():
        outcome = method(own_ids)
        outcome.loss.backward()
        strategy.average_gradients(method.parameters())
        method.advance(outcome)
        gradients = {weight: p.grad for weight, p in method.named_parameters()}
        result[name] = {"loss": outcome.loss.detach(), **gradients, **dict(method.named_buffers())}
    if strategy.is_first:
        torch.save(result, Path(folder) / "found.pt")
    strategy.barrier()
    dist.destroy_process_group()


def test_two_ranks_in_chunks_equal_one_process(tmp_path: Path) -> None:
    """Chunks on each rank equal one process. With batch norm per rank, they equal one process with the ranks'
    slices as chunks; running statistics are averaged."""
    start(2, one_rank, str(tmp_path))
    result = torch.load(tmp_path / "found.pt", weights_only=True)
    for name, single in {
        "chunks": by_norm(False, Encoding()),
        "per-rank": by_norm(True, Encoding(chunk=ROWS // 2)),
    }.items():
        outcome = single(batch())
        outcome.loss.backward()
        single.advance(outcome)
        expected_values = {"loss": outcome.loss.detach(), **{w: p.grad for w, p in single.named_parameters()}}
        expected_values |= dict(single.named_buffers())
        assert result[name].keys() == expected_values.keys()
        for key, tensor in expected_values.items():
            assert torch.allclose(result[name][key], tensor, rtol=1e-10, atol=1e-12), (name, key)


def test_parts_are_of_almost_equal_size() -> None:
    sizes = [len(part.index) for part in chunks(batch(), 4)]
    assert sum(sizes) == ROWS
    assert max(sizes) <= 4
    assert max(sizes) - min(sizes) <= 1


# --------------------------------------------------------------------------------------- blocks computed again


def stacked(*, inplace: bool = False) -> nn.Module:
    """Three blocks with batch norm and dropout between two plain layers."""
    torch.manual_seed(3)
    blocks = [
        nn.Sequential(
            nn.ReLU(inplace) if inplace else nn.Identity(),
            nn.Linear(8, 8),
            nn.BatchNorm1d(8),
            nn.Tanh(),
            nn.Dropout(0.3),
        )
        for _ in range(3)
    ]
    return nn.Sequential(nn.Linear(WIDTH, 8), *blocks, nn.Linear(8, 4)).double()


def stacked_method(encoding: Encoding, *, inplace: bool = False) -> nf.Method:
    parts = (nf.Cosine(0.2), nf.InBatch(), nf.Everyone(), nf.InfoNCE())
    return nf.Method(nf.Shared(stacked(inplace=inplace)), *parts, encoding=encoding)


@pytest.mark.parametrize("chunk", [None, 5])
def test_blocks_computed_again_change_no_bit(chunk: int | None) -> None:
    """Loss, gradient and buffers; dropout draws the same numbers, and backward moves no running statistics."""
    outcomes, saved = [], []
    for recompute in (False, True):
        method = stacked_method(Encoding(chunk=chunk, recompute=recompute))
        buffers = {name: buffer.clone() for name, buffer in method.named_buffers()}
        torch.manual_seed(7)
        with saved_storages() as sizes:
            loss, gradients = differentiated(method, batch())
        saved.append(sum(sizes.values()))
        assert all(torch.equal(buffer, buffers[name]) for name, buffer in method.named_buffers())
        torch.manual_seed(7)
        method.advance(method(batch()))
        outcomes.append({"loss": loss, **gradients, **dict(method.named_buffers())})
    assert outcomes[0].keys() == outcomes[1].keys()
    for name, value in outcomes[0].items():
        assert torch.equal(outcomes[1][name], value), name
    if chunk is None:  # autograd stores four numbers per unit and block, and here one
        assert saved[1] < saved[0]


def test_a_block_that_overwrites_its_input_is_not_computed_again() -> None:
    differentiated(stacked_method(Encoding(), inplace=True), batch())
    with pytest.raises(nf.UserError, match="changes its input in place and could not be computed again"):
        differentiated(stacked_method(Encoding(recompute=True), inplace=True), batch())


def test_blocks_are_those_of_the_innermost_lists() -> None:
    assert len(blocks_of(stacked())) == 3
    assert len(blocks_of(backbone("resnet18"))) == 8
    assert (
        len(blocks_of(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1), 5, enable_nested_tensor=False)))
        == 5
    )
    assert len(blocks_of(nn.ModuleList([stacked(), stacked()]))) == 6
    assert blocks_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []
