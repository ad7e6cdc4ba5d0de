"""Learned acceptance (Wu et al. 2020, App. C): its gradient equals that of the enumerated expectation."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nearfar.core.abstract import AbstractBound
from nearfar.core.scores import Scores
from nearfar.core.types import NegativeSampling
from nearfar.data import open_data
from nearfar.errors import Stopped, UserError
from nearfar.parts.bounds import NWJ, AlphaCPC, InfoNCE, MultiLabelCPC, NPair
from nearfar.parts.selections import Accept
from nearfar.parts.selections.accept import Aim
from nearfar.run import checkpoints
from nearfar.train.pretrain import pretrain

BOUNDS: dict[str, AbstractBound] = {
    "infonce": InfoNCE(),
    "alpha-cpc": AlphaCPC(0.5),
    "ml-cpc": MultiLabelCPC(0.8),
    "npair": NPair(),
    "nwj": NWJ(),
}


def small(seed: int = 0, anchors: int = 2, candidates: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Positive and negative scores, one of the candidates never offered to the first anchor."""
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(anchors, generator=generator, dtype=torch.float64)
    negative = torch.randn(anchors, candidates, generator=generator, dtype=torch.float64)
    offered = torch.ones(anchors, candidates, dtype=torch.bool)
    offered[0, 1] = False
    return positive, negative, offered


def accept(**settings: object) -> Accept:
    torch.manual_seed(1)
    return Accept(**{"least": 0.2, "hidden": 3, **settings}).double()  # type: ignore[arg-type]


def draws(offered: Tensor) -> list[Tensor]:
    """Every set of accepted candidates."""
    places = offered.nonzero().tolist()
    every = []
    for coins in itertools.product((False, True), repeat=len(places)):
        accepted = torch.zeros_like(offered)
        for (row, column), coin in zip(places, coins, strict=True):
            accepted[row, column] = coin
        every.append(accepted)
    return every


def chance_of(accepted: Tensor, offered: Tensor, chances: Tensor) -> Tensor:
    return torch.where(accepted, chances, 1 - chances)[offered].prod()


def value_of(
    bound: AbstractBound, positive: Tensor, negative: Tensor, offered: Tensor, accepted: Tensor
) -> Tensor:
    mask = accepted | (offered & ~accepted.any(dim=1, keepdim=True))
    return bound(Scores.of(positive, negative, mask))


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("aim", ["maximise", "minimise"])
def test_the_gradient_equals_that_of_the_enumerated_expectation(name: str, aim: Aim) -> None:
    """grad E[V] = E[V grad log P + grad V] (Wu et al. 2020, Lemma C.1's step), summed over all 128 draws."""
    bound, part = BOUNDS[name], accept(aim=aim)
    positive, negative, offered = small()
    positive, negative = positive.requires_grad_(), negative.requires_grad_()
    network, scored = list(part.parameters()), [positive, negative]

    chances = part.chances(negative, offered)
    every = draws(offered)
    expected = torch.stack(
        [chance_of(a, offered, chances) * value_of(bound, positive, negative, offered, a) for a in every]
    ).sum()
    expected_values = torch.autograd.grad(expected, [*network, *scored], retain_graph=True)

    estimated = [torch.zeros_like(parameter) for parameter in (*network, *scored)]
    scores = Scores.of(positive, negative, offered)
    for accepted in every:
        sample = part.select_drawn(scores, lambda *_, chosen=accepted: chosen)
        value = bound(sample)
        torch.testing.assert_close(value, value_of(bound, positive, negative, offered, accepted))
        credit = sample.score_function_term(value, bound)
        assert float(credit.detach()) == 0.0
        torch.testing.assert_close(sample.log_chance.sum().exp(), chance_of(accepted, offered, chances))
        parts = torch.autograd.grad(value + credit, [*network, *scored], retain_graph=True)
        for total, gradient in zip(estimated, parts, strict=True):
            total += chance_of(accepted, offered, chances).detach() * gradient
    sign = 1 if aim == "maximise" else -1
    for number, (ours, exact) in enumerate(zip(estimated, expected_values, strict=True)):
        torch.testing.assert_close(
            ours, exact * (sign if number < len(network) else 1), rtol=1e-9, atol=1e-12
        )


def gradients(part: Accept, scores: Scores, bound: AbstractBound, draws: int) -> dict[str, Tensor]:
    """Gradients of the network's weights, one row per draw, with a baseline per anchor or per batch."""
    all_rows = bound(scores).detach()
    result: dict[str, list[Tensor]] = {"anchor": [], "batch": []}
    for _ in range(draws):
        sample = part(scores)
        value = bound(sample).detach()
        terms = {
            "anchor": sample.score_function_term(value, bound),
            "batch": (value - all_rows) * sample.log_chance.sum(),
        }
        for name, term in terms.items():
            item = torch.autograd.grad(term, list(part.parameters()), retain_graph=True)
            result[name].append(torch.cat([gradient.flatten() for gradient in item]))
    return {name: torch.stack(rows) for name, rows in result.items()}


