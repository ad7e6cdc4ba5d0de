"""Selections that go by instances, not by scores alone."""

from nearfar.core.types import Context
from nearfar.errors import UserError


def require_context(selection: object, context: Context | None) -> Context:
    """The context, which a selection that goes by instances cannot do without."""
    if context is None:
        name = type(selection).__name__
        raise UserError(
            f"{name} selects by instance and needs a context; call it as {name}(...)(scores, context), or use it in nf.Method"
        )
    return context
