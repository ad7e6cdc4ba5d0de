"""The settings of a run as `nearfar pretrain --help` shows them.

Read from the text of settings.py: importing it would load torch, and help must come at once, on a broken install too.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

CHOSEN = "by the data and the machine"
SOURCE = Path(__file__).parent.parent / "config" / "settings.py"


@dataclass(frozen=True)
class Shown:
    """One setting; without a description it is one of the choices, which have settings of their own."""

    name: str
    default: object = None
    description: str | None = None


def settings_shown() -> list[Shown]:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    (model,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings")
    return [
        _shown(line)
        for line in model.body
        if isinstance(line, ast.AnnAssign) and getattr(line.target, "id", "") not in ("recipe", "data")
    ]


def _shown(line: ast.AnnAssign) -> Shown:
    name = ast.unparse(line.target)
    if not isinstance(line.value, ast.Call):
        return Shown(name)
    words = {word.arg: word.value for word in line.value.keywords}
    return Shown(name, _literal(line.value.args[0]), ast.literal_eval(words["description"]))


def _literal(node: ast.expr) -> object:
    """A default that is computed depends on the data and the machine."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return CHOSEN


def settings_help() -> str:
    shown = settings_shown()
    lines = ["settings (key=value):"]
    lines += [f"  {s.name:<18}{s.description} [{_default(s.default)}]" for s in shown if s.description]
    choices = ", ".join(s.name for s in shown if s.description is None)
    return "\n".join(
        [
            *lines,
            "",
            f"the choices: {choices}; choose a part with bound=NAME, set it with bound.KEY=VALUE;",
            "a number can be a schedule: encoders.momentum='cosine(0.99,1)', lr='steps(0.03,0.1,60,80)'",
        ]
    )


def _default(value: object) -> str:
    return "none" if value in (None, {}) else f"{value:g}" if isinstance(value, float) else str(value)
