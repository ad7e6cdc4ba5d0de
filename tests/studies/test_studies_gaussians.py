"""`gaussians`: levels have their nats, finished cells are reused, and only proven bounds are called
proven."""

import inspect
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import nearfar as nf
from nearfar.core.scores import paired_scores
from nearfar.parts.bounds import smallest_proven_alpha
from nearfar.studies import gaussians
from nearfar.studies.gaussians import (
    ALPHAS,
    BOUNDS,
    CRITICS,
    DIM,
    LEVELS,
    ascend,
    claim,
    correlation_of,
    own_scores,
    pairs,
    saturated,
    staircase,
    summary,
)
from nearfar.studies.run import find_study, run_study

SMALL = ["steps=4", "batch_size=8", "anchors=8", "negatives=9", "batches=2"]


def exact_log_ratio(x: Tensor, y: Tensor, rho: float) -> Tensor:
    """log p(x, y) / (p(x) p(y)) from the densities, over the last dimension."""
    conditional = torch.distributions.Normal(rho * x, math.sqrt(1 - rho**2))
    return (conditional.log_prob(y) - torch.distributions.Normal(0.0, 1.0).log_prob(y)).sum(dim=-1)


@pytest.mark.parametrize("nats", LEVELS)
def test_a_level_holds_its_nats(nats: int) -> None:
    """Song & Ermon 2020, App. C.2 as corrected: I = -(d/2) log(1 - rho^2); samples have that correlation."""
    rho = correlation_of(nats, DIM)
    assert -0.5 * DIM * math.log(1 - rho**2) == pytest.approx(nats, rel=1e-12)
    x, y = pairs(20_000, nats, torch.Generator().manual_seed(0))
    covariance = np.cov(torch.cat([x, y], dim=1).numpy().T)
    expected = np.block([[np.eye(DIM), rho * np.eye(DIM)], [rho * np.eye(DIM), np.eye(DIM)]])
    assert np.abs(covariance - expected).max() < 5 * math.sqrt(2 / 20_000)


def test_critics_are_those_of_the_appendix() -> None:
    """Song & Ermon 2020, App. C.2: joint, two layers of 256; separable, two networks of two layers of 256 with 32
    outputs; ReLU; Adam at 1e-3; batches of 128; 4,000 steps at each of five levels."""
    joint, separable = (make(dim=DIM) for make in CRITICS.values())
    shapes = [tuple(p.shape) for p in joint.parameters() if p.ndim == 2]
    assert sorted(shapes) == sorted([(256, 2 * DIM), (256, 256), (1, 256)])
    shapes = [tuple(p.shape) for p in separable.parameters() if p.ndim == 2]
    assert sorted(shapes) == sorted(2 * [(256, DIM), (256, 256), (32, 256)])
    for critic, count in ((joint, 2), (separable, 4)):
        assert sum(isinstance(layer, torch.nn.ReLU) for layer in critic.modules()) == count
    _, optimiser, _ = gaussians.learner(lambda: torch.nn.Linear(1, 1), 0)
    assert isinstance(optimiser, torch.optim.Adam)
    assert (optimiser.defaults["lr"], optimiser.defaults["betas"]) == (1e-3, (0.9, 0.999))
    defaults = inspect.signature(gaussians.run).parameters
    assert (DIM, LEVELS) == (20, (2, 4, 6, 8, 10))
    assert (defaults["steps"].default, defaults["batch_size"].default) == (4000, 128)


def test_each_batch_is_fresh() -> None:
    generator = torch.Generator().manual_seed(0)
    assert not torch.equal(pairs(4, 2, generator)[0], pairs(4, 2, generator)[0])


def test_shared_negatives_are_all_other_keys() -> None:
    f = torch.arange(12.0).view(3, 4)
    scores = paired_scores(f)
    values, mask = scores.negative.matrix()
    assert scores.positive.flatten().tolist() == [0.0, 5.0, 10.0]
    assert [row[mask].tolist() for row, mask in zip(values, mask, strict=True)] == [
        [1.0, 2.0, 3.0],
        [4.0, 6.0, 7.0],
        [8.0, 9.0, 11.0],
    ]


def test_own_negatives_are_not_shared() -> None:
    """A draw moves one score, that of its anchor; across the seam between blocks too."""
    torch.manual_seed(0)
    critic = nf.Separable(hidden=16, dim=DIM).requires_grad_(False)
    n, k = gaussians.BLOCK + 3, 5
    x, y, own_negatives = torch.randn(n, DIM), torch.randn(n, DIM), torch.randn(n, k, DIM)

    def negatives() -> Tensor:
        return own_scores(critic, x, y, own_negatives, 3.0).negative.matrix()[0]

    scores = negatives()
    one_by_one = [
        [critic.pairs(x[i : i + 1], own_negatives[i, j][None])[0] for j in range(k)] for i in range(n)
    ]
    torch.testing.assert_close(scores, saturated(torch.tensor(one_by_one), 3.0))
    torch.testing.assert_close(
        own_scores(critic, x, y, own_negatives, 3.0).positive[:, 0], saturated(critic.pairs(x, y), 3.0)
    )
    for i, j in ((0, 0), (gaussians.BLOCK - 1, 4), (gaussians.BLOCK, 2), (n - 1, 3)):
        own_negatives[i, j] += 1.0
        changed = negatives()
        assert (changed != scores).nonzero().tolist() == [[i, j]]
        scores = changed


