"""A method's equation, put together from the line of each of its parts (`equation`, `remarks`; see `nearfar.core.types`).

    objective  the bound's line       f      the critic's
    u, v       the encoders'          v_k    the negatives', of which the selection's line says who counts
    beside it  the prior's, where there is one

u is an anchor, v+ its positive, v_k its K candidates or, in the bound, those of them that count; x and x' are views of
one instance. Braces take the part's settings.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from nearfar.config.schema import plain
from nearfar.config.sections import ROOMS
from nearfar.core.types import Remark
from nearfar.parts.encoders import HeadConfig

PULLED = "f(u, v+) becomes log( e^f(u, v+) + sum over C of e^f(u, v) )"
PULLED_AS_MEAN = "f(u, v+) becomes the mean of f over v+ and C"
SYMBOLS = {
    "bound": "objective",
    "critic": "f(u, v)",
    "encoders": "u, v",
    "negatives": "v_k",
    "selection": "who counts",
    "prior": "beside it",
}


def equation_of(choices: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """A method's equation, line by line, by the symbol each line explains."""
    parts = {room: ROOMS[room][choices[room]["name"]] for room in SYMBOLS}
    pulled = PULLED_AS_MEAN if parts["bound"].distance_scores else PULLED
    lines = {
        symbol: "; ".join(_clauses(parts[room], choices[room], pulled)) for room, symbol in SYMBOLS.items()
    }
    if not parts["negatives"].has_candidates:
        del lines["v_k"], lines["who counts"]
    if not lines["beside it"]:
        del lines["beside it"]
    return lines


def template(part: Any) -> str:
    """A part's line with its settings in braces; of one without, what its documentation begins with."""
    line = part.equation
    return line if line is not None else (inspect.getdoc(part) or "").partition("\n")[0]


def _clauses(part: Any, choice: Mapping[str, Any], pulled: str) -> list[str]:
    settings = {key: "all" if value is None else plain(value) for key, value in choice.items()}
    said = [_filled(template(part), settings)]
    # the encoders' section holds the head's settings too
    remarks: tuple[Remark, ...] = (*HeadConfig.remarks, *part.remarks)
    for key, value, text in remarks:
        given = choice.get(key)
        if value(given) if callable(value) else given is not None if value is ... else given == value:
            said.append(text.format(**settings, pulled=pulled))
    return said


def _filled(line: str, settings: Mapping[str, Any]) -> str:
    try:
        return line.format(**settings)
    except (KeyError, IndexError, ValueError):  # documentation, which means something else by braces
        return line
