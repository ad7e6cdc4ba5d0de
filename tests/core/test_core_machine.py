"""Memory limits of containers, devices of ranks, and what a failed exchange between processes means."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import nearfar as nf
from nearfar.cli import main
from nearfar.distributed.failures import communication_failure
from nearfar.distributed.strategy import join
from nearfar.errors import UserError
from nearfar.system.hardware import pick_device
from nearfar.system.machine import read_memory_available
from nearfar.train import pretrain
from tests.helpers import IMAGES, QUICK

GB = 10**9


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 20000000 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 20_480_000_000),
        # version 2: the limit of the group itself, of a group above it, and "max"
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "1200000000\n",
                "sys/fs/cgroup/a/b/memory.current": "200000000\n",
            },
            GB,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "1\n",
                "sys/fs/cgroup/a/memory.max": "3000000000\n",
                "sys/fs/cgroup/a/memory.current": "1000000000\n",
            },
            2 * GB,
        ),
        # version 2 in a container, where the group's own folder is mounted as the root
        (
            {
                "proc/self/cgroup": "0::/../outside\n",
                "sys/fs/cgroup/memory.max": "2000000000\n",
                "sys/fs/cgroup/memory.current": "1000000000\n",
            },
            GB,
        ),
        # version 1
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4000000000\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1000000000\n",
            },
            3 * GB,
        ),
        # cache of files that the kernel drops when memory is needed, in versions 2 and 1
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "8000000000\n",
                "sys/fs/cgroup/a/memory.current": "7900000000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 400000000\nfile 7500000000\ninactive_file 6900000000\n",
            },
            7 * GB,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "8000000000\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "7900000000\n",
                "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 6900000000\n",
            },
            7 * GB,
        ),
    ],
)
def test_memory_limit_is_the_smallest_of_machine_and_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert read_memory_available(write_tree(tmp_path, files)) == expected
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert read_memory_available(tmp_path) == expected // 2


def test_every_rank_gets_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert (
        [pick_device("cuda", rank) for rank in (0, 1)]
        == current
        == [torch.device("cuda", 0), torch.device("cuda", 1)]
    )
    with pytest.raises(UserError, match=r"device was 'cuda:1'; with several processes use cuda"):
        pick_device("cuda:1", 0)
    with pytest.raises(UserError, match=r"process 2 on this machine has no GPU: it has 2"):
        pick_device("auto", 2)


def test_training_and_opened_runs_use_the_gpu_of_their_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher numbers the processes of a machine: this one is the second (LOCAL_RANK=1)."""
    run = nf.pretrain("simclr", IMAGES, tmp_path / "run", backbone="resnet8-w16", device="cpu", **QUICK)
    run.settings = replace(run.settings, device="cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        run.strategy = join()
        assert run.strategy.local_rank == 1
        assert run.device == torch.device("cuda", 1)

        def stop(name: str, local_rank: int | None = None) -> torch.device:
            raise UserError(f"{name} of process {local_rank}")

        monkeypatch.setattr(pretrain, "pick_device", stop)
        monkeypatch.setattr(pretrain, "join", lambda *_: run.strategy)
        with pytest.raises(UserError, match=r"^cuda of process 1$"):
            nf.pretrain("simclr", IMAGES, tmp_path / "new", backbone="resnet8-w16", device="cuda", **QUICK)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        with pytest.raises(UserError, match="process 1 on this machine has no GPU"):
            _ = run.device
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("problem", "resumable"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"), True),
        (dist.DistBackendError("NCCL error: remote process exited or there was a network error"), True),
        (dist.DistNetworkError("The client socket has failed to connect"), True),
        (
            RuntimeError(
                "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1000ms for recv operation"
            ),
            True,
        ),
        (
            dist.DistBackendError(
                "NCCL error: Duplicate GPU detected : rank 0 and rank 1 both on device 1000"
            ),
            False,
        ),
        (RuntimeError("No backend type associated with device type cpu: nccl"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        # data and files are not the process group
        (RuntimeError("shard-3.parquet: connection reset by peer (s3)"), None),
        (RuntimeError("gloomy.png: timed out"), None),
        (RuntimeError("photos/gloo/nccl.png: timed out"), None),
        (RuntimeError("Distributed package doesn't have NCCL built in"), False),
        (RuntimeError("No backend type associated with device type cpu"), False),
        # what this machine cannot resolve or listen on
        (dist.DistNetworkError("failed to resolve hostname node-0"), False),
        (
            dist.DistNetworkError(
                "The server socket has failed to listen on any local network address. port: 29701, useIpv6: "
                "false, code: -98, name: EADDRINUSE, message: address already in use"
            ),
            False,
        ),
    ],
)
def test_only_lost_processes_and_timeouts_are_resumable(problem: Exception, resumable: bool | None) -> None:
    failure = communication_failure(problem)
    assert (failure and failure.resumable) == resumable
    if failure is not None and not failure.resumable:
        assert str(problem).splitlines()[0] in failure.message


def test_the_cause_of_an_nccl_error_is_shown() -> None:
    failure = communication_failure(
        dist.DistBackendError(
            "NCCL error in: NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details)\n"
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
            "Last error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000"
        )
    )
    assert failure is not None
    assert not failure.resumable
    assert failure.message.endswith(": Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000")


@pytest.mark.parametrize(("message", "code"), [("Duplicate GPU detected", 2), ("remote process exited", 75)])
def test_only_a_resumable_failure_has_the_exit_code_of_one(
    message: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise dist.DistBackendError(f"NCCL error: {message}")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setattr("nearfar.cli.recipes.run", fail)
    assert main(["recipes"]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_misplaced_words_get_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my photos").mkdir()
    assert main(["evaluate", str(tmp_path), "my test/"]) == 2
    assert "did you mean --data 'my test/'?" in capsys.readouterr().err
    assert main(["pretrain", str(tmp_path / "my photos")]) == 2
    assert f"for instance nearfar pretrain simclr '{tmp_path / 'my photos'}'" in capsys.readouterr().err
    assert main(["pretrain", str(tmp_path / "my photos"), "moco"]) == 2
    assert f"did you mean nearfar pretrain moco '{tmp_path / 'my photos'}'?" in capsys.readouterr().err
