"""Run folders and data files with holes of a terabyte, pipes, sockets and links: one sentence within 2 GB, and no wait."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import nearfar as nf
from nearfar.data import pack
from nearfar.run import checkpoints, metrics
from nearfar.run.metrics import read_metrics, rewind_metrics
from nearfar.run.weights import read_weights
from tests import limited

pytestmark = limited.needs_linux
TERABYTE = 2**40


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    images = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / "data.npz", images=images, labels=np.arange(24) % 2)
    nf.pretrain(
        "simclr", data=str(folder / "data.npz"), out=folder / "run", backbone="resnet8-w8", epochs=1, batch_size=8,
        workers=0, probe_every=0, quiet=True, device="cpu", image_size=8, held_out=0.0, keep=1, logger="none",
    )  # fmt: skip
    nf.evaluate(nf.Run.open(folder / "run"), protocols=["knn"], baselines=())
    return folder / "run"


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(TERABYTE)


def sparse_weights(path: Path) -> Path:
    """A safetensors file with a sound header and a tensor of a terabyte, which takes no place on the disk."""
    tensor = {"dtype": "F32", "shape": [TERABYTE // 4], "data_offsets": [0, TERABYTE]}
    header = json.dumps({"features": tensor}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + TERABYTE)
    return path


def unix_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # the path of a socket may have 108 bytes only
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS: dict[str, Callable[[Path], None]] = {
    "sparse": sparse, "pipe": os.mkfifo, "socket": unix_socket, "endless": endless,
}  # fmt: skip
REPORT, EVALUATE, EXPORT = "report", "evaluate", "export"


def command(name: str, run: Path) -> list[str]:
    out = str(run.with_name(f"{run.name}-out"))
    return {
        REPORT: ["report", str(run), "--out", f"{out}.html"],
        EVALUATE: ["evaluate", str(run), "--protocol", "knn", "--no-baselines"],
        EXPORT: ["export", str(run), "--to", out],
    }[name]


# file of a run: the commands that need it and refuse, those that do without
FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "config.yaml": ((REPORT, EVALUATE, EXPORT), ()),
    "ckpt/*/state.safetensors": ((EVALUATE, EXPORT), ()),
    "ckpt/*/facts.json": ((EVALUATE, EXPORT), ()),
    "ckpt/*/manifest.json": ((EVALUATE, EXPORT), ()),
    "metrics.jsonl": ((REPORT,), (EVALUATE,)),
    "cache/*.safetensors": ((), (EVALUATE,)),
    "cache/*.parquet": ((), (EVALUATE,)),
    "env.json": ((), (REPORT,)),
    "data.json": ((), (REPORT,)),
    "evaluation.json": ((), (REPORT,)),
    "curation.json": ((), (REPORT,)),
    "quarantine.csv": ((), (EVALUATE,)),
}


def test_a_file_that_is_none_of_ours_is_refused_or_passed_over(run: Path, tmp_path: Path) -> None:
    """Every file of a run in turn is a hole of a terabyte, a pipe, a socket or a link to a device. Files that can
    be made again are."""
    commands, codes = [], []
    for kind, make in KINDS.items():
        for number, (pattern, (refusing, going_on)) in enumerate(FILES.items()):
            copy = tmp_path / f"{kind}{number}"
            shutil.copytree(run, copy)
            for file in [*copy.glob(pattern)] or [copy / pattern]:
                file.unlink(missing_ok=True)
                if "*" not in file.name:
                    make(file)
            commands += [command(name, copy) for name in (*refusing, *going_on)]
            codes += [2] * len(refusing) + [0] * len(going_on)
    copy = tmp_path / "weights"
    shutil.copytree(run, copy)
    for file in copy.glob("cache/*.safetensors"):
        sparse_weights(file)
    commands.append(command(EVALUATE, copy))
    codes.append(0)
    for words, code, (actual, message) in zip(commands, codes, limited.outcomes(commands), strict=True):
        assert actual == code, (words, message)
        sentences = [line for line in message.splitlines() if line.startswith("nearfar: ")]
        assert len(sentences) == (code == 2), (words, message)


def seal(run: Path, name: str) -> None:
    """Writes the size and digest of a changed file into the manifest of the checkpoint; those of a hole are not
    computed."""
    (folder,) = (run / "ckpt").iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())["body"]
    size = (folder / name).stat().st_size
    digest = "" if size == TERABYTE else checkpoints._sha256((folder / name).read_bytes())
    manifest["files"][name] = {"size": size, "sha256": digest}
    own_digest = checkpoints._sha256(checkpoints._canonical(manifest))
    (folder / "manifest.json").write_bytes(checkpoints._canonical({"body": manifest, "sha256": own_digest}))


MANY_LISTS = "[" + "[]," * (2**26 // 3 - 4) + "[]]"  # 64 MiB of text, 1.8 GB as objects of Python


def test_oversized_files_of_a_run_are_refused(run: Path, tmp_path: Path) -> None:
    """Also in checkpoints whose manifest agrees with them."""
    contents: dict[str, tuple[str | None, int]] = {
        "config.yaml": ("a: [" + "[],\n" * 2**19 + "]", 2),
        "evaluation.json": ('{"results": [' + "[]," * 2**24 + "[]]}", 0),
        "metrics.jsonl": ('{"step": 1, "kind": "event"}\n' * 2**21, 2),
        "ckpt/state.safetensors": (None, 2),
        "ckpt/facts.json": (MANY_LISTS, 2),
    }
    commands = []
    for number, (name, (content, _)) in enumerate(contents.items()):
        copy = tmp_path / str(number)
        shutil.copytree(run, copy)
        folder, _, file = name.rpartition("/")
        path = next((copy / folder).iterdir()) / file if folder else copy / file
        if content is None:
            sparse(path)
        else:
            path.write_text(content)
        if folder:
            seal(copy, file)
        commands.append(command(EXPORT if folder else REPORT, copy))
    for (name, (_, code)), (actual, message) in zip(
        contents.items(), limited.outcomes(commands), strict=True
    ):
        assert actual == code, (name, message)
        reasons = (
            name,
            "of memory are free",
            "facts.json",
            "its content cannot be read",
            "no valid checkpoint",
        )
        assert code == 0 or any(reason in message for reason in reasons), message


def test_what_is_named_as_a_checkpoint_does_not_stop_training(run: Path, tmp_path: Path) -> None:
    """Python's rmtree waits for a writer of a pipe."""
    commands = []
    for kind, make in KINDS.items():
        copy = tmp_path / kind
        shutil.copytree(run, copy)
        for name in ("step-00000099", ".writing-step-00000001-1", ".deleting-step-00000002-1"):
            make(copy / "ckpt" / name)
        options = ["--config", str(copy / "config.yaml"), "--quiet", "--allow-change", "epochs=2"]
        commands.append(["pretrain", "--out", str(copy), *options])
    for words, (code, message) in zip(commands, limited.outcomes(commands), strict=True):
        assert code == 0, (words, message)
        (checkpoint,) = Path(words[2], "ckpt").iterdir()
        assert checkpoints.valid(checkpoint)


