"""From settings to a `Method` and its `Views`."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from nearfar import bounds, critics, encoders, negatives, selections
from nearfar.encoders import HeadConfig, InputSpec
from nearfar.method import Method
from nearfar.modalities import Description, modality_of_views
from nearfar.parts import settable
from nearfar.types import Critic, Encoders, Selection, Source

Choices = Mapping[str, Mapping[str, Any]]


def build_method(choices: Choices, *, backbone: str, data: Description, chunk: int | None = None) -> Method:
    """The method that checked settings describe, for data like these."""
    return Method(**_parts(choices, backbone, data), symmetric=choices["views"]["symmetric"], chunk=chunk)


def try_parts(choices: Choices) -> None:
    """Lets every part judge its own settings, on torch's meta device, where nothing costs memory."""
    modality = modality_of_views(choices["views"]["name"])
    with torch.device("meta"):
        _parts(choices, modality.smallest_network, modality.typical(instances=1))


def _parts(choices: Choices, backbone: str, data: Description) -> dict[str, Any]:
    seen = modality_of_views(choices["views"]["name"]).inputs(backbone, choices["views"], data)
    made = _encoders(choices, _plan(choices), seen)
    return {
        "encoders": made,
        "critic": _critic(choices["critic"], _dim(choices)),
        "negatives": _negatives(choices, made, _dim(choices), seen.context),
        "selection": _selection(choices["selection"], data.instances),
        "bound": _plain_part(bounds.PARTS, choices["bound"]),
    }


def _plan(choices: Choices) -> HeadConfig:
    keys = settable(HeadConfig)
    return HeadConfig(**{key: value for key, value in choices["encoders"].items() if key in keys})


def _dim(choices: Choices) -> int:
    """How wide what is scored is: the role's setting of that meaning."""
    role = encoders.PARTS[choices["encoders"]["name"]]
    return choices["encoders"][getattr(role, "scored", "dim")]


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


def _encoders(choices: Choices, plan: HeadConfig, seen: InputSpec) -> Encoders:
    role = encoders.PARTS[choices["encoders"]["name"]]
    return role.from_config(plan, seen, **_own(role, choices["encoders"]))  # type: ignore[attr-defined]


def _negatives(choices: Choices, made: Encoders, dim: int, context: Mapping[str, Any]) -> Source:
    """A source is given, by name, what it asks for and no setting says."""
    choice, views = choices["negatives"], choices["views"]
    part = negatives.PARTS[choice["name"]]
    keys = [pair.key for pair in made.pairs(views["count"], views["symmetric"])]
    known = {**context, "size": context["instances"], "dim": dim, "views": 1 + max(keys)}
    asked = set(inspect.signature(part).parameters) - set(settable(part))
    supplied = {name: known[name] for name in asked if name in known}
    return part(**_own(part, choice), **supplied)


def describe(choices: Choices) -> dict[str, str]:
    """The five choices (and the critic) as one line each."""
    return {room: _line(choice) for room, choice in choices.items()}


def _line(choice: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{key}={_written(value)}" for key, value in choice.items() if key != "name")
    return f"{choice['name']}({inside})" if inside else str(choice["name"])


def _written(value: Any) -> str:
    return value.written() if hasattr(value, "written") else str(value)
