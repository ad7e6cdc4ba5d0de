"""What this machine has and what is installed, found without importing any of it: the answer comes at once, and on a broken
install too. `nearfar.system.hardware` asks torch itself."""

import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from nearfar.system.extras import EXTRAS

# what is installed under another name than it is imported by
DISTRIBUTIONS = {
    "PIL": "pillow",
    "faiss": "faiss-cpu",
    "faster_coco_eval": "faster-coco-eval",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
CORE = ("torch", "numpy", "scipy", "jaxtyping", "safetensors", "yaml", "threadpoolctl")

# how threads of a parallel loop wait for one another: asleep. Spinning, which is OpenMP's default, takes the core that the thread waited
# for needs as soon as another process wants one: a step then takes tens of times as long (benchmarks/disturbed.py)
PATIENT = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


def wait_patiently() -> None:
    """Tells OpenMP so, unless the user told it something; it listens when it is loaded, which is when torch is."""
    if "torch" not in sys.modules and not any(key in os.environ for key in (*PATIENT, "GOMP_SPINCOUNT")):
        os.environ.update(PATIENT)


def waiting() -> str:
    """How threads wait, as the variables say that OpenMP reads."""
    spins = os.environ.get("GOMP_SPINCOUNT")
    if spins is not None:
        return f"GOMP_SPINCOUNT={spins}"
    return os.environ.get("OMP_WAIT_POLICY", "spinning").lower()


def busy(seconds: float = 0.2) -> float | None:
    """How many cores are at work, whoever's work it is, while this process sleeps; None elsewhere than Linux."""

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
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def packages() -> dict[str, str | None]:
    """Version of each package that anything here imports, by the name pip knows; None: not installed."""
    names = ["nearfar", *(DISTRIBUTIONS.get(module, module) for module in (*CORE, *EXTRAS))]
    return {name: version(name) for name in names}


def cpu_info() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; nothing elsewhere than Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def cpu_name() -> str:
    return cpu_info().get("model name") or platform.processor() or platform.machine()


def cores() -> int:
    """Cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """As many as torch will use: what OMP_NUM_THREADS says, or all cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else cores()


def device() -> str:
    """What torch will most likely take: a CUDA device needs a driver and a torch built for it."""
    if Path("/proc/driver/nvidia/version").exists() and "+cpu" not in (version("torch") or "+cpu"):
        return "cuda"
    return "mps" if sys.platform == "darwin" and platform.machine() == "arm64" else "cpu"


def memory_available() -> int | None:
    """Bytes this process may still take, which in a container may be fewer than the machine has free, and of which each of several
    processes here has its share; None elsewhere than Linux."""
    try:
        lines = (line.split() for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        free = [1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:"]
    except (OSError, ValueError, IndexError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        free += [int(limit) - int(used)] if limit != "max" else []
    except (OSError, ValueError):
        pass
    share = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(0, min(free)) // (int(share) if share.isdigit() and int(share) else 1) if free else None


def memory_held() -> int:
    """Bytes of memory this process holds now; 0 where nobody can tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def look() -> dict[str, Any]:
    """The facts of `nearfar doctor`."""
    flags = cpu_info().get("flags", "").split()
    found = device()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": cores(),
        "threads": threads(),
        "waiting": waiting(),
        "device": found,
        "bf16": found == "cuda" or bool({"avx512_bf16", "amx_tile"} & set(flags)),
        "packages": packages(),
    }


# the smallest batch that crashed in every attempt with torch 2.15.0 (core/layout.py); no core file is written
STRIDED_CONVOLUTION = """
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except ImportError:
    pass
import torch
layer = torch.nn.Conv2d(8, 16, 1, stride=2).to(memory_format=torch.channels_last)
for _ in range(3):
    view = torch.randn(8, 8, 96, 96).contiguous(memory_format=torch.channels_last)
    layer(view).sum().backward()
"""


def try_strided_convolution() -> Literal["works", "crashes", "not tried"]:
    """Whether torch survives the gradient of a strided 1x1 convolution of few channels, channels last, in a process of its own."""
    attempt = subprocess.run([sys.executable, "-c", STRIDED_CONVOLUTION], capture_output=True, check=False)
    if attempt.returncode == 0:
        return "works"
    return "not tried" if attempt.returncode == 1 else "crashes"  # 1: an exception, for instance ImportError


def broken() -> dict[str, str]:
    """Packages that are installed and cannot be imported, with the reason, each tried in a process of its own."""
    found = {}
    for module in ("nearfar", *CORE, *EXTRAS):
        name = DISTRIBUTIONS.get(module, module)
        if version(name) is None:
            continue
        tried = subprocess.run(
            [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False
        )
        if tried.returncode != 0:
            lines = [line for line in tried.stderr.splitlines() if re.match(r"\w", line)]
            found[name] = lines[-1] if lines else f"exit code {tried.returncode}"
    return found
