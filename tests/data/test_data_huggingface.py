"""Data sets of Hugging Face's `datasets`, written by that library: objects, and saved folders as `hf:PATH`."""

import io
import json
import random
import struct
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image
from pyarrow import csv

import nearfar as nf
from nearfar.data import open_data
from nearfar.errors import Stopped, UserError
from nearfar.modalities.image.decode import decode
from nearfar.system.arrow_reading import map_stream, text_labels
from tests.helpers import run_python

FRUIT = ["apple", "pear", "quince"]
SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16",
    "batch_size": 16,
    "epochs": 2,
    "probe_every": 0,
    "workers": 0,
    "held_out": 0.0,
    "checkpoint_every": 1,
    "log_every": 1,
    "quiet": True,
}


@pytest.fixture(autouse=True)
def _without_progress_bars() -> None:
    datasets.disable_progress_bars()


def pictures(count: int) -> list[bytes]:
    generator = np.random.default_rng(0)
    files = []
    for _ in range(count):
        out = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(out, "PNG")
        files.append(out.getvalue())
    return files


def labelled_images(count: int = 40, broken: tuple[int, ...] = ()) -> datasets.Dataset:
    files = [b"no picture" if n in broken else file for n, file in enumerate(pictures(count))]
    features = datasets.Features(
        {
            "photo": datasets.Image(),
            "label": datasets.ClassLabel(names=FRUIT),
            "tree": datasets.Value("string"),
        }
    )
    columns = {
        "photo": [{"bytes": file, "path": None} for file in files],
        "label": [n % 2 for n in range(count)],  # no quince: names come from the feature
        "tree": [f"tree {n // 4}" for n in range(count)],
    }
    return datasets.Dataset.from_dict(columns, features=features)


def test_an_object_and_its_files_are_the_same_images(tmp_path: Path) -> None:
    dataset = labelled_images(broken=(7,))
    dataset.save_to_disk(tmp_path / "saved", num_shards=2)
    opened = open_data(dataset)
    saved = open_data(f"hf:{tmp_path / 'saved'}")
    dataset.to_parquet(tmp_path / "rows.parquet")  # its schema says that `photo` has the feature Image
    for data in (opened, saved, open_data(tmp_path / "rows.parquet")):
        assert len(data) == 39
        assert data.classes == tuple(FRUIT)
        assert data.labels.tolist() == [n % 2 for n in range(40) if n != 7]
        assert data.groups["tree"].tolist() == [
            sorted({f"tree {k}" for k in range(10)}).index(f"tree {n // 4}") for n in range(40) if n != 7
        ]
        ((_, reason),) = data.quarantine
        assert reason.startswith("not an image")
        expected = np.stack([decode(file) for n, file in enumerate(pictures(40)) if n != 7])
        np.testing.assert_array_equal(data.load(np.arange(39)).data, expected)
    assert opened.quarantine[0][0] == "Dataset/row 7"
    assert saved.quarantine[0][0] == str(tmp_path / "saved" / "data-00000-of-00002.arrow#7")
    assert saved.paths[20] == "data-00001-of-00002.arrow#1"


def test_rows_that_were_selected_or_shuffled_are_read_in_that_order() -> None:
    dataset = labelled_images()
    order = [30, 3, 3, 17]
    chosen = open_data(dataset.select(order))
    np.testing.assert_array_equal(
        chosen.load(np.arange(4)).data, np.stack([decode(pictures(40)[n]) for n in order])
    )
    assert chosen.labels.tolist() == [0, 1, 1, 1]
    everything = open_data(dataset)
    assert chosen.fingerprint != everything.fingerprint
    assert open_data(labelled_images()).fingerprint == everything.fingerprint
    renamed = dataset.cast_column("label", datasets.ClassLabel(names=["a", "b", "c"]))
    assert open_data(renamed).classes == ("a", "b", "c")


