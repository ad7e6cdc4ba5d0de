"""Every protocol against an independent reference: scikit-learn, torchmetrics, or loops that can be read."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.datasets import load_digits
from torch import nn

import nearfar as nf
from nearfar import UserError
from nearfar.core.results import Figure, Measurement, mean_over_draws
from nearfar.core.splits import draw_rows
from nearfar.core.statistics import wilson
from nearfar.estimate.label_information import infonce_of_labels, label_information
from nearfar.evaluate import LabelledFeatures, Options, scores, table
from nearfar.evaluate.accuracy import classified
from nearfar.evaluate.evaluation import Evaluation
from nearfar.evaluate.finetune import retake_statistics, start_from_probe
from nearfar.evaluate.linear import fit_chosen, linear
from nearfar.evaluate.measures import (
    calibration,
    clustering,
    expected_calibration_error,
    information,
    retrieval,
)
from nearfar.evaluate.probes import few_shot, fractions, mlp
from nearfar.parts.encoders.prototypes import Prototypes
from nearfar.run.features import encoder_digest, features

OPTIONS = Options(draws=2, episodes=40, labels=(0.05, 3), shots=(1,))
PROBED = ["linear", "calibration", "information"]


@pytest.fixture(scope="module")
def sets() -> tuple[LabelledFeatures, LabelledFeatures]:
    x, y = load_digits(return_X_y=True)
    rows, labels = torch.from_numpy(x / 16), torch.from_numpy(y)
    return LabelledFeatures(rows[:500], labels[:500]), LabelledFeatures(rows[500:800], labels[500:800])


def test_per_class_and_confusion_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    truth, predictions = rng.integers(2, 6, 200), rng.integers(2, 6, 200)
    result = classified(torch.from_numpy(predictions)[:, None], torch.from_numpy(truth), 4)
    assert result["top1"] == pytest.approx(metrics.accuracy_score(truth, predictions))
    matrix = metrics.confusion_matrix(truth, predictions)
    assert result["confusion"] == {"classes": ["2", "3", "4", "5"], "counts": matrix.tolist()}
    recall = metrics.recall_score(truth, predictions, average=None)
    assert list(result["per_class"].values()) == pytest.approx(list(recall))


def test_a_mean_over_draws_has_a_spread_and_an_interval() -> None:
    draws = [Measurement({"top1": Figure(value), "top5": Figure(1.0)}) for value in (0.2, 0.4, 0.9)]
    mean = mean_over_draws(draws, 100)
    assert mean["top1"] == pytest.approx(0.5)
    assert mean["interval"] == list(wilson(mean["top1"], 100))
    assert mean["spread"] == pytest.approx(float(np.std([0.2, 0.4, 0.9], ddof=1)))
    assert mean["draws"] == [0.2, 0.4, 0.9]


def test_fractions_are_linear_probes_on_drawn_rows(sets: tuple[LabelledFeatures, LabelledFeatures]) -> None:
    train, test = sets
    result = fractions(train, test, OPTIONS)
    assert set(result) == {"5 %", "3 per class"}
    for name, labels in (("5 %", 0.05), ("3 per class", 3)):
        expected = []
        for draw in range(2):
            rows = torch.from_numpy(draw_rows(train.labels.numpy(), labels, draw))
            part = train.rows(rows)
            expected.append(linear(part.features, part.labels, test.features, test.labels, seed=draw)["top1"])
        assert result[name]["draws"] == expected
        assert result[name]["top1"] == pytest.approx(np.mean(expected))


def test_one_shot_with_all_classes_is_nearest_neighbour_of_the_drawn(
    sets: tuple[LabelledFeatures, LabelledFeatures],
) -> None:
    """With one row per class to draw from, every episode is the same: the class of the nearest of ten by
    cosine."""
    train, test = sets
    first = torch.stack([(train.labels == number).nonzero()[0, 0] for number in range(10)])
    few = train.rows(first)
    result = few_shot(few, test, Options(ways=10, shots=(1,), episodes=3, queries=10**6))["10-way 1-shot"]
    cosine = nn.functional.normalize(test.features, dim=1) @ nn.functional.normalize(few.features, dim=1).T
    expected = float((few.labels[cosine.argmax(1)] == test.labels).double().mean())
    assert result["top1"] == pytest.approx(expected)
    assert result["spread"] == pytest.approx(0, abs=1e-12)


def test_few_shot_on_noise_is_at_chance() -> None:
    torch.manual_seed(0)
    first, second = (LabelledFeatures(torch.randn(400, 8), torch.arange(400) % 8) for _ in range(2))
    result = few_shot(first, second, Options(ways=4, episodes=200, shots=(5,)))["4-way 5-shot"]
    assert abs(result["top1"] - 0.25) < 4 * result["spread"] / math.sqrt(200)


def test_clusters_of_separate_classes_are_the_classes() -> None:
    labels = torch.arange(90) % 3
    separate = LabelledFeatures(nn.functional.one_hot(labels, 3).double() + 0.01 * torch.randn(90, 3), labels)
    result = clustering(separate, separate, OPTIONS)
    assert result["nmi"] == pytest.approx(1)
    assert result["ari"] == pytest.approx(1)
    noise = LabelledFeatures(torch.randn(300, 3), torch.arange(300) % 3)
    assert abs(clustering(noise, noise, OPTIONS)["ari"]) < 0.1


def test_retrieval_is_average_precision_by_scikit_learn(
    sets: tuple[LabelledFeatures, LabelledFeatures],
) -> None:
    train, test = sets
    result = retrieval(train, test.rows(torch.arange(60)), OPTIONS)
    keys, queries = (nn.functional.normalize(part.features, dim=1).numpy() for part in (train, test))
    precision, first = [], []
    for query in range(60):
        scores = queries[query] @ keys.T
        relevant = (train.labels == test.labels[query]).numpy()
        precision.append(metrics.average_precision_score(relevant, scores))
        first.append(relevant[np.argsort(-scores, kind="stable")])
    assert result["map"] == pytest.approx(np.mean(precision), abs=1e-4)
    for k in (1, 5, 10):
        assert result[f"recall@{k}"] == pytest.approx(np.mean([row[:k].any() for row in first]))
        assert result["intervals"][f"recall@{k}"] == list(wilson(result[f"recall@{k}"], 60))
    half = 2.0009954 * np.std(precision, ddof=1) / math.sqrt(60)  # Student's t with 59 degrees, 97.5 %
    assert result["intervals"]["map"] == pytest.approx(
        [np.mean(precision) - half, np.mean(precision) + half], abs=1e-4
    )


def test_linear_calibration_and_information_read_one_probe(
    sets: tuple[LabelledFeatures, LabelledFeatures], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Solving it is most of their cost."""
    separate = [scores(sets[0].rows(torch.arange(len(sets[0]))), sets[1], [name]) for name in PROBED]
    solved = []

    def counting(*positional: Any, **keywords: Any) -> Any:
        solved.append(keywords)
        return fit_chosen(*positional, **keywords)

    monkeypatch.setattr(sys.modules["nearfar.evaluate.linear"], "fit_chosen", counting)
    train = sets[0].rows(torch.arange(len(sets[0])))
    joint = scores(train, sets[1], PROBED)
    assert len(solved) == 1
    for name, expected in zip(PROBED, separate, strict=True):
        assert joint[name] == expected[name]
    scores(train, sets[1], ["linear"], seed=1)
    assert len(solved) == 2, "another seed chooses its penalty on another fifth"


