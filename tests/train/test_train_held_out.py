"""Held-out data are never trained on, and the estimate on them equals a slow reference."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nearfar as nf
from nearfar.core.types import Batch
from nearfar.data import open_data
from nearfar.data.stream import Stream
from nearfar.data.training import MIN_INSTANCES, split_holdout
from nearfar.errors import UserError
from nearfar.evaluate.held_out import held_out_estimate
from nearfar.report.facts import Absent, Detail
from nearfar.report.gather import gather
from nearfar.train.pretrain import pretrain

SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 128,
    "epochs": 1,
    "probe_every": 0,
    "workers": 1,
}


@pytest.mark.parametrize(("share", "size"), [(None, 90), (0.1, 180), (0.0, 0)])
def test_the_split_is_a_function_of_the_seed_and_a_partition(share: float | None, size: int) -> None:
    images = open_data("digits")
    trained, holdout = split_holdout(images, share, seed=3)
    paths = set(holdout.paths) if holdout is not None else set()
    assert len(paths) == size
    assert len(trained) + size == len(images)
    assert paths.isdisjoint(trained.paths)
    repeated = split_holdout(images, share, seed=3)[1]
    assert (holdout is None and repeated is None) or (
        holdout is not None and repeated is not None and holdout.paths == repeated.paths
    )
    if size:
        reseeded = split_holdout(images, share, seed=4)[1]
        assert reseeded is not None
        assert set(reseeded.paths) != paths


def test_small_data_sets_have_no_holdout() -> None:
    images = open_data("digits").subset(np.arange(MIN_INSTANCES - 1))
    assert split_holdout(images, None, 0)[1] is None
    with pytest.raises(
        UserError, match=r"held_out was 0\.001: of the 999 images of digits that is 1, too few"
    ):
        split_holdout(images, 0.001, 0)


@pytest.mark.parametrize("recipe", ["simclr", "instdisc", "byol", "moco"])
def test_every_method_logs_a_proven_estimate_on_held_out_rows(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any negatives in training: encoders and critic score held-out rows, contrasted with one another."""
    trained_rows: set[int] = set()
    original = Stream.batches

    def watched(self: Stream, first: int, last: int) -> Any:
        for batch in original(self, first, last):
            trained_rows.update(self._data.rows[batch.index.numpy()].tolist())
            yield batch

    monkeypatch.setattr(Stream, "batches", watched)
    run = pretrain(recipe, "digits", tmp_path / "run", quiet=True, **SMALL)
    _, holdout = split_holdout(open_data("digits"), None, 0)
    assert holdout is not None
    assert trained_rows.isdisjoint(holdout.rows.tolist())
    rows = [row for row in run.metrics if row["kind"] == "held-out"]
    assert [row["step"] for row in rows] == [0, 13]
    for row in rows:
        assert row["status"] == "proven"
        assert row["instances"] == 90
        assert row["nats"] <= row["ceiling"] + 1e-6 == pytest.approx(math.log(90))
    # the objective itself is fitted to its batches: no word of proof
    assert run.certificate()["status"] in ("not covered", "objective only")
    facts = gather(run, Detail(points=20))
    assert not isinstance(facts.held_out, Absent)
    assert facts.held_out.certificate.status == "proven"
    assert facts.held_out.nats == rows[-1]["nats"]


def test_the_estimate_equals_a_slow_one() -> None:
    """InfoNCE, one row at a time in float64: log of n times the positive's share over all keys; batches
    together."""
    torch.manual_seed(0)
    first, second = nn.Linear(5, 3), nn.Linear(5, 3)
    method = nf.Method(
        nf.PerView([first, second]), nf.Cosine(0.3), nf.Queue(64, dim=3), nf.Ball(0.5), nf.InfoNCE(),
        symmetric=False
    )  # fmt: skip
    x, y = torch.randn(2, 20, 5)
    batches = [Batch((x[:12], y[:12]), torch.arange(12)), Batch((x[12:], y[12:]), torch.arange(12, 20))]
    estimate = held_out_estimate(method, batches)
    assert estimate is not None
    with torch.no_grad():
        u = nn.functional.normalize(first(x), dim=1).double()
        v = nn.functional.normalize(second(y), dim=1).double()
    terms = []
    for i in range(20):
        chances = [math.exp(float(u[i] @ v[j]) / 0.3) for j in range(20)]
        terms.append(math.log(20 * chances[i] / sum(chances)))
    assert estimate.nats == pytest.approx(np.mean(terms), abs=1e-5)
    assert estimate.error == pytest.approx(np.std(terms, ddof=1) / math.sqrt(20), abs=1e-5)
    assert (estimate.instances, estimate.certificate.status) == (20, "proven")


def test_places_of_a_map_are_taken_one_at_a_time(tmp_path: Path) -> None:
    """Places of Deep InfoMax are not independent draws; with one place and one key an instance, all is as
    usual."""
    run = pretrain("dim", "digits", tmp_path / "run", quiet=True, **SMALL)
    last = [row for row in run.metrics if row["kind"] == "held-out"][-1]
    assert last["status"] == "proven"
    assert "weighted mean over pairs" in last["condition"]
    assert last["ceiling"] == pytest.approx(math.log(90))