def test_rows_are_decoded_when_they_are_used() -> None:
    """A set beyond `scan_bytes` is opened by the lengths of its rows; the next row replaces a broken one."""
    data = open_data(labelled_images(broken=(7,)), scan_bytes=0)
    assert (len(data), data.quarantine) == (40, ())
    loaded, rows = data.load_usable(np.array([6, 7]))
    assert rows.tolist() == [6, 8]
    np.testing.assert_array_equal(loaded.data[1], decode(pictures(40)[8]))
    assert data.unusable_rows.quarantined()[0][0] == "Dataset/row 7"
    assert data.fingerprint != open_data(labelled_images(broken=(8,)), scan_bytes=0).fingerprint


def test_training_resumes_exactly(tmp_path: Path) -> None:
    """Both forms of the data, stopped after a step and resumed, give the losses of a run that never stopped."""
    labelled_images().save_to_disk(tmp_path / "saved")
    folder = f"hf:{tmp_path / 'saved'}"
    runs = {"whole": nf.pretrain("simclr", labelled_images(), tmp_path / "whole", **SMALL)}
    for data, name in ((labelled_images(), "object"), (folder, "folder")):
        with pytest.raises(Stopped):
            nf.pretrain("simclr", data, tmp_path / name, max_time=1e-9, **SMALL)
        runs[name] = nf.pretrain("simclr", data, tmp_path / name, **SMALL)
    losses = {
        name: [row["loss"] for row in run.metrics if row["kind"] == "train"] for name, run in runs.items()
    }
    assert losses["whole"] == losses["object"] == losses["folder"]
    assert len(losses["whole"]) == 4
    assert runs["object"].description.classes == tuple(FRUIT)
    assert nf.Run.open(tmp_path / "folder").embed(folder).shape[0] == 40


def test_audio_text_and_numbers(tmp_path: Path) -> None:
    waves = np.random.default_rng(0).uniform(-0.5, 0.5, (4, 800)).astype(np.float32)
    files = []
    for kind, wave in zip(("WAV", "FLAC", "FLAC", "WAV"), waves, strict=True):
        out = io.BytesIO()
        soundfile.write(out, wave, 8000, format=kind, subtype="PCM_16")
        files.append({"bytes": out.getvalue(), "path": None})
    plain = datasets.Dataset.from_dict({"recording": files, "label": [0, 1, 0, 1]})
    casts = {"recording": datasets.Audio(), "label": datasets.ClassLabel(names=["a", "b"])}
    sound = open_data(plain.cast(datasets.Features(casts)))
    assert (sound.modality, sound.rate, sound.classes) == ("sound", 8000, ("a", "b"))
    np.testing.assert_allclose(sound.load(np.array([1])).data[0], waves[1], atol=2**-15)
    texts = ["near and far", "far and near", "neither"]
    text = open_data(datasets.Dataset.from_dict({"text": texts, "label": [0, 1, 1]}))
    assert (text.modality, len(text), text.labels.tolist()) == ("text", 3, [0, 1, 1])
    table = datasets.Dataset.from_dict({"x": [1, 2, 3], "y": [0.5, 0.25, 4.0], "label": ["u", "v", "u"]})
    table.save_to_disk(tmp_path / "table")
    for data in (table, f"hf:{tmp_path / 'table'}"):
        numbers = open_data(data)
        assert (numbers.modality, numbers.classes) == ("vectors", ("u", "v"))
        np.testing.assert_array_equal(numbers.load(np.arange(3)), [[1, 0.5], [2, 0.25], [3, 4]])


def test_paths_are_followed_in_objects_alone(tmp_path: Path) -> None:
    """Somebody else's file does not get to name files on this machine; `save_to_disk` embeds them."""
    for number, content in enumerate(pictures(3)):
        (tmp_path / f"{number}.png").write_bytes(content)
    paths = [str(tmp_path / f"{number}.png") for number in range(3)]
    dataset = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())
    assert len(open_data(dataset)) == 3
    dataset.save_to_disk(tmp_path / "embedded")
    assert len(open_data(f"hf:{tmp_path / 'embedded'}")) == 3
    table = map_stream(tmp_path / "embedded" / "data-00000-of-00001.arrow")
    cells = pa.array([{"bytes": None, "path": path} for path in paths], table.schema.field("image").type)
    file = str(tmp_path / "embedded" / "data-00000-of-00001.arrow")
    with pa.OSFile(file, "wb") as out, pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(pa.table({"image": cells}, schema=table.schema))
    with pytest.raises(UserError, match="only a path is stored"):
        open_data(f"hf:{tmp_path / 'embedded'}")


