"""A table of numbers as data: laws of its views, and the whole way from a file to an evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.cli import main
from nearfar.data import open_data
from nearfar.errors import UserError
from nearfar.evaluate import evaluate_run
from nearfar.modalities.vectors import VECTORS
from nearfar.modalities.vectors.views import Corrupt, CorruptedVectors, Standardised
from nearfar.run.trained import Run
from nearfar.train.pretrain import pretrain

CPU = torch.device("cpu")
SMALL = {"backbone": "mlp-small", "epochs": 4, "batch_size": 32, "workers": 0, "probe_every": 0}


def blobs(count: int = 160, width: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that differ in the first half of the features; the rest is noise of another scale."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    x = generator.normal(size=(count, width)) * np.linspace(1, 30, width)
    x[:, : width // 2] += 2.0 * labels[:, None] * np.linspace(1, 30, width)[: width // 2]
    return x, labels


@settings(max_examples=30, deadline=None)
@given(noise=st.floats(0, 2), dropout=st.floats(0, 0.9), seed=st.integers(0, 2**32))
def test_noise_and_dropout_have_the_strength_they_are_given(noise: float, dropout: float, seed: int) -> None:
    """A kept feature is its standard score plus N(0, noise²), one left out is 0, its mean."""
    x = np.random.default_rng(1).normal(size=(400, 10)) * 7 + 3
    description: Any = VECTORS.reader.describe(open_data(x), None)
    views = CorruptedVectors(Corrupt(noise, dropout), description, CPU)(
        x.astype(np.float32), seed, 0, np.arange(400)
    )
    (unchanged,) = Standardised(description, CPU)(x.astype(np.float32), 0, 0, np.arange(400))
    torch.testing.assert_close(unchanged.mean(0), torch.zeros(10), atol=1e-5, rtol=0)
    torch.testing.assert_close(unchanged.std(0, correction=0), torch.ones(10), atol=1e-4, rtol=0)
    for view in views:
        gone = view == 0
        # 4000 draws: six standard errors
        assert abs(float(gone.double().mean()) - dropout) < 6 * (dropout * (1 - dropout) / 4000) ** 0.5 + 1e-3
        moved = (view - unchanged)[~gone].double()
        assert abs(float(moved.std()) - noise) < 6 * noise / (2 * len(moved)) ** 0.5 + 1e-5
    if noise > 1e-3:
        assert not torch.equal(*views)


def test_every_way_to_write_a_table_gives_the_same_rows(tmp_path: Path) -> None:
    x, labels = blobs(6, 3)
    names = np.array(["odd", "even"])[1 - labels]
    (tmp_path / "a.csv").write_text(
        "\n".join(
            [
                "a,b,c,label",
                *(f"{','.join(map(repr, row.tolist()))},{n}" for row, n in zip(x, names, strict=True)),
            ]
        )
    )
    columns = {name: x[:, place] for place, name in enumerate("abc")}
    pq.write_table(pa.table({**columns, "label": names}), tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", x=x, labels=names)
    sets = [open_data(tmp_path / f"a.{kind}") for kind in ("csv", "parquet", "npz")]
    sets += [open_data(x, labels=names), open_data((torch.from_numpy(x), names))]
    for opened in sets:
        np.testing.assert_array_equal(opened.load(np.arange(6)), x.astype(np.float32))
        assert [opened.classes[number] for number in opened.labels] == names.tolist()
        assert opened.classes == ("even", "odd")
        assert opened.fingerprint == sets[0].fingerprint


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a,b\n1,2\n3,", "1 rows have nothing in column 'b'"),
        ("a,b\n1,2020-01-01\n3,2021-01-01", "the column `b` is date32"),
        ("a,label\n", "the table holds no rows of numbers"),
        ("a,b\n1,inf\n2,3", "row 0 holds a number that is not finite"),
        ("a,b\n1,2\n2,1e40", "row 1 holds a number that is beyond single precision"),
    ],
)
def test_unusable_table_is_refused(table: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(table)
    with pytest.raises(UserError) as caught:
        open_data(tmp_path / "t.csv")
    assert message in str(caught.value)
    assert "t.csv" in str(caught.value)


def test_simclr_learns_a_table_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, labels = blobs()
    np.savez(tmp_path / "table.npz", x=x, labels=labels)
    run, data = str(tmp_path / "run"), str(tmp_path / "table.npz")
    words = [f"{key}={value}" for key, value in SMALL.items()]
    assert main(["pretrain", "simclr", data, "--out", run, *words, "views.noise=0.5", "--quiet"]) == 0
    opened = Run.open(run)
    assert opened.settings.views == {
        "name": "corrupt", "noise": 0.5, "dropout": 0.2, "count": 2, "symmetric": True,
    }  # fmt: skip
    result = evaluate_run(opened, baselines=True)
    assert set(result["baselines"]) == {"numbers", "untrained"}
    assert result["knn"]["top1"] > 0.8  # chance is 0.5
    assert main(["report", run]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "160 training vectors" in page
    assert "could not be" not in page
    assert main(["pretrain", "cpc", data, "--out", str(tmp_path / "other")]) == 2
    assert "table.npz holds vectors, but cpc is made for recordings" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", ["moco-ring", "instdisc", "byol", "end-to-end", "cmc", "triplet"])
def test_recipes_written_for_images_learn_from_a_table(recipe: str, tmp_path: Path) -> None:
    run = pretrain(recipe, blobs(), tmp_path, quiet=True, config={**SMALL, "epochs": 1})
    assert run.modality is VECTORS
    assert all(np.isfinite(row["loss"]) for row in run.metrics if row["kind"] == "train")