def test_the_judging_samples_are_drawn_once_each_and_never_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judging: list[Tensor] = []
    trained: list[Tensor] = []

    def watched(
        critic: nf.Separable, x: Tensor, y: Tensor, own_negatives: Tensor, ceiling: float
    ) -> nf.Scores:
        assert not torch.is_grad_enabled()
        judging.extend([y, own_negatives.flatten(0, 1)])
        return own_scores(critic, x, y, own_negatives, ceiling)

    def watched_cross(critic: nf.Separable, x: Tensor, y: Tensor) -> Tensor:
        trained.append(y)
        return critic.g(x) @ critic.h(y).T

    monkeypatch.setattr(gaussians, "own_scores", watched)
    monkeypatch.setattr(nf.Separable, "cross", watched_cross)
    gaussians.proven(anchors=6, negatives=7, steps=2, batches=3, seed=0)
    draws = torch.cat(judging)
    assert len(draws) == len(LEVELS) * 3 * (6 + 6 * 7)
    assert len(torch.cat(trained)) == len(LEVELS) * 2 * 8
    assert len(torch.cat([draws, *trained]).unique(dim=0)) == len(draws) + len(LEVELS) * 2 * 8


@given(share=st.floats(1e-6, 0.2), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_the_saturated_log_ratio_tells_the_joint_from_the_mixture_best(share: float, seed: int) -> None:
    """sup_f E_P f - log E_Q' e^f = KL(P | Q'), Q' = share P + (1 - share) Q, on two random tables."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(12), size=2) + 1e-6
    p, q = p / p.sum(), q / q.sum()
    mixture = share * p + (1 - share) * q
    divergence = float((p * np.log(p / mixture)).sum())
    # 1 - share is taken into the ceiling, which the study, with shares of 1e-5, can leave out
    f = saturated(torch.from_numpy(np.log(p / q)), math.log((1 - share) / share)).numpy()
    assert p @ f - math.log(mixture @ np.exp(f)) == pytest.approx(divergence, abs=1e-9)
    for bend in (f * 1.05, f * 0.95, np.log(p / q)):
        assert p @ bend - math.log(mixture @ np.exp(bend)) <= divergence + 1e-9


def test_ml_cpc_with_the_exact_ratio_is_below_the_truth_where_proven_and_above_where_alpha_is_too_small() -> (
    None
):
    """Song & Ermon 2020, Cor. 2 at 4 nats, n = m = 16: [m/(n(m-1)+1), 1] = [0.066, 1]."""
    generator = torch.Generator().manual_seed(0)
    n, k, batches, nats = 16, 15, 1500, 4.0
    smallest = smallest_proven_alpha(n, k)
    rho = correlation_of(nats, DIM)
    values: dict[float, list[Tensor]] = {smallest: [], smallest / 1000: []}
    for _ in range(batches):
        x, y = pairs(n, nats, generator)
        own_negatives = torch.randn(n, k, DIM, generator=generator)
        scores = nf.Scores.of(exact_log_ratio(x, y, rho), exact_log_ratio(x[:, None], own_negatives, rho))
        for alpha, column in values.items():
            column.append(nf.MultiLabelCPC(alpha)(scores))
    (low, low_error), (high, high_error) = [
        (float(v.mean()), float(v.std() / math.sqrt(batches))) for v in map(torch.stack, values.values())
    ]
    assert low_error < 0.05
    assert low > 2.0
    assert low + 4 * low_error < nats
    assert high - 4 * high_error > nats


def test_certificates_say_what_is_proven() -> None:
    proven = claim(256, 1023)
    assert proven.status == "proven"
    assert proven.ceiling == pytest.approx(math.log(256 * 1023 + 1))
    in_batch = nf.InBatch("one").sampling(128, 2)
    status = {name: bound.certificate(in_batch).status for name, bound in BOUNDS.items()}
    assert status.pop("CPC") == "proven"
    assert set(status.values()) == {"not covered"}


def test_every_alpha_has_an_arm_and_its_deviation_is_reported(tmp_path: Path) -> None:
    """Song & Ermon 2020, sec. 5.1: alpha from 1.0 to 0.0001, joint and separable; less bias for more
    variance."""
    assert len(BOUNDS) == 2 * len(ALPHAS)
    rising = {name: {"sd": [0.1 * place] * len(LEVELS)} for place, name in enumerate(BOUNDS)}
    rows = {row.label: row.ours for row in gaussians.spread_table("joint", rising).rows}
    assert rows["ML-CPC, I = 2: rises as alpha falls"] == "yes: 0.500, 0.600, 0.700, 0.800, 0.900"
    level = {name: {"sd": [0.1] * len(LEVELS)} for name in BOUNDS}
    equal = {row.label: str(row.ours) for row in gaussians.spread_table("joint", level).rows}
    assert equal["ML-CPC, I = 2: rises as alpha falls"].startswith("no: ")
    assert rows["CPC, I = 4"] == 0.0
    assert {*CRITICS} == {"joint", "separable"}


def test_ascend_steps_at_the_given_rates() -> None:
    at = torch.tensor([3.0], requires_grad=True)
    values = ascend(lambda: -(at**2).sum(), torch.optim.SGD([at], lr=9.0), [0.25, 0.5])
    assert values == [-9.0, -2.25]  # 3, then 3 - 0.25 * 6 = 1.5
    assert float(at.detach()) == 0.0  # 1.5 - 0.5 * 3


def test_a_level_is_the_mean_of_its_second_half() -> None:
    levels = summary([[10.0, 20.0, 1.0, 3.0], [0.0, 0.0, 5.0, 6.0]])
    assert levels["sd"] == pytest.approx([2**0.5, 0.5**0.5])  # of the same steps as the mean
    assert (levels["mean"], levels["curve"]) == ([2.0, 5.5], [[10.0, 20.0, 1.0, 3.0], [0.0, 0.0, 5.0, 6.0]])
    long = summary([list(range(1000))])
    assert long["mean"] == [749.5]
    assert len(long["curve"][0]) == gaussians.CURVE_POINTS
    assert long["curve"][0][:2] == [9.5, 29.5]


def test_the_network_is_carried_on_and_learns() -> None:
    curve = staircase("separable", "CPC", steps=150, batch_size=32, seed=0)["curve"]
    assert curve[0][0] < 0.1
    assert curve[0][-1] > 0.4
    assert curve[1][0] > curve[0][-1] / 2  # a new network would begin near 0 again


def test_same_seed_same_numbers_and_the_callers_randomness_is_left_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first_run = staircase("separable", "ML-CPC 0.1", steps=3, batch_size=8, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert staircase("separable", "ML-CPC 0.1", steps=3, batch_size=8, seed=1) == first_run
    assert staircase("separable", "ML-CPC 0.1", steps=3, batch_size=8, seed=2) != first_run


def test_every_cell_is_finite_and_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_study(find_study("gaussians"), tmp_path, SMALL)
    numbers = [row.ours for table in first.result.tables for row in table.rows]
    assert all(math.isfinite(n) for n in numbers if not isinstance(n, str) and n is not None)
    assert len(list((tmp_path / "cells").iterdir())) == 2 * len(BOUNDS) + 1
    assert first.result.table("Proven").ours()["certificate"] == "proven"
    assert first.result.table("Figure 3, joint").ours()["ML-CPC 0.1: certificate"] == "not covered"
    content = json.loads((tmp_path / "result.json").read_text())
    assert content["paper"]["Figure 3, joint"]["ML-CPC 0.01, I = 10"] == 8.00
    assert "read off the vector graphics in the authors' repository" in content["sources"]["Figure 3, joint"]

    def never(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(gaussians, "ascend", never)
    assert run_study(find_study("gaussians"), tmp_path, SMALL).result == first.result
    part = run_study(find_study("gaussians"), tmp_path, [*SMALL, "arms=separable"]).result
    deviations = "Figure 3, separable: standard deviation over steps"
    assert [table.name for table in part.tables] == ["Figure 3, separable", deviations]
    assert part.tables[0] == first.result.table("Figure 3, separable")
    with pytest.raises(AssertionError, match="computed again"):
        run_study(find_study("gaussians"), tmp_path, [*SMALL, "seed=1", "arms=proven"])


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("arms=joint,all", "all is not one of the arms; expected one of joint, proven, separable"),
        ("arms=", "is not one of the arms"),
        ("anchors=1", "anchors 1,"),
        ("steps=1", "steps was 1,"),
        ("batch_size=1", "batch_size 1,"),
        ("batches=1", "batches 1; expected"),
        ("negatives=100", "negatives from anchors - 1"),
    ],
)
def test_impossible_settings_are_refused(word: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(nf.UserError, match=sentence):
        run_study(find_study("gaussians"), tmp_path, [word])
    assert not (tmp_path / "cells").exists()


def test_some_of_the_bounds_can_be_run(tmp_path: Path) -> None:
    """An arm that is finished is kept when further ones are asked for."""
    study, words = find_study("gaussians"), ["arms=joint", "steps=2", "batch_size=4"]
    first = run_study(study, tmp_path, [*words, "bounds=ML-CPC 0.001"]).result
    assert {row.label.partition(",")[0] for row in first.tables[0].rows[:-1]} == {"ML-CPC 0.001"}
    stored = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/result.json")}
    assert len(stored) == 1
    both = run_study(study, tmp_path, [*words, "bounds=ML-CPC 0.001,ML-CPC 0.0001"]).result
    assert (
        both.tables[0].ours().items()
        >= {k: v for k, v in first.tables[0].ours().items() if k != "curves"}.items()
    )
    assert "ML-CPC, I = 2: rises as alpha falls" in both.tables[1].ours()
    assert all(path.stat().st_mtime_ns == time for path, time in stored.items())
