"""Every selection × source × bound: value and gradient equal a slow float64 reference. Training stays finite
and resumes exactly."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearfar.core.abstract import AbstractBound, AbstractNegatives, AbstractSelection
from nearfar.core.method import Method
from nearfar.core.schedules import START, Progress
from nearfar.core.scores import EMPTY, UNKNOWN
from nearfar.core.types import Batch
from nearfar.parts.bounds import AlphaCPC, InfoNCE, MultiLabelCPC, NPair
from nearfar.parts.critics import Cosine
from nearfar.parts.encoders import Shared
from nearfar.parts.negatives import Bank, InBatch, Queue
from nearfar.parts.selections import Accept, Ball, Cave, Everyone, Group, Neighbours, Ring

N, DIM, INSTANCES, TEMPERATURE = 8, 4, 24, 0.5
COARSE = [[(7 * i) % 3 if i % 8 != 5 else -1 for i in range(INSTANCES)]]
FINE = [
    [(5 * i) % 7 if i % 8 != 5 else -1 for i in range(INSTANCES)],
    [(i * i) % 5 if i % 8 != 5 else -1 for i in range(INSTANCES)],
]


@dataclass(frozen=True)
class AnchorSituation:
    """One anchor's situation, in plain Python."""

    instance: int
    ids: list[int]
    order: list[int]  # its strangers in rising order of similarity

    def same_cluster(self, j: int, runs: Sequence[Sequence[int]]) -> bool:
        if self.ids[j] < 0:
            return False
        return any(run[self.instance] == run[self.ids[j]] != -1 for run in runs)

    def close(self, subset: Sequence[int]) -> set[int]:
        return {j for j in subset if self.same_cluster(j, FINE)}


def places(order: list[int], lower: float, upper: float) -> tuple[int, int]:
    first = min(round(lower * len(order)), len(order) - 1)
    return first, max(round(upper * len(order)), first + 1)


def ring(observed: AnchorSituation, lower: float, upper: float) -> tuple[set[int], set[int]]:
    first, last = places(observed.order, lower, upper)
    return set(), set(observed.order[first:last])


def cave(observed: AnchorSituation, with_close: bool) -> tuple[set[int], set[int]]:
    inside = {j for j in observed.order if observed.same_cluster(j, COARSE)}
    close = observed.close(sorted(inside)) if with_close else set()
    return close, (inside - close) or (set(observed.order) - close)


def neighbours(
    observed: AnchorSituation, lower: float, upper: float, background: int | None = None, pull: bool = True
) -> tuple[set[int], set[int]]:
    if FINE[0][observed.instance] == -1:
        return set(), set(observed.order)
    first, last = places(observed.order, lower, upper)
    first = first if background is None else max(first, last - background)
    close = observed.close(observed.order[first:])
    return (close if pull else set()), set(observed.order[first:last]) - close


def cave_part(close: int | None) -> Cave:
    part = Cave(3, close=close, runs=2, instances=INSTANCES)
    part.cave.ids = torch.tensor(COARSE, dtype=torch.int32)
    if part.close is not None:
        part.close.ids = torch.tensor(FINE, dtype=torch.int32)
    return part


def neighbours_part(**settings: object) -> Neighbours:
    part = Neighbours(clusters=7, runs=2, instances=INSTANCES, **settings)  # type: ignore[arg-type]
    part.close.ids = torch.tensor(FINE, dtype=torch.int32)
    return part


def group_part() -> Group:
    part = Group(instances=INSTANCES)
    part.assign(torch.tensor(COARSE[0]))
    return part


Reference = Callable[[AnchorSituation], tuple[set[int], set[int]]]
SELECTIONS: dict[str, tuple[Callable[[], AbstractSelection], Reference]] = {
    "everyone": (Everyone, lambda seen: (set(), set(seen.order))),
    "ball": (lambda: Ball(0.4), lambda seen: ring(seen, 0.4, 1.0)),
    "ring": (lambda: Ring(0.2, 0.8), lambda seen: ring(seen, 0.2, 0.8)),
    "cave": (lambda: cave_part(None), lambda seen: cave(seen, False)),
    "cave +C_i": (lambda: cave_part(7), lambda seen: cave(seen, True)),
    "group": (group_part, lambda seen: cave(seen, False)),
    # random acceptance has its own tests (test_selections_accept); accepting always is deterministic
    "accept": (lambda: Accept(least=1.0).double(), lambda seen: (set(), set(seen.order))),
    "la": (
        lambda: neighbours_part(background=5, lower=0.0),
        lambda seen: neighbours(seen, 0.0, 1.0, background=5),
    ),
    "ring +C_i": (
        lambda: neighbours_part(lower=0.2, upper=0.7),
        lambda seen: neighbours(seen, 0.2, 0.7),
    ),
    "annulus": (
        lambda: neighbours_part(lower=0.3, keep="annulus"),
        lambda seen: neighbours(seen, 0.3, 1.0, pull=False),
    ),
}


def unit(rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, DIM, generator=generator, dtype=torch.float64), dim=1)


def make_queue() -> Queue:
    queue = Queue(20, dim=DIM).double()
    stored = torch.tensor([UNKNOWN, 1, 5, *range(8, 22), 3])
    queue.advance({0: unit(len(stored), 5)}, stored, START)  # two places stay empty
    return queue


def make_bank() -> Bank:
    bank = Bank(INSTANCES, dim=DIM, views=2).double()
    filled = torch.arange(INSTANCES - 2)
    bank.advance({0: unit(len(filled), 6), 1: unit(len(filled), 7)}, filled, START)
    return bank


