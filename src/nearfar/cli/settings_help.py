"""The settings of a run as `nearfar pretrain --help` shows them. Imports nothing heavy, so help is fast."""

import shutil
import textwrap

from nearfar.config.fields import CHOICES, FIELDS


def settings_help() -> str:
    width = 2 + max(map(len, FIELDS))
    columns = max(60, min(120, shutil.get_terminal_size().columns)) - 2
    lines = [
        textwrap.fill(
            f"{field.description} [{field.default_text()}]",
            columns,
            initial_indent=f"  {name:<{width}}",
            subsequent_indent=" " * (width + 2),
            break_on_hyphens=False,
        )
        for name, field in FIELDS.items()
    ]
    choices = (
        f"The choices of a method are {', '.join(CHOICES)}. Choose a part with bound=NAME and set it with "
        "bound.KEY=VALUE; `nearfar recipes NAME` shows those of a recipe. temperature is short for "
        "critic.temperature. A number can be a schedule: "
        "encoders.momentum='cosine(0.99,1)', lr='steps(0.03,0.1,60,80)'."
    )
    return "\n".join(["settings (key=value) [default]:", *lines, "", textwrap.fill(choices, columns)])
