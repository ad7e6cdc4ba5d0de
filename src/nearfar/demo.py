"""`nearfar demo`: the main job, start to finish, on data every machine has."""

from pathlib import Path

from nearfar.evaluate import evaluate_run, table
from nearfar.report import write_report
from nearfar.train.pretrain import pretrain

WHAT = """The data: letters rendered in the typefaces that matplotlib carries, in random colours, sizes and places on
cluttered backgrounds. No labels are used for learning. The test letters are set in typefaces never seen in training."""

SETTINGS = {"backbone": "resnet8-w16", "epochs": 12, "views": {"flip": 0.0}}


def run_demo(out: Path) -> None:
    print(WHAT, flush=True)
    run = pretrain("simclr", "glyphs:train", out, config=SETTINGS)
    result = evaluate_run(run, "glyphs:test", baselines=True)
    print(table(result))
    print(f"look at {write_report([run], out / 'report.html')}")
