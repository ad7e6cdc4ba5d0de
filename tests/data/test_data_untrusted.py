"""Untrusted files: nothing hangs or unpacks beyond memory; one bad item is one line of the quarantine."""

import json
import os
import signal
import sys
import wave
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from nearfar.cli import main
from nearfar.config.reading import load_yaml
from nearfar.config.resolving import read_file, read_words
from nearfar.data import open_data, pack
from nearfar.detect.read import from_parquet
from nearfar.errors import UserError
from nearfar.estimate.read import read_sample
from nearfar.run.metrics import read_metrics
from nearfar.run.trained import Run
from nearfar.system.untrusted import MAX_SETTINGS_BYTES, UNCHECKED_BYTES, read_json
from tests.forked import run_command


@pytest.fixture
def hangs_fail() -> Iterator[None]:
    """A read that never returns becomes a failure: the alarm interrupts it."""

    def rang(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it hung")

    previous = signal.signal(signal.SIGALRM, rang)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def picture(seed: int, height: int = 9, width: int = 12) -> bytes:
    import io

    out = io.BytesIO()
    rng = np.random.default_rng(seed)
    Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def parquet(path: Path, columns: dict[str, pa.Array], **options: object) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def pictures(count: int, seed: int = 0) -> pa.Array:
    return pa.array([{"bytes": picture(seed + number)} for number in range(count)])


@pytest.mark.usefixtures("hangs_fail")
@pytest.mark.parametrize("name", ["a.parquet", "a.npz", "a.txt", "a", "a.png"])
def test_pipe_as_data_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="not a regular file"):
        open_data(tmp_path / name)