def test_sequences_draw_one_row_of_each_instance() -> None:
    """In a masked text one hidden symbol per block is predicted; equal symbols stay among the negatives."""
    from nearfar.parts.encoders.masked import MaskedSymbols

    torch.manual_seed(0)
    role = MaskedSymbols(dim=8, layers=1, heads=2, symbols=6, length=10, share=0.3)
    method = nf.Method(role, nf.Dot(), nf.InBatch("one"), nf.Everyone(), nf.InfoNCE(), symmetric=False)
    inputs = torch.randint(0, 6, (24, 10))
    hidden = torch.where(torch.rand(24, 10) < 0.3, inputs, -1)
    hidden[:, 0] = inputs[:, 0]
    estimate = held_out_estimate(method, [Batch((inputs, hidden), torch.arange(24))])
    assert estimate is not None
    assert (estimate.instances, estimate.certificate.status) == (24, "proven")


def last(run: Any) -> dict[str, Any]:
    return [row for row in run.metrics if row["kind"] == "held-out"][-1]


@pytest.mark.parametrize("change", [{"held_out": 0.2}, {"held_out": 0.1, "seed": 5}])
def test_rows_trained_on_before_are_never_held_out(change: dict[str, Any], tmp_path: Path) -> None:
    """All digits were trained on; keeping some aside afterwards proves nothing, and a run remembers it."""
    pretrain("simclr", "digits", tmp_path, quiet=True, **{**SMALL, "held_out": 0.0})
    run = pretrain(
        "simclr", "digits", tmp_path, quiet=True, allow_change=True, **{**SMALL, "epochs": 2, **change}
    )
    assert last(run)["status"] == "not covered"
    assert "fitted to this very sample" in last(run)["condition"]
    run = pretrain(
        "simclr", "digits", tmp_path, quiet=True, allow_change=True, **{**SMALL, "epochs": 3, **change}
    )
    assert last(run)["status"] == "not covered"


def test_weights_from_another_run_are_a_condition(tmp_path: Path) -> None:
    """A run with the same split has the same holdout; what other data or a custom module saw is unknown."""
    pretrain("simclr", "digits", tmp_path / "a", quiet=True, **SMALL)
    same = pretrain("simclr", "digits", tmp_path / "b", quiet=True, init=str(tmp_path / "a"), **SMALL)
    assert last(same)["status"] == "proven"
    assert "given that" not in last(same)["condition"]
    pictures = np.random.default_rng(0).integers(0, 256, (1000, 8, 8, 1), dtype=np.uint8)
    foreign = pretrain("simclr", pictures, tmp_path / "c", quiet=True, init=str(tmp_path / "a"), **SMALL)
    assert "given that neither encoders nor critic were fitted to this sample" in last(foreign)["condition"]
    module = nn.Sequential(nn.Flatten(), nn.LazyLinear(16))
    module(torch.zeros(1, 1, 8, 8))
    custom = pretrain("simclr", "digits", tmp_path / "d", quiet=True, **{**SMALL, "backbone": module})
    assert "given that neither encoders nor critic were fitted to this sample" in last(custom)["condition"]


