"""A run judged end to end: real small encoder, real digits, the file it leaves."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from nearfar.core.results import Answers, Result
from nearfar.core.statistics import wilson
from nearfar.core.strategy import SINGLE
from nearfar.core.types import Pixels
from nearfar.errors import UserError
from nearfar.evaluate import PROTOCOLS, LabelledFeatures, knn, linear, scores, stratified_split, table
from nearfar.evaluate import evaluate_run as evaluate
from nearfar.evaluate.matching import splits_of_one_set
from nearfar.modalities.image import IMAGE
from nearfar.modalities.text.show import clustered
from nearfar.run.trained import Run


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


@dataclass(frozen=True)
class UnchangedDigits:
    """Every digit as it is."""

    def __call__(self, pixels: Pixels, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor]:
        return (torch.from_numpy(pixels.data).permute(0, 3, 1, 2).float() / 255,)


unchanged = UnchangedDigits()


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

    modality = IMAGE
    strategy = SINGLE
    description = None
    unfinished = ""

    def encoder(self) -> nn.Module:
        return self.trained

    def untrained(self) -> nn.Module:
        return network(2)

    def plain_view(self) -> Any:
        return unchanged

    def open_data(self, spec: str | None = None) -> Digits:
        return self.sets[spec or "train"]


def evaluate_run(run: SmallRun, *given: Any, **more: Any) -> Result:
    return evaluate(cast(Run, run), *given, **more)


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return SmallRun(tmp_path, train=digits(slice(0, 600), "train"), test=digits(slice(600, 900), "test"))


def embedded(run: SmallRun, name: str) -> LabelledFeatures:
    images = run.sets[name]
    assert images.labels is not None
    with torch.no_grad():
        rows = network(1).eval()(unchanged(images.load(np.arange(len(images))), 0, 0, np.arange(1))[0])
    return LabelledFeatures(rows, torch.from_numpy(images.labels))


def test_result_is_the_protocols_on_the_features(run: SmallRun) -> None:
    result = evaluate_run(
        run, "test", protocols=("knn", "nearest", "linear"), k=7, temperature=0.1, baselines=True
    )
    train, test = embedded(run, "train"), embedded(run, "test")
    arrays = train.features, train.labels, test.features, test.labels
    assert figures(result["knn"]) == knn(*arrays, k=7, temperature=0.1)
    assert figures(result["nearest"]) == knn(*arrays, k=1, weighting="l2")
    assert figures(result["linear"]) == pytest.approx(linear(*arrays), abs=1e-9)
    assert result["knn"]["interval"] == list(wilson(result["knn"]["top1"], 300))
    for role, count in (("train", 600), ("test", 300)):
        images = run.sets[role]
        assert result[role] == {
            "name": role, "samples": count, "fingerprint": images.fingerprint, "unit": "images"
        }  # fmt: skip
    assert result["split"] is None
    assert result["labels"]["matched_by"] == "name"
    assert set(result["baselines"]) == {"pixels", "untrained"}
    for baseline in result["baselines"].values():
        assert set(baseline) == {"knn", "nearest", "linear"}
        for measurement in baseline.values():
            assert 0.3 < measurement["interval"][0] < measurement["top1"] < measurement["interval"][1] <= 1
            assert measurement["top1"] <= measurement["top5"]
    pixels = [torch.from_numpy(run.sets[name].pixels).flatten(1).double() / 255 for name in ("train", "test")]
    expected = knn(pixels[0], train.labels, pixels[1], test.labels, k=7, temperature=0.1)
    assert figures(result["baselines"]["pixels"]["knn"]) == expected
    assert stored(run) == [result]
    answers = Answers.from_json(
        json.loads((run.path / "evaluation.json").read_text())["results"][0]["knn"]["answers"]
    )
    assert answers is not None
    assert answers.correct.mean() == result["knn"]["top1"]
    np.testing.assert_array_equal(answers.true, test.labels)


def test_without_test_data_a_fifth_is_held_out(run: SmallRun) -> None:
    result = evaluate_run(run)
    train = embedded(run, "train")
    rest, holdout = (train.rows(rows) for rows in stratified_split(train.labels, 0.2, 0))
    assert figures(result["knn"]) == knn(rest.features, rest.labels, holdout.features, holdout.labels)
    assert [result[role]["samples"] for role in ("train", "test")] == [len(rest), len(holdout)]
    assert result["test"]["name"] == "a held-out 20% of train"
    prints = {run.sets["train"].fingerprint, *(result[role]["fingerprint"] for role in ("train", "test"))}
    assert len(prints) == 3, "a part of a set is not the set"
    assert result["split"] == {"of": "train", "share": 0.2, "seed": 0, "stratified": True}
    assert result["baselines"] == {}


def test_training_data_as_test_data_are_split(run: SmallRun) -> None:
    """Every image would find itself; the figures must be those of the held-out fifth."""
    assert evaluate_run(run, "train") == evaluate_run(run)


def test_unlabelled_training_data_leave_the_fit_to_the_labelled_ones(run: SmallRun) -> None:
    """Someone with unlabelled pictures and a small labelled set: a fifth of the labelled set is the exam."""
    labelled = SmallRun(run.path, train=run.sets["test"])
    expected = evaluate_run(labelled)
    bare = SmallRun(
        run.path, train=replace(run.sets["train"], labels=None, classes=()), test=run.sets["test"]
    )
    result = evaluate_run(bare, "test")
    assert result["knn"] == expected["knn"]
    assert result["split"]["of"] == "test"
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
    initial = {name: value.clone() for name, value in run.trained.state_dict().items()}
    evaluate_run(run, "test", baselines=True)
    assert all(part.training for part in run.trained.modules())
    assert all(torch.equal(initial[name], value) for name, value in run.trained.state_dict().items())


def figures(result: dict[str, Any]) -> dict[str, float]:
    """What the protocol itself computed."""
    added = ("interval", "interval_top5", "per_class", "confusion", "classes")
    return {name: value for name, value in result.items() if name not in added}


def stored(run: SmallRun) -> list[dict[str, Any]]:
    loaded = json.loads((run.path / "evaluation.json").read_text())["results"]
    return [result.to_json() for one in loaded if (result := Result.from_json(one)) is not None]


def test_file_gathers_protocols_of_the_same_evaluation(run: SmallRun) -> None:
    first = evaluate_run(run, "test", protocols=("knn",), baselines=True)
    second = evaluate_run(run, "test", protocols=("nearest",), baselines=True)
    assert "knn" not in second
    (merged,) = stored(run)
    assert merged["knn"] == first["knn"]
    assert merged["nearest"] == second["nearest"]
    assert set(merged["baselines"]["untrained"]) == {"knn", "nearest"}
    evaluate_run(run, "test", protocols=("knn",))
    assert stored(run)[0]["baselines"] == merged["baselines"]
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []


def test_a_second_test_set_replaces_nothing(run: SmallRun) -> None:
    """Each test set, each set fitted on and each setting keeps its own result, under its own name."""
    run.sets["other"] = digits(slice(900, 1200), "other")
    first = evaluate_run(run, "test", protocols=("knn",), baselines=True)
    second = evaluate_run(run, "other", protocols=("knn",))
    third = evaluate_run(run, None, protocols=("knn",))
    fourth = evaluate_run(run, "other", protocols=("knn",), k=5)
    fifth = evaluate_run(run, "other", protocols=("knn",), train="test")
    assert stored(run) == [first, second, third, fourth, fifth]
    assert [result["test"]["name"] for result in stored(run)] == [
        "test",
        "other",
        "a held-out 20% of train",
        "other",
        "other",
    ]
    repeated = evaluate_run(run, "test", protocols=("nearest",))
    assert {**first, **repeated, "baselines": first["baselines"]} in stored(run)
    assert len(stored(run)) == 5
    assert len({result.kind for result in map(Result.from_json, stored(run)) if result is not None}) == 5


def test_file_forgets_weights_that_are_gone(run: SmallRun) -> None:
    evaluate_run(run, "test", protocols=("knn",), baselines=True)
    next(run.trained.parameters()).data.add_(0.1)
    current = evaluate_run(run, None, protocols=("nearest",))
    assert stored(run) == [current]


@pytest.mark.parametrize("junk", ["", "{", "[1]", '{"data": 3}', '{"results": [3, {"test": {}}]}', "\udcff"])
def test_a_broken_file_is_replaced(run: SmallRun, junk: str) -> None:
    (run.path / "evaluation.json").write_bytes(junk.encode("utf-8", "surrogateescape"))
    assert [evaluate_run(run, "test", protocols=("knn",))] == stored(run)


def test_classes_are_matched_by_name(run: SmallRun) -> None:
    """A test folder without the digit 0 numbers its classes from 1's folder on."""
    full = run.sets["test"]
    assert full.labels is not None
    rows = full.labels > 0
    fewer = Digits(full.pixels[rows], full.labels[rows] - 1, "fewer", tuple("123456789"))
    same = Digits(full.pixels[rows], full.labels[rows], "same", tuple("0123456789"))
    run.sets.update(fewer=fewer, same=same)
    result = evaluate_run(run, "fewer")
    assert result["knn"] == evaluate_run(run, "same")["knn"]
    assert result["knn"]["top1"] > 0.7
    assert result["labels"]["classes"]["7"] == {"train": 7, "test": 6}
    lines = table(result).splitlines()
    assert "9 classes matched by name; 1 are not in the test set: 0" in lines
    assert ["7", "7", "6"] in [line.split() for line in lines]


