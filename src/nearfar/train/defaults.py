"""Settings that follow from the machine, the data and the setting `init`, where the user names none.

resnet18 for 100 epochs at 224 pixels is for GPUs and would take a CPU days. A first run on a CPU should take
minutes and learn something.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.config.building import NO_OBJECTS
from nearfar.config.fields import CHOICES, FIELDS
from nearfar.config.objects import CUSTOM, VIEWS, Objects, is_own_backbone
from nearfar.config.presets import preset_for
from nearfar.config.reading import numbers
from nearfar.config.recipes import RECIPES, Training
from nearfar.config.resolving import Layer, modality_of_recipe, resolve
from nearfar.config.settings import Settings
from nearfar.core.method import Method
from nearfar.data import Located
from nearfar.errors import UserError, counted
from nearfar.modalities import DataSet, Modality, modality_of_views
from nearfar.modalities.base import Pretrained
from nearfar.modalities.image.views.functions import PictureFunctions
from nearfar.run.checkpoints import last_named
from nearfar.run.folder import RunFolder
from nearfar.run.trained import Run
from nearfar.run.weights import PRETRAINED
from nearfar.system.hardware import pick_device
from nearfar.train.init import weights_file

# the settings that are chosen here
CHOSEN_KEYS = ("backbone", "image_size", "batch_size", "epochs", "optimizer", "lr", "views")
# settings that follow from `init` too, and from the backbone
FOLLOWING_KEYS = (*CHOSEN_KEYS, "mean", "std", "backbone_config")
SAMPLE = 16  # images that the size of a view is chosen from
MAX_SIDE = 64  # of a view on a CPU, in pixels
# with a recipe's `on_cpu`, crops for training are smaller than the images that evaluation shows: they cost
# less, and objects are as large in them as in a whole image (Touvron et al. 2019); measured at 32 pixels
CROP_SHARE, CROPPED_SIDES = 0.75, range(24, 49)
MIN_STEPS, MIN_BATCH = 7, 8  # steps of an epoch, so that the dropped last batch is a seventh at most
# epochs on a CPU: this many images of 32 x 32 pixels in all, about ten minutes of two cores with the small
# network, and never more passes than MAX_EPOCHS
CPU_IMAGES, REFERENCE_SIDE, MAX_EPOCHS = 1_000_000, 32, 100
EPOCHS_ON_CPU = 20  # of data that cannot be opened yet
# linear accuracy in % that `on_cpu` reached on CIFAR-10: crops, images, epochs (docs/results/quality.md)
MEASURED_ACCURACY, MEASURED_CROPS, MEASURED_IMAGES, MEASURED_EPOCHS = 71, "2x24", 50_000, 10
MEASURED_SHARE = 0.9  # of the images that there must be to expect it
# settings that decide what is learnt
LEARNING_KEYS = (
    *("backbone", "image_size", "batch_size", "optimizer", "optimizer_options", "momentum", "lr", "warmup"),
    *("weight_decay", "layer_decay", "clip", "init", "freeze", "labels", *CHOICES),
)


def resolve_here(
    recipe: str | Method,
    data: str,
    out: Path | None,
    *layers: Layer,
    located: Located | None = None,
    objects: Objects = NO_OBJECTS,
) -> tuple[Settings, str | None]:
    """The settings as `resolve` returns them, with defaults for this machine and these data (`located`; None:
    they cannot be opened), and a note about those defaults."""
    modality = None if located is None else located.modality
    defaults, note = _defaults(recipe, out, layers, located, objects)
    return resolve(recipe, data, defaults, *layers, modality=modality, objects=objects), note


def _defaults(
    recipe: str | Method,
    out: Path | None,
    layers: tuple[Layer, ...],
    located: Located | None,
    objects: Objects,
) -> tuple[dict[str, Any], str | None]:
    name = recipe if isinstance(recipe, str) else CUSTOM
    settings = _set_by_user(name, layers)
    # encoders, or a method, that the caller made have their network
    has_network = bool({"backbone", "encoders", "method"} & set(objects))
    named_keys = {key.partition(".")[0] for key in (*settings, *objects)}
    named_keys |= {"backbone"} if has_network else set()
    named_keys |= {"optimizer"} if named_keys & {"optimizer_options", "momentum", "sharding"} else set()
    unset_keys = [key for key in FOLLOWING_KEYS if key not in named_keys]
    # a start that failed before its first step chose nothing for good (`starts_over`)
    folder = None if out is None else RunFolder(out)
    if folder is not None and folder.config.is_file() and last_named(folder.checkpoints) > 0:
        # a run that was started keeps what was chosen for it, on whatever machine it resumes
        stored = folder.stored_settings()
        same_kind = located is None or modality_of_views(stored["views"]) is located.modality
        kept_keys = unset_keys if same_kind and stored["recipe"] == name else []
        if not _measured_keys(name, unset_keys):
            kept_keys = [key for key in kept_keys if key not in ("optimizer", "lr", "views")]
        return _of_same_network(
            {key: stored[key] for key in kept_keys if key in stored}, stored, settings
        ), None
    expected = modality_of_recipe(recipe)
    of_start, origin = _of_start(settings, expected, located, has_network)
    inherited = {key: v for key, v in (of_start | _of_views(objects, located)).items() if key in unset_keys}
    defaults = _choose_defaults(name, settings, inherited, unset_keys, located, expected)
    notes = [f"{_words(inherited)}, as in {origin or 'the views'}"] if inherited else []
    if defaults:
        machine = ["a CPU"] if {*defaults} - {"batch_size"} else []
        data = located.preview if located is not None and {*defaults} - {"backbone"} else None
        count = "" if data is None else counted(_trained_on(data, settings.get("labels")), data.unit)
        pronoun = "them" if len(defaults) > 1 else "it"
        reasons = " and ".join(filter(None, (*machine, count)))
        notes.append(f"{_words(defaults)} chosen for {reasons}; set {pronoun} to change this")
    return {**inherited, **defaults}, "\n".join(notes) or None


def _words(settings: Layer) -> str:
    flat = {
        f"{key}.{name}" if name else key: number
        for key, value in settings.items()
        if key != "backbone_config"
        for name, number in (value.items() if isinstance(value, Mapping) else [("", value)])
    }
    return " ".join(f"{key}={value}" for key, value in flat.items())


def _set_by_user(recipe: str, layers: tuple[Layer, ...]) -> dict[str, Any]:
    """What layers set, and a preset that they name, by top-level key."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged |= layer
    preset = merged.get("preset")
    has_preset = isinstance(preset, str) and preset != "none" and recipe in RECIPES
    return {**(preset_for(preset, recipe) if has_preset else {}), **merged}


