"""A run that is no longer finite never ends as a success and never loses the state to resume from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nearfar.cli import main
from nearfar.data import open_data
from nearfar.errors import NotFinite, Stopped, UserError
from nearfar.modalities.image.views import PlainImages
from nearfar.parts.encoders import PerView
from nearfar.run import checkpoints
from nearfar.run.features import cached_features, features
from nearfar.run.metrics import read_metrics
from nearfar.run.trained import Run
from nearfar.train.pretrain import pretrain
from tests.forked import run_command
from tests.helpers import newest_tensors

SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 256,
    "epochs": 1,
    "probe_every": 0,
    "workers": 1,
    "precision": "fp32",
    "held_out": 0.0,
}  # 7 steps
EXPLODING = {**SMALL, "optimizer": "sgd", "lr": "steps(0.002,1e25,0.5)", "keep": 1, "checkpoint_every": 1}


def rewritten(run: Run, step: int, change: Any) -> None:
    """One more checkpoint, complete and hashed, whose encoder's first weights are changed."""
    tensors, facts = checkpoints.load(run.checkpoint)
    name = "method/encoders.network.backbone.conv1.weight"
    changed = {**tensors, name: change(tensors[name])}
    checkpoints.save(run.path / "ckpt", step, changed, {**facts, "step": step}, keep=3)


def test_a_run_that_ends_in_nan_fails_and_keeps_its_finite_state(tmp_path: Path) -> None:
    """The last save once removed the only finite checkpoint (keep=1), with exit code 0."""
    out = tmp_path / "run"
    words = [
        "pretrain",
        "moco",
        "digits",
        "--out",
        out,
        "backbone=resnet8-w16",
        "batch_size=200",
        "epochs=10",
    ]
    words += ["optimizer=sgd", "keep=1", "checkpoint_every=20", "probe_every=0", "held_out=0"]
    process = run_command(*words, "lr=steps(0.002,1e25,9.4)")
    assert process.returncode == 2, process.stderr
    assert "trained for" not in process.stdout
    message = process.stderr.splitlines()[-1]
    assert "Training ended without finite steps: the last " in message
    assert "the checkpoint of step 60 is kept" in message
    assert checkpoints.newest_step(out / "ckpt") == 60
    assert checkpoints.not_finite(newest_tensors(out)) is None
    resumed = run_command(*words, "lr=0.002", "--allow-change")  # as the sentence advises
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from step 60" in resumed.stderr


def test_a_run_without_a_single_step_fails_and_cannot_be_evaluated(tmp_path: Path) -> None:
    """The issue's second example: evaluation showed the untrained encoder's 88 % as learned."""
    out = tmp_path / "run"
    words = [
        "backbone=resnet8-w16",
        "batch_size=199",
        "epochs=1",
        "probe_every=0",
        "temperature=1e-40",
        "held_out=0",
    ]
    process = run_command("pretrain", "simclr", "digits", "--out", out, *words)
    assert process.returncode == 2, process.stderr
    assert "the last 9 of 9 changed nothing" in process.stderr
    assert "lr is not the cause" in process.stderr
    evaluation = run_command("evaluate", out, "--protocol", "knn")
    assert evaluation.returncode == 2
    assert "has no trained checkpoint yet" in evaluation.stderr
    assert not (out / "evaluation.json").exists()


def test_the_state_after_an_exploding_step_is_not_saved(tmp_path: Path) -> None:
    """Weights are finite, but everything computed with them is not; so a lower lr did not help."""
    with pytest.raises(UserError, match=r"ended without finite steps: .* the checkpoint of step 4 is kept"):
        pretrain("simclr", "digits", tmp_path, quiet=True, config=EXPLODING)
    dumped = checkpoints.load(next((tmp_path / "diverged").iterdir()))[0]
    name = "method/encoders.network.backbone.conv1.weight"
    assert dumped[name].isfinite().all()  # so a look at the weights alone would have saved it
    assert dumped[name].abs().max() > 1e15
    config = {**EXPLODING, "lr": 0.002}
    run = pretrain("simclr", "digits", tmp_path, quiet=True, allow_change=True, config=config)
    assert run.facts["step"] == 7
    assert all(row["loss"] is not None for row in run.metrics if row["kind"] == "train")


def test_a_last_step_that_explodes_is_detected(tmp_path: Path) -> None:
    config = {**EXPLODING, "lr": "steps(0.002,1e25,0.8)"}  # 0.8 of 7 steps: the seventh alone
    with pytest.raises(UserError, match=r"diverged at its last step, 7: .* the checkpoint of step 6 is kept"):
        pretrain("simclr", "digits", tmp_path, quiet=True, config=config)


def test_embed_refuses_features_that_are_not_finite(tmp_path: Path) -> None:
    """The issue's fourth: finite weights, NaN in every feature, a Parquet file and exit code 0."""
    run = pretrain("simclr", "digits", tmp_path / "run", quiet=True, config=SMALL)
    rewritten(run, 8, lambda weight: torch.full_like(weight, 3e38))
    out = tmp_path / "features.parquet"
    process = run_command("embed", run.path, "digits", "--out", out)
    assert process.returncode == 2
    assert "the features of 1797 of 1797 items of digits are not finite" in process.stderr
    assert not out.exists()
    evaluation = run_command("evaluate", run.path, "--protocol", "knn")
    assert evaluation.returncode == 2
    assert "are not finite" in evaluation.stderr
    assert not (run.path / "evaluation.json").exists()


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_the_newest_finite_checkpoint_is_used(number: float, tmp_path: Path) -> None:
    config = {**SMALL, "checkpoint_every": 4}
    run = pretrain("simclr", "digits", tmp_path, quiet=True, config=config)
    expected = newest_tensors(tmp_path)
    rewritten(run, 8, lambda weight: weight.index_fill(0, torch.tensor([1]), number))
    assert checkpoints.check(tmp_path / "ckpt" / "step-00000008") == (
        "method/encoders.network.backbone.conv1.weight is not finite"
    )
    assert Run.open(tmp_path).facts["step"] == 7
    pretrain("simclr", "digits", tmp_path, quiet=True, config=config)
    assert all(torch.equal(expected[name], value) for name, value in newest_tensors(tmp_path).items())


