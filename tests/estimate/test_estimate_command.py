"""`nearfar mi` prints what Python returns: gaps, certificates and warnings in every mode."""

import json
from pathlib import Path

import numpy as np
import pytest

import nearfar as nf
from nearfar.cli import main
from nearfar.estimate.read import read_columns
from nearfar.estimate.rows import check_rows
from nearfar.parts.bounds.claims import CLAIM

COLORS = ("red", "green", "blue")  # not in alphabetical order


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    z = rng.normal(size=300)
    x, y = z + rng.normal(size=300), z + rng.normal(size=300)
    cells = ["" if k % 20 == 0 else f"{value:.6f}" for k, value in enumerate(x)]
    rows = [f"{a},{b:.6f},{c:.6f}" for a, b, c in zip(cells, y, z, strict=True)]
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["x,y,z", *rows]) + "\n")
    return file


def test_conditional_information_prints_gaps_and_certificate(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["mi", f"{table}:x", f"{table}:y", "--given", f"{table}:z", "--folds", "2"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "warning: 15 of 300 rows have gaps and were left out" in text
    assert "\nnot covered: a difference of best estimates, no bound\n" in text
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["certificate"]["status"] == "not covered"
    assert "it is I((x, z); y) - I(z; y)" in answer["certificate"]["condition"]
    assert all(f"warning: {warning}" in text for warning in answer["warnings"])


def test_rows_and_lags_print_gaps(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = [f"{table}:x", f"{table}:y", "--folds", "2"]
    assert main(["mi", *pair, "--rows", str(table.parent / "rows.csv")]) == 0
    assert "warning: 15 of 300 rows have gaps" in capsys.readouterr().out
    assert main(["mi", *pair, "--lags", "0:1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("have gaps" in line for line in lines) in (1, 2), "once per distinct sentence"
    assert all(line.startswith(("lag", "warning: ")) for line in lines)


def test_conditional_information_notes_a_column_dropped_from_a_table(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mi", str(table), f"{table}:y", "--given", f"{table}:z", "--folds", "2"]) == 0
    assert "note: column y of" in capsys.readouterr().out


def test_an_unproven_alpha_is_not_covered_on_the_command_line_as_in_python(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The value is that of ml-cpc with its own certificate and ceiling; the limit is InfoNCE's with its own."""
    options = ["--bound", "ml-cpc", "--alpha", "0.05", "--negatives", "independent", "--folds", "2"]
    assert main(["mi", f"{table}:x", f"{table}:y", *options]) == 0
    value, claim, limit, *_ = capsys.readouterr().out.splitlines()
    x, y = (read_columns(f"{table}:{name}").columns for name in "xy")
    estimate = nf.estimate_mi(
        x, y, bound=nf.MultiLabelCPC(0.05), negatives="independent", folds=2, baselines=False
    )
    assert estimate.certificate.status == "not covered"
    assert value.startswith(f"{estimate.nats:.4f} nats")
    assert claim == (
        f"ml-cpc(alpha=0.05), ceiling {estimate.ceiling:.3f}; not covered: {estimate.certificate.summary}"
    )
    ceiling = estimate.at_least.certificate.ceiling
    assert ceiling is not None
    assert ceiling != estimate.ceiling
    assert limit.endswith(f"(infonce, ceiling {ceiling:.3f}); proven: {CLAIM}")
    assert estimate.as_json()["at_least"]["bound"] == "infonce"


@pytest.mark.parametrize("kind", ["numbers", "words"])
def test_a_table_sorted_by_its_target_gets_one_warning(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    level = np.repeat([0, 1, 2], 50)
    columns = level[:, None] + 0.5 * rng.normal(size=(150, 3))
    order = np.argsort(level + 0.1 * rng.normal(size=150)) if kind == "numbers" else np.arange(150)
    target = [f"{k:.4f}" for k in np.sort(rng.normal(size=150))]
    if kind == "words":
        target = [COLORS[k] for k in level]
    rows = [
        ",".join([*(f"{v:.6f}" for v in columns[k]), word]) for k, word in zip(order, target, strict=True)
    ]
    file = tmp_path / "sorted.csv"
    file.write_text("\n".join(["a,b,c,target", *rows]) + "\n")
    assert main(["mi", str(file), "--target", "target", "--folds", "2"]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert "the rows are sorted by y column target, and x follows their order" in warnings[0]
    assert "shuffle" in warnings[0]
    assert "thin a series" not in warnings[0]


def test_sorted_rows_beside_a_series_are_not_covered() -> None:
    """Time and a random walk are independent of nothing that these rows could show."""
    rng = np.random.default_rng(0)
    time, walk = np.arange(400.0)[:, None], np.cumsum(rng.normal(size=(400, 1)), axis=0)
    assert "sorted by x column 0" in check_rows(time, walk).refuted
    noise = rng.normal(size=(400, 1))
    check = check_rows(time, noise)
    assert (check.refuted, check.warnings) == ("", (check.doubt,))
    order = rng.permutation(400)
    assert check_rows(time[order], walk[order]).warnings == ()


def _write_table(file: Path, columns: dict[str, np.ndarray]) -> None:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join("" if np.isnan(v) else f"{v:.5f}" for v in row) for row in rows]
    file.write_text("\n".join([",".join(columns), *lines]) + "\n")


def test_conditional_text_has_gaps_and_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, z, noise = np.random.default_rng(0).normal(size=(3, 100))
    _write_table(
        tmp_path / "t.csv", {"x": x, "y": x + z + noise, "z": np.where(np.arange(100) < 7, np.nan, z)}
    )
    columns = [f"{tmp_path}/t.csv:{name}" for name in "xyz"]
    assert main(["mi", *columns[:2], "--given", columns[2], "--folds", "2"]) == 0
    text = capsys.readouterr().out
    assert "7 of 100 rows have gaps" in text
    assert "not covered" in text


def test_command_and_python_have_one_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, noise = np.random.default_rng(1).normal(size=(2, 100)).round(5)
    _write_table(tmp_path / "t.csv", {"x": x, "y": x + noise})
    sides = [f"{tmp_path}/t.csv:{name}" for name in "xy"]
    flags = ["--bound", "ml-cpc", "--alpha", "0.05", "--negatives", "independent", "--folds", "2", "--json"]
    assert main(["mi", *sides, *flags]) == 0
    command = json.loads(capsys.readouterr().out)
    python = nf.estimate_mi(x, x + noise, nf.MultiLabelCPC(alpha=0.05), negatives="independent", folds=2)
    assert command["certificate"] == python.as_json()["certificate"]
    assert command["at_least"]["certificate"] == python.at_least.as_json()["certificate"]
    assert command["ceiling"] == python.ceiling


def test_table_sorted_by_its_target_is_no_time_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(2)
    y = np.sort(rng.normal(size=150))
    columns = {f"c{k}": y + rng.normal(size=150) for k in range(4)}
    _write_table(tmp_path / "t.csv", {**columns, "y": y})
    assert main(["mi", f"{tmp_path}/t.csv", "--target", "y", "--folds", "2"]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert 1 <= len(warnings) <= 2  # columns that follow the order, and columns that do not
    assert all("sorted by y" in line and "thin" not in line for line in warnings)
