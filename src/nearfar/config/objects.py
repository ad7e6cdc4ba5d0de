"""Objects in place of names: `bound=MultiLabelCPC(0.1)`, `backbone=my_module`, a whole `Method`.

An object that settings can say completely becomes those settings, so that anyone can go on with the run. Any other is written
down as a description, its class, its plain attributes and the shapes of its tensors, and has to be given again to whoever
rebuilds the method. The description guards that: what differs is told, key by key.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearfar.config.building import ROOMS
from nearfar.config.schema import plain, settable
from nearfar.core.adapters import ADAPTERS, unwrapped
from nearfar.core.method import Method
from nearfar.core.schedules import Schedule
from nearfar.errors import UserError
from nearfar.modalities import Modality
from nearfar.modalities.image.views import OPERATIONS, PIPELINES, Augment
from nearfar.parts.encoders import parameters_of

OWN = "own"  # in place of a recipe's name: a Method that somebody made
METHOD, BACKBONE, VIEWS = "method", "backbone", "views"
TAKEN = (METHOD, BACKBONE, VIEWS, *ROOMS)  # what may be given as an object
DOES_NOTHING = PIPELINES["none"][0]
Choice = dict[str, Any]
Objects = Mapping[str, Any]


@dataclass(frozen=True)
class Given:
    """What a caller gave: settings, layer by layer, and beside them the objects that settings cannot say."""

    recipe: str
    layers: tuple[Mapping[str, Any], ...]
    objects: Objects


def given(recipe: Any, *layers: Mapping[str, Any]) -> Given:
    """Objects among the settings taken out, or turned into settings where those say all of them."""
    objects: dict[str, Any] = {}
    said = tuple(_said(layer, objects) for layer in layers)
    if isinstance(recipe, str):
        if BACKBONE in objects and "encoders" in objects:
            raise UserError(
                "backbone was given beside encoders, which bring their own network; give one of them"
            )
        return Given(recipe, said, objects)
    if not isinstance(recipe, Method):
        raise UserError(
            f"the method was of type {type(recipe).__name__}; expected the name of a recipe or a nearfar.Method"
        )
    for key in (*ROOMS, BACKBONE):
        if any(key in layer for layer in layers):
            raise UserError(f"{key} was given beside a Method, which has its own; change it there")
    parts = {room: getattr(recipe, room) for room in ROOMS}
    return Given(OWN, said, {**objects, **parts, METHOD: recipe})


def _said(layer: Mapping[str, Any], objects: dict[str, Any]) -> dict[str, Any]:
    """A layer's settings; its objects go where they are collected."""
    said: dict[str, Any] = {}
    for key, value in layer.items():
        if key not in TAKEN or isinstance(value, (str, Mapping)) or value is None:
            said[key] = value
        elif isinstance(value, type):
            raise UserError(
                f"{key} was the class {value.__name__}; expected an object of it: {value.__name__}(…)"
            )
        elif key == VIEWS and (augments := _augments(value)) is not None:
            said[key] = augments
        elif key in ROOMS and (whole := as_settings(key, value)) is not None:
            said[key] = whole
        else:
            _check_object(key, value)
            objects[key] = ADAPTERS[key](value) if key in ADAPTERS else value
    return said


def _check_object(key: str, value: Any) -> None:
    if key == BACKBONE and not isinstance(value, nn.Module):
        raise UserError(
            f"backbone was {value!r}; expected a name or an nn.Module from a batch of images to (n, d)"
        )
    if key == VIEWS and not callable(value):
        raise UserError(
            f"views was {value!r}; expected a name, settings, one nearfar.Augment for each view, or a function of (loaded "
            "instances, seed, epoch, index) that gives a tensor for each view"
        )


def as_settings(room: str, part: Any) -> Choice | None:
    """A part of ours as its name and settings, if they say all there is to it; else None."""
    names = [name for name, make in ROOMS[room].items() if make is type(part)]
    if not names:
        return None
    keys = settable(type(part))
    if any(not hasattr(part, key) for key in keys):
        return None
    if is_dataclass(part):
        if any(field.init and field.name not in keys for field in fields(part)):
            return None
    elif not isinstance(part, nn.Module) or not _nothing_inside(part):
        return None
    return {"name": names[0], **{key: getattr(part, key) for key in keys}}


def _nothing_inside(module: nn.Module) -> bool:
    """No weights, and buffers that hold nothing yet: all of a buffer is one value."""
    if next(module.parameters(), None) is not None:
        return False
    return all(bool((held == held.flatten()[:1]).all()) for held in module.buffers() if held.numel())


def _augments(value: Any) -> Choice | None:
    """One `Augment`, or one for each of two views, as what they change of a pipeline that does nothing."""
    both = (value, value) if isinstance(value, Augment) else value
    if not isinstance(both, Sequence) or not both or not all(isinstance(each, Augment) for each in both):
        return None
    if len(both) > 2:
        raise UserError(
            f"views was {len(both)} Augments; expected one or two: beyond the second, views are more draws of it, as many as "
            "views.count says"
        )
    first, second = (_changes(augment) for augment in (both[0], both[-1]))
    changes = first if first == second else {"first": first, "second": second}
    count = {} if isinstance(value, Augment) else {"count": len(both)}
    return {"name": "none", **count, **changes}


