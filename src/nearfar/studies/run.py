"""Finds a study by name, reads its options, runs it and writes result.json, figure.svg and figure.png."""

import importlib
import inspect
import json
import pkgutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from nearfar.config.reading import load_word
from nearfar.config.schema import convert, settable, unknown
from nearfar.errors import UserError
from nearfar.studies.frame import STUDIES, Study, StudyResult, Workspace
from nearfar.system.files import write_atomic, write_figure
from nearfar.system.untrusted import read_json

CHANGES = "changes"  # the field of shared options for settings of the trained recipes
Changes = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class StudyRecord:
    """A study that was run."""

    result: StudyResult
    command: str
    seconds: float  # of computing, with cells that were finished earlier
    folder: Path

    def text(self) -> str:
        """The tables and remarks as text."""
        blocks = [table.text() for table in self.result.tables]
        blocks += [f"note: {remark}" for remark in self.result.remarks]
        files = f"{self.folder}/result.json, figure.svg, figure.png"
        return "\n\n".join([*blocks, f"{self.command}   ({self.seconds:.1f} s)\n{files}"])


def studies() -> dict[str, Study]:
    """All studies of this package by name."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"nearfar.studies.{module.name}")
    return dict(sorted(STUDIES.items()))


def catalogue() -> dict[str, str]:
    """A line about each study, with its options and their defaults."""
    lines = {}
    for name, study in studies().items():
        options = " ".join(f"{key}={p.default}" for key, p in options_of(study).items())
        if _takes_changes(study):
            options += " and any setting of a recipe"
        lines[name] = f"{study.about} [{options}]" if options else study.about
    return lines


def find_study(name: str) -> Study:
    by_name = studies()
    if name not in by_name:
        raise unknown(name, by_name, "studies")
    return by_name[name]


def run_study(study: Study, folder: Path, words: Iterable[str] = ()) -> StudyRecord:
    """Runs a study with the options in `words` (key=value) and writes its result and figure to `folder`."""
    options, changes = read_options(study, words)
    arguments = _arguments(study, options, changes)
    workspace = Workspace(folder, study.name)
    if not _holds_result_of(study, folder):
        workspace.store.check_owner(f"study {study.name}")
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    result = study.run(workspace, **arguments)
    seconds = time.perf_counter() - started + workspace.earlier_seconds
    command = " ".join(
        ["nearfar study", study.name, *(f"{key}={value}" for key, value in (*options.items(), *changes))]
    )
    facts = {"study": study.name, "command": command, "seconds": round(seconds, 3), "remarks": result.remarks}
    text = json.dumps({**facts, **result.as_json()}, indent=1, allow_nan=False) + "\n"
    write_atomic(folder / "result.json", text)
    draw(result, folder)
    return StudyRecord(result, command, seconds, folder)


def _holds_result_of(study: Study, folder: Path) -> bool:
    stored = read_json(folder / "result.json")
    return isinstance(stored, Mapping) and stored.get("study") == study.name


def _schema(study: Study) -> Callable[..., Any]:
    return study.schema or study.run


def options_of(study: Study) -> dict[str, inspect.Parameter]:
    """What may be set: the fields of shared options, then the study's own."""
    shared = {key: p for group in _shared_options(study).values() for key, p in settable(group).items()}
    return {**shared, **settable(_schema(study))}


def _shared_options(study: Study) -> dict[str, type]:
    """The parameters that are dataclasses of options, by name."""
    parameters = inspect.signature(_schema(study), eval_str=True).parameters.values()
    return {
        p.name: p.annotation
        for p in parameters
        if isinstance(p.annotation, type) and is_dataclass(p.annotation) and p.annotation is not Workspace
    }


def _takes_changes(study: Study) -> bool:
    """Whether other key=value words are settings of the recipes that the study trains."""
    groups = _shared_options(study).values()
    return any(CHANGES in inspect.signature(group).parameters for group in groups)


def _arguments(study: Study, options: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Options as `run` takes them."""
    arguments = {key: options[key] for key in settable(_schema(study))}
    for name, group in _shared_options(study).items():
        more: dict[str, Any] = {CHANGES: changes} if CHANGES in inspect.signature(group).parameters else {}
        arguments[name] = group(**{key: options[key] for key in settable(group)}, **more)
    return arguments


def read_options(study: Study, words: Iterable[str]) -> tuple[dict[str, Any], Changes]:
    """Options of the signature, converted, with defaults; and settings of the trained recipes."""
    allowed = options_of(study)
    options = {name: parameter.default for name, parameter in allowed.items()}
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            example = next((f"{name}={value}" for name, value in options.items()), "key=value")
            raise UserError(
                f"{word!r} is not an option of {study.name}; write key=value, for instance {example}"
            )
        if key not in allowed:
            if not _takes_changes(study):
                raise unknown(key, allowed, f"options of {study.name}")
            changes[key] = load_word(text)
            continue
        annotation = allowed[key].annotation
        # an option that is text stays text, also where it looks like a number
        options[key] = convert(text if annotation is str else load_word(text), annotation, key)
        if key == "seed" and options[key] < 0:
            raise UserError(f"seed was {text}; it must be a whole number from 0")
    return options, tuple(changes.items())


def draw(result: StudyResult, folder: Path) -> None:
    """Writes figure.svg and figure.png."""
    import matplotlib as mpl

    from nearfar.studies.drawing import draw_result

    style: Any = {
        "svg.hashsalt": "nearfar",
        "font.size": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(style):
        figure = draw_result(result)
        write_figure(figure, folder / "figure.svg", metadata={"Date": None})
        write_figure(figure, folder / "figure.png", dpi=150)