@pytest.mark.parametrize("name", ["infonce", "ml-cpc"])
def test_credit_for_each_anchor_has_a_tenth_of_the_noise(name: str) -> None:
    """With 32 anchors, the draws of the other 31 are noise: a baseline per anchor removes it (signal to noise
    x3)."""
    generator = torch.Generator().manual_seed(0)
    positive = torch.randn(32, generator=generator, dtype=torch.float64) + 1
    negative = 2 * torch.randn(32, 128, generator=generator, dtype=torch.float64)
    part = accept(hidden=8)
    torch.manual_seed(2)
    result = gradients(part, Scores.of(positive, negative), BOUNDS[name], draws=60)
    noise = {item: float(rows.var(dim=0).sum().sqrt()) for item, rows in result.items()}
    assert noise["batch"] / noise["anchor"] > 3


def test_acceptance_frequencies_equal_the_probabilities() -> None:
    part = accept()
    positive, negative, offered = small(candidates=6)
    chances = part.chances(negative, offered).detach()
    torch.manual_seed(0)
    times, accepted = 4000, torch.zeros_like(negative)
    for _ in range(times):
        mask = part(Scores.of(positive, negative, offered)).negative.matrix()[1]
        accepted += mask
    frequency = accepted / times
    assert (frequency[~offered] == 0).all()
    error = (chances * (1 - chances) / times).sqrt()
    # an anchor that accepts no candidate keeps all, which adds a little where candidates are few
    empty = torch.where(offered, 1 - chances, 1.0).prod(dim=1, keepdim=True)
    assert ((frequency - chances - empty)[offered].abs() < 4.5 * error[offered]).all()
    assert (chances >= 0.2).all()


def test_accepting_always_is_everyone() -> None:
    positive, negative, offered = small()
    sample = accept(least=1.0)(Scores.of(positive, negative, offered))
    assert torch.equal(sample.negative.matrix()[1], offered)


@pytest.mark.parametrize(("aim", "sign"), [("maximise", -1), ("minimise", 1)])
def test_learned_acceptance_follows_its_objective(aim: Aim, sign: int) -> None:
    """Raising the bound means refusing the similar, lowering it means refusing the others."""
    part = accept(aim=aim)
    optimiser = torch.optim.Adam(part.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(4)
    for _ in range(150):
        negative = torch.randn(16, 32, generator=generator, dtype=torch.float64)
        scores = part(Scores.of(torch.ones(16, dtype=torch.float64), negative))
        value = InfoNCE()(scores)
        optimiser.zero_grad()
        (-(value + scores.score_function_term(value, InfoNCE()))).backward()
        optimiser.step()
    ladder = torch.linspace(-2, 2, 9, dtype=torch.float64)[None]
    learned = part.chances(ladder, torch.ones_like(ladder, dtype=torch.bool))[0].detach()
    assert sign * float(learned[-1] - learned[0]) > 0.2


def test_a_run_with_learned_acceptance_resumes_exactly(tmp_path: Path) -> None:
    images = open_data("digits").subset(np.arange(256))
    choice = {
        "backbone": "resnet8-w16",
        "batch_size": 64,
        "epochs": 5,
        "image_size": 8,
        "workers": 1,
        "probe_every": 0,
        "encoders.hidden": 32,
        "encoders.dim": 16,
        "selection": "accept",
    }
    pretrain("simclr", images, tmp_path / "whole", config=choice, quiet=True)
    with pytest.raises(Stopped):
        pretrain("simclr", images, tmp_path / "parts", config=choice, quiet=True, max_time=1e-6)
    first = checkpoints.load(checkpoints.newest(tmp_path / "parts" / "ckpt") or Path())[0]
    pretrain("simclr", images, tmp_path / "parts", config=choice, quiet=True)
    states = [
        checkpoints.load(checkpoints.newest(tmp_path / name / "ckpt") or Path())[0]
        for name in ("whole", "parts")
    ]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
        assert tensor.isfinite().all()
    network = "method/selection.network.2.weight"
    assert not torch.equal(first[network], states[0][network])


def test_certificate_and_bad_settings_of_acceptance() -> None:
    first = Accept().sampling(NegativeSampling(8, 7))
    assert not first.exchangeable
    assert (first.negatives, first.min_negatives) == (7, 1)
    assert InfoNCE().certificate(first).status == "not covered"
    for settings, sentence in (({"least": 0.0}, "least"), ({"hidden": 0}, "hidden"), ({"aim": "up"}, "aim")):
        with pytest.raises(UserError, match=f"selection.{sentence} was"):
            Accept(**settings)