def test_what_cannot_be_read_gets_a_sentence(tmp_path: Path) -> None:
    dataset = labelled_images(4)
    datasets.DatasetDict({"train": dataset, "test": dataset}).save_to_disk(tmp_path / "both")
    dataset.save_to_disk(tmp_path / "saved")
    cases: list[tuple[Any, str]] = [
        (f"hf:{tmp_path / 'both'}", "hold the splits train, test; name one of them, such as hf:.*both/train"),
        (datasets.DatasetDict({"train": dataset}), "hold the splits train; pass one of them"),
        (dataset.to_iterable_dataset(), "have no length"),
        (dataset.with_transform(lambda rows: rows), "have a transform"),
        (dataset.select([]), "has no rows"),
        (f"hf:{tmp_path}", "expected a folder that Dataset.save_to_disk wrote"),
        (str(tmp_path / "saved"), "is read as hf:"),
    ]
    for data, message in cases:
        with pytest.raises(UserError, match=message):
            open_data(data)
    with pytest.raises(UserError, match=r"image_column was 'phot' .did you mean photo"):
        open_data(dataset, image_column="phot")
    with pytest.raises(UserError, match="the column `tags` is list"):
        open_data(datasets.Dataset.from_dict({"x": [1.0, 2.0], "tags": [["a"], ["b"]]}))


def saved(folder: Path, table: pa.Table) -> str:
    """A folder as `save_to_disk` would write it, of any table."""
    folder.mkdir()
    with pa.OSFile(str(folder / "a.arrow"), "wb") as out, pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    return f"hf:{folder}"


def test_small_files_with_many_cells_are_refused(tmp_path: Path) -> None:
    """A column of nothing has any number of rows, and a dictionary one text for all of them."""
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(4000, np.int8)), pa.array(["x" * 10**6]))
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2**20, np.int8)), pa.array(["x" * 1000]))
    images = pa.array(pictures(3))
    nothing = pa.Array.from_buffers(pa.null(), 2**31 - 1, [None])
    cases = {
        "their cells take .* of memory are free": pa.table({"x": pa.chunked_array([nothing] * 500)}),
        "a value of `w` has 1,000,000 bytes": pa.table({"x": np.zeros(4000), "w": repeated}),
        "a value of `label` has 1,000,000 bytes": pa.table({"photo": images, "label": repeated[:3]}),
        "it has 2 columns named `image`": pa.Table.from_arrays([images, images], names=["image", "image"]),
    }
    for number, (message, table) in enumerate(cases.items()):
        with pytest.raises(UserError, match=message):
            open_data(
                saved(tmp_path / str(number), table), image_column="photo" if "`label`" in message else None
            )
    with pytest.raises(UserError, match=r"the texts of `w` take .* of memory are free"):
        text_labels(pa.chunked_array([long] * 2**10), "data", "w")


