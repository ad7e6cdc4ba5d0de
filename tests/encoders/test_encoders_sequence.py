"""CPC: the loss equals loops written from Liu 2022, Eq. 25-28; identities, padding, features after
training."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nearfar.core.method import Method
from nearfar.core.schedules import START
from nearfar.core.types import Batch
from nearfar.errors import UserError
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.critics import Dot
from nearfar.parts.encoders.sequence import ConvGRU, Predictive
from nearfar.parts.negatives import Bank, InBatch, Queue
from nearfar.parts.selections import Cave, Everyone, Group

HOP = 2 * 2 * 1 * 1 * 1
SMALL: dict[str, Any] = {
    "width": 5,
    "context": 7,
    "steps": 3,
    "strides": (2, 2, 1, 1, 1),
    "samples": 9 * HOP,
    "instances": 40,
}
SPEAKERS = torch.tensor([0, 0, 1, 0, 1, 1] + [0] * 34)


def role(**changed: Any) -> Predictive:
    torch.manual_seed(0)
    return Predictive(**{**SMALL, **changed}).double()


def sound(lengths: list[int], time: int = 9 * HOP, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    wave = torch.randn(len(lengths), time, generator=generator, dtype=torch.float64)
    real = torch.arange(time)[None] < torch.tensor(lengths)[:, None]
    return torch.stack([wave * real, real.double()], dim=1)


LENGTHS = [36, 36, 20, 33, 17, 36]  # frames of four samples: 9, 9, 5, 9, 5, 9


@torch.no_grad()
def slow_loss(encoders: Predictive, waves: Tensor, who: list[int], kind: str) -> float:
    """Every step ahead, recording and frame in turn: -log of the positive's share of the sum over it and its
    negatives, averaged over the frames of a step, then over steps. Liu 2022, Eq. 25 with f of Eq. 28."""
    z, _ = encoders.listener.frames(waves)
    c = encoders.listener.contexts(z)
    frames = [math.ceil(length / HOP) for length in LENGTHS]
    total = 0.0
    for k in range(1, encoders.steps + 1):
        weight: Any = encoders.predictors[k - 1].weight
        losses = []
        for i, count in enumerate(frames):
            for t in range(count - k):
                requested = weight @ c[i, t]
                positive = float(requested @ z[i, t + k])
                negatives = []
                for j, rest in enumerate(frames):
                    for s in range(k, rest):
                        if kind == "sequences" and j == i:
                            continue
                        if kind == "times" and (j, s) == (i, t + k):
                            continue
                        if kind == "speaker" and (j == i or SPEAKERS[who[j]] != SPEAKERS[who[i]]):
                            continue
                        if kind == "self" and (j != i or s == t + k):
                            continue
                        negatives.append(float(requested @ z[j, s]))
                losses.append(math.log(sum(math.exp(f) for f in [positive, *negatives])) - positive)
                losses[-1] -= math.log(1 + len(negatives))
        total += sum(losses) / len(losses) / encoders.steps
    return total


@pytest.mark.parametrize("assigned", [True, False])
@pytest.mark.parametrize("kind", ["sequences", "times", "speaker", "self"])
def test_the_value_is_liu_2022_eq_25_for_every_frame_step_and_kind_of_negative(
    kind: str, assigned: bool
) -> None:
    encoders = role(others="times" if kind in ("times", "self") else "sequences")
    selection: Any = Everyone()
    if kind in ("speaker", "self"):
        selection = Group("any" if assigned else kind, instances=40)
    if isinstance(selection, Group) and assigned:
        selection.assign(SPEAKERS if kind == "speaker" else torch.arange(40))
    method = Method(encoders, Dot(), InBatch(views="one"), selection, InfoNCE())
    who = [0, 1, 2, 3, 4, 5]
    batch = Batch((sound(LENGTHS),), torch.tensor(who), groups={"speaker": SPEAKERS[who]})
    outcome = method.train()(batch)
    assert outcome.nats is not None
    assert float(outcome.nats) == pytest.approx(-slow_loss(encoders, batch.views[0], who, kind), abs=1e-9)


def test_gradients_reach_every_weight() -> None:
    method = Method(role(), Dot(), InBatch(views="one"), Everyone(), InfoNCE())
    outcome = method.train()(Batch((sound(LENGTHS),), torch.arange(6)))
    outcome.loss.backward()
    assert [
        name for name, p in method.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
    ] == []


@pytest.mark.parametrize("negatives", ["sequences", "times"])
def test_the_ceiling_is_the_number_of_negatives_of_full_windows_and_no_value_exceeds_it(
    negatives: str,
) -> None:
    encoders = role(others=negatives)
    method = Method(encoders, Dot(), InBatch(views="one"), Everyone(), InfoNCE())
    full = Batch((sound([36] * 4),), torch.arange(4))
    certificate = method.certificate(4, 1)
    counts = []
    for k in range(1, 4):
        encoded = encoders.encode(full, (k,), (k,))
        scores, _ = method.score(encoded, full.index, k, k, START)
        assert scores.negative.count().unique().numel() == 1
        counts.append(1 + float(scores.negative.count()[0]))
    assert certificate.ceiling == pytest.approx(np.mean(np.log(counts)))
    assert certificate.status == "not covered"
    assert "not independent draws" in certificate.condition


def test_one_row_for_each_recording_is_covered() -> None:
    """A window of two frames predicts one frame from one: pairs are independent, so InfoNCE is proven."""
    encoders = role(steps=1, samples=2 * HOP)
    method = Method(encoders, Dot(), InBatch(views="one"), Everyone(), InfoNCE())
    assert method.eval().certificate(16, 1, held_out=True).status == "proven"
    encoders = role(steps=1, samples=3 * HOP)
    method = Method(encoders, Dot(), InBatch(views="one"), Everyone(), InfoNCE())
    assert method.eval().certificate(16, 1, held_out=True).status == "not covered"


def test_frames_and_features_do_not_depend_on_padding_or_the_batch() -> None:
    listener = role().listener.eval()
    short, long = sound([20], 20, seed=3), sound([36], 36, seed=4)
    joint = torch.zeros(2, 2, 52, dtype=torch.float64)
    joint[0, :, :20], joint[1, :, :36] = short[0], long[0]
    for pooling in ("mean", "moments"):
        listener.pooling = pooling
        single = torch.cat([listener(short), listener(long)]).detach().numpy()
        assert listener(joint).detach().numpy() == pytest.approx(single, abs=1e-12)
    assert single.shape == (2, 2 * (5 + 7))


def test_features_are_moments_over_true_frames_only() -> None:
    listener = role(pooling="moments").listener.eval()
    waves = sound([18, 36])
    z, real = listener.frames(waves)
    assert real.sum(dim=1).tolist() == [5, 9]  # ceil(18 / 4), ceil(36 / 4)
    pair = torch.cat([z, listener.contexts(z)], dim=2)[0, :5]
    expected = torch.cat([pair.mean(0), pair.std(0, correction=0)])
    assert listener(waves)[0].detach().numpy() == pytest.approx(expected.detach().numpy(), abs=1e-12)


def test_features_are_z_c_or_both() -> None:
    both, z, c = (role(features=features).listener.eval() for features in ("both", "z", "c"))
    for part in (z, c):
        part.load_state_dict(both.state_dict())
    waves = sound([18, 36])
    assert [part(waves).shape[1] for part in (both, z, c)] == [both.dim, z.dim, c.dim]
    torch.testing.assert_close(torch.cat([z(waves), c(waves)], dim=1), both(waves))
    with pytest.raises(UserError, match=r"encoders\.features was"):
        role(features="w")


def test_context_sees_the_past_only() -> None:
    """Otherwise predicting would be copying."""
    listener = role().listener.eval()
    waves = sound([36])
    changed = waves.clone()
    changed[0, 0, 24:] += 1.0
    initial, final = (listener.contexts(listener.frames(x)[0])[0] for x in (waves, changed))
    same = (initial - final).abs().amax(dim=1) == 0
    # the convolutions look about five frames around their own; far before the change nothing may differ
    assert same[:2].all()
    assert not same[6:].any()


def test_instance_ids_of_frames() -> None:
    batch = Batch((sound([36, 20]),), torch.tensor([31, 7]))
    by_sequence = role().encode(batch, (2,), (2,)).index[2]
    assert by_sequence.tolist() == [31] * 7 + [7] * 3
    by_time = role(others="times").encode(batch, (2,), (2,)).index[2]
    assert by_time.tolist() == [31 + 40 * t for t in range(2, 9)] + [7 + 40 * t for t in range(2, 5)]
    assert len(set(by_time.tolist())) == 10
    assert role().encode(batch, (), (1,)).index[1].tolist() == [31] * 8 + [7] * 4


def test_a_queue_holds_the_frames_of_each_step_ahead_once() -> None:
    """Frames 2 ahead of one frame are mostly 1 ahead of another: in one queue they would be duplicates."""
    method = Method(role(), Dot(), Queue(64, dim=5), Everyone(), InfoNCE()).double()
    batch = Batch((sound(LENGTHS),), torch.arange(10, 16))
    outcome = method.train()(batch)
    method.advance(outcome)
    assert isinstance(method.negatives, Queue)
    for k in (1, 2, 3):
        stored = method.negatives.candidates({}, batch.index, k)
        real = stored.index >= 0
        assert len(stored.index) == 64
        frames = [max(math.ceil(n / HOP) - k, 0) for n in LENGTHS]
        assert stored.index[real].tolist() == [10 + i for i, count in enumerate(frames) for _ in range(count)]
        assert torch.equal(stored.embedding[real], outcome.encoded.keys[k])


@pytest.mark.parametrize("negatives", ["sequences", "times"])
def test_the_loss_of_two_stretches_is_the_mean_of_each(negatives: str) -> None:
    """Each stretch predicts its future among its own frames, batch norm included: value and gradient."""
    waves = sound(LENGTHS, seed=1), sound(LENGTHS, seed=2)
    who = torch.arange(6)

    def loss_and_gradients(*views: Tensor) -> tuple[Tensor, list[Tensor]]:
        method = Method(role(others=negatives), Dot(), InBatch(views="one"), Everyone(), InfoNCE()).train()
        loss = method(Batch(views, who)).loss
        return loss.detach(), list(torch.autograd.grad(loss, list(method.parameters())))

    pair, (one, single) = loss_and_gradients(*waves), [loss_and_gradients(view) for view in waves]
    torch.testing.assert_close(pair[0], (one[0] + single[0]) / 2, rtol=1e-12, atol=1e-12)
    for full, first, second in zip(pair[1], one[1], single[1], strict=True):
        torch.testing.assert_close(full, (first + second) / 2, rtol=1e-9, atol=1e-12)


def test_a_bank_holds_the_mean_of_a_recordings_frames_k_ahead() -> None:
    """Written out: M_k[i] <- c M_k[i] + (1 - c) mean_t z_i(t+k), first the mean itself; every frame of
    recording i must identify
    M_k[i] among the rows of the others. Recording 4 is heard two frames long, so it has no row for steps 2
    and 3."""
    lengths = [*LENGTHS[:4], 2 * HOP, 36]
    bank = Bank(8, momentum=0.25, dim=5, views=4).double()
    encoders = role()
    method = Method(encoders, Dot(), bank, Everyone(), InfoNCE()).double().train()
    who, first, second = torch.tensor([3, 0, 5, 6, 1, 7]), sound(lengths, seed=1), sound(lengths, seed=2)
    means: dict[tuple[int, int], Tensor] = {}
    for waves in (first, second):
        with torch.no_grad():
            z, _ = encoders.listener.frames(waves)
        method.prime(Batch((waves,), who))
        for i, length in enumerate(lengths):
            for k in (1, 2, 3):
                frames = z[i, k : math.ceil(length / HOP)]
                if not len(frames):
                    continue
                initial = means.get((k, int(who[i])))
                current = frames.mean(dim=0)
                means[k, int(who[i])] = current if initial is None else 0.25 * initial + 0.75 * current
    for (k, i), row in means.items():
        torch.testing.assert_close(bank.rows[k, i], row, rtol=1e-12, atol=1e-12)
    assert (2, 1) not in means
    assert (3, 1) not in means

    with torch.no_grad():
        outcome = method(Batch((first,), who))
        z, _ = encoders.listener.frames(first)
        c = encoders.listener.contexts(z)
    total = 0.0
    for k in (1, 2, 3):
        present = [i for kk, i in means if kk == k]
        values = []
        for place, length in enumerate(lengths):
            for t in range(math.ceil(length / HOP) - k):
                weight: Any = encoders.predictors[k - 1].weight
                requested = weight.detach() @ c[place, t]
                scores = {i: float(requested @ means[k, i]) for i in present}
                own_ids = scores[int(who[place])]
                values.append(
                    own_ids - math.log(sum(map(math.exp, scores.values()))) + math.log(len(present))
                )
        total += float(np.mean(values)) / 3
    assert outcome.nats is not None
    assert float(outcome.nats) == pytest.approx(total, abs=1e-9)
    restored = Bank(8, momentum=0.25, dim=5, views=4).double()
    restored.load_state_dict(bank.state_dict())
    for k in (1, 2, 3):
        stored, loaded = (b.candidates({}, who, k).index.tolist() for b in (bank, restored))
        assert stored == loaded


def test_a_cave_keeps_frames_of_recordings_in_the_anchors_cluster() -> None:
    """Frames go by their recording's cluster, and clusters by what the mean of its frames is like."""
    cave = Cave(2, instances=40)
    method = Method(role(), Dot(), InBatch(views="one"), cave, InfoNCE()).train()
    waves, who = sound(LENGTHS), torch.arange(6)
    embedded = method.embed(waves)
    encoded = method.encode(Batch((waves,), who), (), (1,))[0]
    for i in range(6):
        frames = encoded.keys[1][encoded.index[1] == i]
        torch.testing.assert_close(embedded[i], frames.mean(dim=0), rtol=1e-12, atol=1e-12)
    cave.cave.ids = torch.cat([SPEAKERS[None, :6], torch.full((1, 34), -1)], dim=1).int()
    outcome = method(Batch((waves,), who))
    assert outcome.nats is not None
    expected = -slow_loss(method.encoders, waves, who.tolist(), "speaker")  # type: ignore[arg-type]
    assert float(outcome.nats) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 9}, "encoders.steps was 9, but a window of views.samples=36 has 9 frames of 4 samples"),
        ({"width": 0}, "encoders.width was 0"),
        ({"strides": (2, 0, 1, 1, 1)}, "encoders.strides was"),
    ],
)
def test_impossible_settings_get_a_sentence(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Predictive(**{**SMALL, **changed})


def test_the_sound_network_has_its_documented_width() -> None:
    assert ConvGRU(5, 7, pooling="moments").dim == 24
    assert ConvGRU(5, 7)(torch.ones(2, 2, 400)).shape == (2, 12)
