"""The one way nearfar tells a user that something they gave cannot be used."""


class UserError(Exception):
    """A mistake the user can mend: one sentence naming the key or file, what it was, what is allowed.

    The command line prints the sentence alone and exits with code 2; nothing saved is touched.
    """


class NotFinite(UserError):
    """What a network makes of its input holds NaN or infinity."""


class Stopped(Exception):
    """A run ended early and can be resumed by the same command; the command line exits with 75."""
