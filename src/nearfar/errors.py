"""Exceptions for mistakes that a user can fix, and the wording of "unknown name" messages."""

from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """A mistake the user can fix: one sentence with the key or file, its value, and what is allowed.

    The command line prints only the sentence and exits with code 2. Saved files are not touched.
    """


class NotFinite(UserError):
    """The output of a network contains NaN or infinity."""


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

    matches = difflib.get_close_matches(name, list(options), n=count)
    listed = " or ".join([", ".join(matches[:-1]), matches[-1]] if len(matches) > 1 else matches)
    return f" (did you mean {listed}?)" if matches else ""


def error_reason(error: BaseException) -> str:
    """Returns the first line of what went wrong: the system's text for an OSError, else the message or the type."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
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
    listed = f"; expected {', '.join(names)}{suffix}" if short or not hint else ""
    return UserError(f"{key} was {value!r}{hint}{listed}")
