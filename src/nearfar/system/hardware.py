"""What this machine has, and what is used of it."""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from nearfar.errors import UserError
from nearfar.system.machine import look


def pick_device(name: str, local: int | None = None) -> torch.device:
    """The device a setting means; `auto` takes a GPU if there is one. Of several processes on a machine, each has a GPU of its own:
    `local` is its number there."""
    if local is not None and name in ("auto", "cuda") and torch.cuda.is_available():
        own = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(own)
        return own
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind = name.partition(":")[0]
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there[kind]:
        raise UserError(f"device was {name!r}, which this machine does not have; use auto or cpu")
    if kind == "cuda" and ":" in name and int(name.partition(":")[2]) >= torch.cuda.device_count():
        raise UserError(f"device was {name!r}; this machine has {torch.cuda.device_count()} CUDA devices")
    return torch.device(name)


def peak_memory(device: torch.device) -> float | None:
    """The most memory that was in use so far, in MiB: of the GPU that tensors are on, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10


def has_bf16(device: torch.device) -> bool:
    """Whether bfloat16 is arithmetic here, not emulation (an emulating CPU is ten times slower than fp32)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        native = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, name, lambda: False)() for name in native)
    return False


def pick_precision(setting: str, device: torch.device) -> torch.dtype:
    """float32 or bfloat16 for the encoders' arithmetic; weights and scores are always float32."""
    if setting == "auto":
        return torch.bfloat16 if has_bf16(device) else torch.float32
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[setting]


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory instead of returning it to the system after every step.

    Activations are allocated and freed at each step; page faults on getting them back cost small nets up to a
    third of their time. Elsewhere than glibc this does nothing.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL("libc.so.6")
    trim_threshold, mmap_threshold = -1, -3
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim_threshold, 1 << 30)


@contextmanager
def one_thread() -> Iterator[None]:
    """For small networks and small matrices, where more threads only wait for one another (an estimate of 1,000 rows took four times the CPU time and
    twice as long); and how sums are split cannot move a number. Torch's threads, and those of numpy's and scipy's BLAS."""
    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def environment() -> dict[str, Any]:
    """Facts about the machine and the software for env.json: as `nearfar doctor` finds them, with torch's own word on devices."""
    device = pick_device("auto")
    return {
        **look(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "gpu": torch.cuda.get_device_name(0) if device.type == "cuda" else None,
        "bf16": has_bf16(device),
    }
