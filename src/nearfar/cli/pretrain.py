"""`nearfar pretrain`."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.cli.settings_help import settings_help
from nearfar.cli.urls import ALLOW_URLS, check_urls
from nearfar.errors import UserError, counted


def add(commands: Any) -> None:
    pretrain = commands.add_parser(
        "pretrain",
        help="learn an encoder from images, sound, text, graphs or tables; the same command resumes",
        usage="nearfar pretrain RECIPE DATA --out RUN [--config FILE] [key=value ...]",
        description="Learns an encoder from data without labels. The same command resumes a run that was stopped. DATA is a folder of images, a Parquet file or folder with an image column, an .npz "
        "with images (and labels), tar files, hf:FOLDER, a packed folder, a URL, a table, or a name: digits, glyphs, "
        "cifar10:FOLDER, idx:FOLDER (files like MNIST's). cpc takes a folder of .wav or .flac files or Parquet with an "
        "audio column; mlm takes a .txt file, a folder of them, or an .npz with tokens.",
        epilog=settings_help(),
    )
    pretrain.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE DATA key=value",
        help="a method (nearfar recipes lists them), data, settings",
    )
    add_options(pretrain)
    pretrain.set_defaults(command=run, several=True)


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options that all training commands share."""
    command.add_argument("--out", type=Path, metavar="RUN", help="run folder, new or to be resumed")
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file of settings; key=value words override it"
    )
    command.add_argument("--print-config", action="store_true", help="print the complete settings and stop")
    command.add_argument(
        "--allow-change", action="store_true", help="resume although a setting or the data changed"
    )
    command.add_argument("--allow-urls", action="store_true", help=ALLOW_URLS)
    command.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    from nearfar.train.defaults import resolve_here

    def resolve(
        recipe: str, data: str, config: Mapping[str, Any], overrides: Mapping[str, Any], located: Any
    ) -> tuple[Any, Any, Any]:
        settings, note = resolve_here(recipe, data, args.out, config, overrides, located=located)
        return settings, {}, note

    return run_training(args, split_words, resolve)


def run_training(args: argparse.Namespace, split: Any, resolve: Any) -> int:
    """Trains: `split` separates two leading words (a recipe or a teacher, and DATA) from settings, `resolve` returns
    the complete settings, their Python objects, and a note about defaults."""
    from nearfar.config.resolving import read_file, read_words
    from nearfar.data import Columns, Located, locate
    from nearfar.distributed.strategy import launched
    from nearfar.train.pretrain import run_pretraining

    config = read_file(args.config) if args.config else {}
    check_urls(config, args.config, args.words, args.allow_urls)
    subject, data, words = split(args.words, config)
    overrides = read_words(words)
    located: Located | None = None
    data_error: UserError | None = None
    try:
        columns = Columns(*(overrides.get(key, config.get(key)) for key in ("image_column", "label_column")))
        located = locate(data, columns=columns)
    # errors in the settings are reported first, and --print-config works without data
    except UserError as problem:
        data_error = problem
    settings, objects, note = resolve(subject, data, config, overrides, located)
    is_first = launched()[0] == 0
    if args.print_config:
        print(settings.as_yaml() if is_first else "", end="")
        return DONE
    if args.out is None:
        raise UserError("--out is missing; name the folder the run goes to, for instance --out runs/first")
    if data_error is not None:
        raise data_error
    options = {"allow_change": args.allow_change, "quiet": args.quiet, "note": note, "objects": objects}
    run = run_pretraining(settings, located, args.out, **options)
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
    from nearfar.config.reading import leading_words

    leading = leading_words(words, 2)
    if leading and "recipe" not in config and Path(leading[0]).exists():
        from nearfar.config.recipes import RECIPES

        quoted = shlex.quote(leading[0])
        if leading[0] not in RECIPES and len(leading) == 1:
            raise UserError(
                f"RECIPE is missing before {leading[0]}; for instance nearfar pretrain simclr {quoted}"
            )
        if leading[0] not in RECIPES and leading[1] in RECIPES:
            raise UserError(f"RECIPE comes before DATA; did you mean nearfar pretrain {leading[1]} {quoted}?")
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
