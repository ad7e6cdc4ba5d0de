"""Supervised learning as a composition: its loss is cross-entropy, its held-out number a bound on I(x;
label)."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import nearfar as nf
from nearfar.cli import main
from nearfar.core.optimisers import build, layer_scales, set_lr
from nearfar.core.splits import draw_rows
from nearfar.parts.encoders import Prototypes, backbone
from nearfar.run.trained import trains_on_labels

QUICK: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 32,
    "workers": 0,
    "probe_every": 0,
    "held_out": 0,
}


def pictures(count: int = 96, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % classes
    pixels = rng.integers(0, 90, (count, 16, 16, 3))
    pixels[np.arange(count), :, :, labels % 3] += 120
    return pixels.astype(np.uint8), labels


def composed(views: int = 1, **changes: Any) -> nf.Method:
    return nf.recipe(
        "supervised", classes=5, backbone="resnet8-w16", image_size=16, views={"count": views}, **changes
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("views", [1, 2])
def test_the_loss_and_its_gradient_are_those_of_cross_entropy(views: int, bias: bool) -> None:
    """log C - InfoNCE over all classes = -log softmax(w_c^T h(x) + b_c), averaged over views."""
    method = composed(views, encoders={"bias": bias})
    torch.manual_seed(1)
    views_of_batch = tuple(torch.randn(8, 3, 16, 16) for _ in range(views))
    labels = torch.randint(0, 5, (8,))
    outcome = method(nf.Batch(views_of_batch, torch.arange(8), labels))
    outcome.loss.backward()
    encoders: Any = method.encoders
    ours = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
    method.zero_grad()
    features = encoders.network(torch.cat(views_of_batch))
    logits = F.linear(features, encoders.table.weight, encoders.table.bias)
    loss = F.cross_entropy(logits, labels.repeat(views))
    loss.backward()
    assert float(outcome.loss.detach()) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert outcome.ceiling == pytest.approx(math.log(5))
    assert set(ours) == {name for name, _ in method.named_parameters()}
    for name, parameter in method.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_classes_can_be_selected_like_any_candidates() -> None:
    """A ring over classes keeps the most similar wrong ones: parts stay free."""
    method = composed(selection={"name": "ball", "lower": 0.5})
    batch = nf.Batch((torch.randn(4, 3, 16, 16),), torch.arange(4), torch.tensor([0, 1, 2, 3]))
    logits = method.encoders.classifier()(method.encoders.backbone()(batch.views[0]))  # type: ignore[misc]
    wrong = logits.clone().scatter_(1, batch.labels[:, None], -math.inf)  # type: ignore[index]
    hardest = wrong.topk(2, dim=1).values
    truth = logits.gather(1, batch.labels[:, None])  # type: ignore[index]
    expected = -torch.cat([truth, hardest], dim=1).log_softmax(1)[:, 0].mean() - math.log(3)
    assert float(-method(batch).nats) == pytest.approx(float(expected.detach()), rel=1e-4)


def test_missing_labels_get_a_sentence(tmp_path: Path) -> None:
    pixels, _ = pictures()
    with pytest.raises(nf.UserError, match="needs labels, but the data have none"):
        nf.train(pixels, tmp_path / "run", **QUICK, epochs=1)
    with pytest.raises(nf.UserError, match="label of every instance"):
        composed()(nf.Batch((torch.randn(4, 3, 16, 16),), torch.arange(4)))


def test_a_run_learns_its_labels_and_reports_a_bound(tmp_path: Path) -> None:
    pixels, labels = pictures(160)
    run = nf.train(
        pixels, tmp_path / "run", labels=labels, **{**QUICK, "held_out": 0.2}, epochs=4, quiet=True
    )
    method = run.method()
    assert isinstance(method.encoders, Prototypes)
    assert trains_on_labels(method)
    rows = [row for row in run.metrics if row["kind"] == "held-out"]
    assert rows[-1]["status"] == "proven"
    assert rows[-1]["nats"] > rows[0]["nats"] + 0.3
    assert rows[-1]["nats"] <= math.log(
        3
    )  # I(x; label) <= H(label), up to sampling error, far below its ceiling here
    assert run.description.class_count == 3
    reopened = nf.Run.open(run.path).method()
    for name, tensor in method.state_dict().items():
        assert torch.equal(tensor, reopened.state_dict()[name])


def test_a_supervised_run_resumes_bit_equal(tmp_path: Path) -> None:
    pixels, labels = pictures()
    settings = {**QUICK, "epochs": 2, "checkpoint_every": 2, "layer_decay": 0.7, "labels_seed": 3}
    config = {"labels": 0.7}
    uninterrupted = nf.train(pixels, tmp_path / "a", labels=labels, config=config, **settings, quiet=True)
    with pytest.raises(nf.Stopped):
        nf.train(pixels, tmp_path / "b", labels=labels, config=config, **settings, max_time=1e-6, quiet=True)
    parts = nf.train(pixels, tmp_path / "b", labels=labels, config=config, **settings, quiet=True)
    weights = parts.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in uninterrupted.weights().items())


def test_the_command_fine_tunes_another_run_on_a_few_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels, labels = pictures()
    names = np.array(["red", "green", "blue"])
    np.savez(tmp_path / "data.npz", images=pixels, labels=labels, classes=names)
    words = ["backbone=resnet8-w16", "batch_size=16", "workers=0", "held_out=0", "epochs=1", "--quiet"]
    data, first, second = str(tmp_path / "data.npz"), str(tmp_path / "first"), str(tmp_path / "second")
    assert main(["pretrain", "simclr", data, "--out", first, *words]) == 0
    assert main(["train", data, "--out", second, f"init={first}", "labels=8", "layer_decay=0.5", *words]) == 0
    run = nf.Run.open(second)
    assert run.settings.recipe == "supervised"
    assert run.description.instances == 24
    assert run.description.classes == ("red", "green", "blue")
    assert len(run.trained_on(run.open_data())) == 24
    assert json.loads((tmp_path / "second/data.json").read_text())["undrawn"] == 72
    assert main(["train", "--out", second]) == 2
    assert "nearfar train photos/" in capsys.readouterr().err


@given(
    st.lists(st.integers(0, 4), min_size=5, max_size=60),
    st.one_of(st.floats(0.01, 0.99), st.integers(1, 9)),
    st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_classes_are_sampled_by_share_or_count(counts_of: list[int], share: float, seed: int) -> None:
    labels = np.array(counts_of)
    rows = draw_rows(labels, share, seed)
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(rows, draw_rows(labels, share, seed))
    for number in np.unique(labels):
        available, drawn_rows = int((labels == number).sum()), int((labels[rows] == number).sum())
        assert drawn_rows == (max(1, round(share * available)) if share < 1 else min(available, share))


def test_draws_of_other_seeds_differ() -> None:
    labels = np.arange(1000) % 10
    assert not np.array_equal(draw_rows(labels, 0.1, 0), draw_rows(labels, 0.1, 1))


def test_stages_learn_at_powers_of_the_decay() -> None:
    """w <- w - lr d^k g, k the distance from the top: stem d^4, blocks d^3, d^2 and d, layers above at lr."""
    method = composed()
    scales = layer_scales(method, [method.encoders.backbone()], 0.5)
    stages = {"conv1": 4, "bn1": 4, "blocks.0": 3, "blocks.1": 2, "blocks.2": 1, "table": 0}
    initial = {name: p.detach().clone() for name, p in method.named_parameters()}
    optimiser = build("sgd", method, lr=1.0, weight_decay=0.0, momentum=0.0, scales=scales)
    set_lr(optimiser, 0.1)
    for parameter in method.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    for name, parameter in method.named_parameters():
        (depth,) = (
            k for stage, k in stages.items() if f"backbone.{stage}." in name or f"encoders.{stage}." in name
        )
        torch.testing.assert_close(initial[name] - parameter, torch.full_like(parameter, 0.1 * 0.5**depth))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_resnet_has_five_stages_whatever_its_depth(name: str) -> None:
    """The stem and the four stages: with 0.7 the stem learns at 0.17 of the rate, however many blocks a stage has."""
    with torch.device("meta"):
        net = backbone(name, image_size=32)
    scales = layer_scales(net, [net], 0.5)
    assert scales["conv1.weight"] == scales["bn1.bias"] == 0.5**5
    assert {scales[key] for key in scales if key.startswith("layer4.")} == {0.5}
    assert {scales[key] for key in scales if key.startswith("layer1.")} == {0.5**4}
    assert layer_scales(net, [net], 1.0) == {}
