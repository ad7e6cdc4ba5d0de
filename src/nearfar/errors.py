"""The one way nearfar tells a user that something they gave cannot be used."""

from typing import Any


class UserError(Exception):
    """A mistake the user can mend: one sentence naming the key or file, what it was, what is allowed.

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