def test_the_calibration_error_is_that_of_torchmetrics() -> None:
    from torchmetrics.functional.classification import multiclass_calibration_error

    torch.manual_seed(0)
    p, y = torch.randn(500, 6).mul(2).softmax(1), torch.randint(0, 6, (500,))
    expected = multiclass_calibration_error(p, y, num_classes=6, n_bins=15, norm="l1")
    error, bins = expected_calibration_error(p, nn.functional.one_hot(y, 6).double())
    assert error == pytest.approx(float(expected), abs=1e-6)
    assert sum(one["rows"] for one in bins) == 500


def test_probe_of_noise_is_calibrated_and_uninformative() -> None:
    torch.manual_seed(0)
    first, second = (LabelledFeatures(torch.randn(600, 5), torch.randint(0, 3, (600,))) for _ in range(2))
    calibration_figures = calibration(first, second, OPTIONS)
    assert calibration_figures["ece"] < 0.1
    assert calibration_figures["log_loss"] == pytest.approx(math.log(3), abs=0.02)
    bounds = information(first, second, OPTIONS)
    assert bounds["at_least"]["nats"] < 0.02


def test_the_bound_on_labels_is_infonce_over_all_other_rows() -> None:
    """InfoNCE of the n × n matrix f(x_i, y_j) equals the sum over classes weighted by their counts."""
    torch.manual_seed(0)
    f, y = torch.randn(40, 4, dtype=torch.float64), torch.randint(0, 4, (40,))
    scores_of_all = f[:, y]
    negatives = scores_of_all[~torch.eye(40, dtype=torch.bool)].view(40, 39)
    expected = nf.InfoNCE()(nf.Scores.of(scores_of_all.diagonal(), negatives))
    assert infonce_of_labels(f, y) == pytest.approx(float(expected), rel=1e-12)


