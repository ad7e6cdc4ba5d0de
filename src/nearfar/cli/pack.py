"""`nearfar pack`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import UserError

SETTINGS: dict[str, tuple[type, str]] = {
    "image_size": (int, "side of the views to be trained with: larger images are shrunk as training would"),
    "encoding": (
        str,
        "png, jpeg, raw, source (bytes as they are) or auto (png; raw where channels are not three)",
    ),
    "quality": (int, "of jpeg, 1 to 100 (95)"),
    "shuffle": (bool, "rows in a random order, so that neighbours are a random sample (true)"),
    "seed": (int, "of that order (0)"),
    "max_bad_share": (float, "share of unusable files to go on with (0.05)"),
    "workers": (int, "threads that encode (2)"),
}


def add(commands: Any) -> None:
    pack = commands.add_parser(
        "pack",
        help="write data as shards that are trained on without loading them; the same command again goes on",
        usage="nearfar pack DATA --out DIR [key=value ...]",
        description="Writes a folder of images, Parquet, tar files in webdataset's convention, or an .npz as a packed folder, "
        "which the other commands take for DATA.",
        epilog="settings:\n" + "\n".join(f"  {key:<14} {text}" for key, (_, text) in SETTINGS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pack.add_argument("words", nargs="*", metavar="DATA key=value", help="what to pack, and settings")
    pack.add_argument("--out", type=Path, help="packed folder")
    pack.add_argument("--quiet", action="store_true", help="no progress")
    pack.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    from nearfar.config.resolving import read_words
    from nearfar.data.packed import find_packed
    from nearfar.data.packing import pack

    words = list(given.words)
    if not words or ("=" in words[0] and not Path(words[0]).exists()):
        raise UserError("DATA is missing; name what to pack, for instance nearfar pack photos/ --out packed/")
    if given.out is None:
        raise UserError("--out is missing; name the folder the shards go to, for instance --out packed/")
    settings = read_words(words[1:])
    for key, value in settings.items():
        settings[key] = _checked(key, value)
    if not 0 <= settings.get("seed", 0) < 2**62:
        raise UserError(f"seed was {settings['seed']!r}; expected a whole number from 0 and below 2^62")
    say = (lambda line: None) if given.quiet else (lambda line: print(line, file=sys.stderr))
    pack(words[0], given.out, say=say, **settings)
    packed = find_packed(str(given.out))
    assert packed is not None
    held = packed.manifest
    aside = f", {held.quarantined:,} set aside (quarantine.csv)" if held.quarantined else ""
    print(
        f"{given.out}: {held.rows - len(held.left_out):,} rows in {len(held.shards)} shards ({held.encoding}){aside}; "
        f"next: nearfar pretrain {_recipe(held.modality)} {given.out} --out runs/packed"
    )
    return DONE


def _recipe(modality: str) -> str:
    """The first recipe for what was packed."""
    from nearfar.config.recipes import RECIPES
    from nearfar.modalities import modality_of_views

    return next(name for name, recipe in RECIPES.items() if modality_of_views(recipe.views).name == modality)


def _checked(key: str, value: Any) -> Any:
    """A setting's value, of its type."""
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
