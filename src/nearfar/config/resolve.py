"""From a recipe's name and what was asked for to complete, checked settings: `resolve` merges, `check` refuses in one sentence."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from torch import nn

from nearfar.config.build import NONE, try_parts
from nearfar.config.choices import CHOICES, ROOMS, TOGETHER, check_choice, check_together, check_whose
from nearfar.config.objects import (
    BACKBONE,
    METHOD,
    OWN,
    VIEWS,
    Objects,
    described,
    is_own_backbone,
    own_backbone,
    own_views,
)
from nearfar.config.presets import preset_for
from nearfar.config.recipes import RECIPES
from nearfar.config.schema import check_settings, numbers, unknown
from nearfar.config.settings import LONGEST, Settings, all_keys, put
from nearfar.core.method import Method
from nearfar.core.optimisers import OPTIMISERS, build
from nearfar.errors import UserError
from nearfar.modalities import MODALITIES, Modality, modality_of_views


def resolve(
    recipe: str,
    data: str,
    *layers: Mapping[str, Any],
    modality: Modality | None = None,
    objects: Objects = NONE,
) -> Settings:
    """The settings of `recipe`, changed by each layer in turn. Where the data are of another `modality` than the recipe was
    written for, and its encoders take any views, it gets that modality's. `objects` are parts that somebody made, or a whole
    method (see `recipes.given`): settings describe them."""
    if METHOD in objects:
        merged = {"recipe": OWN, "data": data, **_own_method(objects[METHOD], modality)}
    elif recipe not in RECIPES:
        raise unknown(recipe, RECIPES, "recipes")
    else:
        layers = _with_preset(recipe, layers)
        merged = {"recipe": recipe, "data": data, **RECIPES[recipe].settings(_epochs(layers))}
    if modality is not None:
        merged["views"] = _views_for(modality, merged, objects)
    for layer in layers:
        for key in ("recipe", "data"):
            if key in layer:
                raise UserError(
                    f"{key} was given as a setting too ({layer[key]!r}); name it once, as RECIPE and DATA are"
                )
        flat: dict[str, Any] = {}
        for key, value in layer.items():
            put(flat, key, value)
        if flat.get("optimizer", merged.get("optimizer")) != merged.get("optimizer"):
            merged.pop(
                "optimizer_options", None
            )  # as naming another part drops the settings of the one before
        for key, value in flat.items():
            if key == "optimizer_options" and isinstance(value, Mapping):
                value = {**merged.get(key, {}), **value}
            merged[key] = _changed(key, merged[key], value) if key in CHOICES else value
    for key in objects:
        if key in ROOMS:
            merged[key] = described(objects[key])
    if BACKBONE in objects:
        merged[BACKBONE] = own_backbone(objects[BACKBONE])
    if VIEWS in objects:
        of = modality or modality_of_views(merged[VIEWS])
        merged[VIEWS] = own_views(objects[VIEWS], of, merged[VIEWS].get("symmetric", True))
    return check(merged, objects)


def _with_preset(recipe: str, layers: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    """The layers, under them what the preset that one of them names has for the recipe."""
    named = [layer["preset"] for layer in layers if layer.get("preset") not in (None, "none")]
    return (preset_for(named[-1], recipe), *layers) if named else layers


def _own_method(method: Method, modality: Modality | None) -> dict[str, Any]:
    """Settings for a method that somebody made: those of its own, and views that it can take."""
    known = modality or next(iter(MODALITIES.values()))
    takes = getattr(method.encoders, "takes", ())
    views: dict[str, Any] = {"name": takes[0] if takes else known.default_views}
    if known.many_views and not takes:
        views |= {"symmetric": method.symmetric}
    return {
        **{room: described(getattr(method, room)) for room in ROOMS},
        "views": views,
        "chunk": method.chunk,
    }


def _views_for(modality: Modality, merged: Mapping[str, Any], objects: Objects) -> dict[str, Any]:
    views = merged["views"]
    role = objects.get("encoders") or ROOMS["encoders"][merged["encoders"]["name"]]
    made_for = getattr(role, "takes", ()) or getattr(role, "networks", ())
    if views["name"] in modality.pipelines or made_for or not modality.many_views:
        return dict(views)
    return {
        "name": modality.default_views,
        "count": views.get("count", 2),
        "symmetric": views.get("symmetric", True),
    }


def _epochs(layers: Iterable[Mapping[str, Any]]) -> int:
    """How long the run will be, for schedules that last a share of it; what is no number is told of later."""
    asked = [numbers(layer["epochs"]) for layer in layers if "epochs" in layer]
    sound = asked and isinstance(asked[-1], int) and 1 <= asked[-1] <= LONGEST
    return asked[-1] if sound else Settings.model_fields["epochs"].default


def _changed(room: str, choice: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    if "name" in change and change["name"] != choice["name"]:
        # how many views there are and how they go together is the method's, not the pipeline's
        kept = {k: v for k, v in choice.items() if room == "views" and k in TOGETHER}
        return {**kept, **change}
    return {**choice, **change}


def check(merged: Mapping[str, Any], objects: Objects = NONE, *, stored: bool = False) -> Settings:
    """Complete settings, or one sentence about the first thing that is wrong. Where `stored` settings describe an object that
    was not given again, what is left cannot be tried together."""
    known = dict(merged)
    own = {room for room in CHOICES if room in objects or (stored and "object" in known[room])}
    for key in known:
        if key not in Settings.model_fields:
            raise unknown(str(key), all_keys())
    known["optimizer_options"] = check_optimizer(known)
    for room in ROOMS:
        known[room] = known[room] if room in own else check_choice(room, known[room])
    modality = modality_of_views(known["views"])
    if VIEWS not in own:
        known["views"] = modality.check_views(known["views"])
    together = all(room in objects for room in own)
    if together:  # first: that encoders are for other views says more than that the backbone is not theirs
        check_together(known, objects)
    if "encoders" not in own:
        check_network(
            known, modality, own=BACKBONE in objects or (stored and is_own_backbone(known[BACKBONE]))
        )
    elif "encoders" in objects:
        known[BACKBONE] = own_backbone(objects["encoders"].backbone())
    if together:
        try_parts(known, objects)
    for key, field in Settings.model_fields.items():
        if field.default is None and known.get(key) == "none":
            known[key] = None
    try:
        return Settings(**known)
    except ValidationError as problem:
        first = problem.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{key} was {first['input']!r}; {_expected(first['msg'])}") from None


_SAID = {  # the validator's words, and those of every other sentence here
    "a valid ": "a ",
    "a integer": "an integer",
    "greater than or equal to ": "a number of at least ",
    "less than or equal to ": "a number of at most ",
    "greater than ": "a number above ",
    "less than ": "a number below ",
}


def _expected(message: str) -> str:
    rest = message.removeprefix("Input should be ")
    if rest == message:
        return message[0].lower() + message[1:]
    for theirs, ours in _SAID.items():
        rest = rest.replace(theirs, ours)
    return f"expected {rest}"


def check_optimizer(known: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the chosen optimiser that differ from its own, tried on a parameter of no size."""
    name, options = known.get("optimizer", "adamw"), known.get("optimizer_options") or {}
    if not isinstance(name, str) or name not in OPTIMISERS or not options:
        return {}  # a wrong name is answered with the other settings
    if not isinstance(options, Mapping):
        raise UserError(f"optimizer_options was {options!r}; expected a mapping such as {{nesterov: true}}")
    check_whose("optimizer", name, options, OPTIMISERS)
    complete = check_settings(OPTIMISERS[name], options, "optimizer")
    checked = {key: complete[key] for key in options}
    momentum = None if known.get("momentum") == "none" else known.get("momentum")
    if momentum is None or isinstance(momentum, (int, float)):
        build(name, nn.Linear(1, 1), lr=1.0, weight_decay=0.0, momentum=momentum, options=checked)
    return checked


