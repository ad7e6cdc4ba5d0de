"""A method's equation, composed of one line per part (`AbstractPart.equation` and `remarks`).

    objective   bound          f(u, v)     critic
    u, v        encoders       v_k         negatives
    who counts  selection      beside it   prior, if there is one

u is an anchor, v+ its positive, v_k its K candidates or, in the bound, those of them that count; x and x'
are views of one instance. Braces are replaced by the part's settings.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from nearfar.config.schema import plain
from nearfar.config.sections import PARTS_BY_CHOICE, PartSettings, Sections
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


def equation_of(sections: Sections) -> dict[str, str]:
    """A method's equation, line by line, by the symbol each line explains."""
    parts = {choice: PARTS_BY_CHOICE[choice][sections[choice]["name"]] for choice in SYMBOLS}
    pulled = PULLED_AS_MEAN if parts["bound"].distance_scores else PULLED
    lines = {
        symbol: "; ".join(_clauses(parts[choice], sections[choice], pulled))
        for choice, symbol in SYMBOLS.items()
    }
    if not parts["negatives"].has_candidates:
        del lines["v_k"], lines["who counts"]
    if not lines["beside it"]:
        del lines["beside it"]
    return lines


def template(part: Any) -> str:
    """A part's line with its settings in braces; without one, the first line of its docstring."""
    line = part.equation
    return line if line is not None else (inspect.getdoc(part) or "").partition("\n")[0]


def _clauses(part: Any, section: PartSettings, pulled: str) -> list[str]:
    """The part's line with its settings filled in, and the remarks that apply to them."""
    settings = {key: "all" if value is None else plain(value) for key, value in section.items()}
    clauses = [_fill(template(part), settings)]
    # the encoders' section holds the head's settings too
    remarks: tuple[Remark, ...] = (*HeadConfig.remarks, *part.remarks)
    for key, condition, text in remarks:
        if _applies(condition, section.get(key)):
            clauses.append(text.format(**settings, pulled=pulled))
    return clauses


def _applies(condition: Any, setting: Any) -> bool:
    if callable(condition):
        return bool(condition(setting))
    return setting is not None if condition is ... else setting == condition


def _fill(line: str, settings: Mapping[str, Any]) -> str:
    try:
        return line.format(**settings)
    except (KeyError, IndexError, ValueError):  # a docstring may use braces otherwise
        return line
