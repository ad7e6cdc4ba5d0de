"""N ranks equal one in float64: loss, gradient and weights, for every method. A user may change the number of
processes, kill one, stop all, or give bad input."""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn

from nearfar.cli import main
from nearfar.core.encoding import Encoding, Statistics
from nearfar.core.strategy import SINGLE
from nearfar.core.types import Batch
from nearfar.data import pack
from nearfar.distributed.strategy import join, launched, leave
from nearfar.evaluate.knn import ranked_classes
from nearfar.parts.encoders import Momentum
from nearfar.run import checkpoints
from nearfar.train import memory
from nearfar.train.equality import CASES, compare, make_data, start
from tests.data.test_data_packed import pictures
from tests.helpers import free_port

# in float64 rounding is 1e-16 of numbers up to some 10, in sums of some thousands, over a few steps
ROUNDING = 1e-11
EXCHANGE_ROUNDING = 1e-12  # of two steps, whose scores are summed in another order
# each exchanges something else: keys with gradient; queue and clusters; bank; statistics of a cloud; labels;
# rows of no fixed number; sums over all anchors; draws by row; places of a map; a running mean
EXCHANGING = (
    "simclr-ring",
    "moco-cave",
    "instdisc",
    "cmc",
    "byol",
    "vicreg",
    "cmc crops",
    "barlow crops",
    "swav queue",
    "dino crops",
    "lejepa crops",
    "dino fsdp",
    "supcon",
    "cpc",
    "simclr ml-cpc",
    "moco accept",
    "simclr accept nce",
    "simclr-ring sample",
    "dim",
    "simclr dv",
    "dim fsdp",
    "supervised fsdp",
)


def test_two_processes_compute_what_one_does() -> None:
    result = compare(2, {name: CASES[name] for name in EXCHANGING}, steps=4)
    assert set(result) == set(EXCHANGING)
    for name, differences in result.items():
        assert max(differences.values()) < ROUNDING, (name, differences)


def test_four_processes_compute_what_one_does() -> None:
    """Whether keys are gathered or pass from rank to rank: loss, gradient and weights of the same step."""
    names = ("simclr", "simclr exchange", "simclr ml-cpc", "simclr exchange ml-cpc")
    result = compare(4, {name: CASES[name] for name in names}, steps=2)
    for name, differences in result.items():
        assert max(differences.values()) < EXCHANGE_ROUNDING, (name, differences)


def run_as_rank(
    rank: int, world: int, ports: Sequence[int], commands: Sequence[Sequence[str]], folder: str
) -> None:
    """Runs commands one after the other as this rank; writes output and exit codes to `folder`."""
    torch.set_num_threads(1)
    codes = []
    with (
        open(f"{folder}/output-{rank}", "w") as stream,
        redirect_stderr(stream),
        redirect_stdout(stream),
    ):
        for port, words in zip(ports, commands, strict=True):
            os.environ.update(
                RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
            )
            codes.append(main(words))
    Path(f"{folder}/codes-{rank}").write_text(json.dumps(codes))


def by_two(folder: Path, *commands: Sequence[str]) -> tuple[list[list[int]], list[str]]:
    """(exit codes of each rank, output of each) of commands run by two processes."""
    ports = [free_port() for _ in commands]
    start(2, run_as_rank, 2, ports, commands, str(folder))
    codes = [json.loads((folder / f"codes-{rank}").read_text()) for rank in range(2)]
    return codes, [(folder / f"output-{rank}").read_text() for rank in range(2)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_data(folder)
    return folder / "pictures.npz"


def words(data: Path, out: Path, *more: str) -> list[str]:
    """A run of 12 steps by SGD, whose steps are proportional to gradients, so rounding differences stay
    small."""
    fixed = ["backbone=resnet8-w16", "precision=fp32", "workers=0", "log_every=1", "optimizer=sgd", "lr=0.01"]
    settings = ["epochs=4", "batch_size=16", "probe_every=0", "checkpoint_every=3"]
    return ["pretrain", "moco", str(data), "--out", str(out), *fixed, *settings, *more]


def state(out: Path) -> dict[str, torch.Tensor]:
    newest = checkpoints.newest(out / "ckpt")
    assert newest is not None
    return safetensors.torch.load_file(newest / "state.safetensors")


def rows(out: Path, kind: str = "train") -> list[dict[str, float]]:
    parsed = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row for row in parsed if row["kind"] == kind]


