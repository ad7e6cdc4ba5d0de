"""Where candidates live: who is among them, what is remembered, and that only `advance` changes it."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import nearfar as nf
from nearfar.core.abstract import AbstractCritic
from nearfar.core.schedules import START, Progress, linear
from nearfar.core.scores import EMPTY
from nearfar.errors import UserError
from nearfar.parts.encoders import PerView, Shared
from nearfar.parts.negatives import Bank, InBatch, NoNegatives, Queue, Support


def unit(n: int, dim: int = 4, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


@given(n=st.integers(1, 9), views=st.integers(1, 4))
@settings(deadline=None, max_examples=20)
def test_in_batch_counts(n: int, views: int) -> None:
    """Both views of the others: V(N - 1) negatives, 2N - 2 for SimCLR; one view: N - 1."""
    keys, index = {v: unit(n, seed=v) for v in range(views)}, torch.arange(n) + 100
    pair = InBatch("both").candidates(keys, index, 0).negative_mask(index).sum(1)
    one = InBatch("one").candidates(keys, index, 0).negative_mask(index).sum(1)
    assert (pair == views * (n - 1)).all()
    assert (one == n - 1).all()
    assert InBatch("both").sampling(n, views).negatives == views * (n - 1)
    assert InBatch("one").sampling(n, views).negatives == n - 1
    assert InBatch("both").sampling(n, views).exchangeable is (views == 1)


def test_no_negatives_has_none() -> None:
    result = NoNegatives().candidates({0: unit(3)}, torch.arange(3), 0)
    assert result.embedding.shape == (0, 4)
    assert result.negative_mask(torch.arange(3)).shape == (3, 0)


@given(size=st.integers(1, 12), pushes=st.lists(st.integers(0, 12), max_size=8))
@settings(deadline=None, max_examples=60)
def test_queue_holds_the_last_keys_in_wrapping_order(size: int, pushes: list[int]) -> None:
    """Equal to a list of everything ever pushed, cut to its last `size`, whatever the batch sizes."""
    queue, history, given_ids = Queue(size, dim=2), [], 0
    for count in (p for p in pushes if p <= size):
        ids = torch.arange(given_ids, given_ids + count)
        queue.advance({0: torch.stack([ids, -ids], 1).float()}, ids, START)
        history += ids.tolist()
        given_ids += count
    mask = queue.candidates({}, torch.tensor([0]), 0)
    stored = mask.index[mask.index != EMPTY]
    assert sorted(stored.tolist()) == sorted(history[-size:])
    torch.testing.assert_close(mask.embedding[mask.index != EMPTY][:, 0], stored.float())


def test_queue_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(UserError, match=r"Queue\(size=4\) is smaller than the batch of 5"):
        Queue(4, dim=4).advance({0: unit(5)}, torch.arange(5), START)


def test_queue_excludes_the_earlier_key_of_the_anchor_and_empty_slots() -> None:
    queue = Queue(6, dim=4)
    queue.advance({0: unit(4)}, torch.tensor([7, 8, 9, 10]), START)
    foreign = queue.candidates({}, torch.tensor([8]), 0).negative_mask(torch.tensor([8, 50]))
    assert foreign.tolist() == [[True, False, True, True, False, False], [True] * 4 + [False] * 2]


@given(momentum=st.floats(0, 0.99), seed=st.integers(0, 100))
@settings(deadline=None, max_examples=30)
def test_bank_rows_move_as_written(momentum: float, seed: int) -> None:
    """M[i] <- normalise(m M[i] + (1 - m) z_i) (Wu et al. 2020, sec. 5); first sight stores z_i itself."""
    bank = Bank(10, momentum, dim=4)
    index = torch.tensor([3, 1])
    first, second = unit(2, seed=seed), unit(2, seed=seed + 1)
    bank.advance({0: first}, index, START)
    torch.testing.assert_close(bank.positive({}, index, 0), first)
    bank.advance({0: second}, index, START)
    expected = F.normalize(momentum * first + (1 - momentum) * second, dim=1)
    torch.testing.assert_close(bank.positive({}, index, 0), expected)
    assert bank.candidates({}, index, 0).negative_mask(index).sum(1).tolist() == [1, 1]


def test_bank_momentum_follows_a_schedule() -> None:
    bank = Bank(1, linear(0.0, 0.9), dim=2)
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    bank.advance({0: x}, torch.tensor([0]), START)
    bank.advance({0: y}, torch.tensor([0]), Progress(step=100, steps=100))
    torch.testing.assert_close(bank.positive({}, torch.tensor([0]), 0), F.normalize(0.9 * x + 0.1 * y, dim=1))


@given(momentum=st.floats(0, 0.95), seed=st.integers(0, 100), updates=st.integers(1, 6))
@settings(deadline=None, max_examples=30)
def test_a_bank_row_is_a_weighted_sum_of_past_views(momentum: float, seed: int, updates: int) -> None:
    """Wu et al. 2020, Eq. 9-11: a row is a sum over past views with weights that fall with their age, and the score is
    its product with the present view. The weight of an update j is (1 - m) m^age, over the norms of all later sums, since
    every update is normalised; Eq. 9 prints m^age alone."""
    bank, index = Bank(3, momentum, dim=4).double(), torch.tensor([1])
    views = unit(updates, seed=seed).double()
    weights = torch.zeros(updates, dtype=torch.float64)
    for j, view in enumerate(views):
        bank.advance({0: view[None]}, index, START)
        weights = momentum * weights if j else weights
        weights[j] = 1 - momentum if j else 1.0
        weights = weights / (weights @ views).norm()
    expected = weights @ views
    torch.testing.assert_close(bank.positive({}, index, 0)[0], expected)
    query = unit(1, seed=seed + 1).double()
    scores = (weights * (views @ query[0]) / 0.07).sum()
    torch.testing.assert_close(nf.Cosine(0.07).pairs(query, bank.positive({}, index, 0))[0], scores)


def test_bank_samples_that_many_rows_and_carries_their_ids() -> None:
    bank = Bank(50, sample=200, dim=4)
    bank.advance({0: unit(50)}, torch.arange(50), START)
    candidates = bank.candidates({}, torch.arange(2), 0)
    assert candidates.embedding.shape == (200, 4)
    torch.testing.assert_close(candidates.embedding, bank.rows[0, candidates.index])


def test_bank_draws_its_rows_uniformly() -> None:
    """Wu et al. 2021, Eq. 3: j ~ U(1, n). Each count is binomial; five standard deviations hold for all 20."""
    torch.manual_seed(0)
    bank = Bank(20, sample=40_000, dim=4)
    bank.advance({0: unit(20)}, torch.arange(20), START)
    counts = bank.candidates({}, torch.arange(2), 0).index.bincount(minlength=20)
    assert float((counts - 2000).abs().max()) < 5 * (40_000 * 0.05 * 0.95) ** 0.5


@pytest.mark.parametrize("source", [InBatch(), Queue(8, dim=4), Bank(20, dim=4), NoNegatives()])
def test_reading_candidates_changes_nothing(source: InBatch | Queue | Bank | NoNegatives) -> None:
    keys, index = {0: unit(4), 1: unit(4, seed=1)}, torch.arange(4)
    if isinstance(source, Bank):
        source = Bank(20, dim=4, views=2)
    source.advance(keys, index, START)
    stored = source.state_dict() if isinstance(source, torch.nn.Module) else {}
    initial = {name: tensor.clone() for name, tensor in stored.items()}
    source.positive(keys, index, 1)
    source.candidates(keys, index, 1)
    source.sampling(4, 2)
    assert all(torch.equal(initial[name], tensor) for name, tensor in stored.items())


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 2.0])
def test_bank_momentum_out_of_range(momentum: float) -> None:
    with pytest.raises(UserError, match=r"negatives\.momentum"):
        Bank(5, momentum)


@pytest.mark.parametrize("source", ["queue", "in-batch"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_keys_of_different_networks_are_never_mixed(source: str, symmetric: bool) -> None:
    """CMC's reading: an anchor whose positive is of network g is contrasted with g's keys alone."""
    networks = [torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)]
    negatives = Queue(24, dim=4) if source == "queue" else InBatch("both")
    method = nf.Method(
        PerView(networks), nf.Dot(), negatives, nf.Everyone(), nf.InfoNCE(), symmetric=symmetric
    )
    views = tuple(torch.randn(8, 3, generator=torch.Generator().manual_seed(v)) for v in (0, 1))
    batch = nf.Batch(views, torch.arange(8))
    for _ in range(4):
        method.advance(method(batch))
    for key in (0, 1) if symmetric else (1,):
        built = networks[key](views[key])
        stored = negatives.candidates({key: built}, batch.index, key)
        observed = stored.index >= 0
        assert int(observed.sum()) == (24 if source == "queue" else 8)
        torch.testing.assert_close(stored.embedding[observed], built[stored.index[observed]])
    expected = 24 if source == "queue" else 7
    assert method.certificate(8).ceiling == pytest.approx(math.log(1 + expected))
    # value of the last step, contrasted with keys of the positive's own network alone
    values = []
    for anchor, key in ((0, 1), (1, 0)) if symmetric else ((0, 1),):
        u, v = networks[anchor](views[anchor]), networks[key](views[key])
        f = u @ v.T
        rows = []
        for i in range(8):
            rest = [f[i, j] for j in range(8) if j != i for _ in range(3 if source == "queue" else 1)]
            rows.append(f[i, i] - torch.stack([f[i, i], *rest]).logsumexp(0) + math.log(1 + len(rest)))
        values.append(torch.stack(rows).mean())
    torch.testing.assert_close(method(batch).nats, torch.stack(values).mean().detach())


@pytest.mark.parametrize("critic", [nf.Dot(), nf.Distance(unit=False), nf.Bilinear(dim=4), nf.Cosine(0.1)])
def test_a_bank_keeps_vectors_as_its_critic_scores_them(critic: AbstractCritic) -> None:
    """M_i <- c M_i + (1 - c) v, at unit length where the critic scores unit vectors and only there."""
    net = torch.nn.Linear(3, 4)
    bank = Bank(8, momentum=0.25, dim=4)
    method = nf.Method(Shared(net), critic, bank, nf.Everyone(), nf.InfoNCE())
    first, second = (torch.randn(8, 3, generator=torch.Generator().manual_seed(v)) for v in (0, 1))
    method.prime(nf.Batch((first,), torch.arange(8)))
    rows = slice(2, 6)
    method.advance(method(nf.Batch((second[rows],), torch.arange(2, 6))))
    with torch.no_grad():
        expected = critic.prepare(net(first))
        expected[rows] = critic.prepare(0.25 * expected[rows] + 0.75 * critic.prepare(net(second[rows])))
    torch.testing.assert_close(bank.rows[0], expected)


def test_a_bank_for_another_number_of_views_is_refused() -> None:
    method = nf.Method(
        Shared(torch.nn.Linear(3, 4)), nf.Cosine(0.1), Bank(8, dim=4), nf.Everyone(), nf.InfoNCE()
    )
    with pytest.raises(UserError, match=r"Bank\(views=1\) was given keys of view 1"):
        method(nf.Batch((torch.randn(8, 3), torch.randn(8, 3)), torch.arange(8)))


def test_a_queue_has_room_for_all_views_of_a_step() -> None:
    with pytest.raises(UserError, match=r"Queue\(size=50\) is smaller than the batch of 50 in 2 views"):
        Queue(50).sampling(50, 2)
    Queue(100).sampling(50, 2)


def test_a_queue_in_use_is_not_emptied_for_another_method() -> None:
    queue = Queue(16, dim=4)
    queue.advance({0: unit(3)}, torch.arange(3), START)
    with pytest.raises(UserError, match="give it a queue of its own"):
        queue.setup(2, lambda key: key % 2, F.normalize)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InBatch("three"), "negatives.views was 'three'; expected one or both"),  # type: ignore[arg-type]
        (lambda: Queue("x"), "negatives.size was x"),  # type: ignore[arg-type]
        (lambda: Queue(8, dim=0), r"Queue\(dim=0\) holds no vectors"),
        (lambda: Bank(0), r"Bank\(size=0\) is not a number of rows"),
        (lambda: Bank(8, "x"), "negatives.momentum was 'x'"),  # type: ignore[arg-type]
        (lambda: nf.Cosine("x"), "temperature was 'x'"),  # type: ignore[arg-type]
        (lambda: nf.Momentum(torch.nn.Linear(1, 1), "x"), "encoders.momentum was 'x'"),  # type: ignore[arg-type]
        (lambda: nf.Cave(2.5), "selection.clusters was 2.5"),  # type: ignore[arg-type]
        (
            lambda: Queue(8, dim=4).advance({0: unit(3, dim=5)}, torch.arange(3), START),
            r"Queue\(dim=4\) was given keys of 5",
        ),
    ],
)
def test_bad_arguments_get_a_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_numpy_numbers_are_accepted() -> None:
    assert Queue(np.int64(8)).size == Bank(np.int64(8)).size == 8  # type: ignore[arg-type]
    assert nf.Cave(np.int64(4)).cave.clusters == 4  # type: ignore[arg-type]


MEMORIES: dict[str, Callable[[], torch.nn.Module]] = {
    "queue": lambda: nf.Queue(64),
    "bank": lambda: nf.Bank(32, views=2),
    "drawn bank": lambda: nf.Bank(32, sample=8, views=2),
    "support": lambda: Support(64),
}


def remembering(memory: str) -> nf.Method:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    negatives: Any = MEMORIES[memory]()
    return nf.Method(nf.Momentum(network, 0.9), nf.Cosine(0.5), negatives, nf.Everyone(), nf.InfoNCE())


def step(method: nf.Method, k: int, dtype: torch.dtype) -> float:
    draw = torch.Generator().manual_seed(k)
    index = torch.randperm(32, generator=draw)[:16]
    views = tuple(torch.randn(16, 5, generator=draw).to(dtype) for _ in range(2))
    torch.manual_seed(k)
    outcome = method(nf.Batch(views, index))
    outcome.loss.backward()
    with torch.no_grad():
        for weight in method.parameters():
            if weight.grad is not None:
                weight.sub_(weight.grad, alpha=0.1)
                weight.grad = None
    method.advance(outcome)
    return float(outcome.loss.detach())


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_memories_train_in_any_precision(memory: str, dtype: torch.dtype) -> None:
    """As in float32, to the precision of the coarser: a cosine over 0.5 moves by a few times 2^-8 in
    bfloat16."""
    reference, converted = remembering(memory), remembering(memory).to(dtype)
    tolerance = 1e-5 if dtype is torch.float64 else 16 * torch.finfo(dtype).eps
    for k in range(3):
        assert abs(step(reference, k, torch.float32) - step(converted, k, dtype)) < tolerance


@pytest.mark.parametrize("memory", MEMORIES)
def test_averages_made_before_the_first_step_follow_a_memory(memory: str) -> None:
    """A memory is as wide as its first keys, also in a copy. The average of one step is the model."""
    from torch.optim import swa_utils

    method = remembering(memory)
    averages = [
        swa_utils.AveragedModel(method, use_buffers=True),
        swa_utils.AveragedModel(method, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True),
    ]
    copied, restored = copy.deepcopy(method), pickle.loads(pickle.dumps(method))
    for k in range(3):
        step(method, k, torch.float32)
        for average in averages:
            average.update_parameters(method)
            if k == 0:
                average.module.load_state_dict(method.state_dict())
    for other in (copied, restored):
        other.load_state_dict(method.state_dict())
        for name, tensor in method.state_dict().items():
            assert torch.equal(other.state_dict()[name], tensor), name


def test_an_empty_copy_takes_keys_of_another_width() -> None:
    queue = nf.Queue(8)
    second = copy.deepcopy(queue)
    queue.advance({0: unit(4, 3)}, torch.arange(4), START)
    second.advance({0: unit(4, 5)}, torch.arange(4), START)
    assert (queue.dim, second.dim) == (3, 5)
    with pytest.raises(UserError, match="was given keys of 5 numbers"):
        queue.candidates({0: unit(4, 5)}, torch.arange(4), 0)