@pytest.mark.usefixtures("hangs_fail")
def test_pipe_among_data_files_is_quarantined(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", {"image": pictures(3)})
    os.mkfifo(tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet' cannot be read as Parquet: .*not a regular file"):
        open_data(tmp_path)
    (tmp_path / "cifar").mkdir()
    os.mkfifo(tmp_path / "cifar" / "data_batch_1.bin")
    with pytest.raises(UserError, match="the folder needs the binary version"):
        open_data(f"cifar10:{tmp_path / 'cifar'}")


@pytest.mark.usefixtures("hangs_fail")
def test_pipe_as_settings_or_in_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("settings.yaml", "config.yaml", "evaluation.json", "metrics.jsonl"):
        os.mkfifo(tmp_path / name)
    assert main(["pretrain", "--config", str(tmp_path / "settings.yaml"), "--print-config"]) == 2
    assert "not a regular file" in capsys.readouterr().err
    with pytest.raises(UserError, match="is not a run"):
        Run.open(tmp_path)
    assert read_json(tmp_path / "evaluation.json") is None
    with pytest.raises(UserError, match=r"metrics.jsonl cannot be read: is a pipe"):
        read_metrics(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("bits", [40, 64])
def test_wav_of_unsupported_width_is_quarantined(bits: int, tmp_path: Path) -> None:
    for number, width in enumerate([2, 2, 2, 2, bits // 8]):
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(2 * 400))
        if width > 4:  # the standard library writes no such file: its header is changed
            data = bytearray((tmp_path / f"{number}.wav").read_bytes())
            data[32:36] = width.to_bytes(2, "little") + bits.to_bytes(2, "little")
            (tmp_path / f"{number}.wav").write_bytes(data)
    opened = open_data(tmp_path, max_bad_share=0.5)
    assert len(opened) == 4
    assert [reason for _, reason in opened.quarantine] == [
        "corrupt: File contains data in an unimplemented format"
    ]


def test_labels_of_different_types_in_files_are_refused(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", {"image": pictures(3), "label": pa.array([0, 1, 0])})
    parquet(tmp_path / "b.parquet", {"image": pictures(3), "label": pa.array(["x", "y", "x"])})
    with pytest.raises(UserError, match="class numbers in some of the Parquet files and names in others"):
        open_data(tmp_path)


def test_labels_of_another_width_in_another_file_are_the_same_labels(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", {"image": pictures(3), "label": pa.array([0, 1, 0], pa.int64())})
    parquet(tmp_path / "b.parquet", {"image": pictures(3), "label": pa.array([2, 1, 1], pa.uint8())})
    labels = open_data(tmp_path).labels
    assert labels is not None
    assert labels.tolist() == [0, 1, 0, 2, 1, 1]


@pytest.mark.parametrize("twice", ["image", "label"])
def test_duplicate_column_is_refused(twice: str, tmp_path: Path) -> None:
    columns = {"image": pictures(3), "label": pa.array([0, 1, 0])}
    names, arrays = [*columns, twice], [*columns.values(), columns[twice]]
    pq.write_table(pa.Table.from_arrays(arrays, names=names), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=f"has 2 columns called `{twice}`"):
        open_data(tmp_path / "a.parquet")


def test_zip_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((3, 8, 8, 3), np.uint8))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = (
        74  # of the entry in the directory: the version that it takes to unpack it
    )
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(UserError, match=r"a\.npz"):
        open_data(tmp_path / "a.npz")


@pytest.mark.usefixtures("hangs_fail")
@pytest.mark.parametrize("spec", ["series:{}", "pairs:{}:a,b", "{}"])
@pytest.mark.parametrize(
    "content", [b"\xea,b\n1,2\n3,4\n", b"a,a,b\n1,2,3\n4,5,6\n", b'a,b\n"\xff\xfe",2\nx,4\n', None]
)
def test_table_with_invalid_column_names_is_refused(content: bytes | None, spec: str, tmp_path: Path) -> None:
    """Names and text that are not UTF-8, a duplicate name, and a pipe."""
    if content is None:
        os.mkfifo(tmp_path / "a.csv")
    else:
        (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UserError):
        open_data(spec.format(tmp_path / "a.csv"))


@pytest.mark.parametrize("spec", ["pairs:{}:a,b", "series:{}", "{}", "mi"])
def test_parquet_text_that_is_not_utf8_is_refused(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, words = tmp_path / "a.parquet", pa.array([b"one", b"t\x83o", b"three"]).view(pa.string())
    pq.write_table(pa.table({"a": words, "b": [1.0, 2.0, 3.0]}), file)
    if spec == "mi":
        assert main(["mi", str(file), "--target", "b"]) == 2
        assert "Invalid UTF8" in capsys.readouterr().err
    else:
        with pytest.raises(UserError, match=r"UTF8|expected columns of numbers"):
            open_data(spec.format(file))


@pytest.mark.parametrize("key", ["x", "images", "tokens"])
def test_npz_member_that_is_not_an_array_is_refused(key: str, tmp_path: Path) -> None:
    """numpy returns an archive member without its magic as bytes, whatever `allow_pickle` is."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(f"{key}.npy", b"no array")
    for spec in (tmp_path / "a.npz", f"series:{tmp_path}/a.npz", f"pairs:{tmp_path}/a.npz:{key},{key}"):
        with pytest.raises(UserError):
            open_data(spec)
    with pytest.raises(UserError):
        read_sample(f"{tmp_path}/a.npz:{key}")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table_path_that_is_not_utf8_is_refused(suffix: str, tmp_path: Path) -> None:
    """Arrow opens no such path; folders of pictures and arrays are opened all the same."""
    parquet(tmp_path / "a.parquet", {"a": [1.0, 2.0], "b": [3.0, 4.0]})
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n")
    table = tmp_path / f"\udcff{suffix}"
    os.rename(tmp_path / f"a{suffix}", table)
    for spec in (table, f"series:{table}", f"pairs:{table}:a,b"):
        with pytest.raises(UserError, match="the path is not UTF-8"):
            open_data(spec)
    with pytest.raises(UserError, match="the path is not UTF-8"):
        read_sample(str(table))


def strict_stdout() -> None:
    """As under most locales, and not here."""
    sys.stdout.reconfigure(encoding="utf-8", errors="strict")  # type: ignore[union-attr]


def test_a_run_in_a_folder_of_any_bytes_trains_and_is_reported(tmp_path: Path) -> None:
    """TensorBoard takes no such path, and a page could not hold its name."""
    out = tmp_path / "\udcff"
    out.mkdir()
    rows = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=rows)
    os.rename(tmp_path / "a.npz", out / "a.npz")
    words = ["simclr", str(out / "a.npz"), "--out", str(out / "run"), "--quiet", "epochs=1", "batch_size=4"]
    process = run_command("pretrain", *words, setup=strict_stdout)
    assert (process.returncode, process.stderr) == (0, "")
    assert r"\udcff/run: trained for 3 steps" in process.stdout
    assert main(["report", str(out / "run"), "--out", str(out / "report.html")]) == 0
    assert r"\udcff" in (out / "report.html").read_text()
    (tmp_path / "0.png").write_bytes(picture(0))
    with pytest.raises(UserError, match="the path is not UTF-8"):
        pack(tmp_path, out / "packed")


@pytest.mark.parametrize("name", ["tokens", "images"])
def test_zero_dimensional_array_is_refused(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{name: np.array(3)})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"shape \(\)"):
        open_data(tmp_path / "a.npz")


def test_two_thin_pictures_leave_a_set_trainable(tmp_path: Path) -> None:
    """1 x 60000 and 60000 x 1 in one batch were padded to 60000 x 60000."""
    for number in range(18):
        (tmp_path / f"{number:02}.png").write_bytes(picture(number))
    (tmp_path / "wide.png").write_bytes(picture(18, 1, 60000))
    (tmp_path / "high.png").write_bytes(picture(19, 60000, 1))
    opened = open_data(tmp_path, image_size=32)
    pixels = opened.load(np.arange(20))
    assert pixels.data.shape == (20, 256, 256, 3)
    assert sorted(map(tuple, pixels.size.tolist()))[-2:] == [(9, 12), (256, 1)]


def test_a_parquet_file_that_would_unpack_beyond_memory_is_refused_by_its_footer(tmp_path: Path) -> None:
    """A zstd frame of zeros: a few kilobytes that unpack to more than FREE."""
    zeros = pa.array([{"bytes": bytes(UNCHECKED_BYTES // 8 + 1)}] * 8)
    path = parquet(tmp_path / "a.parquet", {"image": zeros}, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < UNCHECKED_BYTES / 1000
    with pytest.raises(UserError, match=r"would decompress from [\d,]+ to 2[\d,]+ bytes; at most 200 times"):
        open_data(path)
    with pytest.raises(UserError, match="would decompress"):
        read_sample(f"{path}:image")
    with pytest.raises(UserError, match="would decompress"):
        from_parquet(path)


def test_footer_with_too_small_sizes_is_refused(tmp_path: Path) -> None:
    zeros = pa.array([{"bytes": bytes(UNCHECKED_BYTES // 8 + 1)}] * 8)
    path = parquet(tmp_path / "a.parquet", {"image": zeros}, compression="zstd", use_dictionary=False)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data, written, lying = path.read_bytes(), varint(chunk.total_uncompressed_size), varint(1000)
    # as many bytes as before: a number may be written with leading zeros
    padded = bytes([lying[0], lying[1] | 128, *[128] * (len(written) - 3), 0])
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:footer] + data[footer:].replace(written, padded))
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size == 1000
    with pytest.raises(UserError, match="would decompress"):
        open_data(path)


def varint(number: int) -> bytes:
    zigzag, out = 2 * number, bytearray()
    while zigzag >= 128:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


def test_an_npz_file_that_would_unpack_beyond_memory_is_refused_by_its_directory(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "a.npz", images=np.zeros((UNCHECKED_BYTES // 1024 + 1, 32, 32), dtype=np.uint8)
    )
    for reader in (open_data, read_sample):
        with pytest.raises(UserError, match="would decompress"):
            reader(str(tmp_path / "a.npz"))


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)


def test_yaml_aliases_are_refused_wherever_yaml_is_read(tmp_path: Path) -> None:
    """328 bytes of them were nine to the eighth values, and a sentence of hundreds of megabytes."""
    (tmp_path / "settings.yaml").write_text(BOMB)
    with pytest.raises(UserError, match="is not plain YAML at line 2") as problem:
        read_file(tmp_path / "settings.yaml")
    assert len(str(problem.value)) < 500
    (tmp_path / "config.yaml").write_text(BOMB)
    with pytest.raises(UserError, match="cannot be read as settings"):
        Run.open(tmp_path)
    assert read_words(["epochs=[&a 1, *a]"]) == {"epochs": "[&a 1, *a]"}  # a word, which epochs will refuse
    assert load_yaml("{a: [1, 2.5, x], b: {c: null}}") == {"a": [1, 2.5, "x"], "b": {"c": None}}


def test_long_settings_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "settings.yaml").open("wb") as file:
        file.truncate(MAX_SETTINGS_BYTES + 1)  # a hole: no disk is used
    with pytest.raises(UserError, match="1,048,577 bytes; at most 1,048,576 are allowed"):
        read_file(tmp_path / "settings.yaml")
    assert read_json(tmp_path / "settings.yaml") is None


@pytest.mark.parametrize(
    "text", ["!!bool x", '!!int ""', "!!timestamp x", "{a: !!float ''}", "! 3", '"\\UFFFFFFFF"',
    '"\\U00110000"', "[" * 5_000]
)  # fmt: skip
def test_yaml_with_tags_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PyYAML raises KeyError, IndexError and AttributeError on tags, OverflowError on escapes beyond
    Unicode."""
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)
    (tmp_path / "settings.yaml").write_text(f"epochs: {text}")
    words = ["simclr", "digits", "--out", str(tmp_path / "out")]
    for command in (["pretrain", *words, "--config", str(tmp_path / "settings.yaml")],
                    ["sweep", *words, "--config", str(tmp_path / "settings.yaml")],
                    ["pretrain", *words, f"epochs={text}"]):  # fmt: skip
        assert main(command) == 2
        assert capsys.readouterr().err.startswith("nearfar: ")
    assert load_yaml("{on: 2001-01-01, at: 1:30, to: =}") == {True: "2001-01-01", "at": "1:30", "to": "="}


@pytest.mark.usefixtures("hangs_fail")
@pytest.mark.parametrize("value", ["9" * 100_000, "9" * 100_000 + "x", "[" * 50_000, "x" * 100_000])
def test_long_values_are_shortened_in_messages(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pretrain", "simclr", "digits", "--out", str(tmp_path), f"epochs={value}"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("nearfar: epochs was")
    assert len(message) < 3000


def test_deeply_nested_json_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    assert read_json(tmp_path / "evaluation.json") is None
    (tmp_path / "metrics.jsonl").write_text(
        "[" * 100_000 + "\n" + json.dumps({"kind": "train", "step": 1}) + "\n"
    )
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"kind": "train", "step": 1}]
