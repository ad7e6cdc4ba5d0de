"""How much a prior counts beside the bound."""

import math

from nearfar.core.schedules import Value, ends, parse_value, written
from nearfar.errors import UserError


def checked(value: Value, key: str = "weight") -> Value:
    """A weight: a number or schedule, never below 0."""
    parsed = parse_value(value, f"prior.{key}")
    if not all(0 <= end < math.inf for end in ends(parsed)):
        raise UserError(
            f"prior.{key} was {written(parsed)}; it must be at least 0, a number or a schedule of it"
        )
    return parsed
