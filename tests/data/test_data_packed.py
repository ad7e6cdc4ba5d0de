"""Packed folders: they hold what their source holds, resume after a kill, and are read a window at a time."""

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from nearfar.cli import main
from nearfar.cli.pack import _recipe
from nearfar.core.types import Pixels
from nearfar.data import open_data, pack
from nearfar.data import packed as packed_module
from nearfar.data import packing as packing_module
from nearfar.data.lazy import check_all
from nearfar.data.packed import MANIFEST, find_packed
from nearfar.data.row_groups import SPARE
from nearfar.errors import UserError
from nearfar.modalities import DataSet
from nearfar.system.files import machine_mark
from tests.forked import Forked

COUNT = 90


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of 16 rows, two to a shard, so that a hundred pictures are several shards."""
    monkeypatch.setattr(packing_module, "GROUP_BYTES", 16)
    monkeypatch.setattr(packing_module, "SHARD_BYTES", 1)
    monkeypatch.setattr(packing_module, "MAX_ROWS", 16)


def pictures(seed: int = 0, side: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (COUNT, side, side, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def as_folder(root: Path, images: np.ndarray) -> str:
    for number, image in enumerate(images):
        folder = root / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:03}.png").write_bytes(png(image))
    return str(root)


def as_parquet(root: Path, images: np.ndarray, bad: tuple[int, ...] = (), rows: int = 10) -> str:
    """Two files with row groups of `rows`; rows in `bad` hold no picture."""
    root.mkdir(parents=True, exist_ok=True)
    encoded = [b"not a picture" if number in bad else png(image) for number, image in enumerate(images)]
    for part, numbers in enumerate(np.array_split(np.arange(len(images)), 2)):
        table = pa.table(
            {
                "image": [{"bytes": encoded[number], "path": None} for number in numbers],
                "label": [int(number) % 3 for number in numbers],
            }
        )
        pq.write_table(table, root / f"{part}.parquet", row_group_size=rows)
    return str(root)


def as_tar(root: Path, images: np.ndarray) -> str:
    root.mkdir(parents=True, exist_ok=True)
    for part, numbers in enumerate(np.array_split(np.arange(len(images)), 2)):
        with tarfile.open(root / f"{part}.tar", "w") as archive:
            for number in numbers:
                for suffix, data in (
                    ("png", png(images[number])),
                    ("cls", str(number % 3).encode()),
                    ("json", b"{}"),
                ):
                    member = tarfile.TarInfo(f"{number:06}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return str(root)


def as_npz(root: Path, images: np.ndarray) -> str:
    root.mkdir(parents=True, exist_ok=True)
    np.savez(root / "a.npz", images=images, labels=np.arange(len(images)) % 3)
    return str(root / "a.npz")


def everything(data: DataSet) -> np.ndarray:
    pixels: Pixels = data.load(np.arange(len(data)))
    return pixels.data


def content(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("encoding", ["auto", "raw", "source"])
@pytest.mark.parametrize("writer", [as_folder, as_parquet, as_tar, as_npz])
def test_a_packed_folder_holds_what_its_source_holds(
    writer: Any, encoding: str, tmp_path: Path, small_groups: None
) -> None:
    images = pictures()
    spec = writer(tmp_path / "source", images)
    if writer is as_npz and encoding == "source":
        with pytest.raises(UserError, match="has no encoded bytes; expected auto, png, jpeg, raw"):
            pack(spec, tmp_path / "packed", encoding=encoding)
        return
    data = open_data(str(pack(spec, tmp_path / "packed", encoding=encoding)))
    by_pixels = {image.tobytes(): number for number, image in enumerate(images)}
    numbers = np.array([by_pixels[image.tobytes()] for image in everything(data)])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(COUNT))  # each once
    assert not (np.diff(numbers) == 1).mean() > 0.2  # shuffled
    np.testing.assert_array_equal(data.labels, numbers % 3)
    assert data.classes == (("class0", "class1", "class2") if writer is as_folder else ())
    assert len(set(data.paths)) == COUNT
    source = open_data(spec)
    place = {path: row for row, path in enumerate(source.paths)}
    rows = np.array([place[path] for path in data.paths])
    np.testing.assert_array_equal(everything(source)[rows], everything(data))
    opened = find_packed(str(tmp_path / "packed"))
    assert opened is not None
    assert len(opened.manifest.shards) > 2
    for shard in opened.manifest.shards:
        assert hashlib.sha256((tmp_path / "packed" / shard.file).read_bytes()).hexdigest() == shard.sha256


def test_images_are_shrunk_as_training_would(tmp_path: Path) -> None:
    images = pictures(side=60)
    packed = pack(as_folder(tmp_path / "s", images), tmp_path / "p", image_size=10, shuffle=False)
    small, source = open_data(str(packed), image_size=10), open_data(str(tmp_path / "s"), image_size=10)
    assert everything(small).shape == (COUNT, 20, 20, 3)
    np.testing.assert_array_equal(everything(small), everything(source))
    assert tuple(small.paths) == tuple(source.paths)  # unshuffled: the order of the source


def test_a_pack_of_a_pack_and_of_a_grey_array(tmp_path: Path) -> None:
    grey = pictures()[..., :1]
    first = pack(grey, tmp_path / "a")
    assert json.loads((first / MANIFEST).read_text())["packed"]["encoding"] == "raw"
    repacked = open_data(str(pack(str(first), tmp_path / "b", encoding="raw", seed=1)))
    assert repacked.channels == 1
    assert {image.tobytes() for image in everything(repacked)} == {image.tobytes() for image in grey}
    with pytest.raises(
        UserError, match="png, which holds three channels of 8 bits; these images have 1 of 8: use raw"
    ):
        pack(grey, tmp_path / "c", encoding="png")


KILLED = """
import sys
from nearfar.data import pack, packing
packing.GROUP_BYTES, packing.SHARD_BYTES, packing.MAX_ROWS = 16, 1, 16
pack(sys.argv[1], sys.argv[2], say=lambda line: print(line, flush=True))
"""


def test_pack_resumes_after_kill_9(tmp_path: Path, small_groups: None) -> None:
    spec = as_folder(tmp_path / "source", pictures())
    (tmp_path / "source" / "class0" / "bad.png").write_bytes(b"nothing")
    pack(spec, tmp_path / "whole")
    out = tmp_path / "cut"
    child = Forked(spec, out, code=KILLED)
    child.wait_until(lambda: "\n" in child.stdout)
    assert child.stdout.startswith("shard 1 of"), child.stderr
    child.kill()
    packed_content = content(out)
    (out / f".shard-00099.parquet.{child.pid}-{machine_mark()}0123abcd.writing").write_bytes(b"half a shard")
    assert MANIFEST not in packed_content
    with pytest.raises(UserError, match=r"was begun with other data or settings .*seed: 0, now 1"):
        pack(spec, out, seed=1)
    pack(spec, out)
    assert content(out) == content(tmp_path / "whole")
    assert "not an image" in (out / "quarantine.csv").read_text()
    times = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    messages: list[str] = []
    pack(spec, out, say=messages.append)  # nothing is left to do
    assert messages == [f"{out} is packed already"]
    assert {file.name: file.stat().st_mtime_ns for file in out.iterdir()} == times


def test_damaged_packed_row_is_detected_when_read(tmp_path: Path, small_groups: None) -> None:
    packed = pack(pictures(), tmp_path / "p", encoding="raw")
    full = open_data(str(packed))
    victim = full.load(np.array([40])).data[0]
    file = next(f for f in packed.glob("shard-*") if victim.tobytes() in f.read_bytes())
    data = bytearray(file.read_bytes())
    data[data.index(victim.tobytes()) + 7] ^= 1
    file.write_bytes(data)
    damaged = open_data(str(packed), quarantine=tmp_path / "bad.csv")
    np.testing.assert_array_equal(
        everything(damaged)[40], everything(full.subset(np.array([41])))[0]
    )  # the next one stands in
    assert "damaged: its bytes are no longer those that were packed" in (tmp_path / "bad.csv").read_text()
    for forged in (None, {"x": "?"}, {str(10**9): "?"}, {"9" * 5000: "?"}):  # of an earlier check
        for file in (tmp_path / "cache").glob("*.json") if forged else ():
            file.write_text(json.dumps(forged))
        assert len(check_all(damaged, tmp_path / "cache")) == COUNT - 1
    index = packed / "index.parquet"
    index.write_bytes(index.read_bytes()[:-9] + b"x" * 9)
    with pytest.raises(UserError, match=r"index.parquet is not the one that was packed"):
        open_data(str(packed))
    (packed / MANIFEST).write_text((packed / MANIFEST).read_text().replace('"raw"', '"png"'))
    with pytest.raises(UserError, match=r"nearfar.json cannot be read \(its checksum does not match\)"):
        open_data(str(packed))


def test_forged_packed_folders_are_refused(tmp_path: Path) -> None:
    """A manifest and an index whose digests are right, with values that no pack has."""
    spec = as_folder(tmp_path / "s", pictures())
    packed = pack(spec, tmp_path / "p", encoding="source")
    stored, index = json.loads((packed / MANIFEST).read_text())["packed"], packed / "index.parquet"
    table = pq.read_table(index)

    def with_column(name: str, values: list[Any]) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, pa.array(values))

    forgeries: list[tuple[dict[str, Any], pa.Table, str]] = [
        ({"left_out": [COUNT]}, table, "names rows that there are not"),
        ({"left_out": [10**30]}, table, "names rows that there are not"),
        ({"left_out": [-1]}, table, "names rows that there are not"),
        ({"rows": 10**30}, table, "the shards hold 90 rows"),
        ({"image_size": -1}, table, "image_size"),
        ({"modality": "vectors"}, table, "unknown modality 'vectors'"),
        ({"classes": ["one"]}, table, "label was 1"),
        ({}, with_column("label", [2**40] * COUNT), "label was"),
        ({}, with_column("label", [-2] * COUNT), "label was -2"),
        ({}, with_column("label", ["one"] * COUNT), "its columns are not"),
        ({}, with_column("path", [None] * COUNT), "its columns are not"),
        ({}, with_column("path", ["a", *[None] * (COUNT - 1)]), "a row has no path"),
        ({}, with_column("fact0", [-1] * COUNT), "fact0 was -1"),
        ({}, with_column("fact2", [10**9] * COUNT), "fact2 was"),
        ({}, with_column("fact3", [9] * COUNT), "fact3 was 9"),
        *(({}, table.drop_columns([name]), "its columns are not") for name in ("path", "label", "fact1")),
    ]
    for changes, rows, message in forgeries:
        pq.write_table(rows, index)
        entry = {**stored["index"], "bytes": index.stat().st_size}
        entry["sha256"] = hashlib.sha256(index.read_bytes()).hexdigest()
        body = {**stored, "index": entry, **changes}
        (packed / MANIFEST).write_text(json.dumps({"packed": body, "sha256": packed_module._digest(body)}))
        with pytest.raises(UserError, match=message):
            open_data(str(packed))


def test_memory_holds_a_window_and_each_group_is_read_about_once(
    tmp_path: Path, small_groups: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearfar.data.row_groups.MAX_GROUPS", 2)
    images = np.random.default_rng(0).integers(0, 256, (640, 4, 4, 3), dtype=np.uint8)
    data = open_data(str(pack(images, tmp_path / "p", encoding="raw")))
    assert data.blocks is not None
    groups: Any = data.unusable_rows.source._groups
    reads: list[int] = []
    rows_of = groups._rows

    def counting(block: int) -> Any:
        reads.append(block)
        return rows_of(block)

    monkeypatch.setattr(groups, "_rows", counting)
    order = data.order(0, 0)
    for start in range(0, 640, 32):
        data.load(order[start : start + 32])
        assert len(groups._loaded) <= 2 + SPARE
    blocks = len(data.blocks.starts)
    assert blocks == 40
    assert len(reads) <= blocks + 2 + SPARE


@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_remote_packed_folders_and_parquet(
    protocol: str, tmp_path: Path, small_groups: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over two file systems of fsspec's that need no network; s3, gs and http differ in `open` alone."""
    import fsspec  # type: ignore[import-untyped]

    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    packed = pack(pictures(), tmp_path / "p", encoding="raw")
    table = Path(as_parquet(tmp_path / "q", pictures()))
    if protocol == "memory":
        system = fsspec.filesystem("memory")
        for folder in (packed, table):
            for file in folder.iterdir():
                system.pipe(f"/{tmp_path.name}/{folder.name}/{file.name}", file.read_bytes())
        urls = [f"memory://{tmp_path.name}/{folder.name}" for folder in (packed, table)]
    else:
        urls = [f"file://{folder}" for folder in (packed, table)]
    local, remote = open_data(str(packed)), open_data(urls[0])
    assert remote.fingerprint == local.fingerprint
    np.testing.assert_array_equal(everything(remote), everything(local))
    np.testing.assert_array_equal(everything(open_data(urls[1])), everything(open_data(str(table))))
    entries = list((tmp_path / "cache").glob("*.arrow"))
    assert len(entries) == 6 + 10  # a file per row group
    # from the cache, and within its limit
    size = sum(entry.stat().st_size for entry in entries)
    for entry in entries:
        os.utime(entry, (0, 0))
    everything(open_data(urls[0]))
    assert sum(entry.stat().st_mtime > 0 for entry in entries) == 6
    monkeypatch.setenv("NEARFAR_CACHE_GB", str(size / 4 / 1e9))
    entries[0].unlink()
    everything(open_data(urls[0]))
    everything(open_data(urls[1]))
    assert sum(entry.stat().st_size for entry in (tmp_path / "cache").glob("*.arrow")) <= size / 4 * 1.25


