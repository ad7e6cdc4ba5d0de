"""From a recipe's name and the user's settings to complete, checked `Settings`. The words used here are
explained in `nearfar.config`.

    nearfar pretrain moco photos/ --out runs/a epochs=50 negatives.size=8192 encoders.momentum=cosine(0.99,1)

Settings come in layers: defaults, the recipe, a preset, a YAML file, `key=value` words. Each layer changes
those before it. `bound=infonce` is short for `bound: {name: infonce}`; naming another part drops the
settings of the one it replaces. Nothing here imports what a file names: parts come from the lists of
`nearfar.parts`.

`resolve` merges the layers, `complete` adds values that were not known then; both end in `check`, which stops at
the first mistake. Its order decides which of several mistakes a user reads:

1. keys: every setting exists
2. `check_optimizer`: the options of the optimiser, tried on a parameter of no size
3. `check_section`, for each choice but the views: its name exists, its settings have the right types
4. the views: their settings are checked when they are made
5. `check_together` (building.py): parts fit one another. Before 6, because that encoders are for other views
   is a more helpful message than a backbone they cannot use
6. `check_network`: the backbone fits the encoders and the data
7. the parts are made, which checks the values of their settings
8. `checked_settings`: types and limits of all other settings
9. the batch size, which depends on the encoders
10. `exchange`, which depends on how the parts read scores
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearfar.config.building import NO_OBJECTS, check_together
from nearfar.config.fields import CHOICES, FIELDS, KEYS, MAX_EPOCHS
from nearfar.config.objects import (
    BACKBONE,
    CUSTOM,
    METHOD,
    VIEWS,
    Objects,
    as_section,
    describe_backbone,
    describe_object,
    describe_views,
    is_own_backbone,
)
from nearfar.config.presets import preset_for, preset_named
from nearfar.config.reading import load_file, load_word, numbers
from nearfar.config.recipes import RECIPES, Recipe
from nearfar.config.recipes.recipe import method_template
from nearfar.config.schema import check_given, plain, settable, unknown
from nearfar.config.sections import (
    ALIASES,
    PAIRING_KEYS,
    PARTS_BY_CHOICE,
    built_from,
    check_owners,
    check_section,
    make_part,
    section_of,
)
from nearfar.config.settings import TEXTS, Settings, checked_settings
from nearfar.core.abstract import AbstractViewSettings
from nearfar.core.method import Method, check_exchange
from nearfar.core.optimisers import OPTIMISERS, build
from nearfar.errors import UserError, not_one_of
from nearfar.modalities import MODALITIES, Modality, modality_of_views
from nearfar.modalities.image.views.functions import PictureFunctions
from nearfar.parts.encoders import HeadConfig

Layer = Mapping[str, Any]
NO_TEMPLATE: Mapping[str, Any] = {}
SCORING_CHOICES = ("critic", "negatives", "selection", "bound")

# -------------------------------------------------------------------------------------- reading layers


def read_words(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` words as nested settings; values are YAML scalars or lists."""
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"{word!r} is not a setting; write key=value, for instance epochs=50")
        value = load_word(text)
        # a folder may be called 2026, and a column 7
        set_key(settings, key, text if key in TEXTS and isinstance(value, int | float) else value)
    return settings


def read_file(path: Path) -> dict[str, Any]:
    """Settings from a YAML file."""
    return nested(load_file(path))


def nested(layer: Layer) -> dict[str, Any]:
    """A layer with dotted keys and short forms written out."""
    settings: dict[str, Any] = {}
    for key, value in layer.items():
        set_key(settings, key, value)
    return settings