def test_the_bound_on_labels_stays_below_the_truth_and_near_it() -> None:
    """y of two classes, x one of two values with a flip of 10 %: I = log 2 - H(0.1); the critic is log p(y |
    x)."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 20_000)
    x = np.where(rng.random(20_000) < 0.1, 1 - y, y)
    log_p = torch.from_numpy(np.log(np.where(np.arange(2)[None] == x[:, None], 0.9, 0.1)))
    truth = math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9)
    estimate = label_information(log_p, torch.from_numpy(y))
    assert abs(estimate["nats"] - truth) < 4 * estimate["error"]
    assert truth - 0.05 < estimate["at_least"]["nats"] < truth + 4 * estimate["error"]
    assert estimate["at_least"]["certificate"]["status"] == estimate["certificate"]["status"] == "proven"
    assert (
        label_information(log_p, torch.from_numpy(y), held_out=False)["certificate"]["status"]
        == "not covered"
    )
    assert estimate["entropy"] == pytest.approx(math.log(2), abs=1e-3)


def test_mlp_solves_exclusive_or() -> None:
    """Exclusive or: a linear probe is at chance, a hidden layer is not; its decay is chosen without test
    rows."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(900, 2)))
    part = LabelledFeatures(x, ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long())
    train, test = part.rows(torch.arange(600)), part.rows(torch.arange(600, 900))
    assert linear(train.features, train.labels, test.features, test.labels)["top1"] < 0.65
    result = mlp(train, test, OPTIONS)
    assert result["top1"] > 0.9
    assert len(result["draws"]) == 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> nf.Run:
    pixels, labels = colours(160)
    settings: dict[str, Any] = {
        "backbone": "resnet8-w16",
        "batch_size": 32,
        "epochs": 1,
        "workers": 0,
        "probe_every": 0,
        "held_out": 0,
    }
    return nf.pretrain(
        "simclr", pixels, tmp_path_factory.mktemp("run") / "a", labels=labels, **settings, quiet=True
    )


