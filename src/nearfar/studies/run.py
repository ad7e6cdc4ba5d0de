"""Finding a study by name, reading its options, running it, writing what it found.

A study's folder holds result.json, figure.svg, figure.png and, where arms are kept, arms/*.json.
"""

import importlib
import inspect
import pkgutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from nearfar.config.reading import load_yaml
from nearfar.config.schema import convert, settable, unknown
from nearfar.core.tables import text_table
from nearfar.errors import UserError
from nearfar.studies.frame import Bench, Cell, Finding, Result, Study, write_json
from nearfar.system.files import check_folder
from nearfar.system.untrusted import read_json

CHANGES = "changes"  # the field for what is no option of a study
WRITTEN = ("result.json", "figure.svg", "figure.png")
OF_OTHERS = ("config.yaml", "sweep.json", "claims")  # what tells a run or a sweep
Changes = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Record:
    """A study that was run."""

    result: Result
    command: str
    seconds: float  # of computing, those of arms finished earlier included
    folder: Path

    def text(self) -> str:
        """Paper against ours, for people."""
        blocks = [_table(finding) for finding in self.result.findings]
        blocks += [f"note: {remark}" for remark in self.result.remarks]
        blocks.append(
            f"{self.command}   ({self.seconds:.1f} s)\n{self.folder}/result.json, figure.svg, figure.png"
        )
        return "\n\n".join(blocks)


def studies() -> dict[str, Study]:
    """Every study there is, by name."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    modules = [importlib.import_module(f"nearfar.studies.{name}") for name in names]
    found = [module.STUDY for module in modules if hasattr(module, "STUDY")]
    return {study.name: study for study in sorted(found, key=lambda study: study.name)}


def catalogue() -> dict[str, str]:
    """A line about each study, with its options and their defaults."""
    lines = {}
    for name, study in studies().items():
        options = " ".join(f"{key}={p.default}" for key, p in options_of(study).items())
        if any(map(_takes_changes, _gathering(study).values())):
            options += " and any setting of a recipe"
        lines[name] = f"{study.about} [{options}]" if options else study.about
    return lines


def named(name: str) -> Study:
    known = studies()
    if name not in known:
        raise unknown(name, known, "studies")
    return known[name]


def run_study(study: Study, folder: Path, words: Iterable[str] = ()) -> Record:
    """Runs a study with the options in `words` (key=value) and writes its result and figure to `folder`."""
    options, changes = read_options(study, words)
    arguments = _arguments(study, options, changes)
    # a folder that cannot be used is said before the work, not after
    if not _own(study, folder):
        check_folder(folder, (*WRITTEN, *OF_OTHERS), f"study {study.name}")
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder, study.name)
    started = time.perf_counter()
    result = study.run(bench, **arguments)
    seconds = time.perf_counter() - started + bench.earlier
    said = (f"{key}={value}" for key, value in (*options.items(), *changes))
    command = " ".join(["nearfar study", study.name, *said])
    facts = {"study": study.name, "command": command, "seconds": round(seconds, 3), "remarks": result.remarks}
    write_json(folder / "result.json", {**facts, **result.as_json()})
    draw(study, result, folder)
    return Record(result, command, seconds, folder)


def _own(study: Study, folder: Path) -> bool:
    """Whether this study has ended in the folder before; its result and figures are replaced."""
    held = read_json(folder / "result.json")
    return isinstance(held, Mapping) and held.get("study") == study.name


def options_of(study: Study) -> dict[str, inspect.Parameter]:
    """What may be set: the fields of what gathers options, then the study's own."""
    gathered = {key: p for group in _gathering(study).values() for key, p in settable(group).items()}
    return {**gathered, **settable(study.run)}


def _gathering(study: Study) -> dict[str, type]:
    """The parameters after the bench that are dataclasses: options that several studies share."""
    parameters = list(inspect.signature(study.run, eval_str=True).parameters.values())[1:]
    return {
        p.name: p.annotation
        for p in parameters
        if isinstance(p.annotation, type) and is_dataclass(p.annotation)
    }


def _takes_changes(group: type) -> bool:
    """Whether what is no option of the study is a change to whatever it trains."""
    return CHANGES in inspect.signature(group).parameters


def _arguments(study: Study, options: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Options as `run` takes them."""
    found = {key: options[key] for key in settable(study.run)}
    for name, group in _gathering(study).items():
        more: dict[str, Any] = {CHANGES: changes} if _takes_changes(group) else {}
        found[name] = group(**{key: options[key] for key in settable(group)}, **more)
    return found


def read_options(study: Study, words: Iterable[str]) -> tuple[dict[str, Any], Changes]:
    """Options as the study's signature asks for them, defaults filled in; and what else was set, if the study takes it."""
    allowed = options_of(study)
    options = {name: parameter.default for name, parameter in allowed.items()}
    further = any(_takes_changes(group) for group in _gathering(study).values())
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            example = next((f"{name}={value}" for name, value in options.items()), "key=value")
            raise UserError(
                f"{word!r} is not an option of {study.name}; write key=value, for instance {example}"
            )
        if key not in allowed and further:
            changes[key] = _scalar(text)
            continue
        if key not in allowed:
            raise unknown(key, allowed, f"options of {study.name}")
        wanted = allowed[key].annotation
        # what is asked for as text stays text, also where it looks like a number
        options[key] = convert(text if wanted is str else _scalar(text), wanted, key)
        if key == "seed" and options[key] < 0:
            raise UserError(f"seed was {text}; it must be a whole number from 0")
    return options, tuple(changes.items())


def _scalar(text: str) -> Any:
    try:
        return load_yaml(text)
    except yaml.YAMLError:
        return text


def draw(study: Study, result: Result, folder: Path) -> None:
    """figure.svg and figure.png."""
    import matplotlib as mpl

    with mpl.rc_context(
        {"svg.hashsalt": "nearfar", "font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = study.draw(result)
        figure.savefig(folder / "figure.svg", metadata={"Date": None})
        figure.savefig(folder / "figure.png", dpi=150)


def _table(finding: Finding) -> str:
    lines = [(finding.name, "paper", "ours")]
    for row in finding.rows:
        spread = "" if row.spread is None else f" ± {_cell(row.spread)}"
        lines.append((row.label, _cell(row.paper), _cell(row.ours) + spread))
    return "\n".join([*text_table(lines), *([f"paper: {finding.source}"] if finding.source else [])])


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.6g}"
