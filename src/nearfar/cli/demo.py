"""`nearfar demo`: pretraining, evaluation and report on embedded data."""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE

INTRODUCTION = """The data: 6,400 images of 32 x 32 pixels, drawn by this program. Each shows one of 20 capital letters in a typeface that
matplotlib ships, with random colour, size, place and background. Training uses no labels. The 2,000 test images are set
in Computer Modern, a typeface that is not in the training data."""

# chosen on typefaces held out of the training families; letters are not mirrored, so no flips
SETTINGS = {
    "backbone": "resnet8-w16",
    "batch_size": 64,
    "epochs": 8,
    "views": {
        "crop_scale": [0.5, 1.0],
        "flip": 0.0,
        "jitter": 1.0,
        "brightness": 0.6,
        "contrast": 0.6,
        "saturation": 0.6,
        "hue": 0.3,
        "greyscale": 0.3,
        "solarise": 0.3,
    },
}


def add(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="learn from embedded data in a few minutes, evaluate, and write a report",
        description="Pretrains on images of letters drawn by the program, evaluates on unseen typefaces, and writes "
        "a report. Needs no data and no network.",
    )
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="run folder (default: runs/demo)")
    demo.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.system.extras import need

    need("jinja2")  # of the extra `report`, which includes what training needs: known before the training
    run_demo(args.out)
    return DONE


def run_demo(out: Path) -> None:
    from nearfar.evaluate import evaluate_run, table
    from nearfar.report import write_report
    from nearfar.train.pretrain import pretrain

    print(INTRODUCTION, flush=True)
    run = pretrain("simclr", "glyphs:train", out, config=SETTINGS)
    result = evaluate_run(run, "glyphs:test", baselines=True)
    print(table(result))
    print(summary(result))
    print(f"report:      {write_report([run], out / 'report.html')}")
    print(
        f"next:        {command()} pretrain simclr YOUR_PHOTOS/ --out runs/photos   ({command()} --help "
        "lists all commands)"
    )


def summary(result: Mapping[str, Any]) -> str:
    """Returns one sentence about what the run learned."""
    results = {"learned": result, **result["baselines"]}
    shares = {name: f"{100 * figures['linear']['top1']:.0f} %" for name, figures in results.items()}
    words = {"pixels": "raw pixels", "untrained": "the untrained encoder"}
    baselines = " and ".join(f"{shares[name]} with {words.get(name, name)}" for name in result["baselines"])
    return (
        f"result:      a linear probe on the learned features classifies {shares['learned']} of the letters in an "
        f"unseen typeface; the same probe reaches {baselines}"
    )


def command() -> str:
    """Returns how to call `nearfar` here: by name if it is on PATH, else by the path of this installation."""
    if shutil.which("nearfar"):
        return "nearfar"
    script = Path(sys.executable).with_name("nearfar")
    return os.path.relpath(script) if script.exists() else "python -m nearfar"
