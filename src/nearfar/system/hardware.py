"""Devices, precision, memory and threads, as torch sees them."""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from nearfar.errors import UserError
from nearfar.system.machine import FAST_FP16, machine_facts

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(name: str, local_rank: int | None = None) -> torch.device:
    """Returns the device of a setting; `auto` uses a GPU if there is one.

    With several processes on a machine, the process with number `local_rank` gets its own GPU.
    """
    if local_rank is not None and name.startswith(("auto", "cuda")) and torch.cuda.is_available():
        count = torch.cuda.device_count()
        if ":" in name:
            raise UserError(
                f"device was {name!r}; with several processes use cuda: each gets a GPU of its own"
            )
        if local_rank >= count:
            raise UserError(
                f"process {local_rank} on this machine has no GPU: it has {count}; start at most {count} "
                "processes per machine, or set device=cpu"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return device
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind = name.partition(":")[0]
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[kind]:
        raise UserError(f"device was {name!r}, which this machine does not have; use auto or cpu")
    if kind == "cuda" and ":" in name and int(name.partition(":")[2]) >= torch.cuda.device_count():
        raise UserError(f"device was {name!r}; this machine has {torch.cuda.device_count()} CUDA devices")
    return torch.device(name)


def peak_memory(device: torch.device) -> float | None:
    """Returns the peak memory in MiB: of the GPU if tensors are on one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def has_bf16(device: torch.device) -> bool:
    """Returns whether the hardware computes in bfloat16. Emulation is ten times slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        native = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, name, lambda: False)() for name in native)
    return False


def has_fast_fp16(device: torch.device) -> bool:
    """Returns whether float16 is much faster than float32: on GPUs from Volta on (V100, T4). CPUs emulate it."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FAST_FP16


def pick_precision(setting: str, device: torch.device) -> torch.dtype:
    """Returns the dtype of the encoders' arithmetic. Weights and scores are always float32."""
    if setting == "auto":
        setting = "bf16" if has_bf16(device) else "fp16" if has_fast_fp16(device) else "fp32"
    return PRECISIONS[setting]


def precision_name(dtype: torch.dtype) -> str:
    """Returns the name of a dtype as the setting `precision` has it."""
    return next(name for name, precision in PRECISIONS.items() if precision is dtype)


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory instead of returning it to the system after every step.

    Activations are allocated and freed at each step. Page faults would cost small networks up to a third of
    their time. Has no effect without glibc.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL("libc.so.6")
    trim_threshold, mmap_threshold = -1, -3
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim_threshold, 1 << 30)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch, numpy and scipy to one thread.

    Small matrices do not gain from threads (an estimate of 1,000 rows took four times the CPU time with two),
    and the results do not depend on how sums are split.
    """
    threads = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def environment() -> dict[str, Any]:
    """Returns machine and software facts for env.json, with devices as torch reports them."""
    device = pick_device("auto")
    return {
        **machine_facts(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "gpu": torch.cuda.get_device_name(0) if device.type == "cuda" else None,
        "bf16": has_bf16(device),
        "precision": precision_name(pick_precision("auto", device)),
    }
