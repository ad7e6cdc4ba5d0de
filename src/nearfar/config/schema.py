"""A part's constructor is its schema: `{name: ring, lower: 0.5}` becomes `Ring(lower=0.5)`.

A part's settings are the parameters of its constructor that have a default and can be passed by position.
What depends on the data is made later (`AbstractPart.meet`). Values are validated and converted by pydantic from the parameters' annotations.
"""

import math
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from nearfar.config.reading import numbers
from nearfar.core.abstract import settable
from nearfar.core.schedules import Learnable, Learnt, Schedule, Value, parse_learnable, parse_value
from nearfar.errors import MAX_LISTED_NAMES, UserError, near_names

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


LISTING_COMMANDS = {
    "recipes": "nearfar recipes",
    "settings": "nearfar pretrain --help",
    "studies": "nearfar study",
}


def unknown(key: str, allowed: Iterable[str], kind: str = "settings") -> UserError:
    """The error for an unknown key, with the nearest names that exist."""
    names = sorted(allowed)
    if len(names) <= MAX_LISTED_NAMES:
        hint = near_names(key, names, count=1)
        rest = f"expected one of {', '.join(names)}" if names else "there are none here"
    else:
        hint = near_names(key, names)
        command = LISTING_COMMANDS.get(kind)
        listed = "" if "did you mean" in hint else f"expected one of {', '.join(names)}"
        rest = f"{command} lists them" if command else listed
    return UserError(f"{key} is not one of the {kind}{hint}{rest and f'; {rest}'}")


def check_settings(part: Callable[..., Any], raw: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """`raw` converted to the types of the part's constructor, with defaults filled in."""
    return {name: p.default for name, p in settable(part).items()} | check_given(part, raw, prefix)


def check_given(part: Callable[..., Any], raw: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """`raw` converted to the types of the part's constructor."""
    parameters = settable(part)
    for key in raw:
        if key not in parameters:
            raise unknown(f"{prefix}.{key}", (f"{prefix}.{name}" for name in parameters))
    return {
        name: convert(raw[name], parameters[name].annotation, f"{prefix}.{name}")
        for name in parameters
        if name in raw
    }


def check_fields(part: Any, prefix: str) -> None:
    """Converts the settings of a frozen dataclass in place; an error names the first wrong one."""
    raw = {name: getattr(part, name) for name in settable(type(part))}
    for name, value in check_given(type(part), raw, prefix).items():
        object.__setattr__(part, name, value)


def expecting(is_valid: Callable[[Any], object], expected: str) -> WrapValidator:
    """Metadata of a setting's annotation: any other value ends in "KEY was VALUE; expected …"."""

    def check(raw: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        with suppress(ValidationError):
            if is_valid(value := handler(raw)):
                return value
        raise UserError(f"{_key(info)} was {raw!r}; expected {expected}")

    return WrapValidator(check)


def between(low: float, high: float, meaning: str = "") -> WrapValidator:
    """`expecting` of a number with these limits, which is `meaning`."""
    limits = f"a number from {low:g} to {high:g}"
    return expecting(lambda value: low <= value <= high, f"{meaning}, {limits}" if meaning else limits)


def rising(low: float, high: float = math.inf) -> WrapValidator:
    """`expecting` of two numbers, both within these limits and above 0."""
    lower = f"of at least {low:g}" if low else "above 0"
    upper = f" and at most {high:g}" if high < math.inf else ""
    return expecting(
        lambda pair: pair[0] > 0 and low <= pair[0] <= pair[1] <= high,
        f"two numbers {lower}{upper}, the smaller first",
    )


def convert(raw: Any, annotation: Any, key: str) -> Any:
    """A raw setting as the annotated type, or an error with the key, the value and what was expected."""
    try:
        return _adapter(annotation).validate_python(raw, context={"key": key})
    except ValidationError as problem:
        causes = (error.get("ctx", {}).get("error") for error in problem.errors())
        from_validator = next((cause for cause in causes if isinstance(cause, UserError)), None)
        raise from_validator or UserError(f"{key} was {raw!r}; {expectation(problem, annotation)}") from None


def plain(value: Any) -> Any:
    """A part's setting as YAML can hold it."""
    if isinstance(value, (Schedule, Learnt)):
        return value.written()
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


# ------------------------------------------------------------------------------- types of settings


def _to_integer(raw: Any) -> Any:
    """A whole number may be written 1e3, which Python reads as a float."""
    number = numbers(raw)
    return (
        int(number) if isinstance(number, float) and number.is_integer() and abs(number) < 2**63 else number
    )


def none_to_null(raw: Any) -> Any:
    return None if raw == "none" else raw


def _key(info: ValidationInfo) -> str:
    """The key of the setting that is validated."""
    return str((info.context or {})["key"])


_SETTING_TYPES: dict[Any, Any] = {
    Value: Annotated[Any, PlainValidator(lambda raw, info: parse_value(raw, _key(info)))],
    Learnable: Annotated[Any, PlainValidator(lambda raw, info: parse_learnable(raw, _key(info)))],
    int: Annotated[int, BeforeValidator(_to_integer)],
    float: Annotated[float, BeforeValidator(numbers)],
}
_TUPLES = BeforeValidator(lambda raw: tuple(raw) if isinstance(raw, list) else raw)
_LISTS = BeforeValidator(lambda raw: list(raw) if isinstance(raw, tuple) else raw)


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_setting_type(annotation), config=STRICT)


def _setting_type(annotation: Any) -> Any:
    """The annotation with the ways people write its values: 1e3 for 1000, none for None, lists for tuples."""
    if annotation in _SETTING_TYPES:
        return _SETTING_TYPES[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return Annotated[(_setting_type(inner[0]), *inner[1:])]
    if origin in (Union, types.UnionType):
        return Annotated[Union[tuple(map(_setting_type, inner))], BeforeValidator(none_to_null)]  # noqa: UP007
    if origin is tuple:
        return Annotated[tuple[tuple(map(_setting_type, inner))], _TUPLES]  # type: ignore[misc]
    if origin is list:
        return Annotated[list[_setting_type(inner[0])], _LISTS]  # type: ignore[misc]
    return annotation


# -------------------------------------------------------------------------------------- error messages

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "dict_type": "a mapping",
}
_LIMITS = {
    "greater_than_equal": "a number of at least {ge}",
    "less_than_equal": "a number of at most {le}",
    "greater_than": "a number above {gt}",
    "less_than": "a number below {lt}",
    "literal_error": "{expected}",
    "too_short": "a list of at least {min_length}",
}


def expectation(problem: ValidationError, annotation: Any = None) -> str:
    """The first error of pydantic in the project's form: `expected a whole number`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is list:
        return "expected a list such as [1, 2]"
    if origin is tuple:
        example = ", ".join("1" if kind is int else f"{0.5 + k / 2:g}" for k, kind in enumerate(inner))
        return f"expected a list of {len(inner)} numbers such as [{example}]"
    if origin is Literal:
        return f"expected {', '.join(map(str, inner))}"
    first = problem.errors()[0]
    if first["type"] in _EXPECTED:
        return f"expected {_EXPECTED[first['type']]}"
    if first["type"] in _LIMITS:
        limits = {
            k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in first["ctx"].items()
        }
        return f"expected {_LIMITS[first['type']].format(**limits)}"
    return first["msg"][0].lower() + first["msg"][1:]
