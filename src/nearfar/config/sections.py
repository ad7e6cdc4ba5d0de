"""Sections: a part as the name and settings that YAML holds, checked against the part's constructor.

A section is a mapping such as `{name: ring, lower: 0.5}`. That of the encoders also holds the settings of
the head (`HeadConfig`), that of the views the number of views and how they are paired.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from nearfar.config.schema import check_settings, settable, unknown
from nearfar.core.abstract import AbstractEncoders
from nearfar.core.method import Method
from nearfar.core.schedules import Learnt, Schedule
from nearfar.errors import UserError, not_one_of
from nearfar.modalities import MODALITIES
from nearfar.parts import bounds, critics, encoders, negatives, priors, selections
from nearfar.parts.encoders import HeadConfig
from nearfar.parts.encoders.heads import planned_head
from nearfar.parts.joined import JOINED_BY

PartSettings = Mapping[str, Any]
Sections = Mapping[str, PartSettings]

# the concrete parts by choice and name; views are those of the modalities
PARTS_BY_CHOICE: dict[str, Mapping[str, Any]] = {
    "encoders": encoders.PARTS,
    "critic": critics.PARTS,
    "negatives": negatives.PARTS,
    "selection": selections.PARTS,
    "bound": bounds.PARTS,
    "prior": priors.PARTS,
}
# settings of the views that stay when another pipeline is named
ALIASES = {"temperature": "critic.temperature"}  # names the contract keeps at the top
PAIRING_KEYS = ("count", "symmetric", "aligned", "colours", "crops")


def sections_of(method: Method) -> dict[str, dict[str, Any]]:
    """A method as settings: for each choice the name of its part and that part's settings."""
    return {choice: section_of(choice, part) for choice, part in method.parts().items()}


def section_of(choice: str, part: Any) -> dict[str, Any]:
    """A part as settings: its name, and the settings it was made with."""
    if part is None:
        return {"name": "none"}
    if choice == "views":
        kinds = {name: kind for m in MODALITIES.values() for name, kind in m.views.kinds.items()}
        return {"name": _name_of(part, kinds), **part.section()}
    members = part.parts if isinstance(part, (bounds.Sum, selections.Chain)) else (part,)
    settings: dict[str, Any] = {}
    for member in members:  # of a setting that several have, the first counts
        head = head_config(member)
        settings = {**member.settings, **({} if head is None else asdict(head)), **settings}
    return {
        "name": JOINED_BY.join(_name_of(member, PARTS_BY_CHOICE[choice]) for member in members),
        **settings,
    }


@dataclass(frozen=True)
class EncoderOrigin:
    """The settings that encoders were built from, and their structure then."""

    backbone: str
    head: HeadConfig | None  # None: encoders with their own network have none
    structure: str


def structure_of(encoders: AbstractEncoders) -> str:
    """Layers of encoders, and names, shapes and types of their tensors, as text."""
    assert isinstance(encoders, nn.Module)
    shapes = [f"{name} {tuple(t.shape)} {t.dtype}" for name, t in encoders.state_dict().items()]
    return "\n".join([repr(encoders), *shapes])


def built_from(encoders: AbstractEncoders) -> EncoderOrigin | None:
    """What encoders were built from, if settings described them and their layers are still those."""
    origin = encoders.origin
    return origin if origin is not None and origin.structure == structure_of(encoders) else None


def head_config(part: Any) -> HeadConfig | None:
    """The head of encoders that settings describe, whether their networks are made or not."""
    origin = built_from(part) if isinstance(part, AbstractEncoders) else None
    return planned_head(part) if origin is None else origin.head


def _name_of(part: Any, kinds: Mapping[str, Any]) -> str:
    return next(name for name, kind in kinds.items() if kind is type(part))


def head_of(section: PartSettings) -> HeadConfig:
    """Head and predictor, as the section of the encoders describes them."""
    return HeadConfig(**{key: section[key] for key in settable(HeadConfig) if key in section})


def make_part(choice: str, section: PartSettings) -> Any:
    """The part that a checked section describes, before it meets any data."""
    kind = PARTS_BY_CHOICE[choice][section["name"]]
    settings = {key: section[key] for key in settable(kind)}
    if choice == "encoders" and kind.built_in_backbone is None:
        return kind(head_of(section), **settings)
    return kind(**settings)


# ---------------------------------------------------------------------------------------------- checking


def check_section(choice: str, section: PartSettings) -> dict[str, Any]:
    """A section whose name exists, with the settings of its part converted and completed."""
    parts, name = PARTS_BY_CHOICE[choice], section.get("name")
    if not isinstance(name, str) or name not in parts:
        raise not_one_of(choice, name, parts)
    settings = {key: value for key, value in section.items() if key != "name"}
    heads = settable(HeadConfig) if choice == "encoders" else {}
    check_owners(choice, name, [key for key in settings if key not in heads], parts)
    if choice != "encoders" or parts[name].built_in_backbone:
        return {"name": name, **check_settings(parts[name], settings, choice)}
    head = {key: value for key, value in settings.items() if key in heads}
    role = {key: value for key, value in settings.items() if key not in heads}
    for key in role:
        if key not in settable(parts[name]):
            raise unknown(f"{choice}.{key}", (f"{choice}.{k}" for k in {**settable(parts[name]), **heads}))
    return {
        "name": name,
        **check_settings(parts[name], role, choice),
        **check_settings(HeadConfig, head, choice),
    }


def check_owners(
    choice: str, name: str, keys: Iterable[str], parts: Mapping[str, Callable[..., Any]]
) -> None:
    """Refuses a setting that other parts of the choice have and this one has not, and names those parts."""
    for key in keys:
        owners = [owner for owner, part in parts.items() if key in settable(part)]
        if owners and not {*name.split(JOINED_BY)} & {*owners}:
            raise UserError(
                f"{choice}.{key} is a setting of {', '.join(owners)}, not of {choice}={name}; leave it out, "
                "or choose one of these"
            )


# --------------------------------------------------------------------------------------------- showing

_HIDDEN_KEYS = ("name", "object", "modality", "tensors")  # of sections that describe a caller's object


def describe(sections: Sections) -> dict[str, str]:
    """The sections as one line each: `ring(lower=0.5, upper=0.99)`."""
    return {choice: _line(section) for choice, section in sections.items()}


def _line(section: PartSettings) -> str:
    settings = ", ".join(f"{key}={_text(value)}" for key, value in section.items() if key not in _HIDDEN_KEYS)
    return f"{section['name']}({settings})" if settings else str(section["name"])


def _text(value: Any) -> str:
    return value.written() if isinstance(value, (Schedule, Learnt)) else str(value)
