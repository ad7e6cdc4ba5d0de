"""Schedules as settings are written: `linear(0,0.9)`, `{linear: {start: 0, end: 0.9}}`, `learnt(0.07)`."""

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from nearfar.core.schedules.adaptive import on_loss, on_score, plateau
from nearfar.core.schedules.shapes import (
    Learnable,
    Learnt,
    Schedule,
    Value,
    cosine,
    geometric,
    learnt,
    linear,
    stairs,
    steps,
)
from nearfar.errors import UserError

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "linear": linear,
    "geometric": geometric,
    "cosine": cosine,
    "steps": steps,
    "stairs": stairs,
    "on_score": on_score,
    "on_loss": on_loss,
    "plateau": plateau,
}

_CALL = re.compile(r"\s*([a-z_]+)\s*\(([^()]*)\)\s*")


_LARGEST = 1e100  # far beyond any setting, and safe to multiply


def parse_learnable(raw: Any, key: str = "value") -> Learnable:
    """A `Value` from a setting, or `learnt(0.07)`."""
    if isinstance(raw, Learnt):
        return raw
    name, positional, options = _schedule_parts(raw)
    if name != "learnt":
        return parse_value(raw, key)
    numbers = [*positional, *options.values()]
    if len(numbers) != 1 or numbers[0] is None or not abs(numbers[0]) <= _LARGEST:
        raise UserError(f"{key} was {raw!r}; expected one finite number to begin with, such as learnt(0.07)")
    return learnt(numbers[0])


def parse_value(raw: Any, key: str = "value") -> Value:
    """A `Value` from a setting: a number, `linear(0,0.9)`, or `{linear: {start: 0, end: 0.9}}`."""
    if isinstance(raw, Schedule):
        return raw
    if isinstance(raw, Learnt) or _schedule_parts(raw)[0] == "learnt":
        written_value = raw.written() if isinstance(raw, Learnt) else raw
        raise UserError(f"{key} was {written_value}; it cannot be learnt: expected a number or a schedule")
    if isinstance(raw, str):
        with contextlib.suppress(ValueError):
            raw = float(raw)
    if isinstance(raw, (int, float)) and not isinstance(raw, bool):
        if abs(raw) > _LARGEST or raw != raw:
            raise UserError(f"{key} was {raw}; it must be a finite number or a schedule")
        return float(raw)
    allowed = "a number or a schedule such as linear(0,0.9); schedules are " + ", ".join(SCHEDULES)
    name, positional, options = _schedule_parts(raw)
    if name not in SCHEDULES:
        raise UserError(f"{key} was {raw!r}; expected {allowed}")
    numbers = [v for v in (*positional, *options.values()) if v is not None]
    if any(abs(v) > _LARGEST or v != v for v in numbers):
        raise UserError(f"{key} was {raw!r}; a schedule's numbers must be finite")
    try:
        schedule = SCHEDULES[name](*positional, **options)
        schedule.ends()
        return schedule
    except OverflowError:
        raise UserError(f"{key} was {raw!r}, which grows beyond every number; use a smaller factor") from None
    except TypeError:
        raise UserError(
            f"{key} was {raw!r}, which are not the arguments of {name}; expected {allowed}"
        ) from None
    except UserError as problem:
        raise UserError(f"{key}: {problem}") from None


def _schedule_parts(raw: Any) -> tuple[str, list[float | None], dict[str, float]]:
    """(name, positional, named) of a written schedule; an empty name when it is not one."""
    if isinstance(raw, str) and (call := _CALL.fullmatch(raw)):
        try:
            parts = [part.strip().lower() for part in call[2].split(",") if part.strip()]
            return call[1], [None if part == "none" else float(part) for part in parts], {}
        except ValueError:
            return "", [], {}
    if isinstance(raw, Mapping) and len(raw) == 1:
        name, arguments = next(iter(raw.items()))
        numbers = isinstance(arguments, Mapping) and all(
            isinstance(v, (int, float)) for v in arguments.values()
        )
        if isinstance(arguments, Mapping) and numbers:
            return str(name), [], {str(k): v for k, v in arguments.items()}
        if isinstance(arguments, (list, tuple)) and all(isinstance(v, (int, float)) for v in arguments):
            return str(name), list(arguments), {}
    return "", [], {}
