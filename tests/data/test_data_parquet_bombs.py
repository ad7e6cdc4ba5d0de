"""Small Parquet files that decode to gigabytes: every command that reads Parquet refuses them within 2 GB of
memory.

Pages say how long they are when they are encoded. Dictionaries, run lengths and prefixes expand after that.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from nearfar.data import pack
from nearfar.system.arrow_reading import _leaves, read_table_file
from tests import limited

MIB = 2**20
REFUSED = "would decompress"
pytestmark = limited.needs_linux


def assert_refused(commands: list[list[str]]) -> None:
    limited.assert_refused(commands, REFUSED)


def repeated(value: bytes | str, rows: int) -> pa.DictionaryArray:
    """One value in every row, which a file holds once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value]))


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    # without Arrow's own schema a reader takes a dictionary for what it holds
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False, **options)
    return path


def picture(seed: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def pictures(count: int) -> pa.Array:
    return pa.array([picture(seed) for seed in range(count)])


def test_one_value_in_400_rows_is_refused(tmp_path: Path) -> None:
    """100 MiB in 400 rows: a file of a few kilobytes, 40 GB when decoded."""
    objects = pa.array([{"bbox": [[0.0, 0.0, 2.0, 2.0]], "category": [0]}] * 400)
    columns = {
        "image": repeated(bytes(100 * MIB), 400),
        "caption": pa.array(["a", "b"] * 200),
        "objects": objects,
    }
    bomb = write(tmp_path / "bomb.parquet", columns)
    assert bomb.stat().st_size < 20_000
    out = str(tmp_path / "out")
    assert_refused(
        [
            ["pretrain", "simclr", str(bomb), "--out", out],
            ["train", str(bomb), "--out", out],
            ["pack", str(bomb), "--out", out],
            ["pretrain", "clip", f"pairs:{bomb}:image,caption", "--out", out],
            ["scenes", str(bomb)],
            ["mi", f"{bomb}:image", f"{bomb}:caption"],
        ]
    )


def test_a_large_label_or_text_in_every_row_is_refused(tmp_path: Path) -> None:
    columns = {"image": pictures(40), "label": repeated("x" * 100 * MIB, 40)}
    labelled = write(tmp_path / "label.parquet", columns)
    table = write(tmp_path / "table.parquet", {"x": np.arange(40.0), "label": repeated("x" * 100 * MIB, 40)})
    assert_refused(
        [
            ["pretrain", "simclr", str(labelled), "--out", str(tmp_path / "out")],
            ["pretrain", "simclr", str(table), "--out", str(tmp_path / "out")],
            ["mi", str(table), "--target", "x"],
        ]
    )


def test_constants_are_refused(tmp_path: Path) -> None:
    """Run lengths: 24 columns of 16 million zeros take 3 GB."""
    names = [f"c{number}" for number in range(24)]
    part = pa.table({name: pa.array(np.zeros(MIB)) for name in names})
    with pq.ParquetWriter(tmp_path / "bomb.parquet", part.schema, compression="zstd") as writer:
        for _ in range(16):
            writer.write_table(part)
    bomb = tmp_path / "bomb.parquet"
    assert bomb.stat().st_size < 2 * MIB
    out = str(tmp_path / "out")
    assert_refused(
        [
            ["mi", str(bomb), "--target", "c0"],
            ["mi", f"{bomb}:c0,c1,c2,c3", f"{bomb}:c4"],
            ["pretrain", "simclr", str(bomb), "--out", out],
            ["pretrain", "cebra", f"series:{bomb}", "--out", out],
            ["pretrain", "clip", f"pairs:{bomb}:c0,c1", "--out", out],
        ]
    )


def test_a_list_of_constants_in_one_row_is_refused(tmp_path: Path) -> None:
    values = pa.array(np.zeros(64 * MIB, np.int8))
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    bomb = write(tmp_path / "bomb.parquet", {"x": lists, "y": [1.0]})
    assert bomb.stat().st_size < MIB
    assert_refused([["mi", str(bomb), "--target", "y"], ["mi", f"{bomb}:x", f"{bomb}:y"]])


def test_shared_prefixes_are_refused(tmp_path: Path) -> None:
    """Delta encoding stores what differs from the value before."""
    values = pa.array([bytes(MIB)] * 400)
    options = {"use_dictionary": False, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}}
    columns = {"image": values, "caption": pa.array(["a", "b"] * 200)}
    bomb = write(tmp_path / "bomb.parquet", columns, **options)
    assert bomb.stat().st_size < MIB
    out = str(tmp_path / "out")
    assert_refused(
        [
            ["pretrain", "simclr", str(bomb), "--out", out],
            ["pretrain", "clip", f"pairs:{bomb}:image,caption", "--out", out],
        ]
    )