def _changes(augment: Augment) -> Choice:
    nothing, own = asdict(DOES_NOTHING), asdict(replace(augment, also=()))
    for each in augment.also:
        if OPERATIONS.get(each.name) is not type(each):
            raise UserError(
                f"views has the operation {each.name!r}, which settings cannot say; name it in nearfar.modalities.image.views.OPERATIONS"
            )
    operations = {each.name: asdict(each) for each in augment.also}  # type: ignore[call-overload]
    return {key: held for key, held in own.items() if held != nothing[key]} | operations


# ------------------------------------------------------------------------------------------- descriptions


def described(part: Any) -> Choice:
    """An object in numbers and words: what config.yaml holds of it, and what it is recognised by."""
    part = unwrapped(part)
    if part is None:
        return {"name": "none", "object": "none"}
    names = [name for parts in ROOMS.values() for name, make in parts.items() if make is type(part)]
    said: Choice = {"name": names[0] if names else _name(part), "object": _name(part)}
    for key, value in sorted(_attributes(part).items()):
        if key not in said:
            said[key] = _plain(value)
    if isinstance(part, nn.Module) and (shapes := _shapes(part)):
        said["tensors"] = shapes
    return said


def own_backbone(module: nn.Module) -> str:
    """A network of somebody's own, in a line."""
    inside = f", shapes {_shapes(module)}" if _shapes(module) else ""
    return f"{OWN} {_name(module)} ({parameters_of(module):,} weights{inside})"


def is_own_backbone(named: Any) -> bool:
    return isinstance(named, str) and named.startswith(f"{OWN} ")


def own_views(views: Any, modality: Modality, symmetric: bool, count: int | None = None) -> Choice:
    """The views' section for an object: what is the method's of it, and the description."""
    many = count or getattr(views, "count", None) or len(getattr(views, "pipelines", ())) or 2
    usual = modality.views.check({"name": modality.views.default, "count": many, "symmetric": symmetric})
    together = {key: value for key, value in usual.items() if key not in ("name",)}
    said = {key: value for key, value in described(views).items() if key not in together}
    return {**said, **together, "modality": modality.name}


def _name(part: Any) -> str:
    return getattr(part, "__qualname__", None) or type(part).__qualname__


def _attributes(part: Any) -> dict[str, Any]:
    if is_dataclass(part) and not isinstance(part, type):
        return {field.name: getattr(part, field.name) for field in fields(part)}
    own = getattr(part, "__dict__", {})
    return {
        key: value
        for key, value in own.items()
        # methods and partial functions are how parts know one another once they are put together
        if not key.startswith("_") and key != "training" and not isinstance(value, (MethodType, partial))
    }


DEPTH = 2  # of what is described inside of what


def _plain(value: Any, depth: int = DEPTH) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Schedule):
        return value if depth == DEPTH else value.written()  # the loop logs those it finds in the settings
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, Tensor)):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, (list, tuple)) and depth:
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, Mapping) and depth:
        return {str(key): _plain(item, depth - 1) for key, item in value.items()}
    if inspect.isroutine(value) or isinstance(value, type) or not depth:
        return _name(value)
    inside = ", ".join(f"{key}={_plain(held, 0)}" for key, held in sorted(_attributes(value).items()))
    return f"{_name(value)}({inside})"


def _shapes(module: nn.Module) -> str:
    """A short digest over the names, shapes and types of all its tensors; none has no digest."""
    held = module.state_dict()
    if not held:
        return ""
    rows = [f"{name} {_shape(tensor)} {tensor.dtype}" for name, tensor in held.items()]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]


def _shape(tensor: Tensor) -> str:
    try:
        return str(tuple(tensor.shape))
    except RuntimeError:  # of a lazy module, which has not seen its input yet
        return "not known yet"


# ------------------------------------------------------------------------------------- what is missing


def wanted(settings: Any) -> list[str]:
    """What has to be given as an object to rebuild the method of these settings: `["method"]`, `["backbone", "bound"]`, …"""
    if settings.recipe == OWN:
        return [METHOD, *([VIEWS] if "object" in settings.views else [])]
    rooms = [room for room in (*ROOMS, VIEWS) if "object" in getattr(settings, room)]
    return [*([BACKBONE] if is_own_backbone(settings.backbone) else []), *rooms]


def named_object(settings: Any, key: str) -> str:
    """What was given, in words."""
    if key == METHOD:
        return "the Method"
    if key == BACKBONE:
        return str(settings.backbone).removeprefix(f"{OWN} ")
    return str(getattr(settings, key)["object"])


def check_given(settings: Any, objects: Objects, where: str, how: Callable[[str], str]) -> None:
    """Stops where an object is missing: one sentence that says what to give, and how."""
    missing = [key for key in wanted(settings) if key not in objects]
    if missing:
        what = ", ".join(f"{key} ({named_object(settings, key)})" for key in missing)
        arguments = ", ".join(f"{key}=…" for key in missing)
        raise UserError(
            f"{where} was made with objects of Python, which no file holds: {what}; give them again: {how(arguments)}"
        )


def differences(settings: Any, objects: Objects) -> str:
    """How the objects given differ from those that settings describe, as `key: before, now after`."""
    found = []
    for key, part in objects.items():
        if key == METHOD:
            continue
        if key == BACKBONE:
            pairs = {BACKBONE: (settings.backbone, own_backbone(part))}
        else:
            before = plain(getattr(settings, key))
            now = {
                name: plain(value)
                for name, value in described(part).items()
                if key != VIEWS or name in before
            }
            pairs = {f"{key}.{name}": (before.get(name), value) for name, value in now.items()}
        found += [f"{name}: {was}, now {now}" for name, (was, now) in pairs.items() if was != now]
    return "; ".join(found)
