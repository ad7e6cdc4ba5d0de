"""`spirals`: the geometry, the views, training with nearfar's parts, the probe, and a small study."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from nearfar.core.method import Method
from nearfar.core.scores import dense_scores
from nearfar.errors import UserError
from nearfar.parts.bounds import InfoNCE
from nearfar.parts.critics import Cosine
from nearfar.parts.encoders import Shared
from nearfar.parts.negatives import Bank
from nearfar.parts.selections import Everyone
from nearfar.studies import run_study
from nearfar.studies import spirals as module
from nearfar.studies.run import find_study
from nearfar.studies.spirals import NOISES, network, representation, spirals, train, view


@settings(deadline=None, max_examples=20)
@given(turns=st.sampled_from([1, 2, 3]), gap=st.floats(0.1, 3.0), seed=st.integers(0, 1000))
def test_points_lie_on_their_own_spiral(turns: int, gap: float, seed: int) -> None:
    """Radius r belongs to the angle pi r / gap, for the second spiral half a circle further."""
    points, spiral = spirals(200, torch.Generator().manual_seed(seed), turns, gap)
    radius = points.norm(dim=1).double()
    assert float(radius.max()) <= 2 * turns * gap * (1 + 1e-6)
    angle = math.pi * radius / gap + math.pi * spiral
    expected = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    torch.testing.assert_close(points.double(), expected, atol=1e-4 * gap * turns, rtol=1e-4)
    assert spiral.tolist() == [0, 1] * 100


def test_arms_are_a_gap_apart_and_alternate_along_a_ray() -> None:
    points, spiral = spirals(400_000, torch.Generator().manual_seed(0), 2, 0.5)
    on_ray = (points[:, 1].abs() < 2e-3) & (points[:, 0] > 0.1)
    radius, order = points[on_ray, 0].sort()
    arm = (radius / 0.5).round().int()
    torch.testing.assert_close(radius, arm * 0.5, atol=0.02, rtol=0)
    # the first spiral meets this ray after whole turns, two gaps each, the second half a turn off
    assert torch.equal(spiral[on_ray][order], (arm % 2).to(spiral.dtype))


def test_no_line_tells_the_spirals_apart_by_their_coordinates() -> None:
    sets = [spirals(20_000, torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    (x, labels), (test, truth) = [(points.numpy(), spiral.numpy()) for points, spiral in sets]
    assert LogisticRegression().fit(x, labels).score(test, truth) == pytest.approx(0.5, abs=0.02)


@settings(deadline=None, max_examples=20)
@given(noise=st.floats(0.0, 5.0, width=32, allow_subnormal=False), seed=st.integers(0, 1000))
def test_a_view_moves_each_coordinate_within_the_noise(noise: float, seed: int) -> None:
    """Wu et al. 2020, sec. 4.3: epsilon_x, epsilon_y independent, U(0, eta)."""
    points = torch.zeros(4000, 2)
    moved = view(points, noise, torch.Generator().manual_seed(seed))
    assert float(moved.min()) >= 0.0
    assert float(moved.max()) <= noise
    torch.testing.assert_close(
        moved.mean(dim=0), torch.full((2,), noise / 2), atol=0.03 * noise + 1e-9, rtol=0
    )
    if noise > 0.01:
        correlation = np.corrcoef(moved.T.numpy())[0, 1]
        assert abs(correlation) < 0.08


def test_network_is_the_papers() -> None:
    widths = [tuple(layer.weight.shape) for layer in network() if isinstance(layer, torch.nn.Linear)]
    assert widths == [(128, 2), (128, 128), (128, 128), (128, 128), (2, 128)]


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), far=st.floats(0.01, 100.0))
def test_network_starts_as_a_function_of_direction(seed: int, far: float) -> None:
    """Without biases the network is positively homogeneous: it cannot read the distance from the centre."""
    torch.manual_seed(seed)
    net, points = network(), torch.randn(50, 2)
    torch.testing.assert_close(
        representation(net, far * points), representation(net, points), atol=1e-4, rtol=0
    )


def test_training_is_instance_discrimination() -> None:
    """Two steps written out: Adam on log(1 + K) minus InfoNCE of views against bank rows, which then move."""
    points, _ = spirals(256, torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    net, twin = network(), network()
    twin.load_state_dict(net.state_dict())
    bank = Bank(256, momentum=0.0, sample=64, dim=2)
    method = Method(Shared(net), Cosine(module.TEMPERATURE), bank, Everyone(), InfoNCE())
    torch.manual_seed(5)
    losses = train(method, points, 0.3, 2, torch.Generator().manual_seed(1))

    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(1)
    rows_of = torch.randperm(256, generator=generator)
    with torch.no_grad():
        memory = torch.nn.functional.normalize(twin(points), dim=1)
    optimiser = torch.optim.Adam(twin.parameters())
    expected_losses = []
    for rows, share in zip(rows_of.split(128), (0.0, 0.5), strict=True):
        optimiser.param_groups[0]["lr"] = 1e-3 * (1 + math.cos(math.pi * share)) / 2
        z = torch.nn.functional.normalize(
            twin(points[rows] + 0.3 * torch.rand(128, 2, generator=generator)), dim=1
        )
        rows_drawn = torch.randint(256, (64,))
        f = z @ memory[rows_drawn].T / module.TEMPERATURE
        f = f.masked_fill(rows_drawn[None, :] == rows[:, None], -math.inf)
        positive = (z * memory[rows]).sum(dim=1) / module.TEMPERATURE
        negative_count = (rows_drawn[None, :] != rows[:, None]).sum(dim=1)
        nats = (
            positive - torch.cat([positive[:, None], f], dim=1).logsumexp(dim=1) + (1 + negative_count).log()
        ).mean()
        loss = math.log(65) - nats
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        memory[rows] = z.detach()
        expected_losses.append(float(loss.detach()))
    assert losses == pytest.approx([np.mean(expected_losses)], abs=1e-5)
    torch.testing.assert_close(bank.rows[0], memory, atol=1e-5, rtol=1e-4)
    for weight, expected in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("winding", [1, 2, 4])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_without_noise_a_circle_wound_often_scores_as_one_wound_once(
    winding: int, temperature: float
) -> None:
    """log m + f(u, v+) - log sum e^f over m evenly spread points is 1/T - log I_0(1/T) for any winding."""
    angle = 2 * math.pi * winding * torch.arange(4000).double() / 4000
    points = torch.stack([angle.cos(), angle.sin()], dim=1)
    places = {(round(x, 6), round(y, 6)) for x, y in (points + 0.0).tolist()}
    assert len(places) == pytest.approx(4000 / winding, abs=4)  # wound twice, every place has two points
    nats = float(InfoNCE()(dense_scores(points, points, temperature)))
    assert nats == pytest.approx(module.circle_nats(temperature), abs=1e-6)


def test_accuracy_is_that_of_a_logistic_regression() -> None:
    arm = (
        3,
        0.4,
        module.TEMPERATURE,
        256,
        32,
        20,
        400,
    )  # seed, noise, temperature, points, negatives, steps, held
    values = module.repetition(*arm)
    assert values == module.repetition(*arm)
    generator = torch.Generator().manual_seed(3)
    (x, labels), validation, test = (spirals(size, generator) for size in (256, 400, 400))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = network()
        method = Method(
            Shared(net), Cosine(module.TEMPERATURE), Bank(256, 0.0, 32, dim=2), Everyone(), InfoNCE()
        )
        train(method, x, 0.4, 20, generator)
    fit = LogisticRegression(C=1e4).fit(representation(net, x).numpy(), labels.numpy())
    for name, (points, truth) in (("validation", validation), ("test", test)):
        assert values[name] == pytest.approx(
            fit.score(representation(net, points).numpy(), truth.numpy()), abs=0.03
        )


def test_the_study_runs(tmp_path: Path) -> None:
    toy = ["points=256", "negatives=64", "steps=8", "repeats=2", "held=700", "jobs=1"]
    record = run_study(find_study("spirals"), tmp_path, toy)
    rows = {row.label: row for row in record.result.tables[0].rows}
    assert rows["noise 0.4"].paper == 0.70
    assert {f"noise {noise:g}" for noise in NOISES} <= set(rows)
    assert len(list((tmp_path / "cells").iterdir())) == 2 * len(NOISES)
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_noise_and_temperature_are_options(tmp_path: Path) -> None:
    toy = ["points=256", "negatives=64", "steps=8", "repeats=2", "held=700", "jobs=1"]
    record = run_study(find_study("spirals"), tmp_path, [*toy, "noise=0.3", "temperature=geometric(0.2,0.1)"])
    assert [row.label for row in record.result.tables[0].rows] == ["noise 0.3", "chance"]
    circle = next(row for row in record.result.tables[1].rows if "circle" in row.label)
    assert circle.ours == pytest.approx(module.circle_nats(0.2 * 0.5 ** (7 / 8)))
    default = run_study(find_study("spirals"), tmp_path, [*toy, "noise=0.3"]).result.tables[1]
    assert record.result.tables[1].lines != default.lines


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("noise=-1", "noise was -1; expected numbers from 0"),
        ("temperature=0", "temperature was 0; it must be above 0"),
        ("temperature=on_loss(0.2,0.1)", "which depends on values that this study does not monitor"),
    ],
)
def test_bad_option_is_one_sentence(tmp_path: Path, word: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        run_study(find_study("spirals"), tmp_path, [word])
    assert not (tmp_path / "cells").exists()


def test_bad_number_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="points was 5; expected a whole number from 128"):
        run_study(find_study("spirals"), tmp_path, ["points=5"])