def test_a_packed_folder_of_repeated_values_is_refused(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.png").write_bytes(picture(number))
    packed = pack(tmp_path, tmp_path / "packed")
    shard = packed / "shard-00000.parquet"
    write(shard, {"image": repeated(bytes(100 * MIB), 40), "digest": repeated(b"0" * 32, 40)})
    assert_refused([["pretrain", "simclr", str(packed), "--out", str(tmp_path / "out"), "batch_size=4"]])


@pytest.mark.parametrize("encoding", [None, "PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_tables_are_read_as_arrow_reads_them(encoding: str | None, tmp_path: Path) -> None:
    """Every kind of column, nested and not, with gaps, over several row groups."""
    rng = np.random.default_rng(0)
    words = [None if draw < 0.1 else f"word {int(40 * draw)}" for draw in rng.random(9000)]
    columns = {
        "word": pa.array(words),
        "category": pa.array(words).dictionary_encode(),
        "large": pa.array(words, pa.large_string()),
        "number": pa.array(rng.normal(size=9000)),
        "whole": pa.array([None if draw < 0.5 else int(100 * draw) for draw in rng.random(9000)]),
        "flag": pa.array(rng.random(9000) < 0.5),
        "list": pa.array([list(range(int(9 * draw))) for draw in rng.random(9000)]),
        "words": pa.array([words[row : row + row % 3] for row in range(9000)]),
        "struct": pa.array([{"bytes": bytes([row % 256]), "path": words[row]} for row in range(9000)]),
        "deep": pa.array([[{"a": words[row : row + 2]}] for row in range(9000)]),
        "map": pa.array([[("a", row)] for row in range(9000)], pa.map_(pa.string(), pa.int64())),
        "date": pa.array(np.arange(9000), pa.timestamp("us")),
        "array": pa.array([[1.0, 2.0]] * 9000, pa.list_(pa.float64(), 2)),
    }
    leaves = (
        "word",
        "large",
        "words.list.element",
        "struct.path",
        "deep.list.element.a.list.element",
    )
    options = {} if encoding is None else {
        "use_dictionary": False, "column_encoding": dict.fromkeys(leaves, encoding)
    }  # fmt: skip
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=5000, **options)
    expected = pq.ParquetFile(file).read()
    result = read_table_file(file)
    assert result.to_pylist() == expected.to_pylist()
    assert (
        read_table_file(file, ["words", "number"]).to_pydict()
        == expected.select(["number", "words"]).to_pydict()
    )
    pq.write_table(pa.table(columns).slice(0, 0), file)
    assert read_table_file(file, ["word", "list"]).to_pydict() == {"word": [], "list": []}


class Names(list[str]):
    """A list that counts how often it is gone through."""

    passes = 0

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return super().__iter__()


def test_leaves_are_chosen_by_any_part_of_their_path(tmp_path: Path) -> None:
    """And the names are gone through once, not for every leaf: tables have tens of thousands of both."""
    table = pa.table({"a": [{"b": {"c": 1, "d": 2}}], "ab": [[1]], "e": [1]})
    pq.write_table(table, tmp_path / "a.parquet")
    schema = pq.ParquetFile(tmp_path / "a.parquet").schema
    names = Names(["a.b", "e", "missing"])
    assert [leaf.path for _, leaf in _leaves(schema, names)] == ["a.b.c", "a.b.d", "e"]
    assert names.passes == 1
    assert [number for number, _ in _leaves(schema, ["ab"])] == [2]
    assert len(_leaves(schema, None)) == 4
