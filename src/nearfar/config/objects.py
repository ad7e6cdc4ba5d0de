"""Objects in place of names: `bound=MultiLabelCPC(0.1)`, `backbone=my_module`, `views=my_views`, a `Method`.

An object that settings describe completely becomes those settings, so the run can be resumed and opened
without it. Any other is written to config.yaml as a description (its class, plain attributes and the shapes
of its tensors) and must be passed again to resume or open the run. The description is compared with the
object that is passed then.
"""

import hashlib
import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearfar.config.schema import plain, settable
from nearfar.config.sections import ALIASES, PARTS_BY_CHOICE, built_from, section_of
from nearfar.core.abstract import AbstractEncoders, AbstractViews, AbstractViewSettings
from nearfar.core.adapters import adapt, unwrapped
from nearfar.core.learnt import LearntNumber
from nearfar.core.method import Method
from nearfar.core.schedules import Schedule
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Modality
from nearfar.modalities.image.views import OPERATIONS, PIPELINES, Augment
from nearfar.modalities.image.views.functions import PictureFunctions, as_picture_functions
from nearfar.parts.encoders import parameters_of
from nearfar.parts.encoders.heads import planned_head

CUSTOM = "own"  # the recipe's name in settings of a method that the caller made
METHOD, BACKBONE, VIEWS = "method", "backbone", "views"
OBJECT_KEYS = (METHOD, BACKBONE, VIEWS, *PARTS_BY_CHOICE)
UNCHANGED = PIPELINES["none"][0]
Objects = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """A caller's arguments: a recipe's name, or a method whose networks are still to be made; settings,
    layer by layer; and the objects that settings cannot describe."""

    recipe: str | Method
    layers: tuple[Mapping[str, Any], ...]
    objects: Objects


def split_objects(recipe: Any, *layers: Mapping[str, Any]) -> Request:
    """Separates objects from settings. Objects that settings describe completely become settings."""
    objects: dict[str, Any] = {}
    settings = tuple(_settings_of_layer(layer, objects) for layer in layers)
    _check_unused(layers, objects)
    if isinstance(recipe, str):
        if BACKBONE in objects and "encoders" in objects:
            raise UserError(
                "backbone was given together with encoders, which have their own network; pass one of them"
            )
        return Request(recipe, settings, objects)
    if not isinstance(recipe, Method):
        raise UserError(
            f"the method was of type {type(recipe).__name__}; expected the name of a recipe or a "
            "nearfar.Method"
        )
    planned = is_planned(recipe.encoders)
    for key in PARTS_BY_CHOICE if planned else (*PARTS_BY_CHOICE, BACKBONE):
        if any(key in layer for layer in layers):
            raise UserError(f"{key} was given together with a Method, which has its own; change it there")
    if isinstance(recipe.views, AbstractViews):
        objects.setdefault(VIEWS, recipe.views)
    if not planned:
        _check_unused(layers, PARTS_BY_CHOICE)
        parts = {choice: getattr(recipe, choice) for choice in PARTS_BY_CHOICE}
        if built_from(recipe.encoders) is not None:  # settings describe what they can, but not the weights
            parts = {choice: part for choice, part in parts.items() if as_section(choice, part) is None}
        return Request(CUSTOM, settings, {**objects, **parts, METHOD: recipe})
    _settings_of_layer({choice: getattr(recipe, choice) for choice in PARTS_BY_CHOICE}, objects)
    return Request(recipe, settings, objects)


def _check_unused(layers: Sequence[Mapping[str, Any]], owned: Container[str]) -> None:
    """Stops at a setting of a part that is an object, where it would change nothing."""
    for key in (key for layer in layers for key in layer):
        choice, _, setting = ALIASES.get(key, key).partition(".")
        if setting and choice in owned and (choice, setting) not in ((VIEWS, "count"), (VIEWS, "symmetric")):
            raise UserError(f"{key} was given together with an object for {choice}; set it in the object")


def is_planned(encoders: AbstractEncoders) -> bool:
    """Whether encoders were made from settings alone: their networks are made in `meet`."""
    if encoders.built_in_backbone is None:
        return planned_head(encoders) is not None
    return isinstance(encoders, nn.Module) and next(encoders.parameters(), None) is None


def _settings_of_layer(layer: Mapping[str, Any], objects: dict[str, Any]) -> dict[str, Any]:
    """A layer's settings; its objects are added to `objects`."""
    settings: dict[str, Any] = {}
    for key, value in layer.items():
        if key not in OBJECT_KEYS or isinstance(value, (str, Mapping)) or value is None:
            settings[key] = value
        elif isinstance(value, type):
            raise UserError(
                f"{key} was the class {value.__name__}; expected an object of it: {value.__name__}(…)"
            )
        elif (section := as_section(key, value)) is not None:
            settings[key] = section
        else:
            _check_object(key, value)
            is_part = key in PARTS_BY_CHOICE
            objects[key] = views_object(value) if key == VIEWS else adapt(key, value) if is_part else value
    return settings


