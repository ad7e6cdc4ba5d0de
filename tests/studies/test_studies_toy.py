"""`cnce-toy`: negatives are a uniform draw from above the percentile, and CNCE lies below NCE."""

from pathlib import Path

import pytest
import torch

import nearfar as nf
from nearfar.studies.cnce_toy import (
    CNCE_TRAINED,
    COVARIANCE,
    NCE_TRAINED,
    NEGATIVES,
    PAPER,
    TRUTH,
    ToyEncoders,
    draw_negatives,
    pairs,
    train,
    value,
)
from nearfar.studies.run import find_study, run_study


def test_truth_is_that_of_the_covariance() -> None:
    """Wu et al. 2021, App. B prints 0.02041."""
    covariance = torch.tensor(COVARIANCE)
    assert pytest.approx(float(-0.5 * torch.logdet(covariance / 2)), abs=1e-6) == TRUTH
    assert round(TRUTH, 5) == 0.02041
    x, y = pairs(200_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.cov(torch.cat([x, y], dim=1).T), covariance, atol=0.03, rtol=0)


@pytest.mark.parametrize("percentile", [0, 10, 75, 95])
def test_negatives_are_a_uniform_draw_from_above_the_percentile(percentile: int) -> None:
    """Every kept candidate is drawn equally often and no other ever; ranks by sorting."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randperm(1000, generator=generator)[None].float()  # all different, so that they are names
    not_own = torch.ones(1, 1000, dtype=torch.bool)
    not_own[0, 3] = False
    ranked = [int(i) for i in values[0].argsort() if i != 3]
    allowed = {float(values[0, i]) for i in ranked[round(percentile / 100 * 999) :]}
    counts: dict[float, int] = {}
    rounds = 300
    for _ in range(rounds):
        scores, mask = draw_negatives(
            nf.Scores.of(torch.zeros(1), values, not_own), percentile, generator
        ).negative.matrix()
        negatives = scores[mask].tolist()
        assert len(negatives) == min(NEGATIVES, len(allowed))
        for score in negatives:
            counts[score] = counts.get(score, 0) + 1
    assert set(counts) <= allowed
    expected = rounds * min(NEGATIVES, len(allowed)) / len(allowed)
    assert max(abs(count - expected) for count in counts.values()) <= 6 * expected**0.5
    assert len(counts) == len(allowed)


def test_own_key_is_no_negative() -> None:
    torch.manual_seed(0)
    encoders = ToyEncoders()
    x, y = pairs(20, torch.Generator().manual_seed(0))
    rows = torch.tensor([4, 7])
    scores = encoders.scores(x[rows], y[rows], rows, y)
    values, mask = scores.negative.matrix()
    assert (~mask).nonzero().tolist() == [[0, 4], [1, 7]]
    torch.testing.assert_close(values[[0, 1], rows], scores.positive[:, 0])


def test_cnce_lies_below_nce_and_falls_with_the_percentile() -> None:
    """Wu et al. 2021, Thm 3.1 for one critic: harder negatives can only lower the value."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    encoders = ToyEncoders()
    training, test = pairs(600, generator), pairs(600, generator)
    train(encoders, training, epochs=20, generator=generator)
    values = [value(encoders, test, w, generator) for w in (0, 25, 50, 75)]
    assert values[0] > values[1] > values[2] > values[3]
    assert values[0] < TRUTH + 0.05


def test_a_small_run_has_every_column(tmp_path: Path) -> None:
    words = ["points=200", "epochs=2", "steps=2", "repeats=2"]
    record = run_study(find_study("cnce-toy"), tmp_path, words)
    for name in (NCE_TRAINED, CNCE_TRAINED):
        table = record.result.table(name)
        assert list(table.paper().values()) == [0.02041, 0.01345, *PAPER.values()]
        assert set(table.ours()) == set(table.paper())
    assert record.result == run_study(find_study("cnce-toy"), tmp_path / "again", words).result


def test_too_little_is_refused(tmp_path: Path) -> None:
    for word in ("repeats=0", "epochs=0", "steps=0", "points=128"):
        with pytest.raises(nf.UserError, match="expected whole numbers from 1, and more than 128 points"):
            run_study(find_study("cnce-toy"), tmp_path, [word])
