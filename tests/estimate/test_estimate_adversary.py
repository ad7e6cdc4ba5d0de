"""A search for small discrete joints and rare events on which `at_least` exceeds the truth."""

import numpy as np
import pytest

import nearfar as nf

ROWS, TRIALS = 120, 30
MAX_FAILURES = 6  # of 30 at 5 % each: more come with chance 0.003


def draws(joint: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    cell = np.random.default_rng(seed).choice(joint.size, p=joint.ravel(), size=ROWS)
    x, y = cell // joint.shape[1], cell % joint.shape[1]
    # a sample without variation is refused, and rightly
    x[0], x[1], y[0], y[1] = 0, 1, 0, 1
    return x, y


def at_least(joint: np.ndarray, seed: int) -> float:
    return float(nf.estimate_mi(*draws(joint, seed), discrete="all", baselines=False, folds=3).at_least)


def times_above(joint: np.ndarray, first: int) -> int:
    information = float(nf.info.mutual_information(joint))
    return sum(at_least(joint, first + k) > information + 1e-9 for k in range(TRIALS))


def test_no_searched_joint_distribution_breaks_at_least() -> None:
    """Hill climbing on log p(x, y) of 3 x 3 cells towards the highest at_least - I; new samples decide."""
    rng = np.random.default_rng(3)
    logits, best = 2 * rng.normal(size=(3, 3)), -float("inf")
    for step in range(12):
        trial = logits + rng.normal(size=(3, 3)) if step else logits
        joint = np.exp(trial) / np.exp(trial).sum()
        gap = sum(at_least(joint, 1000 + k) for k in range(3)) / 3 - float(nf.info.mutual_information(joint))
        if gap > best:
            logits, best = trial, gap
    assert times_above(np.exp(logits) / np.exp(logits).sum(), 5000) <= MAX_FAILURES


@pytest.mark.parametrize(
    "joint",
    [
        [[0.985, 0.005], [0.005, 0.005]],  # hardly anything happens
        [[0.5, 0.004], [0.004, 0.492]],  # a bit that flips once in a sample
        [[0.25, 0.25], [0.25, 0.25]],  # nothing
    ],
    ids=["rare", "rare flips", "independent"],
)
def test_rare_events_do_not_raise_at_least(joint: list[list[float]]) -> None:
    p = np.array(joint) / np.sum(joint)
    assert times_above(p, 0) <= MAX_FAILURES