def _check_object(key: str, value: Any) -> None:
    if key == BACKBONE and not isinstance(value, nn.Module):
        raise UserError(
            f"backbone was {value!r}; expected a name or an nn.Module from a batch of images to (n, d)"
        )
    if key == VIEWS and not callable(value) and as_picture_functions(value) is None:
        raise UserError(
            f"views was {value!r}; expected a name, settings, nearfar.Augment, a function from a picture to a "
            "tensor, or one of each for each view (docs/augmentation.md)"
        )


def views_object(views: Any) -> Any:
    """A caller's views: functions of (loaded instances, seed, epoch, index) as they are, objects with
    `transform` as part of the method, and functions of one picture as `PictureFunctions`."""
    if callable(views) and (_declared(views, "count") is not None or _required_arguments(views) >= 4):
        return adapt(VIEWS, views) if callable(_declared(views, "transform")) else views
    return as_picture_functions(views)


def _declared(views: Any, name: str) -> Any:
    """What an object declares about the views that it makes; None: nothing."""
    return getattr(views, name, None)


def _required_arguments(function: Any) -> int:
    """The number of positional arguments that a call needs; 1 where that is unknown."""
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        return 1
    return sum(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters
    )


def as_section(choice: str, part: Any) -> dict[str, Any] | None:
    """A part as its name and settings, if they describe it completely; else None."""
    if part is None:
        return {"name": "none"}
    if choice == VIEWS:
        return _as_views_section(part)
    if not any(kind is type(part) for kind in PARTS_BY_CHOICE.get(choice, {}).values()):
        return None
    if isinstance(part, AbstractEncoders):
        return section_of(choice, part) if is_planned(part) or built_from(part) is not None else None
    if is_dataclass(part):
        complete = all(field.name in settable(type(part)) for field in fields(part) if field.init)
    else:
        complete = isinstance(part, nn.Module) and _is_untrained(part)
    return section_of(choice, part) if complete else None


def _as_views_section(views: Any) -> dict[str, Any] | None:
    if not isinstance(views, AbstractViewSettings):
        return _augments(views)
    kinds = [kind for modality in MODALITIES.values() for kind in modality.views.kinds.values()]
    return section_of(VIEWS, views) if type(views) in kinds else None


def _is_untrained(module: nn.Module) -> bool:
    """No weights but learnt numbers at their start, and buffers of one repeated value."""
    learnt = {id(child.offset) for child in module.modules() if isinstance(child, LearntNumber)}
    if any(id(weight) not in learnt or weight.item() != 0 for weight in module.parameters()):
        return False
    return all(bool((buffer == buffer.flatten()[:1]).all()) for buffer in module.buffers() if buffer.numel())


def _augments(value: Any) -> dict[str, Any] | None:
    """One `Augment`, or one for each of two views, as changes of a pipeline that does nothing."""
    pair = (value, value) if isinstance(value, Augment) else value
    if not isinstance(pair, Sequence) or not pair or not all(isinstance(item, Augment) for item in pair):
        return None
    if len(pair) > 2:
        raise UserError(
            f"views was {len(pair)} Augments; expected one or two: beyond the second, views are more draws "
            "of it, as many as views.count says"
        )
    first, second = (_changes(augment) for augment in (pair[0], pair[-1]))
    changes = first if first == second else {"first": first, "second": second}
    count = {} if isinstance(value, Augment) else {"count": len(pair)}
    return {"name": "none", **count, **changes}


def _changes(augment: Augment) -> dict[str, Any]:
    """The settings in which an `Augment` differs from one that does nothing."""
    unchanged, values = asdict(UNCHANGED), asdict(replace(augment, also=()))
    for operation in augment.also:
        if OPERATIONS.get(operation.name) is not type(operation):
            raise UserError(
                f"views has the unknown operation {operation.name!r}; add it to "
                "nearfar.modalities.image.views.OPERATIONS"
            )
    operations = {operation.name: asdict(operation) for operation in augment.also}  # type: ignore[call-overload]
    return {key: value for key, value in values.items() if value != unchanged[key]} | operations


# ------------------------------------------------------------------------------------------- descriptions


def describe_object(part: Any) -> dict[str, Any]:
    """An object as plain values: what config.yaml holds of it and compares it by."""
    part = unwrapped(part)
    if part is None:
        return {"name": "none", "object": "none"}
    names = [name for parts in PARTS_BY_CHOICE.values() for name, kind in parts.items() if kind is type(part)]
    section: dict[str, Any] = {"name": names[0] if names else _class_name(part), "object": _class_name(part)}
    for key, value in sorted(_attributes(part).items()):
        if key not in section:
            section[key] = _describe_value(value)
    if isinstance(part, nn.Module) and (shapes := _shape_digest(part)):
        section["tensors"] = shapes
    return section


def describe_backbone(module: nn.Module) -> str:
    """A network of the caller in one line."""
    digest = _shape_digest(module)
    shapes = f", shapes {digest}" if digest else ""
    return f"{CUSTOM} {_class_name(module)} ({parameters_of(module):,} weights{shapes})"


