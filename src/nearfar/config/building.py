"""From settings to a `Method`: the one place that turns names and numbers into parts.

A part is given its settings, and by name what its signature asks for besides (`built`): `dim`, how wide what is scored is;
`instances`; `classes`, how many, where there are labels; `data`, their description; `size` and `views`, for a source with a row for each instance; and what the modality
knows (`samples`, `symbols`, …).
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from nearfar.config.fields import CHOICES
from nearfar.config.schema import check_settings, settable, unknown
from nearfar.core.abstract import AbstractEncoders, AbstractViews
from nearfar.core.method import Method
from nearfar.errors import UserError, not_one_of
from nearfar.modalities import MODALITIES, Description, Modality, modality_of_views
from nearfar.parts import bounds, critics, encoders, negatives, priors, selections
from nearfar.parts.encoders import HeadConfig, InputSpec, Network
from nearfar.parts.encoders.heads import planned_head
from nearfar.parts.joined import JOINED_BY

ROOMS: dict[str, Mapping[str, Any]] = {
    "encoders": encoders.PARTS,
    "critic": critics.PARTS,
    "negatives": negatives.PARTS,
    "selection": selections.PARTS,
    "bound": bounds.PARTS,
    "prior": priors.PARTS,
}
TOGETHER = (
    "count",
    "symmetric",
    "aligned",
    "colours",
)  # of the views' section, what is the method's, not the pipeline's
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
    own = objects.get("views")
    views = (
        own
        if isinstance(own, AbstractViews)
        else modality_of_views(choices["views"]).views.of(choices["views"])
    )
    return Method(**parts, views=views, symmetric=choices["views"]["symmetric"], chunk=chunk)


def try_parts(choices: Choices, objects: Mapping[str, Any] = NONE) -> None:
    """Lets every part check its settings. Networks and memories are not made; a part that cannot do without their sizes gets some, on
    torch's meta device, where nothing costs memory."""
    example = modality_of_views(choices["views"]).reader.example_description(instances=1)
    sizes = {"dim": 2, "instances": 1, "size": 1, "views": 1, "symbols": 2, "classes": 2, "data": example}
    with torch.device("meta"):
        for room, parts in ROOMS.items():
            if room in objects:
                continue
            part, section = parts[choices[room]["name"]], choices[room]
            if room == "encoders" and part.built_in_backbone is None:
                part(head_of(section), **{key: section[key] for key in settable(part)})
            else:
                built(part, section, {name: sizes[name] for name in required(part) if name in sizes})


def head_of(section: Mapping[str, Any]) -> HeadConfig:
    """Head and predictor, as the section of the encoders describes them."""
    return HeadConfig(**{key: section[key] for key in settable(HeadConfig) if key in section})


def _parts(choices: Choices, backbone: str, data: Description, objects: Mapping[str, Any]) -> dict[str, Any]:
    modality = modality_of_views(choices["views"])
    own = objects.get("backbone")
    seen = modality.networks.inputs(modality.networks.smallest if own else backbone, choices["views"], data)
    seen = seen if own is None else replace(seen, body=lambda view: copy.deepcopy(own), measure_width=True)
    seen = replace(seen, context={"classes": data.class_count, **seen.context})
    context = {"data": data, "instances": data.instances, **seen.context}
    made = objects.get("encoders")
    if made is None:
        made = _encoders(choices["encoders"], seen, context)
        context["dim"] = _dim(choices, made)
    if made.vocabulary_size is not None:
        context["symbols"] = made.vocabulary_size
    views = choices["views"]
    keys = [pair.key for pair in made.pairs(views["count"], views["symmetric"])]
    context |= {
        "size": context["instances"],
        "views": 1 + max(keys, default=0),
    }  # of a source with a row for each
    if made.teacher_width is not None:
        context["teacher_width"] = made.teacher_width
    # a prior reads embeddings as the network gives them, which a role may make wider before they are scored
    clouds = {**context, **({} if made.embedding_width is None else {"dim": made.embedding_width})}
    others = {
        room: objects[room]
        if room in objects
        else built(ROOMS[room][choices[room]["name"]], choices[room], clouds if room == "prior" else context)
        for room in OTHERS
    }
    return {"encoders": made, **others}


