"""`nearfar distill`."""

import argparse
from collections.abc import Sequence
from typing import Any

from nearfar.cli import pretrain
from nearfar.cli.settings_help import settings_help
from nearfar.errors import UserError

EXAMPLE = "nearfar distill runs/teacher photos/ --out runs/student objective=crd+kd backbone=resnet20"

OBJECTIVES = """objective (the default is the preset's, else crd+kd, or crd for a teacher without a classifier):
  kd                class probabilities at a temperature (Hinton et al. 2015): prior.kd, prior.temperature; the teacher needs a classifier
  crd               contrast with memory banks of student and teacher (Tian et al. 2020b): encoders.weight, temperature, selection.sample
  infonce           L_alpha (Song & Ermon 2020): bound.alpha=0.1
  ml-cpc            J_alpha (Song & Ermon 2020): bound.alpha=0.05, or a curriculum, bound.alpha='geometric(10,0.05)'
  cosine            features, the student's mapped to the teacher's width: prior.cosine
  relational        distances between features (Park et al. 2019): prior.relational
  a sum such as crd+kd of one of crd, infonce, ml-cpc and any of the others
Where the data have labels, cross-entropy on them is added with weight prior.labels (1, beside kd alone 0.1; 0 leaves it out)."""


def add(commands: Any) -> None:
    distill = commands.add_parser(
        "distill",
        help="distil a teacher into a smaller student; the same command resumes",
        usage="nearfar distill TEACHER DATA --out RUN [--config FILE] [key=value ...]",
        description="Trains a student on the outputs of a frozen teacher for DATA, which needs no labels. TEACHER is a run (of any recipe; a run of nearfar "
        "train also has class scores) or a network with its weights file, resnet50:weights.pth or "
        "timm/NAME:model.safetensors. The student is "
        "backbone=NAME at image_size=N; teacher and student may differ in width and image size.",
        epilog=f"{OBJECTIVES}\n\n{settings_help()}",
    )
    distill.add_argument(
        "words", nargs="*", metavar="TEACHER DATA key=value", help="teacher and data, then settings"
    )
    pretrain.add_options(distill)
    distill.set_defaults(command=run, several=True)


def run(args: argparse.Namespace) -> int:
    from nearfar.train.distill import student_of

    def resolve(
        teacher: str, data: str, config: dict[str, Any], overrides: dict[str, Any], located: Any
    ) -> tuple[Any, Any, Any]:
        objective = overrides.pop("objective", config.pop("objective", None))
        return student_of(teacher, data, args.out, config, overrides, objective=objective, located=located)

    return pretrain.run_training(args, _split_words, resolve)


def _split_words(words: Sequence[str], config: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Splits TEACHER and DATA from the key=value words; --config may name the data too."""
    from nearfar.config.reading import leading_words

    leading = leading_words(words, 2)
    config.pop("recipe", None)  # a run's own config.yaml names it
    config_data = config.pop("data", None)
    if not leading:
        raise UserError(f"TEACHER is missing; name a run or a weights file, for instance {EXAMPLE}")
    data = leading[1] if len(leading) > 1 else config_data
    if not isinstance(data, str):
        raise UserError(
            f"DATA is missing; name a folder of pictures after the teacher, for instance {EXAMPLE}"
        )
    return leading[0], data, list(words[len(leading) :])