def check_network(known: dict[str, Any], modality: Modality, own: bool = False) -> None:
    """A role may bring its own network or need one of some; the others are the modality's, or somebody's `own`. Only some data
    have an image size."""
    if known.get("image_size") not in (None, "none") and not modality.sized:
        raise UserError(f"image_size was {known['image_size']!r}; {modality.holds} have no image size")
    role = ROOMS["encoders"][known["encoders"]["name"]]
    where = f"encoders={known['encoders']['name']}"
    brought = getattr(role, "own_network", None)
    named = known.setdefault("backbone", brought or modality.default_network)
    if not isinstance(named, str):
        raise UserError(f"backbone was {named!r}; expected a string, or from Python an nn.Module")
    if brought is not None and named != brought:
        raise UserError(f"backbone was {named!r}; with {where} it is {brought}")
    if brought is None and not own:
        elsewhere = [other.holds for other in MODALITIES.values() if named in other.networks]
        if elsewhere and modality.holds not in elsewhere:
            raise UserError(
                f"backbone was {named!r}, which is for {elsewhere[0]}; expected for {modality.holds} "
                f"{', '.join(modality.networks)}"
            )
        modality.check_network(named)
    needed = getattr(role, "networks", None)
    if needed is not None and named not in needed:
        raise UserError(
            f"backbone was {named!r} with {where}, which needs a map from inside it; expected {', '.join(needed)}"
        )
