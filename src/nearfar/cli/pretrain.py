"""`nearfar pretrain`."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.cli.settings_help import settings_help
from nearfar.cli.urls import ALLOW_URLS, check_urls
from nearfar.errors import UserError, counted


def add(commands: Any) -> None:
    pretrain = commands.add_parser(
        "pretrain",
        help="learn an encoder from pictures, recordings or text; the same command again resumes",
        usage="nearfar pretrain RECIPE DATA --out RUN [--config FILE] [key=value ...]",
        description="Learns an encoder. DATA is a folder of images, a Parquet file or folder with an image column, an .npz "
        "with images (and labels), or a name: digits, glyphs, cifar10:FOLDER, idx:FOLDER (files like "
        "MNIST's); for cpc a folder of .wav or .flac files or Parquet "
        "with an audio column; for mlm a .txt file, a folder of them, or an .npz with tokens.",
        epilog=settings_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pretrain.add_argument("words", nargs="*", metavar="RECIPE DATA key=value", help="see nearfar recipes")
    add_options(pretrain)
    pretrain.set_defaults(command=run, several=True)


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options that all training commands share."""
    command.add_argument("--out", type=Path, help="run folder")
    command.add_argument("--config", type=Path, help="YAML file of settings; key=value words go over it")
    command.add_argument("--print-config", action="store_true", help="print the complete settings and stop")
    command.add_argument(
        "--allow-change", action="store_true", help="resume although a setting or the data changed"
    )
    command.add_argument("--allow-urls", action="store_true", help=ALLOW_URLS)
    command.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    from nearfar.config.resolving import read_file, read_words
    from nearfar.data import Columns, Located, locate
    from nearfar.distributed.strategy import launched
    from nearfar.train.defaults import resolve_here
    from nearfar.train.pretrain import run_pretraining

    config = read_file(args.config) if args.config else {}
    check_urls(config, args.config, args.words, args.allow_urls)
    recipe, data, words = split_words(args.words, config)
    overrides = read_words(words)
    located: Located | None = None
    data_error: UserError | None = None
    try:
        columns = Columns(*(overrides.get(key, config.get(key)) for key in ("image_column", "label_column")))
        located = locate(data, columns=columns)
    # errors in the settings are reported first, and --print-config works without data
    except UserError as problem:
        data_error = problem
    settings, remark = resolve_here(recipe, data, args.out, config, overrides, located=located)
    is_first = launched()[0] == 0
    if args.print_config and is_first:
        print(settings.as_yaml(), end="")
    if args.print_config:
        return DONE
    if args.out is None:
        raise UserError("--out is missing; name the folder the run goes to, for instance --out runs/first")
    if data_error is not None:
        raise data_error
    run = run_pretraining(
        settings, located, args.out, allow_change=args.allow_change, quiet=args.quiet, note=remark
    )
    if is_first:
        print_next(run)
    return DONE


def print_next(run: Any) -> None:
    """Prints how long a run was trained and the command that shows what it learned."""
    command = "report" if run.description.class_count is None else "evaluate"  # which needs labels
    steps = counted(run.facts["step"], "steps")
    print(f"{run.path}: trained for {steps}; next: nearfar {command} {shlex.quote(str(run.path))}")


def _example(recipe: str) -> str:
    from nearfar.cli.train import RECIPE

    return "nearfar train photos/" if recipe == RECIPE else f"nearfar pretrain {recipe} photos/"


def split_words(words: Sequence[str], config: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Splits RECIPE and DATA from the key=value words; --config may name them too."""
    leading: list[str] = []
    for word in words:
        if len(leading) == 2 or ("=" in word and not Path(word).exists()):
            break
        leading.append(word)
    if len(leading) == 1 and "recipe" not in config and Path(leading[0]).exists():
        from nearfar.config.recipes import RECIPES

        if leading[0] not in RECIPES:
            raise UserError(
                f"RECIPE is missing before {leading[0]}; for instance nearfar pretrain simclr "
                f"{shlex.quote(leading[0])}"
            )
    recipe = leading[0] if leading else config.pop("recipe", None)
    data = leading[1] if len(leading) > 1 else config.pop("data", None)
    config.pop("recipe", None)
    config.pop("data", None)
    if not isinstance(recipe, str):
        raise UserError(
            "RECIPE is missing; nearfar recipes lists them, for instance nearfar pretrain simclr photos/"
        )
    if not isinstance(data, str):
        raise UserError(f"DATA is missing; name a folder of pictures, for instance {_example(recipe)}")
    return recipe, data, list(words[len(leading) :])
