"""Options of an evaluation: read by a protocol or refused, stored with the figures; image sizes are
respected."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import nearfar as nf
from nearfar.cli import main
from nearfar.core.randomness import short_seed
from nearfar.core.results import Figure
from nearfar.data import open_data
from nearfar.errors import NotFinite, UserError
from nearfar.evaluate.evaluation import Evaluation
from nearfar.evaluate.options import READ_BY, Options
from nearfar.evaluate.probes import few_shot, fractions
from nearfar.evaluate.protocols import NETWORK_PROTOCOLS, PROTOCOLS
from nearfar.evaluate.sets import LabelledFeatures

SMALL: dict[str, Any] = {
    "backbone": "resnet8-w8",
    "batch_size": 16,
    "epochs": 1,
    "workers": 0,
    "probe_every": 0,
    "held_out": 0,
    "quiet": True,
}


def squares(count: int, side: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % 3
    pixels = (
        np.random.default_rng(seed).integers(0, 80, (count, side, side, 3)) + 70 * labels[:, None, None, None]
    )
    return pixels.astype(np.uint8), labels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> nf.Run:
    pixels, labels = squares(60)
    return nf.pretrain(
        "simclr", pixels, tmp_path_factory.mktemp("options") / "run", labels=labels, image_size=12, **SMALL
    )


def test_unused_options_are_refused() -> None:
    """Every option of `READ_BY` exists, its readers are protocols, and it is refused with any other
    protocol."""
    unused: dict[str, Any] = {
        "labels": (0.5,),
        "shots": (2,),
        "lr": (0.5,),
        "layer_decay": 0.5,
        "temperature": 0.5,
    }
    for name, readers in READ_BY.items():
        changed = Options(**{name: unused.get(name, 3)})
        assert set(readers) <= {*PROTOCOLS, *NETWORK_PROTOCOLS}
        for reader in readers:
            value = getattr(changed, name)
            assert changed.changed([reader]) == {name: list(value) if isinstance(value, tuple) else value}
        with pytest.raises(UserError, match=f"{name} was .*, but it is an option of {readers[0]}"):
            changed.changed(["linear", "information"])
    assert Options().changed(["linear"]) == {}


def test_results_with_other_options_are_separate(run: nf.Run) -> None:
    """Five and six epochs of fine-tuning are two results; a result with the same options is replaced."""
    ask: dict[str, Any] = {"protocols": ["few-shot"], "shots": (1,), "ways": 2}
    for episodes in (3, 4, 3):
        nf.evaluate(run, **ask, episodes=episodes)
    stored_settings = [one.settings for one in run.results if "few-shot" in one]
    assert sorted(one["episodes"] for one in stored_settings) == [3, 4]
    assert all(one["ways"] == 2 and one["shots"] == [1] for one in stored_settings)


def test_results_of_other_features_are_kept(run: nf.Run) -> None:
    """A map, or the head's output, is of the same weights: nothing that was found before is dropped."""
    pixels, labels = squares(30, seed=3)
    for features in ("pooled", "map", "head", "pooled"):
        nf.evaluate(
            run, data=open_data(pixels, labels=labels), protocols=["nn"], same_labels=True, baselines=False,
            features=features
        )  # fmt: skip
    stored = [one for one in run.results if one["test"]["samples"] == 30 and "nn" in one]
    assert sorted(one["settings"].get("features", "pooled") for one in stored) == ["head", "map", "pooled"]
    assert len({one["encoder"] for one in stored}) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--labels", "few", "--protocol", "fractions"], "was 'few'; expected numbers separated by commas"),
        (["--labels", "nan", "--protocol", "fractions"], "labels was [nan]"),
        (["--labels", "inf", "--protocol", "fractions"], "labels was [inf]"),
        (["--lr", "nan", "--protocol", "finetune"], "lr was [nan]"),
        (["--shots", "1.5", "--protocol", "few-shot"], "expected whole numbers separated by commas"),
        (["--seed", "-1"], "seed was -1; expected a whole number from 0"),
        (["--seed", str(2**62)], f"seed was {2**62}; expected a whole number from 0 and below 2^62"),
        (["--episodes", "99999999999999", "--protocol", "few-shot"], "a whole number from 1 to 1,000,000"),
        (["--draws", "99999999999999", "--protocol", "fractions"], "a whole number from 1 to 10,000"),
        (["--epochs", "999999999999999999", "--protocol", "finetune"], "a whole number from 1 to 1,000,000"),
        (["--lr", "1e300", "--protocol", "finetune"], "expected numbers above 0 and at most 10"),
        (["--labels", "1e-300", "--protocol", "fractions"], "expected shares from 0.000001 to below 1"),
        (["--epochs", "3"], "epochs was 3, but it is an option of finetune"),
        (["--image-size", "0"], "image_size was 0; expected a whole number from 8 to 4,096"),
        (["--image-size", "1000000"], "image_size was 1000000; expected a whole number from 8 to 4,096"),
        (["--ways", "1", "--protocol", "few-shot"], "ways was 1; expected a whole number from 2"),
        (["--label-column", "fine"], "label_column was given, but no data that have columns"),
        (["--baselines", "pixels", "--no-baselines"], "not allowed with argument --baselines"),
        (["--features", "map", "--protocol", "classifier"], "a run's own classifier reads pooled features"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], sentence: str, run: nf.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["evaluate", str(run.path), *words])
    except SystemExit as stopped:  # argparse leaves this way
        code = int(stopped.code or 0)
    assert code == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert "Traceback" not in message
    assert "lambda" not in message