SOURCES: dict[str, Callable[[], AbstractNegatives]] = {
    "batch": InBatch,
    "queue": make_queue,
    "bank": make_bank,
}
BOUNDS: dict[str, AbstractBound] = {
    "infonce": InfoNCE(),
    "alpha-cpc": AlphaCPC(0.4),
    "ml-cpc": MultiLabelCPC(0.4),
    "npair": NPair(),
}


def by_hand(bound: str, terms: list[tuple[Tensor, Tensor, int]]) -> Tensor:
    """The bound's equation from (e^positive, sum of e^negative, number of negatives) of each anchor."""
    alpha = 0.4
    if bound == "ml-cpc":
        count = sum(k for _, _, k in terms)
        total, n = len(terms) + count, len(terms)
        beta = (total - alpha * n) / count
        z = alpha * sum(p for p, _, _ in terms) + beta * sum(s for _, s, _ in terms)
        return sum(torch.log(total * p / z) for p, _, _ in terms) / n  # type: ignore[return-value]
    logs = []
    for p, s, k in terms:
        if bound == "alpha-cpc":
            logs.append(torch.log((1 + k) * p / (alpha * p + (1 + k - alpha) / max(k, 1) * s)))
        else:
            logs.append(torch.log((1 + k if bound == "infonce" else 1) * p / (p + s)))
    return torch.stack(logs).mean()


def slowly(
    bound: str, choose: Reference, source: AbstractNegatives, views: Sequence[Tensor], index: Tensor
) -> Tensor:
    anchors, keys = ([row / row.norm() for row in view] for view in views)
    positives = keys
    if isinstance(source, Bank):
        positives = [source.rows[1, i] for i in index]
        pool = list(zip(source.rows[1], source.index.tolist(), strict=True))
    elif isinstance(source, Queue):
        pool = list(zip(source.embedding, source.index.tolist(), strict=True))
    else:
        pool = list(zip(keys, index.tolist(), strict=True))
    terms = []
    for u, v, own_ids in zip(anchors, positives, index.tolist(), strict=True):
        weights = [torch.exp(u @ w / TEMPERATURE) for w, _ in pool]
        foreign = [j for j, (_, i) in enumerate(pool) if i not in (own_ids, EMPTY)]
        order = sorted(foreign, key=lambda j: (float(weights[j].detach()), j))
        close, negatives = choose(AnchorSituation(own_ids, [i for _, i in pool], order))
        p = torch.exp(u @ v / TEMPERATURE) + sum(weights[j] for j in close)
        s = sum((weights[j] for j in negatives), torch.zeros((), dtype=torch.float64))
        terms.append((p, s, len(negatives)))
    return by_hand(bound, terms)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_value_and_gradient_equal_a_slow_reference(selection: str, source: str, bound: str) -> None:
    part, choose = SELECTIONS[selection]
    stored = SOURCES[source]()
    method = Method(
        Shared(nn.Identity()), Cosine(TEMPERATURE), stored, part(), BOUNDS[bound], symmetric=False
    )
    generator = torch.Generator().manual_seed(3)
    views = [torch.randn(N, DIM, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    index = torch.arange(N)
    outcome = method(Batch(tuple(views), index))
    expected_values = slowly(bound, choose, stored, views, index)
    result = (outcome.ceiling or 0.0) - outcome.loss
    torch.testing.assert_close(result, expected_values, rtol=1e-9, atol=1e-9)
    got, expected = (
        torch.autograd.grad(value, views, allow_unused=True, materialize_grads=True)
        for value in (result, expected_values)
    )
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)


def build_method(selection: str, source: str, bound: str) -> Method:
    torch.manual_seed(0)
    part = Accept(least=0.3).double() if selection == "accept" else SELECTIONS[selection][0]()
    return Method(Shared(nn.Linear(6, DIM).double()), Cosine(0.2), SOURCES[source](), part, BOUNDS[bound])


PICTURES = torch.randn(INSTANCES, 6, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def trained(method: Method, steps: range) -> None:
    for step in steps:
        progress = Progress(step, 20, 5)
        torch.manual_seed(step)  # as the loop does
        method.refresh(lambda: method.embed(PICTURES), progress)
        index = torch.randperm(INSTANCES, generator=torch.Generator().manual_seed(step))[:N]
        noise = torch.randn(2, N, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        outcome = method(Batch(tuple(PICTURES[index] + 0.3 * noise), index), progress)
        method.zero_grad()
        outcome.loss.backward()
        assert math.isfinite(float(outcome.loss.detach()))
        with torch.no_grad():
            for parameter in method.parameters():
                assert parameter.grad is not None
                assert torch.isfinite(parameter.grad).all()
                parameter.sub_(0.1 * parameter.grad)
        method.advance(outcome, progress)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_twenty_steps_stay_finite_and_resume_bit_equal(selection: str, source: str) -> None:
    for bound in BOUNDS:
        full = build_method(selection, source, bound)
        trained(full, range(12))
        midway = copy.deepcopy(full.state_dict())  # in the midst of an epoch
        trained(full, range(12, 20))
        if bound != "ml-cpc":
            continue  # no state of a bound's own: one resumption tells for all
        resumed = build_method(selection, source, bound)
        resumed.load_state_dict(midway)
        trained(resumed, range(12, 20))
        expected, result = full.state_dict(), resumed.state_dict()
        assert [name for name in expected if not torch.equal(expected[name], result[name])] == []
