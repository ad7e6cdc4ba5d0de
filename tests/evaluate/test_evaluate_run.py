"""A run judged end to end: real small encoder, real digits, the file it leaves."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from nearfar.errors import UserError
from nearfar.evaluate import PROTOCOLS, Labelled, evaluate_run, knn, linear, scores, stratified_split, table
from nearfar.types import Pixels


@dataclass(frozen=True)
class Digits:
    pixels: np.ndarray
    labels: np.ndarray | None
    name: str
    classes: tuple[str, ...] = tuple("0123456789")
    channels: int = 1

    @property
    def fingerprint(self) -> str:
        return f"{self.name}-{self.pixels.sum()}"

    def __len__(self) -> int:
        return len(self.pixels)

    def load(self, index: np.ndarray) -> Pixels:
        return Pixels(self.pixels[index], np.full((len(index), 2), 8, np.int32))


def digits(rows: slice, name: str) -> Digits:
    images, labels = load_digits(return_X_y=True)
    pixels = (images[rows].reshape(-1, 8, 8, 1) * 15).astype(np.uint8)
    return Digits(pixels, labels[rows].astype(np.int64), name)


def whole(pixels: Pixels, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor]:
    resized = pixels.data[:, :8, :8]  # every digit is 8 × 8; the fixed picture of the cache key is larger
    return (torch.from_numpy(np.ascontiguousarray(resized)).permute(0, 3, 1, 2).float() / 255,)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten())


class SmallRun:
    """The interface of a run over data sets held in memory; counts how often the encoder runs."""

    def __init__(self, path: Path, **sets: Digits) -> None:
        self.path, self.sets = path, sets
        self.trained, self.forwards = network(1), 0
        self.trained.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.forwards += 1

    def encoder(self) -> nn.Module:
        return self.trained

    def untrained(self) -> nn.Module:
        return network(2)

    def plain(self) -> Any:
        return whole

    def images(self, spec: str | None = None) -> Digits:
        return self.sets[spec or "train"]


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return SmallRun(tmp_path, train=digits(slice(0, 600), "train"), test=digits(slice(600, 900), "test"))


def embedded(run: SmallRun, name: str) -> Labelled:
    images = run.sets[name]
    assert images.labels is not None
    with torch.no_grad():
        rows = network(1).eval()(whole(images.load(np.arange(len(images))), 0, 0, np.arange(1))[0])
    return Labelled(rows, torch.from_numpy(images.labels))


def test_result_is_the_protocols_on_the_features(run: SmallRun) -> None:
    result = evaluate_run(
        run, "test", protocols=("knn", "nearest", "linear"), k=7, temperature=0.1, baselines=True
    )
    train, test = embedded(run, "train"), embedded(run, "test")
    both = train.features, train.labels, test.features, test.labels
    assert result["knn"] == knn(*both, k=7, temperature=0.1)
    assert result["nearest"] == knn(*both, k=1, weighting="l2")
    assert result["linear"] == pytest.approx(linear(*both), abs=1e-9)
    assert result["samples"] == {"train": 600, "test": 300}
    assert result["split"] is None
    assert result["data"]["test"]["name"] == "test"
    assert set(result["baselines"]) == {"pixels", "untrained"}
    for baseline in result["baselines"].values():
        assert set(baseline) == {"knn", "nearest", "linear"}
        assert all(0.3 < figures["top1"] <= figures["top5"] for figures in baseline.values())
    pixels = [torch.from_numpy(run.sets[name].pixels).flatten(1).double() / 255 for name in ("train", "test")]
    expected = knn(pixels[0], train.labels, pixels[1], test.labels, k=7, temperature=0.1)
    assert result["baselines"]["pixels"]["knn"] == expected
    assert json.loads((run.path / "evaluation.json").read_text()) == result


def test_without_test_data_a_fifth_is_held_out(run: SmallRun) -> None:
    result = evaluate_run(run)
    train = embedded(run, "train")
    rest, held = (train.rows(rows) for rows in stratified_split(train.labels, 0.2, 0))
    assert result["knn"] == knn(rest.features, rest.labels, held.features, held.labels)
    assert result["samples"] == {"train": len(rest), "test": len(held)}
    assert result["split"] == {"of": "train", "share": 0.2, "seed": 0, "stratified": True}
    assert "baselines" not in result


def test_the_training_data_again_is_no_test(run: SmallRun) -> None:
    """Every image would find itself; the figures must be those of the held-out fifth."""
    assert evaluate_run(run, "train") == evaluate_run(run)


def test_unlabelled_training_data_leave_the_fit_to_the_labelled_ones(run: SmallRun) -> None:
    """Someone with unlabelled pictures and a small labelled set: a fifth of the labelled set is the exam."""
    labelled = SmallRun(run.path, train=run.sets["test"])
    expected = evaluate_run(labelled)
    bare = SmallRun(
        run.path, train=replace(run.sets["train"], labels=None, classes=()), test=run.sets["test"]
    )
    found = evaluate_run(bare, "test")
    assert found["knn"] == expected["knn"]
    assert found["split"]["of"] == "test"
    with pytest.raises(UserError, match="has no labels"):
        evaluate_run(bare)


def test_features_are_computed_once(run: SmallRun) -> None:
    first = evaluate_run(run, "test", protocols=("knn",))
    passes = run.forwards
    assert passes > 0
    assert evaluate_run(run, "test", protocols=("knn",)) == first
    assert run.forwards == passes
    with torch.no_grad():
        next(run.trained.parameters()).add_(0.5)
    assert evaluate_run(run, "test", protocols=("knn",)) != first
    assert run.forwards == 2 * passes


def test_evaluation_never_changes_the_encoder(run: SmallRun) -> None:
    run.trained.train()
    before = {name: value.clone() for name, value in run.trained.state_dict().items()}
    evaluate_run(run, "test", baselines=True)
    assert all(part.training for part in run.trained.modules())
    assert all(torch.equal(before[name], value) for name, value in run.trained.state_dict().items())


def stored(run: SmallRun) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run.path / "evaluation.json").read_text())
    return loaded


def test_file_gathers_protocols_of_the_same_evaluation(run: SmallRun) -> None:
    first = evaluate_run(run, "test", protocols=("knn",), baselines=True)
    second = evaluate_run(run, "test", protocols=("nearest",), baselines=True)
    assert "knn" not in second
    merged = stored(run)
    assert merged["knn"] == first["knn"]
    assert merged["nearest"] == second["nearest"]
    assert set(merged["baselines"]["untrained"]) == {"knn", "nearest"}
    evaluate_run(run, "test", protocols=("knn",))
    assert stored(run)["baselines"] == merged["baselines"]
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []


def test_file_forgets_what_does_not_compare(run: SmallRun) -> None:
    for change in (
        lambda: evaluate_run(run, None, protocols=("nearest",)),
        lambda: evaluate_run(run, "test", protocols=("nearest",), k=5),
        lambda: (
            next(run.trained.parameters()).data.add_(0.1),
            evaluate_run(run, "test", protocols=("nearest",)),
        ),
    ):
        evaluate_run(run, "test", protocols=("knn",), baselines=True)
        change()
        assert "nearest" in stored(run)
        assert "knn" not in stored(run)
        assert "baselines" not in stored(run)


@pytest.mark.parametrize("junk", ["", "{", "[1]", '{"data": 3}', "\udcff"])
def test_a_broken_file_is_replaced(run: SmallRun, junk: str) -> None:
    (run.path / "evaluation.json").write_bytes(junk.encode("utf-8", "surrogateescape"))
    assert evaluate_run(run, "test", protocols=("knn",)) == stored(run)


def test_classes_are_matched_by_name(run: SmallRun) -> None:
    """A test folder without the digit 0 numbers its classes from 1's folder on."""
    full = run.sets["test"]
    assert full.labels is not None
    kept = full.labels > 0
    fewer = Digits(full.pixels[kept], full.labels[kept] - 1, "fewer", tuple("123456789"))
    same = Digits(full.pixels[kept], full.labels[kept], "same", tuple("0123456789"))
    run.sets.update(fewer=fewer, same=same)
    assert evaluate_run(run, "fewer")["knn"] == evaluate_run(run, "same")["knn"]
    assert evaluate_run(run, "fewer")["knn"]["top1"] > 0.7