def test_pack_command_and_its_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, out = as_folder(tmp_path / "s", pictures()), str(tmp_path / "p")
    assert main(["pack", spec, "--out", out, "encoding=jpeg", "quality=90", "--quiet"]) == 0
    assert "90 rows in 1 shard (jpeg)" in capsys.readouterr().out
    mistakes = {
        ("pack", spec): "--out is missing",
        ("pack", "--out", out): "DATA is missing",
        ("pack", spec, "--out", out, "encodin=png"): "encoding",
        (
            "pack",
            spec,
            "--out",
            str(tmp_path / "q"),
            "encoding=gif",
        ): "expected auto, source, png, jpeg, raw",
        ("pack", spec, "--out", str(tmp_path / "q"), "quality=200"): "expected a whole number from 1 to 100",
        ("pack", spec, "--out", str(tmp_path / "q"), "shuffle=3"): "expected true or false",
        ("pack", spec, "--out", str(tmp_path / "q"), "workers=99999999999"): "a whole number from 0 to 256",
        ("pack", spec, "--out", str(tmp_path / "q"), "workers=-1"): "a whole number from 0 to 256",
        ("pack", spec, "--out", str(tmp_path / "q"), "seed=-1"): "a whole number from 0 and below 2^62",
        ("pack", spec, "--out", str(tmp_path / "s")): "holds other files",
        ("pack", str(tmp_path / "none"), "--out", str(tmp_path / "q")): "was not found",
        ("pretrain", "simclr", "nowhere://a", "--out", str(tmp_path / "r")): "fsspec",
    }
    for words, sentence in mistakes.items():
        assert main(list(words)) == 2, words
        assert sentence in capsys.readouterr().err, words


def test_too_many_bad_rows_stop_a_pack(tmp_path: Path) -> None:
    spec = as_parquet(tmp_path / "s", pictures(), bad=tuple(range(0, COUNT, 9)))
    with pytest.raises(UserError, match=r"10 of 90 images cannot be used and the limit is a share of 0.05"):
        pack(spec, tmp_path / "p")
    assert find_packed(str(tmp_path / "p")) is None
    data = open_data(str(pack(spec, tmp_path / "p", max_bad_share=0.2)))  # what was encoded is kept
    assert len(data) == COUNT - 10


def test_pack_suggests_a_recipe_of_the_modality() -> None:
    assert [_recipe(kind) for kind in ("image", "sound", "text")] == ["simclr", "cpc", "mlm"]
