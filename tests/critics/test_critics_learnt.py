"""Numbers that are learnt: scores and gradients by hand, limits, settings, and a bias."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nearfar as nf
from nearfar.config.building import build_method
from nearfar.config.resolving import check, read_words, resolve
from nearfar.config.schema import plain
from nearfar.core.types import Batch
from nearfar.losses import SigLipLoss

N, DIM = 7, 4


def batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch(tuple(torch.randn(2, N, DIM, generator=generator, dtype=torch.float64)), torch.arange(N))


@pytest.mark.parametrize("chunk", [None, 3])
def test_a_learnt_temperature_has_the_gradient_of_its_loss(chunk: int | None) -> None:
    """d/ds of InfoNCE at temperature 0.01 + 0.06 e^s, against autograd through a matrix of cosines."""
    critic = nf.Cosine(nf.learnt(0.07)).double()
    method = nf.Method(
        nf.Shared(nn.Identity()), critic, nf.InBatch("one"), nf.Everyone(), nf.InfoNCE(), chunk=chunk
    )
    views = batch()
    with torch.no_grad():
        next(critic.parameters()).fill_(0.3)
    s = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    temperature = 0.01 + 0.06 * s.exp()
    one, two = (F.normalize(view, dim=1) for view in views.views)
    cosines = one @ two.T
    losses = [F.cross_entropy(f / temperature, torch.arange(N)) for f in (cosines, cosines.T)]
    expected = torch.stack(losses).mean()
    loss = method(views).loss
    torch.testing.assert_close(loss, expected)
    (ours,) = torch.autograd.grad(loss, list(critic.parameters()))
    (theirs,) = torch.autograd.grad(expected, s)
    torch.testing.assert_close(ours, theirs)
    assert method.learnt() == {"critic.temperature": pytest.approx(float(temperature.detach()))}


@pytest.mark.parametrize("moved", [-200.0, -1.0, 0.0, 1.0])
def test_a_temperature_stays_above_clips_limit(moved: float) -> None:
    critic = nf.Cosine(nf.learnt(0.07))
    with torch.no_grad():
        next(critic.parameters()).fill_(moved)
    scale, _ = critic.scale_and_bias()
    assert 0 < scale <= 100.001
    assert moved != 0.0 or scale == pytest.approx(1 / 0.07)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("learnt", [False, True])
def test_a_learnt_bias_gives_the_siglip_loss(learnt: bool, chunk: int | None) -> None:
    """Zhai et al. 2023: the sigmoid loss is minus n times the log-likelihoods of matching and not;
    Jensen-Shannon averages the negatives of an anchor, so N - 1 times those it counts."""
    bias = nf.learnt(-2.0) if learnt else -2.0
    critic = nf.Cosine(0.1, bias).double()
    views = batch()
    one, two = (F.normalize(view, dim=1) for view in views.views)
    scores = nf.Method(
        nf.Shared(nn.Identity()),
        critic,
        nf.InBatch("one"),
        nf.Everyone(),
        nf.JensenShannon(),
        symmetric=False,
        chunk=chunk,
    )
    encoded, _ = scores.encode_batch(views)
    result, _ = scores.score(encoded, views.index, 0, 1, nf.Progress())
    torch.testing.assert_close(result.positive[:, 0], (one * two).sum(dim=1) / 0.1 - 2.0)
    value = -(F.logsigmoid(result.positive[:, 0]) + result.negative.sum_of(lambda f: F.logsigmoid(-f))).mean()
    torch.testing.assert_close(value, SigLipLoss()(one, two, torch.tensor(10.0), torch.tensor(-2.0)))
    assert result.lowest == pytest.approx(-12.0) if not learnt else True
    assert set(scores.learnt()) == ({"critic.bias"} if learnt else set())


def test_a_bias_does_not_change_a_softmax() -> None:
    views, losses = batch(), []
    for bias in (0.0, -7.0):
        method = nf.Method(
            nf.Shared(nn.Identity()), nf.Cosine(0.2, bias), nf.InBatch(), nf.Everyone(), nf.InfoNCE()
        )
        losses.append(method(views).loss)
    torch.testing.assert_close(*losses)


def test_settings_write_learnt_values() -> None:
    choice = resolve("simclr", "data", read_words(["temperature=learnt(0.07)", "critic.bias=learnt(-1)"]))
    assert choice.as_plain()["critic"] == {
        "name": "cosine",
        "temperature": "learnt(0.07)",
        "bias": "learnt(-1.0)",
    }
    assert check(choice.as_plain()) == choice
    assert plain(nf.learnt(2)) == "learnt(2.0)"
    method = build_method(choice, choice.modality.reader.example_description(20))
    assert method.learnt() == {"critic.temperature": pytest.approx(0.07), "critic.bias": pytest.approx(-1.0)}
    assert resolve("simclr", "d", {"temperature": {"learnt": [0.1]}}).critic["temperature"] == nf.learnt(0.1)
    assert math.isclose(nf.Cosine("learnt(0.5)").scale_and_bias()[0], 2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        ("simclr", ["temperature=learnt(0.005)"], "a learnt temperature begins above 0.01"),
        (
            "simclr",
            ["temperature=learnt(1,2)"],
            r"temperature was 'learnt\(1,2\)'; expected one finite number",
        ),
        ("simclr", ["temperature=learnt()"], "expected one finite number"),
        ("triplet", ["temperature=learnt(1)"], r"temperature was learnt\(1\); it cannot be learnt"),
        (
            "simclr-ring",
            ["selection.upper=learnt(0.5)"],
            r"selection\.upper was learnt\(0\.5\); it cannot be learnt",
        ),
        ("simclr", ["lr=learnt(0.1)"], r"lr was learnt\(0\.1\); it cannot be learnt"),
        ("byol", ["temperature=learnt(0.5)"], r"critic\.temperature was learnt\(0\.5\) with bound=agreement"),
    ],
)
def test_settings_that_cannot_be_learnt_get_a_sentence(recipe: str, words: list[str], message: str) -> None:
    with pytest.raises(nf.UserError, match=message):
        resolve(recipe, "data", read_words(words))