def test_mistakes_are_one_sentence(run: SmallRun) -> None:
    test = run.sets["test"]
    assert test.labels is not None
    run.sets.update(
        bare=replace(test, labels=None, name="bare"),
        unknown=replace(test, labels=np.full(300, -1), name="unknown"),
        strange=replace(test, classes=(*"012345678", "otter"), name="strange"),
        numbers=replace(test, classes=(), labels=test.labels + 5, name="numbers"),
    )
    for spec, words in (
        ("bare", "bare has no labels"),
        ("unknown", "unknown has 300 images with a label below 0"),
        ("strange", "strange has the classes otter, which train has not"),
        ("numbers", "10, 11, 12, 13, 14, which no training image has"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            evaluate_run(run, spec, protocols=("knn",))
        assert "\n" not in str(caught.value)
    run.sets["train"] = Digits(test.pixels[:3], np.arange(3), "single")
    with pytest.raises(UserError, match="single has one image of each class"):
        evaluate_run(run)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["knm"], r"--protocol was 'knm' \(did you mean knn\?\); allowed are knn, nearest, linear"),
        (["knn", "svm"], r"--protocol was 'svm'; allowed are knn, nearest, linear"),
        ([], "--protocol was empty"),
    ],
)
def test_unknown_protocols_are_named_before_any_work(run: SmallRun, asked: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        evaluate_run(run, "test", protocols=asked)
    assert run.forwards == 0
    assert not (run.path / "evaluation.json").exists()


def test_features_that_are_not_numbers_are_refused() -> None:
    good = Labelled(torch.eye(4), torch.arange(4))
    bad = Labelled(
        torch.eye(4).index_put((torch.tensor(1), torch.tensor(1)), torch.tensor(torch.nan)), torch.arange(4)
    )
    with pytest.raises(UserError, match="test features were NaN or infinite for 1 of 4"):
        scores(good, bad)
    with pytest.raises(UserError, match="train set was empty"):
        scores(good.rows(torch.arange(0)), good)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_tells_separate_classes_apart(protocol: str) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 6
    features = 5 * torch.eye(6)[labels] + 0.3 * torch.randn(120, 6, generator=generator)
    train, test = (Labelled(features[part], labels[part]) for part in (slice(0, 60), slice(60, 120)))
    assert scores(train, test, [protocol])[protocol]["top1"] == 1
    mixed = Labelled(train.features, labels[torch.randperm(60, generator=generator)])
    assert scores(mixed, test, [protocol])[protocol]["top1"] < 0.7


def test_table_shows_baselines_above_what_was_learned(run: SmallRun) -> None:
    result = evaluate_run(run, "test", baselines=True)
    head, *rows, caption = table(result).splitlines()
    assert " ".join(head.split()) == "features knn top-1 knn top-5 linear top-1 linear top-5"
    assert [row.split()[0] for row in rows] == ["pixels", "untrained", "learned"]
    assert f"{100 * result['knn']['top1']:.1f} %" in rows[2]
    assert rows[0].rstrip().endswith(f"{100 * result['baselines']['pixels']['linear']['top5']:.1f} %")
    assert len({len(line) for line in (head, *rows)}) == 1
    assert caption == "fitted on 600 images of train; tested on 300 of test"
    held = table(evaluate_run(run, protocols=("knn",))).splitlines()
    assert held[0].split() == ["features", "knn", "top-1", "knn", "top-5"]
    assert held[-1].endswith("of the held-out 20%")
