"""Measures without labels equal slow references that follow the papers; probes change nothing."""

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nearfar as nf
from nearfar.evaluate.quality import alignment, alpha_req, lidar, rankme, uniformity

SHAPES = st.tuples(st.integers(4, 12), st.integers(2, 6), st.integers(0, 99))


def cloud(rows: int, dim: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dim, generator=generator, dtype=torch.float64) * (1 + torch.arange(dim)) ** -0.5


@given(SHAPES)
@settings(max_examples=30, deadline=None)
def test_rankme_is_the_entropy_of_singular_values(shape: tuple[int, int, int]) -> None:
    """Garrido et al. 2023, Eq. 1: p_k = s_k / |s|_1 + 1e-7, RankMe = exp(- sum p_k log p_k)."""
    z = cloud(*shape)
    values = np.linalg.svd(z.numpy(), compute_uv=False)
    p = values / values.sum() + 1e-7
    assert rankme(z) == pytest.approx(math.exp(-sum(x * math.log(x) for x in p)), rel=1e-6)


def test_rankme_of_even_directions_is_their_number() -> None:
    assert rankme(torch.eye(7).repeat(3, 1)) == pytest.approx(7, rel=1e-4)


@given(SHAPES)
@settings(max_examples=30, deadline=None)
def test_alpha_is_the_slope_of_the_spectrum(shape: tuple[int, int, int]) -> None:
    """Agrawal et al. 2022: log eigenvalue against log rank, by numpy's least squares."""
    z = cloud(*shape)
    values = np.sort(np.linalg.eigvalsh(np.cov(z.numpy().T)))[::-1]
    values = values[values > 1e-10 * values[0]]
    slope = (
        np.polyfit(np.log(np.arange(1, len(values) + 1)), np.log(values), 1)[0]
        if len(values) > 1
        else math.nan
    )
    assert alpha_req(z) == pytest.approx(-slope, rel=1e-5, abs=1e-7, nan_ok=True)


def test_a_spectrum_of_a_known_power_has_that_exponent() -> None:
    """Orthogonal columns of variance j^-1.5."""
    q = torch.linalg.qr(torch.randn(200, 20, dtype=torch.float64))[0]
    q = torch.linalg.qr(q - q.mean(0))[0]
    assert alpha_req(q * torch.arange(1, 21) ** -0.75) == pytest.approx(1.5, rel=1e-6)


@given(SHAPES)
@settings(max_examples=20, deadline=None)
def test_lidar_is_the_rank_of_a_discriminant_analysis(shape: tuple[int, int, int]) -> None:
    """Thilak et al. 2024, Eq. 1-4, with the matrix square root written out and sums in loops."""
    rows, dim, seed = shape
    z = cloud(rows * 3, dim, seed).view(rows, 3, dim).numpy()
    mean = z.mean(axis=(0, 1))
    between, within = np.zeros((dim, dim)), np.zeros((dim, dim))
    for instance in z:
        centre = instance.mean(axis=0)
        between += np.outer(centre - mean, centre - mean) / rows
        for view in instance:
            within += np.outer(view - centre, view - centre) / (rows * 3)
    within += 1e-4 * np.eye(dim)
    value, vector = np.linalg.eigh(within)
    root = vector @ np.diag(value**-0.5) @ vector.T
    eigenvalues = np.clip(np.linalg.eigvalsh(root @ between @ root), 0, None)
    p = eigenvalues / eigenvalues.sum() + 1e-7
    assert lidar(torch.from_numpy(z)) == pytest.approx(math.exp(-sum(x * math.log(x) for x in p)), rel=1e-5)


def test_uniformity_and_alignment_are_means_over_pairs() -> None:
    """Wang and Isola 2020, Eq. 3-4, in loops."""
    z, second = cloud(9, 4, 0), cloud(9, 4, 1)
    unit = [row / row.norm() for row in z]
    pairs = [math.exp(-2 * float((a - b).square().sum())) for a, b in combinations(unit, 2)]
    assert uniformity(z) == pytest.approx(math.log(sum(pairs) / len(pairs)))
    far = [float((a - b / b.norm()).square().sum()) for a, b in zip(unit, second, strict=True)]
    assert alignment(z, second) == pytest.approx(sum(far) / len(far))
    assert alignment(z, 3 * z) == pytest.approx(0, abs=1e-12)


def pictures(count: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 3
    pixels = rng.integers(0, 90, (count, 16, 16, 3)) + 50 * labels[:, None, None, None]
    return pixels.astype(np.uint8), labels


QUICK: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 32,
    "epochs": 1,
    "workers": 0,
    "held_out": 0,
    "quiet": True,
}


def test_probes_do_not_change_training(tmp_path: Path) -> None:
    """Weights are bit-identical with every probe, on other data too: no gradient, statistic or draw
    changes."""
    pixels, labels = pictures()
    np.savez(tmp_path / "grey.npz", images=pixels[:, ::2, ::2, :1], labels=labels)
    none = nf.pretrain("simclr", pixels, tmp_path / "a", labels=labels, **QUICK, probe_every=0)
    all_of_them = nf.pretrain(
        "simclr", pixels, tmp_path / "b", labels=labels, **QUICK, probe="knn,linear,quality", probe_every=0.5
    )
    elsewhere = nf.pretrain(
        "simclr", pixels, tmp_path / "c", **QUICK, probe="linear", probe_data=str(tmp_path / "grey.npz")
    )
    for run in (all_of_them, elsewhere):
        weights = run.weights()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in none.weights().items())
    (first, *_, last) = [row for row in all_of_them.metrics if row["kind"] == "probe"]
    assert {"knn_top1", "linear_top1", "rankme", "lidar", "alpha_req", "uniformity", "alignment"} <= set(last)
    assert first["step"] == 0
    assert all("knn_top1" not in row for row in elsewhere.metrics if row["kind"] == "probe")
    assert any("linear_top1" in row for row in elsewhere.metrics if row["kind"] == "probe")
    assert not [row for row in none.metrics if row["kind"] == "probe"]


def test_unlabelled_data_have_a_quality(tmp_path: Path) -> None:
    run = nf.pretrain("simclr", pictures()[0], tmp_path / "run", **QUICK, probe="knn,quality")
    rows = [row for row in run.metrics if row["kind"] == "probe"]
    assert rows[-1]["rankme"] > 1
    assert "knn_top1" not in rows[-1]
    result = nf.evaluate(run, protocols=["quality"], baselines=True)
    assert result["quality"]["certificate"]["status"] == "not covered", "its own training data"
    assert result["baselines"]["untrained"]["quality"]["rankme"] != result["quality"]["rankme"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"probe": "svm"}, "probe was 'svm'; expected knn, linear, quality"),
        (
            {"probe": "linear", "selection": {"name": "ring", "lower": "on_score(0,0.5)"}},
            "follows the kNN probe but probe is linear",
        ),
    ],
)
def test_unknown_probes_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    pixels, labels = pictures()
    with pytest.raises(nf.UserError, match=words):
        nf.pretrain("simclr", pixels, tmp_path / "run", labels=labels, **QUICK, **settings)
