"""Facts about this machine and its packages, without importing them, so also on a broken install.

`nearfar.system.hardware` uses torch itself.
"""

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from nearfar.system.extras import EXTRAS

# import name -> distribution name, where they differ
DISTRIBUTIONS = {
    "PIL": "pillow",
    "faiss": "faiss-cpu",
    "faster_coco_eval": "faster-coco-eval",
    "mlflow": "mlflow-skinny",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
CORE = (
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "joblib",
    "jaxtyping",
    "safetensors",
    "yaml",
    "threadpoolctl",
    "cloudpickle",
)

# compute capabilities of the first GPUs with units for these precisions: Volta (V100; T4 has 7.5), Ampere
FAST_FP16, FAST_BF16 = (7, 0), (8, 0)

# OpenMP threads sleep while they wait. Spinning, the default, makes a step tens of times slower as soon as
# another process uses a core (benchmarks/disturbed.py).
PASSIVE_WAIT = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


def set_passive_wait() -> None:
    """Sets OMP_WAIT_POLICY=passive unless the user set it. Call before importing torch."""
    if "torch" not in sys.modules and not any(key in os.environ for key in (*PASSIVE_WAIT, "GOMP_SPINCOUNT")):
        os.environ.update(PASSIVE_WAIT)


def wait_policy() -> str:
    """Returns how OpenMP threads wait, according to the environment variables."""
    spins = os.environ.get("GOMP_SPINCOUNT")
    if spins is not None:
        return f"GOMP_SPINCOUNT={spins}"
    return os.environ.get("OMP_WAIT_POLICY", "spinning").lower()


def busy_cores(seconds: float = 0.2) -> float | None:
    """Returns how many cores other processes use now; None on systems other than Linux."""

    def ticks() -> tuple[int, int]:
        numbers = [
            int(word) for word in Path("/proc/stat").read_text(encoding="utf-8").split("\n")[0].split()[1:9]
        ]
        return sum(numbers), numbers[3] + numbers[4]

    try:
        total, idle = ticks()
        time.sleep(seconds)
        later, still = ticks()
    except (OSError, ValueError, IndexError):
        return None
    return (os.cpu_count() or 1) * (1 - (still - idle) / max(1, later - total))


def version(package: str) -> str | None:
    from importlib import metadata  # slow to import, and `--help` needs no versions

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def packages() -> dict[str, str | None]:
    """Returns the version of each package we may import, by distribution name; None if not installed."""
    names = ["nearfar", *(DISTRIBUTIONS.get(module, module) for module in (*CORE, *EXTRAS))]
    return {name: version(name) for name in names}


def cpu_info() -> dict[str, str]:
    """Returns the first processor's entry of /proc/cpuinfo; empty on systems other than Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def cpu_name() -> str:
    return cpu_info().get("model name") or platform.processor() or platform.machine()


def cores() -> int:
    """Returns the cores this process may use; in a container fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def threads() -> int:
    """Returns the number of threads torch will use: OMP_NUM_THREADS, or all cores."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdigit() and int(setting) > 0 else cores()


def device() -> str:
    """Returns the device that torch will most likely use. CUDA needs a driver and a CUDA build of torch."""
    if Path("/proc/driver/nvidia/version").exists() and "+cpu" not in (version("torch") or "+cpu"):
        return "cuda"
    return "mps" if sys.platform == "darwin" and platform.machine() == "arm64" else "cpu"


def gpu_capability() -> tuple[int, int] | None:
    """Returns the compute capability of the first GPU, as its driver reports it; None if unknown."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10).stdout
        major, minor = answer.split()[0].split(".")
        return int(major), int(minor)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def auto_precision(device_name: str, cpu_flags: Collection[str]) -> str:
    """Returns what precision=auto most likely is on this machine, without asking torch."""
    if device_name == "cuda":
        capability = gpu_capability() or FAST_BF16
        return "bf16" if capability >= FAST_BF16 else "fp16" if capability >= FAST_FP16 else "fp32"
    return "bf16" if device_name == "cpu" and {"avx512_bf16", "amx_tile"} & set(cpu_flags) else "fp32"


def memory_available() -> int | None:
    """Returns the bytes this process may still allocate; None on systems other than Linux.

    Container limits count, and several processes of one run share the memory equally.
    """
    return read_memory_available(Path("/"))


def read_memory_available(root: Path) -> int | None:
    """Returns `memory_available` from /proc and /sys below `root`."""
    try:
        lines = (line.split() for line in (root / "proc/meminfo").read_text(encoding="utf-8").splitlines())
        available = next(1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:")
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    share = int(processes) if processes.isdigit() and int(processes) else 1
    return max(0, min([available, *_cgroup_memory(root)])) // share


# files with the limit and the usage of a control group, by version
_CGROUP_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
# usage includes the cache of files; this part of it, in memory.stat, is dropped when memory is needed
_CGROUP_CACHE = {1: "total_inactive_file", 2: "inactive_file"}


def _cgroup_memory(root: Path) -> list[int]:
    """Returns the bytes left in the control groups of this process, of versions 1 and 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    groups = {(2, Path("sys/fs/cgroup"), "/"), (1, Path("sys/fs/cgroup/memory"), "/")}
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups.add((2, Path("sys/fs/cgroup"), path))
        elif "memory" in controllers.split(","):
            groups.add((1, Path("sys/fs/cgroup/memory"), path))
    remaining = []
    for version_number, mount, path in groups:
        folder = root / mount / path.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root / mount):
                break
            try:
                limit, usage = (int((group / name).read_text()) for name in _CGROUP_FILES[version_number])
            except (OSError, ValueError):  # no such group, or the limit is "max"
                continue
            remaining.append(limit - max(0, usage - _cgroup_cache(group, _CGROUP_CACHE[version_number])))
    return remaining


def _cgroup_cache(group: Path, key: str) -> int:
    """Returns the bytes of file cache that a control group gives back; 0 if unknown."""
    try:
        lines = (line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
        return next((int(words[1]) for words in lines if words[:1] == [key]), 0)
    except (OSError, ValueError, IndexError):
        return 0


def memory_held() -> int:
    """Returns the resident memory of this process in bytes; 0 if unknown."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def machine_facts() -> dict[str, Any]:
    """Returns the facts that `nearfar doctor` prints."""
    flags = cpu_info().get("flags", "").split()
    device_name = device()
    precision = auto_precision(device_name, flags)
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": cores(),
        "threads": threads(),
        "waiting": wait_policy(),
        "device": device_name,
        "bf16": precision == "bf16",
        "precision": precision,
        "packages": packages(),
    }


# the smallest batch that crashed in every attempt with torch 2.15.0 (core/networks.py); writes no core file
STRIDED_CONVOLUTION = """
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except ImportError:
    pass
import torch
layer = torch.nn.Conv2d(8, 16, 1, stride=2).to(memory_format=torch.channels_last)
for _ in range(30):
    view = torch.randn(8, 8, 96, 96).contiguous(memory_format=torch.channels_last)
    layer(view).sum().backward()
"""


def try_strided_convolution() -> Literal["works", "crashes", "not tried"]:
    """Tries the gradient of a strided 1x1 convolution, channels last, in a process of its own."""
    attempt = subprocess.run([sys.executable, "-c", STRIDED_CONVOLUTION], capture_output=True, check=False)
    if attempt.returncode == 0:
        return "works"
    return "not tried" if attempt.returncode == 1 else "crashes"  # 1: an exception, for instance ImportError


def broken_packages() -> dict[str, str]:
    """Returns installed packages that fail to import in a child process, with the reason."""
    errors = {}
    for module in ("nearfar", *CORE, *EXTRAS):
        name = DISTRIBUTIONS.get(module, module)
        if version(name) is None:
            continue
        process = subprocess.run(
            [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False
        )
        if process.returncode != 0:
            lines = [line for line in process.stderr.splitlines() if re.match(r"\w", line)]
            errors[name] = lines[-1] if lines else f"exit code {process.returncode}"
    return errors
