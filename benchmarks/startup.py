"""CPU-seconds (user and system) from the start of a process to the end of its first piece of work.

    OMP_NUM_THREADS=1 python benchmarks/startup.py [--repeats 5] [--against OTHER/src] [--only import,help]

Each row is the smallest of several runs, each in a new process: load on the machine can only add. "compiler" says
whether torch's compiler (`torch._dynamo`) was imported. `--against`: also measures another source tree, taking turns.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
FIRST_STEP = (
    "import numpy as np, nearfar as nf; images = np.random.default_rng(0).integers(0, 256, (64, 16, 16, 3), dtype=np.uint8); "
    "nf.pretrain('simclr', images, {out!r}, backbone='resnet8-w8', epochs=1, batch_size=64, workers=0, held_out=0, "
    "probe_every=0, quiet=True, {options})"
)
MI = "import numpy as np, nearfar as nf; x, y = np.random.default_rng(0).normal(size=(2, 60)); nf.estimate_mi(x, y)"
COMMAND = "import sys; from nearfar.cli import main; code = main({words!r})"
# name -> (what it is, Python code)
CASES = {
    "python": ("an empty program", "pass"),
    "torch": ("import torch", "import torch"),
    "import": ("import nearfar", "import nearfar"),
    "loss": (
        "first NTXentLoss",
        "import torch; from nearfar.losses import NTXentLoss; NTXentLoss()(torch.ones(4, 2), torch.ones(4, 2))",
    ),
    "help": ("nearfar --help", COMMAND.format(words=["--help"])),
    "doctor": ("nearfar doctor", COMMAND.format(words=["doctor"])),
    "mi": ("estimate_mi of 60 rows", MI),
    "sgd": ("pretrain of one step, SGD", FIRST_STEP.replace("{options}", "optimizer='sgd'")),
    "adamw": ("pretrain of one step, AdamW", FIRST_STEP.replace("{options}", "optimizer='adamw'")),
    "lars": ("pretrain of one step, LARS", FIRST_STEP.replace("{options}", "optimizer='lars'")),
}


def run_case(code: str, source: Path, cache: str) -> tuple[float, bool]:
    """CPU seconds of the process and its children, and whether torch's compiler was imported."""
    with tempfile.TemporaryDirectory(prefix="nearfar-startup-") as folder:
        code = code.replace("{out!r}", repr(f"{folder}/run"))
        report = (
            "import atexit, sys; atexit.register(lambda: "
            f"open({folder + '/compiler'!r}, 'w').write(str('torch._dynamo' in sys.modules)))\n"
        )
        # compiled modules are kept beside neither tree, and are there from the second run on
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONPYCACHEPREFIX": str(cache)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            [sys.executable, "-c", report + code], env=environment, stdout=subprocess.DEVNULL, cwd=folder
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{code!r} ended with {process.returncode}")
        return usage.ru_utime + usage.ru_stime, Path(folder, "compiler").read_text() == "True"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--against", type=Path, help="src folder of another version")
    parser.add_argument("--only", default=",".join(CASES), help="comma-separated rows")
    options = parser.parse_args()
    trees = {"this": SOURCE} | ({} if options.against is None else {"other": options.against.resolve()})
    print("| | " + " | ".join(f"{tree}: CPU s | compiler" for tree in trees) + " |")
    print("|---|" + "---|---|" * len(trees))
    with tempfile.TemporaryDirectory(prefix="nearfar-startup-") as cache:
        measure(options.only.split(","), trees, options.repeats, cache)


def measure(names: list[str], trees: dict[str, Path], repeats: int, cache: str) -> None:
    for name in names:
        label, code = CASES[name]
        runs: dict[str, list[tuple[float, bool]]] = {tree: [] for tree in trees}
        for _ in range(repeats):
            for tree, source in trees.items():
                runs[tree].append(run_case(code, source, cache))
        cells = [f"{min(runs[tree])[0]:.2f} | {'yes' if runs[tree][0][1] else 'no'}" for tree in trees]
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