def _of_start(
    settings: Layer, expected: Modality, located: Located | None, has_network: bool
) -> tuple[dict[str, Any], str]:
    """The settings that follow from `init`, and whose they are: network and size of a run, size and
    statistics of weights."""
    init = settings.get("init")
    if not isinstance(init, str):
        return {}, ""
    if RunFolder(Path(init)).config.is_file() and init != PRETRAINED:
        run = Run.open(init)
        values = _of_run(run) if run.modality is expected else {}
        return _of_same_network(values, values, settings), init
    weights = _weights_of(init, settings.get("backbone"), expected, has_network)
    if weights is None:
        return {}, ""
    data = None if located is None else located.preview
    return expected.networks.start_settings(weights, data), weights.origin


def _of_same_network(values: dict[str, Any], stored: Layer, settings: Layer) -> dict[str, Any]:
    """Values without the configuration of the stored network, if the user names another one."""
    same = settings.get("backbone", stored.get("backbone")) == stored.get("backbone")
    return {key: value for key, value in values.items() if same or key != "backbone_config"}


def _of_run(run: Run) -> dict[str, Any]:
    """Network and size of a run, and the statistics that its settings name."""
    settings, side = run.settings, run.description.side()
    backbone: dict[str, Any] = {} if is_own_backbone(settings.backbone) else {"backbone": settings.backbone}
    if settings.backbone_config is not None:
        backbone["backbone_config"] = settings.backbone_config
    statistics = {} if settings.mean is None else {"mean": settings.mean, "std": settings.std}
    return {**backbone, **statistics, **({} if side is None else {"image_size": side})}


def _weights_of(init: str, backbone: Any, expected: Modality, has_network: bool) -> Pretrained | None:
    """The weights that `init` names; None: there are none of that name, which is reported later."""
    if init == PRETRAINED and has_network:
        raise UserError(
            "init was pretrained with a backbone of your own, which starts from the weights it has"
        )
    if init == PRETRAINED and not isinstance(backbone, str):
        raise UserError(
            "init was pretrained without a backbone; name the network: backbone=timm/NAME, hf/NAME, or resnet18 "
            "and others of torchvision"
        )
    if init == PRETRAINED:
        return expected.networks.pretrained(expected.check_network(backbone))
    file = weights_file(init)
    return None if file is None else expected.networks.describe_weights(file)


