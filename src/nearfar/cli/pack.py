"""`nearfar pack`."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.core.tables import text_table
from nearfar.errors import UserError, counted

SETTINGS: dict[str, tuple[type, str]] = {
    "image_size": (int, "largest side to store: larger images are shrunk as in training"),
    "encoding": (
        str,
        "png, jpeg, raw, source (bytes as they are) or auto (png; raw where channels are not three)",
    ),
    "quality": (int, "JPEG quality, 1 to 100 (95)"),
    "shuffle": (bool, "rows in a random order, so that neighbours are a random sample (true)"),
    "seed": (int, "random seed of that order (0)"),
    "max_bad_share": (float, "largest tolerated fraction of unreadable files (0.05)"),
    "workers": (int, "threads that encode (2)"),
}


def add(commands: Any) -> None:
    descriptions = [(key, text) for key, (_, text) in SETTINGS.items()]
    pack = commands.add_parser(
        "pack",
        help="write data as shards for training beyond memory; the same command resumes",
        usage="nearfar pack DATA --out DIR [key=value ...]",
        description="Writes a folder of images, Parquet, tar files in webdataset's convention, or an .npz as a packed folder, "
        "which the other commands accept as DATA.",
        epilog="settings:\n" + "\n".join(f"  {line}" for line in text_table(descriptions)),
    )
    pack.add_argument("words", nargs="*", metavar="DATA key=value", help="what to pack, and settings")
    pack.add_argument("--out", type=Path, help="packed folder")
    pack.add_argument("--quiet", action="store_true", help="no progress")
    pack.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    from nearfar.config.resolving import read_words
    from nearfar.data.packed import find_packed
    from nearfar.data.packing import pack
    from nearfar.modalities.dataset import ignored_files

    words = list(args.words)
    if not words or ("=" in words[0] and not Path(words[0]).exists()):
        raise UserError("DATA is missing; name what to pack, for instance nearfar pack photos/ --out packed/")
    if args.out is None:
        raise UserError("--out is missing; name the folder the shards go to, for instance --out packed/")
    settings = read_words(words[1:])
    for key, value in settings.items():
        settings[key] = _checked(key, value)
    if not 0 <= settings.get("seed", 0) < 2**62:
        raise UserError(f"seed was {settings['seed']!r}; expected a whole number from 0 and below 2^62")
    say = (lambda line: None) if args.quiet else (lambda line: print(line, file=sys.stderr))
    pack(words[0], args.out, say=say, **settings)
    packed = find_packed(str(args.out))
    assert packed is not None
    manifest = packed.manifest
    if manifest.ignored and not args.quiet:
        print(ignored_files(manifest.ignored), file=sys.stderr)
    quarantined = f", {manifest.quarantined:,} quarantined (quarantine.csv)" if manifest.quarantined else ""
    size = f" image_size={settings['image_size']}" if "image_size" in settings else ""
    print(
        f"{args.out}: {counted(manifest.rows - len(manifest.left_out), 'rows')} in {counted(len(manifest.shards), 'shards')} "
        f"({manifest.encoding}){quarantined}; "
        f"next: nearfar pretrain {_recipe(manifest.modality)} {shlex.quote(str(args.out))} --out runs/packed{size}"
    )
    return DONE


def _recipe(modality: str) -> str:
    """Returns the first recipe for this modality."""
    from nearfar.config.recipes import RECIPES
    from nearfar.modalities import modality_of_views

    return next(
        name
        for name, recipe in RECIPES.items()
        if modality_of_views(recipe.choices["views"]).name == modality
    )


def _checked(key: str, value: Any) -> Any:
    """Returns a setting's value, checked and converted to its type."""
    from nearfar.config.schema import unknown

    if key not in SETTINGS:
        raise unknown(key, SETTINGS, "settings of pack")
    kind = SETTINGS[key][0]
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        expected = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}[kind]
        raise UserError(f"{key} was {value!r}; expected {expected}")
    return value
