"""Selections without assigned groups use the labels and groups of the batch; without any they refuse."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import nearfar as nf
from nearfar.core.abstract import AbstractBound, AbstractSelection
from nearfar.core.encoding import DEFAULT_ENCODING, Encoding
from nearfar.distributed.strategy import join
from nearfar.losses import SupConLoss
from nearfar.train.equality import start

ROWS, DIM, INSTANCES = 12, 5, 40
INDEX = torch.randperm(INSTANCES, generator=torch.Generator().manual_seed(2))[:ROWS]
LABELS = torch.arange(ROWS) % 3 - 1  # some are not known
PARTS: dict[str, tuple[Callable[[], AbstractSelection], AbstractBound]] = {
    "labelled": (nf.Labelled, nf.SupCon()),
    "labelled, by session": (lambda: nf.Labelled("session"), nf.SupCon()),
    "others": (nf.Others, nf.InfoNCE()),
    "group": (lambda: nf.Group("session"), nf.InfoNCE()),
    "chain": (lambda: nf.Chain(nf.Labelled(), nf.Ring(0.1, 0.9)), nf.SupCon()),
}


def views() -> tuple[Tensor, Tensor]:
    first, second = torch.randn(2, ROWS, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return first, second


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(DIM, DIM).double()


def batch(labels: Tensor = LABELS) -> nf.Batch:
    return nf.Batch(views(), INDEX, labels=labels, groups={"session": labels})


def method(name: str, chunk: int | None = None, encoding: Encoding = DEFAULT_ENCODING) -> nf.Method:
    selection, bound = PARTS[name]
    parts = (nf.Cosine(0.1), nf.InBatch(), selection(), bound)
    return nf.Method(network(), *parts, chunk=chunk, encoding=encoding)


@pytest.mark.parametrize(
    "labels", [torch.arange(ROWS) % 2, torch.arange(ROWS) // 5, torch.zeros(ROWS).long()]
)
def test_labels_of_the_batch_give_the_supervised_loss(labels: Tensor) -> None:
    parts = (nf.Cosine(0.1), nf.InBatch("both"), nf.Labelled(), nf.SupCon())
    loss = nf.Method(nn.Identity(), *parts)(nf.Batch(views(), INDEX, labels=labels)).loss
    expected = SupConLoss(0.1)(torch.cat(views()), labels.repeat(2))
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("name", PARTS)
def test_groups_of_the_batch_equal_assigned_ones(name: str, chunk: int | None) -> None:
    by_batch, by_instance = method(name, chunk), method(name)
    numbers = torch.full((INSTANCES,), -1)
    numbers[INDEX] = LABELS
    for part in by_instance.selections:
        if part.group_by is not None:
            part.assign(numbers)
    # assigned groups override those of the batch
    expected = by_instance(batch(torch.zeros(ROWS).long())).loss
    torch.testing.assert_close(by_batch(batch()).loss, expected, rtol=1e-10, atol=1e-12)
    assert not torch.isclose(by_batch(batch(torch.arange(ROWS))).loss, expected)


def one_rank(rank: int, folder: str) -> None:
    """The loss of unequal parts of the batch, and its gradient."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    strategy = join()
    mine = batch().rows(slice(0, 5) if rank == 0 else slice(5, ROWS))
    results = {}
    for name in PARTS:
        by_rank = method(name, encoding=Encoding(strategy))
        outcome = by_rank(mine)
        outcome.loss.backward()
        strategy.average_gradients(by_rank.parameters())
        results[name] = [outcome.loss.detach(), *(weight.grad for weight in by_rank.parameters())]
    if strategy.is_first:
        torch.save(results, Path(folder) / "results.pt")
    strategy.barrier()
    dist.destroy_process_group()


def test_two_ranks_gather_the_groups_of_their_batches(tmp_path: Path) -> None:
    start(2, one_rank, str(tmp_path))
    results = torch.load(tmp_path / "results.pt", weights_only=True)
    for name in PARTS:
        single = method(name)
        outcome = single(batch())
        outcome.loss.backward()
        expected = [outcome.loss.detach(), *(weight.grad for weight in single.parameters())]
        for ours, theirs in zip(results[name], expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["labelled", "labelled, by session", "group", "chain"])
def test_a_batch_without_labels_or_groups_is_refused(name: str) -> None:
    with pytest.raises(
        nf.UserError, match=r"needs the (label|session) of every instance: pass (labels|groups)"
    ):
        method(name)(nf.Batch(views(), INDEX))


def test_others_keeps_every_candidate_without_classes() -> None:
    parts = (nf.Cosine(0.1), nf.InBatch(), nf.Everyone(), nf.InfoNCE())
    expected = nf.Method(network(), *parts)(batch()).loss
    torch.testing.assert_close(method("others")(nf.Batch(views(), INDEX)).loss, expected)


def test_others_warns_where_no_instance_has_a_label() -> None:
    for labels, warns in (([-1, -1, -1], True), ([-1, 2, -1], False)):
        selection = PARTS["others"][0]()
        selection.assign(torch.tensor(labels))
        assert (selection.startup_warning() is not None) is warns


def test_candidates_of_earlier_batches_need_assigned_labels() -> None:
    queue = nf.Queue(2 * ROWS, dim=DIM)
    with_queue = nf.Method(network().float(), nf.Cosine(0.1), queue, nf.Labelled(), nf.SupCon())
    first = nf.Batch(tuple(view.float() for view in views()), INDEX, labels=LABELS)
    with_queue.advance(with_queue(first))
    later = nf.Batch(first.views, (INDEX + 1) % INSTANCES, labels=LABELS)
    with pytest.raises(nf.UserError, match="candidates are of earlier batches"):
        with_queue(later)


@pytest.mark.parametrize("part", [nf.Cave, nf.Group, nf.Labelled, nf.Others, nf.Neighbours])
def test_group_selections_need_a_context(part: Callable[[], nn.Module]) -> None:
    with pytest.raises(nf.UserError, match=f"{part.__name__} selects by instance and needs a context"):
        part()(nf.dense_scores(*views()))