def is_own_backbone(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(f"{CUSTOM} ")


def describe_views(
    views: Any, modality: Modality, section: dict[str, Any]
) -> tuple[dict[str, Any], AbstractViewSettings]:
    """The views' section for an object: number and pairing of the views, and the description; and the
    default views with that number and pairing. A function of one picture makes as many views as the recipe's
    section has."""
    usual = section.get("count", 2) if isinstance(views, PictureFunctions) else 2
    paired = {"count": _declared(views, "count") or usual, "symmetric": section.get("symmetric", True)}
    default = modality.views.of({"name": modality.views.default, **paired})
    shared = default.section()
    description = {key: value for key, value in describe_object(views).items() if key not in shared}
    return {**description, **shared, "modality": modality.name}, default


def _class_name(part: Any) -> str:
    has_own_name = isinstance(part, type) or inspect.isroutine(part)
    return str(part.__qualname__ if has_own_name else type(part).__qualname__)


def _attributes(part: Any) -> dict[str, Any]:
    if is_dataclass(part) and not isinstance(part, type):
        return {field.name: getattr(part, field.name) for field in fields(part)}
    try:
        attributes = vars(part)
    except TypeError:  # it has slots, or is a number
        return {}
    return {
        key: value
        for key, value in attributes.items()
        # bound methods and partial functions connect the parts of a method
        if not key.startswith("_") and key != "training" and not isinstance(value, (MethodType, partial))
    }


MAX_DEPTH = 2  # levels of nested objects that are described


def _describe_value(value: Any, depth: int = MAX_DEPTH) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Schedule):
        return value if depth == MAX_DEPTH else value.written()  # the loop logs schedules of the settings
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, Tensor)):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, (list, tuple)) and depth:
        return [_describe_value(item, depth - 1) for item in value]
    if isinstance(value, Mapping) and depth:
        return {str(key): _describe_value(item, depth - 1) for key, item in value.items()}
    if inspect.isroutine(value) or isinstance(value, type) or not depth:
        return _class_name(value)
    attributes = ", ".join(
        f"{key}={_describe_value(item, 0)}" for key, item in sorted(_attributes(value).items())
    )
    return f"{_class_name(value)}({attributes})"


def _shape_digest(module: nn.Module) -> str:
    """A short digest of the names, shapes and types of all tensors; empty where there are none."""
    state = module.state_dict()
    if not state:
        return ""
    rows = [f"{name} {_shape(tensor)} {tensor.dtype}" for name, tensor in state.items()]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]


def _shape(tensor: Tensor) -> str:
    try:
        return str(tuple(tensor.shape))
    except RuntimeError:  # of a lazy module before its first input
        return "not known yet"


# --------------------------------------------------------------------------------- objects of stored runs


def required_objects(settings: Any, network: bool = False) -> list[str]:
    """The objects that must be passed to rebuild the run of these settings: `["method"]`, `["backbone",
    "bound"]`, …; with `network` the method alone, of which views are a part only if they have weights."""
    choices = [choice for choice in PARTS_BY_CHOICE if "object" in getattr(settings, choice)]
    views = [VIEWS] if "tensors" in settings.views or (not network and "object" in settings.views) else []
    if settings.recipe == CUSTOM and len(choices) == len(PARTS_BY_CHOICE):
        return [METHOD, *views]
    return [*([BACKBONE] if is_own_backbone(settings.backbone) else []), *choices, *views]


def _object_name(settings: Any, key: str) -> str:
    if key == METHOD:
        return "the Method"
    if key == BACKBONE:
        return str(settings.backbone).removeprefix(f"{CUSTOM} ")
    return str(getattr(settings, key)["object"])


def require_objects(
    settings: Any, objects: Objects, run: str, call: Callable[[str], str], network: bool = False
) -> None:
    """Raises an error if an object is missing, with what to pass, and how."""
    missing = [key for key in required_objects(settings, network) if key not in objects]
    if missing:
        names = ", ".join(f"{key} ({_object_name(settings, key)})" for key in missing)
        arguments = ", ".join(f"{key}=…" for key in missing)
        raise UserError(f"{run} was created with Python objects: {names}; pass them again: {call(arguments)}")


def object_changes(settings: Any, objects: Objects) -> str:
    """How objects differ from those that settings describe, as `key: before, now after`."""
    changes = []
    for key, part in objects.items():
        if key == METHOD:
            continue
        if key == BACKBONE:
            pairs = {BACKBONE: (settings.backbone, describe_backbone(part))}
        else:
            stored = plain(getattr(settings, key))
            current = {
                name: plain(value)
                for name, value in describe_object(part).items()
                if key != VIEWS or name in stored
            }
            pairs = {f"{key}.{name}": (stored.get(name), value) for name, value in current.items()}
        changes += [f"{name}: {old}, now {new}" for name, (old, new) in pairs.items() if old != new]
    return "; ".join(changes)
