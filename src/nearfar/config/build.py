"""From settings to a `Method`: the one place that turns names and numbers into parts.

A part is given its settings, and by name what its signature asks for besides (`built`): `dim`, how wide what is scored is;
`instances`; `classes`, how many, where there are labels; `data`, their description; `size` and `views`, for a source with a row for each instance; and what the modality
knows (`samples`, `symbols`, …).
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from nearfar.config.choices import ROOMS
from nearfar.config.schema import settable
from nearfar.core.method import Method
from nearfar.core.types import Encoders
from nearfar.errors import UserError
from nearfar.modalities import Description, modality_of_views
from nearfar.parts.encoders import HeadConfig, InputSpec

NONE: Mapping[str, Any] = {}
# beside the encoders, in the order they are made: a prior last, so that its weights do not change how the others begin
OTHERS = ("critic", "negatives", "selection", "bound", "prior")
Choices = Mapping[str, Mapping[str, Any]]


def build_method(
    choices: Choices,
    *,
    backbone: str,
    data: Description,
    chunk: int | None = None,
    objects: Mapping[str, Any] = NONE,
) -> Method:
    """The method that checked settings describe, for data like these. `objects` are what somebody made: parts by room, and a
    `backbone`; they are used as they are, not copied."""
    parts = _parts(choices, backbone, data, objects)
    return Method(**parts, symmetric=choices["views"]["symmetric"], chunk=chunk)


def try_parts(choices: Choices, objects: Mapping[str, Any] = NONE) -> None:
    """Lets every part judge its own settings, on torch's meta device, where nothing costs memory."""
    modality = modality_of_views(choices["views"])
    parts = {key: part for key, part in objects.items() if key in ROOMS}
    with torch.device("meta"):
        _parts(choices, modality.smallest_network, modality.typical(instances=1).labelled(2), parts)


def _parts(choices: Choices, backbone: str, data: Description, objects: Mapping[str, Any]) -> dict[str, Any]:
    modality = modality_of_views(choices["views"])
    own = objects.get("backbone")
    seen = modality.inputs(modality.smallest_network if own else backbone, choices["views"], data)
    seen = seen if own is None else replace(seen, body=lambda view: copy.deepcopy(own), asked=True)
    seen = replace(seen, context={"classes": data.class_count, **seen.context})
    context = {"data": data, "instances": data.instances, **seen.context}
    made = objects.get("encoders")
    if made is None:
        made = _encoders(choices["encoders"], seen, context)
        context["dim"] = _dim(choices, made)
    if hasattr(made, "symbols"):  # a vocabulary of the encoders' own
        context["symbols"] = made.symbols
    views = choices["views"]
    keys = [pair.key for pair in made.pairs(views["count"], views["symmetric"])]
    context |= {
        "size": context["instances"],
        "views": 1 + max(keys, default=0),
    }  # of a source with a row for each
    if hasattr(made, "teacher_width"):
        context["teacher_width"] = made.teacher_width
    # a prior reads embeddings as the network gives them, which a role may make wider before they are scored
    clouds = {**context, **({"dim": made.cloud_width} if hasattr(made, "cloud_width") else {})}
    others = {
        room: objects[room]
        if room in objects
        else built(ROOMS[room][choices[room]["name"]], choices[room], clouds if room == "prior" else context)
        for room in OTHERS
    }
    return {"encoders": made, **others}


def built(part: Callable[..., Any], choice: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
    """A part with its settings and, by name, whatever of the context its signature asks for besides."""
    own = {key: choice[key] for key in settable(part)}
    asked = {
        name: p
        for name, p in inspect.signature(part).parameters.items()
        if name not in own and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    for name, parameter in asked.items():
        if name not in context and parameter.default is parameter.empty:
            raise UserError(
                f"{choice['name']} asks for {name}, which nothing here knows; known are {', '.join(context)}"
            )
    return part(**own, **{name: context[name] for name in asked if name in context})


def _encoders(choice: Mapping[str, Any], seen: InputSpec, context: Mapping[str, Any]) -> Encoders:
    role = ROOMS["encoders"][choice["name"]]
    if not hasattr(role, "from_config"):
        return built(role, choice, context)
    keys = settable(HeadConfig)
    plan = HeadConfig(**{key: value for key, value in choice.items() if key in keys})
    return role.from_config(plan, seen, **{key: choice[key] for key in settable(role)})


def _dim(choices: Choices, made: Encoders) -> int:
    """How wide what is scored is: as the role or its network says, or the role's setting of that meaning."""
    if isinstance(said := getattr(made, "scored_width", None), int):
        return said
    for network in (getattr(made, "network", None), *getattr(made, "networks", ())):
        if isinstance(getattr(network, "dim", None), int) and hasattr(network, "head"):
            return int(network.dim)
    role = ROOMS["encoders"][choices["encoders"]["name"]]
    return choices["encoders"][getattr(role, "scored", "dim")]


def describe(choices: Choices) -> dict[str, str]:
    """The choices as one line each."""
    return {room: _line(choice) for room, choice in choices.items()}


_UNSAID = (
    "name",
    "object",
    "modality",
    "tensors",
)  # of a part that somebody made, what a person need not read


def _line(choice: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{key}={_written(value)}" for key, value in choice.items() if key not in _UNSAID)
    return f"{choice['name']}({inside})" if inside else str(choice["name"])


def _written(value: Any) -> str:
    return value.written() if hasattr(value, "written") else str(value)
