"""Checkpoints: what is saved comes back, whatever dies in between; what was damaged is never used."""

import errno
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import nearfar
from nearfar.errors import UserError
from nearfar.run import checkpoints
from nearfar.run.checkpoints import check, load, newest, save, valid

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.complex64,
]


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, NaN payloads and signed zeros too."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return raw(a) == raw(b)


def raw(tensor: Tensor) -> bytes:
    values = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.flatten())
    return bytes(values.view(torch.uint8).tolist())


def small(step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {"weight": torch.full((3, 4), step / 7), "step": torch.tensor(step), "none": torch.zeros(0, 2)}
    return tensors, {"step": step, "rate": step / 3, "name": "tiny"}


def save_small(folder: Path, step: int, keep: int = 2) -> Path:
    return save(folder, step, *small(step), keep=keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------------------------- the round trip


@st.composite
def any_tensor(draw: st.DrawFn) -> Tensor:
    """Random bits of a random dtype and shape, seen through random strides."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    tensor = (raw > 127)[..., 0] if dtype == torch.bool else raw.view(dtype)[..., 0]
    if shape:
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
        tensor = tensor[:: draw(st.integers(1, 2))]
    return tensor.conj() if dtype.is_complex and draw(st.booleans()) else tensor


@given(st.dictionaries(st.text(st.characters(categories=["L", "N"]), min_size=1), any_tensor(), max_size=5))
@settings(deadline=None, max_examples=60)
def test_every_dtype_shape_and_stride_comes_back_exactly(tensors: dict[str, Tensor]) -> None:
    with_view = {**tensors, **{f"{name}/again": tensor[...] for name, tensor in tensors.items()}}
    folder = Path(os.environ["PYTEST_SCRATCH"]) / "round"
    back, _ = load(save(folder, 1, with_view, {}))
    assert back.keys() == with_view.keys()
    assert all(same(back[name], tensor) for name, tensor in with_view.items())


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for property tests, which hypothesis does not let take function-scoped fixtures."""
    monkeypatch.setenv("PYTEST_SCRATCH", str(tmp_path_factory.mktemp("scratch")))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
@settings(deadline=None, max_examples=40)
def test_facts_come_back_exactly(facts: dict[str, Any]) -> None:
    _, back = load(save(Path(os.environ["PYTEST_SCRATCH"]) / "facts", 1, {}, facts))
    assert repr(back) == repr(facts)  # repr tells -0.0 from 0.0 and 1 from True


def test_channels_last_tied_and_trained_parameters_come_back(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    tensors = {"weight": weight, "tied": weight, "row": weight[1], "scalar": torch.tensor(0.5)}
    back, _ = load(save(tmp_path, 7, tensors, {}))
    assert all(same(back[name], tensor.detach()) for name, tensor in tensors.items())
    assert not any(tensor.requires_grad for tensor in back.values())
    back["tied"].zero_()
    assert same(back["weight"], weight.detach())


@pytest.mark.parametrize(
    "facts", [{"loss": float("nan")}, {"loss": float("inf")}, {1: "one"}, {"pair": (1, 2)}, {"path": Path()}]
)
def test_facts_that_json_would_change_are_refused_before_anything_is_written(
    tmp_path: Path, facts: Any
) -> None:
    with pytest.raises(ValueError, match="facts must be"):
        save(tmp_path / "ckpt", 1, {}, facts)
    assert not (tmp_path / "ckpt").exists()


# ------------------------------------------------------------------------------------ which are kept


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 30, 4, 99_999_999, 100_000_000):
        save_small(tmp_path, step, keep=3)
    assert names(tmp_path) == ["step-00000030", "step-100000000", "step-99999999"]
    assert newest(tmp_path) == tmp_path / "step-100000000"


def test_a_step_saved_again_replaces_the_first(tmp_path: Path) -> None:
    save_small(tmp_path, 4)
    for rate in (0.1, 0.2):
        path = save(tmp_path, 5, {}, {"rate": rate})
    assert newest(tmp_path) == path
    assert load(path)[1] == {"rate": 0.2}
    assert len(names(tmp_path)) == 2
    assert newest(tmp_path / "nowhere") is None


def test_the_one_just_saved_is_never_pruned_and_damaged_newer_ones_go(tmp_path: Path) -> None:
    save_small(tmp_path, 300)
    (save_small(tmp_path, 400) / "facts.json").write_text("{}")
    assert newest(tmp_path) == tmp_path / "step-00000300"
    assert newest(tmp_path) != save_small(tmp_path, 310, keep=1)
    assert names(tmp_path) == ["step-00000310"]
    save_small(tmp_path, 200, keep=1)
    assert names(tmp_path) == ["step-00000200", "step-00000310"]  # a valid newer one is not ours to drop


def test_leftovers_are_swept_and_never_used(tmp_path: Path) -> None:
    path = save_small(tmp_path, 1)
    shutil.copytree(path, tmp_path / ".writing-step-00000002-1")
    shutil.copytree(path, tmp_path / ".deleting-step-00000003-1")
    assert newest(tmp_path) == path
    save_small(tmp_path, 2)
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


# ------------------------------------------------------------------------------------------- damage


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return save_small(tmp_path, 1), save_small(tmp_path, 2)


def expect_damaged(pair: tuple[Path, Path]) -> None:
    assert check(pair[1])
    assert newest(pair[0].parent) == pair[0]
    with pytest.raises(UserError, match="step-00000002"):
        load(pair[1])


def test_a_flip_in_any_byte_is_detected(pair: tuple[Path, Path]) -> None:
    for file in pair[1].iterdir():
        data = file.read_bytes()
        for at in range(len(data)):
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            file.write_bytes(flipped)
            assert not valid(pair[1]), (file.name, at)
        file.write_bytes(data)
    assert valid(pair[1])


def test_two_hundred_random_flips_fall_back_to_the_one_before(tmp_path: Path) -> None:
    rng = random.Random(0)
    tensors = {f"layer{i}.weight": torch.randn(64, 64) for i in range(4)}
    previous, last = (save(tmp_path, step, tensors, {"losses": [0.1 * step] * 50}) for step in (1, 2))
    for _ in range(200):
        file = last / rng.choice([checkpoints.STATE, checkpoints.FACTS, checkpoints.MANIFEST])
        data = file.read_bytes()
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(flipped)
        expect_damaged((previous, last))
        file.write_bytes(data)
    assert newest(tmp_path) == last


@pytest.mark.parametrize("name", [checkpoints.STATE, checkpoints.FACTS, checkpoints.MANIFEST])
def test_truncation_growth_and_deletion_are_detected(pair: tuple[Path, Path], name: str) -> None:
    file = pair[1] / name
    data = file.read_bytes()
    for changed in (data[:-1], data[: len(data) // 2], b"", data + b"\n", data + data):
        file.write_bytes(changed)
        expect_damaged(pair)
    file.unlink()
    expect_damaged(pair)
    os.mkfifo(file)  # would block a reader for ever
    expect_damaged(pair)


def test_additions_and_other_folders_are_detected(pair: tuple[Path, Path]) -> None:
    (pair[1] / "optimizer.pt").write_bytes(b"")
    expect_damaged(pair)
    renamed = pair[0].rename(pair[0].parent / "step-00000009")
    assert "step 1" in str(check(renamed))
    for path in (renamed.parent, renamed / checkpoints.STATE, renamed.parent / "step-00000077"):
        with pytest.raises(UserError, match=path.name):
            load(path)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The manifest changed by someone who knows how to make its own digest match."""
    manifest = json.loads((path / checkpoints.MANIFEST).read_bytes())
    change(manifest["body"])
    manifest["sha256"] = checkpoints._sha256(checkpoints._canonical(manifest["body"]))
    (path / checkpoints.MANIFEST).write_bytes(checkpoints._canonical(manifest))


def test_a_manifest_of_another_format_or_another_shape_is_refused(pair: tuple[Path, Path]) -> None:
    intact = (pair[1] / checkpoints.MANIFEST).read_bytes()
    changes: list[Callable[[dict[str, Any]], None]] = [
        lambda body: body.update(format=2),
        lambda body: body.update(step=3),
        lambda body: body.update(files=[]),
        lambda body: body["files"].pop(checkpoints.FACTS),
        lambda body: body.clear(),
    ]
    for change in changes:
        rewritten(pair[1], change)
        expect_damaged(pair)
        (pair[1] / checkpoints.MANIFEST).write_bytes(intact)
    for content in (b"[]", b"[" * 100_000, b"1" * 5000, b'{"body": {}, "sha256": []}', b"\xff"):
        (pair[1] / checkpoints.MANIFEST).write_bytes(content)
        expect_damaged(pair)
    (pair[1] / checkpoints.MANIFEST).write_bytes(intact)
    assert valid(pair[1])


# ------------------------------------------------------------------------------------ nothing executes

UNPICKLED: list[str] = []  # classes that an unpickler looked up in this process
WATCHING: list[None] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class":
        UNPICKLED.append(f"{arguments[0]}.{arguments[1]}")


class Malice:
    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.evidence),))


def test_loading_never_unpickles(pair: tuple[Path, Path], tmp_path: Path) -> None:
    if not WATCHING:  # an audit hook cannot be taken off again
        sys.addaudithook(_audit)
        WATCHING.append(None)
    evidence = tmp_path / "executed"
    malicious = pickle.dumps(Malice(evidence))
    archive = tmp_path / "archive.pt"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", malicious)
    UNPICKLED.clear()
    load(pair[0])
    for name in (checkpoints.STATE, checkpoints.FACTS):
        original = (pair[1] / name).read_bytes()
        for data in (malicious, archive.read_bytes(), b"null", b"[]", b"[" * 100_000):
            (pair[1] / name).write_bytes(data)
            expect_damaged(pair)
            promise = {"sha256": checkpoints._sha256(data), "size": len(data)}
            rewritten(pair[1], lambda body, at=name, new=promise: body["files"].update({at: new}))  # type: ignore[misc]
            expect_damaged(pair)
        (pair[1] / name).write_bytes(original)
    assert not UNPICKLED
    assert not evidence.exists()
    pickle.loads(malicious)  # the trap works, and the hook sees it
    assert UNPICKLED
    assert evidence.exists()


# ------------------------------------------------------------------------- real kills, real full disks

# Reads one order a line and lives it in a forked process; forking spares importing torch for every kill.
NURSERY = """
import json, os, resource, signal, sys, tempfile
from pathlib import Path
import torch
from nearfar.errors import UserError
from nearfar.run import checkpoints

torch.set_num_threads(1)

def say(text):
    os.write(1, (text + "\\n").encode())

def save(folder, step):
    tensors = {"weight": torch.full((50,), float(step)), "step": torch.tensor(step)}
    checkpoints.save(folder, step, tensors, {"step": step})
    say(f"saved {step}")

def die_at(moment):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if event == "open" or event.startswith(("os.", "shutil.")):
            seen += 1  # first, because os.kill is such an event too
            if seen == moment + 1:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def live(order):
    folder, step = Path(order["folder"]), order["step"]
    if "limit" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"], order["limit"]))
    if "moment" in order:
        die_at(order["moment"])
    try:
        save(folder, step)
        while order.get("forever"):
            step += 1
            save(folder, step)
    except UserError as error:
        say(f"refused {error}")

with tempfile.TemporaryDirectory() as folder:  # imports what torch imports late, so that no child must
    for step in range(4):
        checkpoints.save(Path(folder), step, {"weight": torch.zeros(1)}, {})

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        live(json.loads(line))
        os._exit(0)
    say(f"child {child}")
    say(f"over {os.waitpid(child, 0)[1]}")
"""


class Nursery:
    def __init__(self) -> None:
        source = str(Path(nearfar.__path__[0]).parent)
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )

    def live(self, patience: float | None = None, **order: Any) -> list[str]:
        """The output of a process, ended by kill -9 after `patience` seconds if given."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line.strip())
            if line.startswith("child") and patience is not None:
                time.sleep(patience)
                os.kill(int(line.split()[1]), signal.SIGKILL)
            if line.startswith("over"):
                return lines
        raise AssertionError(f"the nursery died: {lines}")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


def confirmed(lines: list[str]) -> int:
    return max((int(line.split()[1]) for line in lines if line.startswith("saved")), default=-1)


def step_of(folder: Path) -> int:
    """The step of the newest valid checkpoint, all of whose content must be of that step."""
    path = newest(folder)
    if path is None:
        return -1
    tensors, facts = load(path)
    assert tensors["weight"].eq(facts["step"]).all()
    assert tensors["step"] == facts["step"]
    return facts["step"]


def test_kill_9_at_random_moments_loses_nothing_that_was_confirmed(nursery: Nursery, tmp_path: Path) -> None:
    rng = random.Random(1)
    last, interrupted = -1, 0
    for _ in range(40):
        lines = nursery.live(rng.uniform(0, 0.12), folder=str(tmp_path), step=last + 1, forever=True)
        assert lines[-1] == f"over {int(signal.SIGKILL)}"
        last = max(last, confirmed(lines))
        interrupted += any(name.startswith(".") for name in names(tmp_path))
        step = step_of(tmp_path)
        assert step in (last, last + 1)  # the last one may have been renamed but not yet announced
        last = step
    assert interrupted  # the kills did hit saves


@pytest.mark.parametrize("overwrite", [False, True], ids=["a new step", "the same step overwrite"])
def test_kill_9_before_every_single_file_operation(nursery: Nursery, tmp_path: Path, overwrite: bool) -> None:
    for step in (1, 2):
        nursery.live(folder=str(tmp_path / "before"), step=step)
    for moment in range(100):
        folder = shutil.copytree(tmp_path / "before", tmp_path / str(moment))
        lines = nursery.live(folder=str(folder), step=2 if overwrite else 3, moment=moment)
        assert step_of(folder) >= max(2, confirmed(lines))
        if moment % 4 == 0:
            assert newest(folder) != save_small(folder, 4)
            assert names(folder)[-1] == "step-00000004"
            assert len(names(folder)) == 2  # nothing the dead process left is still there
        if lines[-1] == "over 0":
            break
        assert lines[-1] == f"over {int(signal.SIGKILL)}"
    assert 12 < moment < 99  # every operation of a whole save was a moment to die


def test_a_file_that_may_not_grow_is_one_sentence_and_leaves_the_last_one(
    nursery: Nursery, tmp_path: Path
) -> None:
    nursery.live(folder=str(tmp_path), step=1)
    for limit in (0, 100, 300):
        lines = nursery.live(folder=str(tmp_path), step=2, limit=limit)
        assert lines[-1] == "over 0"
        (sentence,) = (line for line in lines if line.startswith("refused"))
        assert str(tmp_path) in sentence
        assert "step 2 could not be written (no space left)" in sentence
        assert "the checkpoint of step 1 is intact" in sentence
        assert names(tmp_path) == ["step-00000001"]
    assert step_of(tmp_path) == 1


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "nearfar-test", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_one_sentence_and_leaves_the_last_one(tiny_disk: Path) -> None:
    folder = tiny_disk / "run" / "ckpt"
    with pytest.raises(UserError, match=r"step 0 .*no space left.*none before it"):
        save(folder, 0, {"bank": torch.zeros(100_000)}, {})
    assert names(folder) == []
    save_small(folder, 1)
    for size in (100_000, 64_000):
        with pytest.raises(UserError, match="no space left") as caught:
            save(folder, 2, {"bank": torch.zeros(size)}, {})
        assert "the checkpoint of step 1 is intact" in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.ENOSPC
        assert names(folder) == ["step-00000001"]
    assert newest(folder) == folder / "step-00000001"
    assert newest(folder) != save_small(folder, 2)  # and there is room again


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        save_small(tmp_path / "file", 1)