def test_duplicate_rows_are_detected(tmp_path: Path) -> None:
    """A hundred pictures, twelve times each: the held-out ones were seen in training after all."""
    pictures = np.random.default_rng(0).integers(0, 256, (100, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "copies.npz", images=np.tile(pictures, (12, 1, 1, 1)))
    run = pretrain("simclr", tmp_path / "copies.npz", tmp_path / "run", quiet=True, **SMALL)
    assert last(run)["status"] == "not covered"
    assert "60 of these instances are copies" in last(run)["condition"]


class Around(nf.Dot):
    """A critic that looks at the whole batch."""

    def cross(self, anchors: torch.Tensor, keys: torch.Tensor, progress: Any = None) -> torch.Tensor:
        scores = anchors @ keys.T
        return (scores - scores.mean()) / scores.std()


class CentredWithConstant(nn.Module):
    """Rows minus their batch mean, with a constant that hides it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x - x.mean(dim=0), torch.full_like(x[:, :1], 1000.0)], dim=1)


class InOrder(nn.Module):
    """Each row sees those before it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * x.cumsum(dim=0)


class Neighbouring(nn.Module):
    """Rows 2k and 2k + 1 see each other, and halves of the batch as it stands would not tell."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.view(-1, 2, x.shape[1]) + 0.5 * x.view(-1, 2, x.shape[1]).flip(1)).view_as(x)


class InBlocks(nn.Module):
    """A norm over blocks of four rows (ghost batch norm), not a torch batch norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.view(-1, 4, x.shape[1])
        return ((parts - parts.mean(1, keepdim=True)) / (parts.std(1, keepdim=True) + 0.1)).view_as(x)


class Loud(nn.Module):
    """Rows minus their batch mean, one so large that the others vanish in rounding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = torch.where(x[:, :1] == x[:, :1].max(), 1e4, 1.0)
        return (x - x.mean(dim=0)) * size


@pytest.mark.parametrize(
    ("network", "critic", "status"),
    [
        (nn.Identity(), nf.Dot(), "proven"),
        (nn.GroupNorm(1, 3), nf.Dot(), "proven"),
        (Neighbouring(), nf.Dot(), "not covered"),
        (InBlocks(), nf.Dot(), "not covered"),
        (Loud(), nf.Dot(), "not covered"),
        (nn.Identity(), Around(), "not covered"),
        (CentredWithConstant(), nf.Dot(), "not covered"),
        (InOrder(), nf.Dot(), "not covered"),
        (nn.BatchNorm1d(3, track_running_stats=False), nf.Dot(), "not covered"),
    ],
)
def test_networks_that_mix_rows_are_detected(network: nn.Module, critic: Any, status: str) -> None:
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    method = nf.Method(nf.Shared(network), critic, nf.InBatch(), nf.Everyone(), nf.InfoNCE())
    estimate = held_out_estimate(method, [Batch((x, x + 0.1), torch.arange(16))])
    assert estimate is not None
    assert estimate.certificate.status == status


def test_a_repeated_instance_is_not_an_independent_draw() -> None:
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    method = nf.Method(nn.Identity(), nf.Dot(), nf.InBatch(), nf.Everyone(), nf.InfoNCE())
    batch = Batch((x, x + 0.1), torch.arange(16))
    estimate = held_out_estimate(method, [batch, batch])
    assert estimate is not None
    assert estimate.certificate.status == "not covered"
    assert "occur more than once" in estimate.certificate.condition


@pytest.mark.parametrize("first_settings", [{"held_out": 0.0}, {"seed": 3}])
def test_weights_of_a_run_trained_on_these_rows_prove_nothing(
    first_settings: dict[str, Any], tmp_path: Path
) -> None:
    """The same data, all or another part, are known to have been trained on, so nothing is proven."""
    pretrain("simclr", "digits", tmp_path / "a", quiet=True, **{**SMALL, **first_settings})
    run = pretrain("simclr", "digits", tmp_path / "b", quiet=True, init=str(tmp_path / "a"), **SMALL)
    assert last(run)["status"] == "not covered"
    assert "fitted to this very sample" in last(run)["condition"]


def test_a_custom_critic_may_have_been_fitted(tmp_path: Path) -> None:
    critic = nf.Bilinear(dim=128)
    run = pretrain("simclr", "digits", tmp_path, quiet=True, critic=critic, **SMALL)
    assert "given that neither encoders nor critic were fitted to this sample" in last(run)["condition"]


class MixedPictures:
    """Two views of which each shows the next picture of the batch too."""

    count = 2

    def __init__(self, mixed: float) -> None:
        self.mixed = mixed

    def __call__(self, loaded: Any, seed: int, epoch: int, index: np.ndarray) -> tuple[torch.Tensor, ...]:
        pictures = torch.from_numpy(loaded.data).permute(0, 3, 1, 2).float() / 255
        return pictures, (1 - self.mixed) * pictures + self.mixed * pictures.roll(1, 0)


@pytest.mark.parametrize(("mixed", "status"), [(0.0, "proven"), (0.3, "not covered")])
def test_views_that_mix_instances_are_detected(mixed: float, status: str, tmp_path: Path) -> None:
    run = pretrain("simclr", "digits", tmp_path, quiet=True, views=MixedPictures(mixed), **SMALL)
    assert last(run)["status"] == status


@pytest.mark.parametrize(("files", "blocks", "proven"), [(1, 1200, False), (400, 3, True), (1200, 1, True)])
def test_blocks_of_one_text_are_not_independent_draws(
    files: int, blocks: int, proven: bool, tmp_path: Path
) -> None:
    """Blocks cut from one text: whole files are held out and one block of each is used, or nothing is
    proven."""
    rng = np.random.default_rng(0)
    (tmp_path / "texts").mkdir()
    for number in range(files):
        text = "".join(rng.choice(list("abcdef "), 8 * blocks - 2))
        (tmp_path / "texts" / f"{number}.txt").write_text(f"a{text}b")
    settings = {**SMALL, "views": {"name": "mask", "length": 8}, "epochs": 1}
    del settings["backbone"]
    run = pretrain("mlm", tmp_path / "texts", tmp_path / "run", quiet=True, **settings)
    assert (last(run)["status"] == "proven") == proven, last(run)["condition"]
    everything = run.open_data()
    train, holdout = split_holdout(everything, None, 0)
    assert holdout is not None
    if proven:
        assert train.cut_from is not None
        assert holdout.cut_from is not None
        assert not np.isin(holdout.cut_from, train.cut_from).any()
        assert len(np.unique(holdout.cut_from)) == len(holdout) == last(run)["instances"]
    else:
        assert "several blocks come from one file" in last(run)["condition"]
