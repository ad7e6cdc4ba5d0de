"""`nearfar recipes`."""

import argparse
import json
from typing import Any

from nearfar.cli.codes import DONE
from nearfar.core.tables import text_table
from nearfar.errors import UserError


def add(commands: Any) -> None:
    recipes = commands.add_parser(
        "recipes",
        help="list the methods, each as its five choices",
        description="Lists the methods. With NAME, shows one in full: choices, equation, claim, command, presets.",
        epilog="example: nearfar recipes moco-ring",
    )
    recipes.add_argument("name", nargs="?", metavar="NAME", help="one recipe in full")
    recipes.add_argument("--all", action="store_true", help="every variant too, with its choices")
    recipes.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    recipes.add_argument(
        "--markdown", action="store_true", help="print the reference of all methods and networks as Markdown"
    )
    recipes.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    if args.markdown and (args.json or args.name):
        raise UserError("--markdown prints the complete page; leave out NAME and --json")
    if not (args.name or args.all or args.json or args.markdown):
        print("\n".join(_overview()))
        return DONE
    from nearfar.config.methods_page import CompleteRecipe, methods_page
    from nearfar.config.recipes import RECIPES
    from nearfar.config.sections import describe

    recipes = {name: CompleteRecipe.of(name) for name in ([args.name] if args.name else RECIPES)}
    if args.json:
        print(json.dumps({name: describe(recipe.choices) for name, recipe in recipes.items()}))
    elif args.markdown:
        print(methods_page(recipes), end="")
    else:
        for recipe in recipes.values():
            print("\n".join(_recipe_lines(recipe, in_full=args.name is not None)))
    return DONE


def _overview() -> list[str]:
    from nearfar.config.recipes import BASE, RECIPES

    return [
        *text_table([(name, recipe.about) for name, recipe in BASE.items()]),
        "",
        f"{len(RECIPES) - len(BASE)} variants: image recipes with negatives also as NAME-ring, -ball, -cave "
        "and -neighbours, with a memory bank as -annulus",
        "nearfar recipes NAME shows one in full: choices, equation, claim and command; --all shows every one",
    ]


def _recipe_lines(recipe: Any, in_full: bool) -> list[str]:
    from nearfar.config.methods_page import INSTANCES, equation_of
    from nearfar.config.presets import preset_for, presets_of, words_of
    from nearfar.config.sections import describe

    rows = [*describe(recipe.choices).items(), ("claims", recipe.claims())]
    if in_full:
        rows[-1] = (
            "claims",
            f"{recipe.claims()} (batches of {recipe.settings.batch_size}, {INSTANCES:,} instances)",
        )
        rows += [*equation_of(recipe.choices).items(), ("command", recipe.command)]
        rows += [
            (
                "preset",
                f"preset={name}: {words_of({**preset.choices, **preset_for(name, recipe.name)})} ({preset.source})",
            )
            for name, preset in presets_of(recipe.name).items()
        ]
    return [f"{recipe.name}: {recipe.recipe.about}", *(f"  {line}" for line in text_table(rows))]