def test_unmatched_labels_are_never_scored(run: SmallRun) -> None:
    """Two unnamed sets numbered 0 to 9, of different origin: nothing shows that their numbers mean the
    same."""
    train, test = run.sets["train"], run.sets["test"]
    rng = np.random.default_rng(0)
    foreign = Digits(rng.integers(0, 256, (300, 8, 8, 1), np.uint8), rng.integers(0, 10, 300), "foreign", ())
    run.sets.update(
        {"named": train, "named-test": test, "foreign": foreign},
        train=replace(train, classes=(), name="bare"),
        fresh=replace(test, classes=(), name="fresh"),
    )
    for spec in ("foreign", "fresh"):
        with pytest.raises(UserError, match=r"numbers without names.*same_labels=True.*train") as caught:
            evaluate_run(run, spec, protocols=("knn",))
        assert "\n" not in str(caught.value)
        with pytest.raises(UserError, match=f"the labels of {spec} are numbers"):
            evaluate_run(run, spec, protocols=("knn",), train="named")
    assert not (run.path / "evaluation.json").exists()
    confirmed = evaluate_run(run, "fresh", protocols=("knn",), same_labels=True)
    assert confirmed["labels"]["matched_by"] == "number"
    assert "10 classes matched by number (--same-labels)" in table(confirmed)
    # with a named set the figures are the same, with its names
    with_names = evaluate_run(run, "fresh", protocols=("knn",), train="named", same_labels=True)
    assert (
        with_names["knn"]
        == confirmed["knn"]
        == evaluate_run(run, "named-test", protocols=("knn",), train="named")["knn"]
    )


