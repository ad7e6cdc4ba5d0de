"""What may be chosen in each room, and what goes together; one sentence about the first thing that does not.

A choice is a mapping with a `name` and the settings of that part; `views` also says how many views there are and how they
go together, `encoders` also how the network is put together.
"""

from collections.abc import Callable, Mapping
from typing import Any

from nearfar import bounds, critics, encoders, negatives, selections
from nearfar.encoders import SEQUENCE_ROLES, HeadConfig
from nearfar.errors import UserError
from nearfar.parts import check_settings, convert, settable, unknown
from nearfar.views import PIPELINES, SEQUENCES, Colours, pipelines

ROOMS: dict[str, Mapping[str, Callable[..., object]]] = {
    "encoders": encoders.PARTS,
    "critic": critics.PARTS,
    "negatives": negatives.PARTS,
    "selection": selections.PARTS,
    "bound": bounds.PARTS,
}
CHOICES = ("views", "encoders", "critic", "negatives", "selection", "bound")
VIEWS = ("count", "symmetric", "aligned", "colours")  # of the views' section, what is not the pipeline's


def check_choice(room: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice with its name known and its part's settings converted and filled in."""
    parts = ROOMS[room]
    name = choice.get("name")
    if not isinstance(name, str) or name not in parts:
        raise UserError(f"{room} was {name!r}; allowed are {', '.join(parts)}")
    raw = {key: value for key, value in choice.items() if key != "name"}
    _check_whose(room, name, raw)
    if room != "encoders":
        return {"name": name, **check_settings(parts[name], raw, room)}
    if name in SEQUENCE_ROLES:
        return {"name": name, **check_settings(parts[name], raw, room)}
    # the encoders' section holds the role's settings and the network's
    role_keys, plan_keys = settable(parts[name]), settable(HeadConfig)
    for key in raw:
        if key not in role_keys and key not in plan_keys:
            raise unknown(f"{room}.{key}", (f"{room}.{k}" for k in {**role_keys, **plan_keys}))
    role = check_settings(parts[name], {k: v for k, v in raw.items() if k in role_keys}, room)
    plan = check_settings(HeadConfig, {k: v for k, v in raw.items() if k in plan_keys}, room)
    return {"name": name, **role, **plan}


def _check_whose(room: str, name: str, raw: Mapping[str, Any]) -> None:
    """A setting that other parts of the room have but this one has not is told by whose it is."""
    for key in raw:
        owners = [part for part, make in ROOMS[room].items() if key in settable(make)]
        if owners and name not in owners and not (room == "encoders" and key in settable(HeadConfig)):
            raise UserError(
                f"{room}.{key} is no setting of {room}={name} but of {', '.join(owners)}; leave it out, or choose one of these"
            )


def check_views(choice: Mapping[str, Any]) -> dict[str, Any]:
    """The views' section: a pipeline's name, how many views, how they are paired, and changes to the pipeline."""
    name = choice.get("name")
    if not isinstance(name, str) or name not in {**PIPELINES, **SEQUENCES}:
        raise UserError(f"views was {name!r}; allowed are {', '.join([*PIPELINES, *SEQUENCES])}")
    if name in SEQUENCES:
        return check_sequence_views(name, choice)
    count = choice.get("count", 2)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 16:
        raise UserError(f"views.count was {count!r}; allowed is a whole number from 1 to 16")
    together = {key: choice.get(key, default) for key, default in (("symmetric", True), ("aligned", False))}
    for key, value in together.items():
        if not isinstance(value, bool):
            raise UserError(f"views.{key} was {value!r}; allowed are true and false")
    colours = convert(choice.get("colours", "rgb"), Colours, "views.colours")
    changes = augmentation(choice)
    pipelines(name, 32, changes)
    return {"name": name, "count": count, **together, "colours": colours, **changes}


def check_sequence_views(name: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    """Views of sequences are as many as they are: one stretch of sound; a block as read and what it hides."""
    part = SEQUENCES[name]
    fixed = {"count": part.count, "symmetric": False}
    for key, value in fixed.items():
        if choice.get(key, value) != value:
            raise UserError(f"views.{key} was {choice[key]!r}; with views={name} it is {str(value).lower()}")
    own = {key: value for key, value in choice.items() if key not in ("name", *fixed)}
    checked = check_settings(part, own, "views")
    part(**checked)
    return {"name": name, **fixed, **checked}


def augmentation(views: Mapping[str, Any]) -> dict[str, Any]:
    """What the views' section changes of its pipeline."""
    return {key: value for key, value in views.items() if key != "name" and key not in VIEWS}


def check_together(choices: Mapping[str, Mapping[str, Any]]) -> None:
    """Pairs of parts that would train nothing."""
    source, bound = choices["negatives"]["name"], choices["bound"]["name"]
    views, role = choices["views"], choices["encoders"]["name"]
    if views.get("colours") == "lab" and (role != "per-view" or views["count"] != 2):
        raise UserError(
            f"views.colours was lab with encoders={role} and views.count={views['count']}: luminance and colour have "
            "other channels and need networks of their own; use encoders=per-view views.count=2"
        )
    if views["count"] == 1 and source != "bank" and not getattr(encoders.PARTS[role], "one_view", False):
        raise UserError(
            f"views.count was 1 with negatives={source}: a view's positive would be itself; use views.count=2 or negatives=bank"
        )
    critic = choices["critic"]["name"]
    if getattr(bounds.PARTS[bound], "needs_bounded", False) and not getattr(
        critics.PARTS[critic], "bounded", False
    ):
        allowed = [name for name, part in critics.PARTS.items() if getattr(part, "bounded", False)]
        raise UserError(
            f"bound was {bound} with critic={critic}: it reads positives alone, and these scores grow without limit as the "
            f"embeddings do; use critic={' or '.join(allowed)}, or a bound with negatives"
        )
    if source == "none" and bound not in ("agreement", "barber-agakov"):
        raise UserError(
            f"bound was {bound} with negatives=none: told from nobody, there is nothing to learn; use bound=agreement or other negatives"
        )


def check_senses(choices: Mapping[str, Mapping[str, Any]]) -> None:
    """Networks for pictures see pictures, those for sequences their own kind of view."""
    views, role = choices["views"]["name"], choices["encoders"]["name"]
    made_for = SEQUENCE_ROLES[role][1] if role in SEQUENCE_ROLES else None
    if made_for != (views if views in SEQUENCES else None):
        raise UserError(
            f"encoders was {role} with views={views}; it takes {f'views={made_for}' if made_for else 'views of pictures'}"
        )
    source, selection = choices["negatives"]["name"], choices["selection"]["name"]
    if source == "dictionary" and role != "masked":
        raise UserError(
            f"negatives was dictionary with encoders={role}; only encoders=masked has a vocabulary"
        )
    if made_for and (source == "bank" or selection in ("cave", "neighbours")):
        what = "negatives=bank" if source == "bank" else f"selection={selection}"
        raise UserError(
            f"{what} knows one embedding of each instance, but encoders={role} has many; "
            "use negatives=in-batch with selection=everyone, ring, ball or group"
        )
    if made_for and choices["negatives"].get("views") == "both":
        raise UserError(
            f"negatives.views was both with encoders={role}, which has one view of keys; use negatives.views=one"
        )
    if (
        selection == "group"
        and choices["selection"]["by"] == "self"
        and choices["encoders"].get("others") != "times"
    ):
        raise UserError(
            "selection.by was self, but nothing is told from its own recording here, so nobody would be left to select; use it "
            "with encoders=predictive encoders.others=times"
        )
    if role == "masked" and selection == "group":
        raise UserError(
            "selection was group with encoders=masked, whose negatives are symbols and have no group"
        )