def test_without_a_finite_checkpoint_a_run_does_not_start_over(tmp_path: Path) -> None:
    run = pretrain("simclr", "digits", tmp_path, quiet=True, config={**SMALL, "keep": 1})
    rewritten(run, 8, lambda weight: weight * torch.nan)
    (tmp_path / "ckpt" / "step-00000007").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"step-00000008 cannot be used \(.*conv1.weight is not finite\)"):
        pretrain("simclr", "digits", tmp_path, quiet=True, config={**SMALL, "keep": 1})


def test_a_stop_during_non_finite_steps_saves_nothing_and_reports_it(tmp_path: Path) -> None:
    config = {**SMALL, "temperature": 1e-40, "max_time": 1e-3}
    with pytest.raises(
        Stopped,
        match=r"at step 1 of 7; training cannot continue from the current state, so it was not saved; .* "
        "resumes from step 0",
    ):
        pretrain("simclr", "digits", tmp_path, quiet=True, config=config)
    assert checkpoints.newest_step(tmp_path / "ckpt") == 0


@pytest.mark.parametrize(
    ("recipe", "change"),
    [("moco", {"negatives": {"size": 512}, "encoders": {"dropout": 0.2}}), ("instdisc", {"bound": "dv"})],
)
def test_checking_before_saving_changes_nothing(recipe: str, change: dict[str, Any], tmp_path: Path) -> None:
    """Saving at every step and only at the last end in the same bits, sampled negatives and dropout included.
    The running mean of dv begins at minus infinity, which does not prevent saving."""
    for name, every in (("often", 1), ("once", 1000)):
        config = {**SMALL, **change, "checkpoint_every": every}
        pretrain(recipe, "digits", tmp_path / name, quiet=True, config=config)
    often, final = newest_tensors(tmp_path / "often"), newest_tensors(tmp_path / "once")
    assert [name for name in final if not torch.equal(final[name], often[name])] == []


def test_a_probe_of_exploded_weights_is_skipped(tmp_path: Path) -> None:
    config = {**EXPLODING, "probe_every": 1.0}
    with pytest.raises(UserError, match="ended without finite steps"):
        pretrain("simclr", "digits", tmp_path, quiet=True, config=config)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "probe"] == [0]
    assert any("the probe was skipped" in row["message"] for row in rows if row["kind"] == "event")


def test_cached_features_must_be_finite(tmp_path: Path) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(torch.arange(len(x)) < 3, torch.nan, 1.0)[:, None]

    digits = open_data("digits").subset(range(20))
    with pytest.raises(NotFinite, match="the features of 3 of 20 items"):
        features(Broken(), digits, PlainImages(8, [0.5] * digits.channels, [0.5] * digits.channels))
    cached_features(tmp_path, "key", lambda: torch.full((2, 3), torch.nan))
    vectors = torch.ones(2, 3)
    assert torch.equal(cached_features(tmp_path, "key", lambda: vectors), vectors)


def test_cmc_may_keep_only_its_first_network(tmp_path: Path) -> None:
    """The saved network reads luminance, the plain view has three channels: its channel is selected."""
    glyphs, data, out = open_data("glyphs"), tmp_path / "glyphs.npz", tmp_path / "run"
    rows = np.arange(300)
    np.savez(data, images=glyphs.load(rows).data, labels=np.asarray(glyphs.labels)[rows])
    words = ["backbone=resnet8-w16", "batch_size=64", "epochs=1", "encoders.keep=first", "--quiet"]
    assert main(["pretrain", "cmc", str(data), "--out", str(out), *words]) == 0
    run = Run.open(out)
    assert [row["step"] for row in run.metrics if row["kind"] == "probe"] == [0, 4]
    encoder, encoders, pictures = run.encoder().eval(), run.method().encoders, torch.randn(5, 3, 32, 32)
    assert isinstance(encoders, PerView)
    with torch.no_grad():
        assert torch.equal(encoder(pictures), encoders.networks[0].backbone(pictures[:, :1]))  # type: ignore[operator]
    assert main(["evaluate", str(out), "--protocol", "knn"]) == 0
    assert main(["embed", str(out), str(data), "--out", str(tmp_path / "features.parquet")]) == 0


@pytest.mark.parametrize("bound", ["nwj", "tuba"])
@pytest.mark.parametrize("critic", ["dot", "bilinear"])
def test_linear_bounds_take_steps_on_a_bank_of_vectors_of_any_length(
    bound: str, critic: str, tmp_path: Path
) -> None:
    """Inner products of vectors that are not of unit length reach 200 here: every step used to be skipped."""
    config = {**SMALL, "bound": bound, "critic": critic, "batch_size": 512}
    run = pretrain("instdisc", "digits", tmp_path, quiet=True, config=config)
    rows = [row for row in run.metrics if row["kind"] == "train"]
    assert all(row["grad_norm"] is not None for row in rows)
    assert run.facts["hooks"]["FiniteMonitor"] == {"skipped": 0, "taken_steps": 3, "skipped_steps": 0}
