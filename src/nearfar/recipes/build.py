"""From settings to a `Method` and its `Views`."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from nearfar import bounds, critics, encoders, negatives, selections
from nearfar.encoders import HeadConfig, InputSpec
from nearfar.errors import UserError
from nearfar.method import Method
from nearfar.parts import settable
from nearfar.types import Critic, Encoders, Selection, Source
from nearfar.views import LAB_CHANNELS

Choices = Mapping[str, Mapping[str, Any]]


def build_method(
    choices: Choices,
    *,
    backbone: str,
    channels: int,
    image_size: int,
    instances: int,
    chunk: int | None = None,
) -> Method:
    """The method that checked settings describe, for data of so many channels and instances."""
    plan = _plan(choices)
    made = _encoders(choices, plan, _seen(choices["views"], backbone, channels, image_size, instances))
    return Method(
        encoders=made,
        critic=_critic(choices["critic"], _dim(choices, plan)),
        negatives=_negatives(choices, made, _dim(choices, plan), instances, channels),
        selection=_selection(choices["selection"], instances),
        bound=_plain_part(bounds.PARTS, choices["bound"]),
        symmetric=choices["views"]["symmetric"],
        chunk=chunk,
    )


def try_parts(choices: Choices) -> None:
    """Lets every part judge its own settings, on torch's meta device, where nothing costs memory."""
    with torch.device("meta"):
        plan = _plan(choices)
        seen = _seen(choices["views"], "resnet8-w16", channels=3, size=32, instances=1)
        _negatives(choices, _encoders(choices, plan, seen), _dim(choices, plan), instances=1, symbols=3)
        _critic(choices["critic"], _dim(choices, plan))
        _selection(choices["selection"], instances=1)
        _plain_part(bounds.PARTS, choices["bound"])


def _plan(choices: Choices) -> HeadConfig:
    keys = settable(HeadConfig)
    return HeadConfig(**{key: value for key, value in choices["encoders"].items() if key in keys})


def _dim(choices: Choices, plan: HeadConfig) -> int:
    """How wide what is scored is."""
    return choices["encoders"]["width"] if choices["encoders"]["name"] == "predictive" else plan.dim


def _own(part: Any, choice: Mapping[str, Any]) -> dict[str, Any]:
    return {key: choice[key] for key in settable(part)}


def _plain_part(parts: Mapping[str, Any], choice: Mapping[str, Any]) -> Any:
    part = parts[choice["name"]]
    return part(**_own(part, choice))


def _selection(choice: Mapping[str, Any], instances: int) -> Selection:
    part = selections.PARTS[choice["name"]]
    supplied = {"instances": instances} if "instances" in inspect.signature(part).parameters else {}
    return part(**_own(part, choice), **supplied)


def _critic(choice: Mapping[str, Any], dim: int) -> Critic:
    part = critics.PARTS[choice["name"]]
    supplied = {"dim": dim} if "dim" in inspect.signature(part).parameters else {}
    return part(**_own(part, choice), **supplied)


def seen_channels(views: Mapping[str, Any], channels: int) -> tuple[int, ...]:
    """How many channels each view shows of data that have so many."""
    if views.get("colours", "rgb") == "rgb":
        return (channels,) * views["count"]
    if channels != 3:
        raise UserError(
            f"views.colours was {views['colours']} but the images have {channels} channels; it needs colour images"
        )
    return LAB_CHANNELS


def _seen(views: Mapping[str, Any], backbone: str, channels: int, size: int, instances: int) -> InputSpec:
    return InputSpec(backbone, seen_channels(views, channels), size, instances, views)


def _encoders(choices: Choices, plan: HeadConfig, seen: InputSpec) -> Encoders:
    role = encoders.PARTS[choices["encoders"]["name"]]
    return role.from_config(plan, seen, **_own(role, choices["encoders"]))  # type: ignore[attr-defined]


def _negatives(choices: Choices, made: Encoders, dim: int, instances: int, symbols: int) -> Source:
    choice, views = choices["negatives"], choices["views"]
    part = negatives.PARTS[choice["name"]]
    supplied: dict[str, Any] = {}
    if part is negatives.Bank:
        keys = [pair.key for pair in made.pairs(views["count"], views["symmetric"])]
        supplied = {"size": instances, "dim": dim, "views": 1 + max(keys)}
    elif part is negatives.Queue:
        supplied = {"dim": dim}
    elif part is negatives.Dictionary:
        supplied = {"symbols": symbols}
    return part(**_own(part, choice), **supplied)


def describe(choices: Choices) -> dict[str, str]:
    """The five choices (and the critic) as one line each."""
    return {room: _line(choice) for room, choice in choices.items()}


def _line(choice: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{key}={_written(value)}" for key, value in choice.items() if key != "name")
    return f"{choice['name']}({inside})" if inside else str(choice["name"])


def _written(value: Any) -> str:
    return value.written() if hasattr(value, "written") else str(value)
