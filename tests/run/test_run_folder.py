"""A run folder is read once: no image is decoded twice, no checkpoint parsed twice; counts are reported."""

import builtins
import importlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nearfar.cli import main
from nearfar.data import Limits, locate, open_data
from nearfar.data.records import read_records
from nearfar.errors import UserError
from nearfar.evaluate import evaluate_run, table
from nearfar.modalities.image.data import ImageReader
from nearfar.report import write_report
from nearfar.run import checkpoints
from nearfar.run.folder import RunFolder
from nearfar.run.trained import Run
from nearfar.system import lock
from nearfar.train.pretrain import pretrain

SMALL: dict[str, Any] = {
    "backbone": "resnet8-w16", "batch_size": 16, "epochs": 1, "workers": 0, "probe_every": 0,
    "image_size": 16,
}  # fmt: skip


def photos(folder: Path, count: int = 60) -> Path:
    """Pictures of different sizes in class folders, two of them damaged."""
    generator = np.random.default_rng(0)
    for n in range(count):
        place = folder / "ab"[n % 2] / f"{n:02d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        side = 16 + n % 3
        pixels = generator.integers(0, 128, (side, side, 3)) + 100 * (n % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(place)
    (folder / "a" / "broken.png").write_bytes((folder / "a" / "00.png").read_bytes()[:200])
    (folder / "b" / "words.png").write_bytes(b"not a picture")
    return folder


@pytest.fixture
def call_counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[Any]]:
    """How often each encoded picture is decoded, and each checkpoint parsed."""
    decoded: Counter[Any] = Counter()
    parsed: Counter[Any] = Counter()
    decode, parse = ImageReader.decode, checkpoints._parsed

    def decoding(self: ImageReader, raw: bytes, options: Any) -> Any:
        decoded[raw] += 1
        return decode(self, raw, options)

    def parsing(path: Path) -> Any:
        parsed[path.name] += 1
        return parse(path)

    monkeypatch.setattr(ImageReader, "decode", decoding)
    monkeypatch.setattr(checkpoints, "_parsed", parsing)
    return {"decoded": decoded, "parsed": parsed}


def largest_count(counts: Counter[Any]) -> int:
    return max(counts.values(), default=0)


def test_nothing_is_decoded_or_parsed_twice(tmp_path: Path, call_counts: dict[str, Counter[Any]]) -> None:
    """pretrain, then evaluate, embed and report, each in its own process or all in one."""
    data, out = str(photos(tmp_path / "photos")), tmp_path / "run"
    run = pretrain("simclr", data, out, quiet=True, config=SMALL, max_bad_share=0.1)
    decoded = call_counts["decoded"]
    assert len(decoded) == 62
    assert decoded.total() == 63  # the first picture tells the kind of all before the data are opened
    evaluate_run(run, baselines=True)
    write_report([run], out / "report.html")
    assert decoded.total() == 63  # in one process: never again

    def open_run() -> Run:
        for counts in call_counts.values():
            counts.clear()
        return Run.open(out)

    reopened = open_run()
    result = evaluate_run(reopened, protocols=("knn", "linear"), baselines=True)
    assert (largest_count(call_counts["decoded"]), largest_count(call_counts["parsed"])) == (1, 1)
    assert len(call_counts["decoded"]) == 60  # the damaged ones are known already
    reported = open_run()
    write_report([reported], out / "report.html")
    assert (largest_count(call_counts["decoded"]), largest_count(call_counts["parsed"])) == (1, 1)
    embedded = open_run()
    embedded.embed(data)
    assert (largest_count(call_counts["decoded"]), largest_count(call_counts["parsed"])) == (1, 1)
    assert result["knn"] == evaluate_run(run, protocols=("knn", "linear"))["knn"]


def test_cached_features_need_no_pictures(tmp_path: Path, call_counts: dict[str, Counter[Any]]) -> None:
    data, out = str(photos(tmp_path / "photos")), tmp_path / "run"
    run = pretrain("simclr", data, out, quiet=True, config=SMALL, max_bad_share=0.1)
    first = evaluate_run(run)
    call_counts["decoded"].clear()
    assert evaluate_run(Run.open(out)) == first
    assert not call_counts["decoded"]


