"""Masked tokens: the chain's posterior against enumeration, its marginals, and the study on a tiny budget."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.errors import UserError
from nearfar.studies.masked_tokens import draw_chain, frequencies, posterior_nats
from nearfar.studies.run import find_study, run_study

MASK_SHARE, KEPT, REPLACED = 0.15, 0.1, 0.1  # of ten chosen positions one stays and one becomes any symbol


def enumerated_nats(read: np.ndarray, hidden: np.ndarray, share: np.ndarray, repeat: float) -> float:
    """Bayes' theorem, summed over all sequences."""
    symbols, nats = len(share), []
    for row, targets in zip(read.tolist(), hidden.tolist(), strict=True):
        for t, target in enumerate(targets):
            if target < 0:
                continue
            weight = np.zeros(symbols)
            for sequence in itertools.product(range(symbols), repeat=len(row)):
                p = share[sequence[0]]
                for a, b in itertools.pairwise(sequence):
                    p *= repeat * (a == b) + (1 - repeat) * share[b]
                for place, (symbol, shown) in enumerate(zip(sequence, row, strict=True)):
                    if shown == symbols:
                        continue  # a mask is as likely for every symbol
                    changed = KEPT * (symbol == shown) + REPLACED / symbols
                    untouched = 0.0 if place == t else (1 - MASK_SHARE) * (symbol == shown)
                    p *= untouched + (1.0 if place == t else MASK_SHARE) * changed
                weight[sequence[t]] += p
            nats.append(-math.log(weight[target] / weight.sum()))
    return float(np.mean(nats))


@pytest.mark.parametrize("repeat", [0.0, 0.6, 0.95])
@pytest.mark.parametrize("power", [0.0, 1.0])
def test_posterior_equals_enumeration(repeat: float, power: float) -> None:
    rng, share = np.random.default_rng(0), frequencies(power, 3)
    read = rng.integers(0, 4, (6, 5))  # 3 is the mask
    hidden = np.where(rng.random((6, 5)) < 0.4, rng.integers(0, 3, (6, 5)), -1)
    ours = posterior_nats(read, hidden, share, repeat, MASK_SHARE)
    assert ours == pytest.approx(enumerated_nats(read, hidden, share, repeat), rel=1e-12)


def test_a_chain_without_repetition_tells_nothing() -> None:
    """Independent symbols: under a mask, -log p is the surprise of each symbol by its frequency."""
    share = frequencies(1.0, 4)
    read, hidden = np.full((1, 4), 4), np.arange(4)[None]
    assert posterior_nats(read, hidden, share, 0.0, MASK_SHARE) == pytest.approx(-np.log(share).mean())


def test_a_chain_has_its_frequencies_and_repetitions() -> None:
    share, repeat, length = frequencies(1.0, 5), 0.7, 200_000
    chain = draw_chain(share, repeat, length, np.random.default_rng(0))
    # an autocorrelated mean: (1 + repeat) / (1 - repeat) times the variance of independent draws
    error = np.sqrt(share * (1 - share) / length * (1 + repeat) / (1 - repeat))
    assert (abs(np.bincount(chain, minlength=5) / length - share) < 5 * error).all()
    same = repeat + (1 - repeat) * (share**2).sum()
    assert abs((chain[1:] == chain[:-1]).mean() - same) < 5 * math.sqrt(0.25 / length)


def test_the_objective_exceeds_the_corrected_figure_by_a_constant(tmp_path: Path) -> None:
    """Wu et al. 2020, sec. 5.1: log V - H(w), whatever the model."""
    words = ["seeds=1", "symbols=4", "train=2000", "epochs=1"]
    result = run_study(find_study("masked-tokens"), tmp_path / "out", words).result
    entropy = -(frequencies(1.0, 4) * np.log(frequencies(1.0, 4))).sum()
    rows: dict[str, Any] = {row.label: row.ours for row in result.tables[1].rows}
    # the vocabulary has one more symbol, for unknown ones
    assert rows["objective"] - rows["corrected"] == pytest.approx(math.log(5) - entropy)
    assert rows["corrected"] < rows["truth"]
    with pytest.raises(UserError, match="symbols was 1"):
        run_study(find_study("masked-tokens"), tmp_path / "b", ["symbols=1"])
