"""Network and epochs by the machine, where the user names none: resnet18 for 100 epochs is for GPUs, and
would take a CPU days."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearfar.config.building import NONE
from nearfar.config.objects import OWN, Objects
from nearfar.config.resolving import modality_of_recipe, resolve
from nearfar.config.settings import Settings
from nearfar.core.method import Method
from nearfar.modalities import Modality
from nearfar.run.folder import RunFolder
from nearfar.system.hardware import pick_device

EPOCHS_ON_CPU = 20


def resolve_here(
    recipe: str | Method,
    data: str,
    out: Path | None,
    *layers: Mapping[str, Any],
    modality: Modality | None = None,
    objects: Objects = NONE,
) -> tuple[Settings, str | None]:
    """The settings as `resolve` returns them, with defaults for this machine, and a note about those
    defaults."""
    # encoders, or a method, that the caller made have their network
    fixed = {"backbone": None} if {"backbone", "encoders", "method"} & set(objects) else {}
    expected = modality_of_recipe(recipe)
    # data of another kind than the recipe's is reported after resolving, without defaults of that kind
    small = expected.networks.small if modality in (None, expected) else None
    name = recipe if isinstance(recipe, str) else OWN
    defaults, note = machine_defaults(name, small, out, fixed, *layers) if small else ({}, None)
    return resolve(recipe, data, defaults, *layers, modality=modality, objects=objects), note


def machine_defaults(
    recipe: str, network: str, out: Path | None, *layers: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """Defaults for a CPU; a run that was started keeps what was chosen for it, on whatever machine it
    resumes."""
    defaults = {"backbone": network, "epochs": EPOCHS_ON_CPU}
    unset = [key for key in defaults if not any(key in layer for layer in layers)]
    if out is not None and (folder := RunFolder(out)).config.is_file():
        stored = folder.stored_settings()
        return {key: stored[key] for key in unset if key in stored and stored["recipe"] == recipe}, None
    device = next((layer["device"] for layer in reversed(layers) if "device" in layer), "auto")
    on_cpu = device == "cpu" or (device == "auto" and pick_device("auto").type == "cpu")
    if not unset or not on_cpu:
        return {}, None
    values = {key: defaults[key] for key in unset}
    words = " and ".join(f"{key}={value}" for key, value in values.items())
    return values, f"{words} chosen for a CPU; name them to choose yourself"
