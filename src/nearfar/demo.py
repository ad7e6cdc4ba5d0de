"""`nearfar demo`: the main job, start to finish, on data every machine has."""

from pathlib import Path

from nearfar.evaluate import evaluate_run, table
from nearfar.report import write_report
from nearfar.train.pretrain import pretrain

WHAT = """The data: 20 capital letters rendered in the typefaces that matplotlib carries, in random colours, sizes and places
on cluttered backgrounds, 6,400 pictures of 32 x 32. Learning sees no labels. The 2,000 test pictures are set in Computer
Modern, a family that learning never saw."""

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


def run_demo(out: Path) -> None:
    print(WHAT, flush=True)
    run = pretrain("simclr", "glyphs:train", out, config=SETTINGS)
    result = evaluate_run(run, "glyphs:test", baselines=True)
    print(table(result))
    print(f"look at {write_report([run], out / 'report.html')}")