def set_key(settings: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key; text that is a number becomes one. `bound=x` and `bound: {…}` keep the rest."""
    head, _, rest = ALIASES.get(key, key).partition(".")
    value = value if key in TEXTS and isinstance(value, str) else numbers(value)
    if head == "optimizer" and (rest or isinstance(value, Mapping)):
        _put_optimizer(settings, rest, value)
    elif head not in CHOICES:
        if rest:
            raise unknown(key, all_keys())
        settings[head] = value
    else:
        _put_choice(settings.setdefault(head, {}), key, rest, value)


def _put_optimizer(settings: dict[str, Any], option: str, value: Any) -> None:
    options = settings.setdefault("optimizer_options", {})
    if not isinstance(options, dict):
        raise UserError(
            f"optimizer_options was {options!r}; expected a mapping such as {{nesterov: true}}, or "
            "optimizer.nesterov=true alone"
        )
    options.update({option: value} if option else {str(k): v for k, v in value.items()})
    if "name" in options:
        settings["optimizer"] = options.pop("name")


def _put_choice(section: dict[str, Any], key: str, path: str, value: Any) -> None:
    setting, _, inner = path.partition(".")
    if inner:
        mapping = section.setdefault(setting, {})
        if not isinstance(mapping, dict):
            raise unknown(key, all_keys())
        mapping[inner] = value
    elif setting:
        section[setting] = value
    elif isinstance(value, Mapping):
        section.update({str(k): v for k, v in value.items()})
    else:
        section["name"] = value


def all_keys() -> list[str]:
    """Every key there is, for suggestions."""
    parts = (
        f"{choice}.{key}"
        for choice, kinds in PARTS_BY_CHOICE.items()
        for part in kinds.values()
        for key in settable(part)
    )
    options = (f"optimizer.{key}" for builder in OPTIMISERS.values() for key in settable(builder))
    heads = (f"encoders.{key}" for key in settable(HeadConfig))
    return sorted({*KEYS, *ALIASES, *parts, *options, *heads})


# ------------------------------------------------------------------------------------- merging layers


def resolve(
    recipe: str | Method,
    data: str,
    *layers: Layer,
    modality: Modality | None = None,
    objects: Objects = NO_OBJECTS,
) -> Settings:
    """The settings of `recipe`, changed by each layer in turn.

    If the data are of another `modality` than the recipe was written for, and its encoders take any views,
    it gets that modality's views. `recipe` may be a method whose networks are still to be made. `objects`
    are parts, or a complete method, that the caller made (objects.py): settings describe them.
    """
    template: dict[str, Any] = {}
    if METHOD in objects:
        merged = {"recipe": CUSTOM, "data": data, **_method_settings(objects[METHOD], modality)}
    elif isinstance(recipe, Method):
        merged = {"recipe": CUSTOM, "data": data, **_method_settings(recipe, modality)}
        template = recipe.parts()
    else:
        chosen_recipe, layers = _recipe(recipe), _with_preset(recipe, layers)
        template = chosen_recipe.template(_epochs(layers)).parts()
        sections = plain({choice: section_of(choice, part) for choice, part in template.items()})
        merged = {"recipe": recipe, "data": data, **chosen_recipe.training.settings(), **sections}
    if modality is not None:
        merged["views"] = _views_for(modality, merged, objects)
    own_views = merged["views"]["name"]
    for layer in layers:
        _merge(merged, layer)
    views = merged["views"]["name"]
    if modality is not None and views != own_views and views not in modality.views.names:
        raise not_one_of("views", views, modality.views.names, suffix=f" for {modality.plural}")
    merged |= {choice: describe_object(objects[choice]) for choice in PARTS_BY_CHOICE if choice in objects}
    if BACKBONE in objects:
        merged[BACKBONE] = describe_backbone(objects[BACKBONE])
    if VIEWS in objects:
        target_modality = modality or modality_of_views(merged[VIEWS])
        if isinstance(objects[VIEWS], PictureFunctions) and not target_modality.views.resizable:
            raise UserError(
                f"views was a function of one picture, but the data are {target_modality.plural}; expected a function of "
                "(instances, seed, epoch, index), with the instances of a batch, that returns a tensor for each view"
            )
        merged[VIEWS], template[VIEWS] = describe_views(objects[VIEWS], target_modality, merged[VIEWS])
    return check(merged, objects, template=template)


def complete(settings: Settings, data: str, values: Layer) -> Settings:
    """Resolved settings with values that were not known at that time. Parts that do not change are kept."""
    merged = {**settings.as_plain(), "data": data}
    _merge(merged, values)
    return check(merged, template=settings.parts)


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown(name, RECIPES, "recipes")
    return RECIPES[name]


def modality_of_recipe(recipe: str | Method) -> Modality:
    """The modality that a recipe was written for; of a caller's method without views, the first one."""
    if isinstance(recipe, Method) and isinstance(recipe.views, AbstractViewSettings):
        return modality_of_views(section_of("views", recipe.views))
    if isinstance(recipe, Method) or recipe == CUSTOM:
        return next(iter(MODALITIES.values()))
    return modality_of_views(section_of("views", method_template(_recipe(recipe).method).views))


def _merge(merged: dict[str, Any], layer: Layer) -> None:
    for key in ("recipe", "data"):
        if key in layer:
            raise UserError(
                f"{key} was given as a setting too ({layer[key]!r}); name it once, as RECIPE and DATA are"
            )
    changes = nested(layer)
    if changes.get("optimizer", merged.get("optimizer")) != merged.get("optimizer"):
        merged.pop("optimizer_options", None)  # as naming another part drops the settings of the one before
    for key, value in changes.items():
        if key == "optimizer_options" and isinstance(value, Mapping):
            merged[key] = {**merged.get(key, {}), **value}
        else:
            merged[key] = _changed(key, merged[key], value) if key in CHOICES else value


def _changed(choice: str, section: Layer, change: Layer) -> dict[str, Any]:
    if "name" in change and change["name"] != section["name"]:
        # the number of views and how they are paired belong to the method, unless the new views fix them
        shared = {
            k: v for k, v in section.items() if choice == "views" and k in _pairing_settings(change["name"])
        }
        return {**shared, **change}
    return {**section, **change}


def _pairing_settings(views: object) -> tuple[str, ...]:
    """The pairing settings that views of this name have; all of them if the name is unknown."""
    for modality in MODALITIES.values():
        if isinstance(views, str) and views in modality.views.kinds:
            kind = modality.views.kinds[views]
            return PAIRING_KEYS if kind.further else tuple(k for k in PAIRING_KEYS if k in settable(kind))
    return PAIRING_KEYS


def _with_preset(recipe: str, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers, and before them the preset that one of them names."""
    name = preset_named(layers)
    return (preset_for(name, recipe), *layers) if name is not None else layers


def _method_settings(method: Method, modality: Modality | None) -> dict[str, Any]:
    """The settings of a method that the caller made, and views that it can take."""
    parts = {choice: getattr(method, choice) for choice in PARTS_BY_CHOICE}
    sections = {choice: as_section(choice, part) or describe_object(part) for choice, part in parts.items()}
    origin = built_from(method.encoders)
    backbone = {} if origin is None else {BACKBONE: origin.backbone}
    return {**sections, **backbone, "views": _views_of_method(method, modality), "chunk": method.chunk}


def _views_of_method(method: Method, modality: Modality | None) -> dict[str, Any]:
    if isinstance(method.views, AbstractViewSettings):
        return section_of("views", method.views)
    family = (modality or next(iter(MODALITIES.values()))).views
    names = method.encoders.view_names
    paired = {"symmetric": method.symmetric} if family.several and not names else {}
    return {"name": names[0] if names else family.default, **paired}


def _views_for(modality: Modality, merged: Layer, objects: Objects) -> dict[str, Any]:
    views = merged["views"]
    role = objects.get("encoders") or PARTS_BY_CHOICE["encoders"][merged["encoders"]["name"]]
    made_for = role.view_names or role.backbone_names
    if views["name"] in modality.views.names or made_for or not modality.views.several:
        return dict(views)
    return {
        "name": modality.views.default,
        "count": views.get("count", 2),
        "symmetric": views.get("symmetric", True),
    }


def _epochs(layers: Iterable[Layer]) -> int:
    """The length of the run, for schedules that last a fraction of it; an invalid value is reported later."""
    values = [numbers(layer["epochs"]) for layer in layers if "epochs" in layer]
    valid = values and isinstance(values[-1], int) and 1 <= values[-1] <= MAX_EPOCHS
    return values[-1] if valid else FIELDS["epochs"].default


# --------------------------------------------------------------------------------------- checking


def check(
    merged: Layer,
    objects: Objects = NO_OBJECTS,
    *,
    stored: bool = False,
    template: Mapping[str, Any] = NO_TEMPLATE,
) -> Settings:
    """Complete settings with their parts, or an error about the first one that is wrong.

    `stored` settings may describe an object that the caller did not pass again; then the parts are not
    checked together. Parts of `template` that the settings describe are used, the others are made.
    """
    settings = dict(merged)
    given_as_objects = {
        choice for choice in CHOICES if choice in objects or (stored and "object" in settings[choice])
    }
    for key in settings:
        if key not in KEYS:
            raise unknown(str(key), all_keys())
    settings["optimizer_options"] = check_optimizer(settings)
    for choice in PARTS_BY_CHOICE:
        settings[choice] = (
            settings[choice] if choice in given_as_objects else check_section(choice, settings[choice])
        )
    modality = modality_of_views(settings["views"])
    if VIEWS in objects:
        views = template[VIEWS]
    else:
        views = _template_part(VIEWS, settings["views"], template) or modality.views.of(settings["views"])
    if VIEWS not in given_as_objects:
        settings["views"] = {"name": settings["views"]["name"], **views.section()}
    objects_present = all(choice in objects for choice in given_as_objects)
    if objects_present:
        check_together(settings, objects)
    if "encoders" not in given_as_objects:
        check_network(
            settings, modality, custom=BACKBONE in objects or (stored and is_own_backbone(settings[BACKBONE]))
        )
    elif "encoders" in objects:
        settings[BACKBONE] = describe_backbone(objects["encoders"].backbone())
    choices = [choice for choice in PARTS_BY_CHOICE if choice not in given_as_objects]
    with torch.random.fork_rng(devices=[]):  # weights that need no data are drawn again by the run's seed
        parts = {k: _template_part(k, settings[k], template) or make_part(k, settings[k]) for k in choices}
    checked = checked_settings(settings, {**parts, VIEWS: views})
    role = (
        None if "encoders" in given_as_objects else PARTS_BY_CHOICE["encoders"][settings["encoders"]["name"]]
    )
    if checked.batch_size < 2 and not (role and (role.same_rows_in_views or role.gives_corrupted_keys)):
        raise UserError(f"batch_size was {checked.batch_size}; expected a number of at least 2")
    if objects_present and not stored:  # a run that one process trained before can still be read
        check_exchange(checked.exchange, *({**parts, **objects}[choice] for choice in SCORING_CHOICES))
    return checked


def _template_part(choice: str, section: Layer, template: Mapping[str, Any]) -> Any:
    """The part of a template, if this section describes it; else None."""
    part = template.get(choice)
    if part is None or (choice == VIEWS and not isinstance(part, AbstractViewSettings)):
        return None
    return part if plain(section_of(choice, part)) == plain(section) else None


def check_optimizer(settings: Layer) -> dict[str, Any]:
    """The options of the chosen optimiser that the user set, tried on a parameter of no size."""
    name, options = settings.get("optimizer", "adamw"), settings.get("optimizer_options") or {}
    if not isinstance(name, str) or name not in OPTIMISERS or not options:
        return {}  # a wrong name is reported with the other settings
    if not isinstance(options, Mapping):
        raise UserError(f"optimizer_options was {options!r}; expected a mapping such as {{nesterov: true}}")
    check_owners("optimizer", name, options, OPTIMISERS)
    converted = check_given(OPTIMISERS[name], options, "optimizer")
    momentum = None if settings.get("momentum") == "none" else settings.get("momentum")
    if momentum is None or isinstance(momentum, (int, float)):
        build(name, nn.Linear(1, 1), lr=1.0, weight_decay=0.0, momentum=momentum, options=converted)
    return converted


def check_network(settings: dict[str, Any], modality: Modality, custom: bool = False) -> None:
    """Checks the backbone against the encoders and the data; `custom`: it is a module of the caller."""
    if settings.get("image_size") not in (None, "none") and not modality.views.resizable:
        raise UserError(f"image_size was {settings['image_size']!r}; {modality.plural} have no image size")
    if settings.get("mean") not in (None, "none") and not modality.views.resizable:
        raise UserError(
            f"mean was {settings['mean']!r}; it is for images, and the data hold {modality.plural}"
        )
    role = PARTS_BY_CHOICE["encoders"][settings["encoders"]["name"]]
    with_encoders = f"encoders={settings['encoders']['name']}"
    fixed = role.built_in_backbone
    name = settings.setdefault("backbone", fixed or modality.networks.default)
    if not isinstance(name, str):
        raise UserError(f"backbone was {name!r}; expected a string, or from Python an nn.Module")
    if fixed is not None and name != fixed:
        raise UserError(f"backbone was {name!r}; with {with_encoders} it is {fixed}")
    if fixed is None and not custom:
        homes = [home.plural for home in MODALITIES.values() if name in home.networks.names]
        if homes and modality.plural not in homes:
            raise UserError(
                f"backbone was {name!r}, which is for {homes[0]}; expected for {modality.plural} "
                f"{', '.join(modality.networks.names)}"
            )
        modality.check_network(name)
        settings["backbone_config"] = modality.networks.config(name, settings.get("backbone_config"))
    allowed = role.backbone_names
    if allowed is not None and name not in allowed:
        raise UserError(
            f"backbone was {name!r} with {with_encoders}, which needs a map from inside it; expected "
            f"{', '.join(allowed)}"
        )
