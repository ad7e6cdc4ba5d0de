"""The command line: `nearfar …`, `python -m nearfar …`.

Each command is a function from parsed arguments to an exit code: 0 done, 2 bad input (one sentence on standard
error), 75 stopped but resumable. Results go to standard output, progress to standard error.
"""

import argparse
import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from nearfar.errors import Stopped, UserError
from nearfar.mi_command import add_mi

DONE, BAD_INPUT, RESUMABLE = 0, 2, 75
LONGEST_SENTENCE = 2000  # characters


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows what is allowed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        parsed = _parsed(arguments)
        return parsed.command(parsed)
    except UserError as problem:
        return _say(str(problem), BAD_INPUT)
    except Stopped as stopped:
        return _say(str(stopped), RESUMABLE)
    except KeyboardInterrupt:
        return _say("interrupted; what was saved is kept, and the same command goes on from there", RESUMABLE)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as problem:
        if problem.filename is None and problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = problem.filename or "a file"
        return _say(f"{where} cannot be used: {problem.strerror}; what was saved is kept", BAD_INPUT)
    except (MemoryError, RuntimeError) as problem:
        if not isinstance(problem, MemoryError) and not _out_of_memory(problem):
            raise
        return _say("memory ran out; lower batch_size, image_size or negatives.size, or set chunk", BAD_INPUT)