def test_hostile_data_files_are_refused(run: Path, tmp_path: Path) -> None:
    """Pipes that hung: a picture that COCO's JSON names, `detect --train PIPE.json`, `export` into a folder with
    a pipe. Holes that were read: tables of `mi`, arrays, weights."""
    commands = []
    for number, make in enumerate(KINDS.values()):
        place = tmp_path / str(number)
        (place / "to").mkdir(parents=True)
        for name in ("a.json", "picture.png", "x.npy", "x.npz", "x.csv", "x.parquet", "x.safetensors", "x.pth",
                     "x.yaml", "x.tar", "train-images-idx3-ubyte", "to/config.json"):  # fmt: skip
            make(place / name)
        coco = {"images": [{"id": 1, "file_name": "picture.png"}], "annotations": [], "categories": []}
        (place / "coco.json").write_text(json.dumps(coco))
        out = ["--out", str(place / "out")]
        pretrain = [
            ["pretrain", "simclr", str(place / f"x.{kind}"), *out]
            for kind in ("npz", "csv", "parquet", "npy")
        ]
        commands += [
            ["scenes", str(place / "a.json")],
            ["scenes", str(place / "coco.json")],
            ["scenes", str(place / "x.parquet")],
            ["export", str(run), "--to", str(place / "to")],
            *(["mi", str(place / f"x.{kind}"), "--target", "y"] for kind in ("npy", "npz", "csv", "parquet")),
            *pretrain,
            ["pretrain", "simclr", str(place / "train-images-idx3-ubyte"), *out],
            ["pretrain", "simclr", "digits", *out, f"init={place / 'x.safetensors'}"],
            ["pretrain", "simclr", "digits", *out, f"init={place / 'x.pth'}"],
            ["pretrain", "simclr", "digits", *out, "--config", str(place / "x.yaml")],
            ["pretrain", "clip", f"pairs:{place / 'x.csv'}:a,b", *out],
            ["pack", str(place / "x.tar"), *out],
        ]
    limited.assert_refused(commands, "")


def test_weights_beyond_memory_are_refused_by_their_size(tmp_path: Path) -> None:
    with pytest.raises(nf.UserError, match="of memory are free"):
        read_weights(sparse_weights(tmp_path / "weights.safetensors"))


def test_hostile_files_of_a_packed_folder_are_refused(tmp_path: Path) -> None:
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    packed = pack(tmp_path, tmp_path / "packed")
    commands = []
    for file in ("nearfar.json", "index.parquet", "shard-00000.parquet"):
        for kind, make in KINDS.items():
            copy = tmp_path / f"{kind} {file}"
            shutil.copytree(packed, copy)
            (copy / file).unlink()
            make(copy / file)
            commands.append(["pretrain", "simclr", str(copy), "--out", str(tmp_path / "out"), "batch_size=2"])
    shutil.copytree(packed, tmp_path / "lists")
    (tmp_path / "lists" / "nearfar.json").write_text(MANY_LISTS)
    commands.append(["pretrain", "simclr", str(tmp_path / "lists"), "--out", str(tmp_path / "out")])
    limited.assert_refused(commands, "")


def test_very_many_training_rows_are_thinned_and_no_other_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_HELD_BYTES", 4000)
    path = tmp_path / "metrics.jsonl"
    rows: list[dict[str, Any]] = [{"step": step, "kind": "train"} for step in range(1000)]
    rows[500:500] = [{"step": 500, "kind": "event"}] * 5
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_metrics(path)
    assert [row for row in read if row["kind"] == "event"] == rows[500:505]
    steps = [row["step"] for row in read]
    assert steps == sorted(steps)
    assert len({step // 100 for step in steps}) == 10
    assert sum(len(json.dumps(row)) for row in read) < 4000
    rewind_metrics(path, 600)  # nothing is lost on the disk
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        row for row in rows if row["step"] <= 600
    ]


def test_a_row_of_metrics_beyond_the_limit_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": 1, "kind": "event", "text": "x" * metrics.MAX_ROW_BYTES}, {"step": 2, "kind": "event"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_metrics(path) == rows[1:]
