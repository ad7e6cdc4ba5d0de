"""Samples from files, by the command a user would type, in a process of its own where it matters."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearfar as nf
from nearfar.cli import main
from nearfar.estimate.columns import as_columns
from nearfar.estimate.read import _table_columns, read_columns, read_sample, read_table

RNG = np.random.default_rng(0)
TABLE = np.round(RNG.normal(size=(120, 2)), 6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", TABLE)
    (tmp_path / "folder.npy").mkdir()
    np.savez(tmp_path / "one.npz", only=TABLE)
    np.savez(tmp_path / "two.npz", a=TABLE[:, 0], b=TABLE[:, 1])
    np.savetxt(tmp_path / "named.csv", TABLE, delimiter=",", header="a,b", comments="", fmt="%.6f")
    np.savetxt(tmp_path / "bare.csv", TABLE, delimiter=",", fmt="%.6f")
    pq.write_table(pa.table({"a": TABLE[:, 0], "b": TABLE[:, 1]}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"v": [list(row) for row in TABLE]}), tmp_path / "lists.parquet")
    (tmp_path / "wrong.csv").write_text("a,b\n" + "1.5,2\n" * 7 + "oops,2\n" + "2.5,2\n" * 60)
    (tmp_path / "broken.npy").write_bytes(b"not an array")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    return tmp_path


@pytest.mark.parametrize(
    "spec",
    [
        "x.npy",
        "one.npz",
        "two.npz:a,b",
        "named.csv",
        "bare.csv",
        "named.csv:a,b",
        "t.parquet",
        "lists.parquet",
    ],
)
def test_every_kind_of_file_gives_the_same_table(folder: Path, spec: str) -> None:
    np.testing.assert_allclose(read_sample(str(folder / spec)), TABLE, atol=1e-9)


def test_one_column_by_name(folder: Path) -> None:
    np.testing.assert_allclose(read_sample(f"{folder}/t.parquet:b")[:, 0], TABLE[:, 1])


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("nothing.csv", "nothing.csv was not found"),
        ("folder.npy", "folder.npy is a folder, not a file"),
        ("x.txt", r"x.txt is a file of type .txt; expected a file of type .npy, .npz, .csv, .parquet"),
        (".", "is a folder; expected a file of type .npy"),
        ("two.npz", "holds a, b; say which, for instance .*two.npz:a"),
        ("two.npz:c", "has no 'c'; it has a, b"),
        ("t.parquet:c", "has no 'c'; it has a, b"),
        ("x.npy:a", "holds one array without a name"),
        ("wrong.csv", r"wrong.csv column a holds 'oops' at row 7 \(line 9\), which is not a number"),
        ("broken.npy", "broken.npy cannot be read as .npy"),
        ("broken.parquet", "broken.parquet cannot be read as .parquet"),
        ("objects.npy", "objects.npy cannot be read as .npy"),
    ],
)
def test_files_that_cannot_be_used_get_one_sentence(folder: Path, spec: str, sentence: str) -> None:
    with pytest.raises(nf.UserError, match=sentence) as caught:
        read_sample(str(folder / spec))
    assert "\n" not in str(caught.value)


def test_the_command_prints_one_json_object(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sides = [str(folder / "x.npy"), str(folder / "named.csv:a")]
    assert main(["mi", *sides, "--json", "--bound", "ml-cpc", "--alpha", "0.5", "--folds", "2"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["bound"] == "ml-cpc(alpha=0.5)"
    assert answer["certificate"]["status"] == "not covered"
    assert answer["samples"] == 120


def test_the_command_in_words_and_its_laws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["mi", str(folder / "x.npy"), str(folder / "two.npz:b"), "--folds", "2"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert " nats (" in text
    assert "proven: " in text
    assert "baselines: ksg" in text
    assert main([*arguments, "--check"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "independence",
        "circular shift",
        "data processing",
        "additivity",
    ]


def test_bad_input_exits_with_code_two(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mi", str(folder / "x.npy"), str(folder / "wrong.csv")]) == 2
    assert main(["mi", str(folder / "x.npy"), str(folder / "x.npy"), "--alpha", "2"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert "alpha was 2 with bound auto" in errors[1]


@pytest.mark.parametrize("higher", ["\n", '"two\nlines",2\n'])
def test_no_line_number_where_rows_are_not_lines(tmp_path: Path, higher: str) -> None:
    """Empty lines and words of several lines are no rows: the row is named, a wrong line is not."""
    (tmp_path / "w.csv").write_text("a,b\n" + higher + "word,2\n" * 60 + "other,oops\n")
    with pytest.raises(nf.UserError, match=r"column b holds 'oops' at row 6[01], which is not a number"):
        read_sample(str(tmp_path / "w.csv"))


TIMES = [pa.timestamp("ns"), pa.timestamp("ms", "UTC"), pa.duration("ns"), pa.time64("ns"), pa.date32()]


@pytest.mark.parametrize("kind", TIMES, ids=str)
def test_times_are_numbers_of_their_unit(tmp_path: Path, kind: pa.DataType) -> None:
    full = pa.array([3, None, 1], pa.int32() if kind.bit_width == 32 else pa.int64())
    pq.write_table(pa.table({"t": full.cast(kind)}), tmp_path / "t.parquet")
    assert read_columns(f"{tmp_path}/t.parquet").columns["t"] == [3, None, 1]
    assert as_columns(pa.table({"t": full.cast(kind)}), "x").values[::2, 0].tolist() == [3, 1]


def test_too_long_a_cell_is_reported(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("a,b\n1," + "x" * 3_000_000 + "\n2,y\n")
    with pytest.raises(nf.UserError, match="has a cell or line of more than 1,048,576 bytes"):
        read_columns(str(tmp_path / "long.csv"))


def test_duplicate_column_names_are_reported(tmp_path: Path) -> None:
    (tmp_path / "twice.csv").write_text("a,b,a\n1,2,3\n4,5,6\n")
    with pytest.raises(nf.UserError, match="has 2 columns called 'a'"):
        read_columns(str(tmp_path / "twice.csv"))


def test_a_missing_target_is_reported_before_cells_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every column is looked at once: names were fetched anew for each, half a minute for 5,000 of them."""
    looked: list[str] = []
    monkeypatch.setattr("nearfar.estimate.read.as_columns", lambda *given: looked.append("cells"))
    (tmp_path / "wide.csv").write_text(
        ",".join(f"c{k}" for k in range(2000)) + "\n" + ",".join(["1"] * 2000) + "\n"
    )
    with pytest.raises(nf.UserError, match=r"^target was z; .* has c0, c1"):
        read_table(str(tmp_path / "wide.csv"), "z")
    assert not looked

    class Table:
        fetched = 0
        column_names = property(lambda self: self._names())

        def _names(self) -> list[str]:
            Table.fetched += 1
            return ["a", "b", "c"]

        def column(self, name: str) -> pa.ChunkedArray:
            return pa.chunked_array([[1]])

    assert _table_columns(Path("t.csv"), Table(), []) == {"a": [1], "b": [1], "c": [1]}
    assert Table.fetched == 1