def _out_of_memory(problem: RuntimeError) -> bool:
    """torch says so by a class of its own on GPUs, and by its text alone on CPUs."""
    return type(problem).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(problem)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parsed arguments; settings may stand before or after the options, which argparse alone cannot take."""
    parser = _parser()
    parsed, rest = parser.parse_known_args(arguments)
    strange = [word for word in rest if word.startswith("-") or not hasattr(parsed, "words")]
    if strange:
        parser.error(f"{strange[0]} is not an option or argument of this command")
    if rest:
        parsed.words += rest
    return parsed


def _say(sentence: str, code: int) -> int:
    if len(sentence) > LONGEST_SENTENCE:  # it quotes something long; what is allowed stands at its end
        half = LONGEST_SENTENCE // 2
        sentence = f"{sentence[:half]} … {sentence[-half:]}"
    print(f"nearfar: {sentence}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="nearfar",
        description="Good representations from unlabelled pictures, and how much one variable tells about another.",
        epilog="Exit codes: 0 done, 2 bad input, 75 stopped but resumable (run the same command again).",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for add in (
        _add_demo,
        _add_pretrain,
        _add_evaluate,
        _add_embed,
        _add_report,
        add_mi,
        _add_study,
        _add_recipes,
        _add_doctor,
    ):
        add(commands)
    return parser


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo", help="learn from embedded data in a few minutes and show what came of it"
    )
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="run folder (default: runs/demo)")
    demo.set_defaults(command=_demo)


def _demo(given: argparse.Namespace) -> int:
    from nearfar.demo import run_demo

    run_demo(given.out)
    return DONE


def _add_pretrain(commands: Any) -> None:
    pretrain = commands.add_parser(
        "pretrain",
        help="learn an encoder from pictures, recordings or text; the same command again resumes",
        usage="nearfar pretrain RECIPE DATA --out RUN [--config FILE] [key=value ...]",
        description="Learns an encoder. DATA is a folder of images, a Parquet file or folder with an image column, an .npz "
        "with images (and labels), or a name: digits, glyphs, cifar10:FOLDER; for cpc a folder of .wav files or Parquet "
        "with an audio column; for mlm a .txt file, a folder of them, or an .npz with tokens.",
        epilog=_settings_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pretrain.add_argument("words", nargs="*", metavar="RECIPE DATA key=value", help="see nearfar recipes")
    pretrain.add_argument("--out", type=Path, help="run folder")
    pretrain.add_argument("--config", type=Path, help="YAML file of settings; key=value words go over it")
    pretrain.add_argument("--print-config", action="store_true", help="print the complete settings and stop")
    pretrain.add_argument(
        "--allow-change", action="store_true", help="go on although a setting or the data changed"
    )
    pretrain.add_argument("--quiet", action="store_true", help="no progress")
    pretrain.set_defaults(command=_pretrain)


def _settings_help() -> str:
    from nearfar.recipes.choices import CHOICES
    from nearfar.settings import Settings

    lines = ["settings (key=value):"]
    for key, field in Settings.model_fields.items():
        if key not in ("recipe", "data", *CHOICES):
            lines.append(f"  {key:<18}{field.description} [{_default(field.default)}]")
    lines += [
        "",
        f"the choices: {', '.join(CHOICES)}; choose a part with bound=NAME, set it with bound.KEY=VALUE;",
        "a number can be a schedule: encoders.momentum='cosine(0.99,1)', lr='steps(0.03,0.1,60,80)'",
    ]
    return "\n".join(lines)


def _default(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _pretrain(given: argparse.Namespace) -> int:
    from nearfar.data import locate
    from nearfar.settings import read_file, read_words, resolve

    config = read_file(given.config) if given.config else {}
    recipe, data, words = _split_words(given.words, config)
    missing: UserError | None = None
    try:
        modality = (located := locate(data)).modality
    except UserError as problem:  # a wrong setting is told first, and settings can be printed without data
        missing, modality = problem, None
    settings = resolve(recipe, data, config, read_words(words), modality=modality)
    if given.print_config:
        print(settings.as_yaml(), end="")
        return DONE
    if given.out is None:
        raise UserError("--out is missing; name the folder the run goes to, for instance --out runs/first")
    if missing is not None:
        raise missing

    from nearfar.train.pretrain import run_pretraining

    run = run_pretraining(settings, located, given.out, allow_change=given.allow_change, quiet=given.quiet)
    print(f"{run.path}: trained for {run.facts['step']} steps; next: nearfar evaluate {run.path}")
    return DONE


def _split_words(words: Sequence[str], config: dict[str, Any]) -> tuple[str, str, list[str]]:
    """RECIPE and DATA are the words before the first key=value; a file of settings may name them too."""
    leading: list[str] = []
    for word in words:
        if len(leading) == 2 or ("=" in word and not Path(word).exists()):
            break
        leading.append(word)
    recipe = leading[0] if leading else config.pop("recipe", None)
    data = leading[1] if len(leading) > 1 else config.pop("data", None)
    config.pop("recipe", None)
    config.pop("data", None)
    if not isinstance(recipe, str):
        raise UserError(
            "RECIPE is missing; nearfar recipes lists them, for instance nearfar pretrain simclr photos/"
        )
    if not isinstance(data, str):
        raise UserError(
            f"DATA is missing; name a folder of pictures, for instance nearfar pretrain {recipe} photos/"
        )
    return recipe, data, list(words[len(leading) :])


def _add_evaluate(commands: Any) -> None:
    evaluate = commands.add_parser("evaluate", help="how good the frozen features are, beside baselines")
    evaluate.add_argument("run", type=Path, metavar="RUN", help="run folder")
    evaluate.add_argument("--train", metavar="A", help="labelled data to fit on (default: the run's data)")
    evaluate.add_argument(
        "--data",
        metavar="B",
        help="labelled data to test on; without it a fifth of what is fitted on is held out",
    )
    evaluate.add_argument(
        "--same-labels",
        action="store_true",
        help="A and B number their classes alike; only needed where the classes have no names",
    )
    evaluate.add_argument("--protocol", default="knn,linear", help="knn, linear, nearest (comma between)")
    evaluate.add_argument("--k", type=int, default=20, help="neighbours of knn (default 20)")
    evaluate.add_argument("--temperature", type=float, default=0.07, help="of knn's votes (default 0.07)")
    evaluate.add_argument(
        "--no-baselines", action="store_true", help="leave out what is not learned and the untrained encoder"
    )
    evaluate.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    evaluate.set_defaults(command=_evaluate)


def _evaluate(given: argparse.Namespace) -> int:
    from nearfar.evaluate import evaluate_run, table
    from nearfar.train.run import Run

    result = evaluate_run(
        Run.open(given.run),
        given.data,
        protocols=[name.strip() for name in given.protocol.split(",")],
        baselines=not given.no_baselines,
        k=given.k,
        temperature=given.temperature,
        train=given.train,
        same_labels=given.same_labels,
    )
    print(json.dumps(result) if given.json else table(result))
    return DONE


def _add_embed(commands: Any) -> None:
    embed = commands.add_parser("embed", help="features of pictures, with paths and labels, as Parquet")
    embed.add_argument("run", type=Path, metavar="RUN", help="run folder")
    embed.add_argument("data", metavar="DATA", help="pictures, as for pretrain")
    embed.add_argument("--out", type=Path, required=True, metavar="FILE.parquet", help="file to write")
    embed.set_defaults(command=_embed)


def _embed(given: argparse.Namespace) -> int:
    from nearfar.train.embed import write_embedding
    from nearfar.train.run import Run

    if given.out.suffix != ".parquet" or given.out.is_dir():
        raise UserError(
            f"--out was {given.out}; embed writes a Parquet file, so name one that ends in .parquet"
        )
    rows, width = write_embedding(Run.open(given.run), given.data, given.out)
    print(f"{given.out}: {rows} rows of {width} features")
    return DONE


def _add_report(commands: Any) -> None:
    report = commands.add_parser("report", help="one self-contained page about one run or several")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    report.add_argument("--out", type=Path, help="file to write (default: RUN/report.html)")
    report.set_defaults(command=_report)


def _report(given: argparse.Namespace) -> int:
    from nearfar.report import write_report
    from nearfar.train.run import Run

    runs = [Run.open(path) for path in given.runs]
    print(write_report(runs, given.out or given.runs[0] / "report.html"))
    return DONE


def _add_study(commands: Any) -> None:
    study = commands.add_parser(
        "study",
        help="one of the papers' experiments: paper against ours",
        usage="nearfar study [NAME] [--out DIR] [--seed N] [--json] [key=value ...]",
        description="Runs one of the papers' experiments, draws its figure and prints the paper's figures beside ours. "
        "Without NAME, lists the studies and their options.",
    )
    study.add_argument("words", nargs="*", metavar="NAME key=value", help="see nearfar study")
    study.add_argument(
        "--out", type=Path, help="folder for result.json and figures (default: runs/study-NAME)"
    )
    study.add_argument("--seed", type=int, help="the same as seed=N")
    study.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    study.set_defaults(command=_study)


def _study(given: argparse.Namespace) -> int:
    from nearfar.studies.run import catalogue, named, run_study

    if not given.words:
        print(json.dumps(catalogue()) if given.json else _listed(catalogue()))
        return DONE
    name, *words = given.words
    study = named(name)
    words += [] if given.seed is None else [f"seed={given.seed}"]
    record = run_study(study, given.out or Path("runs") / f"study-{name}", words)
    print(json.dumps(record.result.as_json()) if given.json else record.text())
    return DONE


def _listed(lines: dict[str, str]) -> str:
    return "\n".join(f"{name:<16}{line}" for name, line in lines.items())


def _add_recipes(commands: Any) -> None:
    recipes = commands.add_parser("recipes", help="every method as its five choices, and what it claims")
    recipes.add_argument("name", nargs="?", metavar="NAME", help="one recipe in full")
    recipes.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    recipes.add_argument(
        "--markdown", action="store_true", help="print the page of all methods (docs/methods.md)"
    )
    recipes.set_defaults(command=_recipes)


def _recipes(given: argparse.Namespace) -> int:
    from nearfar.recipes.build import describe
    from nearfar.recipes.page import methods_page

    if given.markdown and (given.json or given.name):
        raise UserError("--markdown prints the whole page; leave out NAME and --json")
    entries = _entries(given.name)
    if given.json:
        print(json.dumps({name: describe(entry.choices) for name, entry in entries.items()}))
    elif given.markdown:
        print(methods_page(entries), end="")
    else:
        for entry in entries.values():
            print("\n".join(_recipe_lines(entry, whole=given.name is not None)))
    return DONE


def _entries(name: str | None) -> dict[str, Any]:
    """The recipes, or the one of this name, with their settings complete."""
    from nearfar.recipes import RECIPES
    from nearfar.recipes.choices import CHOICES
    from nearfar.recipes.page import Entry
    from nearfar.settings import resolve

    settings = {each: resolve(each, "DATA") for each in (RECIPES if name is None else (name,))}
    return {
        each: Entry(each, RECIPES[each], {room: getattr(s, room) for room in CHOICES}, s.batch_size)
        for each, s in settings.items()
    }


def _recipe_lines(entry: Any, whole: bool) -> list[str]:
    from nearfar.recipes.build import describe
    from nearfar.recipes.equations import equation_of
    from nearfar.recipes.page import INSTANCES

    rows = [*describe(entry.choices).items(), ("claims", entry.claims())]
    if whole:
        rows[-1] = ("claims", f"{entry.claims()} (batches of {entry.batch_size}, {INSTANCES:,} instances)")
        rows += [*equation_of(entry.choices).items(), ("command", entry.command)]
    return [f"{entry.name}: {entry.recipe.about}", *(f"  {key:<10} {line}" for key, line in rows)]


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="what this machine has, what will be used, what is missing")
    doctor.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    doctor.set_defaults(command=_doctor)


def _doctor(given: argparse.Namespace) -> int:
    from nearfar.hardware import environment

    facts = environment()
    if given.json:
        print(json.dumps(facts))
        return DONE
    print(yaml.safe_dump(facts, sort_keys=False), end="")
    precision = "bf16" if facts["bf16"] else "fp32"
    print(f"will use: {facts['device']}, precision {precision}, {facts['threads']} threads")
    missing = [name for name, version in facts["packages"].items() if version is None]
    print(
        f"missing: {', '.join(missing)} (optional: pip install 'nearfar[timm]')"
        if missing
        else "missing: nothing"
    )
    return DONE
