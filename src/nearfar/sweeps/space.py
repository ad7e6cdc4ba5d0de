"""The space of a sweep: `a,b,c` is an axis, `1e-4..1e-1:log` a range, `seed=0,1,2` repetitions."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nearfar.config.reading import load_word
from nearfar.config.sections import ALIASES
from nearfar.config.settings import MAY_CHANGE
from nearfar.errors import UserError

SEED = "seed"
MAX_CELLS = 100_000  # of one sweep
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\.\.({_NUMBER})\s*(?::\s*(\w+))?\s*")
_CLOSING = {")": "(", "]": "[", "}": "{"}

Point = dict[str, Any]  # a value for each axis


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included; `log`: uniform in the logarithm."""

    low: float
    high: float
    log: bool = False
    integers: bool = False

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"


@dataclass(frozen=True)
class Space:
    fixed: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]]
    ranges: Mapping[str, Range] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)

    @property
    def varied(self) -> tuple[str, ...]:
        return (*self.axes, *self.ranges)

    @property
    def size(self) -> int:
        """Cells of the grid."""
        return math.prod(map(len, self.axes.values())) * len(self.seeds)

    def points(self) -> Iterator[Point]:
        """Every combination of the axes, the last one fastest."""
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

    def as_plain(self) -> dict[str, Any]:
        return {
            "axes": {
                **{key: list(values) for key, values in self.axes.items()},
                **{key: str(span) for key, span in self.ranges.items()},
            },
            "fixed": dict(self.fixed),
            "seeds": list(self.seeds),
        }


def read_space(words: Iterable[str], config: Mapping[str, Any] | None = None) -> Space:
    """The space of `key=value` words, which override `config`, the settings of a file."""
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(
                f"{word!r} is not a setting; write key=value or key=a,b,c, for instance temperature=0.1,0.5"
            )
        if key in settings:
            raise UserError(f"{key} was given twice; write all its values in one word, {key}=a,b,c")
        settings[key] = _range(key, text) or _values(key, text)
    return space_of({**(config or {}), **settings})


def space_of(settings: Mapping[str, Any]) -> Space:
    """The space of settings by name: lists are axes, `Range`s or text such as `1e-4..1e-1:log` are ranges,
    the others are fixed. A list of one is fixed too: `[[0.9, 0.95]]` is a setting whose value is a list."""
    fixed: dict[str, Any] = {}
    axes: dict[str, tuple[Any, ...]] = {}
    ranges: dict[str, Range] = {}
    seeds: tuple[int, ...] = (0,)
    spelling: dict[str, str] = {}
    for key, value in settings.items():
        first = spelling.setdefault(ALIASES.get(key, key), key)
        if first != key:
            raise UserError(f"{key} and {first} are one setting; give it once")
        span = _range(key, value) if isinstance(value, str) else value
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if key == SEED:
            seeds = _seeds(span if isinstance(span, Range) else values)
        elif isinstance(span, Range):
            ranges[key] = span
        elif len(values) > 1:
            axes[key] = _axis(key, values)
        elif not values:
            raise UserError(f"{key} was an empty list; give it at least one value")
        else:
            fixed[key] = values[0]
    return Space(fixed, axes, ranges, seeds)


def split_commas(text: str) -> list[str]:
    """Splits at commas outside brackets and quotes."""
    parts, depth, quote = [""], [], ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth.append(sign)
        elif sign in _CLOSING and depth and depth[-1] == _CLOSING[sign]:
            depth.pop()
        elif sign == "," and not depth:
            parts.append("")
            continue
        parts[-1] += sign
    return parts


def _values(key: str, text: str) -> list[Any]:
    """The values of a word; a setting that cannot change a result has one, such as `probe=knn,linear`."""
    parts = [text] if key in MAY_CHANGE else split_commas(text)
    if len(parts) > 1 and not all(part.strip() for part in parts):
        raise UserError(f"{key} was {text}, with nothing between two commas; write {key}=a,b,c")
    return [load_word(part) for part in parts]


def _range(key: str, text: str) -> Range | None:
    """Reads `1e-4..1e-1:log` or `32..512`; None for other text."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    low, high = float(match[1]), float(match[2])
    if match[3] not in (None, "log"):
        raise UserError(f"{key} was {text}; after the range expected :log or nothing")
    if not low < high:
        raise UserError(f"{key} was {text}; the first number must be below the second")
    if match[3] and low <= 0:
        raise UserError(f"{key} was {text}; a logarithmic range begins above 0")
    integers = all(end.lstrip("+-").isdigit() for end in (match[1], match[2]))
    return Range(low, high, bool(match[3]), integers)


def _axis(key: str, values: list[Any]) -> tuple[Any, ...]:
    if key in MAY_CHANGE:
        raise UserError(f"{key} was given {len(values)} values; it cannot change a result, so give it one")
    for place, value in enumerate(values):
        if value in values[:place]:
            raise UserError(f"{key} has the value {value} twice; name each value once")
    return tuple(values)


def _seeds(value: Range | list[Any]) -> tuple[int, ...]:
    """A list of seeds, or a range: `seed=0..4` are five."""
    text = str(value) if isinstance(value, Range) else ",".join(map(str, value))
    if isinstance(value, Range) and value.high - value.low >= MAX_CELLS:
        raise UserError(f"seed was {text}; a sweep has at most {MAX_CELLS:,} cells")
    seeds = range(int(value.low), int(value.high) + 1) if isinstance(value, Range) else value
    valid = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds)
    if not valid or (isinstance(value, Range) and not value.integers) or len(set(seeds)) < len(seeds):
        raise UserError(f"seed was {text}; expected different whole numbers from 0, such as seed=0,1,2")
    return tuple(seeds)