def test_hostile_folders_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    labelled_images(4).save_to_disk(folder)
    file = folder / "data-00000-of-00001.arrow"
    content, state = file.read_bytes(), (folder / "state.json").read_text()
    table = map_stream(file)
    for codec in ("zstd", "lz4"):  # a batch of zeros would unpack to thousands of times its size
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with (
            pa.OSFile(str(file), "wb") as out,
            pa.ipc.new_stream(out, table.schema, options=options) as stream,
        ):
            stream.write_table(table)
        with pytest.raises(UserError, match="compressed Arrow stream"):
            open_data(f"hf:{folder}")
    for damaged in (content[: len(content) // 2], b"", b"\xff" * 200):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"cannot be read as an Arrow stream|have no rows|names no files"):
            open_data(f"hf:{folder}")
    file.write_bytes(content)
    for name in ("../saved/data-00000-of-00001.arrow", "/etc/passwd", ""):
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(UserError, match="names no files of this folder"):
            open_data(f"hf:{folder}")
    twice = {"_data_files": [{"filename": file.name}] * 2}
    (folder / "state.json").write_text(json.dumps(twice))
    with pytest.raises(UserError, match="names a file twice"):
        open_data(f"hf:{folder}")
    (folder / "state.json").write_text(state)
    assert len(open_data(f"hf:{folder}")) == 4
    file.write_bytes(content.replace(b"photo", b"phot\xff"))
    with pytest.raises(UserError, match="cannot be read as an Arrow stream: 'utf-8'"):
        open_data(f"hf:{folder}")


def stream_of(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table, max_chunksize=3)
    return out.getvalue().to_pybytes()


def test_damaged_streams_raise_nothing_else(tmp_path: Path) -> None:
    """Bytes of streams with pictures, words in a dictionary and numbers are replaced by others."""
    words = pa.array(list("ababab")).dictionary_encode()
    cells = [{"bytes": content, "path": None} for content in pictures(6)]
    tables = [
        pa.table(
            {"image": pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()})), "label": words}
        ),
        pa.table({"x": np.arange(6.0), "y": np.arange(6), "label": words}),
    ]
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    draw, opened = random.Random(0), 0
    for stream in map(stream_of, tables):
        for _ in range(200):
            damaged = bytearray(stream)
            for _ in range(draw.choice([1, 2, 4])):
                place = draw.randrange(len(damaged))
                new = draw.choice([bytes(4), b"\1", b"\xff", b"\xff" * 4, draw.randbytes(2)])
                damaged[place : place + len(new)] = new
            (tmp_path / "a.arrow").write_bytes(damaged)
            try:
                opened += len(open_data(f"hf:{tmp_path}")) > 0
            except UserError:
                continue
    assert opened > 20


@pytest.mark.parametrize("kind", ["rows", "words"])
def test_batches_without_a_header_are_refused(kind: str, tmp_path: Path) -> None:
    """Arrow takes them: the field of a batch in the flatbuffer's table of fields is set to 0, absent."""
    column = pa.array([1, 2, 3]) if kind == "rows" else pa.array(["a", "b", "a"]).dictionary_encode()
    stream = bytearray(stream_of(pa.table({"x": column})))
    first = stream.index(b"\xff\xff\xff\xff", 4) + 8  # the message behind the schema's
    message = first + struct.unpack_from("<I", stream, first)[0]
    fields = message - struct.unpack_from("<i", stream, message)[0]
    struct.pack_into("<H", stream, fields + 4 + 2 * 2, 0)  # the third field is the header
    (tmp_path / "a.arrow").write_bytes(stream)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    with pytest.raises(UserError, match="cannot be read as an Arrow stream"):
        open_data(f"hf:{tmp_path}")


def test_large_whole_numbers_are_rounded(tmp_path: Path) -> None:
    """Numbers that no float64 has, such as identifiers of 64 bits, as in tables of Parquet and CSV."""
    table = pa.table({"x": [2**60 + 1, -(2**60), 3], "y": [1.0, 2.0, 3.0]})
    pq.write_table(table, tmp_path / "t.parquet")
    csv.write_csv(table, tmp_path / "t.csv")
    (tmp_path / "a.arrow").write_bytes(stream_of(table))
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    for data in (str(tmp_path / "t.parquet"), str(tmp_path / "t.csv"), f"hf:{tmp_path}"):
        np.testing.assert_array_equal(
            open_data(data).load(np.arange(3))[:, 0], np.array([2**60, -(2**60), 3], np.float32)
        )


def test_a_saved_folder_needs_no_datasets_package(tmp_path: Path) -> None:
    labelled_images(4).save_to_disk(tmp_path / "saved")
    code = (
        "import sys; from nearfar.data import open_data; print(len(open_data(sys.argv[1])));"
        "assert 'datasets' not in sys.modules"
    )
    process = run_python("-c", code, f"hf:{tmp_path / 'saved'}", check=True)
    assert process.stdout.strip() == "4"