def colours(count: int, channels: int = 3, side: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 4
    pixels = rng.integers(0, 60, (count, side, side, channels))
    pixels += 45 * labels[:, None, None, None]
    return pixels.astype(np.uint8), labels


ALL = [
    "knn",
    "nn",
    "linear",
    "mlp",
    "fractions",
    "few-shot",
    "clustering",
    "retrieval",
    "calibration",
    "information",
]
NETWORK = ["finetune", "finetune-fractions", "quality"]
QUICK: dict[str, Any] = {"episodes": 5, "draws": 2, "labels": (0.2,), "epochs": 1, "batch_size": 32}


def test_protocols_do_not_change_the_encoder(run: nf.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every protocol, fine-tuning included, leaves weights and statistics of the encoder bit-identical, and
    no gradient is computed for it."""
    encoder = run.encoder()
    initial, modes = encoder_digest(encoder), [part.training for part in encoder.modules()]
    monkeypatch.setattr("nearfar.evaluate.finetune.MIN_STEPS", 4)
    for name in ("MIN_STEPS", "EPOCHS"):
        monkeypatch.setattr(f"nearfar.evaluate.probes.{name}", 2)
    monkeypatch.setattr(type(run), "encoder", lambda self, features="pooled": encoder)
    result = nf.evaluate(run, protocols=[*ALL, *NETWORK], baselines=True, **QUICK)
    assert encoder_digest(encoder) == initial == result["encoder"]
    assert [part.training for part in encoder.modules()] == modes
    assert all(parameter.grad is None for parameter in encoder.parameters())
    for name in (*ALL, *NETWORK):
        assert name in result
        assert name in result["baselines"]["untrained"]
    assert result["information"]["certificate"]["status"] == "not covered", "its pixels were trained on"
    certificate = result["baselines"]["pixels"]["information"]["at_least"]["certificate"]
    assert (certificate["status"], "held out class by class" in certificate["condition"]) == (
        "not covered",
        True,
    )
    assert result["finetune"]["interval"] == list(wilson(result["finetune"]["top1"], 32))
    assert result["finetune"]["layer_decay"] == 0.7
    assert result["baselines"]["untrained"]["finetune"]["layer_decay"] == 1, "nothing to keep from scratch"
    assert math.isfinite(result["quality"]["lidar"])
    assert len(table(result).splitlines()) > 25
    assert "top5" in result["knn"]
    assert "top-5" not in table(result), "top-5 is meaningless with four classes"


def test_rows_seen_in_training_are_reported_and_excluded_from_the_bound(run: nf.Run) -> None:
    """20 of 50 test pictures copy training pictures: this is reported, and `information` uses the other
    30."""
    pixels, labels = colours(100, seed=5)
    new, kinds = colours(30, seed=6)
    mixed, mixed_labels = np.concatenate([new, pixels[:20]]), np.concatenate([kinds, labels[:20]])
    options: dict[str, Any] = {
        "train": (pixels, labels),
        "same_labels": True,
        "protocols": ["information", "knn"],
    }
    clean = nf.evaluate(run, data=(new, kinds), **options, baselines=["pixels"])
    result = nf.evaluate(run, data=(mixed, mixed_labels), **options, baselines=["pixels"])
    assert "overlap" not in clean
    assert result["overlap"].startswith("20 of the 50 test rows are identical to rows fitted on")
    assert result["overlap"] in table(result)
    for one, second in ((clean, result), (clean["baselines"]["pixels"], result["baselines"]["pixels"])):
        assert second["information"]["samples"] == 30
        assert second["information"]["at_least"]["nats"] == pytest.approx(
            one["information"]["at_least"]["nats"], abs=1e-4
        )
        certificate = second["information"]["at_least"]["certificate"]
        assert certificate["status"] == "proven"
        assert "unlike any fitted on, which 30 of these 50 rows are" in certificate["condition"]
    duplicates = nf.evaluate(run, data=(pixels[:20], labels[:20]), **options)
    assert duplicates["information"]["at_least"]["certificate"]["status"] == "not covered", (
        "nothing new is left"
    )


def test_rows_that_an_encoder_or_its_ancestor_was_trained_on_prove_nothing(tmp_path: Path) -> None:
    """Random labels: I = 0. A network, or its ancestor, that memorised them is evaluated on part of them."""
    rng = np.random.default_rng(0)
    pixels, coins = rng.integers(0, 256, (96, 8, 8, 3), np.uint8), rng.integers(0, 2, 96)
    for name, rows in (("whole", slice(0, 96)), ("a", slice(0, 48)), ("b", slice(49, 96))):
        np.savez(tmp_path / f"{name}.npz", images=pixels[rows], labels=coins[rows])
    settings: dict[str, Any] = {
        "backbone": "resnet8-w16",
        "batch_size": 24,
        "workers": 0,
        "held_out": 0,
        "quiet": True,
    }
    settings |= {"probe_every": 0}
    learned = nf.train(tmp_path / "whole.npz", out=tmp_path / "learned", epochs=12, **settings)
    child = nf.pretrain(
        "simclr",
        tmp_path / "a.npz",
        tmp_path / "child",
        epochs=1,
        lr=1e-6,
        init=str(learned.path),
        **settings,
    )
    for run in (learned, child):
        result = nf.evaluate(
            run,
            train=tmp_path / "a.npz",
            data=tmp_path / "b.npz",
            same_labels=True,
            protocols=["linear", "information"],
        )
        assert "trained on labels" in result["leak"]
        assert result["information"]["at_least"]["certificate"]["status"] == "not covered"


def test_selected_baselines(run: nf.Run) -> None:
    assert set(nf.evaluate(run, protocols=["knn"], baselines=["untrained"])["baselines"]) == {"untrained"}
    with pytest.raises(UserError, match=r"^baselines was 'noise'; expected pixels, untrained"):
        nf.evaluate(run, protocols=["knn"], baselines=["noise"])


def test_fine_tuning_fits_its_labels(run: nf.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.evaluate.finetune.MIN_STEPS", 40)
    result = nf.evaluate(run, protocols=["finetune"], epochs=4, batch_size=32, lr=(1e-6, 3e-3))
    assert result["finetune"]["top1"] > 0.8
    assert result["finetune"]["lr"] == 3e-3, "the rate that does better on the validation fifth"


def test_fine_tuning_starts_from_the_linear_probe(run: nf.Run) -> None:
    """softmax(W' h + b') with the probe's standardisation folded in; classes without labels stay unknown."""
    evaluation = Evaluation(run, None, None, False)
    fit, ask = evaluation.split(0).labelled()
    subject = evaluation.subject(run.encoder(), fit, ask, trained=True, unseen=None)
    rows, test = (features(run.encoder(), part.instances, subject.plain_view) for part in (fit, ask))
    encoders = Prototypes(run.encoder(), dim=rows.shape[1], classes=6)
    initial = encoders.table.weight[4:].clone()
    start_from_probe(encoders, subject, fit, 0)
    probe, _ = fit_chosen(rows, fit.labels, seed=0)
    with torch.no_grad():
        log_probabilities = encoders.classifier()(test)[:, :4].log_softmax(1)
        summed = (test.abs() @ encoders.table.weight.abs().T + encoders.table.bias.abs()).max()
    rounding = 4 * rows.shape[1] * torch.finfo(torch.float32).eps * float(summed)  # of the float32 products
    torch.testing.assert_close(
        log_probabilities.double(), probe.log_probabilities(test).double(), atol=rounding, rtol=0
    )
    assert torch.equal(encoders.table.weight[4:], initial)


def test_fine_tuning_on_other_data_recomputes_statistics(run: nf.Run) -> None:
    """The first norm gets the mean and variance of its inputs over new pictures; on the run's own it is
    unchanged."""
    pixels, labels = colours(64, seed=3)
    evaluation = Evaluation(run, (255 - pixels, labels), None, False)
    fit, ask = evaluation.split(0).labelled()
    encoder = run.encoder()
    subject = evaluation.subject(encoder, fit, ask, trained=True, unseen=None)
    assert not subject.own_data
    assert Evaluation(run, None, None, False).subject(encoder, fit, ask, trained=True, unseen=None).own_data
    first = next(part for part in encoder.modules() if isinstance(part, nn.BatchNorm2d))
    inputs: list[torch.Tensor] = []
    hook = first.register_forward_pre_hook(lambda _, given: inputs.append(given[0].double()))
    retake_statistics(encoder, subject, fit)
    hook.remove()
    rows = inputs[0].transpose(0, 1).flatten(1)
    rounding = rows.shape[1] ** 0.5 * torch.finfo(torch.float32).eps * float(rows.abs().max()) ** 2 + 1e-6
    assert first.running_mean is not None
    assert first.running_var is not None
    torch.testing.assert_close(first.running_mean.double(), rows.mean(1), atol=rounding, rtol=1e-5)
    torch.testing.assert_close(first.running_var.double(), rows.var(1), atol=rounding, rtol=1e-4)
    assert not any(part.training for part in encoder.modules())
    assert first.momentum == run.encoder().get_submodule(_name_of(encoder, first)).momentum


def test_statistics_are_recomputed_only_for_other_data(run: nf.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuning recomputes them with --train of another set, not on the run's own, and not from scratch."""
    calls: list[int] = []
    monkeypatch.setattr("nearfar.evaluate.finetune.MIN_STEPS", 2)
    monkeypatch.setattr(
        "nearfar.evaluate.finetune.retake_statistics", lambda _, __, train: calls.append(len(train.labels))
    )
    nf.evaluate(run, protocols=["finetune"], epochs=1, batch_size=64)
    assert calls == []
    nf.evaluate(
        run,
        train=colours(40, seed=3),
        protocols=["finetune"],
        epochs=1,
        batch_size=32,
        baselines=["untrained"],
    )
    assert calls == [32]


def _name_of(encoder: nn.Module, part: nn.Module) -> str:
    return next(name for name, module in encoder.named_modules() if module is part)


@pytest.mark.parametrize(("channels", "side"), [(1, 16), (3, 24), (1, 8)])
def test_other_channels_sizes_and_classes_are_evaluated(run: nf.Run, channels: int, side: int) -> None:
    """Grey to colour and another size, with statistics of the data fitted on."""
    pixels, labels = colours(120, channels, side, seed=1)
    result = nf.evaluate(run, train=(pixels, labels % 3), protocols=["knn", "linear"], image_size=side)
    assert result["linear"]["top1"] > 0.5
    assert result["input"]["size"] == side
    level = pixels.reshape(-1, channels).mean(0) / 255
    expected = level if channels == 3 else np.repeat(level, 3)
    assert result["input"]["mean"] == pytest.approx(expected.tolist())
    assert "mean and standard deviation of array" in table(result)


def test_colour_becomes_luminance_for_a_grey_run(tmp_path: Path) -> None:
    from PIL import Image

    from nearfar.modalities.image.data import ConvertedStore, StackedStore

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 9, 7, 3), np.uint8)
    grey = ConvertedStore(StackedStore(pixels), 1).take(np.arange(6)).data[..., 0]
    expected = [np.asarray(Image.fromarray(picture).convert("L")) for picture in pixels]
    assert np.abs(grey.astype(int) - np.stack(expected)).max() <= 1
    restored = ConvertedStore(StackedStore(grey[..., None]), 3).take(np.arange(6)).data
    assert (restored == grey[..., None]).all()


@pytest.mark.parametrize("kind", ["map", "head"])
def test_features_before_pooling_and_after_the_head(run: nf.Run, kind: Any) -> None:
    """In resnet8 the mean of the map over its places is the pooled feature; the head gives what the method
    scores."""
    method = run.method()
    view = run.plain_view()(run.open_data().load(np.arange(5)), 0, 0, np.arange(5))[0]
    with torch.no_grad():
        output, pooled = run.encoder(kind)(view), run.encoder()(view)
        if kind == "map":
            torch.testing.assert_close(output.view(5, pooled.shape[1], -1).mean(2), pooled)
        else:
            torch.testing.assert_close(method.critic.prepare(output), method.embed(view))
    assert nf.evaluate(run, protocols=["linear"], features=kind)["settings"]["features"] == kind


def test_a_run_of_two_networks_has_its_maps_side_by_side(tmp_path: Path) -> None:
    pixels, labels = colours(64)
    settings: dict[str, Any] = {
        "backbone": "resnet8-w16",
        "batch_size": 32,
        "epochs": 1,
        "workers": 0,
        "probe_every": 0,
    }
    run = nf.pretrain("cmc", pixels, tmp_path / "cmc", labels=labels, **settings, quiet=True)
    view = run.plain_view()(run.open_data().load(np.arange(3)), 0, 0, np.arange(3))[0]
    with torch.no_grad():
        assert run.encoder("map")(view).shape == (3, 2 * 128 * 4)
        assert run.encoder("head")(view).shape == (3, 2 * 128)
    assert "lidar" not in nf.evaluate(run, protocols=["quality"])["quality"]


def test_training_labels_in_the_test_set_are_reported(tmp_path: Path) -> None:
    pixels, labels = colours(96)
    settings: dict[str, Any] = {
        "backbone": "resnet8-w16",
        "batch_size": 32,
        "epochs": 1,
        "workers": 0,
        "probe_every": 0,
    }
    run = nf.train(pixels, tmp_path / "run", labels=labels, **settings, quiet=True)
    result = nf.evaluate(run, protocols=["knn"])
    assert "trained on labels" in result["leak"]
    assert result["leak"] in table(result)
    assert "leak" not in nf.evaluate(run, protocols=["knn"], data=colours(40, seed=2), same_labels=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": (2.5,)}, "labels was"),
        ({"draws": 0}, "draws was 0"),
        ({"layer_decay": 2}, "layer_decay was 2"),
        ({"features": "tokens"}, "features was 'tokens'; expected pooled, map, head"),
        ({"shots": ()}, "shots was"),
    ],
)
def test_bad_options_are_one_sentence(run: nf.Run, options: dict[str, Any], words: str) -> None:
    with pytest.raises(nf.UserError, match=words):
        nf.evaluate(run, protocols=["fractions"], **options)