def test_splits_of_one_set_are_numbered_alike(run: SmallRun) -> None:
    """Neighbouring sets called train and test with the same numbers match; with a number missing, the user
    confirms."""
    train, test = (replace(run.sets[name], classes=()) for name in ("train", "test"))
    assert test.labels is not None
    fewer = Digits(test.pixels[test.labels > 0], test.labels[test.labels > 0], "test", ())
    expected = evaluate_run(run, "test", protocols=("knn",))
    run.sets.update(train=train, test=test, fewer=fewer)
    result = evaluate_run(run, "test", protocols=("knn",))
    assert result["knn"] == expected["knn"]
    assert "10 classes matched by number (splits of one set by their file names)" in table(result)
    with pytest.raises(UserError, match="numbers without names"):
        evaluate_run(run, "fewer", protocols=("knn",))
    assert evaluate_run(run, "fewer", protocols=("knn",), same_labels=True)["labels"]["not_in_test"] == ["0"]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("fsdd_train.parquet", "fsdd_test.parquet", True),
        ("data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet", True),
        ("set/train/", "set/validation", True),
        ("Train.npz", "val.npz", True),
        ("mnist_train.npz", "fashion_test.npz", False),
        ("mnist/train.npz", "fashion/test.npz", False),
        ("mnist.npz", "fashion.npz", False),
        ("trainer.npz", "tester.npz", False),
        ("train.npz", "train.npz", False),
        ("test_a/x.npz", "test_a/y.npz", False),
    ],
)
def test_splits_are_known_by_their_names(first: str, second: str, same: bool) -> None:
    assert splits_of_one_set(first, second) is splits_of_one_set(second, first) is same