def test_label_fractions_say_how_many_labels_they_are_of() -> None:
    labels = torch.tensor([0] * 20 + [1] * 4)
    part = LabelledFeatures(torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), labels)
    result = fractions(part, part, Options(labels=(0.5, 10), draws=1))
    assert {name: figures["labels"] for name, figures in result.items()} == {"50 %": 12, "10 per class": 14}
    with pytest.raises(UserError, match="labels was 99 per class; the largest class has 20"):
        fractions(part, part, Options(labels=(99,)))


def test_images_are_stored_large_enough_for_image_size(run: nf.Run) -> None:
    """A run at 12 pixels stores pictures at up to 24; for views of 40 it stores all 60 pixels."""
    pixels, labels = squares(30, side=60, seed=1)
    small, large = (Evaluation(run, (pixels, labels), None, False, "pooled", size) for size in (None, 40))
    assert small.sets[0].load(np.arange(1)).data.shape[1:3] == (24, 24)
    np.testing.assert_array_equal(large.sets[0].load(np.arange(30)).data, pixels)
    view = large.plain_view(large.sets[0].load(np.arange(2)), 0, 0, np.arange(2))[0]
    assert view.shape[2:] == (40, 40)


def test_episodes_are_of_classes_with_enough_examples() -> None:
    """With one training row of class 2, five-shot episodes use the other classes, and the figure names the
    number."""
    rng = np.random.default_rng(0)
    labels = torch.tensor([0] * 8 + [1] * 8 + [2])
    features = torch.from_numpy(np.eye(3)[labels] + 0.01 * rng.normal(size=(17, 3)))
    train = LabelledFeatures(features, labels)
    result = few_shot(train, train, Options(ways=3, shots=(1, 5), episodes=4))
    assert result["3-way 1-shot"]["classes"] == 3
    assert result["2-way 5-shot"]["classes"] == 2
    assert result["2-way 5-shot"]["top1"] == 1
    with pytest.raises(
        UserError, match="two classes with 9 training rows each; 0 of the 3 test classes have them"
    ):
        few_shot(train, train, Options(shots=(9,)))


