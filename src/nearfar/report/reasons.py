"""Why a part of the page is not there."""

from nearfar.errors import UserError

# How data that moved, a file that went bad or a checkpoint not yet there make themselves known.
UNAVAILABLE = (UserError, OSError, ValueError, RuntimeError)


def said(problem: Exception) -> str:
    """What went wrong, as a sentence."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text if text.endswith((".", "!", "?")) else text + "."