def test_transfer_fits_where_the_labels_are(run: SmallRun) -> None:
    """A run on one set judged on another: `train` gives the labels, the encoder stays."""
    test = run.sets["test"]
    run.sets["animals"] = replace(test, name="animals", classes=tuple("abcdefghij"))
    with pytest.raises(UserError, match="0 of 10 match by name"):
        evaluate_run(run, "animals", protocols=("knn",))
    result = evaluate_run(run, "animals", protocols=("knn",), train="animals")
    assert result["split"]["of"] == "animals"
    animals = embedded(run, "animals")
    rest, holdout = (animals.rows(rows) for rows in stratified_split(animals.labels, 0.2, 0))
    assert figures(result["knn"]) == knn(rest.features, rest.labels, holdout.features, holdout.labels)
    assert evaluate_run(run, train="animals", protocols=("knn",)) == result


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
        (
            "strange",
            r"strange has the classes otter, which train does not have \(9 of 10 match by name: 0, .*train",
        ),
        ("numbers", "the labels of numbers are numbers without names"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            evaluate_run(run, spec, protocols=("knn",))
        assert "\n" not in str(caught.value)
    with pytest.raises(
        UserError, match="numbers has the labels 10, 11, 12, 13, 14, which no instance of train"
    ):
        evaluate_run(run, "numbers", protocols=("knn",), same_labels=True)
    run.sets["train"] = Digits(test.pixels[:3], np.arange(3), "single")
    with pytest.raises(UserError, match="single has one image per class"):
        evaluate_run(run)
    run.sets["train"] = Digits(test.pixels[:9], np.zeros(9, np.int64), "uniform")
    with pytest.raises(UserError, match="uniform has one class; evaluation needs at least 2"):
        evaluate_run(run)


@pytest.mark.parametrize(
    ("protocols", "words"),
    [
        (["knm"], r"protocols was 'knm' \(did you mean knn\?\)"),
        (["knn", "svm"], r"protocols was 'svm' .*; expected knn, nn, nearest, linear, linear-sgd, mlp"),
        ([], "protocols was empty"),
    ],
)
def test_unknown_protocols_are_named_before_any_work(run: SmallRun, protocols: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        evaluate_run(run, "test", protocols=protocols)
    assert run.forwards == 0
    assert not (run.path / "evaluation.json").exists()


def test_features_that_are_not_numbers_are_refused() -> None:
    good = LabelledFeatures(torch.eye(4), torch.arange(4))
    bad = LabelledFeatures(
        torch.eye(4).index_put((torch.tensor(1), torch.tensor(1)), torch.tensor(torch.nan)), torch.arange(4)
    )
    with pytest.raises(UserError, match="test features were NaN or infinite for 1 of 4"):
        scores(good, bad)
    with pytest.raises(UserError, match="train set was empty"):
        scores(good.rows(torch.arange(0)), good)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_separates_distinct_classes(protocol: str) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 6
    features = 5 * torch.eye(6)[labels] + 0.3 * torch.randn(120, 6, generator=generator)
    train, test = (LabelledFeatures(features[part], labels[part]) for part in (slice(0, 60), slice(60, 120)))
    result = scores(train, test, [protocol], labels=(0.5,), episodes=5)
    assert {path.partition("/")[0] for path in result} == {protocol}
    for figures in result.values():
        reached = [figures[name] for name in ("top1", "nmi", "ari", "recall@1", "map") if name in figures]
        assert reached == pytest.approx([1.0] * len(reached), abs=1e-6)
        assert reached or figures["nats"] > 0.9 * math.log(6), "all of a label's entropy"
    mixed = LabelledFeatures(train.features, labels[torch.randperm(60, generator=generator)])
    worse = scores(mixed, test, [protocol], labels=(0.5,), episodes=5)
    if protocol == "clustering":
        assert worse == result, "nothing is fitted on train"
        return
    for figures in worse.values():
        assert figures.get("top1", figures.get("map", figures.get("nats", 0) / math.log(6))) < 0.7


def test_table_lists_baselines_before_learned_features(run: SmallRun) -> None:
    result = evaluate_run(run, "test", baselines=True)
    head, *rows, sets, intervals, matched = table(result).splitlines()
    assert " ".join(head.split()) == "features knn top-1 knn top-5 linear top-1 linear top-5"
    assert [row.split()[0] for row in rows] == ["pixels", "untrained", "learned"]
    top1, (low, high) = (result["knn"][key] for key in ("top1", "interval"))
    assert f"{100 * top1:.1f} % ({100 * low:.1f}–{100 * high:.1f})" in rows[2]
    top5, (low, high) = (result["baselines"]["pixels"]["linear"][key] for key in ("top5", "interval_top5"))
    assert rows[0].rstrip().endswith(f"{100 * top5:.1f} % ({100 * low:.1f}–{100 * high:.1f})")
    assert len({len(line) for line in (head, *rows)}) == 1
    assert sets == "fitted on 600 images: train; tested on 300 images: test"
    assert intervals.startswith("in brackets, 95% intervals")
    assert matched == "10 classes matched by name"
    lines = table(evaluate_run(run, protocols=("knn",))).splitlines()
    assert lines[0].split() == ["features", "knn", "top-1", "knn", "top-5"]
    assert lines[-2].endswith("images: a held-out 20% of train")


def test_answers_within_a_block_are_dependent() -> None:
    """Ten answers that always agree are one; answers that have nothing to do with each other are ten."""
    generator = torch.Generator().manual_seed(0)
    right = (torch.rand(400, generator=generator) < 0.6).double()
    ten = torch.full((400,), 10.0).double()
    assert clustered(10 * right, ten) == pytest.approx(wilson(float(right.mean()), 400), abs=1e-3)
    sums = torch.bernoulli(torch.full((400, 10), 0.6).double(), generator=generator).sum(1)
    assert clustered(sums, ten) == pytest.approx(wilson(float(sums.sum() / 4000), 4000), abs=3e-3)
    assert clustered(ten, ten) == wilson(1.0, 400)
    assert clustered(ten[:1], ten[:1]) == wilson(1.0, 1)