def _of_views(objects: Objects, located: Located | None) -> dict[str, Any]:
    """The side of the views that the caller's functions make."""
    functions = objects.get(VIEWS)
    if not isinstance(functions, PictureFunctions) or located is None or located.preview is None:
        return {}
    loaded = located.preview.load(np.arange(1))
    side = functions.side(located.modality.reader.first_content(loaded))
    return {} if side is None else {"image_size": side}


def _choose_defaults(
    recipe: str,
    settings: Layer,
    inherited: Layer,
    unset_keys: list[str],
    located: Located | None,
    expected: Modality,
) -> dict[str, Any]:
    """The settings that nothing else decides: the batch size by the data; on a CPU network, size and
    epochs."""
    adjustable = [key for key in unset_keys if key not in inherited]
    data = located.preview if located is not None and {*adjustable} - {"backbone"} else None
    # data of another kind than the recipe's get no defaults of that kind
    small = expected.networks.small if located is None or located.modality is expected else None
    on_cpu = small is not None and _on_cpu(settings.get("device", "auto"))
    values: dict[str, Any] = {"backbone": small, "epochs": EPOCHS_ON_CPU} if on_cpu else {}
    if data is not None:
        training = RECIPES[recipe].training if recipe in RECIPES else Training()
        usual = training.batch_size or FIELDS["batch_size"].default
        count = _trained_on(data, settings.get("labels"))
        batch = _batch_size(count, usual)
        values |= {"batch_size": batch} if batch != usual else {}
        if on_cpu:
            side = numbers({**settings, **inherited}.get("image_size"))
            if not isinstance(side, int):
                side = _side(data, expected)
                if side > MAX_SIDE and "image_size" in adjustable:
                    values["image_size"] = side = MAX_SIDE
            if batch == usual and side in CROPPED_SIDES and _measured_keys(recipe, adjustable):
                values |= {**RECIPES[recipe].on_cpu, "views": {"crops": f"2x{round(CROP_SHARE * side)}"}}
            images = CPU_IMAGES / (side / REFERENCE_SIDE) ** 2
            values["epochs"] = max(1, min(MAX_EPOCHS, round(images / max(1, count))))
    return {key: values[key] for key in CHOSEN_KEYS if key in adjustable and key in values}


def _measured_keys(recipe: str, keys: list[str]) -> bool:
    """Whether the recipe has settings for a CPU that were measured together, and all of them are among
    `keys`."""
    measured_settings = RECIPES[recipe].on_cpu if recipe in RECIPES else {}
    return bool(measured_settings) and {*measured_settings, "views"} <= {*keys}


def expectation(settings: Settings, count: int) -> str:
    """What follows "about 12 minutes" in the line about a run on a CPU: the accuracy to expect too, if these
    settings were measured, on at least as many images and epochs."""
    measured_settings = RECIPES[settings.recipe].on_cpu if settings.recipe in RECIPES else {}
    if not measured_settings or count < MEASURED_SHARE * MEASURED_IMAGES or settings.epochs < MEASURED_EPOCHS:
        return "on this CPU"
    measured = resolve(
        settings.recipe, settings.data, {**measured_settings, "views": {"crops": MEASURED_CROPS}}
    )
    if any(getattr(settings, key) != getattr(measured, key) for key in LEARNING_KEYS):
        return "on this CPU"
    return (
        f"on this CPU; {MEASURED_ACCURACY} % linear accuracy expected on images like CIFAR-10, where it was "
        f"measured after {MEASURED_EPOCHS} epochs"
    )


def _on_cpu(device: Any) -> bool:
    return device == "cpu" or (device == "auto" and pick_device("auto").type == "cpu")


def _trained_on(data: DataSet, labels: Any) -> int:
    """The number of instances of which `labels` is a share, or a number of each class."""
    labels = numbers(labels)
    if not isinstance(labels, (int, float)) or labels <= 0:
        return len(data)
    return min(len(data), int(labels * (len(data) if labels < 1 else data.class_count)))


def _batch_size(count: int, usual: int) -> int:
    """`usual`, halved until an epoch has MIN_STEPS steps."""
    batch = usual
    while batch > MIN_BATCH and count // batch < MIN_STEPS:
        batch //= 2
    return max(2, min(batch, count))


def _side(data: DataSet, modality: Modality) -> int:
    """The side of a view that the data suggest, from a few of them."""
    few = data.subset(data.sample(0, 0, SAMPLE))
    return modality.reader.describe(few, None).side() or REFERENCE_SIDE