def test_the_number_of_processes_may_change_and_bad_input_is_reported_once(
    data: Path, tmp_path: Path
) -> None:
    """1 → 2 → 1, one step each and then the rest, ends as one process alone does, up to float32 rounding,
    also where the two have their weights spread over them; the files are those of one run, and only rank 0
    speaks."""
    changing, single, sharded = (tmp_path / name for name in ("changing", "alone", "sharded"))
    one_step = "max_time=0.001"
    assert main(words(data, single, "--quiet")) == 0
    assert main(words(data, changing, one_step, "--quiet")) == 75
    codes, outputs = by_two(
        tmp_path,
        words(data, changing, one_step, "sharding=fsdp"),
        words(data, sharded, "sharding=fsdp", "probe_every=1", "held_out=0.2", "clip=1"),
        words(data, tmp_path / "bad", "batch_size=15"),
        words(data, tmp_path / "bad", "bound=nothing"),
        words(data, data / "below-a-file"),  # which rank 0 alone would write
    )
    assert codes == [[75, 0, 2, 2, 2], [75, 0, 2, 2, 2]]
    assert "by 2 processes" in outputs[0]
    assert "stopped by max_time" in outputs[0]
    assert "with 2 ranks it must be a multiple of 2" in outputs[0]
    assert outputs[1] == ""
    assert rows(changing)[-1]["step"] == 2
    assert main(words(data, changing, "--quiet")) == 0
    for got, expected in zip(rows(changing), rows(single), strict=True):
        assert got["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    ours, theirs = state(changing), state(single)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], rtol=1e-4, atol=1e-4), name


def with_own_memory(rank: int, port: int, folder: str, command: Sequence[str]) -> None:
    """As one of two ranks, on a machine with much memory or with little."""
    memory.memory_available = lambda: (64 << 30, 6 << 20)[rank]
    run_as_rank(rank, 2, [port], [command], folder)


def test_ranks_with_other_memory_encode_in_the_same_parts(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    start(2, with_own_memory, free_port(), str(tmp_path), words(data, out, "epochs=1"))
    assert [json.loads((tmp_path / f"codes-{rank}").read_text()) for rank in range(2)] == [[0], [0]]
    assert "of the 8 instances of a batch are encoded at a time" in (tmp_path / "output-0").read_text()
    assert rows(out)[-1]["step"] == 3


def share_neighbours(rank: int, port: int, folder: str) -> None:
    """As one of two ranks: nearest neighbours in parts of seven rows, shared."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    strategy, rows = join(), torch.Generator().manual_seed(0)
    train, test = (torch.randn(count, 5, generator=rows) for count in (60, 33))
    labels = torch.arange(60) % 4
    rankings = [ranked_classes(train, labels, test, chunk=7, strategy=who) for who in (strategy, SINGLE)]
    same = ranked_classes(train, labels, train, chunk=7, exclude_self=True, strategy=strategy)
    leave_one_out = ranked_classes(train, labels, train, chunk=7, exclude_self=True)
    equal = torch.equal(*rankings) and torch.equal(same, leave_one_out)
    replies = strategy.all_gather_json({"rank": rank, "equal": equal})
    Path(f"{folder}/neighbours-{rank}").write_text(json.dumps(replies))
    leave()


def test_nearest_neighbours_are_those_of_one_process(tmp_path: Path) -> None:
    start(2, share_neighbours, free_port(), str(tmp_path))
    for rank in range(2):
        replies = json.loads((tmp_path / f"neighbours-{rank}").read_text())
        assert replies == [{"rank": 0, "equal": True}, {"rank": 1, "equal": True}]


def shuffle_keys(rank: int, port: int, folder: str) -> None:
    """As one of two ranks: keys under `batch_norm=shuffled` and those of the slow network per half of the
    batch."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.manual_seed(3)
    strategy, net = join(), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    encoders = Momentum(net)
    views = torch.randn(2, 12, 4, dtype=torch.float64)
    mine = slice(6 * rank, 6 * rank + 6)
    batch = Batch((views[0][mine], views[1][mine]), torch.arange(12)[mine])
    seed, keys_by_norm = torch.initial_seed(), {}
    kinds: tuple[tuple[Statistics, int | None], ...] = (
        ("shuffled", None),
        ("shuffled", 3),
        ("per-rank", None),
    )
    for kind, chunk in kinds:
        encoded, _ = Encoding(strategy, kind, chunk).encode(encoders, batch, (0,), (1,))
        keys_by_norm[f"{kind} {chunk}"] = encoded
    order = torch.from_numpy(np.random.default_rng([seed % 2**64, 12]).permutation(12))
    expected = torch.empty(12, 3, dtype=torch.float64)
    for half in order.split(6):
        expected[half] = encoders.slow(views[1][half]).detach()
    own_norm = torch.nn.functional.batch_norm(net[0](views[0][mine]), None, None, training=True)
    shuffled = keys_by_norm["shuffled None"]
    Path(f"{folder}/shuffled-{rank}").write_text(
        json.dumps(
            {
                "keys": torch.allclose(shuffled.keys[1], expected[mine], atol=1e-12),
                "anchors": torch.allclose(shuffled.anchors[0], own_norm, atol=1e-12),
                "another": not torch.allclose(shuffled.keys[1], keys_by_norm["per-rank None"].keys[1]),
                "in parts": list(keys_by_norm["shuffled 3"].keys[1].shape) == [6, 3],
                "no gradient": not shuffled.keys[1].requires_grad and shuffled.anchors[0].requires_grad,
            }
        )
    )
    leave()


def test_keys_may_be_shuffled_among_ranks(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """He et al. 2020, sec. 3.3: equals the slow network applied to each rank's half of the permuted batch."""
    start(2, shuffle_keys, free_port(), str(tmp_path))
    for rank in range(2):
        replies = json.loads((tmp_path / f"shuffled-{rank}").read_text())
        assert all(replies.values()), replies
    refused = ["pretrain", "simclr", str(data), "--out", str(tmp_path / "bad"), "batch_size=16"]
    assert main([*refused, "batch_norm=shuffled"]) == 2
    assert "batch_norm was shuffled" in capsys.readouterr().err


def picture_folder(folder: Path, count: int) -> Path:
    """Small pictures in two class folders, one of them broken: more than one rank's share of a scan."""
    rng = np.random.default_rng(0)
    for k in range(count):
        file = folder / f"class{k % 2}" / f"{k:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        grey = rng.integers(0, 128, (16, 16, 3)) + 127 * (k % 2)
        Image.fromarray(grey.astype(np.uint8)).save(file)
    (folder / "class0" / "070.png").write_bytes(b"no picture")
    return folder


def test_shared_evaluation_and_embedding_equal_one_process(data: Path, tmp_path: Path) -> None:
    """Scan, features and answers: figures, files and output are those of one process, bit by bit, and
    only rank 0 prints and writes."""
    run, pictures = tmp_path / "run", picture_folder(tmp_path / "pictures", 200)
    many = tmp_path / "many.npz"
    grey = np.random.default_rng(1).integers(0, 256, (1100, 16, 16, 3), dtype=np.uint8)
    np.savez(many, images=grey, labels=np.arange(1100) % 3)
    assert main(words(data, run, "epochs=1", "--quiet")) == 0
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    options = ["--train", str(pictures), "--protocol", "knn,linear,clustering", "--json"]
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    codes, outputs = by_two(
        tmp_path,
        ["evaluate", str(copy), *options],
        ["embed", str(copy), str(many), "--out", str(two)],
        ["embed", str(copy), str(tmp_path / "absent"), "--out", str(two)],
    )
    assert codes == [[0, 0, 2], [0, 0, 2]]
    assert outputs[1] == ""
    single = io.StringIO()
    with redirect_stdout(single):
        assert main(["evaluate", str(run), *options]) == 0
        assert main(["embed", str(run), str(many), "--out", str(one)]) == 0
    ours, theirs = (json.loads(text.splitlines()[0]) for text in (outputs[0], single.getvalue()))
    assert ours == theirs
    assert ours["train"]["samples"] + ours["test"]["samples"] == 199
    assert one.read_bytes() == two.read_bytes()
    assert (run / "evaluation.json").read_text() == (copy / "evaluation.json").read_text()


def damaged_pack(folder: Path, damaged: Sequence[int]) -> Path:
    """A packed folder with some of its rows changed."""
    images = pictures()
    packed = pack(images, folder, encoding="raw")
    for file in packed.glob("shard-*"):
        content = bytearray(file.read_bytes())
        for row in damaged:
            place = content.find(images[row].tobytes())
            if place >= 0:
                content[place] ^= 1
        file.write_bytes(content)
    return packed


def test_all_ranks_count_and_list_unusable_items(tmp_path: Path) -> None:
    """8 of 90 are more than a share of 0.07, which no rank meets alone."""
    packed = damaged_pack(tmp_path / "p", range(3, 83, 10))
    single, strict, lenient = (tmp_path / name for name in ("alone", "strict", "lenient"))
    settings = ("epochs=1", "batch_size=30", "held_out=0", "image_size=12", "--quiet")
    assert main(words(packed, tmp_path / "refused", *settings, "max_bad_share=0.07")) == 2
    assert main(words(packed, single, *settings, "max_bad_share=0.1")) == 0
    codes, outputs = by_two(
        tmp_path,
        words(packed, lenient, *settings, "max_bad_share=0.1"),
        words(packed, strict, *settings, "max_bad_share=0.07"),
    )
    assert codes == [[0, 2], [0, 2]]
    assert "of 90 instances cannot be used and the limit is a share of 0.07" in outputs[0]
    listed = [sorted((run / "quarantine.csv").read_text().splitlines()) for run in (single, lenient)]
    assert listed[0] == listed[1]
    assert len(listed[0]) == 9


def torchrun(log: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as stream:
        return subprocess.Popen(
            [*launcher, "--max-restarts", "3", "-m", "nearfar", *command],
            stdout=stream,
            stderr=stream,
            env=environment,
        )


def wait_for_step(out: Path, step: int, log: Path, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (out / "metrics.jsonl").exists() and any(
            f'"step": {step},' in line for line in (out / "metrics.jsonl").read_text().splitlines()
        ):
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} never came: {log.read_text()[-3000:]}")


def ranks_of(agent: int) -> dict[int, int]:
    """Process numbers by rank of those that torchrun started."""
    processes = {}
    for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        environment = dict(
            item.split("=", 1)
            for item in Path(f"/proc/{child}/environ").read_text().split("\0")
            if "=" in item
        )
        if "RANK" in environment:
            processes[int(environment["RANK"])] = int(child)
    return processes


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds ranks by /proc, which Linux has")
def test_a_killed_rank_and_a_signal_lose_nothing(data: Path, tmp_path: Path) -> None:
    """A rank killed by SIGKILL: torchrun restarts all from the last checkpoint. SIGTERM to torchrun: all
    stop, saved. Then the same command ends bit-equal to a run of two processes that nothing happened to."""
    undisturbed, disturbed, log = tmp_path / "undisturbed", tmp_path / "disturbed", tmp_path / "log"
    # saved by the clock as well, which is rank 0's: clocks of ranks differ, and all must look at a state
    # together
    codes, _ = by_two(tmp_path, words(data, undisturbed, "checkpoint_minutes=0.002"))
    assert codes == [[0], [0]]
    launcher = torchrun(log, words(data, disturbed))
    wait_for_step(disturbed, 4, log)
    os.kill(ranks_of(launcher.pid)[1], signal.SIGKILL)
    wait_for_step(disturbed, 7, log)
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(timeout=120)
    assert "stopped by SIGTERM" in log.read_text() or rows(disturbed)[-1]["step"] == 12
    codes, _ = by_two(tmp_path, words(data, disturbed))
    assert codes == [[0], [0]]
    assert [row["loss"] for row in rows(disturbed)] == [row["loss"] for row in rows(undisturbed)]
    ours, theirs = state(disturbed), state(undisturbed)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_peer_that_ends_at_the_rendezvous_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch's `DistNetworkError` mentions neither gloo nor a reset connection."""

    def gone() -> None:
        raise torch.distributed.DistNetworkError(
            "Failed to recv, got 0 bytes. Did the remote server shutdown?"
        )

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("nearfar.distributed.strategy.join", gone)
    assert main(["pretrain", "simclr", "digits", "--out", "nowhere"]) == 75
    assert capsys.readouterr().err.startswith("nearfar: another process of this run ended; the same command")


@pytest.mark.parametrize("port", ["", "x", "70000", None])
def test_an_unavailable_port_gets_a_sentence(
    port: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = str(listener.getsockname()[1]) if port is None else port
        for key, value in {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": address,
        }.items():
            monkeypatch.setenv(key, value)
        assert main(["pretrain", "simclr", "digits", "--out", "nowhere"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("nearfar: MASTER_PORT was ")


def test_without_a_launcher_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert launched() == (0, 1)
    # a cluster may name a world without a place to meet in
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launched() == (0, 1)
    assert [SINGLE.share(10), SINGLE.first_reason("why"), SINGLE.broadcast_json({"a": 1})] == [
        slice(0, 10),
        "why",
        {"a": 1},
    ]
