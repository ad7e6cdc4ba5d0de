"""Parts from settings: `{name: ring, lower: 0.5}` to `Ring(lower=0.5)`, by reading the part's own signature.

A part's settings are its constructor's parameters that have a default and can be passed by position; what has
no default or is keyword-only (a network, a width, the number of instances) is supplied by whoever builds it. So a
new part needs no schema: its signature is the schema.
"""

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from yaml.composer import ComposerError

from nearfar.core.schedules import Learnable, Learnt, Schedule, Value, parse_learnable, parse_value
from nearfar.errors import MAX_LISTED_NAMES, UserError, near_names


class _Plain(yaml.SafeLoader):
    """YAML of mappings, lists, texts, true, false and null. Its numbers are not those people write (1e-4 is text to it, 010 is 8 and
    1:30 is 90), its dates are no settings, its tags (`!!bool x`) ask for what cannot be made, and by its aliases ten lines make a
    billion values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        what = (
            "an alias"
            if self.check_event(yaml.AliasEvent)
            else "a tag"
            if getattr(event, "tag", None)
            else None
        )
        if what is not None:
            raise ComposerError(None, None, f"{what} is not allowed", event.start_mark)
        return super().compose_node(parent, index)


class _Quoted(str):
    """Text in quotation marks: no number, whatever it looks like."""


def _text(loader: _Plain, node: yaml.ScalarNode) -> str:
    text = loader.construct_scalar(node)
    return text if node.style is None else _Quoted(text)


_Plain.add_constructor("tag:yaml.org,2002:str", _text)
_RESOLVED = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
_Plain.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _RESOLVED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# every digit can be matched in one way only, or a long word would take the square of its length
_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?\.inf|\.nan", re.ASCII)


def load_yaml(text: str) -> Any:
    """What YAML text holds, with numbers as people write them; `yaml.YAMLError` where it holds nothing of that kind."""
    try:
        return numbers(yaml.load(text, _Plain))
    # nested beyond all depth; "\UFFFFFFFF" is no character
    except (RecursionError, ValueError, OverflowError) as problem:
        raise yaml.YAMLError(str(problem)) from None


def numbers(raw: Any) -> Any:
    """`raw` with every text in it that is a number as that number: `1e-4`, `.5`, `1_000`; whole ones as integers."""
    if isinstance(raw, Mapping):
        return {str(key) if isinstance(key, _Quoted) else key: numbers(value) for key, value in raw.items()}
    if isinstance(raw, (list, tuple)):
        return type(raw)(map(numbers, raw))
    if isinstance(raw, _Quoted):
        return str(raw)
    if not isinstance(raw, str) or not _NUMBER.fullmatch(raw.strip()):
        return raw
    text = raw.strip()
    try:
        value = float(text.replace(".inf", "inf").replace(".nan", "nan"))
        if "." in text or not abs(value) < 2**1023:
            return value
        # 1e3 is a whole number; 1e99 as one would be digits that nobody wrote
        whole = value.is_integer() and abs(value) < 2**63
        return int(text) if "e" not in text.lower() else int(value) if whole else value
    except ValueError:  # such as more digits than Python takes
        return raw


def settable(part: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a part that a user may set, by name."""
    parameters = inspect.signature(part).parameters.values()
    return {
        p.name: p
        for p in parameters
        if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty and p.name != "self"
    }


def unknown(key: str, allowed: Iterable[str], where: str = "settings") -> UserError:
    """The sentence for a key nobody knows, with the nearest one that is known."""
    names = sorted(allowed)
    if len(names) <= MAX_LISTED_NAMES:
        hint = near_names(key, names, count=1)
        all_of_them = f"expected one of {', '.join(names)}" if names else "there are none here"
    else:
        hint = near_names(key, names)
        command = {"recipes": "nearfar recipes --all", "settings": "nearfar pretrain --help"}.get(where)
        all_of_them = f"{command} lists them" if command else f"there are {len(names)}"
    return UserError(f"{key} is not one of the {where}{hint}; {all_of_them}")


