"""The one way nearfar tells a user that something they gave cannot be used."""

from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """A mistake the user can mend: one sentence naming the key or file, what it was, what was expected.

    The command line prints the sentence alone and exits with code 2; nothing saved is touched.
    """


class NotFinite(UserError):
    """What a network makes of its input holds NaN or infinity."""


class NotSaved(UserError):
    """A result was computed and could not be written: it travels with the sentence."""

    def __init__(self, sentence: str, result: dict[str, Any]) -> None:
        super().__init__(sentence)
        self.result = result


class Stopped(Exception):
    """A run ended early and can be resumed by the same command; the command line exits with 75."""


def near_names(given: str, known: Iterable[str], most: int = 3) -> str:
    """ " (did you mean a, b or c?)" of the known names that are nearest to what was given, or nothing."""
    import difflib  # only somebody who mistyped waits for it

    near = difflib.get_close_matches(given, list(known), n=most)
    listed = " or ".join([", ".join(near[:-1]), near[-1]] if len(near) > 1 else near)
    return f" (did you mean {listed}?)" if near else ""


LISTED = 12  # names are listed in a sentence up to so many


def not_one_of(key: str, given: object, known: Iterable[str], also: str = "") -> UserError:
    """The sentence for a name nobody knows: the nearest, and of a long list of names nothing else, unless none is near."""
    names = list(known)
    short = len(names) <= LISTED
    near = near_names(given, names, most=1 if short else 3) if isinstance(given, str) else ""
    listed = f"; expected {', '.join(names)}{also}" if short or not near else ""
    return UserError(f"{key} was {given!r}{near}{listed}")