def built(part: Callable[..., Any], section: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
    """A part with its settings and what else its constructor takes from the context."""
    settings = {key: section[key] for key in settable(part)}
    for name in required(part):
        if name not in context:
            raise UserError(
                f"{section['name']} needs `{name}`, which is not available; available: {', '.join(context)}"
            )
    names = [name for name in inspect.signature(part).parameters if name not in settings]
    return part(**settings, **{name: context[name] for name in names if name in context})


def required(part: Callable[..., Any]) -> list[str]:
    """The parameters of a part without a default: what the context must hold."""
    parameters = inspect.signature(part).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _encoders(section: Mapping[str, Any], seen: InputSpec, context: Mapping[str, Any]) -> AbstractEncoders:
    role = ROOMS["encoders"][section["name"]]
    if role.built_in_backbone is not None:
        return built(role, section, context)
    return role.from_config(head_of(section), seen, **{key: section[key] for key in settable(role)})


def _dim(choices: Choices, made: AbstractEncoders) -> int:
    """How wide what is scored is: as the role or its network says, or the role's setting of that meaning."""
    if made.scored_width is not None:
        return made.scored_width
    for network in made.view_networks():
        if isinstance(network, Network) and network.dim is not None:
            return network.dim
    role = ROOMS["encoders"][choices["encoders"]["name"]]
    return choices["encoders"][role.width_setting]


# ------------------------------------------------------------------------------------ parts as settings


def sections_of(method: Method) -> dict[str, dict[str, Any]]:
    """A method as settings: for each choice the name of its part and that part's settings."""
    return {choice: section_of(choice, getattr(method, choice)) for choice in CHOICES}


def section_of(choice: str, part: Any) -> dict[str, Any]:
    """A part as settings: its name, and the settings it was made with."""
    if part is None:
        return {"name": "none"}
    if choice == "views":
        kinds = {
            name: kind for modality in MODALITIES.values() for name, kind in modality.views.kinds.items()
        }
        return {"name": name_of(kinds, part), **part.section()}
    members = part.parts if isinstance(part, (bounds.Sum, selections.Chain)) else (part,)
    settings: dict[str, Any] = {}
    for member in members:  # of a setting that several have, the first counts
        settings = {**settings_of(member), **settings}
    return {"name": JOINED_BY.join(name_of(ROOMS[choice], member) for member in members), **settings}


def name_of(parts: Mapping[str, Any], part: Any) -> str:
    return next(name for name, kind in parts.items() if kind is type(part))


def settings_of(part: Any) -> dict[str, Any]:
    """A part's settings; of encoders whose network is still to be made, the head's too."""
    head = planned_head(part)
    return {**part.settings, **({} if head is None else asdict(head))}


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


# --------------------------------------------------------------------------- one section, and what goes together


def check_choice(room: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice with its name known and its part's settings converted and filled in."""
    parts = ROOMS[room]
    name = choice.get("name")
    if not isinstance(name, str) or name not in parts:
        raise not_one_of(room, name, parts)
    raw = {key: value for key, value in choice.items() if key != "name"}
    check_whose(
        room,
        name,
        {key: value for key, value in raw.items() if room != "encoders" or key not in settable(HeadConfig)},
        parts,
    )
    if room != "encoders":
        return {"name": name, **check_settings(parts[name], raw, room)}
    if parts[name].built_in_backbone:
        return {"name": name, **check_settings(parts[name], raw, room)}
    # the encoders' section holds the role's settings and the network's
    role_keys, plan_keys = settable(parts[name]), settable(HeadConfig)
    for key in raw:
        if key not in role_keys and key not in plan_keys:
            raise unknown(f"{room}.{key}", (f"{room}.{k}" for k in {**role_keys, **plan_keys}))
    role = check_settings(parts[name], {k: v for k, v in raw.items() if k in role_keys}, room)
    plan = check_settings(HeadConfig, {k: v for k, v in raw.items() if k in plan_keys}, room)
    return {"name": name, **role, **plan}


def check_whose(room: str, name: str, raw: Iterable[str], parts: Mapping[str, Callable[..., Any]]) -> None:
    """A setting that other parts of the room have but this one has not is told by whose it is."""
    for key in raw:
        owners = [part for part, make in parts.items() if key in settable(make)]
        if owners and not {*name.split(JOINED_BY)} & {*owners}:
            raise UserError(
                f"{room}.{key} is a setting of {', '.join(owners)}, not of {room}={name}; leave it out, or choose one of these"
            )


def check_together(choices: Mapping[str, Any], objects: Mapping[str, Any]) -> None:
    """Stops parts that would train nothing together. By what parts say of themselves, and then by what each of them knows it
    does not go with (`conflict`). `objects` are parts that somebody made, by room."""
    parts = {
        room: objects[room] if room in objects else named[choices[room]["name"]]
        for room, named in ROOMS.items()
    }
    modality = modality_of_views(choices["views"])
    _check_views_fit(choices, parts, modality)
    _check_rows_fit(choices, parts)
    _check_bounded(choices, parts)
    _check_not_a_line(choices, parts)
    for part in (modality.views, *(part for part in parts.values() if part is not None)):
        reason = part.conflict(choices, parts)
        if reason:
            raise UserError(reason)
    _check_positives_differ(choices, parts)  # last: its way out is for parts that go together otherwise


def _check_views_fit(choices: Mapping[str, Any], parts: Mapping[str, Any], modality: Modality) -> None:
    """Some roles are made for views of their own; the others take several views of one instance."""
    views, name = choices["views"], choices["encoders"]["name"]
    role = parts["encoders"]
    takes = role.view_names
    if takes and views["name"] not in takes:
        raise UserError(
            f"encoders was {name} with views={views['name']}; it takes views={' or '.join(takes)}"
        )
    networks = {*(modality.networks.names if role.backbone_names is None else role.backbone_names)}
    if not takes and not networks & {*modality.networks.names}:
        others = [other.plural for other in MODALITIES.values() if networks & {*other.networks.names}]
        raise UserError(
            f"encoders was {name} with views={views['name']}; it is for {' and '.join(others)}, and these views are for {modality.plural}"
        )
    if takes and role.view_count not in (None, views["count"]):
        raise UserError(f"views.count was {views['count']}; with encoders={name} it is {role.view_count}")
    if not takes and not modality.views.several:
        raise UserError(
            f"encoders was {name} with views={views['name']}; it takes several views of one instance, which {modality.plural} "
            "have not"
        )


def _check_positives_differ(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """A positive is another view, or what a bank or an encoder remembers of the instance."""
    own = parts["negatives"].remembers_positives or parts["encoders"].works_with_one_view
    if choices["views"]["count"] == 1 and not own:
        raise UserError(
            f"views.count was 1 with negatives={choices['negatives']['name']}: a view's positive would be itself; use views.count=2 or "
            "negatives=bank"
        )


def _check_rows_fit(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """What remembers something of each instance needs encoders whose rows belong to instances."""
    if not parts["encoders"].keys_are_symbols:
        return
    for room in ("negatives", "selection"):
        if parts[room].remembers_instances:
            raise UserError(
                f"{room}={choices[room]['name']} remembers something of each instance, but the keys of encoders="
                f"{choices['encoders']['name']} are symbols or classes, which belong to none; use negatives=in-batch, queue or dictionary "
                "with selection=everyone, ring or ball"
            )


def _check_bounded(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """What reads positives alone needs scores that cannot grow for ever."""
    if parts["bound"].needs_bounded_scores and not parts["critic"].bounded_above:
        allowed = [name for name, part in ROOMS["critic"].items() if part.bounded_above]
        raise UserError(
            f"bound was {choices['bound']['name']} with critic={choices['critic']['name']}: it reads positives alone, and these "
            f"scores grow without limit as the embeddings do; use critic={' or '.join(allowed)}, or a bound with negatives"
        )


def _check_not_a_line(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Directions need two dimensions."""
    unit = choices["critic"].get("unit", parts["critic"].unit)
    if unit is True and choices["encoders"].get("dim") == 1:
        raise UserError(
            f"encoders.dim was 1 with critic={choices['critic']['name']}: vectors of unit length on a line are 1 and -1, and no "
            "gradient moves them; use encoders.dim from 2, or critic=dot"
        )
