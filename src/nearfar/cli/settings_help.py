"""The settings of a run as `nearfar pretrain --help` shows them. Imports nothing heavy: help comes at
once."""

from nearfar.config.fields import CHOICES, FIELDS


def settings_help() -> str:
    width = 2 + max(map(len, FIELDS))
    return "\n".join(
        [
            "settings (key=value):",
            *(
                f"  {name:<{width}}{field.description} [{field.default_text()}]"
                for name, field in FIELDS.items()
            ),
            "",
            f"the choices: {', '.join(CHOICES)}; choose a part with bound=NAME, set it with bound.KEY=VALUE;",
            "a number can be a schedule: encoders.momentum='cosine(0.99,1)', lr='steps(0.03,0.1,60,80)'",
        ]
    )