@pytest.mark.parametrize(
    "change", ["edited", "same size and time", "added", "removed", "touched", "another size"]
)
def test_a_cached_scan_is_only_used_for_the_same_files(
    change: str, tmp_path: Path, call_counts: dict[str, Counter[Any]]
) -> None:
    folder = photos(tmp_path / "photos")
    limits = Limits(max_bad_share=0.1, scans=tmp_path / "cache")
    first = locate(folder).open(limits)
    (file,) = (tmp_path / "cache").iterdir()
    rows = read_records(file)
    assert rows is not None
    assert len(rows) == 62
    call_counts["decoded"].clear()
    cached = locate(folder).open(limits)
    assert not call_counts["decoded"]
    assert (cached.fingerprint, cached.paths, cached.quarantine) == (
        first.fingerprint,
        first.paths,
        first.quarantine,
    )
    np.testing.assert_array_equal(cached.sizes, first.sizes)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(cached.load(np.arange(60)).data, first.load(np.arange(60)).data)
    call_counts["decoded"].clear()
    picture = folder / "a" / "02.png"
    options: dict[str, Any] = {}
    if change == "edited":
        Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(picture)
    elif change == "same size and time":
        status, content = picture.stat(), bytearray(picture.read_bytes())
        content[-30] ^= 1
        picture.write_bytes(content)
        os.utime(picture, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "added":
        Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(folder / "a" / "zz.png")
    elif change == "removed":
        picture.unlink()
    elif change == "touched":
        os.utime(picture, (1, 1))
    else:
        options["image_size"] = 4
    reopened = locate(folder).open(limits, **options)
    assert len(call_counts["decoded"]) >= 61
    assert (reopened.fingerprint == first.fingerprint) == (change in ("touched", "another size"))


def test_a_damaged_scan_is_repeated(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    limits = Limits(max_bad_share=0.1, scans=tmp_path / "cache")
    first = locate(folder).open(limits)
    (file,) = (tmp_path / "cache").iterdir()
    for damage in (b"", b"nonsense", file.read_bytes()[:-20]):
        file.write_bytes(damage)
        assert locate(folder).open(limits).fingerprint == first.fingerprint
        assert read_records(file) is not None


def test_run_reports_counts_of_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = photos(tmp_path / "photos")
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(folder / "loose.png")
    words = [f"{key}={value}" for key, value in SMALL.items()]
    out = tmp_path / "run"
    assert main(["pretrain", "simclr", str(folder), "--out", str(out), *words, "max_bad_share=0.1"]) == 0
    message = capsys.readouterr().err
    assert "61 images, no labels (1 of its 63 files lie beside the folders" in message
    assert "2 images left out: truncated (1), not an image (1); first: " in message
    assert "the last incomplete batch is dropped (13 of 61 images, different ones each epoch)" in message
    notes = RunFolder(out).notes()
    assert notes is not None
    assert (notes.instances, notes.set_aside, notes.left_over) == (
        61,
        {"truncated": 1, "not an image": 1},
        13,
    )
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    for phrase in ("1 (truncated), 1 (not an image)", "lie beside the folders", "dropped per epoch"):
        assert phrase in page
    (out / "data.json").write_text("[]")
    assert RunFolder(out).notes() is None


def test_an_unfinished_run_is_evaluated_and_reported_as_unfinished(tmp_path: Path) -> None:
    data, out = str(photos(tmp_path / "photos")), tmp_path / "run"
    pretrain(
        "simclr",
        data,
        out,
        quiet=True,
        config={**SMALL, "epochs": 2, "checkpoint_every": 3},
        max_bad_share=0.1,
    )
    for path in sorted((out / "ckpt").iterdir())[1:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    result = evaluate_run(Run.open(out), protocols=("knn",))
    assert result["unfinished"] == f"{out} is unfinished: step 3 of 6"
    assert table(result).endswith("step 3 of 6")


def test_a_run_from_an_array_is_evaluated_with_that_array(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(40) % 2
    run = pretrain("simclr", (pixels, labels), tmp_path, quiet=True, config={**SMALL, "image_size": None})
    assert {"knn", "linear"} <= set(evaluate_run(run))
    with pytest.raises(UserError, match="was trained on data from Python, give them again"):
        evaluate_run(Run.open(tmp_path))
    opened = Run.open(tmp_path)
    assert {"knn"} <= set(evaluate_run(opened, train=open_data(pixels, labels=labels), protocols=("knn",)))


def test_without_fcntl_there_is_another_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What Windows lacks must not keep the module from being imported."""
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "fcntl":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert importlib.reload(lock).fcntl is None
    monkeypatch.undo()
    assert importlib.reload(lock).fcntl is not None
    with (tmp_path / "a").open("w") as one, (tmp_path / "a").open("w") as two:
        assert lock.try_lock(one)
        assert not lock.try_lock(two)
