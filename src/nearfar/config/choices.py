"""What may be chosen in each room, and what goes together; one sentence about the first thing that does not.

A choice is a mapping with a `name` and the settings of that part; `views` also says how many views there are and how they
go together, `encoders` also how the network is put together.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nearfar.config.schema import check_settings, settable, unknown
from nearfar.errors import UserError, not_one_of
from nearfar.modalities import MODALITIES, Modality, modality_of_views
from nearfar.parts import bounds, critics, encoders, negatives, priors, selections
from nearfar.parts.encoders import HeadConfig
from nearfar.parts.joined import JOINED_BY

ROOMS: dict[str, Mapping[str, Callable[..., object]]] = {
    "encoders": encoders.PARTS,
    "critic": critics.PARTS,
    "negatives": negatives.PARTS,
    "selection": selections.PARTS,
    "bound": bounds.PARTS,
    "prior": priors.PARTS,
}
CHOICES = ("views", "encoders", "critic", "negatives", "selection", "bound", "prior")
TOGETHER = (
    "count",
    "symmetric",
    "aligned",
    "colours",
)  # of the views' section, what is the method's, not the pipeline's


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
    if getattr(parts[name], "own_network", False):
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
    for part in (modality, *parts.values()):
        conflict = getattr(part, "conflict", None)
        reason = conflict(choices, parts) if conflict else None
        if reason:
            raise UserError(reason)
    _check_positives_differ(choices, parts)  # last: its way out is for parts that go together otherwise


def _check_views_fit(choices: Mapping[str, Any], parts: Mapping[str, Any], modality: Modality) -> None:
    """Some roles are made for views of their own; the others take several views of one instance."""
    views, name = choices["views"], choices["encoders"]["name"]
    role = parts["encoders"]
    takes = getattr(role, "takes", ())
    if takes and views["name"] not in takes:
        raise UserError(
            f"encoders was {name} with views={views['name']}; it takes views={' or '.join(takes)}"
        )
    networks = {*getattr(role, "networks", modality.networks)}
    if not takes and not networks & {*modality.networks}:
        others = [other.holds for other in MODALITIES.values() if networks & {*other.networks}]
        raise UserError(
            f"encoders was {name} with views={views['name']}; it is for {' and '.join(others)}, and these views are for {modality.holds}"
        )
    if takes and views["count"] != getattr(role, "views", views["count"]):
        raise UserError(f"views.count was {views['count']}; with encoders={name} it is {role.views}")
    if not takes and not modality.many_views:
        raise UserError(
            f"encoders was {name} with views={views['name']}; it takes several views of one instance, which {modality.holds} "
            "have not"
        )


def _check_positives_differ(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """A positive is another view, or what a bank or an encoder remembers of the instance."""
    own = getattr(parts["negatives"], "own_positive", False) or getattr(parts["encoders"], "one_view", False)
    if choices["views"]["count"] == 1 and not own:
        raise UserError(
            f"views.count was 1 with negatives={choices['negatives']['name']}: a view's positive would be itself; use views.count=2 or "
            "negatives=bank"
        )


def _check_rows_fit(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """What remembers something of each instance needs encoders whose rows belong to instances."""
    if not getattr(parts["encoders"], "vocabulary", False):
        return
    for room in ("negatives", "selection"):
        if getattr(parts[room], "per_instance", False):
            raise UserError(
                f"{room}={choices[room]['name']} remembers something of each instance, but the keys of encoders="
                f"{choices['encoders']['name']} are symbols or classes, which belong to none; use negatives=in-batch, queue or dictionary "
                "with selection=everyone, ring or ball"
            )


def _check_bounded(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """What reads positives alone needs scores that cannot grow for ever."""
    if getattr(parts["bound"], "needs_bounded", False) and not getattr(parts["critic"], "bounded", False):
        allowed = [name for name, part in critics.PARTS.items() if getattr(part, "bounded", False)]
        raise UserError(
            f"bound was {choices['bound']['name']} with critic={choices['critic']['name']}: it reads positives alone, and these "
            f"scores grow without limit as the embeddings do; use critic={' or '.join(allowed)}, or a bound with negatives"
        )


def _check_not_a_line(choices: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Directions need two dimensions."""
    unit = choices["critic"].get("unit", getattr(parts["critic"], "unit", False))
    if unit is True and choices["encoders"].get("dim") == 1:
        raise UserError(
            f"encoders.dim was 1 with critic={choices['critic']['name']}: vectors of unit length on a line are 1 and -1, and no "
            "gradient moves them; use encoders.dim from 2, or critic=dot"
        )
