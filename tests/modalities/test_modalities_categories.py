"""Tables with categories, and views by corruption from marginals (SCARF, Bahri et al. 2022)."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pytest
import torch

import nearfar as nf
from nearfar.data import open_data
from nearfar.errors import Stopped, UserError
from nearfar.modalities.vectors import VECTORS, VectorsDescription
from nearfar.modalities.vectors.data import marginals
from nearfar.modalities.vectors.views import Corrupt, ResampledVectors, Scarf, Standardised

CPU = torch.device("cpu")


def frame(rows: int = 60) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": generator.normal(40, 12, rows),
            "city": generator.choice(["Bern", "Oslo", "Rome"], rows, p=[0.6, 0.3, 0.1]),
            "owner": generator.choice(["no", "yes"], rows),
            "rooms": generator.integers(1, 6, rows),
            "label": generator.choice(["a", "b"], rows),
        }
    )


def test_frames_csv_and_parquet_have_the_same_categories(tmp_path: Path) -> None:
    table = frame()
    table.to_csv(tmp_path / "table.csv", index=False)
    table.to_parquet(tmp_path / "table.parquet")
    table.assign(city=table["city"].astype("category")).to_parquet(tmp_path / "coded.parquet")
    sources = [table, pl.from_pandas(table), *(tmp_path / name for name in ("table.csv", "table.parquet", "coded.parquet"))]  # fmt: skip
    for source in sources:
        data = open_data(source)
        assert data.levels == ((), ("Bern", "Oslo", "Rome"), ("no", "yes"), ())
        assert data.classes == ("a", "b")
        rows = data.load(np.arange(60))
        np.testing.assert_allclose(rows[:, 0], table["age"], rtol=1e-6)
        assert [data.levels[1][int(code)] for code in rows[:, 1]] == table["city"].tolist()


def test_the_plain_view_standardises_numbers_and_indicates_levels() -> None:
    table, data = frame(), open_data(frame())
    description: Any = VECTORS.reader.describe(data, None)
    (view,) = Standardised(description, CPU)(data.load(np.arange(60)), 0, 0, np.arange(60))
    expected = pd.get_dummies(table.drop(columns="label")[["age", "city", "owner", "rooms"]])
    expected = expected[
        ["age", "city_Bern", "city_Oslo", "city_Rome", "owner_no", "owner_yes", "rooms"]
    ].astype(float)
    for name in ("age", "rooms"):
        expected[name] = (table[name] - table[name].mean()) / table[name].std(ddof=0)
    np.testing.assert_allclose(view.numpy(), expected.to_numpy(), atol=1e-5)


def test_scarf_keeps_the_first_view_and_replaces_a_share_of_each_row() -> None:
    data = open_data(frame())
    description: Any = VECTORS.reader.describe(data, None)
    rows, index = data.load(np.arange(60)), np.arange(60)
    first, second = Scarf(rate=0.5).training(description, CPU)(rows, 3, 1, index)
    (plain,) = Standardised(description, CPU)(rows, 0, 0, index)
    torch.testing.assert_close(first, plain, atol=0, rtol=0)
    assert not torch.equal(first, second)
    both = Scarf(rate=0.5, both=True).training(description, CPU)(rows, 3, 1, index)
    assert not torch.equal(both[0], plain)
    unchanged = Scarf(rate=0.0).training(description, CPU)(rows, 3, 1, index)[1]
    torch.testing.assert_close(unchanged, plain, atol=0, rtol=0)
    again = Scarf(rate=0.5).training(description, CPU)(rows[7:9], 3, 1, index[7:9])
    torch.testing.assert_close(again[1], second[7:9], atol=0, rtol=0)  # whoever else is in the batch


def test_exactly_a_share_of_the_columns_is_drawn_from_the_marginal() -> None:
    """With distinct values 1000 apart, a replaced cell differs: floor(0.3 · 10) = 3 in each row, every column as
    often, and values by their frequency (chi-square at level 1e-6)."""
    width, count = 10, 4000
    table = np.repeat([0.0, 1.0, 2.0, 3.0], [10, 20, 30, 40])
    values = np.stack([1000.0 * column + table for column in range(width)], axis=1)
    description = VectorsDescription("", 100, (0.0,) * width, (1.0,) * width, marginals=marginals(values))
    rows = np.full((count, width), -7.0)
    settings = Scarf(rate=0.3)
    view = ResampledVectors(settings, description, CPU)(rows, 0, 0, np.arange(count))[1].numpy()
    replaced = view != -7
    assert (replaced.sum(axis=1) == 3).all()
    drawn = view - 1000 * np.arange(width)
    observed = np.array([np.count_nonzero(drawn[replaced] == level) for level in range(4)])
    assert observed.sum() == 3 * count
    expected = 3 * count * np.array([0.1, 0.2, 0.3, 0.4])
    assert ((observed - expected) ** 2 / expected).sum() < 30.7  # of 3 degrees of freedom
    columns = replaced.sum(axis=0)
    assert ((columns - 0.3 * count) ** 2 / (0.3 * count)).sum() < 45.1  # of 9 degrees of freedom


def test_marginals_of_many_rows_are_evenly_spaced_values() -> None:
    values = np.random.default_rng(0).permutation(50_000).astype(np.float32)[:, None]
    (stored,) = marginals(values)
    assert len(stored) == 1000
    np.testing.assert_array_equal(stored, np.arange(25, 50_000, 50))


def test_noise_leaves_categories_and_dropout_removes_their_indicators() -> None:
    data = open_data(frame())
    description: Any = VECTORS.reader.describe(data, None)
    rows = data.load(np.arange(60))
    (plain,) = Standardised(description, CPU)(rows, 0, 0, np.arange(60))
    noisy, _ = Corrupt(noise=0.5, dropout=0.0).training(description, CPU)(rows, 0, 0, np.arange(60))
    torch.testing.assert_close(noisy[:, 1:6], plain[:, 1:6], atol=0, rtol=0)
    assert (noisy[:, 0] != plain[:, 0]).all()
    dropped, _ = Corrupt(noise=0.0, dropout=0.5).training(description, CPU)(rows, 0, 0, np.arange(60))
    cities = dropped[:, 1:4].sum(dim=1)
    assert set(cities.tolist()) == {0.0, 1.0}


def test_training_resumes_exactly_and_other_tables_are_recoded(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"views": "scarf", "backbone": "mlp-small", "epochs": 2, "batch_size": 20, "workers": 0, "probe_every": 0, "held_out": 0.0, "checkpoint_every": 1, "log_every": 1, "quiet": True}  # fmt: skip
    whole = nf.pretrain("simclr", frame(), tmp_path / "whole", **settings)
    with pytest.raises(Stopped):
        nf.pretrain("simclr", frame(), tmp_path / "stopped", max_time=1e-9, **settings)
    resumed = nf.pretrain("simclr", frame(), tmp_path / "stopped", **settings)
    losses = [[row["loss"] for row in run.metrics if row["kind"] == "train"] for run in (whole, resumed)]
    assert losses[0] == losses[1]
    features = whole.embed(frame())
    part = frame().query("city != 'Bern'")  # Oslo is level 0 of this table
    torch.testing.assert_close(whole.embed(part), features[part.index.tolist()], atol=1e-6, rtol=0)
    unseen = frame().assign(city="Paris")
    assert torch.isfinite(whole.embed(unseen)).all()
    with pytest.raises(UserError, match=r"column 2 of DataFrame holds numbers where .* was trained on words"):
        whole.embed(frame().assign(city=1.0))


def test_words_that_are_no_categories_get_a_sentence() -> None:
    names = pd.DataFrame({"name": [f"n{row}" for row in range(30)], "x": np.arange(30.0)})
    with pytest.raises(UserError, match="the column `name` has 30 different words in 30 rows"):
        open_data(names)
    with pytest.raises(UserError, match="2 rows have nothing in column 'city'"):
        open_data(frame().assign(city=["Bern"] * 58 + [None] * 2))
    with pytest.raises(UserError, match=r"views\.rate was 2"):
        Scarf(rate=2.0)
    with pytest.raises(UserError, match=r"views was 'scarf'; expected simclr, .* for pictures"):
        nf.pretrain("simclr", np.zeros((20, 8, 8), np.uint8), "unused", views="scarf")
