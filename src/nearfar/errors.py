"""Exceptions for mistakes that a user can fix, and the wording of "unknown name" messages."""

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

_contexts: list[None] = []  # of `naming_flags` that are open
_TRUE_FLAGS = ("same-labels", "allow-change", "allow-urls", "class-agnostic", "fine-tune")
_ARGUMENTS = {"protocol": "protocols", "license": "licence"}


@contextmanager
def naming_flags() -> Iterator[None]:
    """Within it, messages name the options of commands (`--same-labels`); elsewhere the arguments of Python's
    functions (`same_labels=True`)."""
    _contexts.append(None)
    try:
        yield
    finally:
        _contexts.pop()


def worded(sentence: str) -> str:
    """Returns a sentence that names options as on the command line (`--out`) in the words of the caller."""
    if _contexts or "--" not in sentence:
        return sentence
    parts = re.split(r"(nearfar [a-z]+ [^;,.)]*)", sentence)  # commands stay as they are typed
    return "".join(
        part if place % 2 else re.sub(r"--([a-z][a-z-]*)", _as_argument, part)
        for place, part in enumerate(parts)
    )


def _as_argument(flag: re.Match[str]) -> str:
    name = flag[1]
    return _ARGUMENTS.get(name, name.replace("-", "_")) + ("=True" if name in _TRUE_FLAGS else "")


class UserError(ValueError):
    """A mistake the user can fix: one sentence with the key or file, its value, and what is allowed.

    The command line prints only the sentence and exits with code 2. Saved files are not touched. Options are
    written as on the command line (`--out`); from Python they are shown as arguments (`out`).
    """

    def __str__(self) -> str:
        return worded(super().__str__())


class NotFinite(UserError):
    """The output of a network contains NaN or infinity."""


def as_sentence(problem: Exception) -> str:
    """The message of an exception as a sentence."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text if text.endswith((".", "!", "?")) else text + "."


class NotSaved(UserError):
    """A result was computed but could not be written. The exception carries the result."""

    def __init__(self, sentence: str, result: Any) -> None:
        super().__init__(sentence)
        self.result = result


class Stopped(Exception):
    """A run stopped early and the same command resumes it. The command line exits with code 75."""


def near_names(name: str, options: Iterable[str], count: int = 3) -> str:
    """Returns " (did you mean a, b or c?)" with up to `count` similar names, or "" if none is similar."""
    import difflib  # imported only when a name is misspelt

    by_lower_case = {option.lower(): option for option in options}
    lowered = [*by_lower_case]
    matches = difflib.get_close_matches(name.lower(), lowered, n=count)
    if name.lower() in by_lower_case:
        matches = matches[:1]
    if not matches and count > 1:
        nearest = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.3)
        return f" (nearest: {', '.join(by_lower_case[match] for match in nearest)})" if nearest else ""
    names = [by_lower_case[match] for match in matches]
    listed = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f" (did you mean {listed}?)" if names else ""


def error_reason(error: BaseException) -> str:
    """Returns the first line of what went wrong: the system's text for an OSError, else the message or the type."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    # numpy's words for pickled objects; one of them advises to load the file unsafely
    if "allow_pickle" in text or "Python objects in dtype" in text:
        return "it is not an array file, or it contains Python objects, which are never loaded"
    return (str(text).splitlines() or [""])[0].rstrip(".") or type(error).__name__


def counted(count: int, plural: str) -> str:
    """Returns a number with its noun: "1 class", "1,024 images"."""
    singular = plural[:-2] if plural.endswith("sses") else plural.removesuffix("s")
    return f"{count:,} {singular if count == 1 else plural}"


MAX_LISTED_NAMES = 12  # a message lists all allowed names up to this number


def not_one_of(key: str, value: object, options: Iterable[str], suffix: str = "") -> UserError:
    """Returns the error for an unknown name: similar names, and the full list if it is short or nothing is similar."""
    names = list(options)
    short = len(names) <= MAX_LISTED_NAMES
    hint = near_names(value, names, count=1 if short else 3) if isinstance(value, str) else ""
    misspelt = "did you mean" in hint
    listed = "" if misspelt and not short else f"; expected {', '.join(names)}{suffix}"
    return UserError(f"{key} was {value!r}{hint}{listed}")


def check_number(
    key: str,
    value: float,
    low: float,
    high: float = math.inf,
    *,
    exclude_low: bool = False,
    exclude_high: bool = False,
    written: str = "",
) -> None:
    """Raises UserError unless `value` is a finite number from `low` to `high`, but for excluded ends.
    `written`: the value as the user wrote it."""
    in_range = (
        low <= value <= high and not (exclude_low and value == low) and not (exclude_high and value == high)
    )
    if in_range and math.isfinite(value):
        return
    if high == math.inf:
        allowed = f"be {'above' if exclude_low else 'at least'} {low:g}"
    else:
        allowed = f"lie in {'(' if exclude_low else '['}{low:g}, {high:g}{')' if exclude_high else ']'}"
    raise UserError(f"{key} was {written or format(value, 'g')}; it must {allowed}")


def check_whole(key: str, value: object, low: int, high: int | None = None) -> None:
    """Raises UserError unless `value` is a whole number from `low` to `high`."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < low or (high is not None and value > high):  # type: ignore[operator]
        end = "" if high is None else f" to {high:,}"
        raise UserError(f"{key} was {value!r}; expected a whole number from {low}{end}")