def table_of(path: Path, image: str, label: str) -> str:
    from nearfar.modalities.image.decode import encode

    pixels, labels = squares(60)
    cells = [{"bytes": encode(picture, "png", 90), "path": None} for picture in pixels]
    pq.write_table(pa.table({image: cells, label: [("ant", "bee", "cat")[i] for i in labels]}), path)
    return str(path)


def test_columns_that_a_run_names_are_read_of_other_tables_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """embed, evaluate and probes read a table with the run's columns, with the usual ones, or with given
    names."""
    same_columns, usual, renamed = (
        table_of(tmp_path / f"{place}.parquet", *names)
        for place, names in enumerate((("photo", "kind"), ("img", "fine_label"), ("shot", "what")))
    )
    settings = {**SMALL, "probe_every": 1, "probe_data": same_columns}
    run = nf.pretrain(
        "simclr", same_columns, tmp_path / "run", image_column="photo", label_column="kind", **settings
    )
    assert any("knn_top1" in row for row in run.metrics)
    first = run.embed(same_columns)
    assert torch.equal(run.embed(usual), first)
    assert nf.evaluate(run, data=usual, protocols=["knn"])["labels"]["matched_by"] == "name"
    out = str(tmp_path / "f.parquet")
    assert main(["embed", str(run.path), renamed, "--out", out]) == 2
    columns = ["--image-column", "shot", "--label-column", "what"]
    assert main(["embed", str(run.path), renamed, "--out", out, *columns]) == 0
    embedded = pq.read_table(out).to_pydict()
    assert set(embedded["class"]) == {"ant", "bee", "cat"}
    assert torch.equal(torch.tensor(embedded["feature"]), first)


@pytest.mark.parametrize("seed", [0, 2**32, 2**62 - 1])
def test_every_protocol_takes_every_seed(seed: int) -> None:
    """The largest seed is one for k-means too, which takes 32 bits; below that it is the seed as it is."""
    rng = np.random.default_rng(0)
    labels = torch.tensor([0, 1, 2] * 8)
    part = LabelledFeatures(torch.from_numpy(np.eye(3)[labels] + 0.01 * rng.normal(size=(24, 3))), labels)
    options = Options(seed=seed, draws=2, episodes=2, shots=(1,), labels=(0.5,))
    for name in ("clustering", "few-shot", "fractions", "retrieval", "linear"):
        PROTOCOLS[name](part, part, options)
    assert short_seed(2**32 - 1) == 2**32 - 1
    assert len({short_seed(2**32 + n) for n in range(100)}) == 100


@pytest.mark.filterwarnings("error")
def test_one_draw_has_no_spread() -> None:
    labels = torch.tensor([0] * 8 + [1] * 8)
    part = LabelledFeatures(torch.eye(2)[labels].double(), labels)
    (one,) = few_shot(part, part, Options(ways=2, shots=(1,), episodes=1)).values()
    assert one.main == Figure(1.0)
    assert one.text("top1") == "100.0 %"
    (measurement,) = fractions(part, part, Options(labels=(0.5,), draws=1)).values()
    assert measurement["spread"] is None
    (several,) = few_shot(part, part, Options(ways=2, shots=(1,), episodes=3)).values()
    assert several.text("top1") == "100.0 ± 0.0 % (100.0–100.0)"


def test_weights_that_fine_tuning_broke_are_blamed_on_the_rate(
    run: nf.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearfar.evaluate.finetune.MIN_STEPS", 1)

    def broken(*given: object, **more: object) -> None:
        raise NotFinite("features of the encoder are not finite")

    monkeypatch.setattr("nearfar.evaluate.finetune.start_from_probe", lambda *given: None)
    monkeypatch.setattr("nearfar.evaluate.finetune.features", broken)
    with pytest.raises(UserError, match="lr was 10, with which fine-tuning ended in weights that are not"):
        nf.evaluate(run, protocols=["finetune"], epochs=1, lr=(10.0,))