def check_settings(part: Callable[..., Any], raw: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """`raw` converted to what the part's signature asks for, with defaults filled in."""
    parameters = settable(part)
    for key in raw:
        if key not in parameters:
            raise unknown(f"{prefix}.{key}", (f"{prefix}.{name}" for name in parameters))
    return {
        name: convert(raw[name], p.annotation, f"{prefix}.{name}") if name in raw else p.default
        for name, p in parameters.items()
    }


def fixed_views(part: Any, choice: Mapping[str, Any]) -> dict[str, Any]:
    """The views' section of a part that gives as many views as it does, `part.count`, the first of them the anchor."""
    fixed = {"count": part.count, "symmetric": False}
    for key, value in fixed.items():
        if choice.get(key, value) != value:
            raise UserError(
                f"views.{key} was {choice[key]!r}; with views={choice['name']} it is {str(value).lower()}"
            )
    return {**chosen_views(part, {key: v for key, v in choice.items() if key not in fixed}), **fixed}


def chosen_views(part: Any, choice: Mapping[str, Any]) -> dict[str, Any]:
    """The views' section of a part whose parameters are all its settings, tried out."""
    checked = check_settings(part, {key: v for key, v in choice.items() if key != "name"}, "views")
    part(**checked)
    return {"name": choice["name"], **checked}


def plain(value: Any) -> Any:
    """A part's setting as YAML can hold it."""
    if isinstance(value, (Schedule, Learnt)):
        return value.written()
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def convert(raw: Any, annotation: Any, key: str) -> Any:
    """A raw setting as the annotated type, or a sentence naming the key, what it was and what was expected."""
    if annotation == Value:
        return parse_value(raw, key)
    if annotation == Learnable:
        return parse_learnable(raw, key)
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _optional(raw, get_args(annotation), key)
    if origin is Literal:
        if raw not in get_args(annotation):
            raise UserError(f"{key} was {raw!r}; expected {', '.join(map(str, get_args(annotation)))}")
        return raw
    if origin is list:
        return _list(raw, get_args(annotation)[0], key)
    if origin is tuple:
        return _numbers(raw, get_args(annotation), key)
    return _SCALARS[annotation](raw, key)


def _optional(raw: Any, choices: tuple[Any, ...], key: str) -> Any:
    inner = [choice for choice in choices if choice is not type(None)]
    if raw is None or raw == "none":
        return None
    return convert(raw, inner[0], key)


def _numbers(raw: Any, kinds: tuple[Any, ...], key: str) -> tuple[Any, ...]:
    if not isinstance(raw, (list, tuple)) or len(raw) != len(kinds):
        example = ", ".join(
            "1" if kind is int else f"{0.5 + place / 2:g}" for place, kind in enumerate(kinds)
        )
        raise UserError(f"{key} was {raw!r}; expected a list of {len(kinds)} numbers such as [{example}]")
    return tuple(convert(item, kind, key) for item, kind in zip(raw, kinds, strict=True))


def _list(raw: Any, kind: Any, key: str) -> list[Any]:
    if not isinstance(raw, (list, tuple)):
        raise UserError(f"{key} was {raw!r}; expected a list such as [1, 2]")
    return [convert(item, kind, key) for item in raw]


def _float(raw: Any, key: str) -> float:
    value = parse_value(raw, key) if not isinstance(raw, Mapping) else None
    if not isinstance(value, float):
        raise UserError(f"{key} was {raw!r}; expected a number")
    return value


def _int(raw: Any, key: str) -> int:
    whole = (
        isinstance(raw, (int, float)) and not isinstance(raw, bool) and abs(raw) < 2**63 and raw == int(raw)
    )
    if not whole:
        raise UserError(f"{key} was {raw!r}; expected a whole number")
    return int(raw)


def _bool(raw: Any, key: str) -> bool:
    if not isinstance(raw, bool):
        raise UserError(f"{key} was {raw!r}; expected true or false")
    return raw


def _str(raw: Any, key: str) -> str:
    if not isinstance(raw, str):
        raise UserError(f"{key} was {raw!r}; expected a string")
    return raw


_SCALARS: dict[Any, Callable[[Any, str], Any]] = {float: _float, int: _int, bool: _bool, str: _str}
