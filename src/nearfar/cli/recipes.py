"""`nearfar recipes`."""

import argparse
import json
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.errors import UserError


def add(commands: Any) -> None:
    recipes = commands.add_parser("recipes", help="every method as its five choices, and what it claims")
    recipes.add_argument("name", nargs="?", metavar="NAME", help="one recipe in full")
    recipes.add_argument("--all", action="store_true", help="every variant too, with its choices")
    recipes.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    recipes.add_argument(
        "--markdown", action="store_true", help="print the page of all methods (docs/methods.md)"
    )
    recipes.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    from nearfar.config.methods_page import methods_page
    from nearfar.config.sections import describe

    if given.markdown and (given.json or given.name):
        raise UserError("--markdown prints the whole page; leave out NAME and --json")
    if not (given.name or given.all or given.json or given.markdown):
        print("\n".join(_overview()))
        return DONE
    entries = _entries(given.name)
    if given.json:
        print(json.dumps({name: describe(entry.choices) for name, entry in entries.items()}))
    elif given.markdown:
        print(methods_page(entries), end="")
    else:
        for entry in entries.values():
            print("\n".join(_recipe_lines(entry, whole=given.name is not None)))
    return DONE


def _overview() -> list[str]:
    from nearfar.config.recipes import BASE, RECIPES

    width = max(map(len, BASE)) + 2
    return [
        *(f"{name:<{width}}{recipe.about}" for name, recipe in BASE.items()),
        "",
        f"{len(RECIPES) - len(BASE)} variants: image recipes with negatives also as NAME-ring, -ball, -cave and -neighbours, with a memory bank as -annulus",
        "nearfar recipes NAME shows one in full: choices, equation, claim and command; --all shows every one",
    ]


def _entries(name: str | None) -> dict[str, Any]:
    """The recipes, or the one of this name, with their settings complete."""
    from nearfar.config.fields import CHOICES
    from nearfar.config.methods_page import Entry
    from nearfar.config.recipes import RECIPES
    from nearfar.config.resolving import resolve

    settings = {each: resolve(each, "DATA") for each in (RECIPES if name is None else (name,))}
    return {
        each: Entry(each, RECIPES[each], {room: getattr(s, room) for room in CHOICES}, s.batch_size)
        for each, s in settings.items()
    }


def _recipe_lines(entry: Any, whole: bool) -> list[str]:
    from nearfar.config.equations import equation_of
    from nearfar.config.methods_page import INSTANCES
    from nearfar.config.presets import preset_for, presets_of, words_of
    from nearfar.config.sections import describe

    rows = [*describe(entry.choices).items(), ("claims", entry.claims())]
    if whole:
        rows[-1] = ("claims", f"{entry.claims()} (batches of {entry.batch_size}, {INSTANCES:,} instances)")
        rows += [*equation_of(entry.choices).items(), ("command", entry.command)]
        rows += [
            ("preset", f"preset={name}: {words_of(preset_for(name, entry.name))} ({preset.source})")
            for name, preset in presets_of(entry.name).items()
        ]
    return [f"{entry.name}: {entry.recipe.about}", *(f"  {key:<10} {line}" for key, line in rows)]
