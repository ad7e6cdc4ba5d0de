"""Masked symbols: InfoNCE over the dictionary is torch's cross-entropy; in-batch, a loop's; padding;
positions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from nearfar.core.method import Method
from nearfar.core.types import Batch
from nearfar.errors import UserError
from nearfar.modalities.dataset import padded
from nearfar.modalities.text.views import Masked
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.critics import Cosine, Dot
from nearfar.parts.encoders.masked import MaskedSymbols
from nearfar.parts.negatives import Dictionary, InBatch
from nearfar.parts.selections import Everyone

SYMBOLS, LENGTH = 11, 20


def role(**changed: Any) -> MaskedSymbols:
    torch.manual_seed(0)
    settings = {"dim": 8, "layers": 2, "heads": 2, "dropout": 0.0, **changed}
    return MaskedSymbols(**settings, symbols=SYMBOLS, length=LENGTH, share=0.15).double()


def blocks(lengths: list[int]) -> tuple[Tensor, Tensor]:
    generator = np.random.default_rng(0)
    series = padded([generator.integers(SYMBOLS, size=n) for n in lengths])
    return Masked(0.15, SYMBOLS)(series, 3, 1, np.arange(len(lengths)))


def batch(lengths: list[int]) -> Batch:
    return Batch(blocks(lengths), torch.arange(len(lengths)))


def test_the_dictionarys_loss_is_torchs_cross_entropy() -> None:
    """Wu et al. 2020, sec. 5.1: enumerating the vocabulary is log-softmax; the value is log V above it."""
    encoders = role()
    method = Method(encoders, Dot(), Dictionary(symbols=SYMBOLS), Everyone(), InfoNCE())
    example = batch([20, 20, 13, 7])
    masked, hidden = example.views
    outputs = encoders.reader.outputs(masked)[hidden >= 0]
    logits = outputs @ encoders.reader.embedding.weight[:SYMBOLS].T
    expected = functional.cross_entropy(logits, hidden[hidden >= 0])
    outcome = method(example)
    assert float(outcome.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-12)
    assert outcome.ceiling == pytest.approx(math.log(SYMBOLS))
    parameters = list(encoders.parameters())
    ours = torch.autograd.grad(outcome.loss, parameters, retain_graph=True)
    theirs = torch.autograd.grad(expected, parameters)
    for one, second in zip(ours, theirs, strict=True):
        assert one.numpy() == pytest.approx(second.numpy(), abs=1e-10)


def test_the_critic_prepares_the_dictionary_too() -> None:
    encoders = role()
    method = Method(encoders, Cosine(0.1), Dictionary(symbols=SYMBOLS), Everyone(), InfoNCE())
    example = batch([20, 20])
    masked, hidden = example.views
    outputs = functional.normalize(encoders.reader.outputs(masked)[hidden >= 0], dim=1)
    logits = outputs @ functional.normalize(encoders.reader.table(), dim=1).T / 0.1
    expected = functional.cross_entropy(logits, hidden[hidden >= 0])
    assert float(method(example).loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-12)


@torch.no_grad()
def test_in_batch_no_symbol_is_its_own_negative() -> None:
    encoders = role()
    method = Method(encoders, Dot(), InBatch(views="one"), Everyone(), InfoNCE())
    example = batch([20] * 5)
    masked, hidden = example.views
    outputs, true = encoders.reader.outputs(masked)[hidden >= 0], hidden[hidden >= 0]
    table, values = encoders.reader.table(), []
    for row, symbol in zip(outputs, true, strict=True):
        rest = [float(row @ table[second]) for second in true if second != symbol]
        own_ids = float(row @ table[symbol])
        values.append(own_ids - math.log(sum(map(math.exp, [own_ids, *rest]))) + math.log(1 + len(rest)))
    outcome = method(example)
    assert outcome.nats is not None
    assert float(outcome.nats) == pytest.approx(np.mean(values), abs=1e-10)
    assert outcome.ceiling == pytest.approx(math.log(5 * 3))  # three hidden in each of five blocks
    assert max(values) <= outcome.ceiling


def test_padding_and_other_masked_symbols_are_not_read() -> None:
    encoders = role().eval()
    short = torch.tensor([[3, 1, 4, 1, 5]])
    padded_out = torch.cat([short, torch.full((1, 9), -1)], dim=1)
    same_group = torch.cat([padded_out, torch.zeros(1, 14, dtype=torch.long)])
    single = encoders.reader(short).detach().numpy()
    assert encoders.reader(padded_out).detach().numpy() == pytest.approx(single, abs=1e-12)
    assert encoders.reader(same_group)[:1].detach().numpy() == pytest.approx(single, abs=1e-12)


def test_anchors_are_the_outputs_at_masked_places_in_order() -> None:
    encoders = role().eval()
    masked, hidden = blocks([20, 12])
    encoded = encoders.encode(Batch((masked, hidden), torch.arange(len(masked))), (0,), (1,))
    places = [(i, t) for i in range(2) for t in range(20) if hidden[i, t] >= 0]
    outputs = encoders.reader.outputs(masked)
    for row, (i, t) in enumerate(places):
        assert torch.equal(encoded.anchors[0][row], outputs[i, t])
        assert torch.equal(encoded.keys[1][row], encoders.reader.table()[hidden[i, t]])
        assert encoded.index[1][row] == hidden[i, t]


def test_certificate_of_masked_symbols() -> None:
    method = Method(role(), Dot(), Dictionary(symbols=SYMBOLS), Everyone(), InfoNCE())
    certificate = method.certificate(64, 2)
    assert certificate.status == "not covered"
    assert "not as often as it occurs" in certificate.condition


def test_a_dictionary_without_a_vocabulary_gets_a_sentence() -> None:
    with pytest.raises(UserError, match="bring no vocabulary of 5 symbols"):
        Dictionary(symbols=5).candidates({0: torch.zeros(3, 2)}, torch.arange(3), 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 3}, "encoders.dim was 8 with 3 heads"),
        ({"dropout": 1.0}, "encoders.dropout"),
        ({"layers": 0}, "layers"),
    ],
)
def test_impossible_settings_get_a_sentence(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        role(**changed)
